from __future__ import annotations

import pytest

from engine.kv_cache.allocator import PageError
from engine.kv_cache.manager import KVCacheManager


def snapshot(kv: KVCacheManager) -> tuple:
    return (list(kv.allocator.free), list(kv.allocator.refs), kv.num_cached, kv.num_leases, kv.cache.clock)


def test_lease_is_all_or_nothing():
    kv = KVCacheManager(4, 4)
    first = kv.lease("", 9)
    assert first is not None
    assert len(first.pages) == 3
    before = snapshot(kv)
    assert kv.lease("", 5) is None
    assert snapshot(kv) == before
    assert not kv.grow(first, 17)
    assert snapshot(kv) == before
    assert kv.grow(first, 16)
    assert first.table.tolist() == first.pages
    assert kv.num_available == 0


def test_a_refused_lease_leaves_cached_pages_as_they_were():
    kv = KVCacheManager(4, 2)
    lease = kv.lease("", 4)
    assert lease is not None
    kv.commit(lease, [1, 2, 3, 4], 4)
    kv.release(lease)
    before = snapshot(kv)
    path = kv.match_prefix("", [1, 2, 3, 4, 5], 5)
    assert len(path) == 2
    assert kv.lease("", 9, path) is None
    assert kv.lease("", 5, path, reserve=2) is None, "its own hits are no reserve"
    assert snapshot(kv) == before
    assert kv.lease("", 5, path, reserve=1) is not None
    assert kv.check() == []


def test_hits_are_not_evicted_for_the_same_lease():
    kv = KVCacheManager(3, 2)
    lease = kv.lease("", 6)
    assert lease is not None
    kv.commit(lease, [1, 1, 2, 2, 3, 3], 6)
    kv.release(lease)
    path = kv.match_prefix("", [1, 1, 9, 9], 4)
    lease = kv.lease("", 6, path)
    assert lease is not None
    assert lease.pages[0] == path[0].page
    assert len(set(lease.pages)) == 3
    assert kv.check() == []


def test_release_twice_is_harmless():
    kv = KVCacheManager(4, 2)
    lease = kv.lease("", 5)
    assert lease is not None
    kv.release(lease)
    kv.release(lease)
    assert kv.num_free == 4
    assert kv.check() == []


def test_a_second_release_forgets_nothing_that_others_found_meanwhile():
    kv = KVCacheManager(4, 2)
    lease = kv.lease("", 4)
    assert lease is not None
    kv.commit(lease, [1, 1, 2, 2], 4)
    kv.release(lease)
    kv.release(lease, forget=True)
    assert len(kv.match_prefix("", [1, 1, 2, 2, 3], 5)) == 2
    assert kv.check() == []


def test_two_requests_that_compute_the_same_prefix_end_up_on_one_page():
    kv = KVCacheManager(8, 2)
    one, two = kv.lease("", 5), kv.lease("", 5)
    assert one is not None
    assert two is not None
    kv.commit(one, [1, 2, 3, 4, 5], 4)
    kv.commit(two, [1, 2, 3, 4, 6], 4)
    assert one.pages[:2] == two.pages[:2] == two.table.tolist()[:2]
    assert one.pages[2] != two.pages[2]
    assert kv.check() == []
    kv.release(one)
    assert kv.num_cached == 0, "the other one still holds them"
    kv.release(two)
    assert kv.num_cached == 2
    assert kv.check() == []


def test_forget_takes_back_what_only_this_lease_had():
    kv = KVCacheManager(8, 2)
    good = kv.lease("", 2)
    assert good is not None
    kv.commit(good, [1, 1], 2)
    kv.release(good)
    bad = kv.lease("", 6, kv.match_prefix("", [1, 1, 2, 2, 3, 3], 6))
    assert bad is not None
    kv.commit(bad, [1, 1, 2, 2, 3, 3], 6)
    kv.release(bad, forget=True)
    assert kv.match_prefix("", [1, 1, 2, 2, 3, 3], 6) == []
    assert kv.num_free == 8
    assert kv.check() == []


def test_forget_keeps_what_others_hold():
    kv = KVCacheManager(8, 2)
    bad = kv.lease("", 4)
    assert bad is not None
    kv.commit(bad, [1, 1, 2, 2], 4)
    other = kv.lease("", 4, kv.match_prefix("", [1, 1, 5, 5], 4))
    assert other is not None
    kv.release(bad, forget=True)
    assert kv.check() == []
    assert other.pages[0] not in kv.allocator.free
    kv.release(other)
    assert kv.check() == []


def test_flush_spares_held_pages():
    kv = KVCacheManager(8, 2)
    held, done = kv.lease("", 2), kv.lease("", 4)
    assert held is not None
    assert done is not None
    kv.commit(held, [1, 1], 2)
    kv.commit(done, [2, 2, 3, 3], 4)
    kv.release(done)
    assert kv.flush() == 2
    assert kv.num_free == 7
    assert kv.check() == []


def test_without_prefix_cache_nothing_is_kept():
    kv = KVCacheManager(4, 2, enable_prefix_cache=False)
    lease = kv.lease("", 4)
    assert lease is not None
    kv.commit(lease, [1, 1, 2, 2], 4)
    kv.release(lease)
    assert kv.match_prefix("", [1, 1, 2, 2], 4) == []
    assert kv.num_free == 4


def corrupt_lost_page(kv: KVCacheManager) -> None:
    kv.allocator.free.pop()


def corrupt_page_twice(kv: KVCacheManager) -> None:
    kv.allocator.free.append(kv.allocator.free[0])


def corrupt_held_page_in_free_list(kv: KVCacheManager) -> None:
    kv.allocator.free.append(next(page for page, refs in enumerate(kv.allocator.refs) if refs))


def corrupt_refs(kv: KVCacheManager) -> None:
    kv.allocator.refs[next(page for page, refs in enumerate(kv.allocator.refs) if refs)] += 1


def corrupt_counter(kv: KVCacheManager) -> None:
    kv.num_cached += 1


@pytest.mark.parametrize(
    "corrupt",
    [corrupt_lost_page, corrupt_page_twice, corrupt_held_page_in_free_list, corrupt_refs, corrupt_counter],
)
def test_every_corruption_is_found_and_repaired(corrupt):
    kv = KVCacheManager(10, 2)
    live, done = kv.lease("", 6), kv.lease("", 4)
    assert live is not None
    assert done is not None
    kv.commit(live, [1, 1, 2, 2, 3, 3], 6)
    kv.commit(done, [5, 5, 6, 6], 4)
    kv.release(done)
    assert kv.check() == []
    corrupt(kv)
    assert kv.check() != []
    kv.repair()
    assert kv.check() == []
    assert kv.leaked_pages > 0
    assert kv.num_free == 7, "the live lease keeps its pages, the cache is dropped"
    kv.commit(live, [1, 1, 2, 2, 3, 3], 6)
    assert kv.check() == []
    found = kv.match_prefix("", [1, 1, 2, 2, 3, 3, 4], 6)
    assert [node.page for node in found] == live.pages, "what was computed is found again"
    assert kv.match_prefix("", [2, 2, 3, 3], 4) == [], "and nothing is found under another prefix"
    kv.release(live)
    assert kv.check() == []


def test_a_promise_that_cannot_be_kept_is_loud():
    kv = KVCacheManager(2, 2)
    kv.num_cached = 5
    with pytest.raises(PageError):
        kv.lease("", 12)
