"""Calls that a model wrote outside its own format, read all the same.

Qwen2.5-Coder, for one, almost never writes its ``<tool_call>``: it writes the object in a ```json fence, bare, one
object a line, or in ``<tools>``. The rules that keep this safe: the name is a declared tool, the arguments are an
object, nothing unknown stands around them, the object has closed, and it stands where a call may stand: at the
beginning of the text or after another call, never inside prose. Until all of that is certain the text is held,
and it is released at the first character that rules it out.
"""

from __future__ import annotations

from dataclasses import replace

from toolcall.syntax import Block, Body, JsonCalls, PythonCalls, TaggedCalls
from toolcall.syntax.block import FENCES
from toolcall.syntax.fenced import FencedBlock, may_be_fenced

_JSON = JsonCalls()
_AROUND_ARGUMENTS = ("<parameters>", "</parameters>", "<arguments>", "</arguments>")
FUNCTION_TAGS = TaggedCalls(
    call_open="<function=",
    call_opens=("<function ", "< function=", "< function "),
    name_end=">",
    name_stops=("{", "("),
    self_close="/>",
    header_stops=("\n",),
    param_open="<parameter=",
    param_opens=("<parameter ", "< parameter=", "< parameter "),
    value_closes=("</ parameter >", "</parameter >", "</ parameter>"),
    call_closes=("</ function >", "</function >", "</ function>"),
    key_end=">",
    value_close="</parameter>",
    call_close="</function>",
    next_open=("<function=", "</tool_call>"),
    object_body=True,
    around=_AROUND_ARGUMENTS,
)
INVOKE_TAGS = TaggedCalls(
    call_open="<invoke ",
    name_end=">",
    self_close="/>",
    param_open="<parameter ",
    key_end=">",
    value_close="</parameter>",
    trim_newlines=False,
    call_close="</invoke>",
    next_open=("<invoke", "</function_calls>", "</tool_calls>", "</tool_call>", "</minimax:tool_call>"),
    object_body=True,
    around=_AROUND_ARGUMENTS,
)
ARGUMENT_TAGS = TaggedCalls(
    call_open="",
    name_end="\n",
    name_stops=("<arg_key>", "</tool_call>", "<tool_call>", "{", "(", "\\n"),
    header_stops=("<arg_value>",),
    param_open="<arg_key>",
    key_end="</arg_key>",
    value_open="<arg_value>",
    value_close="</arg_value>",
    trim_newlines=False,
    call_close="</tool_call>",
    next_open=("<tool_call>",),
    object_body=True,
    around=("\\n",),
)
FOREIGN_BODIES: tuple[Body, ...] = (
    JsonCalls(foreign=True),
    replace(FUNCTION_TAGS, foreign=True),
    replace(INVOKE_TAGS, foreign=True),
)
"""Ways that models take for one another's inside a block."""
NAME_FIRST = replace(ARGUMENT_TAGS, foreign=True, shared_close=True)
"""A name, then tags, a JSON object or Python's keyword arguments, in ``<tool_call>``."""
WRAPPERS = (
    ("<tools>", "</tools>"),
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
    ("<function_call>", "</function_call>"),
    ("<function_calls>", "</function_calls>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<response>", "</response>"),
    ("<toolcall>", "</toolcall>"),
    ("<functioncall>", "</functioncall>"),
    ("<tool_use>", "</tool_use>"),
    ("<tool_code>", "</tool_code>"),
    ("<tool>", "</tool>"),
    ("[TOOL_CALL]", "[/TOOL_CALL]"),
    ("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),
    ("tool_call>", "</tool_call>"),
    ("<|python_tag|>", ""),
    ("[TOOL_CALLS]", ""),
)
_OWN, _LATE = "<tool_call>", "</tool_call>"
SPELLINGS = tuple(f"<{name}>" for name in ("TOOL_CALL", "Tool_Call", "ToolCall", "toolCall", "tool-call", "tool call"))
"""What models write for it where it is no token of theirs."""
_AROUND_TAGS = ("<tool_call>", "<tool_calls>", "<function_calls>", "<minimax:tool_call>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>", "<function_calls>", "</function_calls>")
"""What may stand around a call inside a fence."""
_SPELT_ENDS = tuple(word.replace("<", "</") for word in SPELLINGS)
_PYTHON = PythonCalls(foreign=True)
STRAYS = (">", ",", ".", ":", ";")
"""One character before the object: what is left of an opener, or of a separator, that the model began with."""


def with_foreign(block: Block) -> Block:
    """The block of a family with the ways of others behind its own: in a fence, as JSON, tags or, where a closer ends
    it, Python."""
    if block.keep_opener or len(block.opener) < 2 or block.opener in FENCES:
        return block
    have = {_kind(body) for body in block.bodies}
    others = (*FOREIGN_BODIES, *((_PYTHON,) if block.closers else ()))
    bodies = (*block.bodies, *(b for b in others if _kind(b) not in have))
    return replace(block, bodies=bodies, closers=_closers(block.opener, block.closers), fences=True)


def _closers(opener: str, closers: tuple[str, ...]) -> tuple[str, ...]:
    return (*closers, *_SPELT_ENDS) if opener == _OWN else closers


def spelt_otherwise(block: Block) -> tuple[Block, ...]:
    """The blocks that begin with a ``<tool_call>`` that is spelt as no family does, where that is the family's own."""
    if block.opener != _OWN or block.keep_opener:
        return ()
    other = replace(with_foreign(block), rescued=True, hold=True, strict=True)
    return tuple(replace(other, opener=o, bodies=tuple(_respelt(b, o) for b in other.bodies)) for o in SPELLINGS)


def _respelt(body: Body, opener: str) -> Body:
    """The body whose calls end where the block does."""
    if not isinstance(body, TaggedCalls) or body.call_close != _LATE:
        return body
    return replace(body, call_close=opener.replace("<", "</"), next_open=(opener,))


def _kind(body: Body) -> tuple[type, str]:
    return type(body), body.call_open if isinstance(body, TaggedCalls) else ""


def bare_blocks(family: tuple[Block, ...]) -> tuple[Block, ...]:
    """Read where a call may stand. family: its own blocks, which may stand in a fence, and whose calls may stand in
    another's mark too."""
    late = _late(family)
    own = tuple(body for block in family if block.keep_opener for body in block.bodies)
    marked = tuple(map(with_foreign, may_be_fenced(family)))
    bodies: tuple[Body, ...] = (_JSON, FUNCTION_TAGS, INVOKE_TAGS)
    have = {_kind(body) for body in bodies}
    bodies = (*(b for b in own if isinstance(b, TaggedCalls) and _kind(b) not in have), *bodies)
    objects = tuple(
        Block(opener=o, bodies=(_JSON,), closers=late, rescued=True, hold=True, strict=True, triggers=o or "{")
        for o in ("", *STRAYS)
    )
    fences = tuple(
        FencedBlock(
            opener=f,
            bodies=(*bodies, *code),
            closers=("```",),
            inner=_TAGS,
            rescued=True,
            hold=True,
            strict=True,
            own=marked,
        )
        for f in FENCES
        for code in ((PythonCalls(),) if f == "```tool_code" else (),)
    )
    pairs = ((o, (c,) if c else ()) for o, c in WRAPPERS)
    spelt = ((o, (*_SPELT_ENDS, _LATE)) for o in SPELLINGS)
    wrappers = tuple(
        Block(opener=o, bodies=bodies, closers=_closers(o, ends), rescued=True, hold=True, strict=True)
        for o, ends in (*pairs, *spelt)
    )
    return (*objects, bare_list(_JSON, PythonCalls(), late=late), *fences, *wrappers)


def _late(family: tuple[Block, ...]) -> tuple[str, ...]:
    """What may close calls whose opener is missing."""
    return (_LATE, *(c for block in family for c in block.closers if len(c) > 1 and c not in FENCES))


def bare_list(*bodies: Body, late: tuple[str, ...] = (_LATE,)) -> Block:
    """A list of calls where a call may stand. late: see ``_late``."""
    return Block(opener="", bodies=bodies, closers=late, rescued=True, hold=True, strict=True, triggers="[")


def anywhere_blocks() -> tuple[Block, ...]:
    """Read after prose too: a tag that names a declared tool is no accident."""
    lone = ((FUNCTION_TAGS, ("</tool_call>",)), (INVOKE_TAGS, ("</function_calls>", "</tool_calls>")))
    return (
        *(
            Block(opener=tags.call_open, keep_opener=True, bodies=(tags,), closers=closers, rescued=True, hold=True)
            for tags, closers in lone
        ),
        *(
            Block(opener=opener, bodies=(FUNCTION_TAGS, INVOKE_TAGS), closers=(closer,), rescued=True, hold=True)
            for opener, closer in WRAPPERS
            if opener in _AROUND_TAGS
        ),
    )
