"""Every request's way into the engine and back: ids in, deltas out, and an abort when nobody listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from engine.admission import Admission
from engine.client import EngineError, EngineState, EngineUnavailable, Generator
from engine.config import EngineConfig
from engine.ipc import PipeBlocked
from engine.messages import (
    AbortReq,
    BatchStrOut,
    ControlReply,
    EmbedOut,
    EmbedReqInput,
    FinishReason,
    FlushCacheReq,
    GenerateOutput,
    GenerateReqInput,
    ModelInfo,
    SchedulerInput,
    SchedulerStats,
    StatsReq,
    StrRow,
)
from engine.req_state import ReqState
from engine.request_checks import (
    check_ids,
    check_length,
    check_sampling,
    choice_request,
    encode_fitting,
    text_limit,
)
from engine.text.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)

ENGINE_STOPPED = "The engine stopped while this request was running."
NOT_READING = "The engine does not take requests now."
SHUTTING_DOWN = "The server is shutting down."
LONG_TEXT = 8_000
"""Characters from which a text is encoded in a thread, so that the event loop stays free."""
SHARED_PREFIX_TOKENS = 64
"""From this prompt length on, the choices after the first wait until its prefix is in the cache."""
CONTROL_TIMEOUT = 10.0
_AWAY: dict[EngineState, str] = {
    "starting": "The engine is starting.",
    "restarting": "The engine is restarting.",
    "draining": SHUTTING_DOWN,
    "dead": "The engine has stopped.",
}


class TokenizerManager:
    """The EngineClient over a pipe of processes. All of it runs on one event loop.

    ``attach`` gives it an engine, ``detach`` takes it away and ends every request that was inside. A request's
    memory is bounded: deltas that nobody has fetched yet are merged, and max_tokens bounds their sum.
    """

    def __init__(self, config: EngineConfig, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._admission = Admission(config.max_queued_requests, config.max_queued_tokens, config.max_queue_time)
        self._info: ModelInfo | None = None
        self._state: EngineState = "starting"
        self._send: Callable[[SchedulerInput], None] | None = None
        self._requests: dict[str, tuple[ReqState, int]] = {}
        self._replies: dict[str, asyncio.Future[Any]] = {}
        self._stats = SchedulerStats()
        self._groups = 0
        self._over = False
        self._idle = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------ EngineClient

    @property
    def model_info(self) -> ModelInfo:
        if self._info is None:
            raise EngineUnavailable(_AWAY.get(self._state, "The engine is starting."))
        return self._info

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._tokenizer

    @property
    def num_requests(self) -> int:
        """Choices that have not ended."""
        return len(self._requests)

    async def generate(self, request: GenerateReqInput, *, inside: bool = False) -> AsyncIterator[GenerateOutput]:
        """See EngineClient.generate. inside: as part of an answer that has begun (``together``)."""
        self._check_ready(inside)
        info = self.model_info
        check_sampling(request.sampling, info.vocab_size)
        with self._admission.enter(request.sampling.n, patient=inside) as ticket:
            input_ids = tuple(await self._input_ids(request, info))
            max_tokens = check_length(len(input_ids), request.sampling.max_tokens, info)
            ticket.add_tokens(len(input_ids))
            self._check_ready(inside)
            state = ReqState(request.sampling.n, len(input_ids), ticket)
            if not inside:
                ticket.may_leave(state.refuse)
            base = secrets.token_hex(16)
            choices = [choice_request(request, f"{base}-{i}", i, input_ids, max_tokens) for i in range(state.n)]
            try:
                first = 1 if len(input_ids) >= SHARED_PREFIX_TOKENS else state.n
                with self._busy():  # until all choices are sent, also where the first one ends before that
                    self._submit(state, choices[:first])
                    outputs = await state.next()
                    self._submit(state, choices[first:])
                while True:
                    for output in outputs:
                        yield output
                    if state.done:
                        break
                    outputs = await state.next()
            finally:
                self._forget(state)

    async def embed(
        self, batch: Sequence[Sequence[int]], tenant: str = "", *, inside: bool = False
    ) -> list[tuple[float, ...]]:
        """One L2-normalised vector per row of token ids, in order."""
        self._check_ready(inside)
        info = self.model_info
        for ids in batch:
            check_length(len(ids), 1, info)
            check_ids(ids, info.vocab_size)
        with self._admission.enter(len(batch), patient=inside) as ticket, self._busy():
            ticket.add_tokens(sum(map(len, batch)) // max(1, len(batch)))
            requests = [EmbedReqInput(rid=secrets.token_hex(16), input_ids=tuple(ids), tenant=tenant) for ids in batch]
            replies = await self._ask(requests, None)
        for reply in replies:
            if isinstance(reply, ControlReply):
                raise EngineError(reply.message, status=400)
        return [reply.embedding for reply in replies]

    @contextmanager
    def together(self) -> Iterator[Generator]:
        """See EngineClient.together."""
        self._admission.check_wait(1)
        with self._busy():
            yield _Inside(self)

    async def flush_cache(self) -> bool:
        """Empty the prefix cache; False where running requests keep parts of it."""
        self._check_ready()
        (reply,) = await self._ask([FlushCacheReq(rid=secrets.token_hex(16))], CONTROL_TIMEOUT)
        return bool(reply.ok)

    async def stats(self) -> SchedulerStats:
        """The scheduler's counters now; the last known ones where it does not answer in time."""
        if self._state not in ("ready", "draining") or self._send is None:
            return self._stats
        try:
            (reply,) = await self._ask([StatsReq(rid=secrets.token_hex(16))], 1.0)
        except EngineError:
            return self._stats
        self._stats = reply
        return self._stats

    # ------------------------------------------------------------ the supervisor's side

    def attach(self, info: ModelInfo, send: Callable[[SchedulerInput], None]) -> None:
        """An engine has said that it is ready; requests still wait for ``open``."""
        self._info = info
        self._admission.set_rows(info.max_running_requests)
        self._send = send
        self._stats = SchedulerStats()

    def open(self) -> None:
        """Let requests in."""
        if self._state in ("starting", "restarting"):
            self._state = "ready"

    def suspect(self) -> None:
        """The engine does not answer: no new requests until ``open`` or ``detach``; those inside go on."""
        if self._state == "ready":
            self._state = "restarting"

    def detach(self, state: EngineState, message: str = ENGINE_STOPPED) -> None:
        """The engine is gone: every request inside ends with an error now."""
        if self._state != "dead" and not (self._state == "draining" and state == "restarting"):
            self._state = state
        self._send = None
        self.fail_all(message)

    def drain(self) -> None:
        """Take no more requests; those inside go on."""
        if self._state != "dead":
            self._state = "draining"

    def end(self, message: str) -> None:
        """The time to drain is over: end what is inside, and let nothing of it begin again."""
        self.drain()
        self._over = True
        self.fail_all(message)

    async def wait_idle(self) -> None:
        """Return when no request is inside."""
        await self._idle.wait()

    def fail_all(self, message: str) -> None:
        """End every request inside with finish_reason ``error``, and tell the engine where there is one."""
        for rid, (state, index) in list(self._requests.items()):
            self._abort(rid)
            state.fail(index, message, 503)
        self._requests.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineUnavailable(message))
        self._replies.clear()
        self._note_idle()

    def receive(self, message: BatchStrOut | EmbedOut | ControlReply | SchedulerStats) -> None:
        """One message from the detokenizer. Rows of forgotten requests are ignored."""
        if isinstance(message, BatchStrOut):
            for row in message.rows:
                self._receive_row(row)
            return
        if isinstance(message, SchedulerStats):
            self._stats = message
            self._admission.note_memory(message.running, message.memory_full)
        reply = self._replies.pop(message.rid, None)
        if reply is None or reply.done():
            return
        reply.set_result(message)

    async def self_test(self, seconds: float) -> bool:
        """Send one token through the whole pipe. False where nothing came back in time."""
        request = GenerateReqInput(
            input_ids=(0,), sampling=msgspec.structs.replace(GenerateReqInput().sampling, max_tokens=1, temperature=0.0)
        )
        state = ReqState(1, 1)
        reasons: list[FinishReason | None] = []
        try:
            async with asyncio.timeout(seconds):
                self._submit(state, [choice_request(request, secrets.token_hex(16), 0, [0], 1)])
                while not state.done:
                    reasons = [output.finish_reason for output in await state.next()]
        except TimeoutError:
            return False
        finally:
            self._forget(state)
        return all(reason is not None and reason.type in ("stop", "length") for reason in reasons[-1:])

    # ------------------------------------------------------------ inside

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Something is inside for the length of a block: a server that drains waits for it."""
        self._groups += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._groups -= 1
            self._note_idle()

    def _note_idle(self) -> None:
        if not self._requests and not self._groups:
            self._idle.set()

    def _check_ready(self, inside: bool = False) -> None:
        if inside and self._send is not None and not self._over:
            return
        if self._state != "ready" or self._send is None:
            retry_after = 5.0 if self._state in ("draining", "dead") else 1.0
            raise EngineUnavailable(_AWAY.get(self._state, _AWAY["restarting"]), retry_after=retry_after)

    async def _input_ids(self, request: GenerateReqInput, info: ModelInfo) -> Sequence[int]:
        if request.input_ids is not None:
            check_length(len(request.input_ids), 1, info)  # first: millions of ids take long to look at
            check_ids(request.input_ids, info.vocab_size)
            return request.input_ids
        text = request.text or ""
        text_limit(text, info)
        encode = partial(self._tokenizer.encode, guard=request.guard, add_special_tokens=request.add_special_tokens)
        if len(text) < LONG_TEXT:
            return encode_fitting(text, encode, info)
        return await asyncio.to_thread(encode_fitting, text, encode, info)

    def _submit(self, state: ReqState, choices: Sequence[Any]) -> None:
        for choice in choices:
            if self._send is None:
                state.fail(state.next_index(), ENGINE_STOPPED, 503)
                continue
            try:
                self._send(choice)
            except PipeBlocked:
                raise EngineUnavailable(NOT_READING) from None
            except (UnicodeEncodeError, OverflowError, ValueError):
                raise EngineError("The request holds text that is not valid Unicode.", status=400) from None
            self._requests[choice.rid] = (state, state.next_index())
            state.rids.append(choice.rid)
            self._idle.clear()

    def _receive_row(self, row: StrRow) -> None:
        found = self._requests.get(row.rid)
        if found is None:
            self._receive_refusal(row)
            return
        state, index = found
        if row.finish_reason is not None:
            del self._requests[row.rid]
            self._note_idle()
        state.add(index, row)

    def _receive_refusal(self, row: StrRow) -> None:
        """An embedding request ends like any other where the engine refuses it: with a finish reason."""
        reply = self._replies.pop(row.rid, None)
        if reply is not None and not reply.done() and row.finish_reason is not None:
            status = row.finish_reason.status if row.finish_reason.status >= 400 else 503
            reply.set_exception(EngineError(row.finish_reason.message, status=status))

    def _forget(self, state: ReqState) -> None:
        """Abort what is left of a request whose reader has gone."""
        for rid in state.rids:
            if self._requests.pop(rid, None) is not None:
                self._abort(rid)
        self._note_idle()

    def _abort(self, rid: str) -> None:
        if self._send is not None:
            with contextlib.suppress(PipeBlocked):  # an engine that reads nothing is about to be replaced
                self._send(AbortReq(rid=rid))

    async def _ask(self, requests: Sequence[Any], seconds: float | None) -> list[Any]:
        """Send control messages and wait for their replies, in order."""
        send = self._send
        if send is None:
            raise EngineUnavailable(_AWAY.get(self._state, _AWAY["restarting"]))
        loop = asyncio.get_running_loop()
        futures = {request.rid: loop.create_future() for request in requests}
        self._replies.update(futures)
        finished = False
        try:
            for request in requests:
                send(request)
            async with asyncio.timeout(seconds):
                replies = [await future for future in futures.values()]
            finished = True
            return replies
        except TimeoutError:
            raise EngineUnavailable("The engine did not answer in time.") from None
        except PipeBlocked:
            raise EngineUnavailable(NOT_READING) from None
        finally:
            for rid, future in futures.items():
                self._replies.pop(rid, None)
                if not finished and not future.cancel() and not future.cancelled():
                    future.exception()  # seen: another one of the batch is raised
                if not finished:
                    self._abort(rid)


class _Inside:
    """What ``TokenizerManager.together`` gives: requests that are taken while the server drains."""

    def __init__(self, manager: TokenizerManager) -> None:
        self._manager = manager

    def generate(self, request: GenerateReqInput) -> AsyncIterator[GenerateOutput]:
        return self._manager.generate(request, inside=True)

    async def embed(self, batch: Sequence[Sequence[int]], tenant: str = "") -> list[tuple[float, ...]]:
        return await self._manager.embed(batch, tenant, inside=True)
