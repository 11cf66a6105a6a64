"""What our templates show as a model's earlier calls, the parser of its format reads as those calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

import toolcall
from chat_templates import render
from chat_templates.registry import get_template

FORMATS = {
    "chatml": "hermes", "qwen2.5": "hermes", "qwen3": "hermes", "qwen3_coder": "qwen3_coder", "llama3": "llama3_json",
    "llama4_pythonic": "pythonic", "mistral": "mistral", "deepseek_v3": "deepseek_v3", "deepseek_v31": "deepseek_v31",
    "kimi_k2": "kimi_k2", "glm45": "glm45", "gpt_oss": "gpt_oss",
}  # fmt: skip
TYPES = {
    "s": "string", "i": "integer", "n": "number", "b": "boolean", "o": "object", "l": "array", "z": ["string", "null"]
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "ns.do-it")]
STRINGS = (
    "Oslo", "true", "12", "null", "None", '{"a": 1}', "[1]", "a\nb\n", "\n", "", " lead ", "it's \"q\" \\ \\n", "\r\n",
    "日本 😀 \u2028", "<b>&amp; </x>", "</tool_call>", "\x00\x1f\x7f", "{{ x }} {% y %}", "a\\u0041",
)  # fmt: skip
ARGUMENTS: list[dict[str, Any]] = [
    {},
    *({"s": text, "l": [text, {"k": text}]} for text in STRINGS),
    {"i": 10**20, "n": 1e-7, "b": False, "z": None},
    {"i": -0, "n": 1e300, "b": True, "z": "null?"},
    {"o": {"a": {"b": [1, None, True, "x\"y'"]}, 's"q': "a\nb"}, "l": []},
]


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("template", FORMATS)
def test_calls_of_the_history_come_back(template: str, as_text: bool) -> None:
    source, name = get_template(template), FORMATS[template]
    for arguments in ARGUMENTS:
        calls = [("f", arguments), ("ns.do-it", {"s": "z"})]
        shown = [
            {"id": f"call_{n}", "function": {"name": tool, "arguments": json.dumps(given) if as_text else given}}
            for n, (tool, given) in enumerate(calls)
        ]
        asked = [{"role": "user", "content": "qu3stion"}]
        results = [{"role": "tool", "tool_call_id": f"call_{n}", "content": "r3sult"} for n in range(len(calls))]
        said = [*asked, {"role": "assistant", "content": None, "tool_calls": shown}, *results]
        text = render(source, said, TOOLS, add_generation_prompt=False).plain
        text = text[text.index("qu3stion") + len("qu3stion") : text.index("r3sult")]
        if name == "mistral":
            text = text[text.index("[TOOL_CALLS]") :]
        else:
            prompt = render(source, asked, TOOLS).plain
            text = text[common(prompt[prompt.index("qu3stion") + len("qu3stion") :], text) :]
        answer = toolcall.parse(text, TOOLS, name, prompt_suffix="<|start|>assistant" if name == "gpt_oss" else "")
        assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == calls, text


def common(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
