"""Name of a quantization -> its LinearMethod."""

from __future__ import annotations

from typing import Final

from engine.quantization.awq import read_awq
from engine.quantization.base import LinearMethod
from engine.quantization.fp8 import read_fp8
from engine.quantization.gptq import read_gptq
from engine.quantization.packed import PackedLinearMethod, Reader
from engine.quantization.unquantized import UnquantizedLinearMethod
from engine.weights.quantization import QuantizationConfig, QuantMethod

_READERS: Final[dict[QuantMethod, Reader]] = {"awq": read_awq, "gptq": read_gptq, "fp8": read_fp8}


def linear_method(name: str, stored: QuantizationConfig | None = None) -> LinearMethod:
    """``stored``: how the checkpoint's linears are quantized; that decides for ``auto`` and ``none``. Else weights
    are in the model's dtype, and GGUF blocks are dequantized while loading."""
    if name in ("auto", "none"):
        if stored is None:
            return UnquantizedLinearMethod()
        return PackedLinearMethod(stored, _READERS[stored.method])
    raise ValueError(f"--quantization {name} is not supported by the torch runner (auto and none are).")
