"""Ground-truth calls written in each family's way and read back: the same calls, streamed and not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import toolcall
from tests.cases.compare import same_json
from tests.toolcall.conftest import scaled
from tests.toolcall.fuzzing import TOOLS, random_calls
from tests.toolcall.render_calls import RENDERERS, SCHEMA_TYPED, VARIANTS, Call
from tests.toolcall.running import events_of, merged
from toolcall.schema import ToolSet

PER_FORMAT = 150
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def read_back(name: str, text: str, tools: Any, pieces: list[str] | None = None) -> list[Call]:
    answer = toolcall.fold(events_of(name, pieces or [text], tools=tools))
    assert answer.content == ""
    assert not any(c.rescued for c in answer.tool_calls)
    return [(c.name, json.loads(c.arguments)) for c in answer.tool_calls]


def same_calls(a: list[Call], b: list[Call]) -> bool:
    return len(a) == len(b) and all(x[0] == y[0] and same_json(x[1], y[1]) for x, y in zip(a, b))


def renderers_of(name: str) -> list[Any]:
    return [r[name] for r in (RENDERERS, VARIANTS) if name in r]


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_random_calls_come_back(name: str) -> None:
    for seed in range(scaled(25)):
        rng = random.Random(f"{name} {seed}")
        calls = random_calls(rng)
        if name in ("pythonic", "olmo3", "lfm2"):
            calls = [c for c in calls if "-" not in c[0]] or [("fs.now", {})]
        for render in renderers_of(name):
            text = render(calls)
            for pieces in ([text], list(text)):
                assert same_calls(read_back(name, text, TOOLS, pieces), calls), text


def ground_truth(data: Path) -> Iterator[tuple[list[dict[str, Any]], list[Call]]]:
    """(tools, calls) of every single-turn question that has calls; of several right values the first."""
    for answers in sorted((data / "possible_answer").glob("BFCL_v4_*.json")):
        if any(w in answers.name for w in ("multi_turn", "memory", "web_search")):
            continue
        questions = {q["id"]: q for q in map(json.loads, (data / answers.name).read_text("utf-8").splitlines())}
        for line in answers.read_text("utf-8").splitlines():
            row = json.loads(line)
            calls = [(name, chosen(values)) for call in row["ground_truth"] for name, values in call.items()]
            yield questions[row["id"]]["function"], calls


def chosen(values: Mapping[str, Any]) -> dict[str, Any]:
    """The first possible value of each argument; "" among them means that it may be left out."""
    out = {}
    for key, possible in values.items():
        value = possible[0] if isinstance(possible, list) and possible else possible
        if value != "" or not isinstance(possible, list) or len(possible) == 1:
            out[key] = nested(value)
    return out


def nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: nested(v[0] if isinstance(v, list) and v else v) for k, v in value.items()}
    return [nested(v) if isinstance(v, dict) else v for v in value] if isinstance(value, list) else value


def fits(tools: Any, call: Call) -> bool:
    """Whether the schema allows the types of the ground truth, so that text can be turned back into them."""
    tool = ToolSet(tools).get(call[0])
    if tool is None:
        return False
    for key, value in call[1].items():
        kinds = tool.type_of(key).kinds
        if "any" in kinds:
            return not isinstance(value, str)
        if isinstance(value, bool) and "boolean" not in kinds:
            return False
        if not any(isinstance(value, TYPES[k]) for k in kinds) or ("string" in kinds and not isinstance(value, str)):
            return False
    return True


@pytest.fixture(scope="module")
def truth(bfcl_data: Path) -> list[tuple[list[dict[str, Any]], list[Call]]]:
    return list(ground_truth(bfcl_data))


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_bfcl_calls_come_back(name: str, truth: list[tuple[list[dict[str, Any]], list[Call]]]) -> None:
    rows = truth if scaled(100) > 1000 else random.Random(name).sample(truth, min(len(truth), scaled(PER_FORMAT)))
    typed = name in SCHEMA_TYPED
    done = left_out = 0
    for tools, calls in rows:
        wanted = [c for c in calls if not typed or fits(tools, c)]
        left_out += len(calls) - len(wanted)
        if not wanted:
            continue
        for render in renderers_of(name):
            text = render(wanted)
            for pieces in ([text], [text[i : i + 3] for i in range(0, len(text), 3)]):
                assert same_calls(read_back(name, text, tools, pieces), wanted), text
        done += len(wanted)
    print(
        f"{name}: {done} of {sum(len(c) for _, c in truth)} calls came back, streamed and not; {left_out} not of their schema's types"
    )


WORDS = (
    "name",
    "function",
    "arguments",
    "parameters",
    "tool",
    "tool_calls",
    "call",
    "type",
    "json",
    "null",
    "true",
    "item",
)
HARD_NAMES = (*WORDS, "9lives", "_p", "a.b.c", "functions.f", "f", "f1", "read_file_2", "call-1", "x" * 64)


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_tools_and_parameters_named_like_a_format_s_own_words(name: str) -> None:
    suffix = "<|start|>assistant" if name == "gpt_oss" else ""
    for tool in HARD_NAMES:
        for key in (*WORDS, "query", "input", "value", "x"):
            schema = {"type": "object", "properties": {key: {"type": "string"}, "n": {"type": "integer"}}}
            tools = [{"name": other, "parameters": schema} for other in ("f", "bash", tool)]
            calls = [(tool, {key: "it's 5"}), ("bash", {}), (tool, {key: "", "n": 5})]
            answer = toolcall.parse(RENDERERS[name](calls), tools, name, prompt_suffix=suffix)
            assert [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] == calls
            assert not answer.content.strip()
            assert not any(call.rescued for call in answer.tool_calls)


def own_marks(name: str) -> list[str]:
    """All strings of a format: those of its blocks and of the calls inside."""
    fmt = toolcall.get_format(name)
    words = {word for block in (*fmt.blocks, *fmt.bare) for word in block.marks}
    bodies = [body for block in fmt.blocks for body in block.bodies if not body.foreign]
    tags = ("value_close", "value_open", "param_open", "key_end", "call_close", "quote_mark")
    return sorted(word for word in words | {getattr(b, tag, "") for b in bodies for tag in tags} if word)


@pytest.mark.parametrize("name", sorted(set(RENDERERS) - {"minimax_m3", "functiongemma"}))
def test_a_format_s_own_marks_inside_a_json_value_come_back(name: str) -> None:
    """Whatever mark, and whatever mark behind it: in an object's strings all of them are data. Gemma's keys have no
    quotes, and its quotes are a mark."""
    schema = {"type": "object", "properties": {"options": {"type": "object"}, "path": {"type": "string"}}}
    tools = [{"name": "put", "parameters": schema}]
    marks = own_marks(name)
    rng = random.Random(name)
    for mark in marks:
        text = mark + rng.choice(["", "\n", " "]) + rng.choice(marks) + rng.choice(marks)
        for value in ({"k": text, "n": [text, 1]}, {text: text}, {"a": "\\", "b": f'"{text}"'}):
            if name == "gemma4" and ('<|"|>' in text or text in value):
                continue
            calls: list[Call] = [("put", {"options": value, "path": "a"}), ("put", {})]
            rendered = RENDERERS[name](calls)
            for pieces in ([rendered], list(rendered)):
                assert same_calls(read_back(name, rendered, tools, pieces), calls), rendered


TAGGED = ("qwen3_coder", "seed_oss", "glm45", "hunyuan", "deepseek_v32", "deepseek_v4", "minimax_m2", "kimi_k3")


@pytest.mark.parametrize("name", TAGGED)
def test_a_value_that_is_about_calls_comes_back(name: str) -> None:
    """Whole calls, with any text around them; and wherever such a text is cut off, the chunking changes nothing."""
    render = RENDERERS[name]
    for seed in range(scaled(15)):
        rng = random.Random(f"{name} {seed}")
        inner = [render([("get-it", {"zip": rng.choice(("1", "a\nb"))}), ("fs.now", {})]) for _ in range(2)]
        about = "".join(rng.choice(("As in: ", "\nand\n", *inner)) for _ in range(rng.randint(1, 5)))
        for value in (about, f"x {render([('write_file', {'path': 'q', 'content': about})])} y"):
            calls: list[Call] = [("write_file", {"content": value, "path": "p"}), ("get-it", {"zip": value})]
            text = render(calls)
            for pieces in ([text], list(text)):
                assert same_calls(read_back(name, text, TOOLS, pieces), calls), text
            cut = text[: rng.randint(0, len(text))]
            assert merged(events_of(name, [cut])) == merged(events_of(name, list(cut))), cut
