"""The native executor as the scheduler uses it: sampling, masks, drafts, embeddings, logprobs, pages, packed cache."""

from __future__ import annotations

import copy
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.executor import native_executor, native_weights, packed_file
from engine.executor.kv_budget import KVMemoryError
from engine.executor.native_executor import refuses
from engine.executor.packed_file import pack_path
from engine.kernels.cpu.build import BuildUnavailable
from engine.kv_cache.manager import KVCacheManager
from engine.sampling.sampler import Sampler
from engine.sampling.state import SamplingState
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from engine.scheduler.req import Req
from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.native_driver import load_native
from tests.engine.models.tiny import make_model, random_tokens, reference_logits, save

VOCAB = 199


@pytest.fixture(scope="module")
def model():
    return make_model("qwen3")


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return save(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def executor(path):
    executor = load_native(path, pages=128)
    yield executor
    executor.close()


class Allow:
    """A grammar that allows the same tokens everywhere; ``faulty`` raises when asked for them."""

    terminated = False

    def __init__(self, allowed, faulty=False):
        self.allowed, self.faulty = set(allowed), faulty

    def fill_mask(self, mask):
        if self.faulty:
            raise ValueError("no mask")
        bits = np.zeros(len(mask) * 32, bool)
        bits[sorted(self.allowed)] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)
        return len(self.allowed) < VOCAB

    def accept(self, token):
        return token in self.allowed

    def copy(self):
        return copy.copy(self)

    def forced_tokens(self):
        return []


def make_req(kv, tokens, *, params=None, grammar=None):
    req = Req(str(len(tokens)), list(tokens), max_len=1000)
    if params is not None:
        req.sampling = SamplingState(params, seed=1, prompt=tokens)
    req.grammar = grammar
    req.lease = kv.lease("", len(tokens) + 20)
    return req


def run(executor, req, count, draft=()):
    return executor.execute(ScheduleBatch((make_row(req, count, draft),), executor.page_size)).rows[0]


def greedy(model, tokens, count):
    out = list(tokens)
    for _ in range(count):
        out.append(int(reference_logits(model, out)[-1].argmax()))
    return out[len(tokens) :]


GREEDY = SamplingParams(temperature=0)


def test_greedy_generation_with_chunks_equals_transformers(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(40)
    req = make_req(kv, tokens, params=GREEDY)
    assert run(executor, req, 25).token_ids == ()
    req.num_computed = 25
    output = []
    while len(output) < 8:
        (token,) = run(executor, req, req.num_pending).token_ids
        req.num_computed = len(req.tokens)
        req.tokens.append(token)
        output.append(token)
    assert output == greedy(model, tokens, 8)


def test_drafts_are_accepted_as_far_as_the_model_agrees(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(30, seed=5)
    wanted = greedy(model, tokens, 4)
    wrong = (wanted[2] + 1) % VOCAB
    req = make_req(kv, tokens, params=GREEDY)
    row = run(executor, req, 30, (wanted[0], wanted[1], wrong, wanted[3]))
    assert list(row.token_ids) == wanted[:3]


@pytest.mark.parametrize("few", [1, 256])
def test_prompt_logprobs(model, executor, few, monkeypatch):
    """In blocks of the model's own buffer, and beyond it."""
    monkeypatch.setattr(native_executor, "_FEW_LOGITS", few)
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(20)
    req = make_req(kv, tokens, params=SamplingParams(temperature=0, logprobs=True, top_logprobs=2))
    req.prompt_logprobs = True
    first = run(executor, req, 8)
    req.num_computed = 8
    second = run(executor, req, 12)
    got = [entry.logprob for entry in (*first.prompt_logprobs, *second.prompt_logprobs)]
    expected = torch.log_softmax(reference_logits(model, tokens), -1)
    assert got == pytest.approx([float(expected[i, token]) for i, token in enumerate(tokens[1:])], abs=1e-3)
    assert second.token_ids == (int(expected[-1].argmax()),)


def test_embeddings_are_the_mean_of_the_last_hidden_state(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(33)
    req = make_req(kv, tokens)
    first = run(executor, req, 13)
    req.num_computed = 13
    second = run(executor, req, 20)
    got = (np.array(first.embedding) * 13 + np.array(second.embedding) * 20) / 33
    with torch.no_grad():
        expected = model.model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
    assert np.allclose(got, expected.numpy(), atol=1e-4)


def test_mixed_rows_keep_their_own_results(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    prompts = [random_tokens(count, seed=count) for count in (3, 20, 41)]
    reqs = [make_req(kv, prompt, params=GREEDY) for prompt in prompts]
    embed = make_req(kv, random_tokens(9))
    chunk = make_req(kv, random_tokens(50, seed=8), params=GREEDY)
    rows = [make_row(reqs[0], 3), make_row(embed, 9), make_row(reqs[1], 20), make_row(chunk, 10), make_row(reqs[2], 41)]
    out = executor.execute(ScheduleBatch(tuple(rows), executor.page_size)).rows
    assert [list(out[i].token_ids) for i in (0, 2, 4)] == [greedy(model, prompt, 1) for prompt in prompts]
    assert out[1].embedding is not None


def test_masked_rows_choose_as_the_sampler_does(executor, model):
    """Greedy under a mask is decided in C; it must be what numpy decides from the logits, beside free rows."""
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    rng = np.random.default_rng(0)
    allowed = [rng.choice(VOCAB, size, replace=False).tolist() for size in (1, 3, 50, 190)]
    grammars = [*map(Allow, allowed), None, Allow(range(VOCAB)), Allow([]), Allow([1], faulty=True)]
    prompts = [random_tokens(10 + i, seed=i) for i in range(len(grammars))]
    reqs = [make_req(kv, prompt, params=GREEDY, grammar=g) for prompt, g in zip(prompts, grammars, strict=True)]
    rows = tuple(make_row(req, len(req.tokens)) for req in reqs)
    out = executor.execute(ScheduleBatch(rows, executor.page_size)).rows
    logits = np.stack([reference_logits(model, prompt)[-1].numpy() for prompt in prompts])
    for i, choice in enumerate(allowed):
        assert out[i].token_ids == (max(choice, key=lambda token, i=i: logits[i, token]),)
    assert [row.token_ids for row in out[4:6]] == [(int(logits[i].argmax()),) for i in (4, 5)]
    assert [row.error is not None for row in out] == [False] * 6 + [True] * 2


def test_masks_leave_other_rows_to_the_sampler():
    """Penalties, logprobs, temperature and min_tokens need the logits themselves; guesses have masks of their own."""
    kv = KVCacheManager(64, 16)
    plain = {"temperature": 0.0}
    cases = [plain, {}, {**plain, "logprobs": True}, {**plain, "presence_penalty": 1.0}, {**plain, "min_tokens": 3}]
    reqs = [make_req(kv, [1, 2, 3], params=SamplingParams(**case), grammar=Allow([5])) for case in cases]
    rows = [make_row(req, 3) for req in reqs]
    drafted = make_row(make_req(kv, [1, 2, 3], params=GREEDY, grammar=Allow([5])), 3, (5,))
    masks = Sampler(VOCAB).masks(ScheduleBatch((*rows, drafted), 16))
    assert masks.flags.tolist() == [1, 0, 0, 0, 0, 1, 1]
    refused = make_row(make_req(kv, [1, 2, 3], params=GREEDY, grammar=Allow([5])), 3, (6, 5))
    assert Sampler(VOCAB).masks(ScheduleBatch((refused,), 16)).flags.tolist() == [1, 0, 0]
    assert Sampler(VOCAB).masks(ScheduleBatch((rows[1],), 16)) is None


def test_copy_page_moves_a_prefix(executor, model):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(12, seed=3)
    first = make_req(kv, tokens, params=GREEDY)
    run(executor, first, 12)
    second = make_req(kv, [*tokens, 7], params=GREEDY)
    executor.copy_page(first.lease.pages[0], second.lease.pages[0])
    second.num_computed = 12
    assert list(run(executor, second, 1).token_ids) == greedy(model, [*tokens, 7], 1)


# ---------------------------------------------------------------- weights on disk


def test_the_packed_copy_gives_the_same_logits_and_is_used(path, monkeypatch):
    tokens = random_tokens(30)
    for quantization in ("none", "int8"):
        outputs = []
        for cache in (False, True, True):
            executor = load_native(path, cache=cache, quantization=quantization)
            kv = KVCacheManager(executor.num_pages, executor.page_size)
            req = make_req(kv, tokens, params=SamplingParams(temperature=0, logprobs=True))
            outputs.append(run(executor, req, 30))
            executor.close()
            if cache:  # from now on packing is an error: the copy must serve
                monkeypatch.setattr(native_weights.LinearPacker, "create", lambda *_: pytest.fail("packed again"))
        monkeypatch.undo()
        assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "blob"])
def test_a_damaged_packed_copy_is_made_anew(path, tmp_path, damage):
    checkpoint = save(make_model("qwen3"), tmp_path)
    executor = load_native(checkpoint, cache=True, quantization="int8")
    executor.close()
    pack = pack_path(checkpoint, "int8", lambda: tmp_path)
    data = bytearray(pack.read_bytes())
    if damage == "header":
        data[-40:-30] = b"\xff" * 10
    elif damage == "blob":
        data[:64] = b"\xff" * 64
    pack.write_bytes({"cut": data[: len(data) // 2], "empty": b""}.get(damage, bytes(data)))
    again = load_native(checkpoint, cache=True, quantization="int8")
    kv = KVCacheManager(again.num_pages, again.page_size)
    tokens = random_tokens(10)
    assert len(run(again, make_req(kv, tokens, params=GREEDY), 10).token_ids) == 1
    again.close()


@pytest.mark.parametrize("page", [64, 1 << 12])
def test_a_packed_copy_is_written_in_whole_aligned_pages(path, tmp_path, monkeypatch, page):
    """Only a file written like that lies in the page cache in large pages."""
    monkeypatch.setattr(packed_file, "HUGE_PAGE", page)
    rng = random.Random(page)
    pieces = [rng.randbytes(size) for size in (0, 1, page - 2, 1, 1, page, 3 * page, 2 * page + 5, page - 5, 7)]
    writes: list[bytes] = []

    class File:
        def write(self, data):
            taken = bytes(data[: max(1, len(data) // 2)]) if rng.random() < 0.2 else bytes(data)  # as a disk may
            writes.append(taken)
            return len(taken)

    out = packed_file.HugePageWriter(File())
    for piece in pieces:
        out.write(piece)
    out.flush()
    assert b"".join(writes) == b"".join(pieces)
    assert out.position == sum(map(len, pieces))
    at = 0
    for data in writes:
        assert at // page == (at + len(data) - 1) // page, "a write crosses from one page into the next"
        at += len(data)
    tokens, outputs = random_tokens(30), []
    for cache in (False, True):
        executor = load_native(save(make_model("qwen3"), tmp_path), cache=cache, quantization="int8")
        kv = KVCacheManager(executor.num_pages, executor.page_size)
        params = SamplingParams(temperature=0, logprobs=True)
        outputs.append(run(executor, make_req(kv, tokens, params=params), 30))
        executor.close()
    assert outputs[0] == outputs[1]


def test_memory_for_pages_is_what_the_mapped_weights_leave(path, monkeypatch):
    """The system counts the page cache as available; a mapped copy of the weights lives in it."""
    monkeypatch.setattr("engine.executor.native_executor.available_memory", lambda: 64 << 20)
    pages = []
    for cache in (False, True):
        executor = load_native(path, cache=cache, quantization="int8", pages=0)
        pages.append((executor.num_pages, executor.model.page_bytes(executor.page_size, executor.kv_dtype)))
        mapped = executor._linears.mapped_bytes
        executor.close()
    assert mapped > 0
    (alone, size), (beside, _) = pages
    assert beside == pytest.approx(alone - 0.4 * mapped / size, abs=1)


def test_a_changed_checkpoint_or_setting_has_another_packed_copy(path, tmp_path):
    first = pack_path(path, "int8", lambda: tmp_path)
    assert pack_path(path, "int8", lambda: tmp_path) == first
    assert pack_path(path, "int4", lambda: tmp_path) != first
    weights = path / "model.safetensors"
    stat = weights.stat()
    import os

    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert pack_path(path, "int8", lambda: tmp_path) != first
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))


# ---------------------------------------------------------------- what is refused, and what is not imported


def test_refusals_name_the_reason(path, monkeypatch):
    model = open_checkpoint(path).config
    config = EngineConfig(model="x")
    assert refuses(config, model) is None
    assert "CPU" in refuses(EngineConfig(model="x", device="cuda"), model)
    assert "float16" in refuses(EngineConfig(model="x", dtype="float16"), model)

    def fail():
        raise BuildUnavailable("no C++ compiler found")

    monkeypatch.setattr(native_executor, "load", fail)
    assert refuses(config, model) == "no C++ compiler found"


def test_no_memory_for_pages_is_one_line(path):
    with pytest.raises(KVMemoryError):
        load_native(path, pages=0, mem_fraction_static=1e-6)


def test_the_native_runner_imports_no_torch(path):
    code = (
        "import sys; from engine.executor.native_executor import NativeExecutor; from engine.config import EngineConfig;"
        "from engine.weights.checkpoint import open_checkpoint;"
        f"NativeExecutor(EngineConfig(model='x', threads=1, kv_pages=8), open_checkpoint({str(path)!r}));"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("dtype", "cache", "used"),
    [
        ("auto", "auto", "bfloat16"),
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "auto", "float32"),
        ("float32", "int8", "int8"),
    ],
)
def test_keys_and_values_are_as_exact_as_the_dtype_unless_told_otherwise(path, dtype, cache, used):
    executor = load_native(path, dtype=dtype, kv_cache_dtype=cache)
    assert executor.kv_dtype == used
    executor.close()
