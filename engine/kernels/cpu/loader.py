"""The compiled CPU kernels as a ctypes library, built at first use."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_void_p
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.kernels.cpu.build import BuildUnavailable, build

ABI_VERSION: Final = 4


class RowsStruct(ctypes.Structure):
    """cg_rows."""

    _fields_ = (("kind", c_int32), ("k", c_int32), ("data", c_void_p))


_P, _I = c_void_p, c_int
_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "cg_abi_version": (_I, []),
    "cg_isa_best": (_I, []),
    "cg_ctx_create": (_P, [_I, _I]),
    "cg_ctx_destroy": (None, [_P]),
    "cg_ctx_threads": (_I, [_P]),
    "cg_ctx_isa": (_I, [_P]),
    "cg_rows_bytes": (c_size_t, [_I, _I, _I]),
    "cg_rows_init": (None, [_P, _I, _I, _I, _P]),
    "cg_rows_quantize": (None, [_P, _P, _P, _I, _I]),
    "cg_linear_create": (_P, [_I, _I, _I, _P, _P]),
    "cg_linear_create_gate_up": (_P, [_I, _I, _I, _I, _P, _P]),
    "cg_linear_create_stack": (_P, [_I, _P, _P, _I, _P, _P]),
    "cg_linear_create_screen": (_P, [_I, _I, _I, _P]),
    "cg_linear_destroy": (None, [_P]),
    "cg_linear_blob": (_P, [_P, POINTER(c_size_t)]),
    "cg_linear_from_blob": (_P, [_P, c_size_t]),
    "cg_linear_n": (_I, [_P]),
    "cg_linear_k": (_I, [_P]),
    "cg_linear_rows_kind": (_I, [_P]),
    "cg_linear_is_gate_up": (_I, [_P]),
    "cg_linear_bytes": (c_size_t, [_P]),
    "cg_linear_forward": (None, [_P, _P, _P, _P, _I, _I, _I]),
    "cg_gate_up_forward": (None, [_P, _P, _P, _P, _I]),
    "cg_linear_row": (_I, [_P, _I, _P]),
    "cg_row_bytes": (c_size_t, [_I, _I]),
    "cg_dequant_row": (_I, [_I, _P, _I, _P]),
    "cg_embed_rows": (_I, [_I, _P, _I, _I, _P, _I, _P, _I]),
    "cg_measure_read": (None, [_P, _P, c_size_t]),
    "cg_measure_dots": (c_double, [_P, _I]),
    "cg_quantize_weights": (_I, [_I, _I, _P, _I, _I, _P]),
    "cg_model_create": (_P, [_P, _P, _P]),
    "cg_model_destroy": (None, [_P]),
    "cg_model_set_layer": (_I, [_P, _I, _P, _P, _P, _P, _P]),
    "cg_model_set_key_offset": (_I, [_P, _I, _P]),
    "cg_model_set_embedding": (_I, [_P, _I, _P, _P, _P]),
    "cg_model_set_screen": (_I, [_P, _P]),
    "cg_model_set_kv": (_I, [_P, _I, _I, _I]),
    "cg_kv_page_bytes": (c_size_t, [_P, _I, _I]),
    "cg_model_copy_page": (_I, [_P, _I, _I]),
    "cg_model_forward": (_I, [_P, _P, _P]),
    "cg_model_head": (_I, [_P, _P, _I, _P]),
    "cg_model_set_profile": (None, [_P, _I]),
    "cg_model_profile": (c_int64, [_P, _P]),
    "cg_model_attention": (_I, [_P, _I, _P, _P, _P]),
    "cg_rms_norm": (None, [_P, _P, _P, _P, _I, _I, c_float]),
    "cg_rotate": (None, [_P, _P, _P, c_float, _P, _P, _I, _I, _I]),
    "cg_argmax": (_I, [_P, _P, _P, _I]),
}


@cache
def load() -> ctypes.CDLL:
    """The library, compiled first if need be. Raises BuildUnavailable where that is impossible."""
    path = build()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildUnavailable(f"{path} does not load: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    found = int(lib.cg_abi_version())
    if found != ABI_VERSION:
        raise BuildUnavailable(f"{path} has interface version {found}, expected {ABI_VERSION}")
    return lib


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Where the array's data lies; it must be C-contiguous and outlive the call."""
    if array is None:
        return None
    if not array.flags.c_contiguous:
        raise ValueError("the kernels need C-contiguous arrays")
    return array.ctypes.data


def as_bytes(pointer: int, size: int) -> npt.NDArray[np.uint8]:
    """A view of ``size`` bytes at a C address."""
    return np.ctypeslib.as_array(ctypes.cast(pointer, POINTER(c_uint8)), (size,))
