from __future__ import annotations

import pytest

from engine.kv_cache.allocator import PageAllocator, PageError


def test_alloc_is_all_or_nothing():
    pages = PageAllocator(4)
    first = pages.alloc(3)
    assert first is not None
    assert len(set(first)) == 3
    assert pages.alloc(2) is None
    assert pages.num_free == 1
    assert pages.alloc(0) == []
    last = pages.alloc(1)
    assert last is not None
    assert sorted(first + last) == [0, 1, 2, 3]


def test_double_free_raises():
    pages = PageAllocator(2)
    [page] = pages.alloc(1) or []
    assert pages.drop(page) == 0
    with pytest.raises(PageError, match="nobody holds"):
        pages.drop(page)
    assert pages.num_free == 2


def test_shared_page_is_free_only_after_its_last_holder():
    pages = PageAllocator(1)
    [page] = pages.alloc(1) or []
    assert pages.share(page) == 2
    assert pages.drop(page) == 1
    assert pages.num_free == 0
    assert pages.drop(page) == 0
    assert pages.num_free == 1


@pytest.mark.parametrize("page", [-1, 2, 99])
def test_pages_that_do_not_exist(page):
    pages = PageAllocator(2)
    with pytest.raises(PageError):
        pages.drop(page)
    with pytest.raises(PageError):
        pages.share(page)


def test_a_free_page_cannot_be_shared():
    with pytest.raises(PageError):
        PageAllocator(2).share(0)


def test_no_pages_no_pool():
    with pytest.raises(ValueError, match="at least one"):
        PageAllocator(0)
