"""Bare JSON or JSON after ``<|python_tag|>``: Llama 3 and 4."""

from __future__ import annotations

from toolcall.format import Format
from toolcall.syntax import Block, JsonCalls, PythonCalls

_JSON = JsonCalls()

_HEADERS = ("assistant\n\n", "assistant<|end_header_id|>\n\n")
"""What is left of a header that the model has begun once more."""

LLAMA3_JSON = Format(
    name="llama3_json",
    aliases=("llama3", "llama4_json", "llama"),
    families="Llama 3.1, 3.2, 3.3, Llama 4 with JSON prompts",
    blocks=(
        Block(opener="<|python_tag|>", bodies=(_JSON, PythonCalls(code=True))),
        Block(opener="<|python_start|>", bodies=(_JSON, PythonCalls(code=True)), closers=("<|python_end|>",)),
    ),
    bare=(
        Block(opener="", bodies=(_JSON,), strict=True, triggers="{"),
        *(Block(opener=header, bodies=(_JSON,), strict=True, hold=True) for header in _HEADERS),
    ),
    hidden=("<|start_header_id|>assistant<|end_header_id|>",),
    end_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>"),
    template_signs=("<|python_tag|>",),
    other_signs=(("<|start_header_id|>", '"parameters": '),),
)
