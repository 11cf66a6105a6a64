"""Raw prompts of /v1/completions, /v1/embeddings, /tokenize and /generate: text or token ids, one or many.

Decision: special tokens spelled in a raw prompt ARE special tokens. Such a prompt is the client's own template, as it
is with other servers; text of a third party belongs into chat messages, where no spelling is special.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.messages import ModelInfo
from engine.text.tokenizer import TextTokenizer
from server import limits
from server.errors import BadRequest, invalid
from server.json_response import off_loop

INLINE_CHARS = 8_000
"""Texts up to this length are encoded on the event loop, longer ones in a thread."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Either text or ids."""

    text: str | None = None
    ids: tuple[int, ...] | None = None


def parse_prompts(value: Any, param: str, info: ModelInfo, max_prompts: int) -> tuple[Prompt, ...]:
    """A string, token ids, or a list of either. Raises BadRequest with the path of what is wrong."""
    if isinstance(value, str):
        prompts: tuple[Prompt, ...] = (Prompt(text=value),)
    elif not isinstance(value, list):
        raise invalid(param, "a string, a list of strings, or token ids are expected")
    elif not value:
        raise invalid(param, "the list is empty")
    elif type(value[0]) is int:
        prompts = (Prompt(ids=token_ids(value, param, info)),)
    elif len(value) > max_prompts:
        raise invalid(param, f"more than {max_prompts} prompts")
    else:
        prompts = tuple(_one(item, f"{param}[{index}]", info) for index, item in enumerate(value))
    chars = sum(len(prompt.text) for prompt in prompts if prompt.text is not None)
    if chars > limits.MAX_PROMPT_CHARS:
        raise too_long(info, f"your prompt has {chars} characters", param)
    return prompts


def _one(item: Any, param: str, info: ModelInfo) -> Prompt:
    if isinstance(item, str):
        return Prompt(text=item)
    if isinstance(item, list):
        return Prompt(ids=token_ids(item, param, info))
    raise invalid(param, "a string or a list of token ids is expected")


def token_ids(value: Sequence[Any], param: str, info: ModelInfo) -> tuple[int, ...]:
    """Checked ids, at least one. The highest id is the width of the logits."""
    if not value:
        raise invalid(param, "the list is empty")
    if not set(map(type, value)) <= {int}:
        raise invalid(param, "a token id must be an integer")
    if min(value) < 0 or max(value) >= info.vocab_size:
        raise invalid(param, f"token ids must lie between 0 and {info.vocab_size - 1}")
    return tuple(value)


async def encode(
    tokenizer: TextTokenizer, text: str, *, guard: str = "", add_special_tokens: bool = False
) -> list[int]:
    """Ids of a text, off the event loop where it is long."""
    encoder = partial(tokenizer.encode, text, guard=guard, add_special_tokens=add_special_tokens)
    return await off_loop(len(text) > INLINE_CHARS, encoder)


async def encode_prompt(tokenizer: TextTokenizer, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
    if prompt.ids is not None:
        return list(prompt.ids)
    return await encode(tokenizer, prompt.text or "", add_special_tokens=add_special_tokens)


async def encode_many(
    tokenizer: TextTokenizer, prompts: Sequence[Prompt], *, add_special_tokens: bool = True
) -> Sequence[Prompt]:
    """The prompts, as ids where they are many and long together: one by one they would hold up the event loop."""
    chars = sum(len(prompt.text) for prompt in prompts if prompt.text is not None)
    if len(prompts) == 1 or chars <= INLINE_CHARS:
        return prompts

    def one(prompt: Prompt) -> Prompt:
        if not prompt.text:
            return prompt
        return Prompt(ids=tuple(tokenizer.encode(prompt.text, guard="", add_special_tokens=add_special_tokens)))

    return await asyncio.to_thread(lambda: tuple(map(one, prompts)))


def too_long(info: ModelInfo, but: str, param: str) -> BadRequest:
    """The refusal that clients recognise."""
    return BadRequest(
        f"This model's maximum context length is {info.context_length} tokens. However, {but}.",
        param=param,
        code="context_length_exceeded",
    )
