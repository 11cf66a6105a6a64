"""The MLPs of a mixture of experts whose weights stay packed: as grouped_mlp, dequantized in registers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from engine.kernels.quant_weight import QuantWeight, dequantize
from engine.kernels.triton.autotune import tune_table
from engine.kernels.triton.common import INTERPRETED, cdiv, check_rows, row_bucket, silu
from engine.kernels.triton.grouped_mlp import Routing, grouped_mlp_ref, sort_by_expert
from engine.kernels.triton.quant_linear import block_k, load_inputs, packed_dot, stored

_CONFIGS = (
    {"BLOCK_N": 64, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 32, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 128, "num_warps": 8, "num_stages": 3},
)


def grouped_quant_mlp_ref(x: torch.Tensor, gate_up: QuantWeight, down: QuantWeight, routing: Routing) -> torch.Tensor:
    """x [T, k]; gate_up [experts * 2 n, k] and down [experts * k, n], expert after expert -> [T, k]."""
    k = x.shape[1]
    experts = down.shape[0] // k
    wide = dequantize(gate_up).view(experts, -1, k), dequantize(down).view(experts, k, -1)
    return grouped_mlp_ref(x, *wide, routing)


def grouped_quant_mlp(x: torch.Tensor, gate_up: QuantWeight, down: QuantWeight, routing: Routing) -> torch.Tensor:
    """As ``grouped_quant_mlp_ref``, with the hidden activations in x's dtype and sums in float32."""
    check_rows(x, "x")
    tokens, k = x.shape
    experts, n, top = down.shape[0] // k, down.shape[1], routing.ids.shape[1]
    if not tokens:
        return torch.empty_like(x)
    block = 16 if tokens * top <= 16 * experts else 64
    pairs, owners = sort_by_expert(routing.ids, experts, block)
    hidden = torch.empty((tokens * top, n), dtype=x.dtype, device=x.device)
    parts = torch.empty((tokens * top, k), dtype=torch.float32, device=x.device)
    weights = routing.weights.float().contiguous()

    def launch(source: torch.Tensor, weight: QuantWeight, out: torch.Tensor, gated: bool) -> None:
        height, depth = out.shape[1], source.shape[1]

        def run(config: Mapping[str, int]) -> None:
            _grouped_quant_kernel[(cdiv(height, config["BLOCK_N"]), owners.shape[0])](
                source, *stored(weight), out, weights, pairs, owners, tokens * top, top if gated else 1, height, depth,
                weight.scales.shape[1], weight.group_n, weight.group_k, source.stride(0),
                INT4=weight.kind == "int4", FP8=weight.kind == "fp8", ZEROS=weight.zeros is not None,
                ORDERED=weight.order is not None, GATED=gated,
                BLOCK_M=block, BLOCK_K=block_k(weight), WIDEN=INTERPRETED, **config
            )  # fmt: skip

        shape = (row_bucket(tokens * top), height, depth, experts, block, block_k(weight))
        run(tune_table().pick(f"grouped_{weight.kind}_{'gate_up' if gated else 'down'}", shape, _CONFIGS, run))

    launch(x, gate_up, hidden, True)
    launch(hidden, down, parts, False)
    return parts.view(tokens, top, k).sum(dim=1).to(x.dtype)


@triton.jit(do_not_specialize=["total"])
def _grouped_quant_kernel(
    x_ptr,
    data_ptr,
    scale_ptr,
    zero_ptr,
    order_ptr,
    out_ptr,
    route_ptr,
    pair_ptr,
    owner_ptr,
    total,
    top,
    n,
    k,
    groups,
    group_n,
    group_k,
    x_stride,
    INT4: tl.constexpr,
    FP8: tl.constexpr,
    ZEROS: tl.constexpr,
    ORDERED: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDEN: tl.constexpr,
):
    expert = tl.load(owner_ptr + tl.program_id(1)).to(tl.int64)
    if expert >= 0:
        pair = tl.load(pair_ptr + tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        real = pair < total
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = column < n
        source = x_ptr + (pair // top)[:, None] * x_stride
        height = 2 * n if GATED else n
        line = expert * height + column
        width = k // 2 if INT4 else k
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, width, BLOCK_K):
            depth = start + tl.arange(0, BLOCK_K)
            deep = depth < width
            group = (2 * start if INT4 else start) // group_k
            x = load_inputs(source, real, order_ptr + expert * k, start + depth if INT4 else depth, deep, ORDERED)
            second = x
            if INT4:
                second = load_inputs(source, real, order_ptr + expert * k, start + BLOCK_K + depth, deep, ORDERED)
            acc = packed_dot(x, second, data_ptr, scale_ptr, zero_ptr, line, inside, depth, deep, width, groups, group, group_n, acc, INT4, FP8, ZEROS, WIDEN)  # fmt: skip  # noqa: E501
            if GATED:
                up = packed_dot(x, second, data_ptr, scale_ptr, zero_ptr, line + n, inside, depth, deep, width, groups, group, group_n, up, INT4, FP8, ZEROS, WIDEN)  # fmt: skip  # noqa: E501
        if GATED:
            acc = silu(acc) * up
        else:
            acc = acc * tl.load(route_ptr + pair, mask=real, other=0.0)[:, None]
        place = pair[:, None] * n + column[None, :]
        tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
