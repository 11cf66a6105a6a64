"""Answers of POST /generate in SGLang's shape. A streamed chunk holds everything written so far, as there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.messages import GenerateOutput, TokenLogprob
from engine.text.tokenizer import TextTokenizer
from server.json_response import JsonArray
from server.openai.logprobs import FLOOR


@dataclass(frozen=True, slots=True)
class NativeStyle:
    """What this request's answers look like. names: one id per prompt. listed: the answer is a list.
    first_ids: the first prompt's tokens' ids, where prompt logprobs were asked for from ``logprob_start`` on."""

    tokenizer: TextTokenizer
    names: Sequence[str]
    n: int
    eos_token_ids: Sequence[int]
    started: float
    listed: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    logprob_text: bool = False
    logprob_start: int = -1
    first_ids: Sequence[int] = ()

    def item(self, token: int, logprob: float | None) -> list[Any]:
        text = self.tokenizer.id_to_bytes(token).decode("utf-8", "replace") if self.logprob_text else None
        return [None if logprob is None else max(logprob, FLOOR), token, text]


@dataclass(slots=True)
class _Answer:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, JsonArray] = field(default_factory=dict)
    finish: dict[str, Any] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class NativeAnswers:
    """Collects the outputs of all choices; ``body`` is one choice as far as it has come."""

    def __init__(self, style: NativeStyle) -> None:
        self._style = style
        self._answers = [_Answer() for _ in range(len(style.names) * style.n)]
        self._kinds = ("token", "top") if style.top_logprobs else ("token",)
        for index, answer in enumerate(self._answers if style.logprobs else ()):
            answer.logprobs = self._arrays("output") | self._arrays("input")
            if style.logprob_start >= 0:
                self._extend(answer, "input", (), first=style.first_ids[index // style.n])

    def _arrays(self, name: str) -> dict[str, JsonArray]:
        return {f"{name}_{kind}_logprobs": JsonArray() for kind in self._kinds}

    def add(self, prompt: int, output: GenerateOutput) -> int:
        """Takes in one output; returns the number of its choice."""
        index = prompt * self._style.n + output.index
        answer = self._answers[index]
        answer.text.append(output.text)
        answer.token_ids.extend(output.token_ids)
        if self._style.logprobs:
            self._add_logprobs(prompt, answer, output)
        answer.prompt_tokens = output.prompt_tokens or answer.prompt_tokens
        answer.cached_tokens = max(answer.cached_tokens, output.cached_tokens)
        answer.completion_tokens = output.completion_tokens or len(answer.token_ids)
        if output.finish_reason is not None:
            answer.finish = self._finish(answer, output)
        return index

    def abort(self, message: str) -> list[int]:
        """Ends what has not ended; returns the numbers of those choices."""
        open_ = [index for index, answer in enumerate(self._answers) if answer.finish is None]
        for index in open_:
            self._answers[index].finish = {"type": "abort", "message": message}
        return open_

    def _finish(self, answer: _Answer, output: GenerateOutput) -> dict[str, Any]:
        end = output.finish_reason
        assert end is not None
        if end.type == "length":
            return {"type": "length", "length": answer.completion_tokens}
        matched = end.matched
        if matched is None and answer.token_ids and answer.token_ids[-1] in self._style.eos_token_ids:
            matched = answer.token_ids[-1]
        return {"type": end.type, "matched": matched}

    def body(self, index: int, *, numbered: bool = False) -> dict[str, Any]:
        style, answer = self._style, self._answers[index]
        meta: dict[str, Any] = {
            "id": style.names[index // style.n],
            "finish_reason": answer.finish,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "cached_tokens": answer.cached_tokens,
        }
        if answer.finish is not None:
            meta["e2e_latency"] = time.monotonic() - style.started
        if style.logprobs:
            meta |= {name: found.json() for name, found in answer.logprobs.items()}
        body: dict[str, Any] = {"text": "".join(answer.text), "output_ids": answer.token_ids, "meta_info": meta}
        return {"index": index, **body} if numbered else body

    def _add_logprobs(self, prompt: int, answer: _Answer, output: GenerateOutput) -> None:
        """Every chunk holds all of them again, so each is written once and kept as it is."""
        self._extend(answer, "output", output.logprobs)
        if self._style.logprob_start >= 0 and output.prompt_logprobs:
            answer.logprobs |= self._arrays("input")
            self._extend(answer, "input", output.prompt_logprobs, first=self._style.first_ids[prompt])

    def _extend(self, answer: _Answer, name: str, found: Sequence[TokenLogprob], *, first: int | None = None) -> None:
        style = self._style
        items = [style.item(one.token_id, one.logprob) for one in found]
        tops: list[Any] = []
        if style.top_logprobs:
            tops = [[style.item(top.token_id, top.logprob) for top in one.top] for one in found]
        if first is not None:
            items = [style.item(first, None), *items][style.logprob_start :]
            tops = [None, *tops][style.logprob_start :]
        answer.logprobs[f"{name}_token_logprobs"].extend(items)
        if style.top_logprobs:
            answer.logprobs[f"{name}_top_logprobs"].extend(tops)

    def whole(self) -> Any:
        bodies = [self.body(index) for index in range(len(self._answers))]
        return bodies if self._style.listed else bodies[0]
