"""One request's claim on KV pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from engine.kv_cache.radix_cache import RadixNode

INITIAL_CAPACITY = 8


class Lease:
    """The pages of one sequence in order. Only KVCacheManager changes it.

    pages: page ids; page ``i`` holds positions ``i * page_size .. (i + 1) * page_size - 1``.
    node: the radix node of page ``num_committed - 1``; None where nothing is committed.
    num_committed: leading pages that the radix cache knows; the lease holds a reference on each of them.
    """

    __slots__ = ("_table", "node", "num_committed", "pages", "released", "tenant")

    def __init__(self, tenant: str, node: RadixNode | None, pages: list[int]) -> None:
        self.tenant = tenant
        self.node = node
        self.num_committed = 0
        self.pages = pages
        self.released = False
        self._table = np.empty(max(INITIAL_CAPACITY, len(pages)), np.int32)
        self._table[: len(pages)] = pages

    @property
    def table(self) -> npt.NDArray[np.int32]:
        """[len(pages)] int32 view of ``pages``; read it before the lease changes, never write to it."""
        return self._table[: len(self.pages)]

    def extend(self, pages: list[int]) -> None:
        old, new = len(self.pages), len(self.pages) + len(pages)
        if new > len(self._table):
            grown = np.empty(max(new, 2 * len(self._table)), np.int32)
            grown[:old] = self._table[:old]
            self._table = grown
        self._table[old:new] = pages
        self.pages.extend(pages)

    def replace(self, index: int, page: int) -> None:
        self.pages[index] = page
        self._table[index] = page
