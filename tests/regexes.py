"""Regular expressions that take more than linear time: which the product compiles, and which of them could.

``python -m tests.regexes`` prints every pattern that importing the product and parsing with every format compiles, as
JSON; it must be a process of its own, because modules compile theirs once. ``ambiguities`` looks for what makes a
backtracking matcher slow: a repetition in a repetition, or after one, that can take the same characters, with nothing
between them that must be there and cannot be one of these characters.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

from tests.source_tree import PACKAGES, ROOT

MANY = 16
"""A repetition of fewer is bounded work."""
SAMPLE = "aAzZ09_ \t\n\r.,:;-+*/\\'\"`<>()[]{}|=!?&#@%$^~éß｜▁漢\0"
_OPEN_REPEATS = (_parser.MAX_REPEAT, _parser.MIN_REPEAT)
_REPEATS = (*_OPEN_REPEATS, _parser.POSSESSIVE_REPEAT)
Node = tuple[Any, Any]


def ambiguities(pattern: str | bytes, flags: int = 0) -> list[str]:
    """What could go wrong, in words; [] for a pattern whose matcher cannot backtrack for long."""
    parsed = _parser.parse(pattern, flags)
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    return list(_Search(frozenset(SAMPLE + text)).sequence(list(parsed)))


class _Search:
    def __init__(self, alphabet: frozenset[str]) -> None:
        self._alphabet = alphabet

    def sequence(self, nodes: Sequence[Node]) -> Iterator[str]:
        nodes = list(_flat(nodes))
        for index, (kind, value) in enumerate(nodes):
            for inner in _bodies(kind, value):
                yield from self.sequence(list(inner))
            if kind in _OPEN_REPEATS and value[1] >= MANY:
                after = self._reach(nodes[index + 1 :], self.chars(list(value[2])))
                yield from (f"{found} after {value[2]}" for found in after)
                yield from self._around(list(_flat(list(value[2]))))

    def _around(self, body: list[Node]) -> Iterator[str]:
        """Of a repeated ``body``: a repetition inside that the next round can take up again."""
        for index, (kind, value) in enumerate(body):
            own = frozenset[str]().union(*(self.chars(list(repeat)) for repeat in _repeats(kind, value)))
            again = self._reach(body[index + 1 :] + body[: index + 1], own)
            yield from (f"{found} in a repetition" for found in again)

    def _reach(self, nodes: Sequence[Node], own: frozenset[str]) -> Iterator[str]:
        """Repetitions that can take what ``own`` holds, before anything that must be there and is not of it."""
        for kind, value in _flat(nodes):
            if kind in _REPEATS and value[1] >= MANY and self.chars(list(value[2])) & own:
                yield str(value[2])
            for body in _bodies(kind, value):
                yield from self._reach(list(body), own)
            if _mandatory(kind, value) and not self.chars([(kind, value)]) & own:
                return

    def chars(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Characters that may stand anywhere in what ``nodes`` match."""
        return frozenset().union(*(self._of(kind, value) for kind, value in nodes))

    def _of(self, kind: Any, value: Any) -> frozenset[str]:
        if kind in (_parser.LITERAL, _parser.NOT_LITERAL, _parser.IN, _parser.ANY, _parser.RANGE, _parser.CATEGORY):
            return frozenset(char for char in self._alphabet if _takes(kind, value, char))
        return frozenset().union(*(self.chars(list(inner)) for inner in _bodies(kind, value)))


def _takes(kind: Any, value: Any, char: str) -> bool:
    if kind is _parser.LITERAL:
        return ord(char) == value
    if kind is _parser.NOT_LITERAL:
        return ord(char) != value
    if kind is _parser.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is _parser.CATEGORY:
        return _in_category(str(value), char)
    if kind is _parser.IN:
        negated = value[0][0] is _parser.NEGATE
        return any(_takes(*item, char) for item in value[negated:]) != negated
    return True


def _in_category(name: str, char: str) -> bool:
    letter = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[name.rsplit("_", 1)[1]]
    return (re.match(letter, char) is not None) != ("_NOT_" in name)


def _bodies(kind: Any, value: Any) -> list[Any]:
    if kind in _REPEATS:
        return [value[2]]
    if kind is _parser.SUBPATTERN:
        return [value[3]]
    if kind is _parser.BRANCH:
        return list(value[1])
    if kind is _parser.ATOMIC_GROUP:
        return [value]
    return []


def _flat(nodes: Sequence[Node]) -> Iterator[Node]:
    """Groups as what they contain; assertions take no characters."""
    for kind, value in nodes:
        if kind is _parser.SUBPATTERN:
            yield from _flat(list(value[3]))
        elif kind not in (_parser.ASSERT, _parser.ASSERT_NOT, _parser.AT):
            yield kind, value


def _repeats(kind: Any, value: Any) -> Iterator[Any]:
    """The bodies of the repetitions that this is or has inside."""
    if kind in _REPEATS and value[1] >= MANY:
        yield value[2]
    for body in _bodies(kind, value):
        for inner in body:
            yield from _repeats(*inner)


def _mandatory(kind: Any, value: Any) -> bool:
    if kind in _REPEATS:
        return bool(value[0])
    if kind is _parser.BRANCH:
        return all(len(branch) for branch in value[1])
    return True


def compiled() -> dict[str, tuple[str, int]]:
    """Pattern and flags -> (the file that has it compiled, flags). Only what the product's own files ask for."""
    found: dict[str, tuple[str, int]] = {}
    original = _compiler.compile

    def record(pattern: Any, flags: int = 0) -> Any:
        frame, names = sys._getframe(1), []
        while frame is not None and len(names) < 6:
            names.append(frame.f_code.co_filename)
            frame = frame.f_back  # type: ignore[assignment]
        own = [name for name in names if name.startswith(tuple(f"{ROOT}/{package}/" for package in PACKAGES))]
        if own and isinstance(pattern, str | bytes):
            text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
            found[text] = (own[0].removeprefix(f"{ROOT}/"), int(flags))
        return original(pattern, flags)

    _compiler.compile = record
    re.purge()
    for package in PACKAGES:
        for module in pkgutil.walk_packages([str(ROOT / package)], package + "."):
            if not module.name.startswith(("engine.kernels", "engine.models", "engine.layers", "engine.attention")):
                importlib.import_module(module.name)
    _parse_everything()
    return found


def _parse_everything() -> None:
    """Formats compile their marks when they are first used."""
    import toolcall
    from tests.toolcall.adversarial import adversarial
    from tests.toolcall.fuzzing import TOOLS
    from tests.toolcall.render_calls import RENDERERS

    for name in RENDERERS:
        for build in adversarial(name).values():
            toolcall.parse(build(200), TOOLS, format=name)


if __name__ == "__main__":
    print(json.dumps(compiled()))
