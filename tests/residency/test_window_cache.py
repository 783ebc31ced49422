"""Made once for all threads, kept for a window, dropped oldest first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from fastdata.residency.window_cache import WindowCache

WAIT_S = 30.0


@dataclass(frozen=True)
class Value:
    """Something of a size."""

    key: int
    nbytes: int = 10


class Maker:
    """Makes values, and remembers which."""

    def __init__(self, happens: Callable[[list[int]], None] = lambda keys: None, nbytes: int = 10) -> None:
        self.made: list[int] = []
        self.happens, self.nbytes = happens, nbytes

    def __call__(self, keys: list[int]) -> dict[int, Value]:
        self.happens(keys)
        self.made += keys
        return {key: Value(key, self.nbytes) for key in keys}


def test_what_is_there_is_not_made_again() -> None:
    """And every key gets its own value."""
    cache, make = WindowCache[int, Value](8, 1000), Maker()
    assert cache.get([1, 2, 3], make) == {k: Value(k) for k in (1, 2, 3)}
    assert cache.get([3, 4, 1], make) == {k: Value(k) for k in (3, 4, 1)}
    assert make.made == [1, 2, 3, 4]
    assert (len(cache), cache.nbytes) == (4, 40)


def test_the_oldest_goes_first_however_lately_it_was_shown() -> None:
    """By count."""
    cache, make = WindowCache[int, Value](3, 1000), Maker()
    cache.get([1, 2, 3], make)
    cache.get([1], make)
    cache.get([4], make)
    assert (len(cache), cache.nbytes) == (3, 30)
    cache.get([2, 3, 4], make)
    assert make.made == [1, 2, 3, 4]
    cache.get([1], make)
    assert make.made == [1, 2, 3, 4, 1]


def test_bytes_are_bounded_too_and_what_is_too_large_drives_out_nothing() -> None:
    """A value above the bound is handed out and not kept."""
    cache = WindowCache[int, Value](100, 35)
    cache.get([1, 2, 3, 4], make := Maker())
    assert (len(cache), cache.nbytes) == (3, 30)
    assert cache.get([5], Maker(nbytes=36)) == {5: Value(5, 36)}
    cache.get([2, 3, 4], make)
    assert make.made == [1, 2, 3, 4]


def test_nothing_is_kept_without_a_window_or_after_the_end() -> None:
    """Then every call makes all."""
    cache, make = WindowCache[int, Value](0, 0), Maker()
    assert cache.get([1], make) == cache.get([1], make)
    assert make.made == [1, 1]
    ended = WindowCache[int, Value](5, 100)
    ended.get([1], make)
    ended.clear()
    ended.get([2], make)
    assert (len(ended), ended.nbytes) == (0, 0)


def test_two_threads_that_want_the_same_make_it_once_and_neither_waits_in_a_circle() -> None:
    """Each makes its own share first: {1, 2} and {2, 3, 1} at once, where each has what the other wants."""
    cache = WindowCache[int, Value](8, 1000)
    promised = threading.Barrier(2, timeout=WAIT_S)
    began = threading.Event()

    def first(keys: list[int]) -> None:
        began.set()
        promised.wait()

    one, two = Maker(first), Maker(lambda keys: promised.wait() and None)
    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(cache.get, [1, 2], one)
        assert began.wait(WAIT_S)
        b = pool.submit(cache.get, [2, 3, 1], two)
        assert a.result(WAIT_S) == {1: Value(1), 2: Value(2)}
        assert b.result(WAIT_S) == {1: Value(1), 2: Value(2), 3: Value(3)}
    assert (one.made, two.made) == ([1, 2], [3])


def test_what_another_thread_fails_to_make_is_made_by_the_one_that_waited() -> None:
    """The error belongs to the thread that met it."""
    cache = WindowCache[int, Value](8, 1000)
    began, go = threading.Event(), threading.Event()

    def fail(keys: list[int]) -> dict[int, Value]:
        began.set()
        assert go.wait(WAIT_S)
        raise ValueError("broken")

    make = Maker()
    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(cache.get, [1, 2], fail)
        assert began.wait(WAIT_S)
        b = pool.submit(cache.get, [2], make)
        go.set()
        with pytest.raises(ValueError, match="broken"):
            a.result(WAIT_S)
        assert b.result(WAIT_S) == {2: Value(2)}
    assert make.made == [2]
    assert cache.get([1, 2], make) == {1: Value(1), 2: Value(2)}
    assert make.made == [2, 1]


def test_many_threads_get_the_right_values_and_the_books_balance() -> None:
    """Random wishes from a small set, with room for half of it."""
    cache = WindowCache[int, Value](16, 130)
    make = Maker()

    def ask(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        wishes = [rng.choice(32, 6, replace=False).tolist() for _ in range(60)]
        return all(cache.get(keys, make) == {key: Value(key) for key in keys} for keys in wishes)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(6)))
    assert cache.nbytes == 10 * len(cache) == 130
    assert len(make.made) < 6 * 60 * 6
    assert not cache._promised
