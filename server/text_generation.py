"""Raw text generation over one or many prompts: engine outputs as they come, counted. No parser reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from engine.client import EngineError, Generator
from engine.messages import GenerateOutput, GenerateReqInput
from server.context import RequestContext
from server.errors import from_status
from server.generation import Usage, account, failure
from server.running_requests import Abortable
from server.services import Services

_CHOICES_AT_ONCE = 256
"""Choices of one HTTP request that are in the engine's queue together."""
_QUEUED_OUTPUTS = 64


@dataclass(slots=True)
class _Counts:
    completion_tokens: int = 0
    last_time: float = 0.0


@dataclass(slots=True)
class TextGeneration:
    """Runs one engine request per prompt. ids: further ids under which it can be aborted. param: the request's
    field that holds the prompts."""

    services: Services
    context: RequestContext
    requests: Sequence[GenerateReqInput]
    ids: Sequence[str] = ()
    param: str = "prompt"
    usage: Usage = field(default_factory=Usage)
    _counts: dict[tuple[int, int], _Counts] = field(default_factory=dict)
    _prompts: dict[int, tuple[int, int]] = field(default_factory=dict)

    async def outputs(self) -> AsyncGenerator[tuple[int, GenerateOutput], None]:
        """(prompt, output) of all choices, interleaved. Raises ApiError where the engine fails; RequestAborted."""
        self.services.log_prompts(self.context, self.requests)
        names = (self.context.request_id, self.context.response_id, *self.ids)
        left = sum(request.sampling.n for request in self.requests)
        try:
            with self.services.running.enter(self.context.tenant, names) as entry:
                async with aclosing(self._merged(entry)) as merged:
                    async for prompt, output in merged:
                        self._count(prompt, output)
                        yield prompt, output
                        left -= output.finish_reason is not None
            if left:
                raise from_status(500, "The engine ended without an answer.")
        except EngineError as exc:
            if exc.param in ("messages", "prompt"):
                exc.param = self.param
            raise
        finally:
            account(self.total(), self.context, self.services)

    async def _merged(self, entry: Abortable) -> AsyncGenerator[tuple[int, GenerateOutput], None]:
        if len(self.requests) == 1:
            async with aclosing(entry.outputs(self.services.engine.generate(self.requests[0]))) as stream:
                async for output in stream:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, GenerateOutput] | BaseException | None] = asyncio.Queue(_QUEUED_OUTPUTS)
        todo = iter(enumerate(self.requests))
        count = min(len(self.requests), max(1, _CHOICES_AT_ONCE // self.requests[0].sampling.n))
        with self.services.engine.together() as engine:
            workers = [asyncio.create_task(self._work(engine, todo, entry, queue)) for _ in range(count)]
            item = None
            try:
                while count:
                    item = await queue.get()
                    if item is None:
                        count -= 1
                    elif isinstance(item, BaseException):
                        raise item
                    else:
                        yield item
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                _forget(queue)
                del item  # where it was raised its traceback holds this frame: a cycle, and the request in it

    async def _work(
        self,
        engine: Generator,
        todo: Iterator[tuple[int, GenerateReqInput]],
        entry: Abortable,
        queue: asyncio.Queue[tuple[int, GenerateOutput] | BaseException | None],
    ) -> None:
        try:
            for prompt, request in todo:
                async with aclosing(entry.outputs(engine.generate(request))) as stream:
                    async for output in stream:
                        await queue.put((prompt, output))
        except Exception as exc:
            await queue.put(exc)
        else:
            await queue.put(None)

    def _count(self, prompt: int, output: GenerateOutput) -> None:
        counts = self._counts.setdefault((prompt, output.index), _Counts())
        metrics = self.services.metrics
        if output.token_ids:
            counts.last_time = metrics.tokens_came(len(output.token_ids), counts.last_time, self.context.started)
        counts.completion_tokens = output.completion_tokens or counts.completion_tokens + len(output.token_ids)
        size, cached = self._prompts.get(prompt, (0, 0))
        if output.index == 0:  # the others find what the first has just computed
            cached = max(cached, output.cached_tokens)
        self._prompts[prompt] = (output.prompt_tokens or size, cached)
        end = output.finish_reason
        if end is not None:
            metrics.finished(end.type)
            if end.type in ("abort", "error"):
                raise failure(end)

    def total(self) -> Usage:
        """The usage so far."""
        self.usage.prompt_tokens = sum(size for size, _ in self._prompts.values())
        self.usage.cached_tokens = sum(cached for _, cached in self._prompts.values())
        self.usage.completion_tokens = sum(counts.completion_tokens for counts in self._counts.values())
        return self.usage


def _forget(queue: asyncio.Queue[Any]) -> None:
    """Drop what nobody will fetch: an exception in it holds the frame of its worker, which holds the queue."""
    while not queue.empty():
        queue.get_nowait()
