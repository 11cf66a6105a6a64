"""A quantized matrix in the form that engine.kernels.triton.quant_linear multiplies with, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

Kind = Literal["int8", "int4", "fp8"]


@dataclass(frozen=True, slots=True)
class QuantWeight:
    """A matrix [n, k]; ``w[i, j] = (q[i, j] - zeros[i, j // group_k]) * scales[i // group_n, j // group_k]``.

    data: int8 or float8_e4m3fn [n, k]; for int4 uint8 [n, k / 2] where byte j of a group of g values holds value j
    in its low and value j + g / 2 in its high nibble, so that both halves meet contiguous inputs.
    scales: float32, or float16 where the checkpoint has that, [n / group_n, k / group_k], rounded up.
    zeros: uint8 [n, k / group_k], int4 only. order: int32 [k], or [e, k] where each of e runs of rows has its own:
    column j meets input order[j] (GPTQ's desc_act, whose groups are not neighbours); None where j meets j.
    """

    kind: Kind
    data: torch.Tensor
    scales: torch.Tensor
    group_n: int
    group_k: int
    zeros: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Memory of all parts."""
        parts = (self.data, self.scales, self.zeros, self.order)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1] * (2 if self.kind == "int4" else 1)


def pack_int4(q: torch.Tensor, group: int) -> torch.Tensor:
    """q [n, k] of values 0 .. 15 -> uint8 [n, k / 2] in QuantWeight's order."""
    halves = q.to(torch.uint8).view(q.shape[0], -1, 2, group // 2)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(q.shape[0], -1).contiguous()


def unpack_int4(data: torch.Tensor, group: int) -> torch.Tensor:
    """The inverse of pack_int4, uint8 [n, k]."""
    halves = data.view(data.shape[0], -1, group // 2)
    return torch.stack((halves & 15, halves >> 4), dim=2).reshape(data.shape[0], -1)


def dequantize(weight: QuantWeight) -> torch.Tensor:
    """[n, k] float32, in the order of the inputs."""
    n, k = weight.shape
    values = unpack_int4(weight.data, weight.group_k) if weight.kind == "int4" else weight.data
    rows = torch.arange(n, device=values.device) // weight.group_n
    columns = torch.arange(k, device=values.device) // weight.group_k
    wide = values.float()
    if weight.zeros is not None:
        wide = wide - weight.zeros[:, columns].float()
    wide = wide * weight.scales[rows][:, columns].float()
    if weight.order is None:
        return wide
    order = weight.order.view(-1, 1, k).long()
    runs = wide.view(order.shape[0], -1, k)
    return torch.empty_like(runs).scatter_(2, order.expand_as(runs), runs).view(n, k)


def quant_linear_ref(x: torch.Tensor, weight: QuantWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = F.linear(x.float(), dequantize(weight))
    return (out if bias is None else out + bias.float()).to(x.dtype)
