"""Answers in llama.cpp's shape. A stream's chunks say what has come since the last, its last one how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.messages import GenerateOutput, TokenLogprob
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import TextTokenizer
from server.json_response import JsonArray
from server.openai.logprobs import FLOOR


@dataclass(frozen=True, slots=True)
class LlamaStyle:
    """What this request's answers look like. prompts: as text. listed: the answer is a list. fields: those that are
    answered, None for all. silent: only the prompts are computed. indent: the least indentation of a line, 0 for any.
    seconds: after which an answer ends, once it has a whole line; 0 for never. own: the field of our own."""

    model: str
    tokenizer: TextTokenizer
    prompts: Sequence[str]
    sampling: SamplingParams
    context_length: int
    started: float
    stream: bool = False
    listed: bool = False
    fields: Sequence[str] | None = None
    tokens: bool = False
    silent: bool = False
    indent: int = 0
    seconds: float = 0.0
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """``generation_settings``."""
        params = self.sampling
        return {
            "n_ctx": self.context_length,
            "n_predict": -1 if params.max_tokens is None else params.max_tokens,
            "seed": -1 if params.seed is None else params.seed,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "repeat_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "stop": list(params.stop),
            "ignore_eos": params.ignore_eos,
            "stream": self.stream,
            "n_probs": params.top_logprobs,
        }

    def written(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            self._token(one.token_id, one.logprob)
            | {"top_logprobs": [self._token(top.token_id, top.logprob) for top in one.top]}
            for one in logprobs
        ]

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.id_to_bytes(token)
        text = raw.decode("utf-8", "replace")
        return {"id": token, "token": text, "bytes": list(raw), "logprob": max(logprob, FLOOR)}


class LineCut:
    """Ends a text before its first line that is indented less than the others must be."""

    def __init__(self, indent: int) -> None:
        self._indent = indent
        self._held = ""

    def take(self, piece: str) -> tuple[str, bool]:
        """(what may be shown, whether the text ends with it). A line's begin is held until its indentation is known."""
        if not self._indent:
            return piece, False
        text, at = self._held + piece, 0
        while (end := text.find("\n", at)) >= 0:
            line = text[end + 1 :]
            begun = line.lstrip(" \t")
            if not begun:
                self._held = text[end:]
                return text[:end], False
            if len(line) - len(begun) < self._indent:
                return text[:end], True
            at = end + 1
        self._held = ""
        return text, False

    def rest(self) -> str:
        return self._held


@dataclass(slots=True)
class _Answer:
    cut: LineCut
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    probs: JsonArray = field(default_factory=JsonArray)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    stop: tuple[str, str] | None = None
    """stop_type and stopping_word, once it has ended."""
    lines: bool = False


class LlamaAnswers:
    """Collects the outputs of all prompts."""

    def __init__(self, style: LlamaStyle) -> None:
        self._style = style
        self._answers = [_Answer(LineCut(style.indent)) for _ in style.prompts]

    @property
    def done(self) -> bool:
        return all(answer.stop is not None for answer in self._answers)

    def add(self, prompt: int, output: GenerateOutput) -> list[dict[str, Any]]:
        """Takes in one output; returns a stream's chunks of it."""
        style, answer = self._style, self._answers[prompt]
        if answer.stop is not None:
            return []
        answer.last = time.monotonic()
        answer.first = answer.first or answer.last
        answer.prompt_tokens = output.prompt_tokens or answer.prompt_tokens
        answer.cached_tokens = max(answer.cached_tokens, output.cached_tokens)
        piece = self._take(answer, output)
        chunks = []
        if piece:
            answer.text.append(piece)
            ids = [] if style.silent else list(output.token_ids)
            chunks.append({"index": prompt, "content": piece, "tokens": ids, **self._counts(answer), "stop": False})
        if answer.stop is not None:
            chunks.append(self._last(prompt, answer, content=""))
        return chunks

    def _take(self, answer: _Answer, output: GenerateOutput) -> str:
        """The text of one output that is shown, and whether the answer ends here."""
        style, end = self._style, output.finish_reason
        if end is not None:
            word = end.matched if isinstance(end.matched, str) else ""
            answer.stop = ("limit" if end.type == "length" else "word" if word else "eos", word)
        if style.silent:
            return ""
        answer.token_ids.extend(output.token_ids)
        answer.completion_tokens = output.completion_tokens or len(answer.token_ids)
        answer.probs.extend(style.written(output.logprobs))
        piece, cut = answer.cut.take(output.text)
        answer.lines = answer.lines or "\n" in piece or cut
        late = style.seconds and answer.lines and answer.last - answer.first >= style.seconds
        if cut or (late and answer.stop is None):
            answer.stop = ("limit", "")
        elif answer.stop is not None:
            piece += answer.cut.rest()
        return piece

    def whole(self) -> Any:
        bodies = [self._last(index, answer, "".join(answer.text)) for index, answer in enumerate(self._answers)]
        return bodies if self._style.listed else bodies[0]

    @staticmethod
    def _counts(answer: _Answer) -> dict[str, int]:
        return {"tokens_predicted": answer.completion_tokens, "tokens_evaluated": answer.prompt_tokens}

    def _last(self, index: int, answer: _Answer, content: str) -> dict[str, Any]:
        style = self._style
        kind, word = answer.stop or ("none", "")
        body: dict[str, Any] = {
            "index": index,
            "content": content,
            "tokens": answer.token_ids if style.tokens and not style.stream else [],
            "id_slot": 0,
            "stop": True,
            "model": style.model,
            **self._counts(answer),
            "generation_settings": style.settings,
            "prompt": style.prompts[index],
            "has_new_line": answer.lines,
            "truncated": False,
            "stop_type": kind,
            "stopping_word": word,
            "tokens_cached": answer.cached_tokens,
            "timings": _timings(answer, style.started),
            **style.own,
        }
        if style.sampling.logprobs:
            body["completion_probabilities"] = answer.probs.json()
        return body if style.fields is None else picked(body, style.fields)


def picked(body: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """``response_fields``: ``timings/prompt_n`` lies under that name. What there is not is left out."""
    found: dict[str, Any] = {}
    for name in fields:
        value: Any = body
        for key in name.split("/"):
            value = value[key] if isinstance(value, Mapping) and key in value else None
        if value is not None:
            found[name] = value
    return found


def _timings(answer: _Answer, started: float) -> dict[str, Any]:
    """Milliseconds; a prompt's begin with the request."""
    fresh, new = answer.prompt_tokens - answer.cached_tokens, answer.completion_tokens
    prompt_ms, new_ms = (answer.first - started) * 1000, (answer.last - answer.first) * 1000
    return {"cache_n": answer.cached_tokens, **_rate("prompt", fresh, prompt_ms), **_rate("predicted", new, new_ms)}


def _rate(name: str, count: int, ms: float) -> dict[str, float]:
    ms = max(ms, 0.001)  # clients divide by it
    return {
        f"{name}_n": count,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / max(count, 1),
        f"{name}_per_second": count / ms * 1000,
    }
