"""Sizes that may not grow: functions, files, parameters, and a list of exceptions that may only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.source_tree import ALL, PACKAGES, Source, sources

MAX_FUNCTION = 60
MAX_FILE = 400
MAX_POSITIONAL = 5

FILE_EXEMPT = ("engine/kernels/", "engine/messages.py", "server/openai/types/", "server/anthropic/types")
"""Kernels and wire types."""

EXCEPTIONS: dict[str, int] = {}
"""``path`` or ``path::function`` or ``path::function()`` (parameters) -> what it measures now. Never add, never raise:
an entry that is not needed any more, or is too generous, fails the test too."""


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def measure() -> dict[str, int]:
    """Everything over its budget."""
    found: dict[str, int] = {}
    for source in sources(ALL):
        lines = source.text.count("\n")
        packaged = source.path.split("/")[0] in PACKAGES
        if packaged and lines > MAX_FILE and not source.path.startswith(FILE_EXEMPT):
            found[source.path] = lines
        for node in functions(source):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                found[f"{source.path}::{node.name}"] = length
            count = positional(node)
            if packaged and count > MAX_POSITIONAL and not is_kernel(node):
                found[f"{source.path}::{node.name}()"] = count
    return found


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A Triton kernel: all that it may know comes in as pointers and numbers."""
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list)


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len([name for name in names if name not in ("self", "cls", "_ChatTemplateEnvironment__self")])


def test_sizes() -> None:
    found = measure()
    over = {key: value for key, value in found.items() if value > EXCEPTIONS.get(key, 0)}
    stale = {key: value for key, value in EXCEPTIONS.items() if found.get(key, 0) < value}
    assert not over, "\n".join(f"{key}: {value}" for key, value in sorted(over.items()))
    assert not stale, f"these exceptions can shrink: {stale}"


def test_no_mixins() -> None:
    wrong = [
        f"{source.path}:{node.lineno} {node.name}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower()
    ]
    assert not wrong, "\n".join(wrong)


MUTABLE_CALLS = (
    "list",
    "dict",
    "set",
    "bytearray",
    "deque",
    "defaultdict",
    "OrderedDict",
    "Counter",
    "WeakValueDictionary",
)


def test_no_mutable_module_state() -> None:
    """Module-level names for lists, dicts and sets must be CONSTANTS, and nothing is declared ``global``."""
    wrong = []
    for source in sources():
        for node in source.tree.body:
            for name in _assigned(node):
                if _is_mutable(node) and not name.strip("_").isupper() and not name.startswith("__"):
                    wrong.append(f"{source.path}:{node.lineno} {name}")
        wrong += [f"{source.path}:{n.lineno} global" for n in ast.walk(source.tree) if isinstance(n, ast.Global)]
        wrong += [f"{source.path}:{line} changes a constant" for line in _constant_changes(source)]
    assert not wrong, "\n".join(wrong)


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_mutable(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).split(".")[-1] in MUTABLE_CALLS
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


CHANGERS = ("append", "extend", "insert", "add", "update", "pop", "popitem", "remove", "clear", "setdefault", "discard")


def _constant_changes(source: Source) -> Iterator[int]:
    names = {name for node in source.tree.body if _is_mutable(node) for name in _assigned(node)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGERS:
            if isinstance(node.func.value, ast.Name) and node.func.value.id in names:
                yield node.lineno
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
                if (
                    isinstance(target, ast.Subscript)
                    and isinstance(target.value, ast.Name)
                    and target.value.id in names
                ):
                    yield node.lineno
