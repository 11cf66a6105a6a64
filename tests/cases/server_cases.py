"""Cases of kind request, grammar and api: a request in, and what must hold for the answer of a server.

Requests go to a model that obeys grammars and is random otherwise: several times, streamed and whole. What a case
only describes (``situation``, ``model_output``) is in tests/cases/situations.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from tests.cases.compare import same_json
from tests.cases.gateway import COME_TO_AN_END, WRITE_CALL, Answer, Gateways
from tests.cases.grammars import same_language, write_calls
from tests.cases.situations import check_situation, is_situation
from tests.cases.text_cases import Case, NotRun

FREE_TOKENS, CONSTRAINED_TOKENS, SEEDS = 48, 1500, 3
NO_PARAMETERS = {"type": "object", "maxProperties": 0}


@dataclass
class Asked:
    """A case's request, what was answered, and the gateways to ask more of."""

    case: Case
    body: Mapping[str, Any]
    answers: Sequence[Answer]
    gateways: Gateways

    def again(self, **changes: Any) -> Answer:
        ending = {"logit_bias": COME_TO_AN_END} if self.gateways.own else {}
        body = {**ending, **self.body, **changes}
        return self.gateways.real(self.format).ask({k: v for k, v in body.items() if v is not None})

    @property
    def format(self) -> str:
        return str(self.case.get("format") or "any")

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status == 200]

    @property
    def schemas(self) -> dict[str, Any]:
        return {
            tool["function"]["name"]: tool["function"].get("parameters") or NO_PARAMETERS
            for tool in self.body.get("tools") or ()
            if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
        }


def check(case: Case, gateways: Gateways) -> list[str]:
    """What differs; empty when the case passes. Raises NotRun for what cannot be judged."""
    given = case.get("input")
    if not isinstance(given, dict):
        raise NotRun("input is no request")
    expected: Mapping[str, Any] = case.get("expected") or {}
    if is_situation(given):
        if not gateways.own:
            raise NotRun("needs a scripted model")
        return check_situation(case, gateways)
    asked = ask(case, given, gateways)
    problems = [*_check_expected(asked, expected), *_check_always(asked)]
    unknown = ""
    for words in expected.get("invariants") or []:
        judge = next((judge for pattern, judge in JUDGES if re.search(pattern, words)), None)
        if judge is None:
            unknown = unknown or words
        elif not judge(asked, words):
            problems.append(f"does not hold: {words}; {[(a.status, a.body, a.calls) for a in asked.answers][:2]}")
    if unknown and not problems:
        raise NotRun(f"invariant {unknown!r}")
    return problems


def ask(case: Case, given: Mapping[str, Any], gateways: Gateways) -> Asked:
    body = {"messages": [{"role": "user", "content": "hi"}], **given}
    if case.get("tools") and "tools" not in body and "messages" not in given:
        body["tools"] = case["tools"]
    try:
        gateway = gateways.real(str(case.get("format") or "any"))
    except ValueError as error:
        raise NotRun(f"format {case.get('format')}") from error
    return Asked(case, body, [gateway.ask(variant) for variant in _variants(body, gateways.own)], gateways)


def _variants(body: Mapping[str, Any], own: bool) -> Iterator[dict[str, Any]]:
    """The request whole and streamed, with a few seeds, and with a model that is bent on calling."""
    forced = body.get("tool_choice") not in (None, "auto", "none") or "response_format" in body
    limits: dict[str, Any] = {"max_tokens": CONSTRAINED_TOKENS if forced else FREE_TOKENS}
    if forced and own:
        limits["logit_bias"] = COME_TO_AN_END
    for seed in range(SEEDS):
        yield {**limits, "seed": seed, "temperature": 1.0, **body}
    yield {**limits, "seed": 0, "temperature": 1.0, **body, "stream": True}
    if body.get("tools") and not forced and own:
        yield {"max_tokens": CONSTRAINED_TOKENS, "seed": 1, "logit_bias": WRITE_CALL, **body}


def _check_expected(asked: Asked, expected: Mapping[str, Any]) -> list[str]:
    problems = []
    status = expected.get("status")
    allowed = status if isinstance(status, list) else [status]
    for answer in asked.answers:
        if status is not None and answer.status not in allowed:
            problems.append(f"status {answer.status} instead of {status}: {answer.body}")
        wanted = expected.get("error") or {} if answer.status >= 400 else {}
        problems += [
            f"error.{k} {answer.error.get(k)!r}, not {v!r}" for k, v in wanted.items() if answer.error.get(k) != v
        ]
    reasons = expected.get("finish_reason")
    if reasons:
        reasons = reasons if isinstance(reasons, list) else [reasons]
        found = [answer.finish for answer in asked.whole]
        if not set(found) <= {*reasons, "length"} or not set(found) & set(reasons):
            problems.append(f"finish_reason {found} instead of {reasons}")
    if expected.get("tool_calls"):
        problems += _check_calls(asked, expected["tool_calls"])
    return problems


def _check_calls(asked: Asked, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """A random model makes the calls by name; one that writes exactly these is understood to the letter."""
    problems = []
    names = {call["name"] for call in wanted}
    if not all({call.name for call in a.calls} == names for a in asked.whole if a.finish != "length"):
        problems.append(f"calls of {[[call.name for call in answer.calls] for answer in asked.whole]}")
    for call in wanted:
        if not call["arguments"] and any(c.parsed() != {} for a in asked.whole for c in a.calls):
            problems.append("arguments where there can be none")
    if asked.gateways.own:
        gateway = asked.gateways.scripted(write_calls(wanted))
        for stream in (False, True):
            found = gateway.ask({**asked.body, "stream": stream}).calls
            if len(found) != len(wanted) or not all(
                f.name == w["name"] and same_json(f.parsed(), w["arguments"]) for f, w in zip(found, wanted)
            ):
                problems.append(f"calls {found} instead of {wanted}")
        gateway.close()
    return problems


def _check_always(asked: Asked) -> list[str]:
    """What holds for every answer of every request with tools."""
    problems = []
    for answer in asked.whole:
        ids = [call.id for call in answer.calls]
        if len(set(ids)) != len(ids) or not all(ids):
            problems.append(f"ids {ids}")
        if not asked.schemas.keys() >= {call.name for call in answer.calls}:
            problems.append(f"undeclared tools: {[call.name for call in answer.calls]}")
        if answer.finish == "tool_calls" and not answer.calls:
            problems.append("finish_reason tool_calls without calls")
        if answer.finish not in ("stop", "length", "tool_calls", "function_call"):
            problems.append(f"finish_reason {answer.finish}: {answer.body}")
    return problems


# ---------------------------------------------------------------------- invariants in words


def complete_calls(answer: Answer) -> list[tuple[str, Any]]:
    """Calls that the answer says are whole."""
    calls = [(call.name, call.parsed()) for call in answer.calls]
    return calls[:-1] if answer.finish == "length" and answer.chunks else calls


def _valid(asked: Asked, words: str) -> bool:
    """Every whole call validates against the schema as the client wrote it."""
    found = [(name, value) for answer in asked.whole for name, value in complete_calls(answer)]
    return all(jsonschema_rs.is_valid(asked.schemas[name], value) for name, value in found)


def _valid_and_made(asked: Asked, words: str) -> bool:
    return any(complete_calls(answer) for answer in asked.whole) and _valid(asked, words)


def _enforced_or_said(asked: Asked, words: str) -> bool:
    """Enforced, refused with a place, or reported as relaxed."""
    refusals = [answer for answer in asked.answers if answer.status == 400]
    if refusals:
        return all(answer.error.get("param") for answer in refusals)
    return _valid_and_made(asked, words) or all(answer.relaxed for answer in asked.whole)


def _alive(asked: Asked, words: str) -> bool:
    """The server answers an ordinary request as before."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return asked.gateways.real(asked.format).ask(body).status == 200


def _names_pattern(asked: Asked, words: str) -> bool:
    patterns = re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(asked.body))
    return all("pattern" in a.error.get("param", "") or patterns[0] in a.error["message"] for a in asked.answers)


def _as_if_omitted(asked: Asked, words: str) -> bool:
    """Nulls in tools make no difference to a greedy answer."""
    tools = [
        {**tool, "function": {k: v for k, v in tool["function"].items() if v is not None}}
        for tool in asked.body["tools"]
    ]
    first, second = (
        asked.again(tools=t, temperature=0, logit_bias=None, max_tokens=FREE_TOKENS)
        for t in (asked.body["tools"], tools)
    )
    return (first.status, first.content, first.calls) == (second.status, second.content, second.calls)


def _count(asked: Asked, words: str) -> bool:
    found = re.search(r"len\(tool_calls\) ?(<=|>=|==) ?(\d+)", words)
    assert found is not None
    number = int(found.group(2))
    compare: Callable[[int], bool] = {
        "<=": lambda n: n <= number,
        ">=": lambda n: n >= number,
        "==": lambda n: n == number,
    }[found.group(1)]
    ended = [answer for answer in asked.whole if answer.finish != "length"]
    return all(compare(len(answer.calls)) for answer in ended) and (bool(ended) or found.group(1) == "<=")


def _one_call_of_many(asked: Asked, words: str) -> bool:
    """The model that is bent on calling was stopped after one."""
    return _count(asked, words) and (not asked.gateways.own or any(len(a.calls) == 1 for a in asked.whole))


def _lists_values(asked: Asked, words: str) -> bool:
    said = [a.error["message"] for a in asked.answers if a.status != 200]
    return all("auto" in text and "required" in text for text in said)


def _names_type(asked: Asked, words: str) -> bool:
    kinds = [tool["type"] for tool in asked.body["tools"] if tool.get("type") != "function"]
    return all(a.status == 200 or all(kind in a.error["message"] for kind in kinds) for a in asked.answers)


def _plain_text(asked: Asked, words: str) -> bool:
    return all(answer.content and not answer.calls for answer in asked.whole)


def _same_when_streamed(asked: Asked, words: str) -> bool:
    finishes = {answer.finish for answer in asked.whole if answer.finish != "length"}
    return len(finishes) == 1 and any(answer.chunks for answer in asked.whole)


def _quick_compile(asked: Asked, words: str) -> bool:
    """The best of three schemas that were not seen before, first token included."""
    found = re.search(r"(\d+(?:\.\d+)?) s", words)
    assert found is not None
    times = []
    for number in range(3):
        tools = json.loads(json.dumps(asked.body["tools"]))
        tools[0]["function"]["parameters"].setdefault("properties", {})[f"fresh{number}"] = {"type": "integer"}
        answer = asked.again(tools=tools, max_tokens=1)
        times.append(answer.seconds if answer.status == 200 else float("inf"))
    return min(times) < float(found.group(1))


def _compact(asked: Asked, words: str) -> bool:
    """Outside its strings, what is written of a call holds no long run of white space."""
    texts = [call.arguments for answer in asked.whole for call in answer.calls]
    bare = [re.sub(r'"(?:[^"\\]|\\.)*"?', "", text) for text in texts]
    return bool(texts) and not any(re.search(r"\s{65}", text) for text in bare)


def _no_cut_call(asked: Asked, words: str) -> bool:
    """An answer that ran to its limit says so, and hands over only calls that are whole."""
    cut = asked.again(max_tokens=24)
    return cut.finish == "length" and not cut.calls and all(a.finish != "length" or _whole_only(a) for a in asked.whole)


def _whole_only(answer: Answer) -> bool:
    return bool(answer.chunks) or all(call.parsed() is not None for call in answer.calls)


def _description_free(asked: Asked, words: str) -> bool:
    """Other descriptions: the same status, and a grammar that allows the same tokens all along random walks."""
    statuses, specs = set(), []
    for text in ('"undefined" or null? {{}} </parameter>', "", "x" * 5000):
        tools = json.loads(json.dumps(asked.body["tools"]))
        for tool in tools:
            for schema in tool["function"]["parameters"]["properties"].values():
                schema["description"] = text
        statuses.add(asked.again(tools=tools, tool_choice="required", max_tokens=8).status)
        gateway = asked.gateways.scripted("", asked.format)
        gateway.ask({**asked.body, "tools": tools, "tool_choice": "required"})
        specs += [request.grammar for request in gateway.engine.requests] if gateway.engine else []
        gateway.close()
    first, *others = specs
    return statuses == {200} and all(same_language(first, other) for other in others)


Judge = Callable[[Asked, str], bool]
JUDGES: tuple[tuple[str, Judge], ...] = (
    (r"either enforced|not silently ignored|no overlong string", _enforced_or_said),
    (r"arguments validate|validates? against", _valid_and_made),
    (r"^if a call is made", _valid_and_made),
    (r"(engine|process|server) (is )?alive|no stack overflow|no crash", _alive),
    (r"error names the pattern", _names_pattern),
    (r"(never|not|no) (a )?5\d\d|never KeyError", lambda asked, w: all(a.status < 500 for a in asked.answers)),
    (r"tool mode|no tool calls", lambda asked, w: not any(a.calls for a in asked.answers)),
    (r"ordinary text reply", _plain_text),
    (r"lists? allowed values", _lists_values),
    (r"as if omitted", _as_if_omitted),
    (r"names the offending type", _names_type),
    (r"len\(tool_calls\) ?<= ?1$", _one_call_of_many),
    (r"len\(tool_calls\)", _count),
    (r"same value in streaming and non-streaming", _same_when_streamed),
    (r"compile < ", _quick_compile),
    (r"no unbounded whitespace", _compact),
    (r"finish_reason length and no call", _no_cut_call),
    (r"not depend on description", _description_free),
)
"""Pattern of the words -> judge; the first match counts."""
