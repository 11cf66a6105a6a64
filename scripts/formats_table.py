"""Writes the tables of formats in docs/function-calling.md from the registry: ``python -m scripts.formats_table``."""

from __future__ import annotations

from pathlib import Path

from toolcall.reasoning import REASONING_FORMATS
from toolcall.registry import list_formats

DOC = Path(__file__).parents[1] / "docs/function-calling.md"
BEGIN, END = "<!-- formats: written by scripts/formats_table.py -->", "<!-- end of formats -->"


def tables() -> str:
    lines = ["| name | other names | model families | reasoning | |", "|---|---|---|---|---|"]
    for fmt in list_formats():
        doubt = "experimental" if fmt.experimental else ""
        lines.append(f"| {fmt.name} | {', '.join(fmt.aliases)} | {fmt.families} | {fmt.reasoning or ''} | {doubt} |")
    lines += ["", "| reasoning | other names | model families | markers |", "|---|---|---|---|"]
    for thought in REASONING_FORMATS:
        pairs = ", ".join(f"`{o}` … `{c}`" for o, c in zip(thought.openers, thought.closers, strict=True))
        lines.append(
            f"| {thought.name} | {', '.join(thought.aliases)} | {thought.families} | {pairs or 'message headers'} |"
        )
    return "\n".join(lines)


def updated(text: str) -> str:
    """The document with the tables of today."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    DOC.write_text(updated(DOC.read_text("utf-8")), "utf-8")
