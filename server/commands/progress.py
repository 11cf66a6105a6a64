"""Shows a pull: a bar on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

import sys
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class PullDisplay:
    """A PullObserver; use it as a context manager. rich is imported when there is something to show."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: TaskID | None = None
        self._tenth = -1

    @cached_property
    def _bar(self) -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not sys.stderr.isatty())
        bar.start()
        return bar

    def __enter__(self) -> PullDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if "_bar" in vars(self):
            self._bar.stop()

    def message(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def progress(self, done: int, total: int) -> None:
        if self._bar.disable:
            tenth = done * 10 // total
            if tenth != self._tenth:
                self._tenth = tenth
                self.message(f"{self._name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
            return
        if self._task is None:
            self._task = self._bar.add_task(self._name, total=total)
        self._bar.update(self._task, completed=done)
