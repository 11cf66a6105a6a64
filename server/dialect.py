"""How the served model is spoken to: chat template, tool-call format, reasoning format. Decided once, at start."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from chat_templates.registry import choose_template
from engine.text.tokenizer import TextTokenizer
from server.args import ServerArgs
from toolcall.format import Format, ReasoningFormat
from toolcall.registry import detect, get_format, get_reasoning

_DEFAULT_FORMAT = "hermes"
"""For models whose template says nothing about tools: most open models have seen it."""

LOG = logging.getLogger("callgate.server")


@dataclass(frozen=True, slots=True)
class ModelDialect:
    """``keep_special``: special tokens that the parser must see although skip_special_tokens is on.
    ``why``: one line for the start banner."""

    template: str
    format: Format
    reasoning: ReasoningFormat | None
    keep_special: tuple[str, ...]
    why: str


def resolve_dialect(tokenizer: TextTokenizer, args: ServerArgs) -> ModelDialect:
    """Raises TemplateError or ValueError for a template or parser name that does not exist."""
    chosen = choose_template(tokenizer.chat_template, tokenizer.special_tokens, args.chat_template)
    found = detect(chosen.source, tuple(tokenizer.special_tokens))
    if args.tool_call_parser in ("", "auto"):
        format_ = found.format or get_format(_DEFAULT_FORMAT)
    else:
        format_ = get_format(args.tool_call_parser)
    reasoning = found.reasoning
    if args.reasoning_parser == "none":
        reasoning = None
    elif args.reasoning_parser not in ("", "auto"):
        reasoning = get_reasoning(args.reasoning_parser)
    why = (
        f"chat template: {chosen.why}; tool calls: {format_.name}; "
        f"reasoning: {reasoning.name if reasoning else 'none'} ({found.why})"
    )
    LOG.debug("%s", why)  # the banner says it
    return ModelDialect(chosen.source, format_, reasoning, _kept(tokenizer, format_, reasoning), why)


def _kept(tokenizer: TextTokenizer, format_: Format, reasoning: ReasoningFormat | None) -> tuple[str, ...]:
    """Special tokens that are markers. A format whose markers are all special keeps every token but the ends of
    turns: its bodies use more of them than its openers show."""
    ends = {tokenizer.eos_token, tokenizer.bos_token}
    if format_.own_markers_special:
        return tuple(token for token in tokenizer.special_tokens if token not in ends)
    markers = set(_markers(format_, reasoning))
    return tuple(
        token
        for token in tokenizer.special_tokens
        if token not in ends and any(token in marker or marker in token for marker in markers)
    )


def _markers(format_: Format, reasoning: ReasoningFormat | None) -> Iterable[str]:
    for block in (*format_.blocks, *format_.bare):
        yield from (text for text in (block.opener, *block.closers, *block.inner) if text)
    yield from (text for text in format_.hidden if text)
    if reasoning is not None:
        yield from reasoning.openers
        yield from reasoning.closers
