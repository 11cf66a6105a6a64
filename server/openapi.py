"""The OpenAPI document. Bodies are read by our own code, so it gets their schemas from msgspec."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _answer(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


_ERROR = _answer("Error", ERROR_SCHEMA)


class AnyBody(msgspec.Struct):
    """An object."""


def openapi_body(
    request: type, answer: type, *, streams: bool | str = False, error: dict[str, Any] = ERROR_SCHEMA
) -> dict[str, Any]:
    """``openapi_extra`` of a route whose body we read ourselves. streams: the media type where it is no SSE."""
    answered, refused = _answer("Answer", _inline_schema(answer)), _answer("Error", error)
    if streams:
        media_type = streams if isinstance(streams, str) else "text/event-stream"
        answered["content"][media_type] = {"schema": {"type": "string"}}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _inline_schema(request)}}},
        "responses": {"200": answered, "4XX": refused, "503": refused},
    }


def openapi_answer(answer: type, *queries: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """``openapi_extra`` of a route without a body."""
    return {
        "parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in queries],
        "responses": {"200": _answer("Answer", _inline_schema(answer))},
    }


@cache
def _inline_schema(kind: type) -> dict[str, Any]:
    """A struct's JSON schema without references outside itself. Shared by all routes and applications: read only."""
    (_, components) = msgspec.json.schema_components([kind], ref_template="{name}")
    return dict(_inlined(components[kind.__name__], components))


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if set(node) == {"$ref"}:
            return _inlined(components[node["$ref"]], components)
        return {key: _inlined(value, components) for key, value in node.items()}
    return [_inlined(item, components) for item in node] if isinstance(node, list) else node


class GatewayApp(FastAPI):
    """FastAPI, whose document names each operation's errors and every parameter of its path."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            for path, item in document["paths"].items():
                for operation in item.values():
                    _complete(path, operation)
            self.openapi_schema = document
        return self.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    responses = operation.setdefault("responses", {})
    responses.setdefault("4XX", _ERROR)
    responses.setdefault("503", _ERROR)
    parameters = operation.setdefault("parameters", [])
    named = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
    for name in re.findall(r"{(\w+)", path):
        if name not in named:
            parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    if not parameters:
        del operation["parameters"]
