"""Ranks and nodes in numbers, and schedulers of two ranks that see the same turns."""

from __future__ import annotations

import queue
import threading

import pytest

from engine.config import EngineConfig
from engine.executor.hash_lm import HashLMExecutor
from engine.lockstep import Lockstep, RankDiverged
from engine.messages import BatchTokenIDOut, DecodeParams, ModelInfo, TokenIDRow, TokenizedGenerateReqInput
from engine.model_process import scheduler_config
from engine.ranks import RanksError, local_ranks, rendezvous
from engine.sampling_params import SamplingParams
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler


def config(**changes) -> EngineConfig:
    return EngineConfig(model="m", **changes)


def test_ranks_of_a_node(tmp_path):
    assert local_ranks(config()) == range(1)
    assert local_ranks(config(tp_size=4)) == range(4)
    two = {"tp_size": 8, "nnodes": 2, "dist_init_addr": "10.0.0.1:4000"}
    assert local_ranks(config(**two)) == range(4)
    assert local_ranks(config(**two, node_rank=1)) == range(4, 8)
    assert rendezvous(config(), tmp_path, 1) == ""
    assert rendezvous(config(tp_size=2), tmp_path, 3) == f"file://{tmp_path}/ranks-3"
    assert rendezvous(config(**two), tmp_path, 3) == "tcp://10.0.0.1:4000"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp_size": 3, "nnodes": 2}, "cannot be divided among --nnodes 2"),
        ({"tp_size": 2, "nnodes": 2, "node_rank": 2}, "--node-rank 2"),
        ({"tp_size": 2, "nnodes": 2}, "--dist-init-addr"),
        ({"tp_size": 2, "nnodes": 2, "dist_init_addr": "host"}, "HOST:PORT"),
        ({"tp_size": 2, "nnodes": 2, "dist_init_addr": "host:0"}, "HOST:PORT"),
        ({"tp_size": 2, "nnodes": 2, "dist_init_addr": "host:70000"}, "HOST:PORT"),
        ({"node_rank": 1}, "--node-rank 1"),
    ],
)
def test_ranks_that_cannot_be(settings, message):
    with pytest.raises(RanksError, match=message):
        local_ranks(config(**settings))


class ThreadChannel:
    """Rank 0's bytes to the other ranks of this process."""

    def __init__(self, rank: int, pipes: list[queue.Queue]) -> None:
        self.rank = rank
        self._pipes = pipes

    def broadcast(self, data: bytes) -> bytes:
        if self.rank:
            return self._pipes[self.rank].get(timeout=10)
        for pipe in self._pipes[1:]:
            pipe.put(data)
        return data


def ranks(size: int) -> list[Lockstep]:
    pipes = [queue.Queue() for _ in range(size)]
    return [Lockstep(ThreadChannel(rank, pipes)) for rank in range(size)]


def request(index: int) -> TokenizedGenerateReqInput:
    sampling = SamplingParams(temperature=1.0, max_tokens=12)
    return TokenizedGenerateReqInput(
        rid=f"r{index}", input_ids=tuple(range(index, index + 5)), sampling=sampling, decode=DecodeParams()
    )


def run_rank(lockstep: Lockstep, turns: list[list], sent: list) -> None:
    seeds = lockstep.random_seeds()
    settings = SchedulerConfig(max_model_len=64, strict=True)
    scheduler = Scheduler(settings, HashLMExecutor(32, 4), random_seed=seeds)
    for messages in turns:
        for message in lockstep.exchange(messages if lockstep.is_leader else ()):
            scheduler.add(message)
        outputs = scheduler.step()
        lockstep.note(outputs)
        sent.append(outputs)


def test_unseeded_requests_get_the_same_tokens_on_every_rank():
    turns = [[request(0)], [], [request(1), request(2)], *[[] for _ in range(16)]]
    sent: list[list] = [[], [], []]
    threads = [
        threading.Thread(target=run_rank, args=(lockstep, turns, out))
        for lockstep, out in zip(ranks(3), sent, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sent[0] == sent[1] == sent[2]
    assert sum(len(row.token_ids) for outputs in sent[0] for batch in outputs for row in batch.rows) == 36


def test_seeds_are_shared_but_new_in_every_group():
    groups = []
    for _ in range(2):
        seeds = [lockstep.random_seeds() for lockstep in ranks(2)]
        groups.append([[draw() for _ in range(5)] for draw in seeds])
    assert groups[0][0] == groups[0][1] != groups[1][0]
    assert len(set(groups[0][0])) == 5
    assert all(0 <= seed < 1 << 63 for seed in groups[0][0])


def test_a_rank_that_computed_something_else_ends():
    leader, other = ranks(2)
    for lockstep in (leader, other):
        lockstep.exchange()
    same = BatchTokenIDOut(rows=(TokenIDRow(rid="a", token_ids=(1, 2)),))
    leader.note([same])
    other.note([same])
    leader.exchange([request(0)])
    assert list(other.exchange()) == [request(0)]
    leader.note([same])
    other.note([BatchTokenIDOut(rows=(TokenIDRow(rid="a", token_ids=(1, 3)),))])
    leader.exchange()
    with pytest.raises(RankDiverged, match="rank 1 has computed other tokens"):
        other.exchange()


@pytest.mark.parametrize("tp_size", [1, 2])
def test_ranks_that_compute_together_never_decide_by_the_clock(tp_size):
    info = ModelInfo(
        model_path="m",
        served_name="m",
        architecture="x",
        context_length=64,
        vocab_size=8,
        eos_token_ids=(0,),
        kv_capacity_tokens=64,
        max_running_requests=2,
        device="cpu",
        dtype="float32",
    )
    assert scheduler_config(config(tp_size=tp_size, target_itl=0.3), info).reads_clock == (tp_size == 1)
