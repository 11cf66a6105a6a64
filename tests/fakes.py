"""ScriptedEngine: an EngineClient whose answers are written in the test.

    engine = ScriptedEngine("Hello!")                                   # always the same answer
    engine = ScriptedEngine(Reply("Hello!", chunk=1, delay=0.01))       # one character at a time
    engine = ScriptedEngine({"Paris": "Sunny.", "": "What?"})           # first key that stands in the prompt
    engine = ScriptedEngine(lambda request, index: Reply("..."))        # anything

It honours max_tokens, stop strings, n, logprobs and the context length as the real engine does, counts what runs, and
can refuse, fail, hang and die on command. One token is one byte of UTF-8.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.client import EngineError, EngineState, EngineUnavailable
from engine.messages import (
    FinishReason,
    GenerateOutput,
    GenerateReqInput,
    ModelInfo,
    SchedulerStats,
    TokenLogprob,
    TopLogprob,
)

CHATML = """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}{{- '<tool_call>{"name": , "arguments": }</tool_call><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.content %}{{- message.content }}{%- endif %}{%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""
"""A Qwen3-like template: hermes calls, optional thinking."""


class ByteTokenizer:
    """256 bytes, then special tokens. Implements TextTokenizer."""

    def __init__(self, chat_template: str | None = CHATML) -> None:
        names = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
        self.special_tokens: Mapping[str, int] = {name: 256 + i for i, name in enumerate(names)}
        self._by_id = {i: name for name, i in self.special_tokens.items()}
        self.chat_template = chat_template
        self.bos_token = None
        self.eos_token = "<|im_end|>"
        self.eos_token_ids = (257, 258)
        self.vocab_size = 256 + len(names)

    def encode(self, text: str, *, guard: str = "", add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        position = 0
        while position < len(text):
            found = [(at, name) for name in self.special_tokens if (at := text.find(name, position)) >= 0]
            at, name = min(found, default=(len(text), ""))
            ids += text[position:at].replace(guard or "\0\0", "").encode("utf-8", "replace")
            if name:
                ids.append(self.special_tokens[name])
            position = at + len(name)
        return ids

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return b"".join(self.id_to_bytes(i) for i in ids if i < 256 or not skip_special_tokens).decode(
            "utf-8", "replace"
        )

    def id_to_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if 0 <= token_id < 256 else self._by_id.get(token_id, "").encode()


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice's answer. chunk: characters per delta, 0 for all at once; chunks: the exact deltas instead.

    error: raised before the first delta. fail_after: after so many deltas the choice ends with finish_reason
    ``error``; hang_after: after so many deltas nothing comes any more.
    """

    text: str = ""
    chunk: int = 0
    chunks: Sequence[str] | None = None
    delay: float = 0.0
    first_delay: float = 0.0
    finish: FinishReason | None = None
    error: Exception | None = None
    fail_after: int | None = None
    hang_after: int | None = None
    cached_tokens: int = 0

    def deltas(self) -> list[str]:
        if self.chunks is not None:
            return list(self.chunks)
        if self.chunk <= 0:
            return [self.text] if self.text else []
        return [self.text[i : i + self.chunk] for i in range(0, len(self.text), self.chunk)]


Script = str | Reply | Mapping[str, "str | Reply"] | Callable[[GenerateReqInput, int], "str | Reply"]

MODEL_INFO = ModelInfo(
    model_path="scripted",
    served_name="test-model",
    architecture="scripted",
    context_length=8192,
    vocab_size=263,
    eos_token_ids=(257, 258),
    kv_capacity_tokens=65536,
    max_running_requests=64,
    device="cpu",
    dtype="float32",
    created=1_700_000_000,
    embedding_size=8,
)


@dataclass
class ScriptedEngine:
    """Implements EngineClient. ``requests``: all that were asked; ``running``: being answered now;
    ``aborted``: iterators closed before their end; ``groups``: answers that make their requests together."""

    script: Script = "Hello!"
    model_info: ModelInfo = MODEL_INFO
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    state: EngineState = "ready"
    requests: list[GenerateReqInput] = field(default_factory=list)
    running: int = 0
    aborted: int = 0
    flushed: int = 0
    groups: int = 0

    def _check_ready(self) -> None:
        if self.state != "ready" and not (self.groups and self.state == "draining"):
            raise EngineUnavailable(f"The engine is {self.state}.")

    async def generate(self, request: GenerateReqInput) -> AsyncGenerator[GenerateOutput, None]:
        self._check_ready()
        prompt_tokens = self._admit(request)
        self.requests.append(request)
        replies = [self._reply(request, index) for index in range(request.sampling.n)]
        self.running += 1
        finished = False
        try:
            for reply in replies:
                if reply.error is not None:
                    raise reply.error
            streams = [self._choice(request, i, reply, prompt_tokens) for i, reply in enumerate(replies)]
            for outputs in itertools.zip_longest(*streams):
                for output in outputs:
                    if isinstance(output, float):
                        await asyncio.sleep(output)
                    elif output is not None:
                        yield output
            finished = True
        finally:
            self.running -= 1
            self.aborted += not finished

    def _prompt_ids(self, request: GenerateReqInput) -> Sequence[int]:
        if request.input_ids is not None:
            return request.input_ids
        return self.tokenizer.encode(request.text or "", guard=request.guard)

    def _admit(self, request: GenerateReqInput) -> int:
        ids = self._prompt_ids(request)
        limit = self.model_info.context_length
        if len(ids) >= limit:
            raise EngineError(
                f"This model's maximum context length is {limit} tokens. However, your messages resulted in {len(ids)} tokens.",
                status=400,
                code="context_length_exceeded",
                param="messages",
            )
        return len(ids)

    def _reply(self, request: GenerateReqInput, index: int) -> Reply:
        script = self.script
        if isinstance(script, Mapping):
            prompt = request.text or ""
            script = next((value for key, value in script.items() if key in prompt), "")
        elif callable(script):
            script = script(request, index)
        return Reply(script) if isinstance(script, str) else script

    def _choice(
        self, request: GenerateReqInput, index: int, reply: Reply, prompt_tokens: int
    ) -> Iterator[GenerateOutput | float]:
        """Deltas of one choice, and floats where it sleeps."""
        deltas, end = _limited(reply, request, self.model_info.context_length - prompt_tokens)
        count = 0
        if request.prompt_logprobs:
            prompt = self._prompt_ids(request)[1:]
            logprobs = _logprobs(prompt, request.sampling.top_logprobs)
            yield GenerateOutput(index=index, prompt_logprobs=logprobs, prompt_tokens=prompt_tokens)
        if reply.first_delay:
            yield reply.first_delay
        for number, text in enumerate(deltas):
            if number == reply.hang_after:
                yield 3600.0
            if number == reply.fail_after:
                yield self._output(
                    index,
                    "",
                    count,
                    prompt_tokens,
                    reply,
                    FinishReason(type="error", status=503, message="The engine process died."),
                )
                return
            if reply.delay:
                yield reply.delay
            count += len(text.encode("utf-8", "replace"))
            yield self._output(index, text, count, prompt_tokens, reply, None, request)
        yield self._output(index, "", count + (end.type == "stop"), prompt_tokens, reply, end)

    def _output(
        self,
        index: int,
        text: str,
        count: int,
        prompt_tokens: int,
        reply: Reply,
        end: FinishReason | None,
        request: GenerateReqInput | None = None,
    ) -> GenerateOutput:
        ids = tuple(text.encode("utf-8", "replace"))
        logprobs: tuple[TokenLogprob, ...] = ()
        if request is not None and request.sampling.logprobs:
            logprobs = _logprobs(ids, request.sampling.top_logprobs)
        return GenerateOutput(
            index=index,
            text=text,
            token_ids=ids,
            logprobs=logprobs,
            finish_reason=end,
            prompt_tokens=prompt_tokens,
            cached_tokens=reply.cached_tokens,
            completion_tokens=count,
        )

    async def embed(self, batch: Sequence[Sequence[int]], tenant: str = "") -> list[tuple[float, ...]]:
        def one(ids: Sequence[int]) -> tuple[float, ...]:
            digest = hashlib.sha256(repr(list(ids)).encode()).digest()[: self.model_info.embedding_size]
            norm = sum(byte * byte for byte in digest) ** 0.5 or 1.0
            return tuple(byte / norm for byte in digest)

        self._check_ready()
        return [one(ids) for ids in batch]

    @contextmanager
    def together(self) -> Iterator[ScriptedEngine]:
        self.groups += 1
        try:
            yield self
        finally:
            self.groups -= 1

    async def flush_cache(self) -> bool:
        self.flushed += 1
        return self.running == 0

    async def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=self.running, total_pages=100, free_pages=100 - self.running, page_size=16, step=len(self.requests)
        )


def _logprobs(ids: Sequence[int], tops: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(i, -0.25, tuple(TopLogprob((i + k) % 256, -0.25 - k) for k in range(tops))) for i in ids)


def _limited(reply: Reply, request: GenerateReqInput, room: int) -> tuple[list[str], FinishReason]:
    """The reply's deltas up to a stop string or max_tokens, and why it ends."""
    deltas = reply.deltas()
    limit = min(request.sampling.max_tokens or room, room)
    kept: list[str] = []
    used = 0
    for number, delta in enumerate(deltas):
        if request.sampling.stop and (found := _stop("".join(kept), delta, request)) is not None:
            kept.append(found[0])
            return kept, FinishReason(type="stop", matched=found[1])
        encoded = delta.encode("utf-8", "replace")
        if used + len(encoded) > limit or (used + len(encoded) == limit and number + 1 < len(deltas)):
            kept.append(encoded[: limit - used].decode("utf-8", "ignore"))
            return kept, FinishReason(type="length")
        kept.append(delta)
        used += len(encoded)
    return kept, reply.finish or FinishReason(type="stop")


def _stop(text: str, delta: str, request: GenerateReqInput) -> tuple[str, str] | None:
    """The part of ``delta`` before the first stop string that it completes, and that string."""
    whole = text + delta
    after = request.stop_after
    if not whole.lstrip().startswith(request.stop_opener):
        after = ""
    start = whole.find(after)
    if start < 0:
        return None
    start += len(after)
    hits = [(at, stop) for stop in request.sampling.stop if (at := whole.find(stop, start)) >= 0]
    return (whole[len(text) : min(hits)[0]], min(hits)[1]) if hits else None
