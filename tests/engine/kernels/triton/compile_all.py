"""Compiles every kernel for an H100-class GPU down to machine code, which needs no GPU:
``python -m tests.engine.kernels.triton.compile_all``. Prints one line per kernel; the interpreter must be off."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.triton import (
    decode_attention,
    gate_up,
    grouped_mlp,
    grouped_quant,
    prefill_attention,
    quant_linear,
    rms_norm,
    rotary_kv,
    sample,
    silu_and_mul,
)

HOPPER = GPUTarget("cuda", 90, 32)
MAX_SHARED = 227 * 1024


def compile_kernel(kernel: Any, constants: dict[str, Any], pointers: dict[str, str], **options: int) -> None:
    """Arguments that are not named are bf16 pointers where they end in _ptr or _pool, else 32-bit integers."""
    signature = {}
    for name in kernel.arg_names:
        default = "*bf16" if name.endswith(("_ptr", "_pool")) else "fp32" if name in ("scale", "eps") else "i32"
        signature[name] = "constexpr" if name in constants else pointers.get(name, default)
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(kernel, signature, places), target=HOPPER, options=options)
    assert len(compiled.asm["cubin"]) > 0
    assert compiled.metadata.shared <= MAX_SHARED
    print(kernel.__name__, constants, f"{compiled.metadata.shared} bytes of shared memory", flush=True)


PAGED = {"table_ptr": "*i32", "lens_ptr": "*i32", "bounds_ptr": "*i32", "part_ptr": "*fp32", "lse_ptr": "*fp32"}
GROUPED = {"route_ptr": "*fp32", "pair_ptr": "*i32", "owner_ptr": "*i32"}
SAMPLE = {
    "logits_ptr": "*fp32",
    "out_ptr": "*i64",
    "mask_ptr": "*i32",
    "top_k_ptr": "*i32",
    **{f"{name}_ptr": "*fp32" for name in ("temperature", "top_p", "min_p", "u")},
}


def main() -> None:
    compile_kernel(silu_and_mul._silu_and_mul_kernel, {"BLOCK": 1024}, {})
    compile_kernel(rms_norm._rms_norm_kernel, {"HAS_RESIDUAL": True, "BLOCK": 4096}, {})
    rope = {"cos_ptr": "*fp32", "sin_ptr": "*fp32", "slots_ptr": "*i64"}
    compile_kernel(rotary_kv._rotary_kv_kernel, {"BLOCK": 64}, rope)
    attention = {"GROUP": 4, "BLOCK_D": 128, "BLOCK_N": 64, "WIDEN": False}
    compile_kernel(decode_attention._decode_kernel, {**attention, "BLOCK_G": 16}, PAGED)
    compile_kernel(decode_attention._merge_kernel, {"BLOCK_S": 32, "BLOCK_D": 128}, PAGED)
    compile_kernel(prefill_attention._prefill_kernel, {**attention, "BLOCK_M": 64}, PAGED)
    blocks = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "WIDEN": False}
    compile_kernel(gate_up._gate_up_kernel, blocks, {})
    compile_kernel(grouped_mlp._grouped_kernel, {**blocks, "GATED": True}, GROUPED)
    compile_kernel(grouped_mlp._grouped_kernel, {**blocks, "GATED": False}, {**GROUPED, "out_ptr": "*fp32"})
    compile_kernel(sample._sample_kernel, {"MASKED": True, "BLOCK": 4096}, SAMPLE, num_warps=16)
    scales = {"scale_ptr": "*fp16", "zero_ptr": "*u8"}
    for kind, data in (("int8", "*i8"), ("int4", "*u8"), ("fp8", "*u8")):
        flags = {
            "INT4": kind == "int4",
            "FP8": kind == "fp8",
            "ZEROS": kind == "int4",
            "ORDERED": kind == "int4",
            "BIAS": True,
        }
        pointers = {**scales, "data_ptr": data, "order_ptr": "*i32"}
        compile_kernel(quant_linear._quant_linear_kernel, {**blocks, **flags}, pointers)
        del flags["BIAS"]
        for gated in (True, False):
            out = {} if gated else {"out_ptr": "*fp32"}
            constants = {**blocks, **flags, "GATED": gated}
            compile_kernel(grouped_quant._grouped_quant_kernel, constants, {**GROUPED, **pointers, **out})


if __name__ == "__main__":
    main()
