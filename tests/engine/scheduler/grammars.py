"""A grammar backend for tests: a fixed sequence of steps, each a set of bytes of which one must follow."""

from __future__ import annotations

import copy

import numpy as np

from engine.grammar.interface import GrammarError
from engine.messages import GrammarSpec
from engine.text.byte_tokenizer import EOS_ID

ANY = "."


class ScriptMatcher:
    """``script`` holds one string of alternatives per position; a single alternative is forced. Then eos."""

    def __init__(self, script: list[str]) -> None:
        self.script = script
        self.place = 0

    @property
    def terminated(self) -> bool:
        return self.place >= len(self.script)

    def fill_mask(self, mask) -> bool:
        allowed = [EOS_ID] if self.terminated else list(self.script[self.place].encode())
        if not self.terminated and self.script[self.place] == ANY:
            return False
        bits = np.zeros(len(mask) * 32, np.uint8)
        bits[allowed] = 1
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)
        return True

    def accept(self, token_id: int) -> bool:
        if self.terminated:
            return False
        if self.script[self.place] != ANY and token_id not in self.script[self.place].encode():
            return False
        self.place += 1
        return True

    def copy(self) -> ScriptMatcher:
        return copy.copy(self)

    def forced_tokens(self) -> list[int]:
        forced = []
        for step in self.script[self.place :]:
            if len(step) != 1 or step == ANY:
                break
            forced.append(ord(step))
        return forced


class ScriptBackend:
    """``regex`` specs whose source is alternatives separated by spaces, e.g. ``{ " ab ab " : . }``."""

    def __init__(self) -> None:
        self.sabotage: str | None = None

    def compile(self, spec: GrammarSpec) -> object:
        if spec.source == "bad":
            raise GrammarError("The pattern cannot be compiled.")
        if spec.source == "crash":
            raise RuntimeError("compiler crashed at 0xdeadbeef")
        return spec.source.split(" ")

    def is_compiled(self, spec: GrammarSpec) -> bool:
        return False

    def matcher(self, compiled: object) -> ScriptMatcher:
        matcher = ScriptMatcher(list(compiled))
        source = compiled[0]
        if source.startswith("!"):
            method, moment = source[1:].split("@")
            return SabotagedMatcher(list(compiled)[1:], method, int(moment))
        return matcher


class SabotagedMatcher(ScriptMatcher):
    """Raises in one method, at its n-th call."""

    def __init__(self, script: list[str], method: str, moment: int) -> None:
        super().__init__(script)
        self._method, self._left = method, moment

    def _maybe(self, method: str) -> None:
        if method == self._method:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("matcher crashed at 0xdeadbeef")

    @property
    def terminated(self) -> bool:
        self._maybe("terminated")
        return self.place >= len(self.script)

    def fill_mask(self, mask) -> bool:
        self._maybe("fill_mask")
        return super().fill_mask(mask)

    def accept(self, token_id: int) -> bool:
        self._maybe("accept")
        return super().accept(token_id)

    def forced_tokens(self) -> list[int]:
        self._maybe("forced_tokens")
        return super().forced_tokens()


def spec(source: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", source=source)
