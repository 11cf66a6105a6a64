"""The figures of a GPU: ``python -m benchmarks.gpu [--json FILE] [--model 8b|tiny] [--device cuda|cpu]``.

Weights are random and made on the device. Decode is compared with the bandwidth that a plain copy reaches here,
prefill with the rate that a plain matrix multiplication reaches here. Each part prints its lines as it ends, so that
what was measured before a time limit is not lost. On a CPU only ``--model tiny`` makes sense: it shows that it runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.batches import batch_of
from benchmarks.gpu.kernels import kernel_figures
from benchmarks.gpu.random_model import QWEN3_8B, TINY, random_executor, weight_bytes
from engine.executor.forward_batch import ForwardBatch
from engine.executor.torch_executor import TorchExecutor
from engine.messages import DecodeParams, TokenizedGenerateReqInput
from engine.sampling_params import SamplingParams
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler

Figures = dict[str, float]


class Clock:
    """Milliseconds of calls, with the device's queue empty before and after."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, run: Callable[[], object], repeat: int = 10) -> float:
        run()
        times = []
        for _ in range(repeat):
            self._wait()
            start = time.perf_counter()
            run()
            self._wait()
            times.append(time.perf_counter() - start)
        return 1000 * statistics.median(times)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def roofline(clock: Clock, device: torch.device, dtype: torch.dtype, small: bool) -> Figures:
    """GB/s of a copy (read and write) and TFLOP/s of a square matrix multiplication."""
    count, side = (1 << 22, 512) if small else (1 << 30, 8192)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a = torch.randn(side, side, device=device).to(dtype)
    copy, multiply = clock(lambda: target.copy_(source)), clock(lambda: a @ a)
    return {"copy GB/s": 2 * count / copy / 1e6, "matrix TFLOP/s": 2 * side**3 / multiply / 1e9}


@torch.inference_mode()
def decode_step(executor: TorchExecutor, batch: ForwardBatch) -> object:
    graphs = executor._graphs
    if graphs is not None and graphs.fits(batch):
        return graphs.run(batch)
    return executor.logits(executor.forward(batch), batch.logits_index)


def decode_figures(executor: TorchExecutor, clock: Clock, copy_rate: float, context: int) -> Figures:
    model, item = executor.model_config, executor.device.dtype.itemsize
    out: Figures = {}
    for rows in (1, 64):
        batch = batch_of([(context - 1, 1)] * rows, executor.page_size, executor.vocab_size)
        ms = clock(functools.partial(decode_step, executor, batch), 20)
        kv = 2 * rows * context * model.num_layers * model.kv_size * item
        out[f"decode x{rows} ms"] = ms
        out[f"decode x{rows} % of copy bandwidth"] = 100 * (weight_bytes(model, item) + kv) / ms / 1e6 / copy_rate
    return out


def prefill_figures(executor: TorchExecutor, clock: Clock, matrix_rate: float, tokens: int) -> Figures:
    model = executor.model_config
    batch = batch_of([(0, tokens)], executor.page_size, executor.vocab_size)
    ms = clock(lambda: executor.logits(executor.forward(batch), batch.logits_index), 5)
    linear = weight_bytes(model, 1) - model.vocab_size * model.hidden_size
    flops = 2 * tokens * linear + 2 * tokens**2 * model.q_size * model.num_layers
    rate = flops / ms / 1e9
    return {
        "prefill ms": ms,
        "prefill tokens/s": 1000 * tokens / ms,
        "prefill % of matrix peak": 100 * rate / matrix_rate,
    }


def serving_figures(executor: TorchExecutor, requests: int, prompt: int, output: int) -> Figures:
    """The scheduler and the executor in this process, all requests at once: tokens per second of wall time."""
    settings = SchedulerConfig(
        max_running_requests=requests, chunked_prefill_size=2048, max_model_len=prompt + output + 16
    )
    scheduler = Scheduler(settings, executor)
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=output, ignore_eos=True)
    rng = np.random.default_rng(0)
    for index in range(requests):
        ids = tuple(rng.integers(0, executor.vocab_size, prompt).tolist())
        scheduler.add(
            TokenizedGenerateReqInput(rid=str(index), input_ids=ids, sampling=sampling, decode=DecodeParams())
        )
    start = time.perf_counter()
    while scheduler.has_work():
        scheduler.step()
    seconds = time.perf_counter() - start
    stats = scheduler.stats()
    if stats.generated_tokens != requests * output:
        raise RuntimeError(f"{stats.generated_tokens} tokens instead of {requests * output}")
    return {"serving seconds": seconds, "serving output tokens/s": requests * output / seconds}


def overlap_figures(executor: TorchExecutor, requests: int, prompt: int, output: int) -> Figures:
    """Decoding with the next step launched before it is asked for, and without; nothing on a CPU."""
    steps = executor._device_steps
    if steps is None or steps.ahead is None:
        return {}
    ahead = serving_figures(executor, requests, prompt, output)["serving output tokens/s"]
    kept, steps.ahead = steps.ahead, None
    alone = serving_figures(executor, requests, prompt, output)["serving output tokens/s"]
    steps.ahead = kept
    return {"decode tokens/s with run-ahead": ahead, "decode tokens/s without": alone}


def measure(args: argparse.Namespace, show: Callable[[str, Figures], None]) -> None:
    tiny = args.model == "tiny"
    model = TINY if tiny else QWEN3_8B
    requests, prompt, output = (4, 40, 8) if tiny else (256, 1024, 256)
    pages = 512 if tiny else requests * (prompt + output + 16) // 16
    executor = random_executor(
        model,
        args.device,
        dtype="float32" if args.device == "cpu" else "bfloat16",
        kv_pages=pages,
        max_running_requests=requests,
        max_model_len=prompt + output + 256 if tiny else 8192,
        chunked_prefill_size=64 if tiny else 2048,
    )
    device, dtype = executor.device.device, executor.device.dtype
    clock = Clock(device)
    peaks = roofline(clock, device, dtype, tiny)
    show("roofline", peaks)
    show("decode", decode_figures(executor, clock, peaks["copy GB/s"], 64 if tiny else 1024))
    show("prefill", prefill_figures(executor, clock, peaks["matrix TFLOP/s"], 64 if tiny else 4096))
    show("overlap", overlap_figures(executor, 4 if tiny else 64, 16, 8 if tiny else 128))
    show("kernels", kernel_figures(clock, device))
    show("serving", serving_figures(executor, requests, prompt, output))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", choices=("8b", "tiny"), default="8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    results: dict[str, Any] = {}

    def show(part: str, figures: Figures) -> None:
        results[part] = figures
        for name, value in figures.items():
            print(f"| {part} | {name} | {value:.4g} |", flush=True)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1), "utf-8")

    print("| part | figure | value |\n|---|---|---|")
    measure(args, show)


if __name__ == "__main__":
    main()
