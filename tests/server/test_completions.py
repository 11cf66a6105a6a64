"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from engine.messages import FinishReason
from server import limits
from tests.fakes import Reply, ScriptedEngine
from tests.server.conftest import Gateway, events

TREE = {"one": "1!", "two": "22!", "": "default"}


async def ask(gateway: Gateway, prompt: Any, **fields: Any) -> httpx.Response:
    return await gateway.client.post("/v1/completions", content=orjson.dumps({"prompt": prompt, **fields}))


async def answer(gateway: Gateway, prompt: Any, **fields: Any) -> Any:
    response = await ask(gateway, prompt, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_shape(gateway: Gateway) -> None:
    body = await answer(gateway, "Say it:", model="test-model")
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "test-model",
        "choices": [{"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 7,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_sixteen_tokens_are_the_default(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("x" * 100) as gateway:
        choice = (await answer(gateway, "p"))["choices"][0]
        assert (len(choice["text"]), choice["finish_reason"]) == (16, "length")


async def test_index_is_prompt_times_n_plus_choice(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(ScriptedEngine(lambda request, i: f"{request.text or request.input_ids}/{i}")) as gateway:
        body = await answer(gateway, ["a", "b", [65, 66]], n=2)
        texts = {choice["index"]: choice["text"] for choice in body["choices"]}
        assert [choice["index"] for choice in body["choices"]] == list(range(6))
        assert texts == {0: "a/0", 1: "a/1", 2: "b/0", 3: "b/1", 4: "(65, 66)/0", 5: "(65, 66)/1"}
        assert body["usage"]["prompt_tokens"] == 1 + 1 + 2
        streamed = events((await ask(gateway, ["a", "b"], n=2, stream=True)).text)
        found: dict[int, str] = {}
        for chunk in streamed[:-1]:
            for choice in chunk["choices"]:
                found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
        assert found == {0: "a/0", 1: "a/1", 2: "b/0", 3: "b/1"}


async def test_stream(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello!", chunk=2)) as gateway:
        response = await ask(gateway, "p", stream=True, stream_options={"include_usage": True}, echo=True)
        *chunks, usage, done = events(response.text)
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 7
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "pHello!"
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}


@pytest.mark.parametrize("stream", [True, False])
async def test_echo_with_logprobs(make_gateway: Callable[..., Any], stream: bool) -> None:
    async with make_gateway("né") as gateway:
        response = await ask(gateway, ["né", "b"], echo=True, logprobs=2, stream=stream)
        if not stream:
            found = {choice["index"]: choice for choice in response.json()["choices"]}
        else:
            found = {}
            for chunk in events(response.text)[:-1]:
                (choice,) = chunk["choices"]
                whole = found.setdefault(choice["index"], {"text": "", "logprobs": None})
                whole["text"] += choice["text"]
                if choice["logprobs"]:
                    whole["logprobs"] = {
                        key: (whole["logprobs"] or {}).get(key, []) + value for key, value in choice["logprobs"].items()
                    }
        first, second = found[0], found[1]
    assert (first["text"], second["text"]) == ("néné", "bné")
    logprobs = first["logprobs"]
    assert len(set(map(len, logprobs.values()))) == 1
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3, 3], "offsets count characters, also inside one of several tokens"
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["top_logprobs"][3]) == 2
    assert second["logprobs"]["tokens"][:2] == ["b", "n"]


async def test_logprobs_without_echo(gateway: Gateway) -> None:
    logprobs = (await answer(gateway, "p", logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("Hello!")
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["top_logprobs"][0] == {"H": -0.25}


async def test_echo_alone(gateway: Gateway) -> None:
    """max_tokens 0 with echo: how evaluation harnesses score a text."""
    body = await answer(gateway, "text", echo=True, max_tokens=0, logprobs=1)
    choice = body["choices"][0]
    assert choice["text"] == "text"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == list("text")
    assert body["usage"]["completion_tokens"] == 0
    response = await ask(gateway, "text", max_tokens=0)
    assert response.json()["error"]["param"] == "max_tokens"


async def test_best_of_keeps_the_likeliest(make_gateway: Callable[..., Any]) -> None:
    from engine.messages import GenerateOutput, TokenLogprob

    class Weighted(ScriptedEngine):
        """Choice i has logprob -1 / (i + 1) throughout."""

        async def generate(self, request: Any) -> Any:
            async for output in super().generate(request):
                logprobs = tuple(TokenLogprob(one.token_id, -1 / (output.index + 1)) for one in output.logprobs)
                yield GenerateOutput(
                    **{
                        name: getattr(output, name)
                        for name in (
                            "index",
                            "text",
                            "token_ids",
                            "finish_reason",
                            "prompt_tokens",
                            "completion_tokens",
                        )
                    },
                    logprobs=logprobs,
                )

    async with make_gateway(Weighted(lambda request, i: f"text {i}")) as gateway:
        body = await answer(gateway, "p", n=2, best_of=4)
        assert [choice["text"] for choice in body["choices"]] == ["text 3", "text 2"]
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert body["choices"][0]["logprobs"] is None
        assert body["usage"]["completion_tokens"] == 4 * len("text 0!"), "all candidates were paid for"
        assert (await ask(gateway, "p", best_of=4, stream=True)).json()["error"]["param"] == "best_of"
        for best_of in (0, 1, None):
            assert len((await answer(gateway, "p", best_of=best_of))["choices"]) == 1
        for best_of in (1, -1, limits.MAX_BEST_OF + 1):
            assert (await ask(gateway, "p", n=2, best_of=best_of)).json()["error"]["param"] == "best_of"


async def test_special_tokens_in_a_raw_prompt_are_special(gateway: Gateway) -> None:
    body = await answer(gateway, "<|im_start|>user\n")
    assert body["usage"]["prompt_tokens"] == 1 + len("user\n")
    assert gateway.engine.requests[-1].guard == ""


async def test_structured_output(gateway: Gateway) -> None:
    await answer(gateway, "p", structured_outputs={"regex": "[ab]+"})
    assert gateway.engine.requests[-1].grammar is not None
    assert gateway.engine.requests[-1].grammar.kind == "regex"
    await answer(gateway, "p", response_format={"type": "json_object"})
    assert gateway.engine.requests[-1].grammar is not None
    response = await ask(gateway, "p", guided_regex="uncompilable")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "guided_regex")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [263]}, "prompt"),
        ({"prompt": [[1.5]]}, "prompt[0]"),
        ({"prompt": ["a"] * (limits.MAX_PROMPTS + 1)}, "prompt"),
        ({"prompt": ["a"] * 17, "n": 128}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"echo": "x"}, "echo"),
        ({"n": 0}, "n"),
        ({"temperature": 9}, "temperature"),
        ({"stop": ["x" * 1025]}, "stop"),
    ],
)
async def test_refusals(gateway: Gateway, fields: Any, param: str) -> None:
    response = await ask(gateway, **{"prompt": "p", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert gateway.engine.requests == []


async def test_too_long(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway() as gateway:
        for prompt in ("a" * 9000, [1] * 9000, "a" * (limits.MAX_PROMPT_CHARS + 1)):
            error = (await ask(gateway, prompt)).json()["error"]
            assert error["code"] == "context_length_exceeded"


async def test_one_failing_prompt_ends_the_request(make_gateway: Callable[..., Any]) -> None:
    script = {"bad": Reply(finish=FinishReason(type="error", status=400, message="No.")), "": Reply("y" * 50, chunk=1)}
    async with make_gateway(script) as gateway:
        response = await ask(gateway, ["a", "bad", "b"])
        assert (response.status_code, response.json()["error"]["message"]) == (400, "No.")
        assert gateway.engine.running == 0


async def test_many_prompts_do_not_flood_the_queue(make_gateway: Callable[..., Any]) -> None:
    peak = 0

    def script(request: Any, index: int) -> Reply:
        nonlocal peak
        peak = max(peak, engine.running)
        return Reply("ok", delay=0.001)

    engine = ScriptedEngine(script)
    async with make_gateway(engine) as gateway:
        body = await answer(gateway, ["p"] * 600)
        assert len(body["choices"]) == 600
    assert 1 < peak <= 256


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_that_wait_their_turn_are_answered_though_the_server_drains(
    make_gateway: Callable[..., Any], stream: bool
) -> None:
    def script(request: Any, index: int) -> Reply:
        engine.state = "draining"
        return Reply("ok", delay=0.001)

    engine = ScriptedEngine(script)
    async with make_gateway(engine) as gateway:
        body = {"prompt": ["p"] * 600, "stream": stream}
        response = await gateway.client.post("/v1/completions", json=body)
        assert response.status_code == 200
        assert "error" not in response.text
        assert response.text.count('"finish_reason":"stop"') == 600
        late = await gateway.client.post("/v1/completions", json={**body, "prompt": "p"})
        assert late.status_code == 503
    assert engine.groups == 0
