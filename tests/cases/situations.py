"""Situations that cases describe in words: what is sent, what the model writes, and what must hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs

import engine.grammar
from engine.messages import GenerateReqInput
from engine.text.byte_tokenizer import ByteTokenizer
from tests.cases.compare import load_object, same_content
from tests.cases.gateway import COME_TO_AN_END, WRITE_CALL, Answer, Gateways
from tests.cases.grammars import example_call, follows, write_calls
from tests.cases.text_cases import Case, NotRun
from tests.fakes import Reply

USER = {"role": "user", "content": "hi"}
THOUGHT = 'I could write {"name": "x"} or call something.'
DOCUMENT = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "unit": {"enum": ["c", "f"]}},
    "required": ["done"],
    "additionalProperties": False,
}


@dataclass
class Seen:
    """What was asked and answered. requests: what reached the scripted model."""

    case: Case
    answers: Sequence[Answer]
    requests: Sequence[GenerateReqInput] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def is_situation(given: Mapping[str, Any]) -> bool:
    kwargs = given.get("chat_template_kwargs") or {}
    return bool({"situation", "model_output", "thinking", "text_chunks", "logprobs"} & given.keys()) or bool(
        kwargs.get("enable_thinking")
    )


def check_situation(case: Case, gateways: Gateways) -> list[str]:
    """What differs; empty when the case passes. Raises NotRun for a situation or words not known here."""
    given, expected = case["input"], case.get("expected") or {}
    told = next((key for key in ("logprobs", "model_output") if key in given), "thinking")
    words = given.get("situation") or told.replace("_", " ")
    set_up = next((found for pattern, found in SITUATIONS if re.search(pattern, words)), None)
    if set_up is None:
        raise NotRun(f"situation {words!r}")
    seen = set_up(case, gateways)
    problems = _check_expected(seen, expected)
    unknown = ""
    for words in expected.get("invariants") or []:
        judge = next((judge for pattern, judge in JUDGES if re.search(pattern, words)), None)
        if judge is None:
            unknown = unknown or words
        elif not judge(seen):
            problems.append(f"does not hold: {words}; {list(seen.answers)[:2]} {seen.facts}")
    if unknown and not problems:
        raise NotRun(f"invariant {unknown!r}")
    return problems


def _check_expected(seen: Seen, expected: Mapping[str, Any]) -> list[str]:
    problems = []
    status, reasons = expected.get("status"), expected.get("finish_reason")
    for answer in seen.answers:
        if status is not None and answer.status not in (status if isinstance(status, list) else [status]):
            problems.append(f"status {answer.status} instead of {status}: {answer.body}")
        if reasons and answer.finish not in (reasons if isinstance(reasons, list) else [reasons]):
            problems.append(f"finish_reason {answer.finish} instead of {reasons}")
        if "content" in expected and not same_content(answer.content, expected["content"], with_calls=True):
            problems.append(f"content {answer.content!r} instead of {expected['content']!r}")
    return problems


# ---------------------------------------------------------------------- situations


def _fields(case: Case) -> dict[str, Any]:
    """The request fields that the case gives, in a whole request."""
    given = {k: v for k, v in case["input"].items() if k not in ("situation", "model_output", "thinking")}
    tools = {"tools": case["tools"]} if case.get("tools") else {}
    return {"messages": [USER], **tools, **given}


def _answers(case: Case, gateways: Gateways, script: str, **fields: Any) -> Seen:
    """The scripted answer, whole, streamed, and streamed a character at a time."""
    form = case.get("format") or "hermes"
    form = ("qwen3" if "<think>" in script else "hermes") if form == "any" else form
    found, requests = [], []
    for chunk, stream in ((0, False), (0, True), (1, True)):
        gateway = gateways.scripted(Reply(script, chunk=chunk), form)
        found.append(gateway.ask({**_fields(case), **fields, "stream": stream}))
        requests += gateway.engine.requests if gateway.engine else []
        gateway.close()
    return Seen(case, found, requests)


def _model_output(case: Case, gateways: Gateways) -> Seen:
    choice = "required" if "required" in case["input"].get("situation", "") else None
    return _answers(case, gateways, case["input"]["model_output"], **({"tool_choice": choice} if choice else {}))


def _call_only(case: Case, gateways: Gateways) -> Seen:
    return _answers(case, gateways, write_calls([example_call(case)]))


def _thinking(case: Case, gateways: Gateways) -> Seen:
    script = f"<think>\n{THOUGHT}\n</think>\n\n{write_calls([example_call(case)])}"
    forced = _answers(case, gateways, script)
    free = _answers(case, gateways, script, tool_choice="auto")
    return Seen(case, forced.answers, forced.requests, {"script": script, "auto": free.answers[0]})


def _document_and_tools(case: Case, gateways: Gateways) -> Seen:
    """First the scripted conversation of two turns, then what a random model may answer to the same request."""
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": DOCUMENT, "strict": True}}
    document, call = '{"done": true}', example_call(case)
    first = _answers(case, gateways, write_calls([call]), response_format=shape)
    made = {"id": "call_1", "type": "function", "function": {**call, "arguments": json.dumps(call["arguments"])}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    ]
    last = _answers(case, gateways, document, messages=history, response_format=shape)
    body = {**_fields(case), "response_format": shape, "max_tokens": 1500, "logit_bias": COME_TO_AN_END}
    answers = [gateways.real("any").ask({**body, "seed": seed}) for seed in range(6)]
    facts = {"call": call, "document": document, "last": last, "random": answers}
    return Seen(case, first.answers, first.requests, facts)


def _logprobs(case: Case, gateways: Gateways) -> Seen:
    """A streamed call with logprobs, in the chunks that the case says or in single characters."""
    pieces = case["input"].get("text_chunks") or list(write_calls([example_call(case)]))
    fields = {key: value for key, value in case["input"].items() if key != "text_chunks"}
    gateway = gateways.scripted(Reply(chunks=pieces))
    body = {"messages": [USER], "tools": case["tools"], **fields, "stream_options": {"include_usage": True}}
    answer = gateway.ask(body)
    gateway.close()
    return Seen(case, [answer], facts={"tokens": len("".join(pieces).encode())})


def _turns(case: Case, gateways: Gateways) -> Seen:
    """The same call four times, each answer in the history of the next."""
    tools = [
        {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"c": {"type": "string"}}}}}
    ]
    gateway = gateways.scripted(write_calls([{"name": "bash", "arguments": {"c": "ls"}}]))
    messages: list[Any] = [USER]
    answers = []
    for _ in range(4):
        answer = gateway.ask({"messages": messages, "tools": case.get("tools") or tools})
        answers.append(answer)
        messages.append(dict(answer.message))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in answer.calls]
    gateway.close()
    return Seen(case, answers)


def _special_tokens(case: Case, gateways: Gateways) -> Seen:
    """hash-lm, made to write markers and other special tokens by their ids."""
    other = ByteTokenizer().special_tokens["<|im_start|>"]
    real = gateways.real("any")
    body = {**_fields(case), "max_tokens": 1500, "seed": 1}
    calls = real.ask({**body, "logit_bias": WRITE_CALL, "parallel_tool_calls": False})
    noise = real.ask({**body, "max_tokens": 20, "logit_bias": {str(other): 100}, "tool_choice": "none"})
    return Seen(case, [calls], facts={"noise": noise})


def _usage(case: Case, gateways: Gateways) -> Seen:
    real = gateways.real("any")
    body = {**_fields(case), "max_tokens": 1500, "seed": 1, "tool_choice": "required", "logit_bias": COME_TO_AN_END}
    without = real.ask({"messages": [USER], "max_tokens": 1})
    return Seen(case, [real.ask(body)], facts={"without": without.body["usage"]})


def _mistral_ids(case: Case, gateways: Gateways) -> Seen:
    return _answers(case, gateways, f"[TOOL_CALLS] [{json.dumps(example_call(case))}]")


def _many_tools(case: Case, gateways: Gateways) -> Seen:
    """As many tools as the words say, of as many bytes; asked twice."""
    found = re.search(r"(\d+) tools, (\d+) KB", case["input"]["situation"])
    count, size = (int(found.group(1)), int(found.group(2)) << 10) if found else (80, 120 << 10)
    parameters = {
        name: {"type": kind, "description": "x" * (size // count // 5 - 30)}
        for name, kind in (("a", "string"), ("b", "integer"), ("c", "string"), ("d", "boolean"), ("e", "number"))
    }
    tools = [
        {"type": "function", "function": {"name": f"tool_{i:02}", "parameters": {"type": "object", "properties": parameters}}}
        for i in range(count)
    ]  # fmt: skip
    real = gateways.real("any")
    body = {"messages": [USER], "tools": tools, "max_tokens": 1, "tool_choice": "auto"}
    answers = [real.ask(body) for _ in range(4)]
    forced = real.ask({**body, "tool_choice": "required", "max_tokens": 1500, "seed": 3, "logit_bias": COME_TO_AN_END})
    return Seen(case, answers, facts={"bytes": len(json.dumps(tools)), "forced": forced})


def _backends(case: Case, gateways: Gateways) -> Seen:
    """Every backend that is there (one file each) is the one that the server uses, or the case is not run."""
    backends = list(Path(engine.grammar.__file__ or "").parent.glob("*_backend.py"))
    if len(backends) != 1:
        raise NotRun("several grammar backends")
    named = {"type": "function", "function": {"name": case["tools"][0]["function"]["name"]}}
    real = gateways.real("any")
    body = {**_fields(case), "max_tokens": 1500, "seed": 1, "logit_bias": COME_TO_AN_END}
    answers = [real.ask({**body, "tool_choice": choice}) for choice in ("required", named)]
    answers.append(real.ask({**body, "tool_choice": "auto", "logit_bias": WRITE_CALL, "parallel_tool_calls": False}))
    return Seen(case, answers)


# ---------------------------------------------------------------------- what must hold


def _grammar_takes(seen: Seen, *texts: str) -> bool:
    spec = seen.requests[0].grammar
    return spec is not None and all(follows(spec, text) for text in texts)


def _starts_after_reasoning(seen: Seen) -> bool:
    """Reasoning may come first, text of other kinds may not, and a call may come at once too."""
    script = seen.facts["script"]
    thought = script.partition("</think>")[0] + "</think>\n\n"
    bare = script.removeprefix(thought)
    spec = seen.requests[0].grammar
    return _grammar_takes(seen, script, bare) and spec is not None and not follows(spec, thought + "Hello!")


def _no_empty_calls(seen: Seen) -> bool:
    return all(answer.finish != "tool_calls" or answer.calls for answer in seen.answers)


def _text_kept(seen: Seen) -> bool:
    wanted = seen.case["input"]["model_output"]
    return all(answer.status >= 400 or answer.content == wanted for answer in seen.answers)


def _call_or_document(seen: Seen) -> bool:
    call, last = seen.facts["call"], seen.facts["last"]
    first = all([c.name for c in a.calls] == [call["name"]] and a.finish == "tool_calls" for a in seen.answers)
    final = all(a.content == seen.facts["document"] and not a.calls and a.finish == "stop" for a in last.answers)
    allowed = _grammar_takes(seen, write_calls([call]), seen.facts["document"])
    return first and final and allowed and all(_is_either(seen, answer) for answer in seen.facts["random"])


def _is_either(seen: Seen, answer: Answer) -> bool:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in seen.case["tools"]}
    calls = all(jsonschema_rs.is_valid(schemas[call.name], call.parsed()) for call in answer.calls)
    if answer.finish == "length" or answer.calls:
        return calls and answer.status == 200
    return jsonschema_rs.is_valid(DOCUMENT, json.loads(answer.content or ""))


def _stream_parts(seen: Seen) -> bool:
    """Every chunk of every stream is of the form that clients parse."""
    streams = [answer for answer in seen.answers if answer.chunks]
    for chunk in [chunk for answer in streams for chunk in answer.chunks]:
        deltas = [choice["delta"].get("tool_calls", []) for choice in chunk["choices"]]
        if not chunk["id"] or not chunk["model"] or not all(isinstance(delta, list) for delta in deltas):
            return False
    return bool(streams) and all(c.id and c.type == "function" for a in streams for c in a.calls) and _called(seen)


def _called(seen: Seen) -> bool:
    return all(answer.calls for answer in seen.answers)


def _strings(seen: Seen) -> bool:
    calls = [call for answer in seen.answers for call in answer.calls]
    return bool(calls) and all(isinstance(c.arguments, str) and load_object(c.arguments) is not None for c in calls)


def _null_content(seen: Seen) -> bool:
    whole = [answer.message for answer in seen.answers if answer.message]
    return bool(whole) and all("content" in m and m["content"] is None for m in whole) and _called(seen)


def _distinct(seen: Seen) -> bool:
    ids = [call.id for answer in seen.answers for call in answer.calls]
    return len(ids) == len(seen.answers) == len(set(ids))


def _usage_counts(seen: Seen) -> bool:
    answer, without = seen.answers[0], seen.facts["without"]
    usage = answer.body["usage"]
    schemas = sum(len(json.dumps(tool)) for tool in seen.case["tools"])
    written = len("<tool_call>\n") + len(answer.calls[0].arguments) if answer.calls else 1 << 30
    return bool(
        usage["prompt_tokens"] - without["prompt_tokens"] > schemas // 2
        and usage["completion_tokens"] > written - len("<tool_call>")
        and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    )


def _all_logprobs(seen: Seen) -> bool:
    """One for every token but the one that ends the answer."""
    choices = [choice for answer in seen.answers for chunk in answer.chunks for choice in chunk["choices"]]
    entries = sum(len((choice.get("logprobs") or {}).get("content") or ()) for choice in choices)
    usage = seen.answers[0].chunks[-1]["usage"]
    return entries == seen.facts["tokens"] == usage["completion_tokens"] - 1 and _called(seen)


def _noise_free(seen: Seen) -> bool:
    noise = seen.facts["noise"]
    return noise.status == 200 and "<|im_start|>" not in (noise.content or "") and noise.finish == "length"


def _reasoning_whole(seen: Seen) -> bool:
    return all("restated" in answer.reasoning or "<think>" not in seen.case["input"]["model_output"] for answer in seen.answers)  # fmt: skip


def _thinks_as_free(seen: Seen) -> bool:
    return all(answer.reasoning.strip() == seen.facts["auto"].reasoning.strip() == THOUGHT for answer in seen.answers)


def _cached_or_quick(seen: Seen) -> bool:
    return min(answer.seconds for answer in seen.answers) < 1.0 and all(a.status == 200 for a in seen.answers)


def _no_ceiling(seen: Seen) -> bool:
    return seen.facts["bytes"] > 100_000 and seen.facts["forced"].status == 200 and bool(seen.facts["forced"].calls)


def _works_or_says(seen: Seen) -> bool:
    return all(bool(a.calls) if a.status == 200 else a.status == 400 and "message" in a.error for a in seen.answers)


Judge = Callable[[Seen], bool]
SITUATIONS: tuple[tuple[str, Callable[[Case, Gateways], Seen]], ...] = (
    (r"output type|output_type|response_format.* tools", _document_and_tools),
    (r"sequential turns", _turns),
    (r"markers are special tokens", _special_tokens),
    (r"^non-streaming call turn", _usage),
    (r"Mistral", _mistral_ids),
    (r"\d+ tools, \d+ KB", _many_tools),
    (r"grammar backend", _backends),
    (r"^logprobs$", _logprobs),
    (r"no parsable call|^model output$", _model_output),
    (r"^thinking$", _thinking),
    (r"response with a call|calls and no text", _call_only),
)
JUDGES: tuple[tuple[str, Judge], ...] = (
    (r"not tool_calls with an empty list", _no_empty_calls),
    (r"content keeps the text|or a 500/422", _text_kept),
    (r"reasoning_content non-empty is allowed", lambda seen: all(a.reasoning for a in seen.answers)),
    (r"^call returned", _called),
    (r"grammar (starts|begins) after|may think first", _starts_after_reasoning),
    (r"reasoning_content populated", _thinks_as_free),
    (r"turn 1 may call", _call_or_document),
    (r"arguments is a JSON string", _strings),
    (r"delta.tool_calls is an array|id non-empty|type is function|response id and model", _stream_parts),
    (r"content is null", _null_content),
    (r"not the string None", lambda seen: all(a.content != "None" for a in seen.answers)),
    (r"distinct tool call ids", _distinct),
    (r"reasoning not cut", _reasoning_whole),
    (r"markers still reach the parser", _called),
    (r"other special tokens are not in content", _noise_free),
    (r"includes rendered tool schemas|includes markup|total = sum", _usage_counts),
    (
        r"\^\[A-Za-z0-9\]\{9\}\$",
        lambda s: all(re.fullmatch("[A-Za-z0-9]{9}", c.id) for a in s.answers for c in a.calls),
    ),
    (r"no size ceiling", _no_ceiling),
    (r"^not rejected", lambda seen: all(answer.status == 200 for answer in seen.answers)),
    (r"do not lose the logprobs|number of logprob entries", _all_logprobs),
    (r"TTFT overhead", _cached_or_quick),
    (r"works or returns 400", _works_or_says),
)
"""Pattern of the words -> judge; the first match counts."""
