"""From what a request may answer to a grammar that is known to compile.

A schema that cannot be compiled is refused with a JSON pointer where the client asked for strictness or the
schema itself is broken; otherwise it is relaxed, logged, and reported to the client.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.grammar.check import TOO_LARGE, TOO_SLOW, GrammarChecker
from engine.grammar.interface import GrammarError
from engine.grammar.source import check_regex
from engine.messages import GrammarSpec
from toolcall.constraint_arguments import close_objects
from toolcall.constraints import ConstraintRequest, build_constraint, call_gap, enforces

logger = logging.getLogger(__name__)

MAX_SCHEMA_DEPTH = 64
MAX_EXHAUSTING = 1
"""Schemas of one request that may cost the check worker its life before the request is refused: each takes seconds."""
MAX_PATTERN_NODES = 2048
"""Patterns are looked for in so many places of a schema."""
Schema = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Constrained:
    """The grammar (None: free text) and, for each relaxation, one sentence for the client."""

    spec: GrammarSpec | None
    relaxations: tuple[str, ...] = ()


class UnusableSchema(GrammarError):
    """``param`` is the request field at fault; ``pointer`` leads into its schema."""

    def __init__(self, param: str, pointer: str, message: str) -> None:
        super().__init__(f"{param}{pointer}: {message}" if param else message, pointer)
        self.param = param


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
        """``spec`` as a client wrote it (regex, ebnf, choice, json), where it compiles; else UnusableSchema."""
        error = await self._error(spec)
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
            schema, relaxed, free, note = await self._judge(tool.schema(), param, strict=tool.strict)
            tool = dataclasses.replace(tool, parameters=schema if note else tool.parameters)
            if not free and (gap := call_gap(request.format, tool.schema())) is not None:
                message = "This model's format of calls cannot be held to it."
                if tool.strict:
                    raise UnusableSchema(param, gap, message)
                note = [*note, f"{param}{gap} is not enforced: {message}"]
            notes += note
            if sum(map(exhausts, notes)) > MAX_EXHAUSTING:
                raise UnusableSchema(param, "", "Together with the tools before it, this takes too long to compile.")
            tools.append(dataclasses.replace(tool, relaxed=relaxed, free=free))
        request = dataclasses.replace(request, tools=tuple(tools))
        if request.document is not None:
            param = "response_format.json_schema.schema"
            schema, relaxed, free, note = await self._judge(request.document, param, strict=document_strict)
            notes += note
            document = {"type": "object"} if free else schema
            request = dataclasses.replace(request, document=document, document_relaxed=relaxed)
        spec = build_constraint(request)
        if spec is not None and (error := await self._error(spec)) is not None:
            raise UnusableSchema("tools" if tools else "response_format", "", error)
        for note_text in notes:
            logger.warning("schema relaxed: %s", note_text)
        return Constrained(spec, tuple(notes))

    async def _judge(self, schema: Schema, param: str, *, strict: bool) -> tuple[Schema, bool, bool, list[str]]:
        """(what is left of the schema, relaxed, free, notes) for one schema alone."""
        error = await self._error(_schema_spec(schema, lenient=False))
        if error is None:
            return schema, False, False, []
        lost = {} if exhausts(error) else await self._lost_patterns(schema)
        if strict or is_broken(schema, error):
            raise UnusableSchema(param, next(iter(lost), locate(schema, error)), error)
        notes = [f"{param}{pointer} is not enforced: {why}" for pointer, why in lost.items()]
        schema = _without(schema, frozenset(lost)) if lost else schema
        error = await self._error(_schema_spec(schema, lenient=False)) if lost else error
        if error is None:
            return schema, False, False, notes
        if not exhausts(error) and await self._error(_schema_spec(schema, lenient=True)) is None:
            return schema, True, False, [*notes, f"{param}{locate(schema, error)} is not enforced: {error}"]
        return schema, False, True, [f"{param} is not enforced at all: {error}"]

    async def _lost_patterns(self, schema: Schema) -> dict[str, str]:
        """Pointers of the patterns that are beyond the compiler (look-around, references back), and why."""
        found = {}
        for pointer, node in itertools.islice(subschemas(schema), MAX_PATTERN_NODES):
            if isinstance(pattern := node.get("pattern"), str) and _is_regex(pattern):
                error = await self._error(_schema_spec({"type": "string", "pattern": pattern}, lenient=False))
                if error is not None and not exhausts(error):
                    found[f"{pointer}/pattern"] = error
        return found

    async def _error(self, spec: GrammarSpec) -> str | None:
        try:
            await self._checker.check(spec)
        except GrammarError as error:
            return readable(str(error))
        return None


def _without(node: Any, pointers: frozenset[str], at: str = "") -> Any:
    """The schema without what these pointers lead to."""
    if isinstance(node, list):
        return [_without(item, pointers, f"{at}/{index}") for index, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    below = {key: f"{at}/{_escape(key)}" for key in node}
    return {key: _without(value, pointers, below[key]) for key, value in node.items() if below[key] not in pointers}


def _schema_spec(schema: Schema, *, lenient: bool) -> GrammarSpec:
    body = {key: value for key, value in close_objects(schema).items() if key != "x-guidance"}
    options = {"lenient": True} if lenient else {}
    return GrammarSpec(kind="json_schema", source=json.dumps({"x-guidance": options, **body}, ensure_ascii=False))


def exhausts(error: str) -> bool:
    """Whether what a message tells of took all the time or memory that there is."""
    return TOO_SLOW in error or TOO_LARGE in error


def readable(error: str) -> str:
    """A compiler's message without its position in a grammar that the client never saw."""
    _, found, rest = error.partition("failed to compile JSON schema: ")
    return rest if found else error


def subschemas(schema: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object in a schema with its JSON pointer, depth first. Stops below MAX_SCHEMA_DEPTH."""
    stack = [(pointer, schema, 0)]
    while stack:
        at, node, depth = stack.pop()
        if depth > MAX_SCHEMA_DEPTH:
            continue
        if isinstance(node, Mapping):
            yield at, node
            stack += [(f"{at}/{_escape(key)}", value, depth + 1) for key, value in reversed(list(node.items()))]
        elif isinstance(node, list):
            stack += [(f"{at}/{index}", value, depth + 1) for index, value in reversed(list(enumerate(node)))]


def _escape(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def check_patterns(schema: Schema, param: str) -> None:
    """Refuse regexes that are too large, too deep or repeat nothing before any compiler sees them."""
    for pointer, node in subschemas(schema):
        patterns = {"/pattern": node.get("pattern")} if isinstance(node.get("pattern"), str) else {}
        keyed = node.get("patternProperties")
        if isinstance(keyed, Mapping):
            patterns |= {f"/patternProperties/{_escape(key)}": key for key in keyed}
        for at, pattern in patterns.items():
            try:
                check_regex(str(pattern))
            except GrammarError as error:
                raise UnusableSchema(param, pointer + at, str(error)) from None


def is_broken(schema: Schema, error: str) -> bool:
    """The schema is wrong in itself, not just beyond the compiler: nothing satisfies it, or a regex is malformed."""
    if "nsatisfiable" in error:
        return True
    return "regex" in error and not all(_is_regex(pattern) for pattern in _patterns(schema))


def _patterns(schema: Schema) -> Iterator[str]:
    for _, node in subschemas(schema):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        if isinstance(node.get("patternProperties"), Mapping):
            yield from node["patternProperties"]


def _is_regex(pattern: str) -> bool:
    """A second judge, who knows look-around, which the grammar compiler does not."""
    try:
        re.compile(re.sub(r"\\[pP]\{[^}]*\}", "x", pattern))
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def locate(schema: Schema, error: str) -> str:
    """The pointer of the first place that a compiler's message names a keyword or pattern of; "" if none."""
    for pointer, node in subschemas(schema):
        for key, value in node.items():
            quoted = key in ("pattern", "format", "type") and isinstance(value, str) and value in error
            if quoted or f'"{key}"' in error:
                return f"{pointer}/{_escape(key)}"
    return ""
