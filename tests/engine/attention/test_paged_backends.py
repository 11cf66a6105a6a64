"""The triton and the flash backend against sdpa: the same steps, the same pools, the same results."""

from __future__ import annotations

import sys
from dataclasses import replace
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
from engine.layers.rotary import rotate
from engine.platform.transfer import Download, upload
from tests.engine.attention.flash_packages import PACKAGES, flash_attn_2
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


# ---------------------------------------------------------------- flash: packages with the published signatures


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("package", "make", "page_size"), PACKAGES.values(), ids=PACKAGES)
@pytest.mark.parametrize("rope", [True, False])
def test_flash_like_sdpa(lengths, package, make, page_size, rope):
    functions = read_functions(package, make())
    assert functions.package == package
    assert_like_sdpa(lambda spec, pool: FlashBackend(spec, pool, functions), lengths, rope=rope, page_size=page_size)


def test_flash_packages_that_cannot_be_used_say_why(monkeypatch):
    old = flash_attn_2()
    old.flash_attn_with_kvcache = lambda q, k_cache, v_cache, cache_seqlens=None: None
    assert "too old" in read_functions("flash_attn", old)
    assert "has no flash_attn_varlen_func" in read_functions("flash_attn", ModuleType("flash_attn"))
    half = flash_attn_2()
    del half.flash_attn_with_kvcache
    assert "neither flash_attn_with_kvcache nor seqused_k" in read_functions("flash_attn", half)
    for name in ("vllm_flash_attn", "flash_attn", "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    reason = fitting(make_spec(page_size=16))
    assert reason.count('pip install "callgate[flash]"') == 2
    assert "vllm.vllm_flash_attn is not installed (vllm brings it)" in reason


def test_flash_kernels_refuse_a_gpu_that_is_too_old(monkeypatch):
    changes = {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, "device": torch.device("cuda")}
    half = replace(make_spec(page_size=256), **changes)
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn_2())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "need compute capability 8.0, this GPU has 7.5" in FlashBackend.refuses(half)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    assert FlashBackend.refuses(half) is None


def test_flash_picks_the_package_that_fits_the_page_size(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", flash_attn_2(16))
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn_2())
    assert fitting(make_spec(page_size=16)).package == "vllm_flash_attn"
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", None)
    monkeypatch.setitem(sys.modules, "vllm", None)
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
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", flash_attn_2(16))
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
