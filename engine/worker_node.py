"""The node of a tensor-parallel group that has ranks but no API: ``--node-rank`` 1 and up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.child import StartFailed
from engine.ipc import make_run_dir, remove_run_dir
from engine.process import Child
from engine.ranks import local_ranks
from engine.supervisor import EnginePlan, EngineStartError, Sockets, SupervisorLimits, start_rank

logger = logging.getLogger(__name__)


class WorkerNode:
    """Keeps this machine's ranks running. Requests, answers and the API are node 0's.

    A group lives and dies as one: when a rank anywhere ends, the ranks of every node notice at their next
    collective, end too, and are started again to wait for node 0.
    """

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._limits = SupervisorLimits()
        self._generation = 0
        self._failures = 0
        self._children: tuple[Child, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of this node's ranks that live."""
        return tuple(child.pid for child in self._children if not child.exited.done())

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``. Raises EngineStartError after ``max_crashes`` starts in a row that came to nothing."""
        run_dir = await asyncio.to_thread(make_run_dir, self._plan.config.run_dir)
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                reason = await self._one_group(run_dir, stopping)
                if stop.is_set():
                    return
                logger.error("%s; starting this node's ranks again", reason)
                if self._failures >= self._limits.max_crashes:
                    raise EngineStartError(reason)
                await asyncio.wait([stopping], timeout=min(self._limits.max_backoff, 0.25 * 2**self._failures))
        finally:
            stopping.cancel()
            await asyncio.to_thread(remove_run_dir, run_dir)

    async def _one_group(self, run_dir: Path, stopping: asyncio.Task[bool]) -> str:
        """Start the ranks and wait for the end of one of them, or of the node; why it ended."""
        self._generation += 1
        self._failures += 1
        ranks = local_ranks(self._plan.config)
        sockets = Sockets(run_dir, self._generation)
        children = self._children = tuple(start_rank(self._plan, rank, sockets) for rank in ranks)
        try:
            started = asyncio.gather(*[asyncio.shield(child.started) for child in children])
            exits: list[asyncio.Future[Any]] = [stopping, *[child.exited for child in children]]
            await asyncio.wait([started, *exits], return_when=asyncio.FIRST_COMPLETED)
            if started.done() and not any(isinstance(message, StartFailed) for message in started.result()):
                self._failures = 0
                logger.info("ranks %d to %d have joined the group", ranks[0], ranks[-1])
                await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            return _why(children)
        finally:
            for child in children:
                child.kill()
            for child in children:
                await child.end()


def _why(children: Sequence[Child]) -> str:
    for child in children:
        message = child.started.result() if child.started.done() else None
        if isinstance(message, StartFailed):
            return message.reason
        if child.exited.done():
            return child.describe_exit()
    return "the node was told to stop"
