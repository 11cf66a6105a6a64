"""The MLPs of a mixture of experts: every token through its own few experts, all experts in two launches.

Tokens are sorted by expert and cut into blocks that belong to one expert each, so that a block is an ordinary
matrix multiplication. The first kernel does gate and up with the SiLU-gated epilogue, the second one does down
and weighs the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton.autotune import tune_table
from engine.kernels.triton.common import INTERPRETED, cdiv, check_rows, dot, row_bucket, silu

_CONFIGS = (
    {"BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
)


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts each token goes to: ids [T, top] int, weights [T, top] float32."""

    ids: torch.Tensor
    weights: torch.Tensor


def grouped_mlp_ref(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routing: Routing) -> torch.Tensor:
    """x [T, k], gate_up [experts, 2 n, k], down [experts, k, n] -> [T, k], sums in float32."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(gate_up.shape[0]):
        token, place = (routing.ids == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = F.linear(x[token].float(), gate_up[expert].float()).chunk(2, dim=-1)
        hidden = (F.silu(gate) * up).to(x.dtype)
        result = F.linear(hidden.float(), down[expert].float()) * routing.weights[token, place, None]
        out.index_add_(0, token, result)
    return out.to(x.dtype)


def sort_by_expert(ids: torch.Tensor, num_experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [T, top] -> ``(pairs, experts)``: ``pairs`` [P] are indices into the flattened ids, ordered by expert and
    padded with T * top to whole blocks per expert; ``experts`` [P / block] is each block's expert, -1 for blocks
    beyond the end. P depends on the shapes alone, so nothing waits for the device."""
    total = ids.numel()
    flat = ids.reshape(-1).long()
    blocks = cdiv(total, block) + min(num_experts, total)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    block_ends = torch.cumsum(-(-counts // block), 0)
    order = torch.argsort(flat, stable=True)
    expert = flat[order]
    rank = torch.arange(total, device=ids.device) - (torch.cumsum(counts, 0) - counts)[expert]
    place = (block_ends - -(-counts // block))[expert] * block + rank
    pairs = torch.full((blocks * block,), total, dtype=torch.int32, device=ids.device)
    pairs[place] = order.to(torch.int32)
    owner = torch.searchsorted(block_ends, torch.arange(blocks, device=ids.device), right=True)
    return pairs, torch.where(owner < num_experts, owner, -1).to(torch.int32)


def grouped_mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routing: Routing) -> torch.Tensor:
    """As ``grouped_mlp_ref``, with the hidden activations in x's dtype."""
    for tensor, name in ((x, "x"), (gate_up, "gate_up"), (down, "down")):
        check_rows(tensor, name)
    tokens, k = x.shape
    experts, n, top = gate_up.shape[0], gate_up.shape[1] // 2, routing.ids.shape[1]
    if not tokens:
        return torch.empty_like(x)
    block = 16 if tokens * top <= 16 * experts else 64
    pairs, owners = sort_by_expert(routing.ids, experts, block)
    hidden = torch.empty((tokens * top, n), dtype=x.dtype, device=x.device)
    parts = torch.empty((tokens * top, k), dtype=torch.float32, device=x.device)
    weights = routing.weights.float().contiguous()
    bucket = row_bucket(tokens * top)

    def first(config: Mapping[str, int]) -> None:
        _grouped_kernel[(cdiv(n, config["BLOCK_N"]), owners.shape[0])](
            x, gate_up, hidden, weights, pairs, owners, tokens * top, top, n, k, x.stride(0),
            BLOCK_M=block, GATED=True, WIDEN=INTERPRETED, **config
        )  # fmt: skip

    def second(config: Mapping[str, int]) -> None:
        _grouped_kernel[(cdiv(k, config["BLOCK_N"]), owners.shape[0])](
            hidden, down, parts, weights, pairs, owners, tokens * top, 1, k, n, n,
            BLOCK_M=block, GATED=False, WIDEN=INTERPRETED, **config
        )  # fmt: skip

    first(tune_table().pick("grouped_gate_up", (bucket, n, k, experts, block), _CONFIGS, first))
    second(tune_table().pick("grouped_down", (bucket, k, n, experts, block), _CONFIGS, second))
    return parts.view(tokens, top, k).sum(dim=1).to(x.dtype)


@triton.jit(do_not_specialize=["total"])
def _grouped_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    route_ptr,
    pair_ptr,
    owner_ptr,
    total,
    top,
    n,
    k,
    x_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
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
        rows = weight_ptr + (expert * height + column.to(tl.int64))[:, None] * k
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, k, BLOCK_K):
            depth = start + tl.arange(0, BLOCK_K)
            deep = depth[None, :] < k
            x = tl.load(source + depth[None, :], mask=real[:, None] & deep, other=0.0)
            here = inside[:, None] & deep
            acc = dot(x, tl.trans(tl.load(rows + depth[None, :], mask=here, other=0.0)), acc, WIDEN)
            if GATED:
                second = tl.load(rows + n.to(tl.int64) * k + depth[None, :], mask=here, other=0.0)
                up = dot(x, tl.trans(second), up, WIDEN)
        if GATED:
            acc = silu(acc) * up
        else:
            acc = acc * tl.load(route_ptr + pair, mask=real, other=0.0)[:, None]
        place = pair[:, None] * n + column[None, :]
        tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
