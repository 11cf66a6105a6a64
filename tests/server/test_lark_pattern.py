"""A Lark grammar as one pattern: the same texts, and a reason where there is no such pattern."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from engine.grammar.source import check_regex
from server.lark_pattern import MAX_PATTERN_CHARS, NoPattern, lark_pattern

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
SUM = """
    // indented, as in a program
    ?start: sum
    ?sum: product | sum "+" product -> add
    ?product.2: atom
        | product "*" atom   # left recursive
    atom: NUMBER | "-" atom | NAME
    %import common.CNAME -> NAME
    %import common.NUMBER
    %import common (WS_INLINE, NEWLINE)
    %ignore WS_INLINE
"""


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        (PATCH, ["*** Begin Patch\n*** Add File: a.py\n+x = 1\n+\n*** End Patch",
                 "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f\n-a\n+b\n c\n*** End of File\n*** End Patch\n"],
         ["*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\nx\n*** End Patch", ""]),
        (SUM, ["1", "1+2*x", "1 + 2 * -y ", " - -3"], ["", "1+", "1 2", "1\n+2", "(1)"]),
        ('start: "a" start | "b"', ["b", "aab"], ["a", "ba", ""]),
        ('start: start ("," | ";") "x" | "x"', ["x", "x,x;x"], ["x,", ",x"]),
        ('start: ["a"] "b"~2 "c"~1..3 "d"{2} "e"{0,1}', ["abbcdd", "bbcccdde"], ["abcdd", "bbccccdd"]),
        ('start: "a".."f"+', ["face"], ["g", ""]),
        ('start: "on"i | "o\\"f\\\\f\\n\\u00e9\\x41"', ["ON", "on", 'o"f\\f\néA'], ["of"]),
        ("start: /a\\/b/i X\nX: /[.\\/|]+/ | Y\nY: \"y\"", ["A/b||", "a/by"], ["ab"]),
        ('start: "a"?b\nb: "b"', ["ab", "b"], ["a"]),
        ('start: "a.b*(c)[d]{e}|f^$\\\\"', ["a.b*(c)[d]{e}|f^$\\"], ["axb*(c)[d]{e}|f^$\\"]),
        ("start: /a|b/ /c|d/", ["ac", "bd"], ["a", "d"]),
        ('start: a | "x"\na: "y" ("z" | start2)*\nstart2: "w"', ["yzwz", "x"], ["z"]),
        ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", ['"a\\"b"'], ['"a', '"a"b"']),
        ("start:\n  | \"a\"\n  | \"b\" \"c\"", ["", "a", "bc"], ["b"]),
    ],
)  # fmt: skip
def test_the_same_texts(grammar: str, yes: list[str], no: list[str]) -> None:
    pattern = lark_pattern(grammar)
    check_regex(f"^(?:{pattern})$")
    assert [text for text in yes if not re.fullmatch(pattern, text)] == []
    assert [text for text in no if re.fullmatch(pattern, text)] == []


DEEP = "\n".join(f'r{i}: r{i + 1} "x" r{i + 1}' for i in range(40)) + '\nr40: "y"\nstart: r0'


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('start: "(" start ")" | "x"', "back to itself"),
        ('start: a\na: "x" b | "y"\nb: "z" a "w"', "back to itself"),
        ("start: start", "back to itself"),
        ('start: start "a" start | "b"', "back to itself"),
        ('start: start "a" | "b" start | "c"', "back to itself"),
        ("start: gone", "no 'gone'"),
        ('x: "a"', "no 'start'"),
        ("", "no 'start'"),
        ('start: "a" "b', "not understood"),
        ('start: ("a"', "is missing"),
        ('start: "a")', "not expected"),
        ('start: "a"\nstart: "b"', "twice"),
        ("start: <|eot|>", "not understood"),
        ('start: %json {"type": "object"}', "%json is not understood"),
        ('start: _sep{a, ","}\n_sep{x, y}: x (y x)*\na: "a"', "no '_sep'"),
        ('start[capture]: "a"', "begins no rule"),
        ('start: a\na[stop="x"]: /.*/', "not understood"),
        ("start: X\n%import python.NAME -> X", "only common"),
        ("start: X\n%import common.GONE -> X", "no common"),
        ("%declare X\nstart: X", "not understood"),
        ('start: "\\ud800"', "no character"),
        ('start: "ab".."z"', "range"),
        ("start: X\nX: a\na: /x/", "not expected"),
        ('start: "a" ~', "number is missing"),
        ('start: ' + "(" * 60 + '"a"' + ")" * 60, "too deeply"),
        (DEEP, "too long"),
        ("start: " + '"a" ' * MAX_PATTERN_CHARS, "too long"),
    ],
)  # fmt: skip
def test_why_there_is_no_pattern(grammar: str, why: str) -> None:
    with pytest.raises(NoPattern, match=why):
        lark_pattern(grammar)


LONG = "a" * 20_000
HOSTILE = [
    "start: " + "|".join(['"x" start'] * 4000) + '|"y"',
    "start: " + "|".join(['start "x"'] * 4000) + '|"y"',
    "start: " + "a " * 20_000 + f'\na: "{LONG}"',
    "start: " + '"a"?' * 12_000,
    f"start: {'X ' * 20_000}\nX: /x/\nY: /{LONG}/\n%ignore Y",
    "start: " + "(" * 20_000,
    "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nstart: r0',
    'start: "' + "\\" * 50_000,
    "//" * 25_000,
]  # fmt: skip


@pytest.mark.parametrize("grammar", HOSTILE)
def test_hostile_grammars_cost_little(grammar: str) -> None:
    """Processor time, of which a quadratic walk would take many seconds."""
    begun = time.process_time()
    with contextlib.suppress(NoPattern):
        assert len(lark_pattern(grammar)) <= MAX_PATTERN_CHARS
    assert time.process_time() - begun < 2
