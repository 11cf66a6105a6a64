"""``python -m engine.model_process``: the Scheduler and the model. Takes ids, gives ids."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import zmq

from engine.child import BEAT_INTERVAL, ModelProcessSpec, StatusPipe, one_line, read_spec, setup_logging, starting
from engine.config import EngineConfig
from engine.grammar.interface import GrammarBackend, GrammarMatcher
from engine.ipc import Inbox, Outbox
from engine.lockstep import Lockstep
from engine.messages import GrammarSpec, ModelInfo, SchedulerInput
from engine.runner import build_runner
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler, random_seed
from engine.text.load import load_tokenizer
from engine.text.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)

STATS_INTERVAL = 0.5


class LazyGrammar:
    """A grammar backend that is built when the first grammar comes, or by ``warm_up`` before that."""

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._lock = threading.Lock()

    @cached_property
    def _backend(self) -> GrammarBackend:
        from engine.grammar.factory import build_backend

        return build_backend(self._tokenizer, self._vocab_size, self._eos_ids)

    def warm_up(self) -> None:
        with self._lock:
            _ = self._backend

    def compile(self, spec: GrammarSpec) -> object:
        self.warm_up()
        return self._backend.compile(spec)

    def is_compiled(self, spec: GrammarSpec) -> bool:
        return "_backend" in self.__dict__ and self._backend.is_compiled(spec)

    def matcher(self, compiled: object) -> GrammarMatcher:
        return self._backend.matcher(compiled)


@dataclass(slots=True)
class ModelLoop:
    """Receive, step, send, beat. Waits for messages only while there is nothing to compute. Where other ranks
    compute with this one, ``lockstep`` tells them what was received."""

    scheduler: Scheduler
    grammar: LazyGrammar
    inbox: Inbox[SchedulerInput]
    outbox: Outbox
    status: StatusPipe
    lockstep: Lockstep | None = None
    next_stats: float = 0.0

    def turn(self) -> None:
        """One round of the loop."""
        messages: Sequence[SchedulerInput]
        messages = self.inbox.receive(timeout=0.0 if self.scheduler.has_work() else BEAT_INTERVAL)
        if self.lockstep is not None:
            messages = self.lockstep.exchange(messages)
        for message in messages:
            self.scheduler.add(message)
        outputs = self.scheduler.step()
        if self.lockstep is not None:
            self.lockstep.note(outputs)
        for output in outputs:
            self.outbox.send(output)
        self.status.beat(self.scheduler.num_steps, self.inbox.dropped)
        now = time.monotonic()
        if now >= self.next_stats:
            self.next_stats = now + STATS_INTERVAL
            self.outbox.send(self.scheduler.stats())


@dataclass(slots=True)
class RankLoop:
    """The loop of ranks 1 and up: the same steps as rank 0's, nothing received and nothing sent."""

    scheduler: Scheduler
    grammar: LazyGrammar
    status: StatusPipe
    lockstep: Lockstep

    def turn(self) -> None:
        for message in self.lockstep.exchange():
            self.scheduler.add(message)
        self.lockstep.note(self.scheduler.step())
        self.status.beat(self.scheduler.num_steps)


def scheduler_config(config: EngineConfig, info: ModelInfo) -> SchedulerConfig:
    """The scheduler's share of the settings. Ranks that compute together (engine.lockstep) would not agree on a
    clock."""
    return SchedulerConfig(
        max_running_requests=info.max_running_requests,
        chunked_prefill_size=config.chunked_prefill_size,
        max_model_len=info.context_length,
        num_draft_tokens=0 if config.speculative == "off" else config.num_draft_tokens,
        enable_prefix_cache=config.enable_prefix_cache,
        reads_clock=config.tp_size == 1,
        target_latency=config.target_itl,
    )


def build_loop(spec: ModelProcessSpec, status: StatusPipe) -> tuple[ModelLoop | RankLoop, ModelInfo]:
    """Load the tokenizer's table and the model, and bind the socket last: it means readiness."""
    tokenizer = load_tokenizer(spec.model_path)
    runner = build_runner(spec, tokenizer.eos_token_ids)
    info = runner.info
    eos_ids = [token_id for token_id in info.eos_token_ids if token_id < info.vocab_size]
    grammar = LazyGrammar(tokenizer, info.vocab_size, eos_ids)
    lockstep = runner.lockstep
    scheduler = Scheduler(
        scheduler_config(spec.config, info),
        runner.executor,
        eos_ids,
        grammar,
        random_seed=random_seed if lockstep is None else lockstep.random_seeds(),
    )
    if lockstep is not None and not lockstep.is_leader:
        return RankLoop(scheduler, grammar, status, lockstep), info
    context = zmq.Context(io_threads=1)
    inbox: Inbox[SchedulerInput] = Inbox(context, spec.inbox, SchedulerInput)
    return ModelLoop(scheduler, grammar, inbox, Outbox(context, spec.outbox), status, lockstep), info


def _warm_up(grammar: LazyGrammar) -> None:
    try:
        grammar.warm_up()
    except Exception as error:  # each request with a grammar will be told
        logger.warning("constrained decoding is not available: %s", one_line(error))


def main() -> None:
    spec = read_spec(ModelProcessSpec)
    setup_logging("model" if spec.rank == 0 else f"model-{spec.rank}", spec.config.log_level)
    status = StatusPipe(spec.status_fd)
    with starting(status):
        loop, info = build_loop(spec, status)
    status.started(info)
    while loop.scheduler.num_steps == 0:  # the supervisor's test token comes first: warming up would take its cores
        loop.turn()
    threading.Thread(target=_warm_up, args=(loop.grammar,), name="grammar-warm-up", daemon=True).start()
    while True:
        loop.turn()


if __name__ == "__main__":
    main()
