"""The triton and the flash backend against sdpa: the same steps, the same pools, the same results."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from engine.attention.flash_backend import FlashBackend, fitting, read_functions
from engine.attention.kv_pool import KVPool
from engine.attention.paged_step import paged_step
from engine.attention.registry import NoAttentionBackend, choose_backend
from engine.attention.sdpa import SdpaBackend
from engine.attention.triton_backend import TritonBackend, kernel_refuses
from engine.kernels.triton.attention_ref import PagedKV, paged_attention_ref
from engine.layers.rotary import rotate
from engine.platform.transfer import Download, upload
from tests.engine.attention.test_sdpa import CPU, make_batch, make_spec

STEPS = {
    "decodes": [(20, 1), (3, 1), (0, 1)],
    "prompts": [(0, 9), (17, 5)],
    "mixed": [(20, 1), (3, 1), (0, 12), (6, 1), (9, 4)],
}


def run(make, lengths, *, rope: bool, page_size=16, heads=6, kv_heads=2, dim=32):
    """Output and pools of one step; all backends see the same numbers."""
    spec = make_spec(heads, kv_heads, dim, page_size)
    pages = sum(-(-(old + new) // page_size) for old, new in lengths) + 2
    batch = make_batch(lengths, page_size, pages, seed=1)
    generator = torch.Generator().manual_seed(2)
    pool = KVPool(spec, num_layers=2, num_pages=pages)
    for part in (pool.keys, pool.values):
        part.copy_(torch.randn(part.shape, generator=generator))
    total = len(batch.positions)
    q, k, v = (torch.randn(total, n, dim, generator=generator) for n in (heads, kv_heads, kv_heads))
    angles = torch.randn(total, 1, dim // 2, generator=generator)
    tables = (angles.cos(), angles.sin())
    plan = make(spec, pool).plan(batch)
    if rope and not plan.rotates:
        q, k = rotate(q, *tables), rotate(k, *tables)
    out = plan.forward(1, q, k, v, tables if rope else None)
    return out, pool.keys, pool.values


def assert_like_sdpa(make, lengths, **settings):
    got, expected = run(make, lengths, **settings), run(SdpaBackend, lengths, **settings)
    for one, other in zip(got, expected, strict=True):
        assert (one - other).abs().max() < 2e-5


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("rope", [True, False])
def test_triton_like_sdpa(lengths, rope):
    assert_like_sdpa(TritonBackend, lengths, rope=rope)


# ---------------------------------------------------------------- flash: functions with the published signatures


def flash_attn_2_8(page_multiple: int = 256) -> ModuleType:
    """flash_attn 2.5 to 2.8, and vllm_flash_attn 2.6: signatures as in their wheels, arithmetic in plain torch."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        assert causal
        assert k.shape[1] % page_multiple == 0
        assert max_seqlen_q == int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max())
        lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        assert max_seqlen_k == int(lengths.max())
        kv = PagedKV(k.flatten(0, 1), v.flatten(0, 1), block_table, lengths, k.shape[1])
        return paged_attention_ref(q, cu_seqlens_q, kv, softmax_scale).to(q.dtype)

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        assert q.shape[1] == 1
        kv = PagedKV(k_cache.flatten(0, 1), v_cache.flatten(0, 1), block_table, cache_seqlens, k_cache.shape[1])
        out = paged_attention_ref(q[:, 0], torch.arange(len(q) + 1), kv, softmax_scale)
        return out[:, None].to(q.dtype)

    module = ModuleType("flash")
    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    return module


def flash_attn_with_seqused() -> ModuleType:
    """The newer vllm_flash_attn: other order, seqused_k instead of cu_seqlens_k."""
    module = flash_attn_2_8(16)
    older = module.flash_attn_varlen_func

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None, *, out=None,
    ):  # fmt: skip
        assert (cu_seqlens_k is None) != (seqused_k is None)
        ends = torch.cat([torch.zeros(1, dtype=torch.int32), seqused_k.cumsum(0)])
        return older(
            q, k, v, cu_seqlens_q, ends, max_seqlen_q, max_seqlen_k,
            softmax_scale=softmax_scale, causal=causal, block_table=block_table,
        )  # fmt: skip

    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    ("package", "module", "page_size"),
    [
        ("flash_attn", flash_attn_2_8(), 256),
        ("vllm_flash_attn", flash_attn_2_8(16), 16),
        ("vllm_flash_attn", flash_attn_with_seqused(), 32),
    ],
)
def test_flash_like_sdpa(lengths, package, module, page_size):
    functions = read_functions(package, module)
    assert_like_sdpa(lambda spec, pool: FlashBackend(spec, pool, functions), lengths, rope=True, page_size=page_size)


def test_flash_packages_that_cannot_be_used_say_why(monkeypatch):
    old = flash_attn_2_8()
    old.flash_attn_with_kvcache = lambda q, k_cache, v_cache, cache_seqlens=None: None
    assert "too old" in read_functions("flash_attn", old)
    assert "has no flash_attn_varlen_func" in read_functions("flash_attn", ModuleType("flash_attn"))
    for name in ("vllm_flash_attn", "flash_attn"):
        monkeypatch.setitem(sys.modules, name, None)
    reason = fitting(make_spec(page_size=16))
    assert reason.count('pip install "callgate[flash]"') == 2


def test_flash_picks_the_package_that_fits_the_page_size(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", flash_attn_2_8(16))
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn_2_8())
    assert fitting(make_spec(page_size=16)).package == "vllm_flash_attn"
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", None)
    assert fitting(make_spec(page_size=512)).package == "flash_attn"
    assert "--page-size to be a multiple of 256, it is 16" in fitting(make_spec(page_size=16))


def test_backends_refuse_what_they_cannot_serve(monkeypatch):
    spec = make_spec()
    gpu = {name: getattr(spec, name) for name in spec.__slots__} | {"device": torch.device("cuda")}
    kind = type(spec)
    assert "run on a GPU, not on cpu" in TritonBackend.refuses(spec)
    assert "run on a GPU, not on cpu" in FlashBackend.refuses(spec)
    assert TritonBackend.refuses(kind(**gpu)) is None
    assert "head_dim 512" in TritonBackend.refuses(kind(**gpu | {"head_dim": 512}))
    assert "query heads per key head" in kernel_refuses(kind(**gpu | {"num_heads": 512}))
    assert "float16 or bfloat16" in FlashBackend.refuses(kind(**gpu))
    half = gpu | {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
    assert "head_dim 20" in FlashBackend.refuses(kind(**half | {"head_dim": 20}))
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", flash_attn_2_8(16))
    assert FlashBackend.refuses(kind(**half | {"page_size": 16})) is None
    assert choose_backend("auto", kind(**half | {"page_size": 16}))[0] == "flash"
    assert choose_backend("auto", kind(**gpu))[0] == "triton"
    with pytest.raises(NoAttentionBackend, match="flash: its kernels run on a GPU"):
        choose_backend("flash", spec)


def test_a_step_counts_its_leading_decodes():
    for lengths, decodes, longest in (([(1, 1), (2, 1)], 2, 0), ([(1, 1), (0, 5), (2, 1)], 1, 5), ([(0, 3)], 0, 3)):
        step = paged_step(make_batch(lengths, 4, 20, seed=0), CPU)
        assert (step.num_decodes, step.longest) == (decodes, longest)


def test_one_upload_keeps_shapes_and_values():
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros(0, np.int32), np.array([7], np.int32)]
    for got, expected in zip(upload(arrays, CPU), arrays, strict=True):
        assert np.array_equal(Download(got).array(), expected)
