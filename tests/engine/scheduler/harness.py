"""Drives a Scheduler on hash-lm and keeps every rule that must hold whatever happens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.executor.executor import StepOutput
from engine.executor.hash_lm import HashLMExecutor
from engine.grammar.interface import GrammarBackend
from engine.messages import (
    BatchTokenIDOut,
    DecodeParams,
    EmbedOut,
    FinishReason,
    SchedulerOutput,
    TokenizedGenerateReqInput,
    TokenLogprob,
)
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler
from engine.text.byte_tokenizer import EOS_ID


class Recorder:
    """Hands every batch to the executor it wraps, and keeps them."""

    def __init__(self, inner: HashLMExecutor) -> None:
        self.inner = inner
        self.batches: list[ScheduleBatch] = []
        self.shapes: list[list[tuple[str, int, int]]] = []

    @property
    def num_pages(self) -> int:
        return self.inner.num_pages

    @property
    def page_size(self) -> int:
        return self.inner.page_size

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    def execute(self, batch: ScheduleBatch) -> StepOutput:
        self.batches.append(batch)
        self.shapes.append([(row.req.rid, row.start, row.num_tokens) for row in batch.rows])
        return self.inner.execute(batch)

    def copy_page(self, source: int, target: int) -> None:
        self.inner.copy_page(source, target)


class Result:
    """What a client would have seen of one request."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.rows = 0
        self.finish: FinishReason | None = None
        self.completion_tokens = self.cached_tokens = self.prompt_tokens = 0
        self.decode: DecodeParams | None = None


class Harness:
    """A scheduler, its executor, and what came out. Every output is checked as it comes."""

    def __init__(
        self,
        *,
        pages: int = 512,
        page_size: int = 16,
        grammar: GrammarBackend | None = None,
        eos_probability: float = 0.0,
        executor: HashLMExecutor | None = None,
        **config,
    ) -> None:
        self.executor = Recorder(executor or HashLMExecutor(pages, page_size, eos_probability=eos_probability))
        seeds = random.Random(1)
        self.scheduler = Scheduler(
            SchedulerConfig(**({"strict": True, "max_model_len": 1 << 20} | config)),
            self.executor,
            (EOS_ID,),
            grammar,
            random_seed=lambda: seeds.getrandbits(63),
        )
        self.results: dict[str, Result] = {}
        self.embeddings: dict[str, tuple[float, ...]] = {}
        self.others: list[SchedulerOutput] = []

    def add(
        self, rid: str, prompt: Sequence[int], *, tenant: str = "", priority: int = 0, grammar=None, **sampling
    ) -> None:
        prompt_logprobs = sampling.pop("prompt_logprobs", False)
        params = SamplingParams(**({"temperature": 0.0, "max_tokens": 16} | sampling))
        self.scheduler.add(
            TokenizedGenerateReqInput(
                rid=rid,
                input_ids=tuple(prompt),
                sampling=params,
                decode=DecodeParams(),
                tenant=tenant,
                priority=priority,
                grammar=grammar,
                prompt_logprobs=prompt_logprobs,
            )
        )

    def step(self) -> list[SchedulerOutput]:
        outputs = self.scheduler.step()
        for message in outputs:
            if isinstance(message, BatchTokenIDOut):
                for row in message.rows:
                    self._row(row)
            elif isinstance(message, EmbedOut):
                assert message.rid not in self.embeddings
                self.embeddings[message.rid] = message.embedding
            else:
                self.others.append(message)
        return outputs

    def _row(self, row) -> None:
        result = self.results.setdefault(row.rid, Result())
        assert result.finish is None, f"{row.rid} went on after its end"
        assert (row.decode is not None) == (result.rows == 0), "decode travels with the first row"
        result.rows += 1
        result.token_ids += row.token_ids
        result.logprobs += row.logprobs
        result.prompt_logprobs += row.prompt_logprobs
        result.finish = row.finish_reason
        result.cached_tokens, result.prompt_tokens = row.cached_tokens, row.prompt_tokens
        result.completion_tokens = row.completion_tokens
        if result.finish is None or result.finish.type != "error":
            assert result.completion_tokens == len(result.token_ids)

    def run(self, max_steps: int = 100_000) -> dict[str, Result]:
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                self.idle()
                return self.results
            self.step()
        raise AssertionError(f"no end after {max_steps} steps: {self.scheduler.stats()}")

    def idle(self) -> None:
        """Nothing is left over once all requests have ended."""
        kv = self.scheduler.kv
        assert kv.check() == []
        assert kv.num_leases == 0
        assert kv.num_free + kv.num_cached == kv.num_pages
        assert all(result.finish is not None for result in self.results.values())

    def tokens(self) -> dict[str, list[int]]:
        return {rid: result.token_ids for rid, result in self.results.items()}


def prompts(count: int, seed: int = 0, *, low: int = 1, high: int = 120, shared: int = 40) -> list[list[int]]:
    """Random prompts of bytes, many with one of three common beginnings."""
    rng = random.Random(seed)
    heads = [[rng.randrange(256) for _ in range(shared)] for _ in range(3)]
    made = []
    for _ in range(count):
        head = rng.choice([*heads, []])
        made.append(
            [*head[: rng.randrange(shared + 1)], *(rng.randrange(256) for _ in range(rng.randrange(low, high)))]
        )
    return made


def alone(prompt: Sequence[int], **sampling) -> list[int]:
    """What hash-lm writes for ``prompt`` with the engine to itself: no cache, no chunks, no drafts."""
    harness = Harness(pages=64, page_size=64, enable_prefix_cache=False, chunked_prefill_size=1 << 20)
    harness.add("alone", prompt, **sampling)
    return harness.run()["alone"].token_ids
