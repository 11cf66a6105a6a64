"""From what a request may answer to a grammar that is known to compile.

A schema that cannot be compiled is refused with a JSON pointer where the client asked for strictness or the
schema itself is broken; otherwise it is relaxed, logged, and reported to the client.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from engine.grammar.check import GrammarChecker
from engine.grammar.interface import GrammarError
from engine.grammar.source import check_regex
from engine.messages import GrammarSpec
from server.schema_check import walk
from server.schema_relaxing import exhausts, is_broken, locate, lost_patterns, relaxed, uncounted, without
from toolcall.constraint_json import value_spec
from toolcall.constraints import ConstraintRequest, build_constraint, call_gaps, enforces
from toolcall.regex_dialect import translated
from toolcall.schema import kinds_of
from toolcall.schema_narrowing import narrowed
from toolcall.schema_references import escaped

logger = logging.getLogger(__name__)

MAX_EXHAUSTING = 1
"""Schemas of one request that may cost the check worker its life before the request is refused: each takes seconds."""
BY_FORMAT = "This model's format of calls cannot be held to it."
Schema = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Constrained:
    """The grammar (None: free text) and, for each relaxation, one sentence for the client."""

    spec: GrammarSpec | None
    relaxations: tuple[str, ...] = ()


class UnusableSchema(GrammarError):
    """``param`` is the request field at fault; ``pointer`` leads into its schema."""

    def __init__(self, param: str, pointer: str, message: str) -> None:
        super().__init__(f"{param}{pointer}: {message}" if param else message)
        self.param = param
        self.pointer = pointer


class Constrainer:
    """Builds and checks the grammar of one request after another; owns the check worker."""

    def __init__(self, checker: GrammarChecker | None = None) -> None:
        self._checker = checker or GrammarChecker()

    async def close(self) -> None:
        await self._checker.close()

    async def constrain(self, request: ConstraintRequest, *, document_strict: bool = False) -> Constrained:
        """The grammar for ``request``. Raises UnusableSchema where a schema must be refused."""
        for index, tool in enumerate(request.tools):
            check_patterns(tool.parameters or {}, f"tools[{index}].function.parameters")
        if request.document is not None:
            check_patterns(request.document, "response_format.json_schema.schema")
        return await self._judged(request, document_strict)

    async def check(self, spec: GrammarSpec, param: str) -> GrammarSpec:
        """``spec`` as a client wrote it (regex, ebnf, choice, json), where it compiles; else UnusableSchema. A regex
        that is none in Rust's dialect may be one in ECMA's."""
        error = await self._error(spec)
        if error is not None and spec.kind == "regex":
            other = GrammarSpec(kind="regex", source=translated(spec.source))
            if other != spec and await self._error(other) is None:
                return other
        if error is not None:
            raise UnusableSchema(param, "", error)
        return spec

    async def _judged(self, request: ConstraintRequest, document_strict: bool) -> Constrained:
        notes: list[str] = []
        tools = []
        for index, tool in enumerate(request.tools):
            param = f"tools[{index}].function.parameters"
            if not enforces(request, tool):
                tools.append(tool)
                continue
            kinds = kinds_of(tool.parameters, tool.parameters)
            if kinds and "object" not in kinds and (tool.strict or request.choice == "required"):
                raise UnusableSchema(param, "", "Arguments are an object, which this schema does not allow.")
            declared = tool.parameters
            schema, lax, free, note = await self._judge(tool.schema, param, strict=tool.strict)
            tool = dataclasses.replace(tool, parameters=schema if note else tool.parameters)
            gaps = (
                {}
                if free
                else _gaps(schema) | dict.fromkeys(call_gaps(request.format, tool.schema, declared), BY_FORMAT)
            )
            for gap, message in gaps.items():
                if tool.strict:
                    raise UnusableSchema(param, gap, message)
                note = [*note, f"{param}{gap} is not enforced: {message}"]
            notes += note
            if sum(map(exhausts, notes)) > MAX_EXHAUSTING:
                raise UnusableSchema(param, "", "Together with the tools before it, this takes too long to compile.")
            tools.append(dataclasses.replace(tool, relaxed=lax, free=free))
        request = dataclasses.replace(request, tools=tuple(tools))
        if request.document is not None:
            param = "response_format.json_schema.schema"
            asked = narrowed(request.document)
            schema, lax, free, note = await self._judge(asked, param, strict=document_strict)
            notes += [*note, *(f"{param}{gap} is not enforced: {message}" for gap, message in _gaps(schema).items())]
            document = {"type": "object"} if free else schema
            request = dataclasses.replace(request, document=document, document_relaxed=lax)
        spec = build_constraint(request)
        if spec is not None and (error := await self._error(spec)) is not None:
            raise UnusableSchema("tools" if tools else "response_format", "", error)
        for note_text in notes:
            logger.warning("schema relaxed: %s", note_text)
        return Constrained(spec, tuple(notes))

    async def _judge(self, schema: Schema, param: str, *, strict: bool) -> tuple[Schema, bool, bool, list[str]]:
        """(what is left of the schema, relaxed, free, notes) for one schema alone."""
        error = await self._error(value_spec(schema))
        if error is None:
            return schema, False, False, []
        if is_broken(schema, error):
            raise UnusableSchema(param, locate(schema, error), error)
        asked = schema
        left: str | None = error
        lost = {} if exhausts(error) else await lost_patterns(schema, self._error)
        if lost:
            schema = without(schema, frozenset(lost))
            left = await self._error(value_spec(schema))
        if left is not None:
            schema, more, left = await relaxed(schema, left, self._error)
            lost |= more
        if strict:
            raise UnusableSchema(param, next(iter(lost), locate(asked, error)), next(iter(lost.values()), error))
        notes = [f"{param}{pointer} is not enforced: {why}" for pointer, why in lost.items()]
        if left is None:
            return schema, False, False, notes
        if not exhausts(left) and await self._error(value_spec(schema, lenient=True)) is None:
            return schema, True, False, [*notes, f"{param}{locate(schema, left)} is not enforced: {left}"]
        return schema, False, True, [f"{param} is not enforced at all: {left}"]

    async def _error(self, spec: GrammarSpec) -> str | None:
        try:
            await self._checker.check(spec)
        except GrammarError as error:
            return readable(str(error))
        return None


def _gaps(schema: Schema) -> dict[str, str]:
    """What compiles but is not held, and why."""
    return dict.fromkeys(uncounted(schema), "One name, written twice, would count twice.")


def readable(error: str) -> str:
    """A compiler's message without its position in a grammar that the client never saw."""
    _, found, rest = error.partition("failed to compile JSON schema: ")
    return rest if found else error


def check_patterns(schema: Schema, param: str) -> None:
    """Refuse regexes that are too large, too deep or repeat nothing before any compiler sees them."""
    for pointer, node, _ in walk(schema):
        patterns = {"/pattern": node.get("pattern")} if isinstance(node.get("pattern"), str) else {}
        keyed = node.get("patternProperties")
        if isinstance(keyed, Mapping):
            patterns |= {f"/patternProperties/{escaped(key)}": key for key in keyed}
        for at, pattern in patterns.items():
            try:
                check_regex(str(pattern))
            except GrammarError as error:
                raise UnusableSchema(param, pointer + at, str(error)) from None
