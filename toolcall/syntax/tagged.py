"""Calls written as tags with one element for each argument: ``<function=f><parameter=k>v</parameter></function>``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolcall.json_strings import checked
from toolcall.json_text import is_object, quote
from toolcall.lexer import (
    MAX_HEADER,
    Lexer,
    NoCall,
    Read,
    at_marker,
    at_words,
    begins_name,
    ignore,
    peek,
    skip_space,
    until,
)
from toolcall.output import CallWriter, Output
from toolcall.schema import ANY, Tool, ToolSet, to_json
from toolcall.syntax.attributes import (
    arguments_in,
    attribute_type,
    first_attribute,
    may_be_attributes,
    may_be_label,
    named_with_attributes,
)
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import ARGUMENT_KEYS, read_arguments
from toolcall.syntax.nested import nested_json
from toolcall.syntax.python_calls import read_keywords
from toolcall.syntax.tagged_values import TaggedValue, may_end, misspelt
from toolcall.syntax.tags import Tags, strip_layout


@dataclass(frozen=True)
class TaggedCalls(Tags):
    """Reads one call, see ``Tags``."""

    @property
    def first(self) -> str:
        return "|".join({re.escape(o[:2]) for o in (self.call_open, *self.call_opens)}) or r"[\w\"']"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if not self.call_open:
            char = yield from peek(lx)
            return begins_name(char) or char in ('"', "'")
        word = yield from at_marker(lx, self.opening)
        while word == self.call_open and word.endswith(">") and (yield from skip_space(lx)):
            if (yield from at_marker(lx, self.opening)) is None:
                break  # it stands there once
        return word is not None

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued, undeclared=options.undeclared)
        tool, closed, key, given = yield from self._read_name(lx, out, call, options)
        seen: list[str] = []
        if key:
            yield from self._read_param(lx, call, tool, seen, key)
        word: str | None = ""
        while not closed:
            word = None
            char = yield from skip_space(lx)
            if char == "":
                if lx.cut or not (seen or not tool.keys):
                    raise NoCall
                break
            if self.close_by_key and (yield from at_words(lx, self.next_open)):
                if tool.keys and not seen:
                    raise NoCall
                break
            if self.around and (yield from at_marker(lx, self.wrapping)) is not None:
                continue
            word = yield from at_marker(lx, self.members)
            if word == self.call_close or word in self.call_closes:
                lx.pos -= len(word) if self.shared_close else 0
                break
            if word is not None and word == self.call_stem:
                size = yield from misspelt(lx, 0)
                lx.pos += size
                break
            if word is None:
                if self.object_body and char in "{(" and not seen:
                    yield from self._read_object(lx, call, char)
                    return
                if self.close_by_key and (yield from at_words(lx, (self.nested,))):
                    yield from self._read_unopened(lx, call, tool, seen)
                    continue
                if not (yield from self._bare_key(lx, tool)):
                    if (yield from may_end(lx, self, seen=bool(seen), tool=tool)):
                        break
                    yield from self._skip_noise(lx, options)
            if (yield from self._read_param(lx, call, tool, seen, other=word in self.param_opens)):
                yield from at_marker(lx, self.members)
                call.end()
                return
        if not seen and (self.unmarked or (call.undeclared and (word is None or not self.call_open))):
            raise NoCall
        call.put("}" if seen else given or "{}")
        call.written = True
        call.end()

    def _bare_key(self, lx: Lexer, tool: Tool) -> Read[bool]:
        """Where keys have an end of their own: whether one stands here whose opening tag is missing, or is that of
        a call, which is consumed."""
        for opener in (self.inner_open, "") if self.value_open else ():
            if (yield from at_words(lx, tuple(opener + key + self.key_end for key in tool.keys))):
                lx.pos += len(opener)
                return True
        return False

    def _skip_noise(self, lx: Lexer, options: Options) -> Read[None]:
        """Text in front of a parameter, which says nothing."""
        if options.rescued or (yield from until(lx, self.members, ignore, limit=MAX_HEADER)) is None:
            raise NoCall
        word = yield from at_marker(lx, self.members)
        if word not in (self.param_open, *self.param_opens):
            raise NoCall

    def _read_object(self, lx: Lexer, call: CallWriter, char: str) -> Read[None]:
        if char == "{":
            yield from read_arguments(lx, call)
        else:
            lx.pos += 1
            yield from read_keywords(lx, call)
        call.end()
        if (yield from skip_space(lx)) == self.name_end:
            lx.pos += len(self.name_end)
            yield from skip_space(lx)
        if self.around and (yield from at_marker(lx, self.wrapping)) is not None:
            yield from skip_space(lx)
        if not self.shared_close:
            yield from at_marker(lx, self.members)

    def _read_name(
        self, lx: Lexer, out: Output, call: CallWriter, options: Options
    ) -> Read[tuple[Tool, bool, str, str | None]]:
        """The tool, whether the call is whole, a key that has been read with the name, and arguments that have."""
        parts: list[str] = []
        tools = out.tools

        def accept(text: str) -> bool:
            return (
                call.may_be_named(first_attribute(text)[0])
                or (self.has_attributes and may_be_attributes(text))
                or named_with_attributes(text, call.takes)
                or may_be_label(text)
                or bool(self._glued(text, tools))
            )

        word = yield from until(lx, self.name_ends, checked(lx, parts, accept), limit=MAX_HEADER)
        name, key = "".join(parts), ""
        if word is None and (lx.cut or options.rescued or self.call_open):
            raise NoCall
        if self.value_open and word == self.key_end:
            name, key = next(((n, k) for n, k, whole in self._glued(name, tools) if whole), ("", ""))
        if word and word in (self.name_end, self.self_close, self.key_end):
            lx.pos += len(word)
        if word == self.name_end and self.repeated_name_end.words:
            while (yield from skip_space(lx)) and (yield from at_marker(lx, self.repeated_name_end)) is not None:
                pass
        if self.value_open and not key:
            yield from skip_space(lx)
            yield from at_marker(lx, self.value_closing)
        name, attributes = first_attribute(name)
        tool = call.named(name)
        given = arguments_in(attributes, tool)
        if given is None and attributes.strip() and not self.call_open:
            raise NoCall
        return tool, word == self.self_close != "", key, given

    def _glued(self, text: str, tools: ToolSet) -> list[tuple[str, str, bool]]:
        """``NAMEKEY``, where the opening tag of the first key is missing: names with the keys that may be meant, and
        whether they are all of the text."""
        if not self.value_open:
            return []
        ends = [(tool, text[len(tool.name) :].strip()) for tool in tools if text.startswith(tool.name)]
        return [(tool.name, key, key == end) for tool, end in ends for key in tool.keys if key.startswith(end)]

    def _read_param(
        self, lx: Lexer, call: CallWriter, tool: Tool, seen: list[str], header: str = "", *, other: bool = False
    ) -> Read[bool]:
        """Returns whether the arguments are whole: they were the one parameter's value."""
        header, whole = (header, True) if header else (yield from self._read_key(lx, tool))
        if self.close_by_key and header.startswith("/") and not tool.has(header):
            return False  # a second closing tag
        closed = self.key_end == ">" and header.endswith("/") and not tool.has(header)
        tag, _, rest = header.partition(" ") if self.close_by_key and "name=" in header else (header, "", header)
        key, attributes = first_attribute(rest.removesuffix("/") if closed else rest, tool.has)
        key = key if tool.has(key) or not tool.has(key.rstrip("=: ")) else key.rstrip("=: ")
        if not whole and not self.value_open and tool.keys and not tool.has(key):
            if not seen:
                raise NoCall
            yield from TaggedValue(self, ANY, tool, [*seen], tool.schema_of(key), tag).read(lx, ignore)
            return False  # nothing says what it is a value of
        if self.value_open and not (yield from self._begins_value(lx, tool.has(key))):
            return False
        seen.append(key)
        kind = attribute_type(attributes) or tool.type_of(key)
        value = TaggedValue(self, kind, tool, seen, tool.schema_of(key), tag, other)
        head = ("{" if len(seen) == 1 else ", ") + quote(key) + ": "
        if head[0] == "{" and key in ARGUMENT_KEYS and tool.keys and not tool.has(key):
            return (yield from self._read_wrapped(lx, call, value, head))
        call.put(head)
        call.commit()
        if closed:
            call.put(to_json("", kind))
        else:
            yield from value.read(lx, call.put)
        return False

    def _read_wrapped(self, lx: Lexer, call: CallWriter, value: TaggedValue, head: str) -> Read[bool]:
        """``<parameter=arguments>{"city": "Oslo"}</parameter>`` of a tool that has no such parameter."""
        parts: list[str] = []
        value.kind = ANY
        yield from value.read(lx, parts.append)
        text = "".join(parts)
        yield from skip_space(lx)
        whole = is_object(text) and (yield from at_words(lx, (self.call_close,)))
        call.put(text if whole else head + text)
        call.commit()
        return whole

    def _read_unopened(self, lx: Lexer, call: CallWriter, tool: Tool, seen: list[str]) -> Read[None]:
        """A value whose opening tag is missing, or a part of it, where tags close by name."""
        lx.pos += len(self.nested)
        value: list[str] = []
        header: list[str] = []
        if (yield from until(lx, self.value_closing, value.append, keep=True)) is None:
            raise NoCall
        lx.pos += len(self.value_close)
        yield from until(lx, self.only_key_end, header.append, limit=MAX_HEADER)
        lx.pos += len(self.key_end)
        key = "".join(header).strip()
        if not tool.has(key):
            raise NoCall
        text = "".join(value).removeprefix(key + self.key_end)
        seen.append(key)
        call.put(("{" if len(seen) == 1 else ", ") + quote(key) + ": ")
        call.put(nested_json(text, self.nested, tool.schema_of(key)))
        call.commit()

    def _read_key(self, lx: Lexer, tool: Tool) -> Read[tuple[str, bool]]:
        """The key and its attributes, and whether their end is there. The marks around it may stand there twice; in
        ``<parameter=KEY=VALUE</parameter>`` a second ``=`` is its end."""
        parts: list[str] = []
        while True:
            word = yield from until(lx, self.key_ends, parts.append, limit=MAX_HEADER)
            if word is None:
                raise NoCall
            if word in self.closes_key or "".join(parts).strip():
                break
            lx.pos += len(word)
        header = "".join(parts)
        key, _, value = header.partition("=")
        glued = bool(value.strip()) and self.param_open.endswith("=") and not tool.has(header.strip())
        if glued and tool.has(key.strip()):
            lx.go_back(lx.consumed - len(value))
            return key.strip(), True
        if word in self.closes_key:
            lx.pos += len(word)
        while self.value_open and header.startswith(self.param_open):
            header = header[len(self.param_open) :]
        return header.rstrip(), word in self.closes_key

    def _begins_value(self, lx: Lexer, known: bool) -> Read[bool]:
        """Consumes the opener of a value. It may be missing if the key is one of the tool's; a key without any
        value is left out."""
        yield from skip_space(lx)
        while (yield from at_marker(lx, self.only_key_end)) is not None:
            yield from skip_space(lx)
        if (yield from self._opens_value(lx)):
            return True
        if not known or self.value_open.startswith(lx.buf[lx.pos :]):
            raise NoCall
        return not (yield from at_words(lx, (self.param_open, self.call_close)))

    def _opens_value(self, lx: Lexer) -> Read[bool]:
        """Consumes the opener of a value, however often it stands there, with line ends in front of it that are written
        as escapes."""
        opened = False
        while True:
            rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
            after = strip_layout(rest)
            if after.startswith(self.value_open):
                lx.pos += len(rest) - len(after) + len(self.value_open)
                opened = True
                continue
            possible = self.value_open.startswith(after) or after == "\\"
            if len(rest) == MAX_HEADER or not possible or lx.at_end():
                return opened
            yield
