"""The regular expression that says what a Lark grammar says, for the grammars of custom tools.

A tool's text travels inside a JSON string or between tags, where no grammar can be nested but a pattern can. Grammars
whose rules lead back to themselves other than at one end (brackets in brackets) have no such expression. Terminals are
not told apart by the longest match: what any derivation writes, the expression matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

MAX_PATTERN_CHARS = 60_000
"""What a grammar may grow to: rules that are named often are written often."""
MAX_DEPTH = 48
"""Groups inside groups, rules inside rules included."""

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|//[^\n]*|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*+"i?)
      | (?P<regex>/(?!/)(?:\\.|[^/\\\n])++/[a-z]*)
      | (?P<name>(?:(?<![^\n])[!?]{1,2})?[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>[0-9]+)
      | (?P<directive>%[a-z]+)
      | (?P<mark>->|\.\.|[][(){}|:?*+~.,])
    """,
    re.VERBOSE,
)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_CONTROLS = MappingProxyType({"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"})
_FLAGS = frozenset("imsx")
_COMMON: Mapping[str, str] = MappingProxyType(
    {
        "DIGIT": "[0-9]",
        "HEXDIGIT": "[0-9a-fA-F]",
        "INT": "[0-9]+",
        "SIGNED_INT": "[+-]?[0-9]+",
        "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
        "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
        "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
        "LCASE_LETTER": "[a-z]",
        "UCASE_LETTER": "[A-Z]",
        "LETTER": "[a-zA-Z]",
        "WORD": "[a-zA-Z]+",
        "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
        "WS_INLINE": r"[ \t]+",
        "WS": r"[ \t\f\r\n]+",
        "CR": r"\r",
        "LF": r"\n",
        "NEWLINE": r"(?:\r?\n)+",
        "SH_COMMENT": r"#[^\n]*",
        "CPP_COMMENT": r"//[^\n]*",
        "SQL_COMMENT": r"--[^\n]*",
        "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    }
)
"""Lark's common terminals."""


class NoPattern(Exception):
    """Why a grammar cannot be written as a pattern."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def lark_pattern(grammar: str) -> str:
    """A pattern, to be matched as a whole, of the texts that ``start`` derives. Raises NoPattern."""
    if len(grammar) > MAX_PATTERN_CHARS:
        raise NoPattern("it is too long")
    return _Grammar(_tokens(grammar)).pattern()


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    text = _INDENT.sub("", text)
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NoPattern(f"{text[at : at + 10]!r} is not understood")
        at = match.end()
        if match.lastgroup != "space":
            found.append(_Token(str(match.lastgroup), match[0]))
    return found


def _escaped(text: str) -> str:
    """A regex for this very text. Only marks are escaped: not every compiler knows an escaped letter or space."""
    return "".join(f"\\{char}" if char in r"\.+*?()|[]{}^$-&~" else char for char in text)


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code is None:
            return _CONTROLS.get(found[4], found[4])
        if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF:
            raise NoPattern(f"{found[0]} is no character")
        return chr(int(code, 16))

    return _ESCAPE.sub(one, text)


def _grouped(alternatives: Sequence[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else f"(?:{'|'.join(alternatives)})"


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


@dataclass(slots=True)
class _Grammar:
    """Definitions by name, still as tokens, and what they have come to so far."""

    tokens: Sequence[_Token]
    _bodies: dict[str, Sequence[_Token]] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)
    _ignored: list[Sequence[_Token]] = field(default_factory=list)
    _under_way: list[str] = field(default_factory=list)
    _depth: int = 0
    _spent: int = 0
    skipped: str = ""
    """What may stand before every terminal of a rule."""

    def pattern(self) -> str:
        self._split()
        ignored = [_Expression(self, body, terminal=True).whole() for body in self._ignored]
        self.skipped = f"(?:{'|'.join(ignored)})*" if ignored else ""
        found = self.named("start") + self.skipped
        if len(found) > MAX_PATTERN_CHARS:
            raise NoPattern("it is too long when its rules are written out")
        return found

    def named(self, name: str) -> str:
        """The pattern of a rule or terminal."""
        if name in self._known:
            return self._known[name]
        if name not in self._bodies:
            raise NoPattern(f"there is no {name!r}")
        if name in self._under_way:
            raise NoPattern(f"the rule {name!r} leads back to itself")
        self._under_way.append(name)
        with self.deeper():
            found = _Expression(self, self._bodies[name], terminal=_is_terminal(name), rule=name).whole()
        self._under_way.pop()
        self._known[name] = found
        return found

    def spend(self, chars: int) -> None:
        """Count what is written, once more for every rule that it goes through."""
        self._spent += chars
        if self._spent > 4 * MAX_PATTERN_CHARS:
            raise NoPattern("it is too long when its rules are written out")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Inside a rule or a group."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NoPattern("it is nested too deeply")
        yield
        self._depth -= 1

    def _split(self) -> None:
        at = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.kind == "directive":
                at = self._directive(at)
                continue
            colon = self._head(at)
            end = colon
            while end < len(self.tokens) and self.tokens[end].kind != "directive" and not self._begins(end):
                end += 1
            name = token.text.lstrip("!?")
            if name in self._bodies:
                raise NoPattern(f"{name!r} is defined twice")
            self._bodies[name] = self.tokens[colon:end]
            at = end

    def _begins(self, at: int) -> bool:
        """Whether a definition begins here: a name, perhaps a priority, a colon."""
        texts = [token.text for token in self.tokens[at : at + 4]]
        if self.tokens[at].kind != "name":
            return False
        return texts[1:2] == [":"] or (texts[1:2] == ["."] and texts[3:4] == [":"])

    def _head(self, at: int) -> int:
        """The place after the colon of the definition that begins here."""
        if self.tokens[at].kind != "name" or not self._begins(at):
            raise NoPattern(f"{self.tokens[at].text[:40]!r} begins no rule")
        return at + (2 if self.tokens[at + 1].text == ":" else 4)

    def _directive(self, at: int) -> int:
        kind = self.tokens[at].text
        end = at + 1
        while end < len(self.tokens) and self.tokens[end].kind != "directive" and not self._begins(end):
            end += 1
        body = self.tokens[at + 1 : end]
        if kind == "%ignore":
            self._ignored.append(body)
        elif kind == "%import":
            self._import([token.text for token in body])
        else:
            raise NoPattern(f"{kind} is not understood")
        return end

    def _import(self, words: list[str]) -> None:
        """``common.X``, ``common.X -> Y``, ``common (X, Y)``."""
        if words[:1] != ["common"]:
            raise NoPattern("only common terminals can be imported")
        if words[1:2] == ["("]:
            pairs = [(name, name) for name in words[2:] if name not in (",", ")")]
        else:
            name = "".join(words[2:3])
            pairs = [(name, words[4] if words[3:4] == ["->"] and len(words) > 4 else name)]
        for name, own in pairs:
            if name not in _COMMON:
                raise NoPattern(f"there is no common terminal {name!r}")
            self._known[own] = f"(?:{_COMMON[name]})"


@dataclass(slots=True)
class _Expression:
    """The right side of one definition. rule: its name, which may stand at one end of its own alternatives."""

    grammar: _Grammar
    tokens: Sequence[_Token]
    terminal: bool
    rule: str = ""
    _at: int = 0
    _own: int = -1
    """The place of this rule's name at the end of an alternative; it is stepped over."""

    def whole(self) -> str:
        loops: dict[str, list[str]] = {"left": [], "right": []}
        plain: list[str] = []
        while True:
            side = self._recursive_side()
            found = self._sequence()
            (loops[side] if side else plain).append(found)
            if not self._take("|"):
                break
        if self._at < len(self.tokens):
            raise NoPattern(f"{self.tokens[self._at].text[:40]!r} is not expected")
        if not plain or (loops["left"] and loops["right"]):
            raise NoPattern(f"the rule {self.rule!r} leads back to itself")
        before, after = (f"(?:{'|'.join(found)})*" if found else "" for found in (loops["right"], loops["left"]))
        return before + _grouped(plain) + after

    def _recursive_side(self) -> str:
        """Where this alternative names its own rule: at its "left" or "right" end, which a repetition says as well.
        That name is stepped over."""
        end, depth = self._at, 0
        while end < len(self.tokens) and (depth or self.tokens[end].text not in ("|", "->")):
            depth += (self.tokens[end].text in ("(", "[")) - (self.tokens[end].text in (")", "]"))
            end += 1
        own = [at for at in range(self._at, end) if self.tokens[at].text == self.rule]
        if not self.rule or len(own) != 1 or end - self._at < 2:
            return ""
        after = self.tokens[own[0] + 1].text if own[0] + 1 < end else ""
        if own[0] == self._at and after not in ("?", "*", "+", "~", "{"):
            self._at += 1
            return "left"
        if own[0] == end - 1:
            self._own = end - 1
            return "right"
        return ""

    def _alternatives(self) -> str:
        with self.grammar.deeper():
            found = [self._sequence()]
            while self._take("|"):
                found.append(self._sequence())
        return _grouped(found)

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._at < len(self.tokens) and self.tokens[self._at].text not in ("|", ")", "]"):
            if self._take("->"):
                self._next("name")
            elif self._at == self._own:
                self._at += 1
            else:
                parts.append(self._item())
        return "".join(parts)

    def _item(self) -> str:
        atom = self._atom()
        mark = self._mark()
        return f"(?:{atom}){mark}" if mark else atom

    def _mark(self) -> str:
        for mark in ("?", "*", "+"):
            if self._take(mark):
                return mark
        if self._take("~"):
            low = self._next("number")
            return f"{{{low},{self._next('number')}}}" if self._take("..") else f"{{{low}}}"
        if self._take("{"):
            low = self._next("number")
            high = ""
            if self._take(","):
                high = "," + (self._next("number") if self._peek("number") else "")
            self._expect("}")
            return f"{{{low}{high}}}"
        return ""

    def _atom(self) -> str:
        for opening, closing in ("()", "[]"):
            if self._take(opening):
                found = self._alternatives()
                self._expect(closing)
                return found if opening == "(" else f"(?:{found})?"
        token = self.tokens[self._at]
        self._at += 1
        is_rule = token.kind == "name" and not _is_terminal(token.text)
        if token.kind == "name" and not (is_rule and self.terminal):
            found = self.grammar.named(token.text)
        elif token.kind == "string":
            found = self._string(token.text)
        elif token.kind == "regex":
            found = _regex(token.text)
        else:
            raise NoPattern(f"{token.text[:40]!r} is not expected")
        found = found if self.terminal or is_rule else self.grammar.skipped + found
        self.grammar.spend(len(found))
        return found

    def _string(self, text: str) -> str:
        inner, flag = (text[1:-2], "i") if text.endswith("i") else (text[1:-1], "")
        if self._take(".."):
            low, high = _unescaped(inner), _unescaped(self._next("string")[1:-1])
            if len(low) != 1 or len(high) != 1 or low > high:
                raise NoPattern(f"{text} begins no range of characters")
            return f"[{_escaped(low)}-{_escaped(high)}]"
        found = _escaped(_unescaped(inner))
        return f"(?{flag}:{found})" if flag else found

    def _take(self, text: str) -> bool:
        if self._at < len(self.tokens) and self.tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def _peek(self, kind: str) -> bool:
        return self._at < len(self.tokens) and self.tokens[self._at].kind == kind

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise NoPattern(f"{text!r} is missing")

    def _next(self, kind: str) -> str:
        if not self._peek(kind):
            raise NoPattern(f"a {kind} is missing")
        self._at += 1
        return self.tokens[self._at - 1].text


def _regex(text: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    kept = "".join(flag for flag in flags if flag in _FLAGS)
    return f"(?{kept}:{body.replace(chr(92) + '/', '/')})"
