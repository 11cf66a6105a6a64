"""No regular expression of ours can be made slow by the text it reads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.regexes import ambiguities
from tests.source_tree import ROOT


def test_every_pattern_that_is_compiled_matches_in_linear_time() -> None:
    command = [sys.executable, "-m", "tests.regexes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    patterns = json.loads(done.stdout)
    print(f"patterns: {len(patterns)}")
    assert len(patterns) > 100
    wrong = {
        f"{file}: {pattern}": problems
        for pattern, (file, flags) in patterns.items()
        if (problems := ambiguities(pattern, flags))
    }
    assert not wrong


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(a*)*b",
        r"(?:a|b+)+c",
        r"(\w+\s?)+x",
        r"a*a*b",
        r"\s*,?\s*x",
        r"[\s=]*(?:name\s*=\s*)?x\s*[ ]*y",
        r".*<tool_call>.*</tool_call>",
        r"\d+[.]?\d+x",
        r"(?:[^<]+|<)*>",
    ],
)
def test_slow_patterns_are_noticed(pattern: str) -> None:
    assert ambiguities(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"a+b+c",
        r"[ \t]*[a-z]+\d*",
        r"(?:ab*c)+",
        r"\w+=\d+",
        r"(?:a,\s*)*b",
        r"a{0,8}a{0,8}",
        r"[^\"]*\"[^\"]*\"",
        r"[0-9]+(?:\.0+)?",
        r"\s*+x?\s*+y",
    ],
)
def test_fast_patterns_are_not(pattern: str) -> None:
    assert not ambiguities(pattern)
