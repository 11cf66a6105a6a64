"""How many KV pages fit. Shared by the runners; imports no torch."""

from __future__ import annotations

from engine.config import EngineConfig

_GIB = 1 << 30
_CPU_DEFAULT_BYTES = 2 * _GIB
_CPU_DEFAULT_SHARE = 0.4
_GPU_DEFAULT_FRACTION = 0.85


class KVMemoryError(RuntimeError):
    """Not enough memory for KV pages. One line, with the option to change."""


def kv_pages(config: EngineConfig, *, page_bytes: int, free_bytes: int, total_bytes: int, on_cpu: bool) -> int:
    """Pages that fit, with the weights loaded already.

    ``kv_pages`` decides where it is set. Else ``mem_fraction_static`` of the device's memory is for weights and
    pages together: what else is in use is taken off. By default a GPU's fraction is 0.85, and a CPU gives
    pages 2 GiB or 0.4 of what is free, whichever is less. Never more than all running requests could fill.
    """
    if config.kv_pages > 0:
        return config.kv_pages
    if config.mem_fraction_static > 0 or not on_cpu:
        fraction = config.mem_fraction_static or _GPU_DEFAULT_FRACTION
        budget = int(total_bytes * fraction) - (total_bytes - free_bytes)
    else:
        budget = min(_CPU_DEFAULT_BYTES, int(free_bytes * _CPU_DEFAULT_SHARE))
    pages = max(0, budget) // page_bytes
    if pages * config.page_size < 2 * config.page_size:
        raise KVMemoryError(
            f"No memory for KV pages: {max(0, budget) >> 20} MiB are left, one page takes {page_bytes >> 10} KiB; "
            "raise --mem-fraction-static or free memory."
        )
    return pages
