"""Log-probabilities in OpenAI's chat form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.messages import TokenLogprob
from engine.text.tokenizer import TextTokenizer

LogprobWriter = Callable[[Sequence[TokenLogprob]], list[dict[str, Any]]]

FLOOR = -9999.0
"""What OpenAI sends for a probability of zero; JSON has no -Infinity."""


def chat_logprobs(tokenizer: TextTokenizer) -> LogprobWriter:
    """A writer of ``choices[].logprobs.content``."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.id_to_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, FLOOR), "bytes": list(raw)}

    def write(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            token(item.token_id, item.logprob)
            | {"top_logprobs": [token(top.token_id, top.logprob) for top in item.top]}
            for item in logprobs
        ]

    return write
