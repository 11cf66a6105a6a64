"""Tool calls and reasoning in model text, read as the text arrives. Needs neither the server nor torch.

>>> import toolcall
>>> toolcall.parse('<tool_call>{"name": "now", "arguments": {}}</tool_call>', [{"name": "now"}]).tool_calls[0].name
'now'
"""

from __future__ import annotations

from toolcall.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from toolcall.folding import ParsedCall, ParsedOutput, fold, parse
from toolcall.format import Format, ReasoningFormat
from toolcall.parser import OutputParser
from toolcall.registry import get_format, get_reasoning, list_formats

__all__ = [
    "Event",
    "Format",
    "OutputParser",
    "ParsedCall",
    "ParsedOutput",
    "ReasoningDelta",
    "ReasoningFormat",
    "TextDelta",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "fold",
    "get_format",
    "get_reasoning",
    "list_formats",
    "parse",
]
