"""What comments, docstrings and documents name exists: files, modules, what modules hold, environment variables."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.source_tree import ALL, ROOT, Source, sources

DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))))
_PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join((*ALL, 'docs'))})/[\w/.-]*\w)")
_MODULE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(ALL)})(?:\.[A-Za-z_]\w*)+)")
_SLUG = re.compile(r"(?<![\w./-])[A-Z]{2,}\.md\b")
_VARIABLE = re.compile(r"\bCALLGATE_[A-Z_]*[A-Z]\b")
_NO_MODULES = frozenset({"engine.x", "server.x", "benchmarks.md"})


def spoken(source: Source) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of everything that people read."""
    for source in sources(ALL):
        for line, text in spoken(source):
            yield f"{source.path}:{line}", text
    for document in DOCUMENTS:
        yield document, (ROOT / document).read_text("utf-8")


def exists(dotted: str) -> bool:
    """Whether ``a.b.c`` is a package, a module, or a name that its module's text holds."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if path.is_dir() or file.is_file():
            text = file.read_text("utf-8") if file.is_file() else ""
            return all(re.search(rf"\b{name}\b", text) for name in parts[count:])
    return False


def test_paths_that_are_named_exist() -> None:
    wrong = [f"{at}: {p}" for at, text in texts() for p in _PATH.findall(text) if not (ROOT / p).exists()]
    assert not wrong, "\n".join(wrong)


def test_modules_and_names_in_them_exist() -> None:
    named = [(at, name) for at, text in texts() for name in _MODULE.findall(text) if name not in _NO_MODULES]
    assert len(named) > 100
    wrong = [f"{at}: {name}" for at, name in named if not exists(name)]
    assert not wrong, "\n".join(wrong)


def test_documents_that_are_named_exist() -> None:
    wrong = [f"{at}: {n}" for at, text in texts() for n in _SLUG.findall(text) if not list(ROOT.rglob(n))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["server", "engine"])
def test_every_file_at_the_top_of_a_package_has_its_place(package: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8").partition(f"The files at the top of `{package}/`")[2]
    named = set(re.findall(r"`(\w+)`", text.partition("\n\n")[0])) - {"callgate"}
    assert named == {path.stem for path in ROOT.glob(f"{package}/*.py") if not path.stem.startswith("__")}


def test_every_page_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/README.md").read_text("utf-8")))
    assert listed == {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}


def test_environment_variables_are_documented_and_read() -> None:
    """Those of the packages stand in the documents; those that documents name are read somewhere."""
    read = {name for source in sources() for name in _VARIABLE.findall(source.text)}
    used = {name for source in sources(ALL) for name in _VARIABLE.findall(source.text)}
    documented = {name for document in DOCUMENTS for name in _VARIABLE.findall((ROOT / document).read_text("utf-8"))}
    documented |= set(_VARIABLE.findall((ROOT / "examples/README.md").read_text("utf-8")))
    assert read <= documented, read - documented
    assert documented <= used, documented - used


def test_the_checks_see_what_is_wrong() -> None:
    assert exists("engine.scheduler.req.Req")
    assert exists("toolcall.rescue")
    assert not exists("engine.scheduler.req.Reqs")
    assert not exists("toolcall.rescued")
    assert _PATH.findall("see engine/nothing.py, and docs/no.md.") == ["engine/nothing.py", "docs/no.md"]
    assert _SLUG.findall("see DESIGN.md") == ["DESIGN.md"]
