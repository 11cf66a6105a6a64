"""Keeps the model processes (one per tensor-parallel rank) and a text process alive under one API process.

Start, handshake, self-test, serve; when one of them dies or freezes, everything inside fails at once and the
process is replaced in place. Requests are never replayed, so a poisonous one cannot kill two engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from engine.child import DetokenizerSpec, ModelProcessSpec, Started, one_line
from engine.config import EngineConfig
from engine.ipc import Inbox, Outbox
from engine.messages import DetokenizerOutput, ModelInfo
from engine.platform.modules import module_command
from engine.process import Child
from engine.ranks import local_ranks, rendezvous
from engine.tokenizer_manager import ENGINE_STOPPED, SHUTTING_DOWN, TokenizerManager

logger = logging.getLogger(__name__)

_BATCH = 64
"""Messages handled per turn of the event loop."""


class EngineStartError(RuntimeError):
    """The engine cannot start; the message is one line for a person."""


@dataclass(frozen=True, slots=True)
class SupervisorLimits:
    """Seconds, unless the name says otherwise.

    suspect: without beat and CPU use, the engine counts as not ready. frozen: then it is replaced. stuck: so
    long may one step compute without a beat. max_crashes within crash_window, or that many failed starts in a
    row, end the server.
    """

    start: float = 900.0
    self_test: float = 120.0
    suspect: float = 3.0
    frozen: float = 8.0
    stuck: float = 300.0
    check_interval: float = 0.25
    max_crashes: int = 5
    crash_window: float = 60.0
    max_backoff: float = 4.0


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What to run: the model, resolved, and the commands of the processes."""

    config: EngineConfig
    model_path: str
    model_kind: str
    served_name: str
    model_command: Sequence[str] = module_command("engine.model_process")
    detokenizer_command: Sequence[str] = module_command("engine.detokenizer_process")


@dataclass(frozen=True, slots=True)
class Sockets:
    """Socket files of one start: nothing that waits for a dead engine may reach the next."""

    run_dir: Path
    generation: int

    @property
    def scheduler(self) -> str:
        return str(self.run_dir / f"model-{self.generation}.sock")

    @property
    def text(self) -> str:
        return str(self.run_dir / f"text-{self.generation}.sock")

    @property
    def are_there(self) -> bool:
        """Whether a new text process would find the scheduler."""
        return os.path.exists(self.scheduler)

    def unlink(self) -> None:
        for path in (self.scheduler, self.text, str(self.run_dir / f"ranks-{self.generation}")):
            Path(path).unlink(missing_ok=True)


def start_rank(plan: EnginePlan, rank: int, sockets: Sockets) -> Child:
    """The model process of one rank. Only rank 0 gets the sockets."""
    return Child(
        "model" if rank == 0 else f"model-{rank}",
        plan.model_command,
        lambda fd: ModelProcessSpec(
            config=plan.config,
            model_path=plan.model_path,
            model_kind=plan.model_kind,
            served_name=plan.served_name,
            inbox=sockets.scheduler if rank == 0 else "",
            outbox=sockets.text if rank == 0 else "",
            status_fd=fd,
            parent_pid=os.getpid(),
            rank=rank,
            rendezvous=rendezvous(plan.config, sockets.run_dir, sockets.generation),
        ),
    )


class Supervisor:
    """Owns the children, their sockets and the reading end of the pipe. Model processes live and die together.

    ``failed`` is done, with one line for a person, when the supervisor has given up.
    """

    def __init__(self, plan: EnginePlan, manager: TokenizerManager, run_dir: Path, limits: SupervisorLimits) -> None:
        self._plan = plan
        self._manager = manager
        self._run_dir = run_dir
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._inbox: Inbox[DetokenizerOutput] = Inbox(self._context, self._api_socket, DetokenizerOutput)
        self._outbox: Outbox | None = None
        self._model: Child | None = None
        self._ranks: tuple[Child, ...] = ()
        self._text: Child | None = None
        self._info: ModelInfo | None = None
        self._generation = 0
        self._crashes: deque[float] = deque()
        self._task: asyncio.Task[None] | None = None
        self._inbox_fd = self._inbox.fd
        self.failed: asyncio.Future[str] = self._loop.create_future()
        self._loop.add_reader(self._inbox_fd, self._drain_inbox)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children that live."""
        return {child.name: child.pid for child in self._children if not child.exited.done()}

    @property
    def _children(self) -> list[Child]:
        """The first model process, the text process, the other ranks."""
        return [child for child in (self._model, self._text, *self._ranks) if child is not None]

    @property
    def dropped_frames(self) -> dict[str, int]:
        """Frames that were no message, by reader; the children's counts are up to a beat old."""
        return {"api": self._inbox.dropped, **{child.name: child.dropped for child in self._children}}

    async def start(self) -> None:
        """Bring the engine up. Raises EngineStartError, with nothing left running, where that fails."""
        try:
            await self._bring_up()
        except BaseException:
            await self.stop()
            raise
        self._task = self._loop.create_task(self._keep_alive(), name="engine-supervisor")

    async def stop(self) -> None:
        """End all children and close the sockets. What is still inside ends with an error."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._manager.state != "dead":
            self._manager.detach("dead", SHUTTING_DOWN)
        await self._end_children()
        if not self._context.closed:
            self._loop.remove_reader(self._inbox_fd)
            self._inbox.close()
            self._context.destroy(linger=0)

    # ------------------------------------------------------------ keeping it alive

    async def _keep_alive(self) -> None:
        attempt = 0
        while True:
            lost: Child | None = None
            try:
                if self._model is None or self._text is None:
                    await self._bring_up()
                attempt = 0
                reason, lost = await self._until_trouble()
            except EngineStartError as error:
                reason = str(error)
            except Exception as error:  # no descriptors or no memory for a new process: to be tried again
                logger.debug("the engine could not be brought up", exc_info=True)
                reason = one_line(error)
            await self._clear_away(reason, lost)
            attempt += 1
            if self._give_up(reason, attempt):
                return
            await asyncio.sleep(min(self._limits.max_backoff, 0.25 * 2**attempt) if attempt > 1 else 0.0)

    async def _clear_away(self, reason: str, lost: Child | None) -> None:
        """End what is inside, then the processes that must be replaced: the text process alone, or all."""
        logger.error("%s; restarting", reason)
        if lost is not None and lost is self._text and self._sockets.are_there and not self._is_cut_off:
            self._manager.fail_all(ENGINE_STOPPED)  # aborts reach the scheduler, which lives on
            self._manager.detach("restarting", ENGINE_STOPPED)
            self._text = None
            await lost.end()
        else:
            self._manager.detach("restarting", ENGINE_STOPPED)
            await self._end_children()

    def _give_up(self, reason: str, attempt: int) -> bool:
        """Too many failures in a short time, or that many starts in a row that all failed."""
        if self._manager.state == "draining":
            return True
        now = time.monotonic()
        self._crashes.append(now)
        while now - self._crashes[0] > self._limits.crash_window:
            self._crashes.popleft()
        count = max(len(self._crashes), attempt)
        if count < self._limits.max_crashes:
            return False
        self._manager.detach("dead")
        self.failed.set_result(f"giving up after {count} engine failures in a row; the last: {reason}.")
        return True

    async def _until_trouble(self) -> tuple[str, Child]:
        """Watch the children; return why one of them must be replaced, and which."""
        children = self._children
        if self._model is None or self._text is None:
            raise EngineStartError("the engine is not complete")
        watch = self._loop.create_task(self._watch_progress(*children))
        try:
            await _first(*[child.exited for child in children], watch)
            for child in children:
                if child.exited.done():
                    return child.describe_exit(), child
            return watch.result()
        finally:
            watch.cancel()

    async def _watch_progress(self, *children: Child) -> tuple[str, Child]:
        """Return when a child has frozen. Not ready meanwhile."""
        limits, last_check = self._limits, time.monotonic()
        while True:
            await asyncio.sleep(limits.check_interval)
            now = time.monotonic()
            pause, last_check = now - last_check - limits.check_interval, now
            if pause > 1.0:  # this process was stopped, perhaps they too; their beats may still lie in the pipe
                for child in children:
                    child.excuse(pause)
                continue
            quiet = [(child.check(now), child) for child in children]
            if max(seconds for seconds, _ in quiet) > limits.suspect:
                self._manager.suspect()
            else:
                self._manager.open()
            for seconds, child in quiet:
                if seconds > limits.frozen or now - child.last_beat > limits.stuck:
                    return f"the {child.name} process made no progress for {now - child.last_beat:.0f} s", child

    # ------------------------------------------------------------ starting

    async def _bring_up(self) -> None:
        """Start what is missing, shake hands, send one token through, and let requests in."""
        if self._is_cut_off:
            self._bind_again()
        if self._model is None:
            self._generation += 1
            self._info = None
            ranks = local_ranks(self._plan.config)
            self._model = start_rank(self._plan, ranks[0], self._sockets)
            for rank in ranks[1:]:  # one by one: those that run are known where the next cannot be started
                self._ranks += (start_rank(self._plan, rank, self._sockets),)
        if self._text is None:
            self._text = self._start_text()
        model, text = self._model, self._text
        started, *_ = await self._handshakes(model, text, *self._ranks)
        info = started.model or self._info
        if info is None:
            raise EngineStartError("the model process gave no model information")
        self._info = info
        if self._outbox is not None:
            self._outbox.close()
        self._outbox = Outbox(self._context, self._sockets.scheduler, send_timeout=0.0)
        self._manager.attach(info, self._outbox.send)
        await self._self_test(model)
        self._manager.open()

    async def _self_test(self, model: Child) -> None:
        children = self._children
        test = self._loop.create_task(self._manager.self_test(self._limits.self_test))
        await _first(test, *[child.exited for child in children])
        for child in children:
            if child.exited.done():
                test.cancel()
                raise EngineStartError(child.describe_exit())
        if not test.result():
            await model.end()
            raise EngineStartError("the engine's first token did not come")

    async def _handshakes(self, *children: Child) -> list[Started]:
        """Raises what the first child that fails says: the others may be waiting for it."""
        waiting = [self._loop.create_task(self._handshake(child)) for child in children]
        try:
            return await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()

    async def _handshake(self, child: Child) -> Started:
        await _first(child.started, child.exited, seconds=self._limits.start)
        if child.started.done():
            message = child.started.result()
            if isinstance(message, Started):
                return message
            child.kill()
            raise EngineStartError(message.reason)
        if child.exited.done():
            raise EngineStartError(child.describe_exit())
        child.kill()
        raise EngineStartError(f"the {child.name} process was not ready within {self._limits.start:.0f} s")

    def _start_text(self) -> Child:
        plan = self._plan
        return Child(
            "detokenizer",
            plan.detokenizer_command,
            lambda fd: DetokenizerSpec(
                tokenizer_path=plan.model_path,
                inbox=self._sockets.text,
                outbox=self._api_socket,
                aborts=self._sockets.scheduler,
                status_fd=fd,
                parent_pid=os.getpid(),
                log_level=plan.config.log_level,
            ),
        )

    @property
    def _api_socket(self) -> str:
        return str(self._run_dir / "api.sock")

    @property
    def _is_cut_off(self) -> bool:
        """No new process finds this one: somebody has removed the socket files, as those do that clean up /tmp."""
        return not os.path.exists(self._api_socket)

    def _bind_again(self) -> None:
        os.makedirs(self._run_dir, mode=0o700, exist_ok=True)
        status = self._run_dir.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise EngineStartError(f"{self._run_dir} belongs to somebody else now")
        dropped = self._inbox.dropped
        self._loop.remove_reader(self._inbox_fd)
        self._inbox.close()
        self._inbox = Inbox(self._context, self._api_socket, DetokenizerOutput)
        self._inbox.dropped = dropped
        self._inbox_fd = self._inbox.fd
        self._loop.add_reader(self._inbox_fd, self._drain_inbox)

    @property
    def _sockets(self) -> Sockets:
        return Sockets(self._run_dir, self._generation)

    async def _end_children(self) -> None:
        children = self._children
        for child in children:
            child.kill()
        for child in children:
            await child.end()
        self._model, self._text, self._ranks = None, None, ()  # last: whoever cancels this must still find them
        self._sockets.unlink()

    def _drain_inbox(self) -> None:
        """Handle what has come, a bounded number per turn; ZMQ's descriptor speaks up once per edge only."""
        if self._context.closed:
            return
        messages = self._inbox.receive(limit=_BATCH)
        for message in messages:
            try:
                self._manager.receive(message)
            except Exception:
                logger.exception("a message from the detokenizer could not be handled")
        if not self._inbox.drained:
            self._loop.call_soon(self._drain_inbox)


async def _first(*futures: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Wait until one of them is done, at most ``seconds``."""
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
