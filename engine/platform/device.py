"""Which torch device and dtype a model runs on, and how much memory it has. torch.cuda is used here, not above."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.platform.host import available_memory, cpu_flags, has_fast_bfloat16, total_memory, usable_threads

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class DeviceError(RuntimeError):
    """The device that was asked for cannot be used. One line, with what to do."""


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """A device, the dtype of weights and activations on it, and the CPU threads torch may use."""

    device: torch.device
    dtype: torch.dtype
    threads: int

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def use(self) -> None:
        """Make it this process's device for whatever names none (NCCL, Triton)."""
        if not self.is_cpu:
            torch.cuda.set_device(self.device)

    def free_bytes(self) -> int:
        if self.is_cpu:
            return available_memory()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def total_bytes(self) -> int:
        if self.is_cpu:
            return total_memory()
        return int(torch.cuda.mem_get_info(self.device)[1])


def resolve_device(config: EngineConfig, rank: int = 0) -> TorchDevice:
    """End of every "auto" about devices. cuda where there is one; on a CPU bfloat16 where it has instructions
    for it, else float32. ``rank`` picks the GPU under tensor parallelism."""
    wanted = config.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    threads = usable_threads(config.threads)
    if wanted == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError("No CUDA device can be used here; start with --device cpu.")
        if rank >= torch.cuda.device_count():
            raise DeviceError(f"Rank {rank} needs its own GPU, but there are {torch.cuda.device_count()}.")
        dtype = torch.bfloat16 if config.dtype == "auto" else _DTYPES[config.dtype]
        return TorchDevice(torch.device("cuda", rank), dtype, threads)
    if config.dtype == "auto":
        dtype = torch.bfloat16 if has_fast_bfloat16(cpu_flags()) else torch.float32
    else:
        dtype = _DTYPES[config.dtype]
    return TorchDevice(torch.device("cpu"), dtype, threads)
