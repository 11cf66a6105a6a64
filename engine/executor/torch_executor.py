"""The torch runner: loads a checkpoint, owns KV memory, turns a ScheduleBatch into sampled tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.backend import AttentionBackend, AttentionPlan, AttentionSpec
from engine.attention.kv_pool import KVPool
from engine.attention.paged_step import PagedStep
from engine.attention.registry import choose_backend
from engine.config import EngineConfig
from engine.distributed import TensorParallel
from engine.executor.cuda_graphs import DecodeGraphs, Recorder, graph_sizes
from engine.executor.device_sampler import DeviceSampler
from engine.executor.device_steps import DeviceSteps, mean_state
from engine.executor.executor import StepOutput, with_embeddings
from engine.executor.forward_batch import ForwardBatch, build_forward_batch
from engine.executor.kv_budget import kv_pages
from engine.executor.run_ahead import RunAhead, scratch_pages
from engine.models.batch import ModelBatch
from engine.models.registry import load_model
from engine.platform.device import TorchDevice, resolve_device
from engine.platform.transfer import upload
from engine.quantization.registry import linear_method
from engine.sampling.sampler import Sampler
from engine.scheduler.batch import ScheduleBatch
from engine.weights.checkpoint import Checkpoint
from engine.weights.torch_loader import WeightLoader

FloatArray = npt.NDArray[np.float32]

_LOGITS_ROWS = 64
"""Rows of logits computed at a time: prompt logprobs would otherwise hold several copies of [tokens, vocab]."""

_KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchExecutor:
    """An Executor over torch, on a CPU or a GPU.

    On a CPU, logits of a token have the same bits however its prompt was cut, batched, cached or preempted.
    ``make_loader`` is for weights that come from elsewhere than a file. Raises WeightsError, DeviceError,
    KVMemoryError or ValueError, each with one line for the user, where the model cannot be run as ``config`` asks.
    """

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        *,
        tp: TensorParallel | None = None,
        make_loader: Callable[..., WeightLoader] = WeightLoader,
    ) -> None:
        self._tp = tp or TensorParallel()
        self.device: TorchDevice = resolve_device(config, self._tp.local_rank)
        self.model_config = checkpoint.config
        self.page_size, self.vocab_size = config.page_size, checkpoint.config.vocab_size
        torch.set_num_threads(self.device.threads)
        spec = self._attention_spec(config)
        self.attention_name, backend = choose_backend(config.attention_backend, spec)
        loader = make_loader(
            checkpoint, dtype=self.device.dtype, device=self.device.device, threads=self.device.threads
        )
        max_positions = config.max_model_len or checkpoint.config.max_positions
        with loader:
            method = linear_method(config.quantization, checkpoint.config.quantization, on_gpu=not self.device.is_cpu)
            self._model = load_model(loader, method, self._tp, max_positions=max_positions)
        num_layers = checkpoint.config.num_layers
        self._max_logits = config.max_running_requests + _LOGITS_ROWS
        self._pool = KVPool(spec, num_layers, -(-config.chunked_prefill_size // config.page_size))
        self._attention: AttentionBackend = backend(spec, self._pool)
        activations = self._activation_bytes(min(config.chunked_prefill_size, max_positions))
        self.num_pages, scratch = self._fitting_pages(config, spec, activations)
        self._pool = KVPool(spec, num_layers, self.num_pages + scratch)
        self._attention = backend(spec, self._pool)
        self._sampler = Sampler(self.vocab_size)
        self._graphs = self._record_graphs(config)
        self._device_steps = None if self.device.is_cpu else self.device_steps(self._graphs)
        if self._device_steps is not None:
            self._warm_up(min(config.chunked_prefill_size, max_positions))

    def _attention_spec(self, config: EngineConfig) -> AttentionSpec:
        model, device = self.model_config, self.device
        if config.kv_cache_dtype not in ("auto", *_KV_DTYPES):
            raise ValueError(f"--kv-cache-dtype {config.kv_cache_dtype} is not supported by the torch runner.")
        heads, kv_heads = self._tp.share(model.num_heads, "attention heads"), self._tp.kv_heads(model.num_kv_heads)
        return AttentionSpec(
            num_heads=heads.stop - heads.start,
            num_kv_heads=kv_heads.stop - kv_heads.start,
            head_dim=model.head_dim,
            page_size=config.page_size,
            dtype=device.dtype,
            kv_dtype=_KV_DTYPES.get(config.kv_cache_dtype, device.dtype),
            device=device.device,
        )

    def _activation_bytes(self, num_tokens: int) -> int:
        """What the largest step needs beside weights and pages: measured on a GPU, where memory that is missing in
        the middle of a step cannot be had. 0 on a CPU."""
        if self.device.is_cpu:
            return 0
        from engine.platform.cuda import peak_bytes

        return peak_bytes(lambda: self._run_largest(num_tokens), self.device.device)

    @torch.inference_mode()
    def _run_largest(self, num_tokens: int) -> None:
        """One prompt chunk of ``num_tokens``, as many logits as are computed at a time, and the sampler's copy."""
        size = self._pool.page_size
        pages = np.arange(-(-num_tokens // size), dtype=np.int32)
        places = np.arange(num_tokens, dtype=np.int32)
        batch = ForwardBatch(
            input_ids=np.zeros(num_tokens, np.int32),
            positions=places,
            cu_seqlens=np.array([0, num_tokens], np.int32),
            seq_lens=np.array([num_tokens], np.int32),
            page_table=pages[None],
            slot_mapping=places,
            logits_index=places[-1:],
            page_size=size,
        )
        hidden = self.forward(batch)
        logits = self.compute_logits(hidden[-1:].repeat(self._max_logits, 1))
        logits.clone()

    def _warm_up(self, num_tokens: int) -> None:
        """Kernels are tuned by powers of two of a step's tokens: no request shall wait for that. Nothing that the
        pages hold by now is anybody's."""
        count = 1
        while count < min(num_tokens, self.num_pages * self.page_size):
            count *= 2
            self._run_largest(min(count, num_tokens, self.num_pages * self.page_size))

    def _record_graphs(self, config: EngineConfig) -> DecodeGraphs | None:
        """Only for an attention backend that computes from tables which stay in place."""
        plan_step = getattr(self._attention, "plan_step", None)
        if self.device.is_cpu or plan_step is None:
            return None
        from engine.platform.cuda import GraphRecorder

        return self.make_graphs(config, GraphRecorder(self.device.device))

    @torch.inference_mode()
    def make_graphs(self, config: EngineConfig, recorder: Recorder) -> DecodeGraphs:
        longest = min(config.max_model_len or self.model_config.max_positions, self.num_pages * self.page_size)
        return DecodeGraphs(
            self,
            recorder,
            self.device.device,
            sizes=graph_sizes(config.max_running_requests),
            max_pages=-(-longest // self.page_size),
        )

    def plan_step(self, step: PagedStep) -> AttentionPlan:
        plan: AttentionPlan = getattr(self._attention, "plan_step")(step)  # noqa: B009 - not in the protocol
        return plan

    def device_steps(self, graphs: DecodeGraphs | None) -> DeviceSteps:
        """Steps as on a GPU. The pages behind ``num_pages`` are for steps that nobody has asked for yet."""
        sampler = DeviceSampler(self._sampler)
        scratch = range(self.num_pages, self._pool.num_pages)
        ahead = RunAhead(graphs, sampler, self._pool, scratch) if graphs is not None else None
        return DeviceSteps(self, (self._sampler, sampler), self._max_logits, graphs=graphs, ahead=ahead)

    def decode_logits(self, batch: ModelBatch) -> torch.Tensor:
        return self._model.compute_logits(self._model.forward(batch))

    def _fitting_pages(self, config: EngineConfig, spec: AttentionSpec, activations: int) -> tuple[int, int]:
        """Pages for the scheduler, the same on every rank, and those of the executor's own (on a GPU). Ranks on one
        CPU share its memory; each GPU has its own."""
        sharing = self._tp.local_size if self.device.is_cpu else 1
        pages = kv_pages(
            config,
            page_bytes=KVPool.page_bytes(spec, self.model_config.num_layers),
            free_bytes=(self.device.free_bytes() - activations) // sharing,
            total_bytes=self.device.total_bytes() // sharing,
            on_cpu=self.device.is_cpu,
        )
        pages = self._tp.smallest(pages)
        scratch = 0 if self.device.is_cpu else scratch_pages(pages, config.max_running_requests)
        return (pages if config.kv_pages else pages - scratch), scratch

    def execute(self, batch: ScheduleBatch) -> StepOutput:
        if self._device_steps is not None:
            return self._device_steps.execute(batch)
        step = build_forward_batch(batch)
        hidden = self.forward(step)
        rows = self._sampler.sample(self.logits(hidden, step.logits_index), batch)
        return StepOutput(with_embeddings(rows, batch, step.cu_seqlens, partial(mean_state, hidden)))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Run the model over one step; hidden state after the final norm, [T, hidden]. KV pages are written."""
        ids, positions = upload([batch.input_ids, batch.positions], self.device.device)
        model_batch = ModelBatch(
            input_ids=ids,
            positions=positions,
            attention=self._attention.plan(batch),
        )
        return self._model.forward(model_batch)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, index: npt.NDArray[np.int32]) -> FloatArray:
        """Logits of the tokens ``index`` [L] of a step, [L, vocab]."""
        out = np.empty((len(index), self.vocab_size), np.float32)
        for start in range(0, len(index), _LOGITS_ROWS):
            rows = torch.from_numpy(index[start : start + _LOGITS_ROWS].astype(np.int64)).to(hidden.device)
            out[start : start + _LOGITS_ROWS] = self.compute_logits(hidden[rows]).cpu().numpy()
        return out

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.compute_logits(hidden)

    def copy_page(self, source: int, target: int) -> None:
        if self._device_steps is not None and self._device_steps.ahead is not None:
            self._device_steps.ahead.forget()
        self._pool.copy_page(source, target)
