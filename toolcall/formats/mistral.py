"""``[TOOL_CALLS]`` and a JSON list, or a name and JSON: Mistral, Magistral, Devstral."""

from __future__ import annotations

import string
from dataclasses import replace

from toolcall.format import Format
from toolcall.syntax import Block, JsonCalls, NamedJson

_NAMED = NamedJson(
    name_ends=("[ARGS]", "[ARGS"),
    name_stops=("{", "("),
    id_marks=("[CALL_ID]",),
    leads=("```json", "```"),
    trails=("```",),
    python=True,
)

MISTRAL = Format(
    name="mistral",
    families="Mistral, Mixtral, Magistral, Devstral, Ministral",
    blocks=tuple(
        Block(opener=opener, bodies=(JsonCalls(), _NAMED), leftovers=("[/TOOL_CALLS]",))
        for opener in ("[TOOL_CALLS]", "[TOOL_CALLS")
    ),
    bare=(
        Block(
            opener="",
            bodies=(replace(_NAMED, name_stops=(), python=False),),
            triggers=string.ascii_letters + "_",
            rescued=True,
            hold=True,
            single=True,
        ),
    ),
    end_tokens=("</s>",),
    reasoning="mistral",
    id_style="mistral",
    own_markers_special=True,
    template_signs=("[TOOL_CALLS]",),
)
