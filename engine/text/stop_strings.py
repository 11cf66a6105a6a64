"""Stop strings in streamed text: nothing of one is ever printed, and chunks make no difference."""

from __future__ import annotations

from collections.abc import Sequence

MAX_INDENT = 64
"""White space before a text that may still be said to begin with something."""


class StopMatcher:
    """Text in, printable text out, until a stop string ends it.

    The rule is that of reading one character at a time: the first moment at which the text ends with a stop
    string ends the request, the longest one where several do; the string itself is cut off. A match that ends
    within the first ``min_tokens`` tokens, or that begins before ``start_after`` was written, is text.
    Only a tail that may still become a stop string is held back: less than the longest one.

    With ``opener``, ``start_after`` is waited for only where the text, white space aside, begins with ``opener``
    (reasoning that the model may open or not); until that is known the beginning is held back.
    """

    __slots__ = (
        "_armed",
        "_beginning",
        "_held",
        "_min_tokens",
        "_num_tokens",
        "_opener",
        "_seen",
        "_start_after",
        "_stops",
        "matched",
    )

    def __init__(self, stops: Sequence[str], *, start_after: str = "", opener: str = "", min_tokens: int = 0) -> None:
        self.matched: str | None = None
        self._stops = tuple(sorted(set(filter(None, stops)), key=len, reverse=True))
        self._start_after = start_after
        self._armed = not start_after
        self._opener = opener if start_after else ""
        self._beginning = ""
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held = ""
        self._seen = ""

    def feed(self, text: str, num_tokens: int) -> str:
        """What may be printed now. ``num_tokens``: output tokens so far, this text's own included."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._num_tokens = num_tokens
        before = ""
        if self._opener:
            text = self._decide(text)
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

    def end_at(self, stop: str, num_tokens: int) -> str:
        """A token whose spelling is ``stop`` has come and is not printed: what may be printed of the text before it,
        which ends here unless it is still free of stop strings."""
        if self.matched is not None:
            return ""
        text = self._end_beginning()
        if self.matched is None and self._armed and num_tokens > self._min_tokens:
            self.matched = stop
            text += self.flush()
        return text

    def flush(self) -> str:
        """The held tail, which no more text can complete."""
        text = self._end_beginning()
        held, self._held = self._held, ""
        return text + held

    def _end_beginning(self) -> str:
        """The beginning that was held back does not become ``opener``: it is text like any other."""
        if not self._opener:
            return ""
        self._armed = True
        beginning, self._beginning, self._opener = self._beginning, "", ""
        return self.feed(beginning, self._num_tokens)

    def _decide(self, text: str) -> str:
        """The beginning so far once it is known whether it opens with ``opener``; "" until then."""
        self._beginning += text
        begun = self._beginning.lstrip()
        if len(self._beginning) - len(begun) <= MAX_INDENT and self._opener.startswith(begun[: len(self._opener)]):
            if len(begun) < len(self._opener):
                return ""
        else:
            self._armed = True
        beginning, self._beginning, self._opener = self._beginning, "", ""
        return beginning

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
