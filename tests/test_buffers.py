"""Buffers: memory comes back when the last reference goes, and not before, whatever kind of reference it is."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastdata.buffers import U8, Buffers

SHAPE = (2, 3, 8, 16)


def address(array: U8) -> int:
    """Where the first byte of an array lies."""
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("shape", [SHAPE, (1, 3, 641, 333), (0, 3, 8, 8), (4,)])
def test_an_array_can_be_written_is_contiguous_and_begins_at_a_page(shape: tuple[int, ...]) -> None:
    """What a kernel and a registration as page-locked memory ask for."""
    array = Buffers().take(shape)
    array[...] = 7
    assert array.shape == shape
    assert array.dtype == np.uint8
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % mmap.PAGESIZE == 0


HOLDERS: dict[str, Callable[[U8], Any]] = {
    "the array": lambda a: a,
    "a slice": lambda a: a[1:, :, ::2],
    "a slice of a slice": lambda a: a[1:][0, 1][2:],
    "a reshape": lambda a: a.reshape(-1)[5:],
    "a view of another type": lambda a: a.view(np.int32)[0],
    "a memoryview": lambda a: memoryview(a)[1:],
    "a tensor": torch.from_numpy,
    "a slice of a tensor": lambda a: torch.from_numpy(a)[1:, :, ::2],
    "a view of a slice of a tensor": lambda a: torch.from_numpy(a)[0].permute(1, 2, 0)[:3].unsqueeze(0),
    "a detached tensor": lambda a: torch.from_numpy(a).detach(),
    "an array of a tensor": lambda a: torch.from_numpy(a)[1].numpy()[2:],
    "a storage": lambda a: torch.from_numpy(a).untyped_storage(),
    "an array by the buffer protocol": lambda a: np.asarray(memoryview(a)),
    "a tensor by DLPack": torch.from_dlpack,
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_not_used_again_while_anything_refers_to_it(holder: str) -> None:
    """Not even by the thinnest of views; and it is used again when that has gone."""
    buffers = Buffers()
    array = buffers.take(SHAPE)
    array[...] = 1
    where = address(array)
    held = HOLDERS[holder](array)
    del array
    gc.collect()
    assert buffers.free() == 0
    other = buffers.take(SHAPE)
    assert address(other) != where
    other[...] = 2
    del other, held
    assert buffers.free() == 2


def test_the_bytes_of_a_slice_that_is_kept_never_change() -> None:
    """While a hundred batches come and go in the other buffers."""
    buffers = Buffers()
    kept, seen = [], set()
    for k in range(100):
        array = buffers.take(SHAPE)
        array[...] = k
        seen.add(address(array))
        if k % 10 == 0:
            kept.append(torch.from_numpy(array)[1, 2, 3:5])
        del array
    assert [set(t.unique().tolist()) for t in kept] == [{k} for k in range(0, 100, 10)]
    assert len(seen) == 11  # ten that are kept, and one for all the others


def test_a_copy_does_not_hold_memory() -> None:
    """A batch that was copied to where it is needed gives its buffer back."""
    buffers = Buffers()
    copy = torch.from_numpy(buffers.take(SHAPE)).clone()
    assert buffers.free() == 1
    assert copy.shape == SHAPE


def test_one_set_of_buffers_serves_every_shape() -> None:
    """Smaller ones are cut from it; too small buffers are replaced, not kept beside the new ones."""
    buffers = Buffers()
    buffers.take((1, 3, 8, 8))
    large = buffers.take((2, 3, 100, 100))
    where = address(large)
    del large
    assert buffers.free() == 1
    for shape in ((1, 3, 8, 8), (2, 3, 100, 100), (1, 1), (2, 3, 99, 100)):
        array = buffers.take(shape)
        assert (address(array), array.shape) == (where, shape)
        del array
    assert buffers.free() == 1


def test_a_buffer_made_for_a_small_batch_is_as_large_as_the_largest_before_it() -> None:
    """So that the next large one need not replace it."""
    buffers = Buffers()
    large = buffers.take((2, 3, 100, 100))
    small = buffers.take((1, 3, 8, 8))
    where = address(small)
    del small
    assert address(buffers.take((2, 3, 100, 100))) == where
    del large


def test_arrays_outlive_the_buffers_that_made_them() -> None:
    """A consumer may keep a batch when the loader has gone."""
    array = Buffers().take(SHAPE)
    gc.collect()
    array[...] = 9
    assert int(array.sum()) == 9 * array.size


def test_threads_that_take_and_let_go_never_share_memory() -> None:
    """Each writes its number and finds it again, with as many buffers as there were holders."""
    buffers, wrong, rounds = Buffers(), [], 300
    interval = sys.getswitchinterval()

    def use(number: int) -> None:
        for k in range(rounds):
            a, b = buffers.take(SHAPE), buffers.take(SHAPE)
            a[...], b[...] = number, 100 + number
            if k % 7 == 0:
                gc.collect(0)
            if set(np.unique(a).tolist()) != {number} or set(np.unique(b).tolist()) != {100 + number}:
                wrong.append(number)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert 2 <= buffers.free() <= 4 * len(threads)  # the next two are taken before the last two go


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of fork beside torch's threads, from Python 3.12 on
def test_a_forked_child_does_not_draw_into_the_buffers_of_its_parent() -> None:
    """A shared mapping would change the parent's batch."""
    buffers = Buffers()
    array = buffers.take(SHAPE)
    array[...] = 1
    child = os.fork()
    if child == 0:
        array[...] = 2
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(np.unique(array).tolist()) == {1}
