"""The ways in which models write calls. Each class is a table of the strings of one way, and reads one call of it."""

from __future__ import annotations

from toolcall.syntax.block import Block, Body
from toolcall.syntax.json_calls import JsonCalls
from toolcall.syntax.tagged import TaggedCalls

__all__ = ["Block", "Body", "JsonCalls", "TaggedCalls"]
