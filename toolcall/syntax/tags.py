"""The strings of calls that are written as tags, and what the reader looks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from toolcall.json_text import ESCAPED
from toolcall.lexer import SPACE, Markers

CDATA_OPEN = "<![CDATA["
NEWLINES = ("", "\n", "\r\n")
_LAYOUT = re.compile(rf"(?:\\n|[{SPACE}])*+")


def strip_layout(text: str) -> str:
    """Without the white space at the beginning, and line ends there that are written as escapes."""
    found = _LAYOUT.match(text)
    assert found is not None
    return text[found.end() :]


@dataclass(frozen=True)
class Tags:
    """call_open NAME name_end (param_open KEY key_end VALUE value_close)* call_close.

    NAME and KEY may stand in quotes, behind ``name=``, and may be followed by attributes (``"f" index="1"``);
    ``string="true"`` and ``type="..."`` of a key override the schema. call_open: "" where the name follows the block's
    opener directly. call_opens, param_opens, call_closes, value_closes: other spellings. self_close: ends the header
    of a call without arguments.
    name_stops: markers that end the name and are not consumed. header_stops: the same for a header whose end is
    missing. next_open: markers that begin another call or end the block, and so end a call whose call_close is
    missing. loose_close: a value may also end at another parameter or at the end of the call. close_by_key:
    value_close is followed by KEY and key_end. xml: values are XML, with CDATA and entities (toolcall.syntax.xml_text).
    nested: (namespace) complex values are elements of their own, see ``nested_json``. object_body: the arguments
    may also stand as one JSON object, or as Python's keyword arguments in parentheses. shared_close: call_close closes
    the block. prefixed: the other spellings are those without the prefix of the family's tags, so in a value whose
    opening tag has it they are data in front of one another. around: tags that models put around all the arguments.
    unmarked: nothing stands in front of the name, so that only arguments say that it is a call.
    """

    call_open: str
    name_end: str
    param_open: str
    key_end: str
    value_close: str
    call_close: str
    call_opens: tuple[str, ...] = ()
    param_opens: tuple[str, ...] = ()
    call_closes: tuple[str, ...] = ()
    value_closes: tuple[str, ...] = ()
    value_open: str = ""
    self_close: str = ""
    name_stops: tuple[str, ...] = ()
    header_stops: tuple[str, ...] = ()
    next_open: tuple[str, ...] = ()
    loose_close: bool = True
    close_by_key: bool = False
    xml: bool = False
    nested: str = ""
    trim_newlines: bool = True
    object_body: bool = False
    shared_close: bool = False
    prefixed: bool = False
    around: tuple[str, ...] = ()
    unmarked: bool = False
    foreign: bool = False

    @property
    def has_attributes(self) -> bool:
        """Whether attributes may stand in front of the name."""
        return self.call_open.endswith(" ")

    @cached_property
    def wrapping(self) -> Markers:
        return Markers(self.around)

    @cached_property
    def opening(self) -> Markers:
        return Markers((self.call_open, *self.call_opens))

    @cached_property
    def name_ends(self) -> Markers:
        glued = (self.key_end, self.inner_open, self.value_close) if self.value_open else ()
        return Markers((self.name_end, self.self_close, *glued, *self.name_stops, *self.header_stops))

    @cached_property
    def repeated_name_end(self) -> Markers:
        """The mark behind a name, where it is one that may stand there twice."""
        return Markers((self.name_end,) if len(self.name_end) > 1 else ())

    @cached_property
    def members(self) -> Markers:
        return Markers((self.call_close, *self.call_closes, self.call_stem, self.param_open, *self.param_opens))

    @cached_property
    def key_ends(self) -> Markers:
        return Markers((*self.closes_key, *self.header_stops))

    @cached_property
    def closes_key(self) -> tuple[str, ...]:
        """What ends a key: models take the closing tags of keys and values for one another."""
        return (self.key_end, self.value_close) if self.value_open else (self.key_end,)

    @cached_property
    def only_key_end(self) -> Markers:
        return Markers((self.key_end,))

    @cached_property
    def closes(self) -> tuple[str, ...]:
        return (self.value_close, *self.value_closes)

    @cached_property
    def closes_value(self) -> tuple[str, ...]:
        """What ends a value, see ``closes_key``."""
        return (*self.closes, self.key_end) if self.value_open else self.closes

    def is_own(self, close: str) -> bool:
        """Whether this end of a value is spelt as the family spells it."""
        return self.close_by_key or close.endswith(self.value_close)

    @cached_property
    def value_closing(self) -> Markers:
        return Markers(self.closes)

    @cached_property
    def _loose(self) -> tuple[str, ...]:
        return (self.param_open, self.call_close, *self.block_closers) if self.loose_close else ()

    @cached_property
    def block_closers(self) -> tuple[str, ...]:
        return tuple(w for w in self.next_open if w.startswith("</") and w != self.call_close)

    @cached_property
    def block_openers(self) -> tuple[str, ...]:
        return tuple(word.replace("/", "", 1) for word in self.block_closers)

    @cached_property
    def inner_open(self) -> str:
        """What begins a call inside a value."""
        return (self.call_open or next(iter(self.next_open), "")) if self.loose_close else ""

    @cached_property
    def inner_ends(self) -> Markers:
        """What the name of such a call ends at."""
        return Markers((self.name_end, self.param_open, self.call_close))

    @cached_property
    def value_stem(self) -> str:
        """What a closing tag of a value begins with that is misspelt: ``</parameter=k>``, ``</parameter/>``."""
        return self._stem(self.value_close)

    @cached_property
    def call_stem(self) -> str:
        """The same of a call's."""
        return "" if self.shared_close else self._stem(self.call_close)

    def _stem(self, close: str) -> str:
        plain = close.startswith("</") and close.endswith(">") and not self.close_by_key
        return close.removesuffix(">") if plain else ""

    @cached_property
    def followers(self) -> tuple[str, ...]:
        """What may stand behind a value."""
        mark = (self.nested,) if self.close_by_key else ()
        return (self.param_open, self.call_stem or self.call_close, *self.call_closes, *self.next_open, *mark)

    @cached_property
    def own_followers(self) -> tuple[str, ...]:
        """The same, without other spellings."""
        return (self.param_open, self.call_stem, *self.next_open)

    @cached_property
    def closing(self) -> tuple[str, ...]:
        """What may stand between the end of the last value and the end of the block."""
        return (self.call_close, *self.call_closes, *self.block_closers)

    @cached_property
    def reopens(self) -> str:
        """The beginning of a tag that value_close would close: a value that holds one may hold that, too."""
        plain = self.value_close.startswith("</") and not self.close_by_key
        return "<" + self.value_close[2:].rstrip(">") if plain else ""

    @cached_property
    def ends(self) -> Mapping[str, Markers]:
        """Where a value may end, by the layout newline on either side of it."""
        return self.ends_with(self.closes_value)

    def ends_with(self, closes: tuple[str, ...]) -> Mapping[str, Markers]:
        loose = (*self._loose, *("\n" + word for word in self._loose))
        inner = (self.reopens, self.inner_open, *(self.block_openers if self.loose_close else ()))
        words = (*closes, self.value_stem, *loose, *inner, *(("&", CDATA_OPEN) if self.xml else ()))
        led = (*closes, *(word for word in (self.value_stem,) if word), *self._loose)
        return {
            line: Markers((*words, *(line + word for word in led)), ESCAPED)
            for line in (NEWLINES if self.trim_newlines else ("",))
        }

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.call_open, *self.call_opens, self.call_close)
