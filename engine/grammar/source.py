"""From a GrammarSpec to llguidance's input, with the limits that hold before any compiler sees client text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from engine.grammar.interface import GrammarError
from engine.messages import GrammarSpec

MAX_SOURCE_BYTES = 1_000_000
MAX_REGEX_BYTES = 64_000
MAX_REGEX_NESTING = 64
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 4096
MAX_EBNF_RULES = 512
"""The converter's time grows with their square; this many take a tenth of a second."""
_WRITTEN = re.compile(r"\\?\n|\\.|/")
_ESCAPED = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
"""What stands otherwise in a Lark regex literal."""


def _structure(pattern: str) -> Iterator[str]:
    """The characters of a regex that are syntax: escapes and character classes come as one ``x``."""
    escaped = in_class = False
    for char in pattern:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
            if not in_class:
                yield "x"
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            yield "x"
        else:
            yield char


def regex_nesting(pattern: str) -> int:
    """Deepest nesting of groups in a regex, escapes and character classes respected."""
    depth = deepest = 0
    for char in _structure(pattern):
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth -= 1
    return deepest


def _repeats_nothing(pattern: str) -> bool:
    """A quantifier stands where there is nothing to repeat: ``^+``, ``(*``, ``|?``."""
    before = "|"
    for char in _structure(pattern):
        if char in "*+?" and before in "^|(" and not (char == "?" and before == "("):
            return True
        before = char
    return False


def check_regex(pattern: str) -> None:
    """Raise GrammarError where a regex is too large or nested too deep to be given to a compiler."""
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_REGEX_BYTES:
        raise GrammarError(f"The regular expression is longer than {MAX_REGEX_BYTES} bytes.")
    if regex_nesting(pattern) > MAX_REGEX_NESTING:
        raise GrammarError(f"The regular expression nests more than {MAX_REGEX_NESTING} groups.")
    if _repeats_nothing(pattern):
        raise GrammarError(f"The regular expression {pattern[:100]!r} repeats nothing.")


def lark_string(text: str) -> str:
    """A Lark string literal that matches ``text``."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def lark_regex(pattern: str) -> str:
    """A Lark regex literal: slashes and line ends escaped, nothing else touched."""
    return "/" + _WRITTEN.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern) + "/"


def _choice_lark(source: str) -> str:
    try:
        choices = json.loads(source)
    except ValueError as error:
        raise GrammarError("A choice needs a list of strings.") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(item, str) for item in choices):
        raise GrammarError("A choice needs a list of at least one string.")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"A choice may list at most {MAX_CHOICES} strings.")
    return "start: " + " | ".join(lark_string(item) for item in dict.fromkeys(choices))


def _ebnf_lark(source: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(source))
    except Exception as error:  # the converter raises bare Exceptions, "No 'root' rule found" among them
        raise GrammarError(f"The grammar cannot be read: {error}") from error


def _check_ebnf(source: str) -> None:
    if regex_nesting(source) > MAX_REGEX_NESTING:
        raise GrammarError(f"The grammar nests more than {MAX_REGEX_NESTING} groups.")
    if ":" not in source:
        raise GrammarError("The grammar has no rules.")
    if source.count("::=") > MAX_EBNF_RULES:
        raise GrammarError(f"The grammar has more than {MAX_EBNF_RULES} rules.")


def check_limits(spec: GrammarSpec) -> None:
    """Raise GrammarError for what is refused unread, in time linear in its size: for the event loop."""
    if len(spec.source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
        raise GrammarError(f"The grammar is longer than {MAX_SOURCE_BYTES} bytes.")
    if spec.kind == "regex":
        check_regex(spec.source)
    elif spec.kind == "ebnf":
        _check_ebnf(spec.source)


def to_lark(spec: GrammarSpec) -> str:
    """The Lark text of a spec. Raises GrammarError for what is refused before compiling."""
    check_limits(spec)
    match spec.kind:
        case "lark":
            return spec.source
        case "json_schema":
            return f"start: %json {spec.source}"
        case "regex":
            return "start: " + lark_regex(spec.source)
        case "choice":
            return _choice_lark(spec.source)
        case "ebnf":
            return _ebnf_lark(spec.source)
