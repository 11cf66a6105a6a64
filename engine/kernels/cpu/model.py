"""ctypes door to the composed decoder (model.h): shapes and types are checked here, arithmetic is in C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from engine.executor.forward_batch import ForwardBatch
from engine.kernels.cpu.loader import address

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

KV_TYPES: Final = {"float32": 0, "bfloat16": 1, "int8": 2}
PROFILE_OPS: Final = ("embed", "norm", "qkv", "attention", "out", "gate_up", "down", "head", "argmax")
_ERRORS: Final = {1: "an argument is out of range", 2: "out of memory", 3: "not supported"}


class NativeModelError(RuntimeError):
    """The native kernels refused a call; the message says which and why."""


class CModelConfig(Structure):
    """cg_model_config."""

    _fields_ = (
        *((name, c_int32) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")),
        *((name, c_int32) for name in ("rotary_dim", "intermediate_size", "vocab_size")),
        *((name, c_float) for name in ("rms_eps", "score_scale", "rope_attention", "embedding_scale")),
    )


class _Batch(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("rows", "tokens", "pages_per_row", "num_logits")),
        *((name, c_void_p) for name in ("input_ids", "positions", "cu_seqlens", "seq_lens", "page_table")),
        *((name, c_void_p) for name in ("slot_mapping", "logits_index")),
    )


class _Profile(Structure):
    _fields_ = (
        ("seconds", c_double * len(PROFILE_OPS)),
        ("fastest", c_double * len(PROFILE_OPS)),
        ("calls", c_int64 * len(PROFILE_OPS)),
    )


@dataclass(frozen=True, slots=True)
class OpProfile:
    """Seconds in all, seconds of the fastest call, and calls of one kind of operation."""

    seconds: float
    fastest: float
    calls: int

    @property
    def undisturbed(self) -> float:
        """What all calls would have taken at the fastest one's speed: near the truth on a machine that is shared."""
        return self.fastest * self.calls


class _Output(Structure):
    _fields_ = (
        ("logits", POINTER(c_float)),
        ("mask", c_void_p),
        ("masked", c_void_p),
        ("argmax", c_void_p),
        ("hidden", c_void_p),
        ("states", c_void_p),
        ("argmax_only", c_int32),
    )


def _check(code: int, what: str) -> None:
    if code:
        raise NativeModelError(f"{what}: {_ERRORS.get(code, f'error {code}')}")


def _expect(name: str, array: npt.NDArray[Any] | None, dtype: type, shape: tuple[int, ...]) -> None:
    if array is not None and (array.dtype != dtype or array.shape != shape):
        raise ValueError(f"{name} is {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}")


class NativeModel:
    """One decoder: borrowed linears, own KV memory, one C call per step. Not thread-safe.

    ``lib`` comes from ``loader.load``, ``context`` is a cg_ctx. Linears and raw embeddings must outlive the model;
    ``keep`` holds whatever owns them.
    """

    def __init__(self, lib: ctypes.CDLL, context: int, config: CModelConfig, inv_freq: FloatArray) -> None:
        self._lib = lib
        self.config = config
        self.keep: list[object] = []
        inv_freq = np.ascontiguousarray(inv_freq, np.float32)
        if inv_freq.shape != (config.rotary_dim // 2,):
            raise ValueError(f"inv_freq has shape {inv_freq.shape}, expected ({config.rotary_dim // 2},)")
        self._model: int | None = lib.cg_model_create(context, byref(config), address(inv_freq))
        if not self._model:
            raise NativeModelError("the native kernels do not support these dimensions")

    def close(self) -> None:
        """Free the KV memory. Linears and the context are the caller's."""
        if self._model:
            self._lib.cg_model_destroy(self._model)
            self._model = None
            self.keep.clear()

    def set_layer(self, layer: int, norms: Sequence[FloatArray | None], linears: Sequence[int]) -> None:
        """``norms``: attention, ffn, q, k (the last two may be None); ``linears``: qkv, out, gate_up, down handles."""
        widths = (self.config.hidden_size, self.config.hidden_size, self.config.head_dim, self.config.head_dim)
        for norm, width in zip(norms, widths, strict=True):
            if norm is not None and (norm.dtype != np.float32 or norm.shape != (width,)):
                raise ValueError(f"a norm has {norm.dtype} {norm.shape}, expected float32 ({width},)")
        handles = (c_void_p * 4)(*linears)
        _check(self._lib.cg_model_set_layer(self._model, layer, *map(address, norms), handles), f"layer {layer}")

    def set_key_offset(self, layer: int, offset: FloatArray) -> None:
        """Subtract ``offset`` [kv_heads, head_dim] float32 from every rotated key before it is stored (see model.h)."""
        _expect("offset", offset, np.float32, (self.config.num_kv_heads, self.config.head_dim))
        _check(self._lib.cg_model_set_key_offset(self._model, layer, address(offset)), f"layer {layer}")

    def set_embedding(self, fmt: int, raw: npt.NDArray[np.uint8], final_norm: FloatArray, head: int) -> None:
        """``raw``: [vocab, bytes per row] in GGUF type ``fmt``; ``head``: a linear handle [vocab, hidden]."""
        self.keep.append(raw)
        _check(self._lib.cg_model_set_embedding(self._model, fmt, address(raw), address(final_norm), head), "embedding")

    def set_screen(self, screen: int) -> None:
        """``screen``: a handle of cg_linear_create_screen for the head."""
        _check(self._lib.cg_model_set_screen(self._model, screen), "screen")

    def page_bytes(self, page_size: int, kv_type: str) -> int:
        """KV memory of one page over all layers."""
        return int(self._lib.cg_kv_page_bytes(byref(self.config), page_size, KV_TYPES[kv_type]))

    def set_kv(self, num_pages: int, page_size: int, kv_type: str) -> None:
        """Reserve address space for the pages; memory is taken as they are first written."""
        _check(self._lib.cg_model_set_kv(self._model, num_pages, page_size, KV_TYPES[kv_type]), "KV memory")

    def copy_page(self, source: int, target: int) -> None:
        _check(self._lib.cg_model_copy_page(self._model, source, target), f"copy of page {source} to {target}")

    def forward(
        self,
        batch: ForwardBatch,
        *,
        argmax: IntArray | None = None,
        mask: IntArray | None = None,
        masked: npt.NDArray[np.uint8] | None = None,
        hidden: FloatArray | None = None,
        states: FloatArray | None = None,
        argmax_only: bool = False,
    ) -> FloatArray:
        """One step; returns logits [L, vocab] float32, a view that the next step overwrites.

        argmax: [L] int32, filled with each row's best allowed token (lowest id of equals; -1 where none is above -inf;
        a NaN wins wherever it stands).
        mask: [L, ceil(vocab / 32)] int32 allowed tokens for argmax; masked: [L] uint8, 1 where the mask row counts.
        hidden: [T, hidden] float32, filled with the states after the final norm; states: [L, hidden], with those of the
        tokens whose logits are wanted.
        argmax_only: of the logits only those at ``argmax`` will be read. With a screen, few of the others are computed.
        Raises NativeModelError for ids, positions or pages out of range, with nothing written.
        """
        count = len(batch.logits_index)
        c_batch, held = _c_batch(batch)
        width, words = self.config.hidden_size, -(-self.config.vocab_size // 32)
        _expect("argmax", argmax, np.int32, (count,))
        _expect("mask", mask, np.int32, (count, words))
        _expect("masked", masked, np.uint8, (count,))
        _expect("hidden", hidden, np.float32, (len(held[0]), width))
        _expect("states", states, np.float32, (count, width))
        arrays = map(address, (mask, masked, argmax, hidden, states))
        output = _Output(None, *arrays, argmax_only)
        _check(self._lib.cg_model_forward(self._model, byref(c_batch), byref(output)), "forward")
        if count == 0:
            return np.empty((0, self.config.vocab_size), np.float32)
        return np.ctypeslib.as_array(output.logits, (count, self.config.vocab_size))

    def attention(self, layer: int, batch: ForwardBatch, qkv: FloatArray) -> FloatArray:
        """Rotary, KV write, attention of a layer: qkv [T, (heads + 2 kv_heads) * head_dim] to [T, heads * head_dim]."""
        c, (c_batch, held) = self.config, _c_batch(batch)
        _expect("qkv", qkv, np.float32, (len(held[0]), (c.num_heads + 2 * c.num_kv_heads) * c.head_dim))
        out = np.empty((len(qkv), c.num_heads * c.head_dim), np.float32)
        _check(
            self._lib.cg_model_attention(self._model, layer, byref(c_batch), address(qkv), address(out)), "attention"
        )
        return out

    def head(self, hidden: FloatArray) -> FloatArray:
        """Logits [n, vocab] of hidden states [n, hidden] after the final norm."""
        out = np.empty((len(hidden), self.config.vocab_size), np.float32)
        _check(self._lib.cg_model_head(self._model, address(hidden), len(hidden), address(out)), "head")
        return out

    def profile(self, mode: Literal["off", "wall", "cpu"]) -> None:
        """Count what operations take on the first thread. ``cpu``: processor time, which other processes disturb
        little; meaningful with one thread."""
        self._lib.cg_model_set_profile(self._model, ("off", "wall", "cpu").index(mode))

    def take_profile(self) -> tuple[int, dict[str, OpProfile]]:
        """Steps since the last call, and what their operations took on the first thread while profiling was on."""
        profile = _Profile()
        steps = int(self._lib.cg_model_profile(self._model, byref(profile)))
        columns = zip(PROFILE_OPS, profile.seconds, profile.fastest, profile.calls, strict=True)
        return steps, {name: OpProfile(seconds, fastest, calls) for name, seconds, fastest, calls in columns}


def _c_batch(batch: ForwardBatch) -> tuple[_Batch, tuple[IntArray, ...]]:
    names = ("input_ids", "positions", "cu_seqlens", "seq_lens", "page_table", "slot_mapping", "logits_index")
    held = tuple(np.ascontiguousarray(getattr(batch, name), np.int32) for name in names)
    rows, tokens = len(held[3]), len(held[0])
    if len(held[1]) != tokens or len(held[5]) != tokens or len(held[2]) != rows + 1 or held[4].shape[:1] != (rows,):
        raise ValueError("the arrays of the batch do not belong together")
    pages = held[4].shape[1] if held[4].ndim == 2 else 0
    return _Batch(rows, tokens, pages, len(held[6]), *map(address, held)), held
