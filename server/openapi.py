"""The OpenAPI document, with what every operation has in common."""

from __future__ import annotations

import re
from typing import Any

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
_ERROR = {"description": "Error", "content": {"application/json": {"schema": ERROR_SCHEMA}}}


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
