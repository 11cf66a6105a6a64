"""What the answer's text must be, from any of the fields that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.constraints import OutputShape, parse_constraint, parse_response_format, parse_structured_outputs
from server.errors import BadRequest
from server.openai.fields import GRAMMAR_FIELDS
from server.structural_tag import parse_structural_tag

_OFF = (("grammar", ""),)
"""llama.cpp's own default, which its clients send."""


def output_shape(body: Mapping[str, Any]) -> OutputShape:
    """At most one of response_format, structured_outputs and the older spellings of the latter."""
    given = [name for name in ("response_format", "structured_outputs") if body.get(name)]
    given += [name for name in GRAMMAR_FIELDS if body.get(name) is not None and (name, body[name]) not in _OFF]
    if len(given) > 1:
        raise BadRequest(f"'{given[0]}' and '{given[1]}' exclude each other.", param=given[1])
    if not given:
        return parse_response_format(body.get("response_format"))
    name = given[0]
    value = body[name]
    if name == "response_format":
        if value.get("type") == "structural_tag":
            return parse_structural_tag(value, name)
        return parse_response_format(value)
    if name == "structured_outputs":
        return parse_structured_outputs(value)
    if name == "json_schema" and isinstance(value, str):
        raise BadRequest("'json_schema' must be an object; use response_format.", param="json_schema")
    return parse_constraint(GRAMMAR_FIELDS[name], value, name)
