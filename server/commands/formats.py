"""``callgate formats``: what --tool-call-parser and --reasoning-parser may be."""

from __future__ import annotations

import argparse

from toolcall.reasoning import REASONING_FORMATS
from toolcall.registry import list_formats


def run(arguments: argparse.Namespace) -> int:
    print("--tool-call-parser:")
    for entry in list_formats():
        _print_row(entry.name, entry.aliases, entry.families, entry.experimental)
    print("\n--reasoning-parser:")
    for reasoning in REASONING_FORMATS:
        _print_row(reasoning.name, reasoning.aliases, reasoning.families, reasoning.experimental)
    return 0


def _print_row(name: str, aliases: tuple[str, ...], families: str, experimental: bool) -> None:
    also = f" (also {', '.join(aliases)})" if aliases else ""
    print(f"  {name:20} {families}{' [experimental]' if experimental else ''}{also}")
