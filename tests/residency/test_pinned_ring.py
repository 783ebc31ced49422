"""Memory is used again when its copy has been done, not before, and there is no more of it than needed."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch

from fastdata.residency.gather import LINE_NBYTES
from fastdata.residency.pinned_ring import Ring

CPU = torch.device("cpu")


class Event:
    """Stands in for an event of the GPU."""

    def __init__(self) -> None:
        self.happened = threading.Event()

    def query(self) -> bool:
        return self.happened.is_set()

    def synchronize(self) -> None:
        self.happened.wait(30)


def address(buffer: Any) -> int:
    return int(buffer.tensor.data_ptr())


def test_memory_is_used_again_after_its_event_and_not_before() -> None:
    """One buffer is filled while another is copied; a third batch waits for the first one's copy."""
    ring, events = Ring(CPU), [Event(), Event()]
    first, second = (ring.take(1000) for _ in range(2))
    places = [address(first), address(second)]
    assert places[0] != places[1]
    first.after(events[0])
    second.after(events[1])
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(ring.take(500)))
    thread.start()
    thread.join(0.05)
    assert not taken
    events[0].happened.set()
    thread.join(30)
    assert address(taken[0]) == places[0]
    assert taken[0].tensor.shape == (500,)
    assert taken[0].tensor.dtype == torch.uint8
    events[1].happened.set()
    assert address(ring.take(10)) == places[1]


def test_memory_whose_copy_is_done_is_taken_before_one_that_must_be_waited_for() -> None:
    """Events of several makers come in any order."""
    ring, events = Ring(CPU), [Event(), Event(), Event()]
    buffers = [ring.take(100) for _ in events]
    places = [address(buffer) for buffer in buffers]
    for buffer, event in zip(buffers, events, strict=True):
        buffer.after(event)
    events[2].happened.set()
    assert address(ring.take(100)) == places[2]


def test_memory_is_bounded_by_what_is_in_the_making() -> None:
    """Of two makers that never wait for the GPU themselves: four buffers, and as large as the largest batch needs."""
    ring, peak = Ring(CPU), 0
    for k in range(40):
        pair = [ring.take(1000 + k) for _ in range(2)]
        peak = max(peak, ring.nbytes)
        for buffer in pair:
            event = Event()
            threading.Timer(0.001, event.happened.set).start()
            buffer.after(event)
    assert peak <= 4 * 2048
    assert all(address(ring.take(5)) % LINE_NBYTES == 0 for _ in range(3))


def test_a_single_maker_fills_one_buffer_while_the_other_is_copied() -> None:
    """It does not wait for the first copy."""
    ring, event = Ring(CPU), Event()
    first = ring.take(100)
    first.after(event)
    assert address(ring.take(100)) != address(first)


def test_memory_grows_with_the_batch() -> None:
    """What is too small is let go."""
    ring = Ring(CPU)
    ring.take(100).after(None)
    large = ring.take(5000)
    assert large.tensor.shape == (5000,)
    assert 5000 <= ring.nbytes <= 2 * 8192
    assert ring.take(100)._memory.numel() >= 5000  # so that it will do for the next large one
    gc.collect()
    large.after(None)
    ring.take(100).after(None)
    assert 5000 <= ring.nbytes <= 2 * 8192


def test_closed_memory_goes_after_its_copy() -> None:
    """And what is still taken when it is given back."""
    ring, event = Ring(CPU), Event()
    waiting, taken = ring.take(100), ring.take(100)
    waiting.after(event)
    closing = threading.Thread(target=ring.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    event.happened.set()
    closing.join(30)
    taken.after(None)
    del taken, waiting
    assert ring.nbytes == 0


def test_a_buffer_that_nobody_gave_back_is_forgotten() -> None:
    """Its maker failed."""
    ring = Ring(CPU)
    ring.take(100)
    gc.collect()
    assert ring.nbytes == 0
