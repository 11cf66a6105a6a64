"""Writes the tables of docs/ that are made from the code: ``python -m scripts.doc_tables``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from server.flags import FLAGS
from server.metrics import Metrics
from toolcall.reasoning import REASONING_FORMATS
from toolcall.registry import list_formats

DOCS = Path(__file__).parents[1] / "docs"


def formats() -> Iterator[str]:
    yield "| name | other names | model families | reasoning | |"
    yield "|---|---|---|---|---|"
    for fmt in list_formats():
        doubt = "experimental" if fmt.experimental else ""
        yield f"| {fmt.name} | {', '.join(fmt.aliases)} | {fmt.families} | {fmt.reasoning or ''} | {doubt} |"
    yield ""
    yield "| reasoning | other names | model families | markers |"
    yield "|---|---|---|---|"
    for thought in REASONING_FORMATS:
        pairs = ", ".join(f"`{o}` … `{c}`" for o, c in zip(thought.openers, thought.closers, strict=True))
        yield f"| {thought.name} | {', '.join(thought.aliases)} | {thought.families} | {pairs or 'message headers'} |"


def flags() -> Iterator[str]:
    yield "| flag | values | what |"
    yield "|---|---|---|"
    for flag in FLAGS:
        names = " ".join(f"`{name}`" for name in flag.names)
        also = " `--no-rescue`" if flag.kind == "both" else ""
        values = " ".join(f"`{value}`" for value in flag.choices) or flag.metavar or ""
        yield f"| {names}{also} | {values} | {flag.help} |"


def metrics() -> Iterator[str]:
    yield "| metric | kind | what |"
    yield "|---|---|---|"
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"| `{name}` | {family.type} | {family.documentation} |"


TABLES: dict[str, tuple[Callable[[], Iterator[str]], ...]] = {
    "function-calling.md": (formats,),
    "flags-and-metrics.md": (flags, metrics),
}
"""Document -> its tables, each between two comments that name it."""


def updated(document: str) -> str:
    """The document with the tables of today."""
    text = (DOCS / document).read_text("utf-8")
    for table in TABLES[document]:
        begin, end = f"<!-- {table.__name__}: written by scripts/doc_tables.py -->", f"<!-- end of {table.__name__} -->"
        head, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"{document} has no place for {table.__name__}")
        lines = "\n".join(table())
        text = f"{head}{begin}\n\n{lines}\n\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for document in TABLES:
        (DOCS / document).write_text(updated(document), "utf-8")
