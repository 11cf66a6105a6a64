"""Paged attention by FlashAttention-2's kernels, from vllm_flash_attn or flash_attn, whichever fits the page size.

Both offer flash_attn_varlen_func and flash_attn_with_kvcache with block tables. What differs by version is read from
their signatures: flash_attn before 2.5 has no ``block_table``; flash_attn wants pages of whole multiples of 256
tokens, vllm_flash_attn of 16; newer vllm_flash_attn takes ``seqused_k`` beside or instead of ``cu_seqlens_k``, and
names some arguments in another order, so that all are passed by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from engine.attention.backend import AttentionSpec, Rope
from engine.attention.kv_pool import KVPool
from engine.attention.paged_step import PagedStep, paged_step
from engine.platform.transfer import upload

if TYPE_CHECKING:
    from engine.executor.forward_batch import ForwardBatch

INSTALL: Final = 'pip install "callgate[flash]"'
_PAGE_MULTIPLE: Final = {"vllm_flash_attn": 16, "flash_attn": 256}
_HALF: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class FlashFunctions:
    """One package's two functions and what their signatures say."""

    package: str
    varlen: Callable[..., Any]
    with_kvcache: Callable[..., Any]
    page_multiple: int
    takes_seqused: bool
    needs_cu_seqlens_k: bool


def read_functions(package: str, module: ModuleType) -> FlashFunctions | str:
    """The functions of an imported package, or why they cannot be used."""
    varlen = getattr(module, "flash_attn_varlen_func", None)
    with_kvcache = getattr(module, "flash_attn_with_kvcache", None)
    if varlen is None or with_kvcache is None:
        return f"{package} has no flash_attn_varlen_func and flash_attn_with_kvcache"
    names = inspect.signature(varlen).parameters
    if "block_table" not in names or "block_table" not in inspect.signature(with_kvcache).parameters:
        return f"{package} is too old: no block tables ({INSTALL})"
    cu_seqlens_k = names.get("cu_seqlens_k")
    return FlashFunctions(
        package,
        varlen,
        with_kvcache,
        _PAGE_MULTIPLE[package],
        takes_seqused="seqused_k" in names,
        needs_cu_seqlens_k=cu_seqlens_k is not None and cu_seqlens_k.default is inspect.Parameter.empty,
    )


def _installed() -> Iterator[FlashFunctions | str]:
    """vllm_flash_attn first: it takes small pages."""
    try:
        import vllm_flash_attn
    except (ImportError, OSError) as error:
        yield _missing("vllm_flash_attn", error)
    else:
        yield read_functions("vllm_flash_attn", vllm_flash_attn)
    try:
        import flash_attn
    except (ImportError, OSError) as error:
        yield _missing("flash_attn", error)
    else:
        yield read_functions("flash_attn", flash_attn)


def _missing(package: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"{package} is not installed ({INSTALL})"
    return f"{package} cannot be loaded ({' '.join(str(error).split())[:200]})"


def fitting(spec: AttentionSpec) -> FlashFunctions | str:
    """The first installed package that serves ``spec``, or why none does."""
    reasons = []
    for found in _installed():
        if isinstance(found, FlashFunctions):
            if spec.page_size % found.page_multiple == 0:
                return found
            found = (
                f"{found.package} needs --page-size to be a multiple of {found.page_multiple}, it is {spec.page_size}"
            )
        reasons.append(found)
    return "; ".join(reasons)


class FlashBackend:
    def __init__(self, spec: AttentionSpec, pool: KVPool, functions: FlashFunctions | None = None) -> None:
        found = functions or fitting(spec)
        if isinstance(found, str):
            raise ValueError(found)
        self.spec = spec
        self.pool = pool
        self._functions = found

    @staticmethod
    def refuses(spec: AttentionSpec) -> str | None:
        if spec.device.type != "cuda":
            return f"its kernels run on a GPU, not on {spec.device.type}"
        if spec.dtype not in _HALF or spec.kv_dtype != spec.dtype:
            return "it computes in float16 or bfloat16, with keys and values of the same dtype"
        if spec.head_dim > 256 or spec.head_dim % 8:
            return f"head_dim {spec.head_dim} is not a multiple of 8 up to 256"
        found = fitting(spec)
        return found if isinstance(found, str) else None

    def plan(self, batch: ForwardBatch) -> FlashPlan:
        step = paged_step(batch, self.spec.device)
        lengths = batch.seq_lens[step.num_decodes :]
        cu_seqlens_k = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        (ends,) = upload([cu_seqlens_k], self.spec.device)
        return FlashPlan(self.spec, self.pool, self._functions, step, (ends, int(lengths.max(initial=0))))


class FlashPlan:
    rotates = False

    def __init__(
        self,
        spec: AttentionSpec,
        pool: KVPool,
        functions: FlashFunctions,
        step: PagedStep,
        keys: tuple[torch.Tensor, int],
    ) -> None:
        """``keys``: cu_seqlens_k of the rows that are no decodes, and the longest of them."""
        self._spec = spec
        self._pool = pool
        self._functions = functions
        self._step = step
        self._cu_seqlens_k, self._longest_k = keys

    def forward(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: Rope | None = None
    ) -> torch.Tensor:
        step, pool, spec = self._step, self._pool, self._spec
        pool.write(layer, step.slots, k, v)
        pages = (-1, pool.page_size, spec.num_kv_heads, spec.head_dim)
        keys, values = pool.keys[layer].view(pages), pool.values[layer].view(pages)
        cut, parts = step.num_decodes, []
        if cut:
            out = self._functions.with_kvcache(
                q=q[:cut].unsqueeze(1),
                k_cache=keys,
                v_cache=values,
                cache_seqlens=step.seq_lens[:cut],
                block_table=step.page_table[:cut],
                softmax_scale=spec.head_dim**-0.5,
                causal=True,
            )
            parts.append(out.squeeze(1))
        if cut < len(step.seq_lens):
            parts.append(self._varlen(q[cut:], keys, values))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(q.shape[0], -1)

    def _varlen(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        step, functions = self._step, self._functions
        cut = step.num_decodes
        lengths: dict[str, torch.Tensor] = {}
        if functions.takes_seqused:
            lengths["seqused_k"] = step.seq_lens[cut:]
        if functions.needs_cu_seqlens_k or not functions.takes_seqused:
            lengths["cu_seqlens_k"] = self._cu_seqlens_k
        out: torch.Tensor = functions.varlen(
            q=q,
            k=keys,
            v=values,
            cu_seqlens_q=step.cu_seqlens[cut:] - cut,
            max_seqlen_q=step.longest,
            max_seqlen_k=self._longest_k,
            softmax_scale=self._spec.head_dim**-0.5,
            causal=True,
            block_table=step.page_table[cut:],
            **lengths,
        )
        return out
