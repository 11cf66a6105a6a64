"""docs/api.md names every field that the code knows, and says of each what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.anthropic.types import MessagesRequest
from server.app import build_app
from server.args import ServerArgs
from server.native.types import GenerateRequest, NativeSampling
from server.openai.fields import GRAMMAR_FIELDS, IGNORED, REFUSED
from server.openai.types.chat import ChatCompletionRequest
from server.openai.types.completions import CompletionRequest
from server.openai.types.embeddings import EmbeddingRequest
from server.openai.types.responses import ResponsesRequest
from tests.fakes import ScriptedEngine

TEXT = (Path(__file__).parent.parent.parent / "docs" / "api.md").read_text("utf-8")


def test_every_field_has_its_answer() -> None:
    supported = TEXT.partition("Supported: ")[2].partition("Ignored,")[0]
    ignored = TEXT.partition("Ignored,")[2].partition("Refused with")[0]
    refused = TEXT.partition("Refused with")[2].partition("## Ceilings")[0]
    for field in msgspec.structs.fields(ChatCompletionRequest):
        assert f"`{field.encode_name}`" in supported
    for name in GRAMMAR_FIELDS:
        assert f"`{name}`" in supported
    for name, why in IGNORED.items():
        assert f"| `{name}` | {why} |" in ignored
    for name in REFUSED:
        assert f"`{name}`" in refused


def section(title: str) -> str:
    return TEXT.partition(f"## {title}")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("`POST /v1/completions`", CompletionRequest),
        ("`POST /v1/embeddings`", EmbeddingRequest),
        ("`POST /v1/responses`", ResponsesRequest),
        ("`POST /v1/messages`", MessagesRequest),
        ("Native routes", GenerateRequest),
        ("Native routes", NativeSampling),
    ],
)
def test_other_routes_name_every_field(title: str, kind: Any) -> None:
    text = section(title)
    assert [field.encode_name for field in msgspec.structs.fields(kind) if f"`{field.encode_name}`" not in text] == []


def test_every_route_is_listed() -> None:
    """Each path of the OpenAPI document stands in the table of routes, written out or as the tail of another."""
    table = section("Routes")
    paths = build_app(ScriptedEngine("x"), ServerArgs()).openapi()["paths"]
    for path in paths:
        shown = re.sub(r"\{\w+_id\}", "{id}", path)
        tails = ["…/" + "/".join(shown.split("/")[-count:]) + "`" for count in (1, 2, 3)]
        assert (
            shown in table
            or any(tail in table for tail in tails)
            or f"`/{shown.rpartition('/')[2]}`" in table
            or "cancel" in shown
        ), path


def test_no_field_has_two_answers_unless_only_one_value_is_refused() -> None:
    both = (IGNORED.keys() & REFUSED.keys()) - {
        "use_beam_search",
        "include_stop_str_in_output",
        "return_tokens_as_token_ids",
    }
    assert not both
    supported = {field.encode_name for field in msgspec.structs.fields(ChatCompletionRequest)}
    assert supported & IGNORED.keys() <= {"user", "metadata"}
    assert not supported & REFUSED.keys()
