"""Grammars for tool calls and documents: what a model may write, in the format that it was trained on.

``build_constraint`` turns the declared tools, the tool choice and the response format into one GrammarSpec
(Lark in llguidance's dialect). Forced calls use the format's canonical spacing, which leaves most tokens
without a choice; in ``auto`` the text is free until a call opens, and white space inside it is free too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from engine.messages import GrammarSpec
from toolcall.constraint_json import json_rule
from toolcall.constraint_styles import FALLBACK, STRAY, STYLES, CallStyle
from toolcall.constraint_tagged import tagged_gaps, tagged_rule
from toolcall.lark import (
    Rules,
    lark_json,
    lark_regex,
    lark_text,
)
from toolcall.schema_narrowing import narrowed

Schema = Mapping[str, Any]
Policy = Literal["on", "strict-only", "off"]
Reasoning = Literal["none", "open", "optional"]

MAX_BARE_TOOLS = 64
NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
GENERIC_TRIGGERS = ("", "[")
"""Triggers that ordinary text writes too: with them a call opens only at a declared tool's name."""


@dataclass(frozen=True)
class ConstrainedTool:
    """A declared tool. relaxed: its schema cannot be compiled as it is, unknown keywords are ignored.
    free: its schema cannot be used at all, the arguments are any JSON object."""

    name: str
    parameters: Schema | None = None
    strict: bool = False
    relaxed: bool = False
    free: bool = False

    @cached_property
    def schema(self) -> Schema:
        """The schema that the grammar enforces; a subset of what the client's allows."""
        if self.free:
            return {"type": "object"}
        return {**narrowed(self.parameters), "type": "object"} if self.parameters else NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class ConstraintRequest:
    """What one request may answer.

    format: canonical name of the tool-call format. document: the response format's JSON schema, None for
    free text. reasoning: ``open`` where the prompt ends inside reasoning, ``optional`` where the model may
    open it itself; the grammar begins after it. reasoning_markers: its (start, end) texts.
    """

    format: str
    tools: Sequence[ConstrainedTool] = ()
    choice: Literal["auto", "required"] = "auto"
    parallel: bool = True
    document: Schema | None = None
    document_relaxed: bool = False
    reasoning: Reasoning = "none"
    reasoning_markers: tuple[str, str] = ("<think>", "</think>")
    policy: Policy = "on"
    rescue: bool = True


def build_constraint(request: ConstraintRequest) -> GrammarSpec | None:
    """The grammar for a request, None where its text is wholly free.

    Raises nothing: schemas that no backend compiles are found by compiling (engine.grammar.check), after
    which the caller marks tools ``relaxed`` or ``free`` and builds again, or refuses.
    """
    tools = _constrained(request)
    if request.document is None and not tools:
        return None
    style = STYLES.get(request.format, FALLBACK)
    if request.choice == "auto" and request.document is None:
        return _triggered(request, style, tools)
    return _forced(request, style, tools)


def call_gaps(format_name: str, schema: Schema, declared: Schema | None = None) -> list[str]:
    """The pointers of what a format's calls cannot be held to, though a JSON object could; [] where all is enforced.
    ``declared``: what the client says, by which the parser reads."""
    arguments = STYLES.get(format_name, FALLBACK).tagged
    return list(tagged_gaps(arguments, schema, declared or schema)) if arguments is not None else []


def after_reasoning(grammar: str, reasoning: Reasoning, markers: tuple[str, str]) -> GrammarSpec:
    """A client's grammar (Lark) for a model that is reasoning, or may begin to: it holds from the end of that on,
    and the blank lines that models write there are no part of it. ``markers``: start and end of reasoning."""
    builder = _Builder(FALLBACK, flexible=False)
    body = builder.rules.add("client", f"%lark {{\n{grammar}\n}}")
    if reasoning == "open":
        return GrammarSpec(kind="lark", source=builder.rules.text(f"LAYOUT? {body}"), start_after=markers[1])
    return GrammarSpec(kind="lark", source=builder.rules.text(f"({builder.thought(*markers)} LAYOUT?)? {body}"))


def enforces(request: ConstraintRequest, tool: ConstrainedTool) -> bool:
    """Whether the grammar holds calls of this tool to its schema."""
    return request.choice == "required" or request.policy == "on" or (request.policy == "strict-only" and tool.strict)


def _constrained(request: ConstraintRequest) -> Sequence[ConstrainedTool]:
    if not any(enforces(request, tool) for tool in request.tools):
        return ()
    return [
        tool if enforces(request, tool) else ConstrainedTool(tool.name, tool.parameters, free=True)
        for tool in request.tools
    ]


def _forced(request: ConstraintRequest, style: CallStyle, tools: Sequence[ConstrainedTool]) -> GrammarSpec:
    builder = _Builder(style, flexible=False)
    bodies = []
    if tools:
        many = request.parallel and not style.single
        bodies.append(builder.calls(tools, many=many))
        if style.strays and request.rescue and len(tools) <= MAX_BARE_TOOLS:
            bodies.append(builder.strays(tools, many=many))
    if request.document is not None:
        bodies.append(json_rule(builder.rules, request.document, flexible=False, lenient=request.document_relaxed))
    start = "(" + " | ".join(bodies) + ")"
    if style.thought is not None:
        start = f"{builder.thought(*style.thought)}? {start}"
    elif request.reasoning == "optional":
        start = f"({builder.thought(*request.reasoning_markers)} LAYOUT?)? {start}"
    elif request.reasoning == "open":
        start = f"LAYOUT? {start}"
    open_end = request.reasoning_markers[1] if request.reasoning == "open" and style.thought is None else ""
    return GrammarSpec(kind="lark", source=builder.rules.text(start), start_after=open_end)


def _triggered(request: ConstraintRequest, style: CallStyle, tools: Sequence[ConstrainedTool]) -> GrammarSpec:
    builder = _Builder(style, flexible=True)
    many = request.parallel and bool(style.opening or style.closing)
    bodies = [builder.calls(tools, many=many)]
    triggers, bare = [style.trigger], []
    if style.trigger in GENERIC_TRIGGERS:
        triggers = [style.opening + _head(style, tool.name) for tool in tools[:MAX_BARE_TOOLS]]
        if style.arguments is None:
            triggers, bare = [], triggers
    if style.fenced:
        bodies.append(f'"```json" WS? {bodies[0]}')
        triggers += [f"```json{head}" for head in bare]
    if request.rescue and len(tools) <= MAX_BARE_TOOLS:
        bodies.append(builder.bare(tools))
        bare += [f'{{"name":"{tool.name}","{key}"' for tool in tools for key in ("arguments", "parameters")]
    end = request.reasoning_markers[1] if style.thought is None else ""
    return GrammarSpec(
        kind="lark",
        source=builder.rules.text(" | ".join(bodies)),
        triggers=_squeezed(triggers),
        triggers_at_start=_squeezed(bare),
        start_after=end if request.reasoning == "open" else "",
        restart_after=end if request.reasoning != "none" and bare else "",
    )


def _squeezed(triggers: Sequence[str]) -> tuple[str, ...]:
    """Without white space, which matching ignores, and each once."""
    return tuple(dict.fromkeys("".join(trigger.split()) for trigger in triggers))


def _head(style: CallStyle, name: str) -> str:
    """The literal text of a call up to and with what follows its name, before the arguments."""
    return style.call.split("{args}", 1)[0].replace("{name}", name).rstrip()


@dataclass(slots=True)
class _Builder:
    style: CallStyle
    flexible: bool
    rules: Rules = field(default_factory=Rules)

    def literal(self, text: str) -> str:
        return lark_text(text, flexible=self.flexible, is_json='"name"' in self.style.call)

    def calls(self, tools: Sequence[ConstrainedTool], *, many: bool) -> str:
        style = self.style
        call = self.rules.add("call", " | ".join(self._call(style, tool) for tool in tools))
        repeated = f"{call} ({self.literal(style.separator)} {call})*" if many else call
        parts = (self.literal(style.opening), repeated, self.literal(style.closing))
        return self.rules.add("calls", " ".join(part for part in parts if part))

    def bare(self, tools: Sequence[ConstrainedTool]) -> str:
        """A call as a bare JSON object, the way models write it that forget their format."""
        names = []
        for tool in tools:
            arguments = json_rule(self.rules, tool.schema, flexible=True, lenient=tool.relaxed)
            names.append(f'{json.dumps(json.dumps(tool.name))} WS? "," WS? KEY WS? ":" WS? {arguments}')
        body = self.rules.add("named", " | ".join(names))
        self.rules.terminal("KEY", '"\\"arguments\\"" | "\\"parameters\\""')
        return self.rules.add("bare", f'"{{" WS? "\\"name\\"" WS? ":" WS? {body} WS? "}}"')

    def strays(self, tools: Sequence[ConstrainedTool], *, many: bool) -> str:
        """Calls as bare JSON objects, one a line, in a ```json fence or without one: what models write that forget
        their format. Only this spacing: where it is free, a small model chooses it token by token."""
        bodies = []
        for tool in tools:
            head, tail = STRAY.replace("{name}", tool.name).split("{args}")
            arguments = json_rule(self.rules, tool.schema, flexible=False, lenient=tool.relaxed)
            bodies.append(f"{lark_json(head)} {arguments} {lark_json(tail)}")
        call = self.rules.add("stray", " | ".join(bodies))
        calls = f'{call} ("\\n" {call})*' if many else call
        return self.rules.add("strays", f'"```json\\n" {calls} "\\n```" | {calls}')

    def thought(self, start: str, end: str) -> str:
        """Reasoning from its start to its end; the marker that begins the end cannot stand inside."""
        marker = end[: end.find(">") + 1] or end
        self.rules.terminal("THOUGHT", f"/(?s:.*)/ & ~{lark_regex(f'(?s:.*){re.escape(marker)}(?s:.*)')}")
        return self.rules.add(f"thought[suffix={json.dumps(end)}]", self.rules.joined(json.dumps(start), "THOUGHT"))

    def _call(self, style: CallStyle, tool: ConstrainedTool) -> str:
        head, tail = style.call.replace("{name}", tool.name).split("{args}", 1)
        parts = [self._numbered(head), self._arguments(style, tool), self._numbered(tail)]
        return self.rules.add("tool", " ".join(part for part in parts if part))

    def _numbered(self, text: str) -> str:
        pieces = [self.literal(piece) for piece in text.split("{index}")]
        return " INDEX ".join(pieces)

    def _arguments(self, style: CallStyle, tool: ConstrainedTool) -> str:
        if (arguments := style.tagged) is None:
            return json_rule(self.rules, tool.schema, flexible=self.flexible, lenient=tool.relaxed)
        return tagged_rule(self.rules, arguments, tool.schema, lenient=tool.relaxed)
