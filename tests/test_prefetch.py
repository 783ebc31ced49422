"""Results made ahead by threads: in order, within bounds, and no thread is left however the iteration ends."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_kit import WAIT_S, all_threads_end, threads

from fastdata import prefetch
from fastdata.prefetch import Prefetch

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert all_threads_end()


def square(k: int) -> int:
    """What most tests make."""
    return k * k


@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 12))
def test_results_come_in_order_and_all_of_them(count: int, number: int, ahead: int) -> None:
    """For any number of threads, and any room."""
    assert list(Prefetch(square, count, number, ahead)) == [k * k for k in range(count)]


def test_a_result_that_is_ready_early_waits_for_its_turn() -> None:
    """Number 0 is finished last of four, and still comes first."""
    others, done = threading.Event(), []

    def make(k: int) -> int:
        if k == 0:
            assert others.wait(WAIT_S)
        done.append(k)
        if len(done) == 3:
            others.set()
        return k

    assert list(Prefetch(make, 4, 4, 4)) == [0, 1, 2, 3]
    assert done[-1] == 0


def test_threads_work_at_the_same_time() -> None:
    """Four that wait for each other could not meet otherwise."""
    meeting = threading.Barrier(4)
    assert list(Prefetch(lambda k: meeting.wait(WAIT_S) >= 0, 8, 4, 4)) == [True] * 8


def test_nothing_begins_before_the_first_result_is_asked_for() -> None:
    """Trainers call iter() and throw the iterator away."""
    made: list[int] = []
    ahead = iter(Prefetch(made.append, 10, 2, 4))
    assert (made, threads()) == ([], [])
    next(ahead)
    assert threads()


@pytest.mark.parametrize(("number", "room"), [(1, 1), (2, 1), (2, 4), (3, 5)])
def test_no_more_than_the_room_is_made_ahead(number: int, room: int) -> None:
    """What was begun and has not been handed out never exceeds it, and reaches it."""
    begun, given_out, most = [], 0, 0

    def make(k: int) -> int:
        begun.append(k)
        return k

    ahead = Prefetch(make, 20, number, room)
    for k in ahead:
        most = max(most, len(begun) - k)  # the one in hand has been handed out, but is counted: it was asked for
        given_out += 1
    assert given_out == 20
    assert most <= room
    begun.clear()
    second = Prefetch(make, 20, number, room)
    next(second)
    second.drop()
    assert len(begun) <= room


def test_an_error_comes_at_its_place_after_all_before_it() -> None:
    """Although it happened before they were made; what comes after it is lost, and nothing runs any more."""
    failed = threading.Event()

    def make(k: int) -> int:
        if k == 2:
            failed.set()
            raise LookupError("two")
        assert failed.wait(WAIT_S)
        return k

    ahead, got = Prefetch(make, 9, 3, 6), list[int]()
    with pytest.raises(LookupError, match="two"):
        got.extend(ahead)
    assert threads() == []
    assert list(ahead) == []
    assert got == [0, 1]


def test_threads_have_ended_when_the_last_result_was_given() -> None:
    """Not at some time after."""
    for k in Prefetch(square, 5, 2, 4):
        assert (threads() == []) == (k == 16)


def leave_by_break(ahead: Prefetch[int]) -> None:
    """A loop that has seen enough."""
    for k in ahead:
        if k == 4:
            break


def leave_by_error(ahead: Prefetch[int]) -> None:
    """The consumer's own fault."""
    with contextlib.suppress(ZeroDivisionError):
        for k in ahead:
            1 // (4 - k)


def leave_by_drop(ahead: Prefetch[int]) -> None:
    """On purpose."""
    next(ahead)
    ahead.drop()
    assert threads() == []


def leave_in_a_cycle(ahead: Prefetch[int]) -> None:
    """Held by nothing but itself until a collection finds it."""
    next(ahead)
    circle: list[Any] = [ahead]
    circle.append(circle)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_drop, leave_in_a_cycle])
def test_no_thread_stays_when_an_iteration_is_left(leave: Callable[[Prefetch[int]], None]) -> None:
    """And no more is begun than was already waiting."""
    made: list[int] = []

    def make(k: int) -> int:
        made.append(k)
        return k * k

    leave(Prefetch(make, 1000, 3, 6))
    gc.collect()
    assert all_threads_end()
    assert len(made) <= 10


def test_a_collection_in_one_of_its_own_threads_ends_an_iteration() -> None:
    """A thread must not wait for itself."""
    go, collected = threading.Event(), []

    def make(k: int) -> int:
        if k == 1:
            assert go.wait(WAIT_S)
            collected.append(gc.collect())
        return k

    gc.disable()
    try:
        leave_in_a_cycle(Prefetch(make, 100, 2, 4))
        go.set()
        assert all_threads_end()
    finally:
        gc.enable()
    assert collected
    assert collected[0] > 0


def test_what_was_dropped_is_made_anew() -> None:
    """From where the consumer is, with the world as it is then."""
    version = ["old"]
    ahead = Prefetch(lambda k: (k, version[0]), 10, 2, 4)
    assert [next(ahead), next(ahead)] == [(0, "old"), (1, "old")]
    ahead.drop()
    version[0] = "new"
    assert list(ahead) == [(k, "new") for k in range(2, 10)]


@pytest.mark.parametrize("end", ["drop", "forget"])
def test_what_waits_when_an_iteration_ends_is_not_begun(end: str) -> None:
    """A thread finishes what it is making, and that is all."""
    go, begun = threading.Event(), list[int]()

    def make(k: int) -> int:
        begun.append(k)
        assert k == 0 or go.wait(WAIT_S)
        return k

    ahead = Prefetch(make, 100, 1, 6)
    next(ahead)
    if end == "drop":
        ahead.drop(wait=False)
    del ahead
    go.set()
    assert all_threads_end()
    assert begun in ([0], [0, 1])


def test_what_was_dropped_is_not_held() -> None:
    """Batches are large, and the memory of each goes to whoever asks next."""

    class Large:
        pass

    alive: weakref.WeakSet[Large] = weakref.WeakSet()
    ready = threading.Event()

    def make(k: int) -> Large:
        if k == 5:
            ready.set()  # numbers 1 to 4 wait to be handed out
        large = Large()
        alive.add(large)
        return large

    ahead = Prefetch(make, 100, 1, 6)
    next(ahead)
    assert ready.wait(WAIT_S)
    assert len(alive) >= 4
    ahead.drop()
    assert len(alive) == 0


def test_an_interrupt_while_waiting_loses_nothing() -> None:
    """Ctrl-C in a notebook: the loop ends, and the iterator can still be asked."""
    asked, interrupted = threading.Event(), threading.Event()

    def interrupt(*_: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def make(k: int) -> int:
        if k == 1 and not interrupted.is_set():
            assert asked.wait(WAIT_S)
            while not interrupted.wait(0.02):  # a signal just before the wait begins is seen with the next one only
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return k

    def ask() -> int:
        asked.set()
        return next(ahead)

    ahead = Prefetch(make, 5, 1, 3)
    assert next(ahead) == 0
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask()
        assert list(ahead) == [1, 2, 3, 4]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_a_thread_starts_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread stays that nobody knows of, and the iterator can still be asked."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        raise KeyboardInterrupt

    ahead = Prefetch(lambda k: k, 5, 2, 3)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    assert all_threads_end()
    assert list(ahead) == [0, 1, 2, 3, 4]


def test_an_interrupt_while_a_result_is_taken_repeats_nothing() -> None:
    """What was being handed over is gone with the interrupt; what follows is in its place, and counted so."""

    class Late(deque[Any]):
        """Notices Ctrl-C as it returns, as any call does."""

        def popleft(self) -> Any:
            super().popleft()
            ahead._waiting = deque(self)
            raise KeyboardInterrupt

    ahead = Prefetch(lambda k: k, 6, 2, 3)
    assert next(ahead) == 0
    ahead._waiting = Late(ahead._waiting)
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    assert ahead.given == 2
    assert list(ahead) == [2, 3, 4, 5]


def test_a_gentle_iterator_gives_the_same_and_never_lets_its_consumer_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it would wait for hours before it makes what is not urgent: who waits for a result hurries it."""
    monkeypatch.setattr(prefetch, "BUSY_SHARE", 1e6)
    monkeypatch.setattr(prefetch, "LONGEST_S", 1e6)
    for number, ahead in ((1, 1), (1, 4), (3, 8)):
        assert list(Prefetch(lambda k: k, 40, number, ahead, gentle=True)) == list(range(40))


def test_a_gentle_iterator_makes_later_what_is_not_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its consumer needs next is ready, so a new result is not begun; dropping it ends the threads that wait."""
    monkeypatch.setattr(prefetch, "BUSY_SHARE", 1e6)
    monkeypatch.setattr(prefetch, "LONGEST_S", 1e6)
    begun: list[int] = []
    ready = threading.Event()

    def make(k: int) -> int:
        begun.append(k)
        if k == 3:
            ready.set()
        return k

    results = Prefetch(make, 100, 2, 4, gentle=True)
    assert next(results) == 0
    assert ready.wait(60)
    while not all(future.done() for future in results._waiting):
        pass
    assert next(results) == 1
    assert sorted(begun) == [0, 1, 2, 3]
    results.drop()
    assert sorted(begun) in ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    assert next(results) == 2
