"""The OpenAPI document against the server: schemathesis makes requests from it, over ASGI.

CALLGATE_OPENAPI_EXAMPLES sets the number of examples per operation; 2000 is the full run. A 5xx is never allowed.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server.app import build_app
from server.args import ServerArgs
from server.constrainer import Constrainer
from tests.fakes import ScriptedEngine
from tests.server.conftest import FakeChecker

EXAMPLES = int(os.environ.get("CALLGATE_OPENAPI_EXAMPLES", "8"))
APP = build_app(ScriptedEngine("ok"), ServerArgs(), constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
SCHEMA.app = APP
ADMIN_HEADERS = {"host": "localhost"}


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=EXAMPLES < 100,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@pytest.mark.filterwarnings("default")
def test_every_operation_keeps_to_the_document(case: Any) -> None:
    response = case.call(headers=ADMIN_HEADERS)
    assert response.status_code < 500, response.text[:500]
    case.validate_response(
        response, checks=[status_code_conformance, content_type_conformance, response_schema_conformance]
    )


def test_what_streams_says_so() -> None:
    streams = {
        path
        for path, operations in APP.openapi()["paths"].items()
        if "text/event-stream" in operations.get("post", {}).get("responses", {}).get("200", {}).get("content", {})
    }
    openai = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
    assert streams == {"/generate", "/completion", "/infill", *openai}
