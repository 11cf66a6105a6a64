"""What the scheduler's Python costs per step, without a model: ``python -m benchmarks.scheduler [--vocab N]``.

Rows decode greedily on an executor that hands prepared logits to the real sampler. Prints milliseconds per step
for each batch size: the whole step, the part in schedule + process_result, and the part in the sampler.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from engine.executor.executor import StepOutput
from engine.executor.forward_batch import build_forward_batch
from engine.messages import DecodeParams, TokenizedGenerateReqInput
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler

ROWS = (1, 8, 64)
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "top_p": SamplingParams(temperature=0.7, top_p=0.9),
    "plain temperature": SamplingParams(temperature=1.0),
    "penalties": SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=0.5),
    "logprobs": SamplingParams(temperature=0.0, logprobs=True, top_logprobs=5),
}


class LogitsExecutor:
    """An executor whose forward pass is free: logits are slices of one random matrix."""

    page_size = 16
    num_pages = 64 * 64

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        rng = np.random.default_rng(0)
        self._logits = (rng.standard_normal((128, vocab_size)) * 3).astype(np.float32)
        self._sampler = Sampler(vocab_size)
        self.build_seconds = self.sample_seconds = 0.0

    def execute(self, batch: ScheduleBatch) -> StepOutput:
        start = time.perf_counter()
        forward = build_forward_batch(batch)
        built = time.perf_counter()
        rows = self._sampler.sample(self._logits[: len(forward.logits_index)], batch)
        self.build_seconds += built - start
        self.sample_seconds += time.perf_counter() - built
        return StepOutput(rows)

    def copy_page(self, source: int, target: int) -> None:
        raise NotImplementedError


def measure(vocab_size: int, num_rows: int, params: SamplingParams, steps: int) -> tuple[float, float, float]:
    """Median milliseconds of a step, of it outside the executor, and in the sampler."""
    executor = LogitsExecutor(vocab_size)
    config = SchedulerConfig(max_running_requests=num_rows, chunked_prefill_size=64 * num_rows)
    scheduler = Scheduler(config, executor, random_seed=lambda: 1)
    for index in range(num_rows):
        prompt = tuple((index * 64 + place) % 1000 for place in range(64))
        sampling = SamplingParams(
            **{name: getattr(params, name) for name in params.__struct_fields__} | {"max_tokens": 900}
        )
        scheduler.add(
            TokenizedGenerateReqInput(rid=str(index), input_ids=prompt, sampling=sampling, decode=DecodeParams())
        )
    scheduler.step()
    scheduler.step()
    whole, outside, sampled = [], [], []
    for _ in range(steps):
        executor.build_seconds = executor.sample_seconds = 0.0
        start = time.perf_counter()
        scheduler.step()
        seconds = time.perf_counter() - start
        whole.append(seconds)
        outside.append(seconds - executor.sample_seconds)
        sampled.append(executor.sample_seconds)
    return tuple(1e3 * float(np.median(values)) for values in (whole, outside, sampled))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    print(f"{'sampling':<20}{'rows':>5}{'step ms':>10}{'scheduler ms':>14}{'sampler ms':>12}{'sampler ms/row':>16}")
    for name, params in KINDS.items():
        for rows in ROWS:
            whole, outside, sampled = measure(args.vocab, rows, params, args.steps if rows < 64 else args.steps // 4)
            print(f"{name:<20}{rows:>5}{whole:>10.3f}{outside:>14.3f}{sampled:>12.3f}{sampled / rows:>16.3f}")


if __name__ == "__main__":
    main()
