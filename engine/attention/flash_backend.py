"""Paged attention by FlashAttention-2's kernels, from the first package that is installed and fits the page size.

What differs between packages and versions is read from their signatures, and everything is passed by name:

- flash_attn 2.5 to 2.8 and vllm_flash_attn up to 2.6.2: ``cu_seqlens_k`` is required. flash_attn wants pages of whole
  multiples of 256 tokens, vllm_flash_attn of 16. flash_attn before 2.5 has no ``block_table``.
- the copy inside vllm (``vllm.vllm_flash_attn``), the successor of the vllm_flash_attn wheel: arguments in another
  order; with a block table it takes ``seqused_k`` and refuses ``cu_seqlens_k``; newer ones have no
  flash_attn_with_kvcache, so that decode rows go through flash_attn_varlen_func with one query each.
- flash-attn-4 installs itself as ``flash_attn.cute``: page tables have another name there, it is not used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from engine.attention.backend import AttentionSpec, Rope
from engine.attention.kv_pool import KVPool
from engine.attention.paged_step import PagedStep, paged_step
from engine.attention.store import RotaryStore
from engine.platform.transfer import upload

if TYPE_CHECKING:
    from engine.executor.forward_batch import ForwardBatch

INSTALL: Final = 'pip install "callgate[flash]"'
_PAGE_MULTIPLE: Final = {"vllm_flash_attn": 16, "vllm.vllm_flash_attn": 16, "flash_attn": 256}
_HALF: Final = (torch.float16, torch.bfloat16)
_OLDEST_GPU: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class FlashFunctions:
    """One package's functions and what their signatures say. with_kvcache: None where there is none."""

    package: str
    varlen: Callable[..., Any]
    with_kvcache: Callable[..., Any] | None
    page_multiple: int
    takes_seqused: bool
    needs_cu_seqlens_k: bool


def read_functions(package: str, module: ModuleType) -> FlashFunctions | str:
    """The functions of an imported package, or why they cannot be used."""
    varlen = getattr(module, "flash_attn_varlen_func", None)
    if varlen is None:
        return f"{package} has no flash_attn_varlen_func"
    names = inspect.signature(varlen).parameters
    with_kvcache = getattr(module, "flash_attn_with_kvcache", None)
    if with_kvcache is None and "seqused_k" not in names:
        return f"{package} has neither flash_attn_with_kvcache nor seqused_k"
    both = [varlen] if with_kvcache is None else [varlen, with_kvcache]
    if any("block_table" not in inspect.signature(function).parameters for function in both):
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
    """In the order of _PAGE_MULTIPLE: those that take small pages first."""
    for package in _PAGE_MULTIPLE:
        try:
            module = _load(package)
        except (ImportError, OSError) as error:
            yield _missing(package, error)
        else:
            yield read_functions(package, module)


def _load(package: str) -> ModuleType:
    """Spelt out, so that a look for imports finds them."""
    if package == "vllm_flash_attn":
        import vllm_flash_attn

        return cast(ModuleType, vllm_flash_attn)
    if package == "flash_attn":
        import flash_attn

        return cast(ModuleType, flash_attn)
    import vllm.vllm_flash_attn

    return cast(ModuleType, vllm.vllm_flash_attn)


def _missing(package: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in (package, package.split(".")[0]):
        return f"{package} is not installed ({'vllm brings it' if package.startswith('vllm.') else INSTALL})"
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


def _old_gpu(device: torch.device) -> str | None:
    if not torch.cuda.is_available():
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= _OLDEST_GPU:
        return None
    return f"its kernels need compute capability 8.0, this GPU has {capability[0]}.{capability[1]}"


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
        old = _old_gpu(spec.device)
        if old is not None:
            return old
        found = fitting(spec)
        return found if isinstance(found, str) else None

    def plan(self, batch: ForwardBatch) -> FlashPlan:
        step = paged_step(batch, self.spec.device)
        lengths = batch.seq_lens[step.num_decodes :]
        cu_seqlens_k = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        (ends,) = upload([cu_seqlens_k], self.spec.device)
        return FlashPlan(self.spec, self.pool, self._functions, step, (ends, int(lengths.max(initial=0))))

    def plan_step(self, step: PagedStep) -> FlashPlan:
        """From tables that are on the device already (a CUDA graph's own): every row is a decode."""
        return FlashPlan(self.spec, self.pool, self._functions, step, (step.cu_seqlens[:1], 0))


class FlashPlan:
    """Nothing that is launched depends on values in the step's tensors, so that a CUDA graph may keep it: splits
    over the keys are chosen by the width of the page table. Rows without a key read no page and give zeros."""

    rotates = True

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
        self._bounds = step.cu_seqlens[step.num_decodes :] - step.num_decodes  # each decode row owns one token
        self._store = RotaryStore(pool, step)

    def forward(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: Rope | None = None
    ) -> torch.Tensor:
        step, pool, spec = self._step, self._pool, self._spec
        q = self._store(layer, (q, k, v), rope)
        pages = (-1, pool.page_size, spec.num_kv_heads, spec.head_dim)
        keys, values = pool.keys[layer].view(pages), pool.values[layer].view(pages)
        cut, parts = step.num_decodes, []
        if cut:
            parts.append(self._decode(q[:cut], keys, values))
        if cut < len(step.seq_lens):
            parts.append(self._varlen(q[cut:], keys, values))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(q.shape[0], -1)

    def _decode(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        step, functions, cut = self._step, self._functions, len(q)
        table, lengths = step.page_table[:cut], step.seq_lens[:cut]
        common = {"softmax_scale": self._spec.head_dim**-0.5, "causal": True, "block_table": table}
        if functions.with_kvcache is None:
            out: torch.Tensor = functions.varlen(
                q=q,
                k=keys,
                v=values,
                cu_seqlens_q=step.cu_seqlens[: cut + 1],
                max_seqlen_q=1,
                max_seqlen_k=table.shape[1] * self._pool.page_size,
                seqused_k=lengths,
                **common,
            )
            return out
        out = functions.with_kvcache(q=q.unsqueeze(1), k_cache=keys, v_cache=values, cache_seqlens=lengths, **common)
        return out.squeeze(1)

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
            cu_seqlens_q=self._bounds,
            max_seqlen_q=step.longest,
            max_seqlen_k=self._longest_k,
            softmax_scale=self._spec.head_dim**-0.5,
            causal=True,
            block_table=step.page_table[cut:],
            **lengths,
        )
        return out
