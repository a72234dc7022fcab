"""Pages: held, idle, free; prefixes are found by the ids themselves, and the longest idle go first."""

from __future__ import annotations

import numpy as np
import pytest

from exactlm.engine.kv_cache import PageStore
from exactlm.errors import CapacityError

A, B, C = (tuple(range(i, i + 32)) for i in (0, 100, 200))


def fill(store: PageStore, *keys: tuple[int, ...]) -> list[int]:
    """A sequence that has computed whole pages of these tokens."""
    pages, node = store.match([i for key in keys for i in key], 32 * len(keys))
    for key in keys[len(pages) :]:
        (page,) = store.allocate(1)
        page, node = store.publish(node, key, page)
        pages.append(page)
    return pages


def test_a_prefix_is_found_after_its_sequence_has_gone() -> None:
    store = PageStore(4, keeps_prefixes=True)
    pages = fill(store, A, B)
    store.release(pages)
    store.check_integrity()
    assert (store.num_held, store.num_idle, store.num_available) == (0, 2, 4)
    assert store.match([*A, *B, 5], 64)[0] == pages
    store.release(pages)
    assert store.match([*A, *C], 64)[0] == pages[:1]
    store.release(pages[:1])
    assert store.match([*B, *A], 64)[0] == []  # a page is known by all that stands before it
    assert store.match([*A, *B], 63)[0] == pages[:1]  # whole pages within the limit only
    store.release(pages[:1])
    store.check_integrity()


def test_the_same_prefix_twice_becomes_one_page() -> None:
    store = PageStore(4, keeps_prefixes=True)
    (first,), (second,) = store.allocate(1), store.allocate(1)
    assert store.publish(store.root, A, first)[0] == first
    assert store.publish(store.root, A, second)[0] == first
    assert (store.num_held, store.num_idle) == (1, 0)
    store.release([first])
    assert store.num_held == 1
    store.release([first])
    store.check_integrity()


def test_equal_hashes_are_not_equal_prefixes() -> None:
    ours, theirs = (-1, *range(31)), (-2, *range(31))
    assert hash(ours) == hash(theirs)  # CPython: hash(-1) == hash(-2)
    store = PageStore(4, keeps_prefixes=True)
    store.release(fill(store, ours))
    assert store.match(list(theirs), 32)[0] == []


def test_the_longest_idle_leaf_goes_first() -> None:
    store = PageStore(3, keeps_prefixes=True)
    older = fill(store, A, B)
    newer = fill(store, A, C)
    store.release(older)
    store.release(newer)
    assert store.allocate(1) == [older[1]]
    assert store.match([*A, *C], 64)[0] == newer
    store.release(newer)
    assert store.allocate(2) == [newer[1], newer[0]]
    with pytest.raises(CapacityError, match="1 KV pages are needed, 0 of 3"):
        store.allocate(1)


def test_lost_and_doubled_pages_are_seen() -> None:
    store = PageStore(4, keeps_prefixes=True)
    pages = fill(store, A)
    with pytest.raises(CapacityError, match="1 KV pages are lost"):
        store.check_integrity()
    store.release(pages)
    store._free.append(store._free[0])
    with pytest.raises(CapacityError, match="1 are free twice"):
        store.check_integrity()


def test_random_lives_leave_every_page_accounted_for() -> None:
    rng = np.random.Generator(np.random.Philox(key=3))
    store = PageStore(24, keeps_prefixes=True)
    alive: list[list[int]] = []
    for _ in range(3000):
        keys = [(A, B, C)[int(i)] for i in rng.integers(0, 3, int(rng.integers(1, 7)))]
        if store.num_available >= len(keys) and rng.integers(0, 5) > 1:
            alive.append(fill(store, *keys))
        elif alive:
            store.release(alive.pop(int(rng.integers(0, len(alive)))))
        held = {page for pages in alive for page in pages}
        assert store.num_held == len(held)
        assert not held & {*store._free, *store._idle}
    for pages in alive:
        store.release(pages)
    store.check_integrity()
    assert store.num_idle > 10
