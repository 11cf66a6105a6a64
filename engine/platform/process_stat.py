"""What Linux tells of a process."""

from __future__ import annotations

from pathlib import Path


def process_stat(pid: int) -> tuple[str, int]:
    """(state letter, CPU ticks used so far). Raises OSError; FileNotFoundError or ProcessLookupError: it is gone."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])
