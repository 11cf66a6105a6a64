"""Copies between host and device that neither of them waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int32]


def upload(arrays: Sequence[IntArray], device: torch.device) -> list[torch.Tensor]:
    """int32 arrays -> tensors of their shapes on ``device``, as one copy from page-locked memory."""
    flat = torch.from_numpy(np.concatenate([np.asarray(array, np.int32).reshape(-1) for array in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory()  # from torch's cache, which keeps it until the copy is done
    moved = flat.to(device, non_blocking=True)
    parts = moved.split_with_sizes([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


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
