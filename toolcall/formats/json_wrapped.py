"""JSON calls between markers of their own: one small table each."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.syntax import Block, JsonCalls, NamedJson

_JSON = JsonCalls()

INTERNLM = Format(
    name="internlm",
    aliases=("interns1", "intern-s1", "internlm2"),
    families="InternLM 2 and 3, Intern-S1",
    blocks=(
        Block(opener="<|action_start|>", inner=("<|plugin|>",), bodies=(_JSON,), closers=("<|action_end|>",)),
        Block(opener="<|plugin|>", bodies=(_JSON,), closers=("<|action_end|>",)),
    ),
    end_tokens=("<|im_end|>",),
    reasoning="qwen3",
    own_markers_special=True,
    template_signs=("<|action_start|>",),
)

APERTUS = Format(
    name="apertus",
    aliases=("apertus2509",),
    families="Apertus",
    blocks=(Block(opener="<|tools_prefix|>", bodies=(JsonCalls(by_name=True),), closers=("<|tools_suffix|>",)),),
    end_tokens=("<|assistant_end|>",),
    reasoning="apertus",
    own_markers_special=True,
    template_signs=("<|tools_prefix|>",),
)

COHERE = Format(
    name="cohere_command4",
    aliases=("cohere_command3", "cohere", "cohere_command"),
    families="Cohere Command A, Command A+, Command 4",
    blocks=(Block(opener="<|START_ACTION|>", bodies=(_JSON,), closers=("<|END_ACTION|>",)),),
    hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    end_tokens=("<|END_OF_TURN_TOKEN|>",),
    reasoning="cohere",
    own_markers_special=True,
    template_signs=("<|START_ACTION|>",),
)

GIGACHAT3 = Format(
    name="gigachat3",
    families="GigaChat 3",
    blocks=(
        Block(opener="<|function_call|>", bodies=(_JSON,)),
        Block(opener="function call<|role_sep|>", bodies=(_JSON,)),
    ),
    hidden=("<|message_sep|>",),
    end_tokens=("</s>",),
    own_markers_special=True,
    template_signs=("<|role_sep|>", "function call"),
    experimental=True,
)

_INVOKES = ("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>")
INKLING = Format(
    name="inkling",
    families="Inkling",
    blocks=(
        Block(
            opener="<|message_model|>",
            bodies=(NamedJson(name_ends=_INVOKES, closes=("<|end_message|>",), wrapped=True),),
            single=True,
        ),
        Block(opener="<|content_invoke_tool_json|>", bodies=(_JSON,), closers=("<|end_message|>",)),
    ),
    hidden=("<|message_model|>", "<|end_message|>", "<|content_text|>"),
    own_markers_special=True,
    template_signs=("<|content_invoke_tool_json|>",),
    experimental=True,
)

GRANITE_20B_FC = Format(
    name="granite_20b_fc",
    aliases=("granite-20b-fc",),
    families="Granite 20B function calling",
    blocks=(Block(opener="<function_call>", bodies=(_JSON,), closers=("</function_call>",)),),
    end_tokens=("<|endoftext|>",),
    template_signs=("<function_call>",),
)

GRANITE = Format(
    name="granite",
    families="Granite 3.x",
    blocks=(
        Block(opener="<|tool_call|>", bodies=(_JSON,), closers=("<|/tool_call|>",)),
        Block(opener="<tool_call>", bodies=(_JSON,), closers=("</tool_call>",)),
    ),
    bare=(Block(opener="", bodies=(_JSON,), strict=True, triggers="["),),
    end_tokens=("<|end_of_text|>",),
    reasoning="granite",
    template_signs=("<|tool_call|>",),
)

JAMBA = Format(
    name="jamba",
    families="AI21 Jamba",
    blocks=(Block(opener="<tool_calls>", bodies=(_JSON,), closers=("</tool_calls>",)),),
    end_tokens=("<|eom|>", "<|im_end|>"),
    reasoning="qwen3",
    template_signs=("<tool_calls>",),
)

HUNYUAN_A13B = replace(
    JAMBA,
    name="hunyuan_a13b",
    families="Hunyuan A13B",
    hidden=("<answer>", "</answer>"),
    end_tokens=("<|eos|>", "<|endoftext|>"),
    template_signs=("<tool_calls>", "<answer>"),
)

ERNIE45 = Format(
    name="ernie45",
    families="ERNIE 4.5",
    blocks=(Block(opener="<tool_call>", bodies=(_JSON,), closers=("</tool_call>",)),),
    hidden=("<response>", "</response>"),
    end_tokens=("</s>", "<|end_of_sentence|>"),
    reasoning="deepseek_r1",
    template_signs=("<tool_call>", "<response>"),
    experimental=True,
)

PHI4_MINI = Format(
    name="phi4_mini_json",
    aliases=("phi4_mini", "phi4"),
    families="Phi-4-mini",
    blocks=(
        Block(opener="functools", bodies=(_JSON,)),
        Block(opener="<|tool_call|>", bodies=(_JSON,), closers=("<|/tool_call|>",)),
    ),
    end_tokens=("<|end|>", "<|endoftext|>"),
    template_signs=("<|tool|>",),
)

XLAM = Format(
    name="xlam",
    families="xLAM 1 and 2",
    blocks=(
        Block(opener="<tool_call>", bodies=(_JSON,), closers=("</tool_call>",)),
        Block(opener="[TOOL_CALLS]", bodies=(_JSON,)),
        Block(opener="```json\n[", bodies=(_JSON,), closers=("```",), strict=True, hold=True, only_declared=True),
    ),
    bare=(
        Block(opener="", bodies=(_JSON,), strict=True, triggers="[{"),
        Block(opener="```json", bodies=(_JSON,), closers=("```",), strict=True),
    ),
    end_tokens=("<|eot_id|>", "<|im_end|>"),
    reasoning="qwen3",
    template_signs=("xLAM",),
)
