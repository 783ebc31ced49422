"""Results made ahead by threads: in order, within bounds, and nothing is left behind however the iteration ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_kit import WAIT_S, all_threads_end, threads

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
    interrupted = threading.Event()

    def make(k: int) -> int:
        if k == 1 and not interrupted.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert interrupted.wait(WAIT_S)
        return k

    ahead = Prefetch(make, 5, 1, 3)
    assert next(ahead) == 0
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    interrupted.set()
    assert list(ahead) == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of fork beside threads, from Python 3.12 on
def test_a_forked_child_goes_on_by_itself_and_so_does_its_parent() -> None:
    """The child has no thread that would make what its copy of the iterator waits for."""
    blocked = threading.Event()
    parent = os.getpid()

    def make(k: int) -> int:
        if k == 2 and os.getpid() == parent:
            assert blocked.wait(WAIT_S)  # in the making when the fork comes
        return k

    ahead = Prefetch(make, 8, 2, 4)
    assert [next(ahead), next(ahead)] == [0, 1]
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if list(ahead) == [2, 3, 4, 5, 6, 7] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    blocked.set()
    assert list(ahead) == [2, 3, 4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("end", ["drop", "forget"])
def test_a_forked_child_can_let_go_of_what_it_inherited(end: str) -> None:
    """Without waiting for threads that it does not have, or for a lock that another thread held at the fork."""
    blocked = threading.Event()
    ahead: Prefetch[bool] | None = Prefetch(lambda k: k == 0 or blocked.wait(WAIT_S), 8, 2, 4)
    assert ahead is not None
    next(ahead)
    assert ahead._pool is not None
    with ahead._pool._shutdown_lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            if end == "drop":
                ahead.drop()
            ahead = None
            gc.collect()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    blocked.set()


PROGRAM = """
import time
from fastdata.prefetch import Prefetch
def make(k):
    time.sleep(0.01)
    return k
ahead = Prefetch(make, 1000, 2, 4)
next(ahead)
{last}
"""


@pytest.mark.parametrize(
    ("last", "code", "says"),
    [
        ("", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise ValueError('unmet')", 1, "ValueError: unmet\n"),
        ("circle = [ahead]; circle.append(circle); del ahead", 0, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_a_program_ends_in_the_middle_of_an_iteration(last: str, code: int, says: str) -> None:
    """At once, with its own exit status and nothing said that is not its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(last=last)], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr[-len(says) :] if says else done.stderr) == (code, says)
    assert done.stderr.count("Error") <= 1
