"""quantization_config of a Hugging Face checkpoint: which linears are stored how. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from engine.weights.errors import WeightsError

QuantMethod = Literal["awq", "gptq", "fp8", "round"]
SUPPORTED = "AWQ and GPTQ in 4 bits, FP8 (e4m3) per tensor and per block"

PACKED_TYPES = ("I32", "F8_E4M3")
"""Types of quantized weights, which are no numbers without their scales."""
_PACKED = 8
"""4-bit values in an int32."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """method: whose layout; ``round``: plain weights, rounded while loading. group_size: inputs that share a scale
    (awq, gptq). block: (outputs, inputs) that share one (fp8), None for one scale per tensor. zero_offset: what is
    added to stored zero points (GPTQ's first format stores them less one). skipped: parts of module names that stay
    as they are."""

    method: QuantMethod
    group_size: int = 0
    block: tuple[int, int] | None = None
    zero_offset: int = 0
    skipped: tuple[str, ...] = ()

    def covers(self, module: str) -> bool:
        """``lm_head`` stays whole in every format."""
        return module != "lm_head" and not any(part in module for part in self.skipped)

    def tensors(self, out_features: int, in_features: int) -> dict[str, tuple[int, ...]]:
        """Suffix -> stored shape of a linear's weight."""
        if self.method == "fp8":
            if self.block is None:
                return {"weight": (out_features, in_features), "weight_scale": (1,)}
            rows, columns = (-(-size // step) for size, step in zip((out_features, in_features), self.block))
            return {"weight": (out_features, in_features), "weight_scale_inv": (rows, columns)}
        groups = in_features // self.group_size
        shared = {"qzeros": (groups, out_features // _PACKED), "scales": (groups, out_features)}
        if self.method == "awq":
            return {"qweight": (in_features, out_features // _PACKED), **shared}
        return {"qweight": (in_features // _PACKED, out_features), **shared, "g_idx": (in_features,)}

    def stored_type(self, suffix: str) -> str | None:
        """safetensors' name for what ``suffix`` must hold; None for any float type."""
        if self.method == "fp8":
            return "F8_E4M3" if suffix == "weight" else None
        return "I32" if suffix in ("qweight", "qzeros", "g_idx") else None

    def refuses(self, out_features: int, in_features: int) -> str | None:
        if self.method == "fp8":
            return None
        if in_features % self.group_size or in_features % _PACKED or out_features % _PACKED:
            return (
                f"a linear of {in_features} inputs and {out_features} outputs in groups of {self.group_size} cannot "
                f"be packed by {self.method}"
            )
        return None


def quantization_from_hf(raw: Any, source: str) -> QuantizationConfig | None:
    """``raw``: config.json's quantization_config. WeightsError for what is not supported."""
    if not raw:
        return None
    method = raw.get("quant_method") if isinstance(raw, dict) else None
    skipped = _names(raw.get("modules_to_not_convert") if isinstance(raw, dict) else None, source)
    if method == "fp8":
        return QuantizationConfig("fp8", block=_block(raw, source), skipped=skipped)
    if method not in ("awq", "gptq"):
        raise WeightsError(
            f"{source}: weights quantized with '{method or '?'}' are not supported; supported are {SUPPORTED}, "
            "GGUF and unquantized weights"
        )
    bits, group = raw.get("bits", raw.get("w_bit")), raw.get("group_size", raw.get("q_group_size"))
    version = raw.get("version", "gemm")
    if bits != 4 or type(group) is not int or group not in (32, 64, 128):
        raise WeightsError(
            f"{source}: {method} with {bits} bits in groups of {group}; 4 bits in 32, 64 or 128 are supported"
        )
    if method == "awq":
        if not isinstance(version, str) or version.lower() != "gemm":
            raise WeightsError(f"{source}: awq version '{version}' is not supported (gemm is)")
        return QuantizationConfig("awq", group_size=group, skipped=skipped)
    offset = 0 if raw.get("checkpoint_format") == "gptq_v2" else 1
    return QuantizationConfig("gptq", group_size=group, zero_offset=offset, skipped=skipped)


def _block(raw: dict[str, Any], source: str) -> tuple[int, int] | None:
    block = raw.get("weight_block_size")
    if block is None:
        return None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and 0 < size <= 4096 for size in block)
    ):
        raise WeightsError(f"{source}: weight_block_size is {block!r}, expected two numbers")
    return block[0], block[1]


def _names(value: Any, source: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise WeightsError(f"{source}: modules_to_not_convert is not a list of names")
    return tuple(re.sub(r"\.$", "", name) for name in value)
