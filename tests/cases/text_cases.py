"""Cases of kind parse and stream: raw model text in, events out, the same for every chunking."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import toolcall
from tests.cases.chunking import chunkings
from tests.cases.compare import load_object, same_content, same_json
from toolcall.schema import ToolSet

Case = Mapping[str, Any]


class NotRun(Exception):
    """The case needs something that is not there; the message names it."""


def input_text(case: Case) -> str:
    value = case.get("input")
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        return "".join(str(text) * int(times) for text, times in value["parts"])
    raise NotRun("input is no text")


def make_parser(case: Case, tools: ToolSet | None = None) -> toolcall.OutputParser:
    """tools: the case's, where they were read before."""
    name = case.get("format") or "any"
    try:
        fmt = toolcall.get_format("hermes" if name == "any" else name)
        reasoning_name = case.get("reasoning_parser") or (
            fmt.reasoning if "reasoning_content" in _expected(case) else None
        )
        reasoning = toolcall.get_reasoning(reasoning_name) if reasoning_name else None
    except ValueError as error:
        raise NotRun(f"format {name}") from error
    request = case.get("request") or {}
    return toolcall.OutputParser(
        fmt,
        case.get("tools") or [] if tools is None else tools,
        reasoning=reasoning,
        prompt_suffix=case.get("prompt_suffix") or "",
        tool_choice=request.get("tool_choice", "auto"),
        parallel_tool_calls=request.get("parallel_tool_calls", True) is not False,
    )


def _expected(case: Case) -> Mapping[str, Any]:
    value = case.get("expected")
    return value if isinstance(value, dict) else {}


def run(case: Case, pieces: Sequence[str], tools: ToolSet | None = None) -> list[toolcall.Event]:
    parser = make_parser(case, tools)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.finish(case.get("engine_finish") or "stop")]


def check(case: Case) -> list[str]:
    """What differs, over all chunkings; empty when the case passes. Raises NotRun."""
    if isinstance(case.get("input"), dict) and "choice0" in case["input"]:
        return check_interleaved(case)
    words = " ; ".join(map(str, _expected(case).get("invariants") or []))
    if case.get("format") == "any" and "each run gives the same" in words:
        raise NotRun("a rule that every text case here is run by")
    if "SSE comment" in words:
        raise NotRun("needs a server")
    text = input_text(case)
    problems: list[str] = []
    first: toolcall.ParsedOutput | None = None
    tools = ToolSet(case.get("tools") or [])
    for name, pieces in chunkings(text, case.get("chunks")):
        events = run(case, pieces, tools)
        answer = toolcall.fold(events, case.get("engine_finish") or "stop")
        found = check_events(events, case, text)
        if first is None:
            first = answer
            found += check_answer(answer, _expected(case))
        elif not found and differs(first, answer):
            found = [f"differs from the whole text: {answer} instead of {first}"]
        problems += [f"[{name}] {p}" for p in found]
        if len(problems) > 3:
            break
    return problems + check_invariants(case, text)


def differs(a: toolcall.ParsedOutput, b: toolcall.ParsedOutput) -> bool:
    return (a.content, a.reasoning, a.finish_reason) != (b.content, b.reasoning, b.finish_reason) or [
        (c.name, c.arguments, c.rescued) for c in a.tool_calls
    ] != [(c.name, c.arguments, c.rescued) for c in b.tool_calls]


def check_answer(answer: toolcall.ParsedOutput, expected: Mapping[str, Any]) -> list[str]:
    problems = []
    calls = expected.get("tool_calls") or []
    got = [(c.name, load_object(c.arguments)) for c in answer.tool_calls]
    want = [(c.get("name"), c.get("arguments")) for c in calls]
    if len(got) != len(want) or not all(a == b and same_json(x, y) for (a, x), (b, y) in zip(got, want)):
        shown = [(c.name, c.arguments) for c in answer.tool_calls]
        problems.append(f"tool_calls {shown} instead of {want}")
    if "content" in expected and not same_content(answer.content, expected["content"], with_calls=bool(calls)):
        problems.append(f"content {answer.content!r} instead of {expected['content']!r}")
    if "reasoning_content" in expected and not same_content(
        answer.reasoning, expected["reasoning_content"], with_calls=True
    ):
        problems.append(f"reasoning {answer.reasoning!r} instead of {expected['reasoning_content']!r}")
    reasons = expected.get("finish_reason")
    if reasons and answer.finish_reason not in (reasons if isinstance(reasons, list) else [reasons]):
        problems.append(f"finish_reason {answer.finish_reason} instead of {reasons}")
    return problems


def check_events(events: Sequence[toolcall.Event], case: Case, text: str) -> list[str]:
    """What holds for every stream: order, indexes, ids, whole arguments, no empty and no half deltas."""
    problems: list[str] = []
    starts: list[toolcall.ToolCallStart] = []
    arguments: dict[int, str] = {}
    ended: list[int] = []
    for event in events:
        match event:
            case toolcall.ToolCallStart():
                starts.append(event)
                arguments[event.index] = ""
            case toolcall.ToolCallArguments(index, fragment):
                arguments[index] += fragment
                if not fragment or index in ended:
                    problems.append(f"empty or late arguments of call {index}")
            case toolcall.ToolCallEnd(index):
                ended.append(index)
            case toolcall.TextDelta(piece) | toolcall.ReasoningDelta(piece):
                if not piece:
                    problems.append("empty delta")
    if [s.index for s in starts] != list(range(len(starts))):
        problems.append(f"indexes {[s.index for s in starts]}")
    if len({s.id for s in starts}) != len(starts) or not all(s.id and s.name for s in starts):
        problems.append(f"ids or names {[(s.id, s.name) for s in starts]}")
    problems += [f"call {i} is no JSON object: {arguments[i]}" for i in ended if load_object(arguments[i]) is None]
    problems += [f"call {i} cannot be sent" for i in ended if re.search("[\ud800-\udfff]", arguments[i])]
    if case.get("engine_finish") == "length":
        problems += [
            f"cut arguments {a!r} are no prefix of what the model wrote"
            for i, a in arguments.items()
            if i not in ended and a not in text
        ]
    if ended and any(isinstance(e, toolcall.TextDelta) and not e.text.strip() for e in events):
        problems.append("white space sent as content around calls")
    return problems


def check_invariants(case: Case, text: str) -> list[str]:
    """The invariants in words that can be checked on events alone."""
    problems = []
    words = " ; ".join(map(str, _expected(case).get("invariants") or []))
    if "more than one arguments delta" in words:
        count = sum(isinstance(e, toolcall.ToolCallArguments) for e in run(case, list(text)))
        if count < 2:
            problems.append(f"{count} arguments deltas")
    if "first content delta is sent before the call is complete" in words:
        kinds = [type(e) for e in run(case, list(text))]
        if toolcall.TextDelta not in kinds or kinds.index(toolcall.TextDelta) > kinds.index(toolcall.ToolCallEnd):
            problems.append("content came after the call")
    if "no U+FFFD" in words and "\ufffd" in json.dumps([str(e) for e in run(case, [text])], ensure_ascii=False):
        problems.append("U+FFFD in a delta")
    if (limit := re.search(r"< ?(\d+) ms", words)) is not None:
        took = min(_milliseconds(case, text) for _ in range(3))
        if took > int(limit.group(1)):
            problems.append(f"took {took:.0f} ms of CPU")
    return problems


def _milliseconds(case: Case, text: str) -> float:
    start = time.process_time()
    run(case, [text])
    return (time.process_time() - start) * 1000


def check_interleaved(case: Case) -> list[str]:
    """Several choices of one request whose pieces alternate: each has a parser of its own."""
    texts = [case["input"][f"choice{i}"] for i in range(int(case["input"].get("n", 2)))]
    parsers = [make_parser(case) for _ in texts]
    events: list[list[toolcall.Event]] = [[] for _ in texts]
    for at in range(max(map(len, texts))):
        for own, parser, text in zip(events, parsers, texts):
            own += parser.feed(text[at : at + 1])
    problems = []
    for i, (own, parser, expected) in enumerate(zip(events, parsers, _expected(case)["choices"])):
        own += parser.finish("stop")
        problems += [f"choice {i}: {p}" for p in check_answer(toolcall.fold(own), expected)]
    return problems
