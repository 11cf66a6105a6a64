"""Every ceiling at the limit and one beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine import sampling_params as sp
from server import limits
from server.body import parse_object
from server.errors import ApiError, HeadersTooLarge
from server.middleware import check_head
from tests.server.conftest import Gateway

USER = {"role": "user", "content": "x"}


def tools(count: int) -> list[Any]:
    return [{"type": "function", "function": {"name": f"f{i}"}} for i in range(count)]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def schema_tool(schema: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


def calls(count: int, id_length: int = 5) -> list[Any]:
    """A history with one assistant message of so many calls."""
    made = [
        {"id": f"{i}".rjust(id_length, "c"), "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for i in range(count)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in made]
    return [USER, {"role": "assistant", "tool_calls": made}, *results]


def padded(value: Any, size: int, room: list[Any]) -> Any:
    """``value`` with spaces of text in ``room[0]["description"]`` so that its JSON has ``size`` bytes."""
    room[0]["description"] = ""
    room[0]["description"] = "d" * (size - len(orjson.dumps(value)))
    assert len(orjson.dumps(value)) == size
    return value


def tools_of(size: int) -> list[Any]:
    """Several tools, as large together as the server will count them."""
    functions = [
        {"name": f"f{i}", "description": "", "parameters": {"type": "object", "properties": {}}} for i in range(9)
    ]
    return padded([{"type": "function", "function": function} for function in functions], size, functions)


def schema_of(size: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "description": ""}
    return padded(schema, size, [schema])


def wide(nodes: int) -> dict[str, Any]:
    """A schema of so many subschemas besides itself."""
    return {"prefixItems": [{}] * nodes}


def pattern_of(chars: int) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "a" * chars}}}


FIELDS: list[tuple[str, str, Callable[[int], Any], int]] = [
    ("n", "n", lambda n: {"n": n}, sp.MAX_N),
    ("top_logprobs", "top_logprobs", lambda n: {"logprobs": True, "top_logprobs": n}, sp.MAX_TOP_LOGPROBS),
    ("stop", "stop", lambda n: {"stop": [f"~{i}" for i in range(n)]}, sp.MAX_STOP_STRINGS),
    ("stop", "stop length", lambda n: {"stop": "~" * n}, sp.MAX_STOP_LENGTH),
    ("stop_token_ids", "stop_token_ids", lambda n: {"stop_token_ids": [i % 256 for i in range(n)]}, sp.MAX_STOP_TOKEN_IDS),
    ("stop_token_ids", "stop token id", lambda n: {"stop_token_ids": [n]}, 262),
    ("logit_bias", "logit_bias key", lambda n: {"logit_bias": {str(n): 1}}, 262),
    ("logit_bias", "logit_bias value", lambda n: {"logit_bias": {"1": n}}, 100),
    ("temperature", "temperature", lambda n: {"temperature": n}, 2),
    ("presence_penalty", "presence_penalty", lambda n: {"presence_penalty": n}, 2),
    ("frequency_penalty", "frequency_penalty", lambda n: {"frequency_penalty": n}, 2),
    ("repetition_penalty", "repetition_penalty", lambda n: {"repetition_penalty": n}, 10),
    ("top_p", "top_p", lambda n: {"top_p": n}, 1),
    ("min_p", "min_p", lambda n: {"min_p": n}, 1),
    ("seed", "seed", lambda n: {"seed": n}, (1 << 63) - 1),
    ("user", "user", lambda n: {"user": "u" * n}, limits.MAX_USER_CHARS),
    ("metadata", "metadata", lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}}, limits.MAX_METADATA_ENTRIES),
    ("metadata", "metadata value", lambda n: {"metadata": {"k": "v" * n}}, limits.MAX_METADATA_VALUE),
    ("metadata", "metadata key", lambda n: {"metadata": {"k" * n: "v"}}, limits.MAX_METADATA_KEY),
    ("cache_salt", "cache_salt", lambda n: {"cache_salt": "s" * n}, limits.MAX_CACHE_SALT),
    ("priority", "priority", lambda n: {"priority": n}, 1000),
    ("tools", "tools", lambda n: {"tools": tools(n)}, limits.MAX_TOOLS),
    ("tools", "tool name", lambda n: {"tools": [{"type": "function", "function": {"name": "f" * n}}]}, limits.MAX_TOOL_NAME),
    ("tools", "schema depth", lambda n: {"tools": schema_tool(nested(n))}, limits.MAX_SCHEMA_DEPTH),
    ("tools", "enum", lambda n: {"tools": schema_tool({"enum": ["x"] * n})}, limits.MAX_ENUM_VALUES),
    ("tools", "union", lambda n: {"tools": schema_tool({"anyOf": [{"type": "null"}] * n})}, limits.MAX_UNION_BRANCHES),
    ("tools", "tools bytes", lambda n: {"tools": tools_of(n)}, limits.MAX_TOOLS_BYTES),
    ("tools", "schema bytes", lambda n: {"tools": schema_tool(schema_of(n))}, limits.MAX_SCHEMA_BYTES),
    ("tools", "schema nodes", lambda n: {"tools": schema_tool(wide(n))}, limits.MAX_SCHEMA_NODES),
    ("response_format", "pattern", lambda n: {"response_format": pattern_of(n)}, limits.MAX_PATTERN_CHARS),
    ("response_format", "pattern groups", lambda n: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "(" * n + "a" + ")" * n}}}}, limits.MAX_PATTERN_NESTING),
    ("messages", "tool calls", lambda n: {"messages": calls(n)}, limits.MAX_TOOL_CALLS),
    ("messages", "tool call id", lambda n: {"messages": calls(1, n)}, limits.MAX_TOOL_CALL_ID),
    ("messages", "tool_call_id", lambda n: {"messages": [*calls(1)[:2], {"role": "tool", "tool_call_id": "c" * n, "content": ""}]}, limits.MAX_TOOL_CALL_ID),
    ("chat_template_kwargs", "kwarg", lambda n: {"chat_template_kwargs": {"k": "v" * n}}, limits.MAX_TEMPLATE_KWARG_CHARS),
    ("structured_outputs", "grammar nesting", lambda n: {"structured_outputs": {"regex": "(" * n + "a" + ")" * n}}, limits.MAX_GRAMMAR_NESTING),
    ("max_tokens", "max_tokens", lambda n: {"max_tokens": n}, limits.MAX_OUTPUT_TOKENS),
    ("messages", "messages", lambda n: {"messages": [{"role": "user", "content": ""}] * n}, limits.MAX_MESSAGES),
    ("messages", "parts", lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * n}]}, limits.MAX_CONTENT_PARTS),
    ("messages", "name", lambda n: {"messages": [USER | {"name": "n" * n}]}, limits.MAX_NAME),
    ("structured_outputs", "choices", lambda n: {"structured_outputs": {"choice": ["x"] * n}}, limits.MAX_CHOICES),
    ("structured_outputs", "regex", lambda n: {"structured_outputs": {"regex": "a" * n}}, limits.MAX_GRAMMAR_BYTES),
    ("chat_template_kwargs", "kwargs", lambda n: {"chat_template_kwargs": {f"k{i}": 1 for i in range(n)}}, limits.MAX_TEMPLATE_KWARGS),
    ("response_format", "schema name", lambda n: {"response_format": {"type": "json_schema", "json_schema": {"name": "n" * n, "schema": {}}}}, limits.MAX_SCHEMA_NAME),
]  # fmt: skip


@pytest.mark.parametrize(("param", "label", "fields", "limit"), FIELDS, ids=[row[1] for row in FIELDS])
async def test_at_the_limit_and_beyond(
    make_gateway: Callable[..., Any], param: str, label: str, fields: Callable[[int], Any], limit: int
) -> None:
    import msgspec

    from tests.fakes import MODEL_INFO, ScriptedEngine

    engine = ScriptedEngine("x", model_info=msgspec.structs.replace(MODEL_INFO, context_length=10_000_000))
    async with make_gateway(engine) as gateway:
        for value, status in ((limit, 200), (limit + 1, 400)):
            body = {"messages": [USER], **fields(value)}
            response = await gateway.client.post("/v1/chat/completions", content=orjson.dumps(body))
            assert response.status_code == status, (label, value, response.text[:300])
        assert response.json()["error"]["param"].startswith(param)


NATIVE: list[tuple[str, str, str, Callable[[int], Any], int]] = [
    ("/v1/completions", "prompt", "prompts", lambda n: {"prompt": ["p"] * n, "max_tokens": 1}, limits.MAX_PROMPTS),
    ("/v1/completions", "prompt", "choices", lambda n: {"prompt": ["p"] * (n // (2 + n % 2)), "n": 2 + n % 2}, limits.MAX_COMPLETIONS),
    ("/generate", "text", "choices", lambda n: {"text": ["p"] * (n // (2 + n % 2)), "sampling_params": {"n": 2 + n % 2}}, limits.MAX_COMPLETIONS),
    ("/v1/completions", "logprobs", "logprobs", lambda n: {"prompt": "p", "logprobs": n}, limits.MAX_COMPLETION_LOGPROBS),
    ("/v1/completions", "best_of", "best_of", lambda n: {"prompt": "p", "best_of": n}, limits.MAX_BEST_OF),
    ("/generate", "rid", "rid", lambda n: {"text": "p", "rid": "r" * n}, limits.MAX_RID),
    ("/abort_request", "rid", "rid to abort", lambda n: {"rid": "r" * n}, limits.MAX_RID),
    ("/tokenize", "prompt", "prompt chars", lambda n: {"prompt": "p" * n}, limits.MAX_PROMPT_CHARS),
    ("/separate_reasoning", "text", "parsed text", lambda n: {"text": "p" * n}, limits.MAX_PARSED_CHARS),
]  # fmt: skip


@pytest.mark.parametrize(("path", "param", "label", "fields", "limit"), NATIVE, ids=[f"{r[0]}-{r[2]}" for r in NATIVE])
async def test_other_routes(
    gateway: Gateway, path: str, param: str, label: str, fields: Callable[[int], Any], limit: int
) -> None:
    for value, status in ((limit, 200), (limit + 1, 400)):
        response = await gateway.client.post(path, content=orjson.dumps(fields(value)))
        assert response.status_code == status, (label, response.text[:300])
    assert response.json()["error"]["param"].startswith(param)


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as info:
        parse_object(body)
    return info.value


def test_body_structure() -> None:
    half = limits.MAX_JSON_ELEMENTS - 3
    assert parse_object(b'{"a":[' + b"1," * half + b"1]}")
    assert refused(b'{"a":[' + b"1," * (half + 2) + b"1]}").status == 400
    pairs = limits.MAX_JSON_STRINGS // 2
    assert parse_object(b"{" + b",".join([b'"k":"v"'] * pairs) + b"}") == {"k": "v"}
    assert refused(b"{" + b",".join([b'"k":"v"'] * (pairs + 1)) + b"}").status == 400
    prose = b'{"a":"' + b'a, [b], {c}, \\\\ \\" ' * 60_000 + b'"}'
    assert parse_object(prose), "commas and brackets in strings are not counted"
    assert parse_object(b'{"a":' * limits.MAX_JSON_DEPTH + b"1" + b"}" * limits.MAX_JSON_DEPTH)
    deep = limits.MAX_JSON_DEPTH + 1
    assert refused(b'{"a":' * deep + b"1" + b"}" * deep).status == 400


async def test_body_bytes(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(max_body_bytes=1000) as gateway:
        body = orjson.dumps({"messages": [USER], "x": ""})
        for size, status in ((1000, 200), (1001, 413)):
            padded = body.replace(b'"x":""', b'"x":"' + b"p" * (size - len(body)) + b'"')
            assert len(padded) == size
            response = await gateway.client.post("/v1/chat/completions", content=padded)
            assert response.status_code == status

            async def chunked(data: bytes = padded) -> Any:
                yield data[:500]
                yield data[500:]

            response = await gateway.client.post("/v1/chat/completions", content=chunked())
            assert response.status_code == status


@pytest.mark.parametrize("count", [limits.MAX_HEADERS, limits.MAX_HEADERS + 1])
def test_header_count(count: int) -> None:
    scope = {"headers": [(b"host", b"x")] + [(b"a", b"b")] * (count - 1), "path": "/", "http_version": "1.1"}
    if count > limits.MAX_HEADERS:
        with pytest.raises(HeadersTooLarge):
            check_head(scope)
    else:
        check_head(scope)


def test_header_bytes() -> None:
    room = limits.MAX_HEADER_BYTES - len(b"hostx") - 1
    check_head({"headers": [(b"host", b"x"), (b"a", b"b" * room)], "path": "/", "http_version": "1.1"})
    with pytest.raises(HeadersTooLarge):
        check_head({"headers": [(b"host", b"x"), (b"a", b"b" * (room + 1))], "path": "/", "http_version": "1.1"})


async def test_limits_do_not_refuse_a_coding_agent(gateway: Gateway) -> None:
    """qwen-code: 76 kB of JSON, 15 tools, max_tokens 32000; the prompt is too long only for the test's context."""
    many = [
        {"type": "function", "function": {"name": f"t{i}", "description": "d" * 4000, "parameters": {"type": "object", "properties": {"p": {"type": "string", "description": "e" * 500}}}}}
        for i in range(15)
    ]  # fmt: skip
    response = await gateway.chat(USER, tools=many, max_tokens=32000)
    assert response.json()["error"]["code"] == "context_length_exceeded"
