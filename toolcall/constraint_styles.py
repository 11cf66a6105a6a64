"""How each format writes a call, as templates that the grammar builder reads.

A template is literal text with ``{name}`` and ``{args}`` (JSON styles) or ``{key}`` and ``{value}``
(parameters of tagged styles). Only one way of writing is listed per format, the one its models were trained
on: a grammar must not lead a model away from what it knows. The parser accepts many more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Arguments as one element per parameter.

    parameter: template with {key} and {value}, for a raw string value; {string} becomes true/false and {type}
    the JSON type, where the format says so in an attribute. between: text between two parameters. quoted:
    strings are JSON strings rather than raw text (pythonic). quote: a pair of marks around raw strings. ends:
    further texts that a raw value must not hold, since parsers take them for something else. unpacking: text in front
    of one JSON object of all arguments, for keys that are no identifiers and what is asked of the object as a whole.
    again: the end of a block and the beginning of the next, which it must not hold one behind the other.
    section: a pair of marks that values may stand between, and do where they hold what ``ends`` lists, or may.
    """

    parameter: str
    between: str = ""
    quoted: bool = False
    quote: str = ""
    ends: tuple[str, ...] = ()
    unpacking: str = ""
    again: tuple[str, str] | None = None
    section: tuple[str, str] | None = None

    @property
    def in_section(self) -> TaggedArguments:
        """The same for raw strings in sections."""
        assert self.section is not None
        return replace(self, parameter="{key}{value}", ends=self.section[1:], section=None)

    @property
    def says_type(self) -> bool:
        """Whether a value shows if it is a string."""
        return bool(self.quoted or self.quote) or "{string}" in self.parameter or "{type}" in self.parameter

    def written(self, key: str) -> str:
        """The key as it stands in the text: where a mark stands for quotes, one that is no plain word has them."""
        plain = not self.quote or re.fullmatch(r"[\w$./@-]+", key)
        return key if plain else f"{self.quote}{key}{self.quote}"

    def spells(self, key: str) -> bool:
        """Whether a key can be written so that it is read as itself: it holds none of the marks around it."""
        if self.quote:
            return self.quote not in key
        after = self.parameter.split("{key}", 1)[1]
        marks = ("<", "\n", after[0], ">" if after[0] == '"' else "<")
        return bool(key) and key == key.strip() and not any(mark in key for mark in marks)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that would end a raw value, or seem to."""
        head, tail = self.parameter.split("{value}", 1)
        opening = re.sub(r'(?:name|key)="$', "", head.split("{key}", 1)[0].strip())
        close = re.sub(r"^(</.*)>$", r"\1", tail.strip())  # a misspelt tag closes too
        return tuple(dict.fromkeys(text for text in (self.quote or close, opening, *self.ends) if text))


@dataclass(frozen=True, slots=True)
class CallStyle:
    """One format's way of writing calls.

    opening, closing: around all calls; separator: between two; call: one call, with {name}, {args} and, where
    calls are numbered, {index}. trigger: the text that opens a call in free text; the text of the first call
    begins with it. arguments: None for a JSON object.
    thought: (start, end) of reasoning that precedes calls inside the same turn, where it is not the model's
    ordinary reasoning format (harmony). single: at most one call per turn. fenced: in a ```json fence calls may stand
    behind text too. strays: models that are asked in this format are known to write the bare JSON object, in a ```json
    fence or without one, so a forced call may too.
    """

    call: str
    trigger: str
    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    arguments: TaggedArguments | None = None
    thought: tuple[str, str] | None = None
    single: bool = False
    fenced: bool = False
    strays: bool = False

    @property
    def tagged(self) -> TaggedArguments | None:
        """How parameters are written; a raw value cannot hold the end of the call either, behind which a parser that
        makes do without the value's own end goes on."""
        arguments = self.arguments
        if arguments is None or arguments.quoted or arguments.quote or arguments.section:
            return arguments
        tail = self.call.split("{args}", 1)[1] + self.closing
        marks = re.findall(r"<\|\w+\|>\w+<\|\w+\|>|<[^>]+>", tail)
        return replace(arguments, ends=(*arguments.ends, marks[0]), again=(marks[-1], self.trigger))


_JSON_ARGUMENTS = '{"name": "{name}", "arguments": {args}}'
_JSON_PARAMETERS = '{"name": "{name}", "parameters": {args}}'
_XML = TaggedArguments("<parameter={key}>\n{value}\n</parameter>\n")
_GLM_LINES = TaggedArguments("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
_GLM = TaggedArguments("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
_PYTHON = TaggedArguments("{key}={value}", between=", ", quoted=True, unpacking="**")


def _hermes(opening: str, closing: str, *, strays: bool = False) -> CallStyle:
    return CallStyle(f"{opening}\n{_JSON_ARGUMENTS}\n{closing}", trigger=opening, strays=strays)


def _xml(tag: str) -> CallStyle:
    return CallStyle(f"<{tag}>\n<function={{name}}>\n{{args}}</function>\n</{tag}>", trigger=f"<{tag}>", arguments=_XML)


def _json_list(opening: str, closing: str = "") -> CallStyle:
    return CallStyle(
        _JSON_ARGUMENTS, trigger=opening + "[", opening=opening + "[", closing="]" + closing, separator=", "
    )


def _dsml(wrapper: str) -> CallStyle:
    return CallStyle(
        '<｜DSML｜invoke name="{name}">\n{args}</｜DSML｜invoke>',
        trigger=f"<｜DSML｜{wrapper}>",
        opening=f"<｜DSML｜{wrapper}>\n",
        closing=f"\n</｜DSML｜{wrapper}>",
        arguments=TaggedArguments('<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'),
    )


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_FENCE = "```"

STYLES: Mapping[str, CallStyle] = MappingProxyType(
    {
        "hermes": _hermes("<tool_call>", "</tool_call>", strays=True),
        "longcat": _hermes("<longcat_tool_call>", "</longcat_tool_call>"),
        "qwen3_coder": _xml("tool_call"),
        "seed_oss": _xml("seed:tool_call"),
        "llama3_json": CallStyle(_JSON_PARAMETERS, trigger="", separator="; "),
        "pythonic": CallStyle(
            "{name}({args})", trigger="[", opening="[", closing="]", separator=", ", arguments=_PYTHON
        ),
        "olmo3": CallStyle(
            "{name}({args})\n",
            trigger="<function_calls>",
            opening="<function_calls>\n",
            closing="</function_calls>",
            separator="",
            arguments=_PYTHON,
        ),
        "lfm2": CallStyle(
            "{name}({args})",
            trigger="<|tool_call_start|>",
            opening="<|tool_call_start|>[",
            closing="]<|tool_call_end|>",
            separator=", ",
            arguments=_PYTHON,
        ),
        "mistral": CallStyle(
            _JSON_ARGUMENTS, trigger="[TOOL_CALLS]", opening="[TOOL_CALLS] [", closing="]", separator=", "
        ),
        "mistral_v11": CallStyle("[TOOL_CALLS]{name}[ARGS]{args}", trigger="[TOOL_CALLS]", separator=""),
        "deepseek_v3": CallStyle(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{name}}\n{_FENCE}json\n{{args}}\n{_FENCE}<｜tool▁call▁end｜>",
            trigger=_DEEPSEEK[0],
            opening=_DEEPSEEK[0],
            closing=_DEEPSEEK[1],
        ),
        "deepseek_v31": CallStyle(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{args}<｜tool▁call▁end｜>",
            trigger=_DEEPSEEK[0],
            opening=_DEEPSEEK[0],
            closing=_DEEPSEEK[1],
            separator="",
        ),
        "deepseek_v32": _dsml("function_calls"),
        "deepseek_v4": _dsml("tool_calls"),
        "glm45": CallStyle("<tool_call>{name}\n{args}</tool_call>", trigger="<tool_call>", arguments=_GLM_LINES),
        "glm47": CallStyle("<tool_call>{name}{args}</tool_call>", trigger="<tool_call>", separator="", arguments=_GLM),
        "hunyuan": CallStyle(
            "<tool_call>{name}<tool_sep>\n{args}</tool_call>\n",
            trigger="<tool_calls>",
            opening="<tool_calls>\n",
            closing="</tool_calls>",
            separator="",
            arguments=_GLM_LINES,
        ),
        "kimi_k2": CallStyle(
            "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{args}<|tool_call_end|>",
            trigger="<|tool_calls_section_begin|>",
            opening="<|tool_calls_section_begin|>",
            closing="<|tool_calls_section_end|>",
            separator="",
        ),
        "kimi_k3": CallStyle(
            '<|open|>call tool="{name}" index="{index}"<|sep|>{args}<|close|>call<|sep|>',
            trigger="<|open|>tools<|sep|>",
            opening="<|open|>tools<|sep|>",
            closing="<|close|>tools<|sep|>",
            separator="",
            arguments=TaggedArguments(
                '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>'
            ),
        ),
        "minimax_m2": CallStyle(
            '<invoke name="{name}">\n{args}</invoke>\n',
            trigger="<minimax:tool_call>",
            opening="<minimax:tool_call>\n",
            closing="</minimax:tool_call>",
            separator="",
            arguments=TaggedArguments('<parameter name="{key}">{value}</parameter>\n'),
        ),
        "gpt_oss": CallStyle(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{args}",
            trigger="<|channel|>commentary to=functions.",
            thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
            single=True,
        ),
        "step3": CallStyle(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{args}</steptml:invoke>'
            "<｜tool_call_end｜>",
            trigger="<｜tool_calls_begin｜>",
            opening="<｜tool_calls_begin｜>",
            closing="<｜tool_calls_end｜>",
            separator="",
            arguments=TaggedArguments('<steptml:parameter name="{key}">{value}</steptml:parameter>'),
        ),
        "internlm": CallStyle(
            f"<|action_start|> <|plugin|>\n{_JSON_PARAMETERS}<|action_end|>", trigger="<|action_start|>", separator=""
        ),
        "apertus": CallStyle(
            '{"{name}": {args}}',
            trigger="<|tools_prefix|>",
            opening="<|tools_prefix|>[",
            closing="]<|tools_suffix|>",
            separator=", ",
        ),
        "cohere_command4": CallStyle(
            '{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {args}}',
            trigger="<|START_ACTION|>",
            opening="<|START_ACTION|>[\n",
            closing="\n]<|END_ACTION|>",
            separator=",\n",
        ),
        "gigachat3": CallStyle(
            f"<|function_call|>{_JSON_ARGUMENTS}", trigger="<|function_call|>", separator="", single=True
        ),
        "gemma4": CallStyle(
            "<|tool_call>call:{name}{{args}}<tool_call|>",
            trigger="<|tool_call>",
            separator="",
            arguments=TaggedArguments("{key}:{value}", between=",", quote='<|"|>'),
        ),
        "functiongemma": CallStyle(
            "<start_function_call>call:{name}{{args}}<end_function_call>",
            trigger="<start_function_call>",
            separator="",
            arguments=TaggedArguments("{key}:{value}", between=",", quote="<escape>"),
        ),
        "minicpm5": CallStyle(
            '<function name="{name}">{args}</function>',
            trigger='<function name="',
            separator="",
            arguments=TaggedArguments(
                '<param name="{key}">{value}</param>', ends=("<", "&"), section=("<![CDATA[", "]]>")
            ),
        ),
        "dots": CallStyle(
            '<invoke name="{name}">\n{args}</invoke>\n',
            trigger="<dots_function_call>",
            opening="<dots_function_call>\n",
            closing="</dots_function_call>",
            separator="",
            arguments=TaggedArguments('<parameter name="{key}">{value}</parameter>\n'),
        ),
        "inkling": CallStyle(
            '<|message_model|>{name}<|content_invoke_tool_json|>{"name":"{name}","args":{args}}<|end_message|>',
            trigger="<|message_model|>",
            separator="",
        ),
        "granite_20b_fc": CallStyle(f"<function_call> {_JSON_ARGUMENTS}", trigger="<function_call>"),
        "granite": _json_list("<|tool_call|>"),
        "jamba": _json_list("<tool_calls>", "</tool_calls>"),
        "hunyuan_a13b": _json_list("<tool_calls>", "</tool_calls>"),
        "ernie45": _hermes("<tool_call>", "</tool_call>"),
        "phi4_mini_json": _json_list("functools"),
        "xlam": replace(_json_list(""), fenced=True),
    }
)
"""By the canonical format names of toolcall.registry. minimax_m3 and muse_glimmer nest or address their calls in
ways no template states; forced calls with them use a JSON list, which their parsers accept through rescue."""

STRAY = _JSON_ARGUMENTS
"""What models write that forget their format."""

FALLBACK = _hermes("<tool_call>", "</tool_call>")
