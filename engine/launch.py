"""From settings to a running engine: resolve the model, start the processes, hand out an EngineClient."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine.child import one_line
from engine.client import EngineState, Generator
from engine.config import EngineConfig
from engine.ipc import make_run_dir, remove_run_dir
from engine.messages import GenerateOutput, GenerateReqInput, ModelInfo, SchedulerStats
from engine.model_store.errors import ModelStoreError
from engine.model_store.resolve import resolve
from engine.ranks import RanksError, local_ranks
from engine.supervisor import EnginePlan, EngineStartError, Supervisor, SupervisorLimits
from engine.text.load import load_tokenizer
from engine.text.tokenizer import TextTokenizer
from engine.tokenizer_manager import SHUTTING_DOWN, TokenizerManager
from engine.worker_node import WorkerNode

logger = logging.getLogger(__name__)

__all__ = ["Engine", "EngineStartError", "SupervisorLimits", "launch", "make_plan", "run_worker_node"]


def make_plan(config: EngineConfig) -> EnginePlan:
    """Find the model that ``config`` names. Raises EngineStartError where there is none, or where the settings
    of ranks and nodes do not go together."""
    try:
        local_ranks(config)
        model = resolve(config.model)
    except (ModelStoreError, RanksError) as error:
        raise EngineStartError(str(error)) from None
    return EnginePlan(config, str(model.path), model.kind, config.served_model_name or model.name)


class Engine:
    """An EngineClient with its processes. Made by ``launch``, or with ``start`` and ``stop``.

    ``start``, ``stop`` and all requests belong to one event loop, in the thread that lives as long as the
    engine: the kernel kills the children when the thread that started them ends.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        limits: SupervisorLimits | None = None,
        plan: Callable[[EngineConfig], EnginePlan] = make_plan,
    ) -> None:
        self._config = config
        self._limits = limits or SupervisorLimits()
        self._make_plan = plan
        self._run_dir: Path | None = None
        self._manager: TokenizerManager | None = None
        self._supervisor: Supervisor | None = None
        self.tokenizer_ready = asyncio.Event()
        """Set while the processes still load: from here on the API process has nothing to do for the start."""

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Return when the engine has answered a first token. Raises EngineStartError, with nothing left behind."""
        plan = await asyncio.to_thread(self._make_plan, self._config)
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, plan.model_path)
            self._run_dir = make_run_dir(self._config.run_dir)
        except (OSError, ValueError) as error:
            raise EngineStartError(one_line(error)) from None
        self._manager = TokenizerManager(self._config, tokenizer)
        warm_up = asyncio.create_task(self._warm_up(tokenizer))
        try:
            self._supervisor = Supervisor(plan, self._manager, self._run_dir, self._limits)
            await self._supervisor.start()
            await warm_up
        except BaseException:
            await asyncio.wait([warm_up])
            await self.stop()
            raise

    async def _warm_up(self, tokenizer: TextTokenizer) -> None:
        """Build the encoder. Raises EngineStartError."""
        try:
            await asyncio.to_thread(tokenizer.encode, "warm up")
        except (OSError, ValueError) as error:
            raise EngineStartError(one_line(error)) from None
        self.tokenizer_ready.set()

    async def stop(self) -> None:
        """End the processes and remove the sockets. Requests inside end with an error. Safe to call twice."""
        if self._supervisor is not None:
            await self._supervisor.stop()
            self._supervisor = None
        if self._run_dir is not None:
            await asyncio.to_thread(remove_run_dir, self._run_dir)
            self._run_dir = None

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for those inside, at most ``seconds``. True where all of them ended."""
        manager = self.manager
        manager.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await manager.wait_idle()
                return True
        return False

    def end_requests(self) -> None:
        """End every request inside with an error event, at once."""
        self.manager.end(SHUTTING_DOWN)

    async def failure(self) -> str:
        """Wait until the engine has given up; one line that says why."""
        if self._supervisor is None:
            raise RuntimeError("the engine is not started")
        return await asyncio.shield(self._supervisor.failed)

    @property
    def manager(self) -> TokenizerManager:
        if self._manager is None:
            raise RuntimeError("the engine is not started")
        return self._manager

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children that live, by name."""
        return self._supervisor.pids if self._supervisor is not None else {}

    @property
    def dropped_frames(self) -> dict[str, int]:
        """Malformed frames that each process's socket has dropped."""
        return self._supervisor.dropped_frames if self._supervisor is not None else {}

    @property
    def run_dir(self) -> Path | None:
        return self._run_dir

    # ------------------------------------------------------------ EngineClient

    @property
    def model_info(self) -> ModelInfo:
        return self.manager.model_info

    @property
    def state(self) -> EngineState:
        return self._manager.state if self._manager is not None else "starting"

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.manager.tokenizer

    def generate(self, request: GenerateReqInput) -> AsyncIterator[GenerateOutput]:
        return self.manager.generate(request)

    async def embed(self, batch: Sequence[Sequence[int]], tenant: str = "") -> list[tuple[float, ...]]:
        return await self.manager.embed(batch, tenant)

    def together(self) -> contextlib.AbstractContextManager[Generator]:
        return self.manager.together()

    async def flush_cache(self) -> bool:
        return await self.manager.flush_cache()

    async def stats(self) -> SchedulerStats:
        return await self.manager.stats()


async def run_worker_node(config: EngineConfig, stop: asyncio.Event) -> None:
    """This machine's ranks of a group whose API runs on node 0, until ``stop``. Raises EngineStartError."""
    await WorkerNode(await asyncio.to_thread(make_plan, config)).run(stop)


@asynccontextmanager
async def launch(config: EngineConfig, *, limits: SupervisorLimits | None = None) -> AsyncIterator[Engine]:
    """A running engine for the length of a block."""
    engine = Engine(config, limits=limits)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
