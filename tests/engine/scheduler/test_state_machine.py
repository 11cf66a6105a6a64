"""Random requests, aborts, flushes and steps; a dict oracle; every rule after every step."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.messages import AbortReq, EmbedReqInput, FlushCacheReq
from tests.engine.scale import scaled
from tests.engine.scheduler.grammars import ScriptBackend, spec
from tests.engine.scheduler.harness import Harness, alone

EXAMPLES = scaled(250)
STEPS = 100
TENANTS = ("", "t")
GRAMMAR = "a b c de de f g h"
WORDS = [(1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8), (9, 9), (1, 2), (7,), (1, 2, 3, 4, 9, 9, 9, 9, 9)]

KINDS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 5},
    "repetitive": {"temperature": 0.3, "seed": 5, "logit_bias": {97: 40.0, 98: 40.0}},
    "constrained": {"temperature": 1.0, "seed": 5},
}

reached = {"examples": 0, "steps": 0, "requests": 0, "preemptions": 0, "hits": 0, "drafts": 0}


@lru_cache(maxsize=4096)
def expected(prompt: tuple[int, ...], kind: str, max_tokens: int) -> tuple[int, ...]:
    return tuple(alone(prompt, max_tokens=max_tokens, **KINDS[kind]))


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        pages=st.sampled_from([8, 16, 40]),
        page_size=st.sampled_from([1, 2, 4]),
        chunk=st.sampled_from([1, 3, 8, 64]),
        rows=st.sampled_from([1, 3, 8]),
        drafts=st.sampled_from([0, 3]),
        cache=st.sampled_from([True, True, False]),
    )
    def start(self, pages, page_size, chunk, rows, drafts, cache):
        self.chunk, self.rows_limit, self.page_size = chunk, rows, page_size
        self.pool = pages * page_size
        self.harness = Harness(
            pages=pages,
            page_size=page_size,
            chunked_prefill_size=chunk,
            max_running_requests=rows,
            num_draft_tokens=drafts,
            enable_prefix_cache=cache,
            grammar=ScriptBackend(),
        )
        self.asked: dict[str, tuple] = {}
        self.aborted: set[str] = set()
        self.computed: dict[str, set[tuple[int, ...]]] = {tenant: set() for tenant in TENANTS}
        reached["examples"] += 1

    @rule(
        words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
        max_tokens=st.integers(1, 20),
        tenant=st.sampled_from(TENANTS),
        priority=st.sampled_from([0, 0, 0, 1]),
        kind=st.sampled_from(list(KINDS)),
        copies=st.integers(1, 3),
    )
    def request(self, words, max_tokens, tenant, priority, kind, copies):
        prompt = tuple(token for word in words for token in word)
        grammar = spec(GRAMMAR) if kind == "constrained" else None
        for _ in range(copies):
            rid = f"r{len(self.asked)}"
            self.asked[rid] = (prompt, max_tokens, tenant, kind)
            options = {"tenant": tenant, "priority": priority, "grammar": grammar, **KINDS[kind]}
            self.harness.add(rid, prompt, max_tokens=max_tokens, **options)
            reached["requests"] += 1

    @rule(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    def embed(self, words):
        prompt = tuple(token for word in words for token in word)
        rid = f"r{len(self.asked)}"
        self.asked[rid] = (prompt, 0, "", "embedding")
        self.harness.scheduler.add(EmbedReqInput(rid=rid, input_ids=prompt))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), matched=st.sampled_from([None, "END"]))
    def abort(self, data, matched):
        rid = data.draw(st.sampled_from(sorted(self.asked)))
        self.aborted.add(rid)
        self.harness.scheduler.add(AbortReq(rid=rid, stop_matched=matched))

    @rule()
    def flush(self):
        self.harness.scheduler.add(FlushCacheReq(rid="f"))

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        scheduler, executor = self.harness.scheduler, self.harness.executor
        executor.batches.clear()
        self.harness.step()
        reached["steps"] += 1
        if executor.batches:
            self._check_batch(executor.batches[0])
        else:
            assert not scheduler.running, "a stall: something runs and nothing was computed"
            assert not scheduler.waiting, "a stall: something waits, nothing runs, nothing was admitted"
        self._check_pages()

    def _check_batch(self, batch) -> None:
        shape = self.harness.executor.shapes[-1]
        assert len({rid for rid, _, _ in shape}) == len(shape) <= self.rows_limit
        decoding = sum(1 for row in batch.rows if row.start >= row.req.prompt_len)
        assert sum(count for _, _, count in shape) <= self.chunk + decoding, "the token budget"
        for row in batch.rows:
            tokens = row.req.tokens[: row.req.num_computed]
            for end in range(self.page_size, len(tokens) + 1, self.page_size):
                self.computed[row.req.tenant].add(tuple(tokens[:end]))

    def _check_pages(self) -> None:
        scheduler = self.harness.scheduler
        kv = scheduler.kv
        assert kv.check() == []
        live = scheduler.running
        assert kv.num_leases == len(live), "only running requests hold pages"
        private: dict[int, str] = {}
        for req in live:
            assert len(req.lease.pages) == len(set(req.lease.pages))
            assert len(req.lease.pages) * kv.page_size >= req.num_computed
            for page in req.lease.pages[req.lease.num_committed :]:
                assert private.setdefault(page, req.rid) == req.rid, "a page in two owners"
        for req in scheduler.waiting:
            assert req.lease is None
            assert req.preemptions <= 8

    def teardown(self):
        if not hasattr(self, "harness"):
            return
        for _ in range(5000):
            if not self.harness.scheduler.has_work():
                break
            self._step()
        else:
            raise AssertionError("it never ends")
        self.harness.idle()
        self._check_results()
        stats = self.harness.scheduler.stats()
        reached["preemptions"] += stats.preemptions
        reached["hits"] += stats.cache_hit_tokens
        reached["drafts"] += stats.draft_tokens

    def _check_results(self) -> None:
        for rid, (prompt, max_tokens, tenant, kind) in self.asked.items():
            result = self.harness.results.get(rid)
            if max_tokens == 0:
                assert (rid in self.harness.embeddings) != (result is not None and result.finish is not None)
                continue
            assert result is not None
            assert result.finish is not None, "every request ends"
            if result.finish.type == "error":
                assert len(prompt) + 1 > self.pool
                assert result.finish.message.startswith("This model's maximum context length is ")
                continue
            room = min(max_tokens, self.pool - len(prompt))
            if kind == "constrained":
                steps = GRAMMAR.split(" ")
                written = bytes(result.token_ids).decode()
                assert all(char in step for char, step in zip(written, steps))
                whole = min(room, len(steps))
            else:
                want = expected(prompt, kind, room)
                assert tuple(result.token_ids) == want[: len(result.token_ids)]
                whole = room
            if result.finish.type == "abort" or result.finish.matched == "END":
                assert rid in self.aborted
            else:
                assert len(result.token_ids) == whole
            hit = result.cached_tokens
            assert hit < len(prompt) + len(GRAMMAR)
            known = (*prompt, *result.token_ids)[:hit]
            assert hit == 0 or known in self.computed[tenant], "a hit on what this tenant never computed"


SchedulerMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


class TestScheduler(SchedulerMachine.TestCase):
    @classmethod
    def tearDownClass(cls) -> None:
        print("state machine reached", reached)

    def runTest(self) -> None:
        super().runTest()
        assert reached["examples"] >= EXAMPLES
        assert reached["preemptions"] > EXAMPLES // 10
        assert reached["hits"] > EXAMPLES
        assert reached["drafts"] > 0
