"""Stop strings in streamed text: nothing of one is ever printed, and chunks make no difference."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Text in, printable text out, until a stop string ends it.

    The rule is that of reading one character at a time: the first moment at which the text ends with a stop
    string ends the request, the longest one where several do; the string itself is cut off. A match that ends
    within the first ``min_tokens`` tokens, or that begins before ``start_after`` was written, is text.
    Only a tail that may still become a stop string is held back: less than the longest one.
    """

    __slots__ = ("_armed", "_held", "_min_tokens", "_seen", "_start_after", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, start_after: str = "", min_tokens: int = 0) -> None:
        self.matched: str | None = None
        self._stops = tuple(sorted(set(filter(None, stops)), key=len, reverse=True))
        self._start_after = start_after
        self._armed = not start_after
        self._min_tokens = min_tokens
        self._held = ""
        self._seen = ""

    def feed(self, text: str, num_tokens: int) -> str:
        """What may be printed now. ``num_tokens``: output tokens so far, this text's own included."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        before = ""
        if not self._armed:
            before, text = self._arm(text)
        if not text:
            return before
        buffer = self._held + text
        fresh = len(self._held)
        cut = self._find(buffer, fresh) if num_tokens > self._min_tokens else -1
        if cut >= 0:
            self._held = ""
            return before + buffer[:cut]
        keep = self._possible_start(buffer)
        self._held = buffer[len(buffer) - keep :]
        return before + buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The held tail, which no more text can complete."""
        held, self._held = self._held, ""
        return held

    def _arm(self, text: str) -> tuple[str, str]:
        """Split ``text`` after ``start_after``; the part before is free of stop strings by rule."""
        joined = self._seen + text
        at = joined.find(self._start_after)
        if at < 0:
            overlap = min(len(self._start_after) - 1, len(joined))
            self._seen = joined[len(joined) - overlap :]
            return text, ""
        self._armed = True
        end = at + len(self._start_after) - len(self._seen)
        self._seen = ""
        return text[:end], text[end:]

    def _find(self, buffer: str, fresh: int) -> int:
        """Where the stop string that ends first (the longest of those) begins, if it ends after ``fresh``; or -1."""
        best_end, best_start = len(buffer) + 1, -1
        for stop in self._stops:
            at = buffer.find(stop, max(0, fresh - len(stop) + 1), best_end - 1)
            if at >= 0:
                best_end, best_start, self.matched = at + len(stop), at, stop
        return best_start

    def _possible_start(self, buffer: str) -> int:
        """Length of the longest tail that is a proper beginning of a stop string."""
        best = len(buffer)
        for stop in self._stops:
            at = buffer.find(stop[0], max(0, len(buffer) - len(stop) + 1), best)
            while at >= 0:
                if stop.startswith(buffer[at:]):
                    best = at
                    break
                at = buffer.find(stop[0], at + 1, best)
        return len(buffer) - best
