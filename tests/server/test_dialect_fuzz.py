"""Valid requests of both dialects with one part replaced by something odd: answered or refused, never a 5xx."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from tests.fakes import Reply

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" start | B\nB: /b+/\n%ignore " "'}
RESPONSES: dict[str, Any] = {
    "model": "test-model", "instructions": "Be kind.", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, {"type": "namespace", "name": "n"}, {"type": "function", "name": "f", "namespace": "n"}]},
    "input": [
        {"role": "developer", "content": "x"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "2"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "h", "parameters": SCHEMA}]},
        {"type": "function_call", "call_id": "e", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "function_call_output", "name": "f", "namespace": "n", "output": "3"},
    ],
    "tools": [
        {"type": "web_search"}, {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
        {"type": "custom", "name": "g", "format": GRAMMAR}, {"type": "function", "name": "f", "description": "d", "strict": True, "parameters": SCHEMA},
    ],
    "prompt_cache_options": {"prewarm": False},
    "text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"},
    "max_output_tokens": 9, "top_logprobs": 1, "temperature": 1, "truncation": "auto", "store": True, "user": "u",
    "parallel_tool_calls": True, "chat_template_kwargs": {"x": 1}, "previous_response_id": None, "prompt_cache_key": "k",
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    "model": "test-model", "max_tokens": 9, "system": [{"type": "text", "text": "Be kind."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "x"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": [{"type": "text", "text": "1"}]}]},
    ],
    "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}, "stop_sequences": ["x"], "top_k": 3,
    "thinking": {"type": "enabled", "budget_tokens": 5, "display": "summarized"}, "metadata": {"user_id": "u"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}, "temperature": 1, "top_p": 1,
    "chat_template_kwargs": {"x": 1}, "seed": 1, "priority": 1, "cache_salt": "s",
}  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "test-model", "n": 2, "messages": [
        {"role": "system", "content": "x"}, {"role": "user", "name": "u", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}, {"id": "d", "type": "custom", "custom": {"name": "g", "input": "b"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]}, {"role": "tool", "tool_call_id": "d", "content": "2"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}, {"type": "custom", "custom": {"name": "g", "format": {"type": "grammar", "grammar": GRAMMAR}}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, "logprobs": True, "top_logprobs": 1,
    "stop": ["x"], "logit_bias": {"5": 1}, "metadata": {"a": "b"}, "moderation": None, "thinking": {"type": "enabled"}, "max_completion_tokens": 9,
}  # fmt: skip
MESSAGES_ON_CHAT = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "5"}]}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}, {"type": "function", "name": "g", "parameters": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f"}, "reasoning": {"effort": "low", "enabled": True, "exclude": False},
}  # fmt: skip
OLLAMA = {
    "model": "test-model", "format": SCHEMA, "think": True, "keep_alive": "5m", "logprobs": True, "top_logprobs": 1,
    "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "hi", "images": []},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"id": "c", "function": {"index": 0, "name": "f", "arguments": {"a": "x"}}}]},
        {"role": "tool", "tool_name": "f", "tool_call_id": "c", "content": "5"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "options": {"temperature": 0.5, "top_k": 3, "seed": 1, "num_predict": 9, "stop": ["x"], "repeat_penalty": 1.1, "num_ctx": 9},
}  # fmt: skip
OLLAMA_PROMPT = {
    "model": "test-model",
    "prompt": "hi",
    "system": "s",
    "raw": True,
    "format": "json",
    "options": {"stop": "x"},
}
LLAMA_CPP = {
    "prompt": ["a", [1, 2]], "model": "test-model", "n_predict": 9, "temperature": 0.5, "top_k": 3, "top_p": 1, "min_p": 0,
    "repeat_penalty": 1.1, "presence_penalty": 0, "frequency_penalty": 0, "seed": 1, "stop": ["x"], "ignore_eos": False,
    "logit_bias": [[5, 1.5], [6, False]], "grammar": "", "json_schema": SCHEMA, "n_probs": 1, "n_indent": 2, "lora": [],
    "t_max_predict_ms": 500, "return_tokens": True, "response_fields": ["content", "timings/prompt_n"], "mirostat": 0,
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1 << 62, 1e300, "", "x", "\U0001f600", "a" * 600, [], {}, [None], [[]], [{}], {"": None},
    {"type": "function"}, {"type": ["x"]}, {"type": {}}, [{"type": "text"}], {"$ref": "#/nowhere"}, {"type": "text", "text": 5},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every part of a JSON value, itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


def replaced(body: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(body)
    node = changed
    for key in path[:-1]:
        node = node[key]
    if odd == "absent":
        del node[path[-1]]
    else:
        node[path[-1]] = odd
    return changed


def _told(error: Any) -> str:
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/responses", RESPONSES),
        ("/v1/messages", MESSAGES),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", RESPONSES),
        ("/v1/chat/completions", MESSAGES_ON_CHAT),
        ("/api/chat", OLLAMA),
        ("/api/generate", OLLAMA_PROMPT),
        ("/completion", LLAMA_CPP),
        ("/apply-template", CHAT),
        ("/tokenize", {"content": "a", "add_special": True, "parse_special": False, "with_pieces": True}),
    ],
)
async def test_one_odd_part_never_breaks_the_server(make_gateway: Callable[..., Any], route: str, body: Any) -> None:
    rng = random.Random(17)
    paths = list(places(body))
    cases = [(path, "absent") for path in paths]
    cases += [(path, odd) for path in paths for odd in rng.sample(ODD, 6)]
    problems = []
    async with make_gateway(Reply(CALL, chunk=7)) as gateway:
        whole = await gateway.client.post(route, content=orjson.dumps(body))
        assert whole.status_code == 200, whole.text
        for path, odd in cases:
            changed = {**replaced(body, path, odd), "stream": rng.random() < 0.5}
            response = await gateway.client.post(route, content=orjson.dumps(changed))
            broken = response.status_code not in (200, 400, 404) or "internal_error" in response.text
            if broken or (response.status_code != 200 and not _told(response.json()["error"])):
                problems.append((path, odd, response.status_code, response.text[:200]))
        assert gateway.engine.running == 0
    assert not problems
