"""Cases of kind template: a conversation in, a prompt out, and what must hold for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import toolcall
from chat_templates.registry import get_template
from chat_templates.render import TemplateError, render
from tests.cases.compare import same_json
from tests.cases.text_cases import NotRun

Case = Mapping[str, Any]


@dataclass
class Rendered:
    """status as the API would answer it; prompt is "" where it is not 200."""

    case: Case
    messages: list[dict[str, Any]]
    status: int = 200
    prompt: str = ""
    error: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def check(case: Case) -> list[str]:
    """What differs; empty when the case passes. Raises NotRun for what cannot be judged here."""
    expected = case.get("expected") or {}
    rendered = run(case)
    problems: list[str] = []
    status = expected.get("status")
    if status is not None and rendered.status not in (status if isinstance(status, list) else [status]):
        problems.append(f"status {rendered.status} instead of {status}: {rendered.error}")
    for words in expected.get("invariants") or []:
        judge = next((j for pattern, j in JUDGES if re.search(pattern, words)), None)
        if judge is None:
            raise NotRun(f"invariant {words!r}")
        if not judge(rendered, words):
            problems.append(f"does not hold: {words}; {rendered.error or rendered.prompt[-500:]!r}")
    return problems


def run(case: Case) -> Rendered:
    given = case.get("input")
    body = given if isinstance(given, dict) else described(str(given))
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise NotRun("input is no conversation")
    try:
        template = get_template(case.get("format") or "any")
    except KeyError as error:
        raise NotRun(f"template {case.get('format')}") from error
    tools = None if body.get("tool_choice") == "none" else case.get("tools") or body.get("tools")
    rendered = Rendered(case, messages)
    try:
        rendered.prompt = render(template, messages, tools).plain
    except TemplateError as error:
        rendered.status, rendered.error = 400, str(error)
    return rendered


def described(text: str) -> dict[str, Any]:
    """The conversation that some cases only describe."""
    if text == "two calls a,b; results sent b then a":
        calls = [call(i, "read_item", {"item": i}) for i in ("a", "b")]
        results = [{"role": "tool", "tool_call_id": i, "content": f"value of {i}"} for i in ("b", "a")]
        return {"messages": [user("go"), {"role": "assistant", "content": None, "tool_calls": calls}, *results]}
    if text == "assistant turn with reasoning + call, tool result, next request":
        turn = {
            "role": "assistant",
            "content": None,
            "reasoning_content": "loop reasoning",
            "tool_calls": [call("c1", "get_weather", {"city": "Lima"})],
        }
        earlier = {"role": "assistant", "content": "hello", "reasoning_content": "earlier reasoning"}
        result = {"role": "tool", "tool_call_id": "c1", "content": "18 C"}
        return {"messages": [user("hi"), earlier, user("weather?"), turn, result]}
    return {}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


# ---------------------------------------------------------------------- invariants in words

Judge = Callable[[Rendered, str], bool]


def _always(rendered: Rendered, words: str) -> bool:
    """Another exception than TemplateError would have failed the case already."""
    return True


def _contains(rendered: Rendered, words: str) -> bool:
    found = re.search(r"prompt contains (.+?)(?:, not (.+))?$", words)
    assert found is not None
    return found.group(1) in rendered.prompt and (found.group(2) is None or found.group(2) not in rendered.prompt)


def _text_and_call_once(rendered: Rendered, words: str) -> bool:
    for message in rendered.messages:
        if message.get("tool_calls") and message.get("content"):
            arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
            value = str(next(iter(arguments.values())))
            return rendered.prompt.count(message["content"]) == 1 and rendered.prompt.count(value) == 1
    return False


def _plain_turn(rendered: Rendered, words: str) -> bool:
    plain = [{k: v for k, v in m.items() if k != "tool_calls"} for m in rendered.messages]
    template = get_template(rendered.case.get("format") or "any")
    return rendered.prompt == render(template, plain, rendered.case.get("tools")).plain


def _tool_text(rendered: Rendered, words: str) -> bool:
    return all(m["content"] in rendered.prompt for m in rendered.messages if m["role"] == "tool")


def _json_text(rendered: Rendered, words: str) -> bool:
    return rendered.status != 200 or re.search(r'"temp"\s*:\s*18', rendered.prompt) is not None


def _same_arguments(rendered: Rendered, words: str) -> bool:
    wanted = [c["function"] for m in rendered.messages for c in m.get("tool_calls") or []]
    name = rendered.case.get("format") or "any"
    turn = rendered.prompt[rendered.prompt.rindex("assistant", 0, rendered.prompt.rindex(wanted[0]["name"])) :]
    answer = toolcall.parse(turn.removeprefix("assistant"), rendered.case["tools"], name, rescue=False)
    return bool(wanted) and all(
        got.name == want["name"] and same_json(json.loads(got.arguments), json.loads(want["arguments"]))
        for got, want in zip(answer.tool_calls[: len(wanted)], wanted, strict=True)
    )


def _in_order(rendered: Rendered, words: str) -> bool:
    found = re.search(r": (.+) before (.+)$", words)
    first, second = (found.group(1), found.group(2)) if found else ("value of a", "value of b")
    return 0 <= rendered.prompt.find(first) < rendered.prompt.find(second)


def _explains_order(rendered: Rendered, words: str) -> bool:
    return rendered.status == 200 or ("tool" in rendered.error and "call" in rendered.error)


def _has_instruction(rendered: Rendered, words: str) -> bool:
    return all(m["content"] in rendered.prompt for m in rendered.messages if m["role"] == "developer")


def _nine_alphanumerics(rendered: Rendered, words: str) -> bool:
    own = [c["id"] for m in rendered.messages for c in m.get("tool_calls") or []]
    ids = re.findall(r'"(?:id|call_id)"\s*:\s*"([^"]*)"', rendered.prompt)
    return (
        bool(ids) and all(re.fullmatch("[A-Za-z0-9]{9}", i) for i in ids) and not any(i in rendered.prompt for i in own)
    )


def _rendered_id(rendered: Rendered, words: str) -> bool:
    return words.removeprefix("rendered id is ") in rendered.prompt


def _loop_reasoning(rendered: Rendered, words: str) -> bool:
    return "loop reasoning" in rendered.prompt and "earlier reasoning" not in rendered.prompt


def _no_schemas(rendered: Rendered, words: str) -> bool:
    return not any(t["function"]["name"] in rendered.prompt for t in rendered.case.get("tools") or [])


JUDGES: tuple[tuple[str, Judge], ...] = (
    (r"^(not 500|no exception|no has-no-attribute)", _always),
    (r"^no tool calls in the reply", _always),
    (r"text None", lambda r, w: "None" not in r.prompt),
    (r"both the text and the call", _text_and_call_once),
    (r"plain assistant turn", _plain_turn),
    (r"^prompt contains", _contains),
    (r"no Python list repr", lambda r, w: "[{'" not in r.prompt),
    (r"not wrapped into a list", _tool_text),
    (r"JSON text is in the prompt", _json_text),
    (r"^rendered as \{\}", lambda r, w: "{}" in r.prompt),
    (r"render then parse", _same_arguments),
    (r"rendered in call order|rendered first", _in_order),
    (r"tool must follow", _explains_order),
    (r"instruction is in the prompt", _has_instruction),
    (r"9 alphanumerics", _nine_alphanumerics),
    (r"^rendered id is", _rendered_id),
    (r"reasoning of the current tool loop", _loop_reasoning),
    (r"schemas absent", _no_schemas),
    (r"template message quoted", lambda r, w: r.status == 200 or bool(r.error)),
)
"""Pattern of the words -> judge; the first match counts."""
