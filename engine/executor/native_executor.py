"""The native runner: the whole decoder step in one C call, sampling in numpy, no torch in the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig
from engine.executor.draft_head import BUNDLED, DraftHead, fingerprint, load_draft_head
from engine.executor.executor import RowOutput, StepOutput, with_embeddings, with_guesses
from engine.executor.forward_batch import ForwardBatch, build_forward_batch
from engine.executor.kv_budget import kv_pages
from engine.executor.native_weights import LinearPacker, Matrix
from engine.executor.packed_file import PackedLinears, load_linears, pack_path
from engine.kernels.cpu.build import BuildUnavailable
from engine.kernels.cpu.linear import Context, Format, KernelError, Weight
from engine.kernels.cpu.loader import load
from engine.kernels.cpu.model import CModelConfig, NativeModel, NativeModelError
from engine.platform.host import available_memory, total_memory
from engine.sampling.sampler import Sampler
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import ModelConfig
from engine.weights.rope import rope_frequencies

if TYPE_CHECKING:
    from engine.scheduler.batch import ScheduleBatch

logger = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float32]

_GROUP: Final = 32
_FEW_LOGITS: Final = 96
_SLOW_POSITIONS: Final = 8192.0
_MAX_HEAD_DIM: Final = 512
_MAX_SLOTS: Final = (1 << 31) - 1
DRAFT_HEADS: Final = "draft-heads"
"""Where those that were trained here lie under the cache directory."""


def refuses(config: EngineConfig, model: ModelConfig) -> str | None:
    """Why the native runner cannot serve this model as ``config`` asks, in one line; None where it can.

    Compiles the kernels where that has not been done yet.
    """
    if config.device == "cuda":
        return "the native runner computes on CPUs only"
    if config.tp_size > 1:
        return "the native runner has no tensor parallelism"
    if config.attention_backend != "auto":
        return "the native runner has an attention of its own"
    if config.dtype == "float16":
        return "the native runner has no float16"
    widths = {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "query width": model.q_size,
    }
    for name, width in widths.items():
        if width % _GROUP:
            return f"{name} {width} is no multiple of {_GROUP}"
    if model.head_dim > _MAX_HEAD_DIM:
        return f"head_dim {model.head_dim} is beyond {_MAX_HEAD_DIM}"
    try:
        load()
    except BuildUnavailable as error:
        return str(error)
    return None


class NativeExecutor:
    """An Executor over the native kernels. Logits of a token have the same bits however its prompt was cut, batched,
    cached or preempted.

    model_path: where the checkpoint was opened; its packed copy is cached beside it, or under ``cache_home()`` where
    that cannot be written; None packs into memory. Raises NativeModelError, KVMemoryError or WeightsError, one line
    each, where the model cannot be run as ``config`` asks.
    """

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        *,
        model_path: Path | None = None,
        cache_home: Callable[[], Path] | None = None,
    ) -> None:
        self.model_config = model = checkpoint.config
        exact = "float32" if config.dtype == "float32" else "bfloat16"
        self.kv_dtype = exact if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
        self.page_size, self.vocab_size = config.page_size, model.vocab_size
        self._lib = load()
        self._context = _context(self._lib, config.threads)
        packer = LinearPacker(self._lib, checkpoint, config.quantization)
        cache = pack_path(model_path, config.quantization, cache_home or (lambda: Path.home())) if model_path else None
        self._linears = load_linears(self._lib, packer, cache, threads=self.threads)
        inv_freq, rope_scale = rope_frequencies(model)
        self.model = NativeModel(self._lib, self._context.handle, c_config(model, rope_scale), inv_freq)
        _fill(self.model, checkpoint, packer, self._linears)
        self._draft_head = None
        if config.speculative == "auto" and config.num_draft_tokens:
            self._draft_head = _draft_head(self._context, checkpoint, packer, cache_home)
        if self.kv_dtype != "float32" and model.qkv_bias:
            for layer in range(model.num_layers):
                self.model.set_key_offset(layer, _key_offset(checkpoint, layer, inv_freq))
        checkpoint.release_pages()
        self.num_pages = self._fitting_pages(config)
        self.model.set_kv(self.num_pages, config.page_size, self.kv_dtype)
        self._sampler = Sampler(model.vocab_size)

    def _fitting_pages(self, config: EngineConfig) -> int:
        pages = kv_pages(
            config,
            page_bytes=self.model.page_bytes(config.page_size, self.kv_dtype),
            free_bytes=available_memory() - self._linears.mapped_bytes,  # the page cache counts as available
            total_bytes=total_memory(),
            on_cpu=True,
        )
        return min(pages, _MAX_SLOTS // config.page_size)

    @property
    def threads(self) -> int:
        return self._context.threads

    @property
    def linear_bytes(self) -> int:
        """Weights that one decode step reads."""
        return self._linears.total_bytes()

    def execute(self, batch: ScheduleBatch) -> StepOutput:
        forward_batch = build_forward_batch(batch)
        hidden = None
        if any(row.req.embeds for row in batch.rows):
            hidden = np.empty((len(forward_batch.input_ids), self.model_config.hidden_size), np.float32)
        if len(forward_batch.logits_index) > _FEW_LOGITS:
            rows = self._sampler.sample(self._many_logits(forward_batch, hidden), batch)
        else:
            masks = self._sampler.masks(batch)
            count = len(forward_batch.logits_index)
            best, states = np.empty(count, np.int32), None
            if self._draft_head is not None and batch.wants_guesses:
                states = np.empty((count, self.model_config.hidden_size), np.float32)
            logits = self.model.forward(
                forward_batch,
                argmax=best,
                hidden=hidden,
                states=states,
                mask=None if masks is None else masks.rows,
                masked=None if masks is None else masks.flags,
                argmax_only=self._sampler.wants_argmax_only(batch, masks),
            )
            rows = self._sampler.sample(logits, batch, best, masks)
            if states is not None:
                rows = self._guessed(rows, batch, states)
        if hidden is None:
            return StepOutput(rows)
        return StepOutput(with_embeddings(rows, batch, forward_batch.cu_seqlens, partial(_mean_state, hidden)))

    def _guessed(self, rows: tuple[RowOutput, ...], batch: ScheduleBatch, states: FloatArray) -> tuple[RowOutput, ...]:
        head = self._draft_head
        if head is None:
            return rows
        try:
            return with_guesses(rows, batch, states, head.guess)
        except Exception:
            logger.exception("the draft head failed; it is used no more")
            self._draft_head = None
            head.close()
            return rows

    def _many_logits(self, batch: ForwardBatch, hidden: FloatArray | None) -> FloatArray:
        """Logits for prompt logprobs in memory of their own, so that the model's buffer stays small afterwards."""
        if hidden is None:
            hidden = np.empty((len(batch.input_ids), self.model_config.hidden_size), np.float32)
        self.model.forward(replace(batch, logits_index=batch.logits_index[:0]), hidden=hidden)
        return self.model.head(hidden[batch.logits_index])

    def copy_page(self, source: int, target: int) -> None:
        self.model.copy_page(source, target)

    def close(self) -> None:
        """Free KV memory, weights and threads. The executor cannot be used afterwards."""
        if self._context.handle:
            self.model.close()
            self._linears.close()
            if self._draft_head is not None:
                self._draft_head.close()
            self._context.close()


def _context(lib: CDLL, threads: int) -> Context:
    try:
        return Context(threads, lib=lib)
    except KernelError:
        raise NativeModelError("the native thread pool cannot be started") from None


def _draft_head(
    context: Context, checkpoint: Checkpoint, packer: LinearPacker, cache_home: Callable[[], Path] | None
) -> DraftHead | None:
    """One trained here comes before the one that is part of the package."""
    config = checkpoint.config
    name = fingerprint(checkpoint.read("model.norm.weight"), config.vocab_size, config.num_layers)
    trained = [] if cache_home is None else [cache_home() / DRAFT_HEADS]
    return load_draft_head(
        context,
        name,
        [*trained, BUNDLED],
        lambda: _weight(packer.embedding()),
        lambda tokens: _weight(packer.head_rows(tokens)),
    )


def _weight(matrix: Matrix) -> Weight:
    return Weight(Format(matrix.type), matrix.rows, matrix.columns, matrix.data)


def c_config(model: ModelConfig, rope_scale: float) -> CModelConfig:
    return CModelConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        rotary_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        rms_eps=model.rms_norm_eps,
        score_scale=model.head_dim**-0.5,
        rope_attention=rope_scale,
        embedding_scale=1.0,
    )


def _fill(model: NativeModel, checkpoint: Checkpoint, packer: LinearPacker, linears: PackedLinears) -> None:
    """Norms, linears and embedding of every layer."""

    def norm(name: str) -> FloatArray:
        return np.ascontiguousarray(checkpoint.read(f"{name}.weight"), np.float32)

    for layer in range(checkpoint.config.num_layers):
        prefix = f"model.layers.{layer}."
        names = [f"{prefix}input_layernorm", f"{prefix}post_attention_layernorm"]
        norms: list[FloatArray | None] = [norm(name) for name in names]
        for part in ("q", "k"):
            norms.append(norm(f"{prefix}self_attn.{part}_norm") if checkpoint.config.qk_norm else None)
        model.set_layer(layer, norms, [linears[f"{layer}.{part}"] for part in ("qkv", "out", "gate_up", "down")])
    embedding = packer.embedding()
    model.keep.append(linears)
    model.set_embedding(embedding.type, embedding.data, norm("model.norm"), linears["head"])
    if "screen" in linears:
        model.set_screen(linears["screen"])


def _key_offset(checkpoint: Checkpoint, layer: int, inv_freq: FloatArray) -> FloatArray:
    """The part of the keys' bias that rotary embedding leaves nearly constant over _SLOW_POSITIONS positions.

    Qwen2's key bias has entries of 100 and more in slow pairs where keys themselves vary by 5: subtracted, the error of
    int8 keys falls up to 30 times and that of bfloat16 keys 4 times (qwen2.5-coder-0.5b).
    """
    config = checkpoint.config
    bias = checkpoint.read(f"model.layers.{layer}.self_attn.k_proj.bias").reshape(config.num_kv_heads, config.head_dim)
    slow = inv_freq * _SLOW_POSITIONS < 1.0
    return np.ascontiguousarray(np.where(np.concatenate([slow, slow]), bias, np.float32(0.0)), np.float32)


def _mean_state(hidden: FloatArray, first: int, last: int) -> list[float]:
    mean: list[float] = hidden[first:last].mean(axis=0, dtype=np.float64).tolist()
    return mean
