"""What the API process remembers of a request."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from engine.admission import Ticket
from engine.client import EngineUnavailable
from engine.messages import FinishReason, GenerateOutput, StrRow, TokenLogprob

PIECE_TOKENS = 32
"""Tokens with logprobs that are handed out together at most, where nobody has fetched them for a while."""


class _Piece(msgspec.Struct, array_like=True):
    """Consecutive deltas as one. completion_tokens: at its end."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    completion_tokens: int


class _Pending:
    """Deltas of one choice that nobody has fetched yet, merged.

    Logprobs are kept as MessagePack, a piece of PIECE_TOKENS each, and handed out piece by piece: as objects those of
    20 alternatives take ten times as much, and as JSON in one chunk four times.
    """

    __slots__ = ("_pieces", "last", "logprobs", "prompt_logprobs", "text", "token_ids")

    def __init__(self, row: StrRow) -> None:
        self._pieces: deque[bytes] = deque()
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._clear()
        self.add(row)

    def _clear(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []

    def add(self, row: StrRow) -> None:
        self.text.append(row.text)
        self.token_ids.extend(row.token_ids)
        self.logprobs.extend(row.logprobs)
        self.prompt_logprobs = row.prompt_logprobs or self.prompt_logprobs
        self.last = row
        if len(self.logprobs) >= PIECE_TOKENS and row.finish_reason is None:
            self._pieces.append(msgspec.msgpack.encode(self._rest()))
            self._clear()

    def _rest(self) -> _Piece:
        logprobs = tuple(self.logprobs)
        return _Piece("".join(self.text), tuple(self.token_ids), logprobs, self.last.completion_tokens)

    def take(self) -> tuple[_Piece, bool]:
        """The next piece, and whether it is the last one."""
        if self._pieces:
            return msgspec.msgpack.decode(self._pieces.popleft(), type=_Piece), False
        return self._rest(), True


class ReqState:
    """The choices of one request on their way back to its one reader.

    Rows go in with ``add`` as they come; ``next`` hands them out, everything that has gathered for a choice as
    one delta. ``ticket`` is told of the start and the end of every choice, whether somebody fetches them or not.
    """

    def __init__(self, n: int, prompt_tokens: int, ticket: Ticket | None = None) -> None:
        self.n = n
        self.rids: list[str] = []
        self._prompt_tokens = prompt_tokens
        self._ticket = ticket
        self._pending: dict[int, _Pending] = {}
        self._finished: set[int] = set()
        self._counted: dict[int, tuple[int, int]] = {}
        """Completion tokens and cached tokens of each choice so far."""
        self._submitted = 0
        self._delivered = 0
        self._refused: EngineUnavailable | None = None
        self._wake = asyncio.Event()

    def next_index(self) -> int:
        """The index of the choice that is submitted next."""
        self._submitted += 1
        return self._submitted - 1

    def add(self, index: int, row: StrRow) -> None:
        if index in self._finished:
            return
        if index not in self._counted and self._ticket is not None:
            self._ticket.started()
        if row.finish_reason is not None:
            self._finished.add(index)
            if self._ticket is not None:
                self._ticket.ended(row.finish_reason)
        self._counted[index] = (row.completion_tokens, row.cached_tokens)
        pending = self._pending.get(index)
        if pending is None:
            self._pending[index] = _Pending(row)
        else:
            pending.add(row)
        self._wake.set()

    def refuse(self, error: EngineUnavailable) -> None:
        """Let ``next`` raise ``error``."""
        self._refused = error
        self._wake.set()

    def fail(self, index: int, message: str, status: int) -> None:
        """End one choice with an error."""
        reason = FinishReason(type="error", message=message, status=status)
        completion, cached = self._counted.get(index, (0, 0))
        self.add(index, StrRow(rid="", finish_reason=reason, completion_tokens=completion, cached_tokens=cached))

    @property
    def done(self) -> bool:
        """The end of every choice has been handed out."""
        return self._delivered >= self.n

    async def next(self) -> list[GenerateOutput]:
        """The next delta of every choice that has one; waits for the first. Raises what ``refuse`` was given."""
        await self._wake.wait()
        self._wake.clear()
        if self._refused is not None:
            raise self._refused
        ready, self._pending = self._pending, {}
        outputs = [self._output(index, pending) for index, pending in ready.items()]
        self._delivered += sum(output.finish_reason is not None for output in outputs)
        return outputs

    def _output(self, index: int, pending: _Pending) -> GenerateOutput:
        piece, whole = pending.take()
        last, prompt_logprobs = pending.last, pending.prompt_logprobs
        if not whole:
            pending.prompt_logprobs = ()
            self._pending[index] = pending
            self._wake.set()
        return GenerateOutput(
            index=index,
            text=piece.text,
            token_ids=piece.token_ids,
            logprobs=piece.logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=last.finish_reason if whole else None,
            prompt_tokens=last.prompt_tokens or self._prompt_tokens,
            cached_tokens=last.cached_tokens,
            completion_tokens=piece.completion_tokens,
        )
