"""CUDA graphs and memory peaks: the rest of what is torch.cuda's own. Imported where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UP_RUNS = 2


class GraphRecorder:
    """Records kernels once to launch them as one later. All recordings share their scratch memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """``run`` must read and write the same tensors every time. Returns what replays it: the result lies in the
        same memory each time. It is called a few times first, so that nothing is compiled or tuned while recording."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Memory that ``run`` needs at its peak beyond what is allocated before it; all of it is free again after."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    peak = int(torch.cuda.max_memory_allocated(device)) - int(before)
    torch.cuda.empty_cache()
    return peak
