"""A checkpoint as packed linear layers for the native kernels.

Quantized GGUF tensors are packed as they are, losing nothing. Float tensors follow ``quantization``: ``none`` keeps
float32 and bfloat16, ``int8`` and ``auto`` make Q8_0 (groups of 32, one float16 scale), ``int4`` makes Q4_1.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from engine.config import Quantization
from engine.kernels.cpu.linear import Isa
from engine.kernels.cpu.loader import address
from engine.kernels.cpu.model import NativeModelError
from engine.weights.checkpoint import Checkpoint
from engine.weights.tensors import RawTensor

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]

_FLOATS: Final = ("F32", "F16", "BF16")
_TARGETS: Final = {"int8": "Q8_0", "auto": "Q8_0", "int4": "Q4_1"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of one weight in a GGUF type the kernels read. data: uint8 [rows, bytes per row], contiguous."""

    type: int
    rows: int
    columns: int
    data: ByteArray


class LinearPacker:
    """Makes packed linears of a checkpoint's tensors. Handles belong to the caller."""

    def __init__(self, lib: ctypes.CDLL, checkpoint: Checkpoint, quantization: Quantization) -> None:
        self._lib = lib
        self._checkpoint = checkpoint
        self._quantization = quantization

    def names(self) -> list[str]:
        """Every linear of the model, in the order in which a step reads them. A screen where the head can have one, and
        where vector instructions make it worth its memory."""
        layers = range(self._checkpoint.config.num_layers)
        screened = self._type(self._head()) == "Q8_0" and self._lib.cg_isa_best() > Isa.PORTABLE
        screen = ["screen"] if screened else []
        return [*(f"{i}.{part}" for i in layers for part in ("qkv", "out", "gate_up", "down")), "head", *screen]

    def permissions(self) -> int:
        """Who may read and write the checkpoint, as mode bits."""
        return self._checkpoint.permissions()

    def create(self, name: str) -> int:
        """Handle of linear ``name``; NativeModelError where its type or shape cannot be packed."""
        if name == "head":
            handle = self._stack(self._head())
        elif name == "screen":
            handle = self._screen()
        else:
            layer, part = name.split(".")
            prefix = f"model.layers.{layer}."
            if part == "qkv":
                handle = self._stack(*(f"{prefix}self_attn.{p}_proj" for p in "qkv"))
            elif part == "gate_up":
                handle = self._gate_up(prefix)
            else:
                handle = self._stack(prefix + {"out": "self_attn.o_proj", "down": "mlp.down_proj"}[part])
        if not handle:
            raise NativeModelError(f"the native kernels cannot pack the weights of {name}")
        return handle

    def embedding(self) -> Matrix:
        """Embedding rows as they are stored, so that only the rows that are looked up become resident."""
        tensor = self._checkpoint.raw("model.embed_tokens.weight")
        if self._lib.cg_row_bytes(GGMLQuantizationType[tensor.type], tensor.shape[1]):
            return _as_matrix(tensor)
        return self._matrix("model.embed_tokens")

    def head_rows(self, tokens: npt.NDArray[np.int32]) -> Matrix:
        """The head's rows of these tokens, in the type in which it is packed."""
        tensor, wanted = self._checkpoint.raw(f"{self._head()}.weight"), self._type(self._head())
        rows = RawTensor(tensor.type, (len(tokens), tensor.shape[1]), tensor.data[tokens])
        return _as_matrix(rows) if rows.type == wanted else self._quantize(rows, wanted)

    def _head(self) -> str:
        return "model.embed_tokens" if self._checkpoint.config.tie_word_embeddings else "lm_head"

    def _screen(self) -> int:
        matrix = self._matrix(self._head())
        handle = self._lib.cg_linear_create_screen(matrix.type, matrix.rows, matrix.columns, address(matrix.data))
        return int(handle or 0)

    def _stack(self, *names: str) -> int:
        matrices = [self._matrix(name) for name in names]
        biases = [self._bias(name) for name in names]
        count = len(matrices)
        formats = (ctypes.c_int * count)(*(m.type for m in matrices))
        rows = (ctypes.c_int * count)(*(m.rows for m in matrices))
        data = (ctypes.c_void_p * count)(*(address(m.data) for m in matrices))
        bias = (ctypes.c_void_p * count)(*map(address, biases))
        return int(self._lib.cg_linear_create_stack(count, formats, rows, matrices[0].columns, data, bias) or 0)

    def _gate_up(self, prefix: str) -> int:
        gate, up = self._matrix(f"{prefix}mlp.gate_proj"), self._matrix(f"{prefix}mlp.up_proj")
        handle = self._lib.cg_linear_create_gate_up(
            gate.type, up.type, gate.rows, gate.columns, address(gate.data), address(up.data)
        )
        return int(handle or 0)

    def _bias(self, name: str) -> FloatArray | None:
        full = f"{name}.bias"
        if full not in self._checkpoint.tensor_names():
            return None
        return np.ascontiguousarray(self._checkpoint.read(full), np.float32)

    def _type(self, name: str) -> str:
        """The GGUF type in which weight ``name`` is packed."""
        tensor = self._checkpoint.raw(f"{name}.weight")
        if tensor.type in _FLOATS:
            return _TARGETS.get(self._quantization, tensor.type)
        readable = self._lib.cg_row_bytes(GGMLQuantizationType[tensor.type], tensor.shape[1])
        return tensor.type if readable else "Q8_0"

    def _matrix(self, name: str) -> Matrix:
        tensor, wanted = self._checkpoint.raw(f"{name}.weight"), self._type(name)
        return _as_matrix(tensor) if tensor.type == wanted else self._quantize(tensor, wanted)

    def _quantize(self, tensor: RawTensor, target: str) -> Matrix:
        rows, columns = tensor.shape
        if tensor.type not in _FLOATS:
            tensor = RawTensor("F32", tensor.shape, tensor.to_float32().view(np.uint8).reshape(rows, -1))
        source, kind = _as_matrix(tensor), int(GGMLQuantizationType[target])
        out = np.empty((rows, int(self._lib.cg_row_bytes(kind, columns))), np.uint8)
        code = self._lib.cg_quantize_weights(kind, source.type, address(source.data), rows, columns, address(out))
        if code or out.size == 0:
            raise NativeModelError(f"{columns} columns cannot be quantized in groups of 32")
        return Matrix(kind, rows, columns, out)


def _as_matrix(tensor: RawTensor) -> Matrix:
    data = np.ascontiguousarray(tensor.data)
    return Matrix(int(GGMLQuantizationType[tensor.type]), tensor.shape[0], tensor.shape[1], data)
