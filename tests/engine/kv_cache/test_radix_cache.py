from __future__ import annotations

import random

from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.radix_cache import RadixCache
from tests.engine.scale import scaled


def put(kv: KVCacheManager, tokens: list[int], tenant: str = "") -> None:
    """Compute ``tokens`` and let go of them, as a finished request does."""
    lease = kv.lease(tenant, len(tokens), kv.match_prefix(tenant, tokens, len(tokens)))
    assert lease is not None
    kv.commit(lease, tokens, len(tokens))
    kv.release(lease)


def hit(kv: KVCacheManager, tokens: list[int], tenant: str = "") -> int:
    return len(kv.match_prefix(tenant, tokens, len(tokens))) * kv.page_size


def test_only_whole_pages_match():
    kv = KVCacheManager(8, 4)
    put(kv, list(range(10)))
    assert hit(kv, list(range(10))) == 8
    assert hit(kv, list(range(7))) == 4
    assert hit(kv, [0, 1, 2, 9]) == 0
    assert len(kv.match_prefix("", list(range(10)), 7)) == 1
    assert kv.check() == []


def test_tenants_do_not_share():
    kv = KVCacheManager(8, 2)
    put(kv, [1, 2, 3, 4], "a")
    assert hit(kv, [1, 2, 3, 4], "a") == 4
    assert hit(kv, [1, 2, 3, 4], "b") == 0
    assert hit(kv, [1, 2, 3, 4]) == 0


def test_a_tenant_without_pages_is_forgotten():
    kv = KVCacheManager(4, 2)
    for tenant in range(100):
        put(kv, [1, 2, 3, 4], f"t{tenant}")
    assert len(kv.cache.roots) <= 2
    kv.flush()
    assert kv.cache.roots == {}
    assert kv.num_free == 4


def test_least_recently_used_goes_first():
    kv = KVCacheManager(4, 2)
    put(kv, [1, 1])
    put(kv, [2, 2])
    put(kv, [3, 3])
    put(kv, [1, 1])
    put(kv, [4, 4, 5, 5])
    assert hit(kv, [1, 1]) == 2
    assert hit(kv, [2, 2]) == 0


def test_a_prefix_that_many_requests_share_outlives_newer_ones():
    kv = KVCacheManager(10, 2)
    system = [7, 7, 8, 8]
    for user in range(5):
        put(kv, [*system, 100 + user, user])
    for other in range(40):
        put(kv, [1000 + other, other, 2000 + other, other])
    assert hit(kv, [*system, 1, 1]) == 4
    for other in range(200):
        put(kv, [5000 + other, other, 6000 + other, other])
    assert hit(kv, [*system, 1, 1]) == 0, "and yet it ages"


def test_no_false_prefix_hit():
    """Every hit is a prefix that was stored, token for token, among adversarial neighbours."""
    rng = random.Random(6)
    size = 4
    cache = RadixCache(4096, size)
    stored: set[tuple[int, ...]] = set()
    sequences: list[list[int]] = []
    page = 0
    while page < 4000:
        base = list(rng.choice(sequences)) if sequences and rng.random() < 0.7 else []
        tokens = [*base[: size * rng.randrange(4)], *(rng.randrange(1 << rng.choice((1, 8, 31))) for _ in range(16))]
        path = cache.match_prefix("", tokens, len(tokens))
        node = path[-1] if path else cache.root("")
        for index in range(len(path), len(tokens) // size):
            node = cache.insert(node, cache.page_key(tokens, index), page)
            page += 1
            stored.add(tuple(tokens[: (index + 1) * size]))
        sequences.append(tokens)
    lookups, hits, wrong = scaled(100_000), 0, 0
    for _ in range(lookups):
        tokens = list(rng.choice(sequences))
        for _ in range(rng.randrange(3)):
            place = rng.randrange(len(tokens) - 1)
            match rng.randrange(4):
                case 0:
                    tokens[place] ^= 1 << rng.randrange(31)
                case 1:  # a polynomial hash's neighbour
                    tokens[place] += 31
                    tokens[place + 1] -= 1
                case 2:
                    tokens[place], tokens[place + 1] = tokens[place + 1], tokens[place]
                case 3:
                    tokens.insert(place, tokens[place])
        path = cache.match_prefix("", tokens, len(tokens))
        matched = len(path) * size
        longest = next((n for n in range(len(tokens) // size * size, 0, -size) if tuple(tokens[:n]) in stored), 0)
        hits += matched > 0
        wrong += matched != longest
    print(f"prefix lookups: {lookups}, with a hit: {hits}, wrong: {wrong}")
    assert wrong == 0
    assert hits > lookups // 10


def test_eviction_cost_does_not_grow_with_the_cache():
    """Evicting one page looks at few nodes, however many there are: counted, not timed."""
    kv = KVCacheManager(20_000, 1)
    for start in range(200):
        put(kv, [start, *range(1000 + start * 100, 1000 + start * 100 + 99)])
    assert kv.num_free == 0
    looked = 0
    pop = kv.cache.pop_victim

    class Counting(list):
        def __getitem__(self, index):
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    for _ in range(1000):
        node = pop(Counting(kv.allocator.refs))
        assert node is not None
    assert looked < 10_000
