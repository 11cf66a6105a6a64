"""The native routes: /generate, /tokenize, /detokenize, the parsers, information, aborting, flushing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from engine.messages import FinishReason
from server import limits
from server.args import Secret
from tests.fakes import Reply, ScriptedEngine
from tests.live import eventually
from tests.server.conftest import Gateway, events
from tests.server.test_chat import PARIS, USER, WEATHER


async def post(gateway: Gateway, path: str, body: Any, **headers: str) -> httpx.Response:
    return await gateway.client.post(path, content=orjson.dumps(body), headers=headers)


async def good(gateway: Gateway, path: str, body: Any) -> Any:
    response = await post(gateway, path, body)
    assert response.status_code == 200, response.text
    return response.json()


# ---------------------------------------------------------------- /generate


async def test_generate(gateway: Gateway) -> None:
    body = await good(gateway, "/generate", {"text": "Say:", "rid": "mine", "sampling_params": {"temperature": 0}})
    meta = body["meta_info"]
    assert meta.pop("e2e_latency") >= 0
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "stop", "matched": None},
        "prompt_tokens": 4,
        "completion_tokens": 7,
        "cached_tokens": 0,
    }
    assert body["text"] == "Hello!"
    assert body["output_ids"] == list(b"Hello!")
    assert gateway.engine.requests[-1].sampling.max_tokens == 128


async def test_every_sampling_param_arrives(gateway: Gateway) -> None:
    params = {
        "max_new_tokens": 9, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.6, "top_k": 7, "min_p": 0.1,
        "frequency_penalty": 0.2, "presence_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"5": 1.0},
        "sampling_seed": 4, "n": 2, "stop": ["x"], "stop_token_ids": [3], "ignore_eos": True, "skip_special_tokens": False,
    }  # fmt: skip
    await good(gateway, "/generate", {"text": "p", "sampling_params": params})
    sampling = gateway.engine.requests[-1].sampling
    names = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
    expected = {**params, "logit_bias": {5: 1.0}, "stop": ("x",), "stop_token_ids": (3,)}
    assert {name: getattr(sampling, names.get(name, name)) for name in params} == expected


async def test_generate_stream_is_cumulative(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("abcd", chunk=2, cached_tokens=1)) as gateway:
        response = await post(gateway, "/generate", {"input_ids": [65, 66], "stream": True})
        *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert [chunk["text"] for chunk in chunks] == ["ab", "abcd", "abcd"]
    assert chunks[1]["output_ids"] == list(b"abcd")
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:2]] == [None, None]
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    assert chunks[-1]["meta_info"]["cached_tokens"] == 1
    assert "index" not in chunks[0]


async def test_generate_batch_and_n(make_gateway: Callable[..., Any]) -> None:
    engine = ScriptedEngine(lambda request, i: f"{request.text}/{i}")
    async with make_gateway(engine) as gateway:
        found = await good(gateway, "/generate", {"text": ["a", "b"], "sampling_params": {"n": 2}, "rid": "r"})
        assert [item["text"] for item in found] == ["a/0", "a/1", "b/0", "b/1"]
        assert [item["meta_info"]["id"] for item in found] == ["r_0", "r_0", "r_1", "r_1"]
        assert len(await good(gateway, "/generate", {"text": "a", "sampling_params": {"n": 2}})) == 2
        assert len(await good(gateway, "/generate", {"text": ["a"]})) == 1
        several = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
        found = await good(gateway, "/generate", {"text": ["a", "b"], "sampling_params": several})
        assert [item["meta_info"]["finish_reason"] for item in found] == [
            {"type": "length", "length": 1},
            {"type": "length", "length": 2},
        ]
        response = await post(gateway, "/generate", {"text": ["a", "b"], "stream": True})
        ends = {c["index"]: c["text"] for c in events(response.text)[:-1] if c["meta_info"]["finish_reason"]}
        assert ends == {0: "a/0", 1: "b/0"}


async def test_generate_logprobs(gateway: Gateway) -> None:
    body = {"text": "ab", "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    meta = (await good(gateway, "/generate", body))["meta_info"]
    assert meta["output_token_logprobs"][0] == [-0.25, ord("H"), "H"]
    assert len(meta["output_top_logprobs"][0]) == 2
    assert meta["input_token_logprobs"] == []
    meta = (await good(gateway, "/generate", body | {"logprob_start_len": 0}))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, ord("a"), "a"], [-0.25, ord("b"), "b"]]
    assert meta["input_top_logprobs"][0] is None
    meta = (await good(gateway, "/generate", body | {"logprob_start_len": 1}))["meta_info"]
    assert meta["input_token_logprobs"] == [[-0.25, ord("b"), "b"]]


async def test_generate_finish_reasons(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("one STOP two") as gateway:
        for params, reason in (
            ({"stop": "STOP"}, {"type": "stop", "matched": "STOP"}),
            ({"max_new_tokens": 3}, {"type": "length", "length": 3}),
        ):
            body = await good(gateway, "/generate", {"text": "p", "sampling_params": params})
            assert body["meta_info"]["finish_reason"] == reason


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"regex": "[ab]"}, "regex"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
        ({"json_schema": '{"type": "object"}'}, "lark"),
        ({"json_schema": {"type": "object"}}, "lark"),
        ({"structural_tag": '{"structures":[{"begin":"<f>","schema":{},"end":"</f>"}],"triggers":["<f"]}'}, "lark"),
    ],
)
async def test_generate_grammars(gateway: Gateway, params: Any, kind: str) -> None:
    await good(gateway, "/generate", {"text": "p", "sampling_params": params})
    grammar = gateway.engine.requests[-1].grammar
    assert grammar is not None
    assert grammar.kind == kind
    assert grammar.triggers == (("<f",) if "structural_tag" in params else ())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [[1], ["a"]]}, "input_ids[1]"),
        ({"text": "a", "sampling_params": {"temperature": 9}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"sampling_seed": 1 << 63}}, "sampling_params.sampling_seed"),
        ({"text": "a", "sampling_params": {"n": "2"}}, "sampling_params.n"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params.ebnf"),
        ({"text": "a", "sampling_params": {"json_schema": "["}}, "sampling_params.json_schema"),
        ({"text": "a", "sampling_params": {"regex": "uncompilable"}}, "sampling_params.regex"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "rid": "r" * (limits.MAX_RID + 1)}, "rid"),
        ({"text": ["a", "b"], "rid": ["r", "r"]}, "rid"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "sampling_params.top_logprobs"),
        ({"text": "a", "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a" * 9000}, "text"),
        ({"input_ids": [1] * 9000}, "input_ids"),
    ],
)
async def test_generate_refusals(gateway: Gateway, body: Any, param: str) -> None:
    response = await post(gateway, "/generate", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert gateway.engine.running == 0


async def test_a_mistyped_sampling_param_is_named(gateway: Gateway) -> None:
    response = await post(gateway, "/generate", {"text": "a", "sampling_params": {"max_tokens": 5}})
    assert response.status_code == 400
    assert "max_tokens" in response.json()["error"]["message"]


# ---------------------------------------------------------------- aborting

SLOW = Reply("x" * 1000, chunk=1, delay=0.01)


async def running(gateway: Gateway) -> None:
    async with asyncio.timeout(5):
        while not gateway.engine.running:  # noqa: ASYNC110 (an engine has no event for it)
            await asyncio.sleep(0.005)


async def test_abort_by_rid(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW) as gateway:
        body = {"text": "p", "rid": "mine", "sampling_params": {"max_new_tokens": 5000}}
        answer = asyncio.create_task(post(gateway, "/generate", body))
        await running(gateway)
        assert await good(gateway, "/abort_request", {"rid": "min"}) == {"aborted": 0}, "ids are exact"
        assert await good(gateway, "/abort_request", {"rid": "mine"}) == {"aborted": 1}
        found = (await answer).json()
        assert found["meta_info"]["finish_reason"]["type"] == "abort"
        assert gateway.engine.running == 0
        assert gateway.engine.aborted == 1
        assert await good(gateway, "/abort_request", {"rid": "mine"}) == {"aborted": 0}
        assert len(gateway.app.state.services.running) == 0


async def test_abort_of_a_batch_and_of_a_stream(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW) as gateway:
        body = {"text": ["p", "q"], "rid": "mine", "stream": True}
        answer = asyncio.create_task(post(gateway, "/generate", body))
        await running(gateway)
        assert await good(gateway, "/abort_request", {"rid": "mine"}) == {"aborted": 1}
        *chunks, done = events((await answer).text)
        assert done == "[DONE]"
        ends = {c["index"]: c["meta_info"]["finish_reason"]["type"] for c in chunks if c["meta_info"]["finish_reason"]}
        assert ends == {0: "abort", 1: "abort"}
        assert gateway.engine.running == 0


@pytest.mark.parametrize("reply", [SLOW, Reply("x", first_delay=30.0)])
async def test_abort_of_a_chat_request(make_gateway: Callable[..., Any], reply: Reply) -> None:
    """By the id of its answer or by the request's id, also before the first token."""
    async with make_gateway(reply) as gateway:
        answer = asyncio.create_task(gateway.chat(USER))
        await running(gateway)
        (names,) = [[name for _, name in gateway.app.state.services.running._found]]
        assert sorted(name.partition("_")[0].partition("-")[0] for name in names) == ["chatcmpl", "req"]
        assert await good(gateway, "/abort_request", {"rid": names[-1]}) == {"aborted": 1}
        response = await answer
        assert (response.status_code, response.json()["error"]["code"]) == (400, "request_aborted")
        assert gateway.engine.running == 0


async def test_abort_reaches_only_ones_own_tenant(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW, api_keys=(Secret("one"), Secret("two"))) as gateway:
        mine, other = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
        answer = asyncio.create_task(post(gateway, "/generate", {"text": "p", "rid": "r"}, **mine))
        await running(gateway)
        assert (await post(gateway, "/abort_request", {"rid": "r"}, **other)).json() == {"aborted": 0}
        assert (await post(gateway, "/abort_request", {"rid": "r"}, **mine)).json() == {"aborted": 1}
        await answer


@pytest.mark.parametrize("limit", [{"max_concurrent_requests": 1}, {"requests_per_minute": 1}])
async def test_a_key_at_its_limit_can_still_abort(make_gateway: Callable[..., Any], limit: dict[str, int]) -> None:
    async with make_gateway(SLOW, api_keys=(Secret("one"),), **limit) as gateway:
        mine = {"authorization": "Bearer one"}
        answer = asyncio.create_task(post(gateway, "/generate", {"text": "p", "rid": "r"}, **mine))
        await running(gateway)
        assert (await post(gateway, "/generate", {"text": "p"}, **mine)).status_code == 429
        for _ in range(3):
            assert (await post(gateway, "/abort_request", {"rid": "nobody"}, **mine)).json() == {"aborted": 0}
        assert (await post(gateway, "/abort_request", {"rid": "r"}, **mine)).json() == {"aborted": 1}
        await answer


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": "", "abort_all": True}, {"rid": 5}, {"rid": "r" * 257}])
async def test_abort_refusals(gateway: Gateway, body: Any) -> None:
    assert (await post(gateway, "/abort_request", body)).status_code == 400


# ---------------------------------------------------------------- tokens


async def test_tokenize_and_back(gateway: Gateway) -> None:
    body = await good(gateway, "/tokenize", {"prompt": "<|im_start|>hé", "return_token_strs": True})
    assert body == {
        "count": 4,
        "max_model_len": 8192,
        "tokens": [256, 104, 195, 169],
        "token_strs": ["<|im_start|>", "h", "\ufffd", "\ufffd"],
    }
    back = await good(gateway, "/detokenize", {"tokens": body["tokens"]})
    assert back["prompt"] == back["text"] == "<|im_start|>hé"
    skipped = await good(gateway, "/detokenize", {"tokens": body["tokens"], "skip_special_tokens": True})
    assert skipped["text"] == "hé"


async def test_tokenize_lists(gateway: Gateway) -> None:
    body = await good(gateway, "/tokenize", {"prompt": ["a", "bc"]})
    assert (body["tokens"], body["count"]) == ([[97], [98, 99]], [1, 2])
    assert (await good(gateway, "/detokenize", {"tokens": [[97], [98, 99], []]}))["text"] == ["a", "bc", ""]
    assert (await good(gateway, "/detokenize", {"tokens": []}))["text"] == ""
    assert (await good(gateway, "/tokenize", {"prompt": ""}))["tokens"] == []


async def test_tokenize_messages_is_what_chat_sends(gateway: Gateway) -> None:
    message = {"role": "user", "content": "no <|im_end|> token"}
    body = {"messages": [message], "tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": False}}
    found = await good(gateway, "/tokenize", body)
    rendered = await good(gateway, "/v1/chat/completions/render", body)
    counted = await good(gateway, "/v1/chat/completions/input_tokens", body)
    await gateway.chat(**body | {"messages": [message]})
    request = gateway.engine.requests[-1]
    ids = gateway.engine.tokenizer.encode(request.text or "", guard=request.guard)
    assert found["tokens"] == rendered["token_ids"] == ids
    assert counted["input_tokens"] == rendered["prompt_tokens"] == found["count"] == len(ids)
    assert ids.count(257) == 2, "the user's own spelling is no special token"
    assert "no <|im_end|> token" in rendered["prompt"]
    assert "get_weather" in rendered["prompt"]
    assert len(gateway.engine.requests) == 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a" * (limits.MAX_PROMPT_CHARS + 1)}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [1000000000]}, "tokens"),
        ("/detokenize", {"tokens": [1, [1]]}, "tokens"),
        ("/detokenize", {"tokens": [[1], 1]}, "tokens[1]"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
    ],
)
async def test_token_refusals(gateway: Gateway, path: str, body: Any, param: str | None) -> None:
    response = await post(gateway, path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


# ---------------------------------------------------------------- parsers


async def test_parse_function_call(gateway: Gateway) -> None:
    text = f"Let me see.\n{PARIS}"
    body = await good(gateway, "/parse_function_call", {"text": text, "tools": [WEATHER], "tool_call_parser": "qwen25"})
    (call,) = body["calls"]
    assert (call["tool_index"], call["name"]) == (0, "get_weather")
    assert orjson.loads(call["parameters"])["city"] == "Paris"
    assert body["normal_text"].strip() == "Let me see."
    assert await good(gateway, "/parse_function_call", {"text": text, "tools": [WEATHER]}) == body
    undeclared = {"text": PARIS.replace("get_weather", "nope"), "tools": [WEATHER]}
    (call,) = (await good(gateway, "/parse_function_call", undeclared))["calls"]
    assert (call["tool_index"], call["name"]) == (-1, "nope")
    for wrong in ({"tool_call_parser": "nope"}, {"text": "x" * (limits.MAX_PARSED_CHARS + 1)}, {"tools": [5]}):
        response = await post(gateway, "/parse_function_call", {"text": "x", "tools": [WEATHER], **wrong})
        assert response.status_code == 400


async def test_separate_reasoning(gateway: Gateway) -> None:
    text = "<think>Hm.</think>Yes."
    for fields in ({}, {"reasoning_parser": "qwen3"}):
        body = await good(gateway, "/separate_reasoning", {"text": text, **fields})
        assert body == {"reasoning_text": "Hm.", "text": "Yes."}
    response = await post(gateway, "/separate_reasoning", {"text": text, "reasoning_parser": "nope"})
    assert response.json()["error"]["param"] == "reasoning_parser"


# ---------------------------------------------------------------- information


async def test_information(gateway: Gateway) -> None:
    model = (await gateway.client.get("/get_model_info")).json()
    assert model["model_path"] == "test-model"
    assert model["is_generation"] is True
    for path in ("/get_server_info", "/server_info"):
        server = (await gateway.client.get(path)).json()
        assert server["tool_call_parser"] == "hermes"
        assert server["internal_states"][0]["total_pages"] == 100
    assert (await gateway.client.get("/version")).json()["version"]


async def test_information_shows_no_secrets(make_gateway: Callable[..., Any]) -> None:
    import msgspec

    from tests.fakes import MODEL_INFO

    engine = ScriptedEngine("x", model_info=msgspec.structs.replace(MODEL_INFO, model_path="/secret/place/m.gguf"))
    async with make_gateway(engine, api_keys=(Secret("user-key"),), admin_keys=(Secret("admin-key"),)) as gateway:
        for path in ("/get_model_info", "/get_server_info", "/version"):
            assert (await gateway.client.get(path)).status_code == 401
            response = await gateway.client.get(path, headers={"x-api-key": "user-key"})
            assert response.status_code == 200
            for secret in ("user-key", "admin-key", "/secret"):
                assert secret not in response.text
        for method in ("GET", "POST"):
            refused = await gateway.client.request(method, "/flush_cache", headers={"x-api-key": "user-key"})
            assert refused.status_code == 403
            done = await gateway.client.request(method, "/flush_cache", headers={"x-api-key": "admin-key"})
            assert done.json()["success"] is True
    assert engine.flushed == 2


async def test_an_engine_failure_in_a_native_stream_is_an_error_event(make_gateway: Callable[..., Any]) -> None:
    reply = Reply("abc", chunk=1, finish=FinishReason(type="error", status=503, message="Gone."))
    async with make_gateway(reply) as gateway:
        *_, error, done = events((await post(gateway, "/generate", {"text": "p", "stream": True})).text)
        assert (error["error"]["message"], done) == ("Gone.", "[DONE]")


async def test_silence_is_filled_with_comments_that_no_chunk_is_lost_to(make_gateway: Callable[..., Any]) -> None:
    pace = {"stream_start_timeout": 0.05, "sse_comment_interval": 0.02, "sse_chunk_interval": 0.04}
    async with make_gateway(Reply("Hello", chunk=1, delay=0.15), **pace) as gateway:
        text = (await post(gateway, "/generate", {"text": "p", "stream": True})).text
    assert ": keep-alive" in text
    assert [chunk["text"] for chunk in events(text)[:-1]] == ["H", "He", "Hel", "Hell", "Hello", "Hello"]


async def test_an_answer_aborted_before_its_first_token_has_its_logprob_fields(
    make_gateway: Callable[..., Any],
) -> None:
    async with make_gateway(Reply("Hello", chunk=1, hang_after=0)) as gateway:
        body = {"text": "ab", "rid": "r1", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
        task = asyncio.create_task(gateway.client.post("/generate", json=body))
        await eventually(lambda: gateway.engine.running == 1)
        await gateway.client.post("/abort_request", json={"rid": "r1"})
        meta = (await task).json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert (meta["output_token_logprobs"], meta["output_top_logprobs"]) == ([], [])
    assert meta["input_token_logprobs"][0] == [None, ord("a"), None]
