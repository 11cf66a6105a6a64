"""What the planner constrains: the grammar that a request gets is followed token by token, reasoning and all."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from engine.messages import GrammarSpec
from server.app import build_app
from server.args import ServerArgs
from server.planner import reasoning_state
from tests.cases.grammars import follows, write_calls
from tests.fakes import ScriptedEngine
from toolcall.format import ReasoningFormat
from toolcall.reasoning import REASONING_FORMATS, is_open

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("f", "g")]
DOCUMENT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SHAPE = {"type": "json_schema", "json_schema": {"name": "d", "schema": DOCUMENT}}
CALL_F, CALL_G = (write_calls([{"name": name, "arguments": {"city": "Oslo"}}]) for name in ("f", "g"))
THOUGHT = "Hm, {maybe} no."
OPEN = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n<think>\n{# </think> #}"
MODES = ("optional", "open", "closed")
Plan = Callable[..., Awaitable[GrammarSpec | None]]


@pytest.mark.parametrize("fmt", [fmt for fmt in REASONING_FORMATS if fmt.openers], ids=lambda fmt: fmt.name)
def test_grammar_and_parser_agree_on_whether_the_prompt_ends_inside_reasoning(fmt: ReasoningFormat) -> None:
    for opener, closer in zip(fmt.openers, fmt.closers, strict=True):
        for count in range(5):
            for pieces in itertools.product((opener, closer, "\nso\n", "<|im_start|>assistant\n"), repeat=count):
                suffix = "".join(pieces)
                assert (reasoning_state(fmt, suffix) == "open") is is_open(fmt, suffix), suffix


@pytest.fixture
async def plan() -> AsyncIterator[Plan]:
    """The grammar that the engine gets. ``mode``: where the prompt leaves the model with its reasoning."""
    apps = []

    async def ask(mode: str = "optional", **fields: Any) -> GrammarSpec | None:
        engine = ScriptedEngine("ok")
        if mode == "open":
            engine.tokenizer.chat_template = OPEN
        app = build_app(engine, ServerArgs(tool_call_parser="hermes"))
        apps.append(app)
        kwargs = {"chat_template_kwargs": {"enable_thinking": False}} if mode == "closed" else {}
        body = {"messages": [{"role": "user", "content": "hi"}], **kwargs, **fields}
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.post("/v1/chat/completions", content=json.dumps(body))
        assert response.status_code == 200, response.text
        return engine.requests[-1].grammar

    yield ask
    for app in apps:
        await app.state.services.planner.close()


def allows(spec: GrammarSpec | None, text: str) -> bool:
    return spec is None or follows(spec, text)


def check(spec: GrammarSpec | None, mode: str, good: str, bad: str) -> None:
    """``good`` and not ``bad``, and reasoning in front of it exactly where the prompt leaves room for it."""
    thought = THOUGHT + "</think>\n\n" if mode == "open" else f"<think>\n{THOUGHT}\n</think>\n\n"
    assert allows(spec, thought + good) == (mode != "closed")
    assert not allows(spec, thought + bad)
    if mode != "open":
        assert allows(spec, good)
        assert not allows(spec, bad)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("outputs", "good", "bad"),
    [
        ({"regex": "[ab]{2}c?"}, "abc", "abd"),
        ({"choice": ["yes", "no"]}, "no", "maybe"),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, "((x))", "((x)"),
        ({"json": DOCUMENT}, '{"n": 4}', '{"n": "4"}'),
        ({"json_object": True}, '{"k": [1]}', "[1]"),
    ],
)
async def test_structured_outputs_begin_after_reasoning(
    plan: Plan, mode: str, outputs: Any, good: str, bad: str
) -> None:
    check(await plan(mode, structured_outputs=outputs), mode, good, bad)


@pytest.mark.parametrize("mode", MODES)
async def test_response_format_begins_after_reasoning(plan: Plan, mode: str) -> None:
    check(await plan(mode, response_format=SHAPE), mode, '{"n": 4}', '{"n": true}')


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_a_schema_beside_the_type_is_enforced(plan: Plan, kind: str) -> None:
    """As llama.cpp and others spell it: a schema that is sent is never ignored."""
    check(await plan("closed", response_format={"type": kind, "schema": DOCUMENT}), "closed", '{"n": 4}', "{}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_forced_calls_begin_after_reasoning(plan: Plan, mode: str, choice: Any) -> None:
    check(await plan(mode, tools=TOOLS, tool_choice=choice), mode, CALL_F, "No.")


@pytest.mark.parametrize("mode", ["optional", "closed"])
async def test_a_call_or_a_document(plan: Plan, mode: str) -> None:
    spec = await plan(mode, tools=TOOLS, response_format=SHAPE)
    for good in (CALL_F, CALL_G, f"{CALL_F}\n{CALL_G}", '{"n": 4}'):
        check(spec, mode, good, '{"n": "4"}')
    assert not allows(spec, f'{CALL_F}\n{{"n": 4}}')


async def test_a_document_where_calls_are_off_and_a_call_where_they_are_forced(plan: Plan) -> None:
    off = await plan(tools=TOOLS, tool_choice="none", response_format=SHAPE)
    assert (allows(off, '{"n": 4}'), allows(off, CALL_F)) == (True, False)
    forced = await plan(tools=TOOLS, tool_choice="required", response_format=SHAPE)
    assert (allows(forced, '{"n": 4}'), allows(forced, CALL_F)) == (False, True)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"response_format": SHAPE}])
async def test_parallel_tool_calls(plan: Plan, parallel: bool, fields: Any) -> None:
    spec = await plan(tools=TOOLS, parallel_tool_calls=parallel, **fields)
    assert allows(spec, CALL_F)
    assert allows(spec, f"{CALL_F}\n{CALL_G}") == parallel
    assert allows(spec, f"{CALL_F}\n{CALL_F}\n{CALL_F}") == parallel


@pytest.mark.parametrize("name", ["f", "g"])
async def test_a_named_tool_and_no_other(plan: Plan, name: str) -> None:
    spec = await plan(tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
    assert (allows(spec, CALL_F), allows(spec, CALL_G)) == (name == "f", name == "g")


@pytest.mark.parametrize("mode", ["required", "auto"])
async def test_allowed_tools(plan: Plan, mode: str) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    spec = await plan(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (allows(spec, CALL_F), allows(spec, CALL_G)) == (False, True)
    assert allows(spec, "No call.") == (mode == "auto")


async def test_auto_is_free_until_a_call_opens(plan: Plan) -> None:
    spec = await plan(tools=TOOLS)
    for good in ("Text.", f"First:\n{CALL_F}", f"{CALL_F} and {CALL_G} so", f"<think>{CALL_F[:12]}"):
        assert allows(spec, good) == ("<think>" not in good)
    for bad in (write_calls([{"name": "h", "arguments": {}}]), write_calls([{"name": "f", "arguments": {"city": 5}}])):
        assert not allows(spec, bad)
        assert not allows(spec, "Text. " + bad)
