"""A raw completion on the wire: chunks of a stream, or one folded object, with logprobs in the old form."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.messages import GenerateOutput, TokenLogprob
from engine.text.tokenizer import TextTokenizer
from server.generation import Usage
from server.openai.logprobs import FLOOR
from server.streaming import COMMENT, DONE


@dataclass(frozen=True, slots=True)
class Echo:
    """What ``echo`` repeats of one prompt."""

    text: str
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class CompletionStyle:
    """What this request's answers look like. echoes: one per prompt, empty without ``echo``. n: of
    ``best_of`` candidates so many are answered. drop_text: only the echo was asked for (max_tokens 0)."""

    id: str
    created: int
    model: str
    n: int
    tokenizer: TextTokenizer
    logprobs: bool = False
    token_ids: bool = False
    echoes: Sequence[Echo] = ()
    drop_text: bool = False
    skip_special: bool = True

    def usage(self, usage: Usage) -> dict[str, object]:
        if self.drop_text:
            usage.completion_tokens = 0
        return usage.as_dict()


class LogprobsWriter:
    """``logprobs`` of one choice, piece by piece: offsets count the characters of the answer's text."""

    def __init__(self, style: CompletionStyle) -> None:
        self._tokenizer = style.tokenizer
        self._special = frozenset(style.tokenizer.special_tokens.values())
        self._skip = style.skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(self, echo: Echo, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The prompt's tokens: the first has no logprob, and no place in the text where the tokenizer added it."""
        begin = self._tokenizer.id_to_bytes(echo.ids[0]).decode("utf-8", "replace") if echo.ids else ""
        first = self._piece([(token, None) for token in echo.ids[:1]], hide=not echo.text.startswith(begin))
        rest = self._piece([(item.token_id, item) for item in logprobs], hide=False)
        return {key: first[key] + rest[key] for key in first}

    def output(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._piece([(item.token_id, item) for item in logprobs], hide=self._skip)

    def _piece(self, items: Sequence[tuple[int, TokenLogprob | None]], *, hide: bool) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob in items:
            raw = self._tokenizer.id_to_bytes(token)
            found["tokens"].append(raw.decode("utf-8", "replace"))
            found["text_offset"].append(self._offset)
            found["token_logprobs"].append(None if logprob is None else max(logprob.logprob, FLOOR))
            found["top_logprobs"].append(None if logprob is None else self._top(logprob))
            if not (hide and token in self._special):
                self._offset += len(self._decoder.decode(raw))
        return found

    def _top(self, logprob: TokenLogprob) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, value in ((logprob.token_id, logprob.logprob), *((t.token_id, t.logprob) for t in logprob.top)):
            top.setdefault(self._tokenizer.id_to_bytes(token).decode("utf-8", "replace"), max(value, FLOOR))
        return top


def joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for piece in pieces for item in piece[name]] for name in names}


class CompletionWriter:
    """(prompt, output) -> the bytes of its SSE event."""

    def __init__(self, style: CompletionStyle, tail: Callable[[], bytes] = bytes) -> None:
        """tail: what every chunk with choices ends with (server/openai/stream_usage.py)."""
        self._style = style
        self._tail = tail
        head = orjson.dumps(
            {"id": style.id, "object": "text_completion", "created": style.created, "model": style.model}
        )
        self._head = b"data: " + head[:-1] + b","
        self._logprobs: dict[int, LogprobsWriter] = {}
        self._begun: set[int] = set()
        self._ended: set[int] = set()

    def write(self, prompt: int, output: GenerateOutput) -> bytes:
        style = self._style
        index = prompt * style.n + output.index
        text = "" if style.drop_text else output.text
        pieces: list[dict[str, Any]] = []
        writer = self._logprobs.setdefault(index, LogprobsWriter(style)) if style.logprobs else None
        if style.echoes and index not in self._begun:
            text = style.echoes[prompt].text + text
            if writer is not None:
                pieces.append(writer.prompt(style.echoes[prompt], output.prompt_logprobs))
        self._begun.add(index)
        if writer is not None and output.logprobs and not style.drop_text:
            pieces.append(writer.output(output.logprobs))
        finish = output.finish_reason.type if output.finish_reason is not None else None
        if finish is not None:
            self._ended.add(index)
        if not text and not pieces and finish is None:
            return b""
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": joined(pieces) if pieces else None,
            "finish_reason": finish,
        }
        if style.token_ids:
            choice["token_ids"] = output.token_ids
        return b'%b"choices":[%b]%b}\n\n' % (self._head, orjson.dumps(choice), self._tail())

    def end(self, usage: Usage | None) -> bytes:
        """The end of the stream, with the usage where there is one."""
        if usage is None:
            return DONE
        return b'%b"choices":[],"usage":%b}\n\n%b' % (self._head, orjson.dumps(self._style.usage(usage)), DONE)

    def idle(self) -> bytes:
        """A real chunk that says nothing, of a choice that has not ended."""
        alive = (self._begun or {0}) - self._ended
        if not alive:
            return COMMENT
        return b'%b"choices":[{"index":%d,"text":"","logprobs":null,"finish_reason":null}]%b}\n\n' % (
            self._head,
            min(alive),
            self._tail(),
        )


@dataclass(slots=True)
class _Candidate:
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprob] = ()
    token_ids: list[int] = field(default_factory=list)
    finish: str = "stop"

    @property
    def mean_logprob(self) -> float:
        return sum(item.logprob for item in self.logprobs) / max(1, len(self.logprobs))


class CompletionFold:
    """Collects outputs into one ``text_completion``. Of ``best_of`` candidates the best by mean logprob stay."""

    def __init__(self, style: CompletionStyle) -> None:
        self._style = style
        self._found: dict[int, dict[int, _Candidate]] = {}

    def add(self, prompt: int, output: GenerateOutput) -> None:
        candidate = self._found.setdefault(prompt, {}).setdefault(output.index, _Candidate())
        candidate.text.append(output.text)
        candidate.logprobs.extend(output.logprobs)
        candidate.token_ids.extend(output.token_ids)
        candidate.prompt_logprobs = output.prompt_logprobs or candidate.prompt_logprobs
        if output.finish_reason is not None:
            candidate.finish = output.finish_reason.type

    def result(self, usage: Usage) -> dict[str, Any]:
        style = self._style
        choices = []
        for prompt in sorted(self._found):
            candidates = [candidate for _, candidate in sorted(self._found[prompt].items())]
            if len(candidates) > style.n:
                candidates = sorted(candidates, key=lambda found: found.mean_logprob, reverse=True)[: style.n]
            choices += [self._choice(prompt, place, found) for place, found in enumerate(candidates)]
        return {
            "id": style.id,
            "object": "text_completion",
            "created": style.created,
            "model": style.model,
            "choices": choices,
            "usage": style.usage(usage),
        }

    def _choice(self, prompt: int, place: int, found: _Candidate) -> dict[str, Any]:
        style = self._style
        text = "" if style.drop_text else "".join(found.text)
        logprobs = None
        if style.logprobs:
            writer = LogprobsWriter(style)
            echo = [writer.prompt(style.echoes[prompt], found.prompt_logprobs)] if style.echoes else []
            logprobs = joined([*echo, *([] if style.drop_text else [writer.output(found.logprobs)])])
        if style.echoes:
            text = style.echoes[prompt].text + text
        choice: dict[str, Any] = {
            "index": prompt * style.n + place,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": "length" if style.drop_text else found.finish,
        }
        if style.token_ids:
            choice["token_ids"] = found.token_ids
        return choice
