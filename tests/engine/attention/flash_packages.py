"""Stand-ins for the flash packages: their published signatures, checks and refusals, arithmetic in plain torch."""

from __future__ import annotations

from types import ModuleType

import torch

from engine.kernels.triton.attention_ref import PagedKV, paged_attention_ref

Call = tuple[str, tuple[object, ...]]


def flash_attn_2(page_multiple: int = 256, calls: list[Call] | None = None) -> ModuleType:
    """flash_attn 2.8.3 (pages of 256), and vllm_flash_attn 2.6.2 (pages of 16). ``calls`` notes what a CUDA graph
    would keep of each decode: addresses and shapes of the tables, and every host number."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        assert causal
        assert k.shape[1] % page_multiple == 0
        assert max_seqlen_q >= int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max())
        lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        assert max_seqlen_k >= int(lengths.max())
        assert block_table.stride(-1) == 1
        kv = PagedKV(k.flatten(0, 1), v.flatten(0, 1), block_table, lengths, k.shape[1])
        return paged_attention_ref(q, cu_seqlens_q, kv, softmax_scale).to(q.dtype)

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        assert q.shape[1] == 1
        assert k_cache.shape[1] % page_multiple == 0
        assert cache_seqlens.dtype == block_table.dtype == torch.int32
        assert block_table.stride(-1) == k_cache.stride(-1) == 1
        if calls is not None:
            calls.append(kept("with_kvcache", (block_table, cache_seqlens, k_cache, v_cache, softmax_scale, causal)))
        kv = PagedKV(k_cache.flatten(0, 1), v_cache.flatten(0, 1), block_table, cache_seqlens, k_cache.shape[1])
        out = paged_attention_ref(q[:, 0], torch.arange(len(q) + 1), kv, softmax_scale)
        return out[:, None].to(q.dtype)

    module = ModuleType("flash")
    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    return module


def vllms_copy(calls: list[Call] | None = None, *, with_kvcache: bool) -> ModuleType:
    """vllm.vllm_flash_attn: other order, seqused_k and never cu_seqlens_k with a block table."""
    module = flash_attn_2(16, calls)
    older = module.flash_attn_varlen_func

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None,
        scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, num_splits=0, fa_version=2,
        s_aux=None,
    ):  # fmt: skip
        assert cu_seqlens_k is None or seqused_k is None
        assert block_table is None or seqused_k is not None
        if calls is not None and max_seqlen_q == 1:
            tables = (cu_seqlens_q, block_table, seqused_k, k, v, max_seqlen_k, softmax_scale, causal)
            calls.append(kept("varlen", tables))
        ends = torch.cat([torch.zeros(1, dtype=torch.int32), seqused_k.cumsum(0)])
        return older(
            q, k, v, cu_seqlens_q, ends, max_seqlen_q, max_seqlen_k,
            softmax_scale=softmax_scale, causal=causal, block_table=block_table,
        )  # fmt: skip

    module.flash_attn_varlen_func = flash_attn_varlen_func
    if not with_kvcache:
        del module.flash_attn_with_kvcache
    return module


def kept(name: str, arguments: tuple[object, ...]) -> Call:
    parts = tuple((a.data_ptr(), tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a for a in arguments)
    return name, parts


PACKAGES = {
    "flash_attn": ("flash_attn", lambda calls=None: flash_attn_2(256, calls), 256),
    "vllm_flash_attn": ("vllm_flash_attn", lambda calls=None: flash_attn_2(16, calls), 16),
    "vllm-older": ("vllm.vllm_flash_attn", lambda calls=None: vllms_copy(calls, with_kvcache=True), 32),
    "vllm-newer": ("vllm.vllm_flash_attn", lambda calls=None: vllms_copy(calls, with_kvcache=False), 16),
}
"""Package, maker of the module, and a page size that it takes."""
