"""One token per row of logits under masks, min-p, top-k and top-p, without sorting the vocabulary.

The thresholds of top-k and top-p are found by bisection over the float's bits, which is exact after 32 passes over
a row that stays in the cache. Entries equal to a threshold are all kept: ties are never cut by their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.triton.common import check_rows, next_power_of_2

NOTHING: Final = -1
BROKEN: Final = -2


@dataclass(frozen=True, slots=True)
class SampleParams:
    """Per row, [R] each: temperature (0: argmax), top_k (0: off), top_p (1: off), min_p (0: off), u in [0, 1).

    mask: [R, ceil(V / 32)] int32, bit v of word v // 32 allows token v; None where everything is allowed.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    u: torch.Tensor
    mask: torch.Tensor | None = None


def unpack_mask(mask: torch.Tensor, vocab: int) -> torch.Tensor:
    """[R, words] int32 -> [R, vocab] bool."""
    bits = (mask[:, :, None] >> torch.arange(32, device=mask.device)) & 1
    return bits.reshape(mask.shape[0], -1)[:, :vocab].bool()


def kept_ref(logits: torch.Tensor, params: SampleParams) -> torch.Tensor:
    """[R, V] float64 weights of the tokens that may be drawn, 0 for the others."""
    values = logits.float()
    if params.mask is not None:
        values = values.masked_fill(~unpack_mask(params.mask, logits.shape[1]), -torch.inf)
    out = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    for row, row_values in enumerate(values):
        best = row_values.max()
        temperature = float(params.temperature[row])
        if temperature <= 0:
            out[row, int(row_values.argmax())] = 1.0
            continue
        weights = ((row_values - best) / temperature).exp().double()
        weights[weights < float(params.min_p[row])] = 0.0
        k = int(params.top_k[row])
        if 0 < k < len(weights):
            weights[row_values < row_values.topk(k).values[-1]] = 0.0
        if float(params.top_p[row]) < 1.0:
            ordered = weights.sort(descending=True).values
            size = int(torch.searchsorted(ordered.cumsum(0), float(params.top_p[row]) * float(weights.sum())))
            weights[weights < ordered[min(size, len(ordered) - 1)]] = 0.0
        out[row] = weights
    return out


def sample_ref(logits: torch.Tensor, params: SampleParams) -> torch.Tensor:
    """Token ids [R]: the distribution inverted at u, in order of token id."""
    cumulative = kept_ref(logits, params).cumsum(1)
    target = params.u.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def sample(logits: torch.Tensor, params: SampleParams) -> torch.Tensor:
    """logits [R, V] of any float type -> token ids [R] int64; NOTHING where the mask allows none, BROKEN where a row
    holds NaN or infinity or nothing else than -infinity, masked or not."""
    check_rows(logits, "logits")
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    mask = params.mask
    if rows:
        _sample_kernel[(rows,)](
            logits, out, logits if mask is None else mask, params.temperature, params.top_k, params.top_p,
            params.min_p, params.u, vocab, logits.stride(0), 0 if mask is None else mask.stride(0),
            MASKED=mask is not None, BLOCK=min(4096, max(32, next_power_of_2(vocab) // 2)), num_warps=16,
        )  # fmt: skip
    return out


@triton.jit
def _load_row(row_ptr, mask_ptr, columns, vocab, MASKED: tl.constexpr):
    inside = columns < vocab
    values = tl.load(row_ptr + columns, mask=inside, other=-float("inf")).to(tl.float32)
    values = tl.where(values == 0.0, 0.0, values)  # -0.0 is the same number, but has another order key
    if MASKED:
        words = tl.load(mask_ptr + columns // 32, mask=inside, other=0)
        values = tl.where(((words >> (columns % 32)) & 1) != 0, values, -float("inf"))
    return values


@triton.jit
def _order_key(values):
    """Signed integers in the order of the floats."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _mass(row_ptr, mask_ptr, vocab, best, inverse, floor, key, COUNT: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip  # noqa: E501
    """Number (COUNT) or weight of the entries whose key is at least ``key`` and whose weight is at least ``floor``."""
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        values = _load_row(row_ptr, mask_ptr, start + tl.arange(0, BLOCK), vocab, MASKED)
        weights = tl.exp((values - best) * inverse)
        kept = (_order_key(values).to(tl.int64) >= key) & (values > -float("inf"))
        if COUNT:
            sums += tl.where(kept, 1.0, 0.0)
        else:
            sums += tl.where(kept & (weights >= floor), weights, 0.0)
    return tl.sum(sums)


@triton.jit
def _threshold(row_ptr, mask_ptr, vocab, best, inverse, floor, low, wanted, COUNT: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip  # noqa: E501
    """The largest key at which ``_mass`` still reaches ``wanted``; at least ``low``."""
    top = tl.max(_order_key(tl.full([BLOCK], 1.0, tl.float32) * best)).to(tl.int64) + 1
    while top - low > 1:
        middle = low + (top - low) // 2
        reached = _mass(row_ptr, mask_ptr, vocab, best, inverse, floor, middle, COUNT, MASKED, BLOCK) >= wanted
        low = tl.where(reached, middle, low)
        top = tl.where(reached, top, middle)
    return low


@triton.jit
def _sample_kernel(
    logits_ptr,
    out_ptr,
    mask_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    u_ptr,
    vocab,
    stride,
    mask_stride,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr, words = logits_ptr + row * stride, mask_ptr + row * mask_stride
    best, winner, top, broken = -float("inf"), vocab, -float("inf"), 0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        raw = _load_row(row_ptr, words, columns, vocab, False)
        broken += tl.sum(((raw != raw) | (raw == float("inf"))).to(tl.int32))
        top = tl.maximum(top, tl.max(raw))
        values = _load_row(row_ptr, words, columns, vocab, MASKED)
        here = tl.max(values)
        if here > best:
            best = here
            winner = start + tl.argmax(values, 0)
    token = winner
    temperature = tl.load(temperature_ptr + row)
    if (top == -float("inf")) | (broken > 0):
        token = -2
    elif best == -float("inf"):
        token = -1
    elif temperature > 0:
        inverse = 1.0 / temperature
        floor = tl.load(min_p_ptr + row)
        lowest = tl.full([], -(1 << 31), tl.int64)
        k = tl.load(top_k_ptr + row).to(tl.float32)
        if (k > 0) & (k < vocab):
            lowest = _threshold(row_ptr, words, vocab, best, inverse, floor, lowest, k, True, MASKED, BLOCK)
        total = _mass(row_ptr, words, vocab, best, inverse, floor, lowest, False, MASKED, BLOCK)
        p = tl.load(top_p_ptr + row)
        if p < 1.0:
            lowest = _threshold(row_ptr, words, vocab, best, inverse, floor, lowest, p * total, False, MASKED, BLOCK)
            total = _mass(row_ptr, words, vocab, best, inverse, floor, lowest, False, MASKED, BLOCK)
        token = _invert(row_ptr, words, vocab, best, inverse, floor, lowest, tl.load(u_ptr + row) * total, winner, MASKED, BLOCK)  # fmt: skip  # noqa: E501
    tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit
def _invert(row_ptr, mask_ptr, vocab, best, inverse, floor, lowest, target, winner, MASKED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip  # noqa: E501
    """The first token at which the kept weight so far exceeds ``target``; the best one if rounding leaves none."""
    token, before = vocab, 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = _load_row(row_ptr, mask_ptr, columns, vocab, MASKED)
        weights = tl.exp((values - best) * inverse)
        kept = (_order_key(values).to(tl.int64) >= lowest) & (weights >= floor) & (weights > 0)
        weights = tl.where(kept, weights, 0.0)
        sums = before + tl.cumsum(weights, 0)
        token = tl.minimum(token, tl.min(tl.where(kept & (sums > target), columns, vocab)))
        before += tl.sum(weights)
    return tl.where(token < vocab, token, winner)
