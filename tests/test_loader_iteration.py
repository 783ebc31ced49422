"""Iterations of a loader: when they begin, what ends them, what is left of them, and how an error comes out."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import re
import threading
from collections.abc import Iterator
from typing import Any

import cv2
import pytest
import torch
from loader_kit import WAIT_S, Pictures, all_ids, all_threads_end, ids_of, loader_of, threads

from fastdata.augment.order import epoch_order
from fastdata.errors import FastdataError, MissingExtra, StoreError, UsageError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert all_threads_end()


def test_asking_for_an_iterator_does_nothing() -> None:
    """Trainers ask for two an epoch and use one."""
    drawn: list[int] = []
    loader = loader_of(Pictures(8, happens=lambda ids, epoch: drawn.append(epoch)))
    for epoch in range(3):
        unused, used = iter(loader), iter(loader)
        assert threads() == []
        assert {b["epoch"] for b in used} == {epoch}
        del unused
    assert drawn == [0] * 4 + [1] * 4 + [2] * 4


def test_the_epoch_is_asked_for_when_an_iteration_begins() -> None:
    """Not when the iterator is made: the trainer counts in between. The same epoch may come again."""
    told = [0]
    loader = loader_of(Pictures(8), epoch_of=lambda: told[0])
    for epoch in (5, 6, 6, 2):
        iterator = iter(loader)
        told[0] = epoch
        assert {b["epoch"] for b in iterator} == {epoch}


def test_set_epoch_says_which_comes_next() -> None:
    """And counting goes on from there."""
    loader = loader_of(Pictures(8))
    loader.set_epoch(7)
    assert loader.epoch == 7
    assert [{b["epoch"] for b in loader} for _ in range(2)] == [{7}, {8}]
    loader.set_epoch(8)
    assert {b["epoch"] for b in loader} == {8}
    assert loader.epoch == 9
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(UsageError, match="epoch must be a whole number of at least 0"):
            loader.set_epoch(wrong)  # type: ignore[arg-type]


def test_an_iteration_that_is_left_early_leaves_nothing_behind() -> None:
    """The next one is the next epoch, whole."""
    loader = loader_of(Pictures(40))
    for _ in zip(range(3), loader, strict=False):
        pass
    assert all_threads_end()
    batches = list(loader)
    assert len(batches) == 20
    assert {b["epoch"] for b in batches} == {1}


def test_a_new_iteration_takes_over_from_one_that_somebody_still_holds() -> None:
    """Its threads end at once; should it be asked again after all, it goes on rightly."""
    loader = loader_of(Pictures(40), threads=2)
    first = iter(loader)
    head = [next(first), next(first)]
    second = iter(loader)
    begun = next(second)
    assert len(threads()) <= 2
    assert begun["epoch"] == 1
    rest = list(first)
    assert ids_of(head + rest) == ids_of(loader_of(Pictures(40)))
    assert len(list(second)) == 19


def test_reset_makes_what_is_ahead_anew() -> None:
    """With the samples as they are then: how a trainer closes the mosaic."""
    samples = Pictures(20)
    loader = loader_of(samples)
    iterator = iter(loader)
    first = next(iterator)
    samples.batch = lambda recipe, images: {"ids": recipe.ids, "closed": True}  # type: ignore[method-assign]
    loader.reset()
    assert threads() == []
    rest = list(iterator)
    assert all(batch["closed"] for batch in rest)
    assert all_ids([first, *rest]) == epoch_order(20, 3, 0).tolist()


def test_a_closed_loader_has_no_thread_and_can_be_used_again() -> None:
    """As after an error of memory, when a trainer builds everything anew."""
    loader = loader_of(Pictures(20))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert threads() == []
    loader.close()
    assert {b["epoch"] for b in loader} == {1}


def test_a_loader_that_nobody_holds_ends_its_threads() -> None:
    """Also while an iteration was under way."""
    loader = loader_of(Pictures(20))
    iterator = iter(loader)
    next(iterator)
    del loader, iterator
    gc.collect()
    assert all_threads_end()


def test_damage_is_told_at_its_batch_with_cause_and_pictures() -> None:
    """Batches before it come first; the kind of error and the words of the store stay; the next epoch is whole."""
    order = epoch_order(20, 3, 0).tolist()
    bad = order[9]

    def happens(ids: list[int], epoch: int) -> None:
        if epoch == 0 and bad in ids:
            raise StoreError("train/x.jpg: s.lmdb:4096: record 3 must have CRC32C 00000001, got 00000002; convert again")

    loader, got = loader_of(Pictures(20, happens=happens), 4, threads=3), list[Any]()
    with pytest.raises(StoreError) as caught:
        got.extend(loader)
    assert ids_of(got) == [order[0:4], order[4:8]]
    assert isinstance(caught.value.__cause__, StoreError)
    message = str(caught.value)
    assert message.startswith("train/x.jpg: s.lmdb:4096: record 3")
    assert f"in batch 2 of epoch 0, of ids {order[8:12]}: " in message
    assert ", ".join(f"train/{i}.jpg" for i in order[8:12]) in message
    assert threads() == []
    assert [b["epoch"] for b in loader] == [1] * 5


@pytest.mark.parametrize("cause", [KeyError("lost"), StopIteration("end"), MemoryError("full"), OSError(5, "x"), RuntimeError()])
def test_any_other_error_is_told_too(cause: Exception) -> None:
    """Also one that would look like the end of the epoch."""

    def happens(ids: list[int], epoch: int) -> None:
        raise cause

    with pytest.raises(FastdataError, match=rf"^{type(cause).__name__}: .*; in batch 0 of epoch 0, of ids \[") as caught:
        list(loader_of(Pictures(20, happens=happens), 10))
    assert caught.value.__cause__ is cause
    assert re.search(r"(train/\d+\.jpg, ){7}train/\d+\.jpg and 2 more$", str(caught.value))


def test_a_missing_package_is_told_as_it_is() -> None:
    """Whoever catches ImportError gets it."""

    def happens(ids: list[int], epoch: int) -> None:
        raise MissingExtra("torch", "train", "make batches")

    with pytest.raises(MissingExtra, match="pip install"):
        next(iter(loader_of(Pictures(20, happens=happens))))


def test_the_number_of_a_failing_batch_counts_from_the_start_of_the_epoch() -> None:
    """On the second of two ranks, after going on in the middle."""
    order = epoch_order(40, 3, 0, 1, 2).tolist()

    def happens(ids: list[int], epoch: int) -> None:
        if order[14] in ids:
            raise StoreError("x")

    first = loader_of(Pictures(40), 4, rank=1, world_size=2)
    next(iter(first))
    loader = loader_of(Pictures(40, happens=happens), 4, rank=1, world_size=2)
    loader.load_state_dict(first.state_dict())
    with pytest.raises(StoreError, match="in batch 3 of epoch 0"):
        list(loader)


class Numbers(torch.utils.data.Dataset[int]):
    """Something else that is loaded by processes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        return i


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of fork beside threads, from Python 3.12 on
def test_another_data_loader_may_fork_in_the_middle() -> None:
    """Its workers inherit our threads' locks in whatever state they are, and must not meet them."""
    go = threading.Event()

    def happens(ids: list[int], epoch: int) -> None:
        assert go.wait(WAIT_S)

    iterator = iter(loader_of(Pictures(40, happens=happens)))
    go.set()
    next(iterator)
    go.clear()  # from here on both threads are in the middle of a batch
    other = torch.utils.data.DataLoader(
        Numbers(), 2, num_workers=2, multiprocessing_context=multiprocessing.get_context("fork")
    )
    assert [b.tolist() for b in other] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    go.set()
    assert len(list(iterator)) == 19


def test_opencv_is_told_to_use_one_thread_a_call() -> None:
    """When an iteration begins, not when the loader is made."""
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(3)
        iterator = iter(loader_of(Pictures(8)))
        assert cv2.getNumThreads() == 3
        next(iterator)
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(before)


def test_two_loaders_do_not_disturb_each_other() -> None:
    """Training and validation, batch by batch."""
    train, val = loader_of(Pictures(30), 3), loader_of(Pictures(30, augment=False), 3)
    pairs = list(itertools.zip_longest(train, val))
    assert all_ids(a for a, _ in pairs) == epoch_order(30, 3, 0).tolist()
    assert all_ids(b for _, b in pairs) == list(range(30))
