"""Name of a quantization -> its LinearMethod."""

from __future__ import annotations

from engine.quantization.base import LinearMethod
from engine.quantization.unquantized import UnquantizedLinearMethod


def linear_method(name: str) -> LinearMethod:
    """``auto`` and ``none``: weights in the model's dtype, GGUF blocks dequantized while loading."""
    if name in ("auto", "none"):
        return UnquantizedLinearMethod()
    raise ValueError(f"--quantization {name} is not supported by the torch runner (auto and none are).")
