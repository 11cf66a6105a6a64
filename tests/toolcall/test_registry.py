"""The names that users of SGLang and vLLM type, and the choice of a format by a chat template."""

from __future__ import annotations

import pytest

from chat_templates.registry import get_template, list_templates
from tests.toolcall.render_calls import RENDERERS
from toolcall.registry import detect, get_format, get_reasoning, list_formats

SGLANG = [
    "qwen",
    "qwen25",
    "hermes",
    "trinity",
    "qwen3_coder",
    "step3p5",
    "mimo",
    "llama3",
    "pythonic",
    "lfm2",
    "mistral",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "deepseekv4",
    "glm",
    "glm45",
    "glm47",
    "poolside_v1",
    "hunyuan",
    "kimi_k2",
    "kimi_k3",
    "minimax-m2",
    "minimax-m3",
    "gpt-oss",
    "step3",
    "interns1",
    "apertus2509",
    "cohere_command4",
    "gigachat3",
    "gemma4",
    "minicpm5",
    "inkling",
]
VLLM = [
    "hermes",
    "longcat",
    "qwen3_coder",
    "qwen3_xml",
    "mimo",
    "seed_oss",
    "step3p5",
    "llama3_json",
    "llama4_json",
    "pythonic",
    "llama4_pythonic",
    "olmo3",
    "lfm2",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "glm45",
    "glm47",
    "ling3",
    "poolside_v1",
    "hy_v3",
    "kimi_k2",
    "kimi_k3",
    "minimax_m2",
    "minimax_m3",
    "openai",
    "step3",
    "internlm",
    "apertus",
    "cohere_command3",
    "cohere_command4",
    "gigachat3",
    "gemma4",
    "functiongemma",
    "minicpm5",
    "dots",
    "inkling",
    "muse_glimmer",
    "granite-20b-fc",
    "granite",
    "granite4",
    "jamba",
    "hunyuan_a13b",
    "ernie45",
    "phi4_mini_json",
    "xlam",
]
REASONING = [
    "deepseek-r1",
    "deepseek_r1",
    "qwen3",
    "qwen3-thinking",
    "glm45",
    "kimi",
    "kimi_k2",
    "gpt-oss",
    "openai_gptoss",
    "minimax_m2",
    "mistral",
    "granite",
    "seed_oss",
    "step3",
    "hunyuan_a13b",
    "ernie45",
    "olmo3",
]


@pytest.mark.parametrize("name", sorted({*SGLANG, *VLLM}))
def test_names_of_other_servers(name: str) -> None:
    assert get_format(name) is get_format(name.upper().replace("_", "-"))


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_names(name: str) -> None:
    assert get_reasoning(name)


def test_names_are_unique_and_every_format_has_a_renderer_and_families() -> None:
    names = [n for f in list_formats() for n in {n.replace("-", "_").lower() for n in (f.name, *f.aliases)}]
    assert len(names) == len(set(names))
    assert {f.name for f in list_formats()} == set(RENDERERS)
    assert all(f.families and f.template_signs for f in list_formats())
    assert all(get_reasoning(f.reasoning) for f in list_formats() if f.reasoning)


EXPECTED = {
    "chatml": ("hermes", None),
    "qwen2.5": ("hermes", None),
    "qwen3": ("hermes", "qwen3"),
    "qwen3_coder": ("qwen3_coder", None),
    "llama3": ("llama3_json", None),
    "llama4_pythonic": ("pythonic", None),
    "mistral": ("mistral", None),
    "deepseek_v3": ("deepseek_v3", None),
    "deepseek_v31": ("deepseek_v31", "deepseek_v3"),
    "kimi_k2": ("kimi_k2", None),
    "glm45": ("glm45", "glm45"),
    "gpt_oss": ("gpt_oss", "gpt_oss"),
}


@pytest.mark.parametrize("name", list_templates())
def test_our_own_templates_are_recognised(name: str) -> None:
    found = detect(get_template(name))
    fmt, reasoning = EXPECTED[name]
    assert found.format.name == fmt, found.why
    if reasoning is not None:
        assert found.reasoning is not None
        assert found.reasoning.name == reasoning
    assert fmt in found.why


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder"),
        ("<tool_call>{name}<arg_key>", "glm45"),
        ("<seed:tool_call><function= <parameter=", "seed_oss"),
        ("<minimax:tool_call>", "minimax_m2"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<|START_ACTION|>", "cohere_command4"),
        ("<|tool_call_start|>", "lfm2"),
        ("<｜tool▁call▁begin｜> ```json", "deepseek_v3"),
        ("<｜tool▁call▁begin｜>", "deepseek_v31"),
        ("<｜DSML｜function_calls>", "deepseek_v32"),
        ("", "hermes"),
        ("{{ tools }}", "hermes"),
    ],
)
def test_templates_of_others(template: str, name: str) -> None:
    assert detect(template).format.name == name


def test_the_vocabulary_decides_where_there_is_no_template() -> None:
    found = detect(None, ["<s>", "[TOOL_CALLS]"])
    assert found.format.name == "mistral"
    assert "special tokens" in found.why
