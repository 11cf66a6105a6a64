"""Grammars that sleep until the text gives them a reason to hold.

``start_after``: asleep until this text (the end of reasoning) was written, then the grammar holds to the end.
``triggers``: asleep until one of these was written, then the grammar, which begins with the trigger itself,
holds until it is complete, and sleeps again. White space between a trigger's characters is ignored, so
``{"name":"f","arguments"`` is met in pretty-printed JSON too. ``triggers_at_start`` are such triggers too, but prose
in front of them rules them out: an example of a call inside an explanation is no call.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.grammar.interface import TokenBitmask
from engine.messages import GrammarSpec

TAIL_BYTES = 2048
_SPACE = b" \t\r\n"
_TAGS = (
    rb"(?:tools?|(?:minimax:)?tool_calls?|function_calls?|response|toolcall|functioncall|tool_use|tool_code"
    rb"|TOOL_CALL|Tool_Call|ToolCall|toolCall|tool-call|tool call)>"
)
_BEFORE_A_CALL = re.compile(
    rb"[\s,;\]]*+(?:```|</"
    + _TAGS
    + rb"|<\|/tool_call\|>|\[/TOOL_CALL\]|\[END_TOOL_REQUEST\])?"  # what closes the call before
    rb"[\s,;]*+(?:```(?:json|JSON|xml|tool_call|tool_code)?|<"
    + _TAGS
    + rb"|<\|tool_call\|>|<\|python_tag\|>|\[TOOL_(?:CALLS?|REQUEST)\]|tool_call>|[>.:])?\s*+\[?\s*+"
)
"""What may stand between the start of an answer, or another call, and a call without its format's marker. The model
chooses this text, so nothing here may be tried in two ways: white space is given back by none of the repetitions."""


class InnerMatcher(Protocol):
    def fill_mask(self, mask: TokenBitmask) -> bool: ...
    def accept(self, token_id: int) -> bool: ...
    def accept_all(self, token_ids: list[int]) -> bool: ...
    def copy(self) -> InnerMatcher: ...
    def forced_tokens(self) -> list[int]: ...
    @property
    def terminated(self) -> bool: ...


def match_backwards(text: bytes, end: int, trigger: bytes) -> int:
    """Start of ``trigger`` in ``text`` where it ends at ``end``, white space in ``text`` skipped; -1 if not there."""
    at, want = end - 1, len(trigger) - 1
    while want >= 0:
        while at >= 0 and text[at] in _SPACE and text[at] != trigger[want]:
            at -= 1
        if at < 0 or text[at] != trigger[want]:
            return -1
        at -= 1
        want -= 1
    return at + 1


class TriggeredMatcher:
    """A GrammarMatcher around matchers that come and go; see the module's text."""

    def __init__(
        self,
        spec: GrammarSpec,
        id_to_bytes: Sequence[bytes],
        start: Callable[[], InnerMatcher],
        tokenize: Callable[[bytes], list[int]],
    ) -> None:
        self._id_to_bytes = id_to_bytes
        self._start = start
        self._tokenize = tokenize
        self._start_after = spec.start_after.encode()
        self._restart_after = spec.restart_after.encode()
        self._triggers = tuple(trigger.encode() for trigger in spec.triggers)
        self._bare_triggers = tuple(trigger.encode() for trigger in spec.triggers_at_start)
        self._sleeps_again = bool(self._triggers or self._bare_triggers)
        self._last_bytes = frozenset(trigger[-1] for trigger in self._triggers)
        self._bare_last_bytes = frozenset(trigger[-1] for trigger in self._bare_triggers)
        self._tail = b""
        """Free text lately written."""
        self._at_start = True
        """``_tail`` is all of it since a place where a call may stand."""
        self._past_start = not spec.start_after
        self._inner: InnerMatcher | None = None

    def fill_mask(self, mask: TokenBitmask) -> bool:
        return self._inner.fill_mask(mask) if self._inner is not None else False

    def accept(self, token_id: int) -> bool:
        if self._inner is not None:
            if not self._inner.accept(token_id):
                return False
            if self._sleeps_again and self._inner.terminated:
                self._sleep()
        else:
            text = self._id_to_bytes[token_id] if token_id < len(self._id_to_bytes) else b""
            self._read(text)
        return True

    def copy(self) -> TriggeredMatcher:
        twin = copy.copy(self)
        if self._inner is not None:
            twin._inner = self._inner.copy()
        return twin

    def forced_tokens(self) -> list[int]:
        return self._inner.forced_tokens() if self._inner is not None else []

    @property
    def terminated(self) -> bool:
        return self._inner is not None and not self._sleeps_again and self._inner.terminated

    def _sleep(self) -> None:
        """A call has ended; another may follow."""
        self._inner, self._tail, self._at_start = None, b"", True

    def _read(self, text: bytes) -> None:
        """Take in free text and wake up where it completes the start text or a trigger."""
        seen = len(self._tail)
        self._tail += text
        if not self._past_start:
            found = self._tail.find(self._start_after, max(0, seen - len(self._start_after) + 1))
            if found < 0:
                self._tail = self._tail[-TAIL_BYTES:]
                return
            self._past_start = True
            self._tail = self._tail[found + len(self._start_after) :]
            seen = 0
            if not self._sleeps_again:
                self._wake(self._tail)
                return
        elif self._restart_after:
            found = self._tail.rfind(self._restart_after, max(0, seen - len(self._restart_after) + 1))
            if found >= 0:
                self._tail, self._at_start, seen = self._tail[found + len(self._restart_after) :], True, 0
        for end in range(seen + 1, len(self._tail) + 1):
            if self._try_triggers(end):
                return
        if len(self._tail) > TAIL_BYTES:
            self._tail, self._at_start = self._tail[-TAIL_BYTES:], False

    def _try_triggers(self, end: int) -> bool:
        last = self._tail[end - 1]
        if last in self._last_bytes and self._try(self._triggers, end, anywhere=True):
            return True
        return self._at_start and last in self._bare_last_bytes and self._try(self._bare_triggers, end, anywhere=False)

    def _try(self, triggers: Sequence[bytes], end: int, *, anywhere: bool) -> bool:
        for trigger in triggers:
            start = match_backwards(self._tail, end, trigger)
            here = start >= 0 and (anywhere or _BEFORE_A_CALL.fullmatch(self._tail, 0, start) is not None)
            if here and self._wake(self._tail[start:]):
                return True
        return False

    def _wake(self, written: bytes) -> bool:
        """Start the grammar over what was already written of it; False where that is already outside it."""
        inner = self._start()
        if written and not inner.accept_all(self._tokenize(written)):
            if self._sleeps_again:
                return False
            inner = self._start()
        if self._sleeps_again and inner.terminated:
            self._sleep()
            return True
        self._inner, self._tail, self._at_start = inner, b"", False
        return True
