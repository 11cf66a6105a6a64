"""Shows a pull: a bar on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class PullDisplay:
    """A PullObserver; use it as a context manager."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, disable=not sys.stderr.isatty())
        self._task: TaskID | None = None
        self._tenth = -1

    def __enter__(self) -> PullDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

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
