"""GPTQ (arXiv 2210.17323) in 4 bits, with groups in order or, after ``desc_act``, in any order."""

from __future__ import annotations

import torch

from engine.kernels.quant_weight import QuantWeight, pack_int4
from engine.quantization.base import Shard
from engine.quantization.packed import group_slice, unpack_int32
from engine.weights.errors import WeightsError
from engine.weights.quantization import QuantizationConfig
from engine.weights.torch_loader import WeightLoader

_ORDER = tuple(range(8))


def read_gptq(weights: WeightLoader, config: QuantizationConfig, shard: Shard) -> QuantWeight | torch.Tensor:
    """qweight [in / 8, out] (eight inputs a word), qzeros [in / group, out / 8], scales [in / group, out], g_idx [in].

    Where g_idx is not in order, the columns are sorted by group and the weight says which input each one meets. A
    rank's share of such inputs has parts of many groups, which no kernel here reads: it is made plain, float32.
    """
    rows = shard.rows or slice(None)
    q = unpack_int32(weights.packed(f"{shard.name}.qweight").T.contiguous(), _ORDER)[rows]
    zeros = unpack_int32(weights.packed(f"{shard.name}.qzeros"), _ORDER)[:, rows].T + config.zero_offset
    scales = weights.packed(f"{shard.name}.scales")[:, rows].T
    g_idx = weights.packed(f"{shard.name}.g_idx").long()
    if int(g_idx.min()) < 0 or int(g_idx.max()) >= scales.shape[1]:
        raise WeightsError(f"{shard.name}.g_idx names groups that the checkpoint does not have")
    in_order = torch.arange(len(g_idx)) // config.group_size
    order: torch.Tensor | None = None
    if not torch.equal(g_idx, in_order):
        places = torch.argsort(g_idx, stable=True)
        whole = shard.columns is None or len(range(*shard.columns.indices(len(g_idx)))) == len(g_idx)
        if not whole or not torch.equal(g_idx[places], in_order):
            plain = (q.float() - zeros[:, g_idx]) * scales[:, g_idx].float()
            return plain[:, shard.columns or slice(None)]
        q, order = q[:, places], places.to(torch.int32)
    groups = group_slice(shard.columns, config.group_size, shard.name)
    data = pack_int4(q[:, shard.columns or slice(None)].contiguous(), config.group_size)
    parts = scales[:, groups].contiguous(), zeros[:, groups].contiguous()
    return QuantWeight("int4", data, parts[0], 1, config.group_size, parts[1], order)
