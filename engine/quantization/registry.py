"""Name of a quantization -> its LinearMethod."""

from __future__ import annotations

from typing import Final

from engine.quantization.awq import read_awq
from engine.quantization.base import LinearMethod
from engine.quantization.fp8 import read_fp8
from engine.quantization.gptq import read_gptq
from engine.quantization.packed import PackedLinearMethod, Reader
from engine.quantization.round_to_nearest import read_int4, read_int8
from engine.quantization.unquantized import UnquantizedLinearMethod
from engine.weights.quantization import QuantizationConfig

_READERS: Final[dict[str, Reader]] = {"awq": read_awq, "gptq": read_gptq, "fp8": read_fp8}


_ROUNDED: Final[dict[str, Reader]] = {"int8": read_int8, "int4": read_int4}


def linear_method(name: str, stored: QuantizationConfig | None = None, *, on_gpu: bool = False) -> LinearMethod:
    """``int8`` and ``int4``: float weights rounded while loading, on a GPU (on a CPU the native runner does that).
    ``stored``: how the checkpoint's linears are quantized; that decides for ``auto`` and ``none``. Else weights
    are in the model's dtype, and GGUF blocks are dequantized while loading."""
    if name in ("auto", "none"):
        if stored is None:
            return UnquantizedLinearMethod()
        return PackedLinearMethod(stored, _READERS[stored.method])
    if on_gpu and stored is None and name in _ROUNDED:
        return PackedLinearMethod(QuantizationConfig("round"), _ROUNDED[name])
    raise ValueError(
        f"--quantization {name} is not supported by the torch runner on this device or checkpoint (auto and none are)."
    )
