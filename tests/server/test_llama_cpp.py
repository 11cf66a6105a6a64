"""llama.cpp's own routes: the shapes its clients read (llama.vim, llama.vscode, Continue, SillyTavern), both modes
saying the same, and nothing that would change an answer passed over in silence."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest

from engine.messages import FinishReason
from server.llama_cpp.answers import LineCut, picked
from server.llama_cpp.fields import DEFAULTS, IGNORED, REFUSED
from server.llama_cpp.types import InfillRequest
from tests.fakes import MODEL_INFO, Reply, ScriptedEngine
from tests.live import eventually
from tests.server.conftest import Gateway, events
from tests.server.test_fill_in import QWEN, Marked

QWEN_FILES = ("<|repo_name|>", "<|file_sep|>")
VIM_FIELDS = ["content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "tokens_cached", "nothing"]


def filling(
    script: Any = "middle", marks: tuple[str, ...] = (*QWEN, *QWEN_FILES), context: int = 8192
) -> ScriptedEngine:
    info = msgspec.structs.replace(MODEL_INFO, context_length=context)
    return ScriptedEngine(script, tokenizer=Marked(*marks), model_info=info)


async def _post(gateway: Gateway, path: str = "/completion", **body: Any) -> Any:
    response = await gateway.client.post(path, content=orjson.dumps(body))
    assert response.status_code == 200, response.text
    return response


async def _stream(gateway: Gateway, path: str = "/completion", **body: Any) -> list[Any]:
    response = await _post(gateway, path, **body, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


@pytest.mark.parametrize("chunk", [0, 1, 3])
async def test_a_completion_in_both_modes(make_gateway: Callable[..., Any], chunk: int) -> None:
    async with make_gateway(Reply("Hello\nthere", chunk=chunk, cached_tokens=1)) as gateway:
        whole = (await _post(gateway, prompt="Say")).json()
        chunks = await _stream(gateway, prompt="Say")
    assert whole["content"] == "Hello\nthere"
    assert "".join(one["content"] for one in chunks) == "Hello\nthere"
    assert bytes(itertools.chain(*(one["tokens"] for one in chunks))) == b"Hello\nthere"
    assert [one["stop"] for one in chunks] == [False] * (len(chunks) - 1) + [True]
    for last in (whole, chunks[-1]):
        assert last["stop"] is True
        assert (last["stop_type"], last["stopping_word"], last["truncated"]) == ("eos", "", False)
        assert (last["tokens_evaluated"], last["tokens_cached"]) == (3, 1)
        assert last["tokens_predicted"] == 12
        assert (last["model"], last["prompt"], last["has_new_line"]) == ("test-model", "Say", True)
        assert (last["timings"]["prompt_n"], last["timings"]["cache_n"], last["timings"]["predicted_n"]) == (2, 1, 12)
        assert all(last["timings"][f"{kind}_per_second"] > 0 for kind in ("prompt", "predicted"))
        assert last["generation_settings"]["n_ctx"] == 8192


async def test_what_is_not_said_is_what_llama_cpp_takes(gateway: Gateway) -> None:
    await _post(gateway, prompt="x")
    await _post(gateway, prompt="x", n_predict=-1, seed=-1, stop=["", "zz"], top_k=0, temperature=0, ignore_eos=True)
    plain, asked = (request.sampling for request in gateway.engine.requests)
    assert {name: getattr(plain, name) for name in DEFAULTS} == dict(DEFAULTS)
    assert (plain.max_tokens, plain.seed, plain.stop) == (asked.max_tokens, asked.seed, ()) == (None, None, ())
    assert (asked.stop, asked.temperature, asked.ignore_eos) == (("zz",), 0, True)
    await _post(gateway, prompt="x", repeat_penalty=1.1, n_predict=5, seed=7, logit_bias=[[5, 1.5], [6, False]])
    asked = gateway.engine.requests[-1].sampling
    assert (asked.repetition_penalty, asked.max_tokens, asked.seed) == (1.1, 5, 7)
    assert asked.logit_bias == {5: 1.5, 6: -100}
    await _post(gateway, prompt="x", logit_bias={"5": 1.5, "6": False})
    assert gateway.engine.requests[-1].sampling.logit_bias == {5: 1.5, 6: -100}


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a", None),
        ([1, 2], None),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        (["a", [98, 99]], ["a", "bc"]),
        ([[97]], ["a"]),
    ],
)
async def test_many_prompts_are_answered_with_a_list(gateway: Gateway, prompt: Any, texts: Any) -> None:
    found = (await _post(gateway, prompt=prompt)).json()
    chunks = await _stream(gateway, prompt=prompt)
    assert isinstance(found, list) == (texts is not None)
    if texts is not None:
        assert [one["prompt"] for one in found] == texts
        assert [one["index"] for one in found] == list(range(len(texts)))
        for index in range(len(texts)):
            assert "".join(one["content"] for one in chunks if one["index"] == index) == "Hello!"
        assert sum(one["stop"] for one in chunks) == len(texts)


@pytest.mark.parametrize(
    ("fields", "content", "end"),
    [
        ({"n_predict": 2}, "He", ("limit", "")),
        ({"stop": ["lo"]}, "Hel", ("word", "lo")),
        ({"stop": "!"}, "Hello", ("word", "!")),
        ({}, "Hello!", ("eos", "")),
    ],
)
async def test_why_it_ends(gateway: Gateway, fields: Any, content: str, end: tuple[str, str]) -> None:
    whole = (await _post(gateway, prompt="x", **fields)).json()
    chunks = await _stream(gateway, prompt="x", **fields)
    assert whole["content"] == "".join(one["content"] for one in chunks) == content
    for last in (whole, chunks[-1]):
        assert (last["stop_type"], last["stopping_word"]) == end


async def test_tokens_probabilities_and_fields(gateway: Gateway) -> None:
    found = (await _post(gateway, prompt="x", return_tokens=True, n_probs=2)).json()
    assert bytes(found["tokens"]) == b"Hello!"
    assert "".join(one["token"] for one in found["completion_probabilities"]) == "Hello!"
    first = found["completion_probabilities"][0]
    assert (first["id"], first["bytes"], len(first["top_logprobs"])) == (72, [72], 2)
    assert "completion_probabilities" not in (await _post(gateway, prompt="x")).json()
    found = (await _post(gateway, prompt="x", response_fields=VIM_FIELDS)).json()
    assert set(found) == set(VIM_FIELDS) - {"nothing"}
    assert found["timings/prompt_n"] == 1
    chunks = await _stream(gateway, prompt="x", response_fields=["stop_type"])
    assert "".join(one.get("content", "") for one in chunks) == "Hello!"
    assert chunks[-1] == {"stop_type": "eos"}
    assert picked({"a": {"b": 0}, "c": None}, ["a/b", "a/b/c", "c", "", "d/e"]) == {"a/b": 0}


async def test_a_prompt_alone_is_computed_and_nothing_shown(gateway: Gateway) -> None:
    """How editors fill the cache before anybody waits."""
    for found in (
        (await _post(gateway, prompt="x", n_predict=0)).json(),
        *await _stream(gateway, prompt="x", n_predict=0),
    ):
        assert (found["content"], found["tokens"], found["tokens_predicted"], found["stop"]) == ("", [], 0, True)
        assert found["tokens_evaluated"] == 1
    assert [request.sampling.max_tokens for request in gateway.engine.requests] == [1, 1]


async def test_shapes_are_enforced(gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for ours, theirs in (
        ({"json_schema": schema}, {"structured_outputs": {"json": schema}}),
        ({"grammar": 'root ::= "a"'}, {"structured_outputs": {"grammar": 'root ::= "a"'}}),
        ({"grammar": ""}, {}),
    ):
        await _post(gateway, prompt="x", **ours)
        await gateway.client.post("/v1/completions", json={"prompt": "x", **theirs})
        asked, plain = gateway.engine.requests[-2:]
        assert asked.grammar == plain.grammar


@pytest.mark.parametrize(
    ("indent", "text", "shown", "ended"),
    [
        (0, "a\nb\n\nc", "a\nb\n\nc", False),
        (4, "x = 1\n    y\n    z\nclass B", "x = 1\n    y\n    z", True),
        (4, "x\n    y\n\n    z", "x\n    y", True),
        (2, "x\n\t\ty\n z", "x\n\t\ty", True),
        (4, "x\n        deep\n    y", "x\n        deep\n    y", False),
        (4, "x\n    ", "x\n    ", False),
        (4, "x\n", "x\n", False),
        (4, "x", "x", False),
    ],
)
def test_a_text_ends_where_its_lines_go_back(indent: int, text: str, shown: str, ended: bool) -> None:
    """Under every cut into two, and character by character."""
    cuts = [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
    for pieces in cuts:
        cut, found, over = LineCut(indent), "", False
        for piece in pieces:
            more, over = cut.take(piece)
            found += more
            if over:
                break
        assert (found if over else found + cut.rest(), over) == (shown, ended), pieces


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_that_is_long_enough_is_aborted(make_gateway: Callable[..., Any], stream: bool) -> None:
    text = "x\n    y\nclass B:\n" + "    pass\n" * 200
    for fields, shown in (({"n_indent": 4}, "x\n    y"), ({"t_max_predict_ms": 20}, "x\n")):
        async with make_gateway(Reply(text, chunk=1, delay=0.05 if "t_max_predict_ms" in fields else 0)) as gateway:
            body = {"prompt": "p", **fields}
            found = await _stream(gateway, **body) if stream else [(await _post(gateway, **body)).json()]
            assert "".join(one["content"] for one in found).startswith(shown)
            assert len("".join(one["content"] for one in found)) < 100
            assert (found[-1]["stop_type"], found[-1]["has_new_line"]) == ("limit", True)
            assert (gateway.engine.running, gateway.engine.aborted) == (0, 1)


async def test_infill(make_gateway: Callable[..., Any]) -> None:
    body = {
        "input_prefix": "def f(",
        "input_suffix": "return x\n",
        "prompt": "a",
        "n_predict": 64,
        "n_indent": 0,
        "samplers": ["top_k", "top_p", "infill"],
        "top_k": 40,
        "top_p": 0.99,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": VIM_FIELDS,
    }
    files = [{"filename": "a.py", "text": "import os\n", "time": 5}, {"text": "x = 1"}]
    async with make_gateway(filling()) as gateway:
        assert (await _post(gateway, "/infill", **body)).json()["content"] == "middle"
        await _post(gateway, "/infill", **body, input_extra=files)
        await _post(gateway, "/infill", n_predict=0, input_extra=files)
        bare, asked, ahead = gateway.engine.requests
        end = "<|fim_prefix|>def f(a<|fim_suffix|>return x\n<|fim_middle|>"
        others = "<|repo_name|>repository\n<|file_sep|>a.py\nimport os\n<|file_sep|>file\nx = 1\n<|file_sep|>file\n"
        assert (bare.text, asked.text) == (end, others + end)
        assert ahead.text == others + "<|fim_prefix|><|fim_suffix|><|fim_middle|>"
        assert (asked.sampling.temperature, asked.sampling.max_tokens) == (0, 64)
        ids = gateway.engine.tokenizer.special_tokens
        assert {ids["<|file_sep|>"], *(ids[mark] for mark in QWEN)} <= set(asked.sampling.stop_token_ids)
    async with make_gateway(filling(marks=QWEN)) as gateway:
        await _post(gateway, "/infill", **body, input_extra=files)
        assert gateway.engine.requests[0].text == "import os\nx = 1\n" + end


async def test_what_is_known_of_other_files_gives_way(make_gateway: Callable[..., Any]) -> None:
    files = [{"filename": f"{at}", "text": f"text {at} " + "x" * 300} for at in range(8)]
    async with make_gateway(filling(context=1000)) as gateway:
        await _post(gateway, "/infill", input_prefix="a", input_extra=files, n_predict=100)
        text = gateway.engine.requests[0].text
        assert "text 7" in text
        assert "text 6" in text
        assert "text 5" not in text
        assert len(text) < 1000
        response = await gateway.client.post("/infill", json={"input_prefix": "a" * 2000, "input_extra": files})
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": 5}, "prompt"),
        ("/completion", {"prompt": []}, "prompt"),
        ("/completion", {"prompt": [1, "a"]}, "prompt"),
        ("/completion", {"prompt": {"prompt_string": "x"}}, "prompt"),
        ("/completion", {"prompt": "x", "n_predict": "many"}, "n_predict"),
        ("/completion", {"prompt": "x", "n_predict": 1 << 40}, "n_predict"),
        ("/completion", {"prompt": "x", "temperature": 99}, "temperature"),
        ("/completion", {"prompt": "x", "repeat_penalty": -1}, "repeat_penalty"),
        ("/completion", {"prompt": "x", "n_probs": 99}, "n_probs"),
        ("/completion", {"prompt": "x", "stop": [5]}, "stop[0]"),
        ("/completion", {"prompt": "x", "logit_bias": [[5]]}, "logit_bias"),
        ("/completion", {"prompt": "x", "logit_bias": [["Hello", 1]]}, "logit_bias"),
        ("/completion", {"prompt": "x", "logit_bias": {"Hello": 1}}, "logit_bias"),
        ("/completion", {"prompt": "x", "logit_bias": [[5, "much"]]}, "logit_bias"),
        ("/completion", {"prompt": "x", "grammar": "a", "json_schema": {}}, "json_schema"),
        ("/completion", {"prompt": "x", "json_schema": {"type": 5}}, "json_schema"),
        ("/completion", {"prompt": "x", "model": 5}, "model"),
        ("/infill", {"prompt": [1]}, "prompt"),
        ("/infill", {"input_prefix": 5}, "input_prefix"),
        ("/infill", {"input_extra": [5]}, "input_extra[0]"),
        ("/infill", {"input_extra": [{"text": "x", "filename": 5}]}, "input_extra[0].filename"),
        ("/infill", {"input_extra": [{"text": "x"}] * 2000}, "input_extra"),
        ("/apply-template", {"messages": []}, "messages"),
        *(("/completion", {"prompt": "x", name: 7}, name) for name in REFUSED),
    ],
)
async def test_refusals_name_the_field(make_gateway: Callable[..., Any], path: str, body: Any, param: str) -> None:
    async with make_gateway(filling()) as gateway:
        response = await gateway.client.post(path, content=orjson.dumps(body))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert not gateway.engine.requests


async def test_a_model_without_marks_fills_nothing_in(gateway: Gateway) -> None:
    response = await gateway.client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_suffix")


async def test_failures(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello there.", chunk=4, fail_after=2)) as gateway:
        chunks = await _stream(gateway, prompt="x")
        assert chunks[0]["content"] == "Hell"
        assert chunks[-1]["error"]["message"]
        assert not any(one.get("stop") for one in chunks)
    async with make_gateway(Reply("x", finish=FinishReason(type="error", message="no"))) as gateway:
        assert (await gateway.client.post("/completion", json={"prompt": "x"})).status_code == 500


async def test_silence_is_filled(make_gateway: Callable[..., Any]) -> None:
    pace = {"stream_start_timeout": 0.02, "sse_comment_interval": 0.02, "sse_chunk_interval": 0.03}
    async with make_gateway(Reply("bc", chunk=1, first_delay=0.4, delay=0.1), **pace) as gateway:
        chunks = await _stream(gateway, prompt="x")
    assert "".join(one["content"] for one in chunks) == "bc"
    assert sum(not one["content"] for one in chunks) > 2, "no idle chunk came"


async def test_what_is_served(gateway: Gateway) -> None:
    found = (await gateway.client.get("/props")).json()
    assert found["default_generation_settings"]["n_ctx"] == 8192
    assert (found["total_slots"], found["model_alias"], found["model_path"]) == (64, "test-model", "scripted")
    assert found["modalities"] == {"vision": False, "audio": False}
    assert found["chat_template"] == gateway.engine.tokenizer.chat_template
    messages = [{"role": "user", "content": "hi <|im_end|>"}]
    found = (await gateway.client.post("/apply-template", json={"messages": messages})).json()
    await gateway.chat(*messages)
    asked = gateway.engine.requests[0]
    assert found == {"prompt": asked.text.replace(asked.guard, "")}


async def test_slots_are_the_rows_of_the_batch(make_gateway: Callable[..., Any]) -> None:
    """What load balancers read; of prompts, which llama.cpp shows there, nothing."""
    info = msgspec.structs.replace(MODEL_INFO, max_running_requests=2)
    engine = ScriptedEngine(Reply("Hello!", hang_after=0), model_info=info)
    async with make_gateway(engine) as gateway:
        free = {"n_ctx": 8192, "speculative": False, "is_processing": False}
        assert (await gateway.client.get("/slots")).json() == [{"id": 0, **free}, {"id": 1, **free}]
        asking = []
        for busy in (1, 2):
            asking.append(asyncio.create_task(_post(gateway, "/completion", prompt="secret")))
            await eventually(lambda: gateway.engine.running == len(asking))
            answer = await gateway.client.get("/slots")
            assert [slot["is_processing"] for slot in answer.json()] == [True] * busy + [False] * (2 - busy)
            assert "secret" not in answer.text
            full = await gateway.client.get("/slots?fail_on_no_slot=1")
            assert full.status_code == (200 if busy < 2 else 503)
        for task in asking:
            task.cancel()
        assert (await gateway.client.post("/slots/0?action=erase")).status_code == 404


async def test_tokens_in_its_words(gateway: Gateway) -> None:
    async def tokens(**body: Any) -> Any:
        return (await _post(gateway, "/tokenize", **body)).json()

    assert await tokens(content="hi") == {"tokens": [104, 105]}
    assert await tokens(content="") == {"tokens": []}
    assert await tokens(content="<|im_end|>") == {"tokens": [257]}
    assert await tokens(content="<|im_end|>", parse_special=False) == {"tokens": list(b"<|im_end|>")}
    assert await tokens(content="hé", with_pieces=True) == {
        "tokens": [{"id": 104, "piece": "h"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]
    }
    assert (await tokens(prompt="hi", content="x"))["count"] == 2  # vLLM's word goes first
    assert (await _post(gateway, "/detokenize", tokens=[104, 105])).json()["content"] == "hi"
    for odd in (5, "x" * 5_000_000):
        assert (await gateway.client.post("/tokenize", json={"content": odd})).status_code == 400


def test_no_field_is_ignored_and_refused() -> None:
    read = {field.encode_name for field in msgspec.structs.fields(InfillRequest)}
    assert not IGNORED.keys() & REFUSED.keys()
    assert not read & (IGNORED.keys() | REFUSED.keys())
