"""What a front end may ask of an engine. The HTTP layer knows this protocol and nothing below it.

Implemented by TokenizerManager (the real engine) and by tests.fakes.ScriptedEngine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from engine.messages import GenerateOutput, GenerateReqInput, ModelInfo, SchedulerStats
from engine.text.tokenizer import TextTokenizer

EngineState = Literal["starting", "ready", "restarting", "draining", "dead"]


class EngineError(Exception):
    """The engine refused or failed one request. ``status`` is the HTTP status that fits, ``code`` OpenAI's code."""

    def __init__(self, message: str, *, status: int = 500, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class EngineUnavailable(EngineError):
    """No engine to serve this now: starting, restarting, draining or overloaded. Worth a Retry-After."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, status=503, code="service_unavailable")
        self.retry_after = retry_after


class Generator(Protocol):
    """The part of an EngineClient that makes tokens and vectors."""

    def generate(self, request: GenerateReqInput) -> AsyncIterator[GenerateOutput]: ...

    async def embed(self, batch: Sequence[Sequence[int]], tenant: str = "") -> list[tuple[float, ...]]: ...


class EngineClient(Protocol):
    """An engine as its callers see it. All methods run on the caller's event loop."""

    @property
    def model_info(self) -> ModelInfo:
        """Facts of the loaded model. Raises EngineUnavailable before the first handshake."""
        ...

    @property
    def state(self) -> EngineState: ...

    @property
    def tokenizer(self) -> TextTokenizer: ...

    def generate(self, request: GenerateReqInput) -> AsyncIterator[GenerateOutput]:
        """Yield deltas of all ``n`` choices, interleaved, until each had its finish_reason.

        Closing the iterator (or cancelling the task) aborts what is left. Raises EngineError with status 400
        and code ``context_length_exceeded`` before the first delta where the request can never fit, and
        EngineUnavailable where the queue is full or the engine is away. An engine that dies meanwhile ends
        every choice with finish_reason ``error``.
        """
        ...

    async def embed(self, batch: Sequence[Sequence[int]], tenant: str = "") -> list[tuple[float, ...]]: ...

    def together(self) -> AbstractContextManager[Generator]:
        """For an answer that takes several requests: those made through what it gives count as one that is inside
        for the length of the block, so a server that drains lets all of them finish."""
        ...

    async def flush_cache(self) -> bool: ...

    async def stats(self) -> SchedulerStats: ...
