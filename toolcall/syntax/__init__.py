"""The ways in which models write calls. Each class is a table of the strings of one way, and reads one call of it."""

from __future__ import annotations

from toolcall.syntax.block import Block, Body, Options
from toolcall.syntax.json_calls import JsonCalls
from toolcall.syntax.kimi import KimiCalls
from toolcall.syntax.loose import LooseCalls
from toolcall.syntax.messages import MessageProtocol
from toolcall.syntax.named_json import NamedJson
from toolcall.syntax.python_calls import PythonCalls
from toolcall.syntax.tagged import TaggedCalls

__all__ = [
    "Block",
    "Body",
    "JsonCalls",
    "KimiCalls",
    "LooseCalls",
    "MessageProtocol",
    "NamedJson",
    "Options",
    "PythonCalls",
    "TaggedCalls",
]
