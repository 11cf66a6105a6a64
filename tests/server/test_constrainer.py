"""What a format's calls cannot be held to is refused or reported, never silently left out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.constrainer import Constrainer, UnusableSchema
from tests.cases.grammars import follows
from toolcall.constraints import ConstrainedTool, ConstraintRequest

GAPS: dict[str, dict[str, Any]] = {
    "/minProperties": {"properties": {"a": {"type": "string"}}, "minProperties": 1},
    "/anyOf": {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "/properties/a/pattern": {"properties": {"a": {"type": "string", "pattern": "(^a|b$)"}}},
    "/properties/a>b": {"properties": {"a>b": {"type": "integer"}}},
}


@pytest.fixture
async def constrainer() -> AsyncIterator[Constrainer]:
    made = Constrainer()
    yield made
    await made.close()


def request(format_name: str, schema: dict[str, Any], *, strict: bool) -> ConstraintRequest:
    tool = ConstrainedTool("f", {"type": "object", **schema}, strict=strict)
    return ConstraintRequest(format=format_name, tools=[tool], choice="required")


@pytest.mark.parametrize("pointer", GAPS)
async def test_a_gap_of_the_format(constrainer: Constrainer, pointer: str) -> None:
    lax = await constrainer.constrain(request("qwen3_coder", GAPS[pointer], strict=False))
    assert lax.spec is not None
    assert len(lax.relaxations) == 1
    assert f"tools[0].function.parameters{pointer} is not enforced" in lax.relaxations[0]
    with pytest.raises(UnusableSchema) as refused:
        await constrainer.constrain(request("qwen3_coder", GAPS[pointer], strict=True))
    assert refused.value.pointer == pointer


@pytest.mark.parametrize("pointer", GAPS)
@pytest.mark.parametrize("format_name", ["hermes", "pythonic"])
async def test_formats_with_json_have_none(constrainer: Constrainer, format_name: str, pointer: str) -> None:
    assert not (await constrainer.constrain(request(format_name, GAPS[pointer], strict=True))).relaxations


async def test_what_is_not_the_gap_is_enforced(constrainer: Constrainer) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^x+$"}}, "minProperties": 1}
    found = await constrainer.constrain(request("qwen3_coder", schema, strict=False))
    assert found.spec is not None
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert [follows(found.spec, call.format(text)) for text in ("xx", "y")] == [True, False]


async def test_a_pattern_beyond_the_compiler_leaves_a_call(constrainer: Constrainer) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": r"^(?=.*\d).+$"}}}
    for format_name in ("qwen3_coder", "gemma4", "hermes"):
        found = await constrainer.constrain(request(format_name, schema, strict=False))
        assert found.spec is not None
        assert len(found.relaxations) == 1
