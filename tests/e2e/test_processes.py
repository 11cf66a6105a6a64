"""The real processes on hash-lm: what goes through them, what is left when clients leave, who may touch them."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import subprocess
import sys

import psutil
import pytest

from engine.client import EngineError, EngineUnavailable
from engine.launch import Engine, EngineStartError, launch
from engine.messages import GenerateReqInput
from engine.sampling_params import SamplingParams
from tests.e2e.engines import (
    collect,
    golden,
    hash_lm,
    listeners,
    request,
    run_dirs,
    scaled,
    text_of,
    until,
    until_idle,
)

pytestmark = pytest.mark.e2e


@pytest.fixture
async def engine(run_dir):
    async with launch(hash_lm(run_dir=str(run_dir))) as engine:
        yield engine


async def test_a_request_goes_through_every_process_and_back(engine):
    outputs = await collect(engine, request("hello", max_tokens=40))
    assert [output.finish_reason is not None for output in outputs].count(True) == 1
    last = outputs[-1]
    assert last.finish_reason.type == "length"
    assert (last.prompt_tokens, last.completion_tokens) == (5, 40)
    token_ids = [token for output in outputs for token in output.token_ids]
    assert len(token_ids) == 40
    assert engine.tokenizer.decode(token_ids) == "".join(output.text for output in outputs)


async def test_64_streams_answer_like_the_same_prompts_alone(engine):
    prompts = [f"prompt number {i} " * (1 + i % 7) for i in range(64)]
    together = await asyncio.gather(*[text_of(engine, request(prompt)) for prompt in prompts])
    await engine.flush_cache()
    for prompt, text in zip(prompts[::8], together[::8]):
        assert await text_of(engine, request(prompt)) == text


async def test_choices_have_their_own_seeds_and_share_the_prefix(engine):
    prompt = "shared prefix " * 20
    outputs = await collect(engine, request(prompt, n=4, temperature=1.0, seed=7))
    texts = ["".join(output.text for output in outputs if output.index == index) for index in range(4)]
    assert len(set(texts)) == 4
    for index, text in enumerate(texts):
        assert await text_of(engine, request(prompt, temperature=1.0, seed=7 + index)) == text
    cached = [max(output.cached_tokens for output in outputs if output.index == index) for index in range(4)]
    assert min(cached[1:]) >= len(prompt) - 2 * 16


async def test_stop_strings_end_in_the_scheduler_too(engine):
    text = await text_of(engine, request("stop here", max_tokens=200))
    stop = text[60:63]
    outputs = await collect(engine, request("stop here", max_tokens=20_000, stop=(stop,)))
    assert "".join(output.text for output in outputs) == text[: text.find(stop)]
    assert outputs[-1].finish_reason.type == "stop"
    assert outputs[-1].finish_reason.matched == stop
    await until(lambda: engine.manager.num_requests == 0, 1)
    await until_idle(engine, 1)


async def test_refusals_come_before_the_first_delta(engine):
    with pytest.raises(EngineError, match=r"^This model's maximum context length is 16384 tokens\.") as caught:
        await collect(engine, request("x" * 16_384))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    for bad in (request("", max_tokens=1), request("x", temperature=9.0), request("x", stop_token_ids=(10**6,))):
        with pytest.raises(EngineError) as caught:
            await collect(engine, bad)
        assert caught.value.status == 400
    outputs = await collect(engine, request("x" * 16_380, max_tokens=10**9))
    assert outputs[-1].completion_tokens == 4


async def test_a_full_queue_refuses_with_retry_after(run_dir):
    config = hash_lm(max_running_requests=2, max_queued_requests=3, hash_lm_delay=0.01, run_dir=str(run_dir))
    async with launch(config) as engine:
        results = await asyncio.gather(
            *[collect(engine, request(f"{i}", max_tokens=20)) for i in range(32)], return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, EngineUnavailable)]
        assert refused
        assert all(error.status == 503 and error.retry_after >= 1 for error in refused)
        assert all(isinstance(result, list | EngineUnavailable) for result in results)
        assert len(await collect(engine, request("after"))) > 0


async def test_embeddings(engine):
    first, second = await engine.embed([[1, 2, 3], [4, 5]])
    assert len(first) == len(second) == engine.model_info.embedding_size
    assert await engine.embed([[1, 2, 3]]) == [first]
    with pytest.raises(EngineError):
        await engine.embed([[10**6]])


async def test_random_disconnects_leak_nothing(engine):
    count = scaled(200)
    rng = random.Random(11)
    before = await golden(engine)
    descriptors, tasks = psutil.Process().num_fds(), len(asyncio.all_tasks())

    async def leave_early(index: int) -> None:
        await asyncio.sleep(rng.random() * 0.5)
        prompt = f"client {index} " * rng.randint(1, 300)
        stream = engine.generate(request(prompt, max_tokens=rng.randint(1, 400), n=rng.choice([1, 1, 1, 3])))
        task = asyncio.create_task(_read(stream, rng.choice([0, 1, 2, 10, 50])))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.1)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*[leave_early(index) for index in range(count)])
    await until(lambda: engine.manager.num_requests == 0, 1)
    await until_idle(engine, 1)
    assert (await engine.stats()).leaked_pages == 0
    assert psutil.Process().num_fds() == descriptors
    assert len(asyncio.all_tasks()) == tasks
    after = await golden(engine)
    assert after == before
    print(f"{count} disconnects, 0 pages leaked")


async def _read(stream, deltas: int) -> None:
    try:
        for _ in range(deltas):
            await anext(stream)
    except StopAsyncIteration:
        pass
    finally:
        await stream.aclose()


async def test_a_disconnect_ends_the_request_within_two_steps(run_dir):
    async with launch(hash_lm(hash_lm_delay=0.05, run_dir=str(run_dir))) as engine:
        stream = engine.generate(request("long", max_tokens=5000))
        await anext(stream)
        await stream.aclose()
        before = await engine.stats()
        assert before.running <= 1
        await until(lambda: True, 1)
        await asyncio.sleep(0.15)
        after = await engine.stats()
        assert after.running == 0
        assert after.step - before.step <= 2


async def test_only_the_owner_can_reach_the_sockets_and_nothing_listens_on_tcp(run_dir):
    before = listeners([os.getpid()])
    async with launch(hash_lm(run_dir=str(run_dir))) as engine:
        directory = engine.run_dir
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        assert len(modes) == 3
        assert set(modes.values()) == {0o600}
        assert listeners([os.getpid()]) == before
        assert listeners(list(engine.pids.values())) == []


async def test_children_inherit_no_secrets(run_dir, monkeypatch):
    monkeypatch.setenv("CALLGATE_API_KEY", "sk-very-secret")
    monkeypatch.setenv("HF_TOKEN", "hf-very-secret")
    async with launch(hash_lm(run_dir=str(run_dir))) as engine:
        for pid in engine.pids.values():
            assert not [value for value in psutil.Process(pid).environ().values() if "very-secret" in value]


async def test_stopping_leaves_no_process_and_no_file(run_dir):
    async with launch(hash_lm(run_dir=str(run_dir))) as engine:
        pids = list(engine.pids.values())
        assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert run_dirs(run_dir) == []


def test_the_api_process_imports_neither_torch_nor_transformers():
    program = (
        "import asyncio, sys\n"
        "from engine.launch import launch\n"
        "from engine.config import EngineConfig\n"
        "from engine.messages import GenerateReqInput\n"
        "async def main():\n"
        "    async with launch(EngineConfig(model='hash-lm', kv_pages=64)) as engine:\n"
        "        async for _ in engine.generate(GenerateReqInput(text='hi')):\n"
        "            break\n"
        "asyncio.run(main())\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'numpy', 'gguf'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def _damaged_gguf(tmp_path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    return {"model": str(path)}


def _no_tokenizer(tmp_path):
    directory = tmp_path / "empty"
    directory.mkdir()
    return {"model": str(directory)}


def _bad_json(tmp_path):
    directory = tmp_path / "bad"
    directory.mkdir()
    (directory / "tokenizer.json").write_text("{not json")
    return {"model": str(directory)}


def _not_a_model(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x80\x02c" * 10)
    return {"model": str(path)}


def _long_run_dir(tmp_path):
    return {"run_dir": str(tmp_path / ("long" * 30))}


def _file_as_run_dir(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    return {"run_dir": str(path)}


BROKEN_STARTS = {
    "no such path": lambda tmp_path: {"model": str(tmp_path / "nothing-here")},
    "damaged gguf": _damaged_gguf,
    "directory without tokenizer": _no_tokenizer,
    "tokenizer.json is no JSON": _bad_json,
    "no model file": _not_a_model,
    "run dir too long for a socket": _long_run_dir,
    "run dir is a file": _file_as_run_dir,
    "more memory than there is": lambda _: {"kv_pages": 1 << 46},
    "no pages at all": lambda _: {"kv_pages": -5},
}


@pytest.mark.parametrize("name", BROKEN_STARTS)
async def test_a_broken_start_says_why_in_one_line(name, tmp_path, run_dir, capfd):
    changes = {"run_dir": str(run_dir), **BROKEN_STARTS[name](tmp_path)}
    config = hash_lm(**{key: value for key, value in changes.items() if key != "model"})
    if "model" in changes:
        config = type(config)(model=changes["model"], run_dir=changes["run_dir"])
    engine = Engine(config)
    before = set(psutil.Process().children())
    with pytest.raises(EngineStartError) as caught:
        await engine.start()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 10
    assert engine.pids == {}
    assert run_dirs(run_dir) == []
    assert set(psutil.Process().children()) <= before
    assert "Traceback" not in capfd.readouterr().err


async def test_text_that_is_not_unicode_is_refused_or_replaced_but_ends_nothing(engine):
    outputs = await collect(engine, request("lone \ud800 surrogate"))
    assert outputs[-1].finish_reason.type == "length"
    with pytest.raises(EngineError) as caught:
        await collect(engine, request("x", stop=("\udfff",)))
    assert caught.value.status == 400
    assert await text_of(engine, request("still here"))


async def test_large_seeds_and_input_ids(engine):
    huge = GenerateReqInput(input_ids=(1, 2, 3), sampling=SamplingParams(seed=-(10**30), max_tokens=4))
    assert (await collect(engine, huge))[-1].completion_tokens == 4
    with pytest.raises(EngineError):
        await collect(engine, GenerateReqInput(input_ids=(1, -2)))
