"""White space between a mark and the tag behind it, taken out before the text is read."""

from __future__ import annotations

import re


class Joiner:
    """``mark <tag>`` becomes ``mark<tag>``, wherever the text is cut."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._gap = re.compile(rf"({re.escape(mark)})[ \t\r\n]{{1,64}}(?=<)")
        self._open = re.compile(rf"{re.escape(mark)}[ \t\r\n]{{0,64}}\Z")
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that is certain by now."""
        text = self._held + text
        cut = self._unsure(text)
        self._held = text[cut:]
        return self._gap.sub(r"\1", text[:cut])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _unsure(self, text: str) -> int:
        """Where a mark begins that is not whole, or that white space may follow."""
        if found := self._open.search(text):
            return found.start()
        mark = self._mark
        return next(
            (at for at in range(max(0, len(text) - len(mark) + 1), len(text)) if mark.startswith(text[at:])), len(text)
        )
