"""The project's source files as syntax trees, for the tests of architecture and budgets."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("server", "engine", "toolcall", "chat_templates")
ALL = (*PACKAGES, "tests", "benchmarks", "examples", "scripts")


@dataclass(frozen=True)
class Source:
    """One file. ``module`` is its dotted name, ``path`` relative to the root."""

    path: str
    module: str
    text: str
    tree: ast.Module


@functools.cache
def sources(roots: tuple[str, ...] = PACKAGES) -> tuple[Source, ...]:
    found = []
    for root in roots:
        for path in sorted((ROOT / root).rglob("*.py")):
            relative = path.relative_to(ROOT)
            text = path.read_text("utf-8")
            module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            found.append(Source(relative.as_posix(), module, text, ast.parse(text)))
    return tuple(found)


def imports(source: Source) -> Iterator[tuple[str, int]]:
    """Every imported module with its line; ``from a import b`` counts as ``a`` and, if that is a module, ``a.b``."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node.lineno
            for alias in node.names:
                target = ROOT.joinpath(*node.module.split("."), alias.name)
                if target.with_suffix(".py").exists() or (target / "__init__.py").exists():
                    yield f"{node.module}.{alias.name}", node.lineno
