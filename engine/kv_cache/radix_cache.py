"""Which token prefixes already have KV pages.

A tree of whole pages: an edge is the exact tuple of a page's token ids, so two prefixes meet only where their
ids are equal (no hash stands in for tokens). A partly filled page is never shared. Every tenant
has its own root. The idea is SGLang's RadixAttention (Zheng et al., 2024, arXiv:2312.07104).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from engine.kv_cache.allocator import PageError

PageKey = tuple[int, ...]

HIT_BONUS = 16
MAX_BONUS_HITS = 32
"""A prefix that was hit h times outlives min(h, 32) * 16 requests more than plain LRU would let it (aged LFU)."""


class RadixNode:
    """One cached page under its parent's prefix. A root has page -1, and only a root names its tenant."""

    __slots__ = ("children", "hits", "key", "last_used", "page", "parent", "queued", "tenant")

    def __init__(self, parent: RadixNode | None, key: PageKey, page: int, now: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[PageKey, RadixNode] = {}
        self.last_used = now
        self.hits = 0
        self.queued = False
        self.tenant = ""

    @property
    def rank(self) -> int:
        """Least is evicted first."""
        return self.last_used + HIT_BONUS * min(self.hits, MAX_BONUS_HITS)


class RadixCache:
    """Prefix tree and eviction order. It knows pages by number; who holds them is KVCacheManager's business.

    Eviction looks only at leaves, through a heap with at most one entry per node whose rank may be stale (too
    low): popping repairs it. Cost per evicted page is O(log n).
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.roots: dict[str, RadixNode] = {}
        self.by_page: list[RadixNode | None] = [None] * num_pages
        self.num_nodes = 0
        self.clock = 0
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._entries = 0

    def root(self, tenant: str) -> RadixNode:
        node = self.roots.get(tenant)
        if node is None:
            node = self.roots[tenant] = RadixNode(None, (), -1, self.clock)
            node.tenant = tenant
        return node

    def page_key(self, tokens: Sequence[int], index: int) -> PageKey:
        return tuple(tokens[index * self.page_size : (index + 1) * self.page_size])

    def match_prefix(self, tenant: str, tokens: Sequence[int], limit: int) -> list[RadixNode]:
        """Nodes of the longest cached prefix, whole pages within ``tokens[:limit]``; changes nothing."""
        node = self.roots.get(tenant)
        path: list[RadixNode] = []
        if node is None:
            return path
        size = self.page_size
        for start in range(0, limit - size + 1, size):
            node = node.children.get(tuple(tokens[start : start + size]))
            if node is None:
                break
            path.append(node)
        return path

    def touch(self, path: Sequence[RadixNode]) -> None:
        """A new tick of the logical clock; every node of ``path`` was hit at it."""
        self.clock += 1
        for node in path:
            node.last_used = self.clock
            node.hits += 1

    def insert(self, parent: RadixNode, key: PageKey, page: int) -> RadixNode:
        if self.by_page[page] is not None or key in parent.children:
            raise PageError(f"page {page} or its prefix is cached already")
        node = RadixNode(parent, key, page, self.clock)
        parent.children[key] = node
        self.by_page[page] = node
        self.num_nodes += 1
        return node

    def queue(self, node: RadixNode) -> None:
        """Make an unheld leaf known to ``pop_victim``."""
        if not node.queued:
            node.queued = True
            self._entries += 1
            heappush(self._heap, (node.rank, self._entries, node))

    def pop_victim(self, refs: Sequence[int]) -> RadixNode | None:
        """Remove the unheld leaf of least rank from the tree and return it. ``refs[page]`` is 1 where only the
        cache holds a page."""
        while self._heap:
            rank, _, node = heappop(self._heap)
            node.queued = False
            if self.by_page[node.page] is not node or node.children or refs[node.page] != 1:
                continue
            if node.rank > rank:
                self.queue(node)
                continue
            self.remove(node)
            parent = node.parent
            if parent is not None and parent.page >= 0 and not parent.children and refs[parent.page] == 1:
                self.queue(parent)
            return node
        return None

    def remove(self, node: RadixNode) -> None:
        """Take a leaf out of the tree; a root without children goes too."""
        parent = node.parent
        if parent is None or node.children:
            raise PageError("only a leaf can be removed")
        del parent.children[node.key]
        self.by_page[node.page] = None
        self.num_nodes -= 1
        if parent.parent is None and not parent.children:
            self.roots.pop(parent.tenant, None)
