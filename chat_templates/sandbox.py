"""The one place where jinja2 is set up.

Template bytes are untrusted even when they come with the model: sandboxed, immutable, a deadline that is
checked in every loop turn and call, bounded strings, and an allow-list of filters. The names that templates
expect are those of Hugging Face's ``apply_chat_template``.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_templates.errors import TemplateError, TemplateLimitError

MAX_OUTPUT_CHARS = 4 * 1024 * 1024
MAX_SECONDS = 1.0
"""Of this thread's processor time: a busy machine is nobody's template's fault."""
MAX_PADDING = 10_000

MAX_INT_BITS = 4096
_UNBOUNDED_FORMAT = re.compile(r"\d{5}|\*|:[^}]*\{")

LIST_FILTERS = frozenset(
    {"abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last", "length"}
    | {"list", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "sort", "sum"}
    | {"unique"}
)
TEXT_FILTERS = frozenset(
    {"capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "title", "trim", "truncate", "upper"}
    | {"urlencode", "wordcount"}
)

_deadline: ContextVar[float] = ContextVar("chat_template_deadline", default=float("inf"))


class LimitError(SecurityError):
    """The template ran too long or made too much text."""


@contextmanager
def time_limit() -> Iterator[None]:
    """MAX_SECONDS for everything that is rendered inside, all of it in this thread; an outer limit that ends earlier
    stays in force."""
    token = _deadline.set(min(_deadline.get(), time.thread_time() + MAX_SECONDS))
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline() -> None:
    if time.thread_time() > _deadline.get():
        raise LimitError(f"the template ran longer than {MAX_SECONDS:g} s")


def _too_long() -> NoReturn:
    raise LimitError(f"the template made more than {MAX_OUTPUT_CHARS} characters")


def check_size(value: Any) -> Any:
    """``value``, unless it is a string or list longer than the output may be."""
    if isinstance(value, (str, bytes, list, tuple)) and len(value) > MAX_OUTPUT_CHARS:
        _too_long()
    return value


def check_text(value: Any) -> Any:
    """``value``, unless its text would be longer than the output may be; shared parts count every time."""
    if isinstance(value, (str, bytes)):
        return check_size(value)
    stack, size, seen = [value], 0, 0
    while stack:
        item = stack.pop()
        seen += 1
        if seen % 4096 == 0:
            check_deadline()
        size += len(item) + 1 if isinstance(item, Sized) else 1
        if isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
        if size > MAX_OUTPUT_CHARS:
            _too_long()
    return value


class _Ticking:
    """An iterable that looks at the clock on every item, with the length of what it wraps."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            check_deadline()
            yield item

    def __len__(self) -> int:
        if not isinstance(self._items, Sized):
            raise TypeError("this iterable has no length")
        return len(self._items)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks trained-on text; for rendering it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox plus limits: a ticking loop, sized concatenation, sized calls."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_ticking", [], [], None, None, lineno=loop.lineno)
        return _size_concats(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_deadline()
        if operator == "**":
            raise SecurityError("operator ** is not available to chat templates")
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_format(str(left))
        if operator == "*":
            _check_product(left, right)
        return check_size(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_deadline()
        _check_method(__obj, args)
        return check_size(super().call(__context, __obj, *args, **kwargs))


def _size_concats(tree: nodes.Template) -> nodes.Template:
    """Put the ``_sized`` filter on the parts and the result of every ``a ~ b``."""

    def sized(node: nodes.Expr) -> nodes.Expr:
        return nodes.Filter(node, "_sized", [], [], None, None, lineno=node.lineno)

    for concat in list(tree.find_all(nodes.Concat)):
        concat.nodes = [sized(part) for part in concat.nodes]
    for node in list(tree.find_all(nodes.Node)):
        for field, value in node.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(node, field, sized(value))
            elif isinstance(value, list):
                setattr(node, field, [sized(item) if isinstance(item, nodes.Concat) else item for item in value])
    return tree


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise LimitError("the template made a number that is too large")
    elif isinstance(left, Sized) and isinstance(right, int):
        if len(left) * right > MAX_OUTPUT_CHARS:
            _too_long()
    elif isinstance(right, Sized) and isinstance(left, int) and len(right) * left > MAX_OUTPUT_CHARS:
        _too_long()


def _check_format(pattern: str) -> None:
    if _UNBOUNDED_FORMAT.search(pattern):
        raise LimitError("the template formats with a width that is too large or computed")


def _check_method(function: Any, args: tuple[Any, ...]) -> None:
    """Refuse the string methods that can turn a short string into a huge one."""
    function = getattr(function, "__wrapped__", function)  # jinja2 hands out str.format in a wrapper
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        if args and isinstance(args[0], int) and args[0] > MAX_PADDING:
            raise LimitError(f"{name}() pads to more than {MAX_PADDING} characters")
    elif name in ("format", "format_map"):
        _check_format(owner)
        for arg in args:
            check_text(arg)
    elif name in ("translate", "encode"):
        raise SecurityError(f"{name}() is not available to chat templates")
    elif name == "replace" and len(args) >= 2:
        _check_replace(owner, str(args[0]), str(args[1]))
    elif name == "join" and args:
        _check_join(owner, args[0])


def _check_replace(text: str, old: str, new: str) -> None:
    count = text.count(old) if old else len(text) + 1
    if len(text) + count * max(0, len(new) - len(old)) > MAX_OUTPUT_CHARS:
        _too_long()


def _check_join(separator: str, items: Any) -> None:
    if not isinstance(items, (list, tuple)):
        return
    if sum(len(item) for item in items if isinstance(item, str)) + len(separator) * len(items) > MAX_OUTPUT_CHARS:
        _too_long()


def _text_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that makes text of its input, with that input's size checked first."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for arg in args[:2]:
            if isinstance(arg, (str, list, tuple, dict)):
                check_text(arg)
        return function(*args, **kwargs)

    return checked


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``json.dumps`` with Hugging Face's defaults: no HTML escapes, non-ASCII kept."""
    if isinstance(value, jinja2.Undefined):
        raise jinja2.UndefinedError("tojson of an undefined value")
    check_text(value)
    indent = min(int(indent), 16) if indent is not None else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(str(pattern)[:100])


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    _check_replace(str(text), old, new)
    return str(text).replace(old, new, -1 if count is None else count)


def _join(items: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    values = [item if attribute is None else item[attribute] for item in _Ticking(items)]
    texts = [str(value) for value in check_text(values)]
    _check_join(separator, texts)
    return separator.join(texts)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * min(int(width), MAX_PADDING)
    _check_replace(text, "\n", "\n" + pad)
    lines = text.split("\n")
    rest = [pad + line if line or blank else line for line in lines[1:]]
    return "\n".join([pad + lines[0] if first else lines[0], *rest])


def make_environment() -> ChatTemplateEnvironment:
    """The only factory of template environments in the project."""
    environment = ChatTemplateEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _Generation],
        finalize=check_text,
        cache_size=0,
    )
    kept = {name: environment.filters[name] for name in LIST_FILTERS}
    kept |= {name: _text_filter(environment.filters[name]) for name in TEXT_FILTERS}
    sized: dict[str, Callable[..., Any]] = {"replace": _replace, "join": _join, "indent": _indent, "tojson": tojson}
    environment.filters = {**kept, **sized, "_ticking": _Ticking, "_sized": check_text}
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


class CompiledTemplate:
    """One template, compiled once, rendered many times, from any thread."""

    def __init__(self, source: str) -> None:
        environment = make_environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except Exception as error:  # Python's compiler has limits of its own: nested blocks, digits of a number
            raise TemplateError(f"chat template cannot be read: {error}", param="chat_template") from error

    def render(self, variables: dict[str, Any]) -> str:
        """Text of at most MAX_OUTPUT_CHARS, made within MAX_SECONDS; TemplateError with the template's message."""
        with time_limit():
            return self._render(variables)

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            return self._collect(variables)
        except LimitError as error:
            raise TemplateLimitError(f"chat template refused: {error}", param="chat_template") from error
        except SecurityError as error:
            raise TemplateError(f"chat template refused: {error}", param="chat_template") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"chat template: {error}") from error
        except RecursionError as error:
            raise TemplateError("chat template: nested too deeply") from error
        except Exception as error:
            raise TemplateError(f"chat template failed: {type(error).__name__}: {error}") from error

    def _collect(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(variables):
            check_deadline()
            length += len(piece)
            if length > MAX_OUTPUT_CHARS:
                _too_long()
            pieces.append(piece)
        return "".join(pieces)


@functools.lru_cache(maxsize=32)
def compile_template(source: str) -> CompiledTemplate:
    """Compile, or take from a small cache: a server has one template, tests have a few."""
    return CompiledTemplate(source)
