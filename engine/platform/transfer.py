"""Copies between host and device that neither of them waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 4
"""int32 values in 16 bytes."""
IntArray = npt.NDArray[np.int32]


def upload(arrays: Sequence[IntArray], device: torch.device) -> list[torch.Tensor]:
    """int32 arrays -> tensors of their shapes on ``device``, as one copy from page-locked memory. Each begins at a
    multiple of 16 bytes: Triton compiles a kernel again for pointers that are aligned otherwise."""
    starts = np.cumsum([0, *(-(-array.size // _ALIGNMENT) * _ALIGNMENT for array in arrays)])
    packed = np.zeros(starts[-1], np.int32)
    for array, start in zip(arrays, starts.tolist()):
        packed[start : start + array.size] = array.reshape(-1)
    flat = torch.from_numpy(packed)
    if device.type == "cuda":
        flat = flat.pin_memory()  # from torch's cache, which keeps it until the copy is done
    moved = flat.to(device, non_blocking=True)
    return [moved[start : start + array.size].view(array.shape) for array, start in zip(arrays, starts.tolist())]


class Download:
    """A tensor on its way to the host; ``array`` waits for it. Made on the device's current stream."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        if tensor.device.type == "cpu":
            self._host = tensor
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.Event(device=tensor.device)
        self._event.record()

    def array(self) -> npt.NDArray[np.generic]:
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()
