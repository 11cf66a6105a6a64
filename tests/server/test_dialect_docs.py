"""The sections of docs/api.md on /v1/responses and /v1/messages name every field that the code knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.anthropic import fields as messages
from server.anthropic.types import MessagesRequest
from server.openai.responses import fields as responses
from server.openai.types.responses import ResponsesRequest

TEXT = (Path(__file__).parent.parent.parent / "docs" / "api.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("route", "kind", "ignored", "refused"),
    [
        ("/v1/responses", ResponsesRequest, responses.IGNORED, responses.REFUSED),
        ("/v1/messages", MessagesRequest, messages.IGNORED, messages.REFUSED),
    ],
)
def test_every_field_has_its_answer(
    route: str, kind: Any, ignored: Mapping[str, str], refused: Mapping[str, Any]
) -> None:
    section = TEXT.partition(f"\n## `POST {route}`")[2].partition("\n## ")[0]
    head, _, tail = section.partition("\nWithout effect:")
    table, _, last = tail.partition("\nAnswered with a 400")
    named = head.rpartition("Supported fields:")[2]
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        assert f"`{name}`" in named or name in ignored or name in refused, name
    for name, why in ignored.items():
        assert f"| `{name}` | {why} |" in table
    for name in refused:
        assert f"`{name}`" in last
    assert not ignored.keys() & refused.keys()
