"""POST /v1/chat/completions: shapes that clients need (clients/README 15-27), and both modes saying the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from engine.messages import FinishReason
from engine.sampling.draw import draw
from tests.fakes import Reply, ScriptedEngine
from tests.live import eventually
from tests.server.conftest import Gateway, events

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TWO = PARIS + '\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
USER = {"role": "user", "content": "hi"}


def rebuild(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """A message from the chunks of one choice, as a client accumulates it."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": [], "function_call": None}
    for chunk in chunks:
        for choice in chunk["choices"] if isinstance(chunk, dict) and "choices" in chunk else ():
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            message["finish_reason"] = choice["finish_reason"] or message.get("finish_reason")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["type"] == "function"
                    assert call["function"]["arguments"] == ""
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert call.keys() == {"index", "function"}
                    assert call["function"].keys() == {"arguments"}
                    message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            if "function_call" in delta:
                call = message["function_call"] or {"name": "", "arguments": ""}
                call["name"] += delta["function_call"].get("name", "")
                call["arguments"] += delta["function_call"]["arguments"]
                message["function_call"] = call
    return message


def folded(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [call["function"] for call in message.get("tool_calls", ())],
        "function_call": message.get("function_call"),
        "finish_reason": choice["finish_reason"],
    }


async def test_answer_has_every_field_that_clients_check(gateway: Gateway) -> None:
    answer = (await gateway.chat(USER)).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == "test-model"
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": "Hello!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_stream_shape(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello!", chunk=2)) as gateway:
        response = await gateway.chat(USER, stream=True)
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response.text)
    assert chunks[-1] == "[DONE]"
    first, *_, last = chunks[:-1]
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks[:-1])
    assert all(isinstance(chunk["created"], int) and chunk["model"] == "test-model" for chunk in chunks[:-1])
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_usage_comes_in_one_final_chunk_with_empty_choices(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello!", chunk=2, cached_tokens=5)) as gateway:
        chunks = await gateway.stream(USER, stream_options={"include_usage": True})
        whole = (await gateway.chat(USER)).json()
    with_usage = [chunk for chunk in chunks[:-1] if chunk.get("usage")]
    assert with_usage == [chunks[-2]]
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 5


TEXTS = {
    "text": "Just text, 世界 🌍.",
    "empty": "",
    "one call": PARIS,
    "two calls": TWO,
    "preamble": "Let me look.\n" + PARIS,
    "reasoning": "<think>\nHm.\n</think>\n\nSunny.",
    "reasoning and call": "<think>\nHm.\n</think>\n\n" + PARIS,
    "undeclared": '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>',
    "fence": '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("legacy", [False, True], ids=["tools", "functions"])
async def test_both_modes_agree(make_gateway: Callable[..., Any], text: str, legacy: bool) -> None:
    fields = {"functions": [WEATHER["function"], ADD["function"]]} if legacy else {"tools": [WEATHER, ADD]}
    seen = []
    for chunk in (0, 1, 7):
        async with make_gateway(Reply(text, chunk=chunk)) as gateway:
            seen.append(rebuild(await gateway.stream(USER, **fields)))
            seen.append(folded((await gateway.chat(USER, **fields)).json()["choices"][0]))
    assert all(item == seen[0] for item in seen)


async def test_two_calls(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(TWO, chunk=3)) as gateway:
        answer = (await gateway.chat(USER, tools=[WEATHER, ADD])).json()
        again = (await gateway.chat(USER, tools=[WEATHER, ADD])).json()
    (choice,) = answer["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] is None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "add"]
    assert [orjson.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [
        {"city": "Paris"},
        {"a": 2, "b": 3},
    ]
    ids = [call["id"] for a in (answer, again) for call in a["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 4


async def test_a_call_of_an_undeclared_tool_goes_to_the_client_and_one_of_a_tool_that_is_not_allowed_does_not(
    make_gateway: Callable[..., Any],
) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]}
    for text, names in ((TEXTS["undeclared"], ["nope"]), (PARIS, [])):
        async with make_gateway(Reply(text, chunk=3)) as gateway:
            fields = {"tools": [WEATHER, ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
            message = rebuild(await gateway.stream(USER, **fields))
        assert [call["name"] for call in message["tool_calls"]] == names
        assert message["finish_reason"] == ("tool_calls" if names else "stop")
        assert message["content"] == ("" if names else text)


async def test_no_white_space_around_streamed_calls(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("\n\n" + TWO + "\n", chunk=1)) as gateway:
        chunks = await gateway.stream(USER, tools=[WEATHER, ADD])
    assert rebuild(chunks)["content"] == ""


async def test_parallel_tool_calls_false_ends_after_the_first(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(TWO, chunk=3)) as gateway:
        answer = (await gateway.chat(USER, tools=[WEATHER, ADD], parallel_tool_calls=False)).json()
        streamed = rebuild(await gateway.stream(USER, tools=[WEATHER, ADD], parallel_tool_calls=False))
        assert gateway.engine.aborted == 2
    assert len(answer["choices"][0]["message"]["tool_calls"]) == len(streamed["tool_calls"]) == 1
    assert answer["choices"][0]["finish_reason"] == streamed["finish_reason"] == "tool_calls"


async def test_legacy_functions(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(TWO, chunk=3)) as gateway:
        answer = (
            await gateway.chat(USER, functions=[WEATHER["function"], ADD["function"]], function_call="auto")
        ).json()
        streamed = rebuild(await gateway.stream(USER, functions=[WEATHER["function"], ADD["function"]]))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == streamed["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert "tool_calls" not in choice["message"]
    assert streamed["function_call"] == choice["message"]["function_call"]


async def test_legacy_function_history_reaches_the_prompt(gateway: Gateway) -> None:
    response = await gateway.chat(
        USER,
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
        },
        {"role": "function", "name": "get_weather", "content": "18 C"},
        functions=[WEATHER["function"]],
    )
    assert response.status_code == 200, response.text
    assert "Rome" in gateway.engine.requests[0].text
    assert "18 C" in gateway.engine.requests[0].text


async def test_tool_finish_reason_flag(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(PARIS, tool_finish_reason="function_call") as gateway:
        answer = (await gateway.chat(USER, tools=[WEATHER])).json()
        streamed = rebuild(await gateway.stream(USER, tools=[WEATHER]))
    assert answer["choices"][0]["finish_reason"] == streamed["finish_reason"] == "function_call"
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("end", ["stop", "length"])
async def test_a_call_whose_closer_is_missing_counts_only_where_the_model_stopped(
    make_gateway: Callable[..., Any], end: str
) -> None:
    """``<function=...>`` whose parameter is whole: the model's own end closes it, the token limit does not."""
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    async with make_gateway(Reply(text, finish=FinishReason(type=end)), tool_call_parser="qwen3_coder") as gateway:
        choice = (await gateway.chat(USER, tools=[WEATHER])).json()["choices"][0]
    assert choice["finish_reason"] == ("tool_calls" if end == "stop" else "length")
    assert len(choice["message"].get("tool_calls") or ()) == (end == "stop")


async def test_a_call_cut_by_length_is_not_handed_over(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(PARIS, chunk=4)) as gateway:
        answer = (await gateway.chat(USER, tools=[WEATHER], max_tokens=60)).json()
        streamed = rebuild(await gateway.stream(USER, tools=[WEATHER], max_tokens=60))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == streamed["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    for call in streamed["tool_calls"]:
        assert '{"city": "Paris"}'.startswith(call["arguments"])


async def test_without_tools_call_markup_stays_text(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(PARIS, chunk=5)) as gateway:
        answer = (await gateway.chat(USER)).json()
        none = (await gateway.chat(USER, tools=[WEATHER], tool_choice="none")).json()
        prompt = gateway.engine.requests[-1].text
    assert answer["choices"][0]["message"]["content"] == PARIS
    assert none["choices"][0]["message"]["content"] == PARIS
    assert none["choices"][0]["finish_reason"] == "stop"
    assert "get_weather" not in prompt


async def test_reasoning_is_split_and_counted(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("<think>\nHm.\n</think>\n\nSunny.", chunk=1)) as gateway:
        answer = (await gateway.chat(USER)).json()
        hidden = (await gateway.chat(USER, include_reasoning=False)).json()
        joined = (await gateway.chat(USER, separate_reasoning=False)).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].strip() == "Hm."
    assert message["content"] == "Sunny."
    assert 0 < answer["usage"]["completion_tokens_details"]["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert "<think>" in joined["choices"][0]["message"]["content"]


async def test_thinking_switch_sets_the_parsers_start_state(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("Sunny.") as gateway:
        await gateway.chat(USER, chat_template_kwargs={"enable_thinking": False})
        await gateway.chat(USER, reasoning_effort="none")
    for request in gateway.engine.requests:
        assert request.text.endswith("<think>\n\n</think>\n\n")
        assert request.stop_after == ""


async def test_stop_strings_do_not_cut_open_reasoning(make_gateway: Callable[..., Any]) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n<think>\n{# </think> #}"
    )
    engine = ScriptedEngine("Question: restated\n</think>\nAnswer 42 Question: more")
    engine.tokenizer.chat_template = template
    async with make_gateway(engine) as gateway:
        answer = (await gateway.chat(USER, stop=["Question:"])).json()
    assert engine.requests[0].stop_after == "</think>"
    message = answer["choices"][0]["message"]
    assert message["content"].strip() == "Answer 42"
    assert "Question: restated" in message["reasoning_content"]


async def test_n_choices_are_interleaved_with_their_index(make_gateway: Callable[..., Any]) -> None:
    script = lambda request, index: Reply(f"Answer {index}", chunk=2)  # noqa: E731
    async with make_gateway(script) as gateway:
        answer = (await gateway.chat(USER, n=3)).json()
        chunks = await gateway.stream(USER, n=3, stream_options={"include_usage": True})
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Answer 0", "Answer 1", "Answer 2"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [rebuild(chunks, i)["content"] for i in range(3)] == ["Answer 0", "Answer 1", "Answer 2"]
    assert [rebuild(chunks, i)["finish_reason"] for i in range(3)] == ["stop"] * 3
    assert chunks[-2]["usage"] == answer["usage"]
    roles = [c["choices"][0]["index"] for c in chunks[:-2] if "role" in c["choices"][0]["delta"]]
    assert sorted(roles) == [0, 1, 2]


async def test_logprobs(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hé", chunk=1)) as gateway:
        answer = (await gateway.chat(USER, logprobs=True, top_logprobs=2)).json()
        chunks = await gateway.stream(USER, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(item["bytes"]) for item in content) == "Hé".encode()
    assert all(len(item["top_logprobs"]) == 2 and item["logprob"] <= 0 for item in content)
    streamed = [item for c in chunks[:-1] for item in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


async def test_logprobs_with_tools_cover_every_token(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(PARIS, chunk=6)) as gateway:
        answer = (await gateway.chat(USER, tools=[WEATHER], logprobs=True)).json()
        chunks = await gateway.stream(USER, tools=[WEATHER], logprobs=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(item["bytes"]) for item in content) == PARIS.encode()
    streamed = [item for c in chunks[:-1] for item in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


async def test_failure_before_the_first_token_is_a_status(make_gateway: Callable[..., Any]) -> None:
    for stream in (False, True):
        async with make_gateway(Reply("x", fail_after=0)) as gateway:
            response = await gateway.chat(USER, stream=stream)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "service_unavailable"


async def test_failure_in_a_stream_is_an_error_event(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello world", chunk=2, fail_after=2)) as gateway:
        chunks = await gateway.stream(USER)
        assert chunks[-1] == "[DONE]"
        assert chunks[-2]["error"].keys() == {"message", "type", "param", "code"}
        assert chunks[-2]["error"]["message"] == "The engine process died."
        assert not any(c["choices"][0]["finish_reason"] for c in chunks[:-2])
        whole = await gateway.chat(USER)
    assert whole.status_code == 503


async def test_an_unforeseen_exception_shows_nothing(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("x", error=RuntimeError("/secret/path 0xdeadbeef"))) as gateway:
        for stream in (False, True):
            response = await gateway.chat(USER, stream=stream)
            assert response.status_code == 500
            error = response.json()["error"]
            assert error["type"] == "server_error"
            assert "secret" not in response.text
            assert "0x" not in response.text
            assert response.headers["x-request-id"] in error["message"]


async def test_an_aborted_request_is_an_error_not_a_success(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello", finish=FinishReason(type="abort"))) as gateway:
        assert (await gateway.chat(USER)).json()["error"]["code"] == "request_aborted"
        assert (await gateway.stream(USER))[-2]["error"]["code"] == "request_aborted"


async def test_context_overflow(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway() as gateway:
        response = await gateway.chat({"role": "user", "content": "word " * 2000})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 8192 tokens.")


async def test_a_prompt_beyond_any_context_is_refused_before_it_is_rendered(gateway: Gateway) -> None:
    for content in ("word " * 1_000_000, [{"type": "text", "text": "word " * 500_000}] * 2):
        error = (await gateway.chat({"role": "user", "content": content})).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 8192 tokens.")
    assert gateway.engine.requests == []


async def test_sampling_fields_reach_the_engine(gateway: Gateway) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.1, "seed": -7, "stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": True,
        "min_tokens": 1, "max_completion_tokens": 32000, "max_tokens": 5, "logit_bias": {"65": -100},
        "skip_special_tokens": False, "n": 2, "priority": 3,
    }  # fmt: skip
    assert (await gateway.chat(USER, **fields)).status_code == 200
    (request,) = gateway.engine.requests
    params = request.sampling
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "ignore_eos", "n"):
        assert getattr(params, name) == fields[name]
    assert (params.presence_penalty, params.frequency_penalty) == (1.0, -1.0)
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (3,)
    assert params.max_tokens == 8192, "max_completion_tokens wins and is cut to the context"
    assert params.logit_bias == {65: -100.0}
    assert params.skip_special_tokens is False
    assert request.priority == 3
    assert "<tool_call>" in request.keep_special


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_forced_single_call_counts_the_same_however_its_tokens_come(
    make_gateway: Callable[..., Any], choice: Any
) -> None:
    """Its grammar ends it: the engine is not stopped at whatever token is the last one known when the call closes."""
    counted = set()
    for chunk in (0, 1, 7):
        async with make_gateway(Reply(PARIS + "\n", chunk=chunk)) as gateway:
            fields = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "logprobs": True}
            whole = (await gateway.chat(USER, **fields)).json()
            assert whole["choices"][0]["finish_reason"] == "tool_calls"
            logprobs = whole["choices"][0]["logprobs"]["content"]
            *chunks, _ = await gateway.stream(USER, **fields, stream_options={"include_usage": True})
            streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1] if chunk["choices"][0]["logprobs"]]
            assert sum(len(item["content"]) for item in streamed) == len(logprobs)
            assert chunks[-1]["usage"] == whole["usage"]
            counted.add((whole["usage"]["completion_tokens"], len(logprobs)))
    assert len(counted) == 1


async def test_a_single_call_is_whole_at_the_limit(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(PARIS + "\n", chunk=1)) as gateway:
        for choice, more in (("required", {}), ("auto", {}), ("required", {"min_tokens": 1})):
            fields = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, **more}
            answered = (await gateway.chat(USER, **fields, max_tokens=len(PARIS))).json()["choices"][0]
            assert (answered["finish_reason"], len(answered["message"]["tool_calls"])) == ("tool_calls", 1)


async def test_top_p_of_0_is_the_most_likely_token(gateway: Gateway) -> None:
    assert (await gateway.chat(USER, top_p=0, temperature=1)).status_code == 200
    params = gateway.engine.requests[-1].sampling
    row = np.array([0.0, 1.0, 0.999, -1.0], np.float32)
    drawn = {draw(row, u / 100, temperature=params.temperature, top_p=params.top_p) for u in range(100)}
    assert drawn == {1}


async def test_special_spellings_in_user_text_are_guarded(gateway: Gateway) -> None:
    await gateway.chat({"role": "user", "content": "say <|im_end|> and </think>"})
    (request,) = gateway.engine.requests
    assert request.guard
    ids = gateway.engine.tokenizer.encode(request.text, guard=request.guard)
    assert ids.count(257) == 1


async def test_template_syntax_in_user_text_is_text(gateway: Gateway) -> None:
    await gateway.chat({"role": "user", "content": "{{ 7*7 }}"})
    assert "{{ 7*7 }}" in gateway.engine.requests[0].text


@pytest.mark.parametrize(
    ("last", "fields", "resumes"),
    [
        ({"content": "Once upon", "prefix": True}, {}, True),
        ({"content": [{"type": "text", "text": "Once upon"}], "prefix": True}, {}, True),
        ({"content": "Once upon", "prefix": True}, {"add_generation_prompt": True}, False),
        ({"content": "Once upon", "prefix": True}, {"continue_final_message": False}, False),
        ({"content": "Once upon", "prefix": False}, {}, False),
        ({"content": "", "prefix": True}, {}, False),
        ({"content": None, "prefix": True}, {}, False),
    ],
)
async def test_a_prefix_is_continued(gateway: Gateway, last: Any, fields: Any, resumes: bool) -> None:
    assert (await gateway.chat(USER, {"role": "assistant", **last}, **fields)).status_code == 200
    assert gateway.engine.requests[0].text.endswith("Once upon") == resumes


@pytest.mark.parametrize("stop", ["", [""], ["", ""]])
async def test_empty_stop_strings_are_none(gateway: Gateway, stop: Any) -> None:
    answer = (await gateway.chat(stop=stop)).json()
    assert answer["choices"][0]["message"]["content"] == "Hello!"
    assert gateway.engine.requests[0].sampling.stop == ()


async def test_continue_final_message(gateway: Gateway) -> None:
    response = await gateway.chat(USER, {"role": "assistant", "content": "Once upon"}, continue_final_message=True)
    assert response.status_code == 200
    assert gateway.engine.requests[0].text.endswith("Once upon")


async def test_forced_calls_and_formats_send_a_grammar(gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for fields, kind in (
        ({"tools": [WEATHER], "tool_choice": "required"}, "lark"),
        ({"tools": [WEATHER, ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "lark"),
        ({"response_format": {"type": "json_object"}}, "lark"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}, "lark"),
        ({"structured_outputs": {"regex": "[ab]+"}}, "regex"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice"),
        ({"guided_choice": ["yes", "no"]}, "choice"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
    ):
        response = await gateway.chat(USER, chat_template_kwargs={"enable_thinking": False}, **fields)
        assert response.status_code == 200, response.text
        grammar = gateway.engine.requests[-1].grammar
        assert grammar is not None, fields
        assert grammar.kind == kind
        assert not grammar.triggers
    named = gateway.engine.requests[1].grammar.source
    assert "add" in named
    assert "get_weather" not in named
    assert "get_weather" in gateway.engine.requests[1].text, "all tools are rendered, so the prompt prefix is shared"


async def test_a_grammar_that_does_not_compile_is_a_400(gateway: Gateway) -> None:
    response = await gateway.chat(USER, structured_outputs={"regex": "uncompilable"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "structured_outputs.regex"
    schema = {"type": "object", "properties": {"uncompilable": {"type": "string"}}}
    response = await gateway.chat(
        USER, response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_generation(make_gateway: Callable[..., Any], stream: bool) -> None:
    engine = ScriptedEngine(Reply("Hello world", chunk=1, hang_after=3))
    async with make_gateway(engine) as gateway:
        body = orjson.dumps({"messages": [USER], "stream": stream})
        left = asyncio.Event()
        sent: list[Any] = []
        incoming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if incoming:
                return incoming.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"",
            "headers": [(b"host", b"localhost")], "http_version": "1.1", "client": ("127.0.0.1", 1), "scheme": "http",
            "server": ("localhost", 80), "root_path": "",
        }  # fmt: skip
        task = asyncio.create_task(gateway.app(scope, receive, send))
        await eventually(lambda: engine.running == 1)
        left.set()
        await asyncio.wait_for(task, 20)
    assert engine.running == 0
    assert engine.aborted == 1
    assert bool(sent) == stream


async def test_a_malformed_pattern_is_named(gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"s": {"type": "string", "pattern": "^+[a-z]$"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    response = await gateway.chat(USER, tools=tools, tool_choice="required")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "tools[0].function.parameters"
    assert error["code"] == "invalid_function_parameters"
    assert "^+[a-z]$" in error["message"]
