"""What models are reported to write instead of their format, and what is made of it: tests/data/toolcall_variants.jsonl
and the files beside it.

Missing, doubled and misspelt marks, marks inside values, other families' ways, drafts: under every chunking.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toolcall
from tests.cases.text_cases import check

FILES = sorted((Path(__file__).parents[1] / "data").glob("toolcall_variants*.jsonl"))
CASES = [json.loads(line) for file in FILES for line in file.read_text("utf-8").strip().split("\n")]


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case['id']}" for index, case in enumerate(CASES)])
def test_variant(case: dict[str, Any]) -> None:
    assert not check(case)


def test_every_format_has_variants() -> None:
    assert {toolcall.get_format(case["format"]).name for case in CASES} == {f.name for f in toolcall.list_formats()}
