"""Templates are untrusted text: escapes raise, loops and strings end early."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest

from chat_templates import TemplateError, render
from chat_templates.sandbox import MAX_OUTPUT_CHARS, CompiledTemplate

ESCAPES = [
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ messages.__class__ }}",
    "{{ messages|attr('__class__') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages|selectattr('__class__')|list }}",
    "{{ ('{0.__class__}'|attr('format'))(messages) }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
    "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "{{ '%s' % messages.__class__ }}",
    "{{ range.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__ }}",
    "{{ strftime_now.__globals__['datetime'] }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ config.__class__.__init__.__globals__ }}",
    "{{ request.application.__globals__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ (messages|first).__class__.__init__ }}",
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
    "{% from 'os' import system %}",
    "{{ open('/etc/passwd').read() }}",
    "{{ __import__('os') }}",
    "{{ eval('1') }}",
    "{{ messages|pprint }}",
    "{{ messages|xmlattr }}",
    "{{ messages|tojson.__globals__ }}",
    "{{ loop.__class__ }}",
    "{% for m in messages %}{{ loop.__class__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._iterator }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__class__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% set n = namespace() %}{{ n.__class__ }}",
    "{{ caller.__globals__ }}",
    "{{ ''.encode('ascii').__class__ }}",
    "{{ (1).__class__ }}",
    "{{ messages.__getitem__.__self__ }}",
    "{{ [].__class__.__base__ }}",
]

BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}{% endfor %}",
    "{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ 'A' * 10**10 }}",
    "{{ 'A' * 10000000000 }}",
    "{{ 10000000000 * 'A' }}",
    "{{ [1] * 10000000000 }}",
    "{{ ([['x' * 4000000] * 1000] * 1000) }}",
    "{{ ([['x' * 4000000] * 1000] * 1000)|tojson }}",
    "{{ ([['x' * 4000000] * 1000] * 1000)|string }}",
    "{{ ([['x' * 4000000] * 1000] * 1000) ~ '' }}",
    "{{ (['x' * 4000000] * 100000)|join }}",
    "{{ ''.join(['x' * 4000000] * 100000) }}",
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = [n.s, n.s]|join %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s.replace('x', 'xx') %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s|replace('x', 'xx') %}{% endfor %}",
    "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(i=9) %}{% for i in range(60) %}{% set n.i = n.i * n.i %}{% endfor %}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ 'x'.center(10000000000) }}",
    "{{ '1'.zfill(10000000000) }}",
    "{{ '{:>10000000000}'.format('') }}",
    "{{ '{:>{}}'.format('', 10000000000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ 'a\n' * 4000 | indent(1000000) }}",
    "{{ ('a\n' * 4000)|indent('x' * 100000) }}",
    "{{ messages|tojson(indent=1000000000) * 9999999 }}",
    "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% set s = 'x' * 4000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
    "{{ range(0, 10**12)|list }}",
    "{{ [1]|batch(1000000000, 0)|list }}",
    "{{ [1]|slice(1000000000)|list }}",
]


def _run(source: str) -> str:
    return CompiledTemplate(source).render({"messages": [{"role": "user", "content": "hi"}], "tools": None})


@pytest.mark.parametrize("payload", ESCAPES)
def test_an_escape_raises_or_yields_nothing(payload: str) -> None:
    try:
        text = _run(payload)
    except TemplateError:
        return
    assert "<class" not in text
    assert "<function" not in text
    assert "<built-in" not in text
    assert "<bound" not in text
    assert "uid=" not in text
    assert "root:" not in text


@pytest.mark.parametrize("payload", BOMBS)
def test_a_bomb_ends_with_an_error_in_bounded_time_and_memory(payload: str) -> None:
    start = time.monotonic()
    with pytest.raises(TemplateError):
        _run(payload)
    assert time.monotonic() - start < 20, "far above the limit of one second: the limit did not work"


@pytest.mark.parametrize("payload", BOMBS)
def test_probing_a_bomb_ends_too(payload: str) -> None:
    """A template is probed a dozen times before it is used; that must not take a dozen limits."""
    start = time.monotonic()
    with pytest.raises(TemplateError):
        render(payload, [{"role": "user", "content": "hi"}])
    assert time.monotonic() - start < 20


class _Slow(list[str]):
    """Items that are long in coming, and cost nothing: what a machine looks like that is busy elsewhere."""

    def __iter__(self) -> Iterator[str]:
        for item in super().__iter__():
            time.sleep(0.05)
            yield item


def test_a_busy_machine_is_not_the_templates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chat_templates.sandbox.MAX_SECONDS", 0.1)
    template = CompiledTemplate("{% for word in words %}{{ word }}{% endfor %}")
    assert template.render({"words": _Slow("abcde")}) == "abcde"
    with pytest.raises(TemplateError, match="longer than"):
        CompiledTemplate("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}").render({})


def test_output_at_the_limit_passes_and_above_it_is_refused() -> None:
    half = MAX_OUTPUT_CHARS // 2
    assert len(_run(f"{{{{ 'x' * {half} }}}}{{{{ 'x' * {half} }}}}")) == MAX_OUTPUT_CHARS
    with pytest.raises(TemplateError, match="characters"):
        _run(f"{{{{ 'x' * {half} }}}}{{{{ 'x' * {half} }}}}y")


def test_a_template_that_raises_is_quoted() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        _run("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{% if a %}" * 120 + "{% endif %}" * 120,
        "{{ " + "(" * 300 + "1" + ")" * 300 + " }}",
        "{{ " + "9" * 5000 + " }}",
    ],
    ids=["syntax", "blocks", "indentation", "recursion", "digits"],
)
def test_a_template_that_cannot_be_parsed_is_refused_when_compiled(source: str) -> None:
    """Those too of which jinja2 makes Python code that Python cannot compile."""
    with pytest.raises(TemplateError, match="cannot be read"):
        CompiledTemplate(source)


def test_names_that_hugging_face_templates_use() -> None:
    assert _run("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}") == "13"
    assert _run("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    assert _run("{{ {'é': '<&>'}|tojson }}") == '{"é": "<&>"}'
    assert _run("{{ {'b': 1, 'a': [2]}|tojson(separators=(',', ':'), sort_keys=true) }}") == '{"a":[2],"b":1}'
    assert _run("{% generation %}x{% endgeneration %}y") == "xy"
    assert len(_run("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert (
        _run("{% for x in [1, 2] %}{{ loop.length }}{{ loop.last }}{{ loop.nextitem }} {% endfor %}")
        == "2False2 2True "
    )
    assert _run("{{ 'a b'.split()[-1].strip('b') ~ '%s-%02d' % ('x', 3) ~ '{}'.format(1) }}") == "x-031"
    assert _run("{% if true %}\n    x\n{% endif %}\n") == "    x\n"
    assert _run("{{ 'a\nb\n\nc'|indent(2) }}") == "a\n  b\n\n  c"


def test_jinja_is_set_up_in_one_file_only() -> None:
    root = pathlib.Path(__file__).parents[2]
    users = [
        path.relative_to(root).as_posix()
        for package in ("server", "engine", "toolcall", "chat_templates")
        for path in (root / package).rglob("*.py")
        if "jinja2" in path.read_text("utf-8")
    ]
    assert users == ["chat_templates/sandbox.py"]
