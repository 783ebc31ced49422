"""Rectangles are copied byte for byte, and nothing beside them is written."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.residency.gather import LINE_NBYTES, TO, TO_LINE, TO_PLANE, gather, table_of

POISON = 0xA5


def aligned(nbytes: int) -> np.ndarray:
    """Poisoned memory that begins with a line of the caches."""
    memory = np.full(nbytes + LINE_NBYTES, POISON, np.uint8)
    return memory[-memory.ctypes.data % LINE_NBYTES :][:nbytes]


@st.composite
def rectangles(draw: st.DrawFn) -> tuple[tuple[int, int, int], tuple[int, int, int, int]]:
    """Planes, height and width of a picture, and a part of it."""
    planes, h, w = draw(st.sampled_from([1, 3])), draw(st.integers(1, 20)), draw(st.integers(1, 300))
    x0, y0 = draw(st.integers(0, w - 1)), draw(st.integers(0, h - 1))
    return (planes, h, w), (x0, y0, draw(st.integers(x0 + 1, w)), draw(st.integers(y0 + 1, h)))


@settings(max_examples=100)
@given(st.lists(rectangles(), max_size=6), st.integers(0, 1000))
def test_rectangles_are_copied_byte_for_byte_and_nothing_else_is_written(found: list, seed: int) -> None:
    """Of any width, from any address; each begins a line of the caches, and so do its planes and rows."""
    rng = np.random.default_rng(seed)
    pictures = [rng.integers(0, 256, shape, np.uint8) for shape, _ in found]
    source = np.array([(p.ctypes.data, *p.strides[:2]) for p in pictures], np.int64).reshape(-1, 3)
    planes = np.array([len(p) for p in pictures], np.int64)
    table, nbytes = table_of(source, planes, np.array([rect for _, rect in found], np.int64).reshape(-1, 4))
    assert (table[:, [TO, TO_PLANE, TO_LINE]] % LINE_NBYTES == 0).all()
    block = aligned(nbytes)
    want = np.full(nbytes, POISON, np.uint8)
    for picture, (_, (x0, y0, x1, y1)), row in zip(pictures, found, table, strict=True):
        for plane in range(len(picture)):
            for i in range(y1 - y0):
                at = int(row[TO] + plane * row[TO_PLANE] + i * row[TO_LINE])
                assert (want[at : at + x1 - x0] == POISON).all()
                want[at : at + x1 - x0] = picture[plane, y0 + i, x0:x1]
    table[:, TO] += block.ctypes.data
    gather(table)
    assert np.array_equal(block, want)


def test_others_run_while_rectangles_are_copied() -> None:
    """The interpreter's lock is let go: another thread sees a block that is half full, which nobody could who waits for it."""
    picture = np.zeros((1, 1000, 1000), np.uint8)
    source = np.array([(picture.ctypes.data, *picture.strides[:2])] * 50, np.int64)
    table, nbytes = table_of(source, np.ones(50, np.int64), np.tile(np.array([0, 0, 1000, 1000], np.int64), (50, 1)))
    block = aligned(nbytes)
    table[:, TO] += block.ctypes.data
    for _ in range(1000):  # whether it is this thread's turn within some milliseconds is up to the machine
        block[[0, int(table[-1, TO]) - block.ctypes.data]] = POISON
        thread = threading.Thread(target=gather, args=(table,))
        thread.start()
        states = set()
        while thread.is_alive():
            states.add((block[0] == POISON, block[int(table[-1, TO]) - block.ctypes.data] == POISON))
        thread.join()
        if (False, True) in states:
            return
    pytest.fail("no block was ever seen half full")


def test_only_a_table_of_its_kind_is_taken() -> None:
    """Addresses are believed, so numbers of another width must not pass for some."""
    with pytest.raises(TypeError):
        gather(np.zeros((1, 9), np.int32))
