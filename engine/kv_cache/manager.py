"""The only owner of KV memory: lease, grow, commit, release, check."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.kv_cache.allocator import PageAllocator, PageError
from engine.kv_cache.lease import Lease
from engine.kv_cache.radix_cache import RadixCache, RadixNode

logger = logging.getLogger(__name__)


class KVCacheManager:
    """Hands out pages by the sequence and remembers finished prefixes.

    Every page has one state: free (no holder), held (at least one lease), or cached (only the radix cache
    holds it). A lease holds every page from its first on, and a committed page of a lease is the tree's page,
    so a page that only the cache holds has no held page below it: all cached pages can be evicted.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, enable_prefix_cache: bool = True, strict: bool = False
    ) -> None:
        self.page_size = page_size
        self.strict = strict
        self.num_pages = num_pages
        self.enable_prefix_cache = enable_prefix_cache
        self.allocator = PageAllocator(num_pages)
        self.cache = RadixCache(num_pages, page_size)
        self.num_cached = 0
        """Pages that only the cache holds."""
        self.leaked_pages = 0
        """Pages that ``repair`` had to take back; not zero means a bug."""
        self._leases: dict[int, Lease] = {}

    @property
    def num_free(self) -> int:
        return self.allocator.num_free

    @property
    def num_available(self) -> int:
        """Pages that can be had now: free ones and evictable ones."""
        return self.allocator.num_free + self.num_cached

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def match_prefix(self, tenant: str, tokens: Sequence[int], limit: int) -> list[RadixNode]:
        if not self.enable_prefix_cache:
            return []
        return self.cache.match_prefix(tenant, tokens, limit)

    def hit_length(self, tenant: str, tokens: Sequence[int]) -> int:
        """Tokens of a prompt that need not be computed as things are."""
        return len(self.match_prefix(tenant, tokens, len(tokens) - 1)) * self.page_size

    def lease(self, tenant: str, num_tokens: int, path: Sequence[RadixNode] = (), reserve: int = 0) -> Lease | None:
        """Pages for ``num_tokens`` positions, the first of them those of ``path`` (from ``match_prefix``, in the
        same step). None, and no trace, unless ``reserve`` pages stay available besides."""
        fresh = self.pages_for(num_tokens) - len(path)
        idle_hits = sum(1 for node in path if self.allocator.refs[node.page] == 1)
        if fresh + reserve > self.num_available - idle_hits:
            return None
        for node in path:
            self._share(node.page)
        pages = [node.page for node in path] + self._take(fresh)
        lease = Lease(tenant, path[-1] if path else None, pages)
        lease.num_committed = len(path)
        self.cache.touch(path)
        self._leases[id(lease)] = lease
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` positions in all. False, and no change, where memory does not last."""
        missing = self.pages_for(num_tokens) - len(lease.pages)
        if missing <= 0:
            return True
        if missing > self.num_available:
            return False
        lease.extend(self._take(missing))
        return True

    def commit(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        """Make the full pages among the first ``num_computed`` positions findable. A page whose prefix another
        request has committed meanwhile is exchanged for that one."""
        if not self.enable_prefix_cache or (lease.num_committed + 1) * self.page_size > num_computed:
            return
        cache = self.cache
        node = lease.node or cache.root(lease.tenant)
        for index in range(lease.num_committed, num_computed // self.page_size):
            key, page = cache.page_key(tokens, index), lease.pages[index]
            child = node.children.get(key)
            if child is None:
                child = cache.insert(node, key, page)
                self.allocator.share(page)
            elif child.page != page:
                self._share(child.page)
                lease.replace(index, child.page)
                self._drop(page)
            node = child
            lease.num_committed = index + 1
        lease.node = node

    def release(self, lease: Lease, *, forget: bool = False) -> None:
        """Give every page back; a second release does nothing. ``forget``: what only this lease had in the cache
        goes too (its content is not to be trusted)."""
        if lease.released:
            return
        lease.released = True
        self._leases.pop(id(lease), None)
        for page in reversed(lease.pages):
            self._drop(page)
        lease.pages = []
        if forget:
            self._forget(lease.node)

    def flush(self) -> int:
        """Evict everything that no lease holds; returns the number of pages freed."""
        count = self.num_cached
        self._evict(count)
        return count

    def check(self) -> list[str]:
        """What is wrong with the books, in words; [] proves free + cached + held = total."""
        holders = [0] * self.num_pages
        for lease in self._leases.values():
            for page in lease.pages:
                holders[page] += 1
        held = sum(1 for count in holders if count)
        nodes = self._walk()
        problems: list[str] = []
        for node in nodes:
            if self.cache.by_page[node.page] is not node:
                problems.append(f"page {node.page} belongs to two radix nodes")
            holders[node.page] += 1
        cached = sum(1 for node in nodes if holders[node.page] == 1)
        free = self.allocator.free
        wrong = [page for page in range(self.num_pages) if holders[page] != self.allocator.refs[page]]
        if wrong:
            problems.append(f"reference counts differ from holders on pages {wrong[:8]}")
        if len(set(free)) != len(free) or any(holders[page] for page in free):
            problems.append("the free list holds a page twice or a page in use")
        if len(free) + cached + held != self.num_pages:
            problems.append(f"free {len(free)} + cached {cached} + held {held} != total {self.num_pages}")
        if cached != self.num_cached or len(nodes) != self.cache.num_nodes:
            problems.append(f"{cached} pages are cached, the books say {self.num_cached}")
        return problems

    def recover(self, error: PageError) -> None:
        """The books turned out to be wrong: raise in tests (``strict``); in production log it and rebuild them, for
        a leak check must not become an outage of its own."""
        if self.strict:
            raise error
        logger.error("KV page accounting is wrong: %s", error, exc_info=error)
        self.repair()

    def repair(self) -> int:
        """Rebuild the books from the live leases alone, dropping the cache; returns pages that had been lost."""
        used = {page for lease in self._leases.values() for page in lease.pages}
        used.update(page for page, node in enumerate(self.cache.by_page) if node is not None)
        lost = self.num_pages - len(used.union(self.allocator.free))
        self.allocator = PageAllocator(self.num_pages)
        self.cache = RadixCache(self.num_pages, self.page_size)
        self.num_cached = 0
        refs = self.allocator.refs
        for lease in self._leases.values():
            lease.num_committed, lease.node = 0, None
            for page in lease.pages:
                refs[page] += 1
        self.allocator.free = [page for page in range(self.num_pages - 1, -1, -1) if not refs[page]]
        self.leaked_pages += max(1, lost)
        logger.error("KV page accounting was repaired; %d pages had been lost", lost)
        return lost

    def _take(self, count: int) -> list[int]:
        if count > self.allocator.num_free:
            self._evict(count - self.allocator.num_free)
        pages = self.allocator.alloc(count)
        if pages is None:
            raise PageError(f"{count} pages were promised but only {self.allocator.num_free} are free")
        return pages

    def _evict(self, count: int) -> None:
        for _ in range(count):
            node = self.cache.pop_victim(self.allocator.refs)
            if node is None:
                raise PageError("pages counted as cached cannot be evicted")
            self.num_cached -= 1
            self.allocator.drop(node.page)

    def _share(self, page: int) -> None:
        if self.allocator.share(page) == 2 and self.cache.by_page[page] is not None:
            self.num_cached -= 1

    def _drop(self, page: int) -> None:
        if self.allocator.drop(page) == 1:
            node = self.cache.by_page[page]
            if node is not None:
                self.num_cached += 1
                if not node.children:
                    self.cache.queue(node)

    def _forget(self, node: RadixNode | None) -> None:
        refs = self.allocator.refs
        while node is not None and node.page >= 0 and not node.children and refs[node.page] == 1:
            self.cache.remove(node)
            self.num_cached -= 1
            self.allocator.drop(node.page)
            node = node.parent

    def _walk(self) -> list[RadixNode]:
        stack = list(self.cache.roots.values())
        nodes: list[RadixNode] = []
        while stack:
            node = stack.pop()
            if node.page >= 0:
                nodes.append(node)
            stack.extend(node.children.values())
        return nodes
