"""Which KV pages are free, and how many holders the others have."""

from __future__ import annotations


class PageError(RuntimeError):
    """A page was freed twice, shared while free, or does not exist: a bug in the caller, never a client's fault."""


class PageAllocator:
    """A free list and one reference count per page. Last freed is first reused (its memory is still warm)."""

    __slots__ = ("free", "num_pages", "refs")

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError("a KV pool needs at least one page")
        self.num_pages = num_pages
        self.free = list(range(num_pages - 1, -1, -1))
        self.refs = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self.free)

    def alloc(self, count: int) -> list[int] | None:
        """``count`` pages with one holder each, or None (and nothing changed) where fewer are free."""
        if count > len(self.free):
            return None
        if count == 0:
            return []
        pages = self.free[-count:]
        del self.free[-count:]
        for page in pages:
            self.refs[page] = 1
        return pages

    def share(self, page: int) -> int:
        """Add a holder to a held page; returns the number of holders."""
        if not 0 <= page < self.num_pages or self.refs[page] < 1:
            raise PageError(f"page {page} is not held and cannot be shared")
        self.refs[page] += 1
        return self.refs[page]

    def drop(self, page: int) -> int:
        """Remove a holder; a page without holders is free. Returns the number of holders left."""
        if not 0 <= page < self.num_pages or self.refs[page] < 1:
            raise PageError(f"page {page} is freed although nobody holds it")
        self.refs[page] -= 1
        if self.refs[page] == 0:
            self.free.append(page)
        return self.refs[page]
