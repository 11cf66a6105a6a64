"""``structural_tag`` (SGLang, xgrammar): free text in which a trigger opens one of several tagged JSON values.

    {"type": "structural_tag",
     "structures": [{"begin": "<function=f>", "schema": {...}, "end": "</function>"}, ...],
     "triggers": ["<function="]}

Text is free until a trigger was written; then it must go on as one of the structures that begin with it, and is
free again after that one's end. White space inside a trigger is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.messages import GrammarSpec
from server import limits
from server.constraints import OutputShape
from server.errors import BadRequest, invalid
from server.schema_check import check_schema
from server.schema_tidying import tidied
from toolcall.constraint_json import json_rule
from toolcall.lark import Rules, lark_text
from toolcall.schema_narrowing import narrowed


def parse_structural_tag(value: Mapping[str, Any], param: str) -> OutputShape:
    """Raises BadRequest naming the part that is wrong."""
    if "format" in value:
        raise BadRequest(
            f"'{param}.format' is not supported; use 'structures' and 'triggers'.",
            param=f"{param}.format",
            code="unsupported_parameter",
        )
    triggers = _strings(value.get("triggers"), f"{param}.triggers", limits.MAX_TRIGGERS)
    structures = value.get("structures")
    if not isinstance(structures, list) or not structures:
        raise invalid(f"{param}.structures", "a list of at least one structure is expected")
    if len(structures) > limits.MAX_STRUCTURES:
        raise invalid(f"{param}.structures", f"more than {limits.MAX_STRUCTURES} structures")
    rules = Rules()
    bodies = [
        _structure(rules, structure, triggers, f"{param}.structures[{index}]")
        for index, structure in enumerate(structures)
    ]
    squeezed = tuple(dict.fromkeys("".join(trigger.split()) for trigger in triggers))
    spec = GrammarSpec(kind="lark", source=rules.text(" | ".join(dict.fromkeys(bodies))), triggers=squeezed)
    return OutputShape(grammar=spec, param=param)


def _structure(rules: Rules, structure: Any, triggers: list[str], param: str) -> str:
    """The name of a rule for one structure."""
    if not isinstance(structure, dict):
        raise invalid(param, "an object is expected")
    begin, end = structure.get("begin"), structure.get("end")
    for name, text in (("begin", begin), ("end", end)):
        if not isinstance(text, str) or len(text) > limits.MAX_TAG_CHARS or (name == "begin" and not text.strip()):
            raise invalid(f"{param}.{name}", f"a string of at most {limits.MAX_TAG_CHARS} characters is expected")
    assert isinstance(begin, str)
    assert isinstance(end, str)
    if not begin.startswith(tuple(triggers)):
        raise invalid(f"{param}.begin", "it starts with none of the triggers")
    schema = tidied(structure.get("schema"))
    check_schema({} if schema is None else schema, f"{param}.schema")
    parts = [lark_text(begin, flexible=False), json_rule(rules, narrowed(schema or {}), flexible=True)]
    return rules.add("structure", " ".join([*parts, *([lark_text(end, flexible=False)] if end else [])]))


def _strings(value: Any, param: str, most: int) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= most:
        raise invalid(param, f"a list of 1 to {most} strings is expected")
    for text in value:
        if not isinstance(text, str) or not text.strip() or len(text) > limits.MAX_TAG_CHARS:
            raise invalid(param, f"strings of 1 to {limits.MAX_TAG_CHARS} characters are expected")
    return value
