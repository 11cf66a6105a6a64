"""Calls written the way each model family writes them: the inverse of the parser, for round trips."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any]]
Render = Callable[[Sequence[Call]], str]

NS = "]<]minimax[>["


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    """A value inside tags: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def call_json(call: Call, name: str = "name", arguments: str = "arguments") -> str:
    return dumps({name: call[0], arguments: call[1]})


def json_list(calls: Sequence[Call], name: str = "name", arguments: str = "arguments") -> str:
    return "[" + ", ".join(call_json(c, name, arguments) for c in calls) + "]"


def in_tags(opener: str, closer: str) -> Render:
    return lambda calls: "\n".join(f"{opener}\n{call_json(c)}\n{closer}" for c in calls)


def around_list(opener: str, closer: str, arguments: str = "arguments") -> Render:
    return lambda calls: opener + json_list(calls, arguments=arguments) + closer


def qwen3_coder(calls: Sequence[Call], wrapper: str = "tool_call") -> str:
    def one(call: Call) -> str:
        params = "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in call[1].items())
        return f"<{wrapper}>\n<function={call[0]}>\n{params}</function>\n</{wrapper}>"

    return "\n".join(map(one, calls))


def invoke(calls: Sequence[Call], prefix: str = "", call: str = "invoke", param: str = "parameter") -> str:
    return "".join(
        f'<{prefix}{call} name="{name}">'
        + "".join(f'\n<{prefix}{param} name="{k}">{text_of(v)}</{prefix}{param}>' for k, v in arguments.items())
        + f"\n</{prefix}{call}>\n"
        for name, arguments in calls
    )


def dsml(calls: Sequence[Call], wrapper: str) -> str:
    mark = "｜DSML｜"
    out = [f"<{mark}{wrapper}>\n"]
    for name, arguments in calls:
        out.append(f'<{mark}invoke name="{name}">\n')
        for k, v in arguments.items():
            kind = "true" if isinstance(v, str) else "false"
            out.append(f'<{mark}parameter name="{k}" string="{kind}">{text_of(v)}</{mark}parameter>\n')
        out.append(f"</{mark}invoke>\n")
    return "".join(out) + f"</{mark}{wrapper}>"


def glm(calls: Sequence[Call], newline: str = "\n") -> str:
    def one(call: Call) -> str:
        pairs = "".join(
            f"<arg_key>{k}</arg_key>{newline}<arg_value>{text_of(v)}</arg_value>{newline}" for k, v in call[1].items()
        )
        return f"<tool_call>{call[0]}{newline}{pairs}</tool_call>"

    return newline.join(map(one, calls))


def hunyuan(calls: Sequence[Call]) -> str:
    def one(call: Call) -> str:
        pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{text_of(v)}</arg_value>\n" for k, v in call[1].items())
        return f"<tool_call>{call[0]}<tool_sep>\n{pairs}</tool_call>\n"

    return "<tool_calls>\n" + "".join(map(one, calls)) + "</tool_calls>"


def python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{k}={v!r}' for k, v in call[1].items())})"


def pythonic(calls: Sequence[Call]) -> str:
    return "[" + ", ".join(map(python_call, calls)) + "]"


def deepseek_v3(calls: Sequence[Call]) -> str:
    ones = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>" for n, a in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(ones) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    ones = (f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>" for n, a in calls)
    return "<｜tool▁calls▁begin｜>" + "".join(ones) + "<｜tool▁calls▁end｜>"


def kimi_k2(calls: Sequence[Call]) -> str:
    ones = (
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dumps(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)
    )
    return "<|tool_calls_section_begin|>" + "".join(ones) + "<|tool_calls_section_end|>"


def kimi_k3(calls: Sequence[Call]) -> str:
    def kind(value: Any) -> str:
        names = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}
        return names.get(type(value), "number")

    def attribute(text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;")

    out = ["<|open|>tools<|sep|>"]
    for i, (name, arguments) in enumerate(calls, 1):
        out.append(f'<|open|>call tool="{attribute(name)}" index="{i}"<|sep|>')
        for k, v in arguments.items():
            out.append(
                f'<|open|>argument key="{attribute(k)}" type="{kind(v)}"<|sep|>{text_of(v)}<|close|>argument<|sep|>'
            )
        out.append("<|close|>call<|sep|>")
    return "".join(out) + "<|close|>tools<|sep|>"


def minimax_m3(calls: Sequence[Call]) -> str:
    ones = (
        f'{NS}<invoke name="{n}">'
        + "".join(f"{NS}<{k}>{text_of(v)}{NS}</{k}>" for k, v in a.items())
        + f"{NS}</invoke>"
        for n, a in calls
    )
    return f"{NS}<tool_call>" + "".join(ones) + f"{NS}</tool_call>"


def step3(calls: Sequence[Call]) -> str:
    ones = (
        "<｜tool_call_begin｜>function<｜tool_sep｜>"
        + invoke([c], "steptml:").replace("\n<steptml:parameter", "<steptml:parameter").strip()
        + "<｜tool_call_end｜>"
        for c in calls
    )
    return "<｜tool_calls_begin｜>" + "".join(ones) + "<｜tool_calls_end｜>"


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumps(a)}<|call|>" for n, a in calls
    )


def muse(calls: Sequence[Call]) -> str:
    return "".join(
        f"<|start|>assistant to={c[0]}<|message|><atem:function_calls>{invoke([c], 'atem:')}</atem:function_calls><|eom|>"
        for c in calls
    )


def gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return dumps(value)


def gemma4(calls: Sequence[Call]) -> str:
    return "".join(f"<|tool_call>call:{n}{gemma_value(dict(a))}<tool_call|>" for n, a in calls)


def functiongemma(calls: Sequence[Call]) -> str:
    def members(arguments: Mapping[str, Any]) -> str:
        return ",".join(f"{k}:<escape>{text_of(v)}<escape>" for k, v in arguments.items())

    return "".join(f"<start_function_call>call:{n}{{{members(a)}}}<end_function_call>" for n, a in calls)


def minicpm5(calls: Sequence[Call]) -> str:
    def value(item: Any) -> str:
        text = text_of(item)
        return f"<![CDATA[{text}]]>" if "<" in text or "&" in text else text

    return "".join(
        f'<function name="{n}">'
        + "".join(f'<param name="{k}">{value(v)}</param>' for k, v in a.items())
        + "</function>"
        for n, a in calls
    )


def inkling(calls: Sequence[Call]) -> str:
    return "".join(
        f"<|message_model|>{n}<|content_invoke_tool_json|>{call_json((n, a), arguments='args')}<|end_message|>"
        for n, a in calls
    )


def minimax_m2(calls: Sequence[Call]) -> str:
    return f"<minimax:tool_call>\n{invoke(calls)}</minimax:tool_call>"


RENDERERS: Mapping[str, Render] = {
    "hermes": in_tags("<tool_call>", "</tool_call>"),
    "longcat": in_tags("<longcat_tool_call>", "</longcat_tool_call>"),
    "qwen3_coder": qwen3_coder,
    "seed_oss": lambda calls: qwen3_coder(calls, "seed:tool_call"),
    "llama3_json": lambda calls: "; ".join(call_json(c, arguments="parameters") for c in calls),
    "pythonic": pythonic,
    "olmo3": lambda calls: "<function_calls>\n" + "\n".join(map(python_call, calls)) + "\n</function_calls>",
    "lfm2": lambda calls: f"<|tool_call_start|>{pythonic(calls)}<|tool_call_end|>",
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}" for n, a in calls),
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "deepseek_v32": lambda calls: dsml(calls, "function_calls"),
    "deepseek_v4": lambda calls: dsml(calls, "tool_calls"),
    "glm45": glm,
    "hunyuan": hunyuan,
    "kimi_k2": kimi_k2,
    "kimi_k3": kimi_k3,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "gpt_oss": harmony,
    "step3": step3,
    "internlm": lambda calls: "".join(
        f"<|action_start|> <|plugin|>\n{call_json(c, arguments='parameters')}<|action_end|>" for c in calls
    ),
    "apertus": lambda calls: f"<|tools_prefix|>{dumps([{n: a} for n, a in calls])}<|tools_suffix|>",
    "cohere_command4": lambda calls: f"<|START_ACTION|>{json_list(calls, 'tool_name', 'parameters')}<|END_ACTION|>",
    "gigachat3": lambda calls: "".join(f"<|function_call|>{call_json(c)}" for c in calls),
    "gemma4": gemma4,
    "functiongemma": functiongemma,
    "minicpm5": minicpm5,
    "dots": lambda calls: f"<dots_function_call>\n{invoke(calls)}</dots_function_call>",
    "inkling": inkling,
    "muse_glimmer": muse,
    "granite_20b_fc": lambda calls: "\n".join(f"<function_call> {call_json(c)}" for c in calls),
    "granite": around_list("<|tool_call|>", ""),
    "jamba": around_list("<tool_calls>", "</tool_calls>"),
    "hunyuan_a13b": around_list("<tool_calls>", "</tool_calls>"),
    "ernie45": in_tags("<tool_call>", "</tool_call>"),
    "phi4_mini_json": around_list("functools", ""),
    "xlam": around_list("", ""),
}
"""Format name -> renderer."""

VARIANTS: Mapping[str, Render] = {
    "llama3_json": lambda calls: "<|python_tag|>" + ";".join(call_json(c, arguments="parameters") for c in calls),
    "mistral": lambda calls: "[TOOL_CALLS] " + json_list(calls),
    "glm45": lambda calls: glm(calls, ""),
    "lfm2": lambda calls: f"<|tool_call_start|>{json_list(calls)}<|tool_call_end|>",
    "pythonic": lambda calls: f"<|python_start|>{pythonic(calls)}<|python_end|>",
    "hermes": lambda calls: "".join(f"<tool_call>{call_json(c)}</tool_call>" for c in calls),
    "gpt_oss": lambda calls: "".join(
        f"<|start|>assistant to=functions.{n}<|channel|>commentary json<|message|>{dumps(a)}<|call|>" for n, a in calls
    ),
    "gigachat3": lambda calls: "".join(f"<|message_sep|>function call<|role_sep|>\n{call_json(c)}" for c in calls),
}
"""The other way in which some families write calls."""

SCHEMA_TYPED = frozenset(
    {
        "qwen3_coder",
        "seed_oss",
        "glm45",
        "hunyuan",
        "minimax_m2",
        "minimax_m3",
        "step3",
        "minicpm5",
        "dots",
        "muse_glimmer",
        "functiongemma",
    }
)
"""Formats that write every value as text: only a schema that allows the value's type brings it back."""
