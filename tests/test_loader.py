"""The loader: which samples each batch holds, that nothing but the settings decides it, and what becomes of errors and memory."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import re
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_kit import WAIT_S, Pictures, all_ids, all_threads_end, ids_of, is_right, loader_of, threads

from fastdata.augment.order import epoch_order
from fastdata.errors import FastdataError, MissingExtra, StoreError, UsageError
from fastdata.loader import Loader

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert all_threads_end()


def test_an_epoch_is_the_epoch_order_cut_into_batches() -> None:
    """Pixels and labels are those of the ids, the last batch is short, and each epoch has an order of its own."""
    samples = Pictures(23)
    loader = loader_of(samples, 4)
    for epoch in range(3):
        batches = list(loader)
        assert len(batches) == len(loader) == 6
        assert all(is_right(batch) and batch["epoch"] == epoch for batch in batches)
        assert all_ids(batches) == epoch_order(23, samples.seed, epoch).tolist()
        assert [len(ids) for ids in ids_of(batches)] == [4, 4, 4, 4, 4, 3]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_threads_and_prefetch_change_nothing(number: int, prefetch: int) -> None:
    """Three epochs of both uses, also while every thread runs into others' work."""
    for augment in (True, False):
        want = [ids_of(loader) for loader in [loader_of(Pictures(37, augment=augment), 3, threads=1)] for _ in range(3)]
        loader = loader_of(Pictures(37, augment=augment), 3, threads=number, prefetch=prefetch)
        for epoch in range(3):
            batches = list(loader)
            assert ids_of(batches) == want[epoch]
            assert all(map(is_right, batches))


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.booleans(), st.integers(0, 3))
def test_ranks_take_each_id_once_and_as_many_steps_in_training(
    n: int, world_size: int, batch_size: int, drop_last: bool, epoch: int
) -> None:
    """But for the tail that does not divide; step by step they go along the one order of the epoch."""
    if n // world_size < batch_size:
        return
    options: dict[str, Any] = {"world_size": world_size, "drop_last": drop_last, "threads": 1}
    loaders = [loader_of(Pictures(n), batch_size, rank=r, **options) for r in range(world_size)]
    for loader in loaders:
        loader.set_epoch(epoch)
    steps = [ids_of(loader) for loader in loaders]
    assert {len(s) for s in steps} == {len(loader) for loader in loaders} == {len(steps[0])}
    together = [i for step in zip(*steps, strict=True) for row in zip(*step, strict=True) for i in row]
    used = n // world_size // batch_size * batch_size * world_size if drop_last else n // world_size * world_size
    assert together == epoch_order(n, Pictures(n).seed, epoch).tolist()[:used]


def test_another_tail_is_dropped_each_epoch() -> None:
    """So that no picture is left out for good."""
    loader = loader_of(Pictures(11), 2, rank=0, world_size=3, threads=1)
    others = [loader_of(Pictures(11), 2, rank=r, world_size=3, threads=1) for r in (1, 2)]
    dropped = [set(range(11)) - set(chain.from_iterable(map(all_ids, (loader, *others)))) for _ in range(6)]
    assert all(len(tail) == 2 for tail in dropped)
    assert len({frozenset(tail) for tail in dropped}) > 3


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 70))
def test_validation_takes_each_id_exactly_once_in_order(n: int, world_size: int, batch_size: int) -> None:
    """Whole batches of the one order; a rank may have none, and a batch may be larger than the set."""
    loaders = [
        loader_of(Pictures(n, augment=False), batch_size, rank=r, world_size=world_size, threads=1) for r in range(world_size)
    ]
    batches = [ids_of(loader) for loader in loaders]
    assert [len(b) for b in batches] == [len(loader) for loader in loaders]
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert list(chain.from_iterable(batches)) == [list(range(n))[k : k + batch_size] for k in range(0, n, batch_size)]


def test_a_set_that_is_shuffled_is_trained_on_even_without_augmentation() -> None:
    """Ranks that train must take as many steps."""
    loader = loader_of(Pictures(7, augment=False), 2, rank=1, world_size=2, shuffle=True)
    a, b, c = epoch_order(7, 3, 0, 1, 2).tolist()
    assert ids_of(loader) == [[a, b], [c]]


def test_a_set_that_is_augmented_may_come_in_order() -> None:
    """As when pictures are sorted by shape."""
    assert ids_of(loader_of(Pictures(5), 2, shuffle=False)) == [[0, 1], [2, 3], [4]]


def test_batches_of_several_shapes() -> None:
    """Each has the shape that the samples say, in one set of buffers."""
    shapes = [(4, 8), (8, 4), (6, 6), (2, 2)]
    loader = loader_of(Pictures(7, augment=False, shapes_hw=shapes, batch_size=2))
    for _ in range(2):
        batches = list(loader)
        assert [tuple(b["img"].shape[2:]) for b in batches] == shapes
        assert all(map(is_right, batches))


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


def test_what_is_kept_of_a_batch_never_changes() -> None:
    """Slices of some batches of many epochs, while all others come and go in the same memory."""
    loader, kept, places = loader_of(Pictures(30), 3, threads=3), [], set()
    for epoch in range(8):
        for k, batch in enumerate(loader):
            assert is_right(batch)
            places.add(batch["img"].data_ptr())
            if k == epoch:
                kept.append((batch["img"][1:, :, ::2], batch["img"][1:, :, ::2].clone(), batch["cls"], batch["cls"].clone()))
    assert all(torch.equal(img, was) and torch.equal(cls, had) for img, was, cls, had in kept)
    # 8 are kept, at most 6 are ahead, 2 are in the loop's hands at a change, and 3 threads may hold one a moment too long.
    assert len(places) <= 8 + 6 + 2 + 3


def test_labels_are_new_memory_each_time() -> None:
    """A trainer plots them in a thread, and changes them in place."""
    loader = loader_of(Pictures(30), 3)
    batches = [(b["cls"], b["cls"].clone()) for b in loader]
    assert len({cls.data_ptr() for cls, _ in batches}) == 10
    assert all(torch.equal(cls, was) for cls, was in batches)


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.0}, "batch_size must be a whole number of at least 1, got 2.0"),
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"prefetch": 0}, "prefetch must be a whole number of at least 1, got 0"),
        ({"prefetch": True}, "prefetch must be a whole number"),
        ({"batch_size": 21}, r"batch_size must be at most 20, the size of the set, got 21; set batch_size=20 or add images"),
        ({"batch_size": 7, "world_size": 3}, r"at most 6 \(20 images over 3 ranks\), got 7; set batch_size=6"),
        ({"batch_size": 1, "world_size": 21}, "at least one image a rank, got 20 images for 21 ranks"),
        ({"rank": 2, "world_size": 2}, "rank must be in 0 <= rank < world_size, got rank 2"),
        ({"imgsz": 64}, "options of the samples must come with a store, got imgsz beside samples"),
    ],
)  # fmt: skip
def test_arguments_that_break_their_rule(options: dict[str, Any], says: str) -> None:
    """Refused when the loader is made, with what to change."""
    with pytest.raises(UsageError, match=says):
        Loader(Pictures(20), **options)  # type: ignore[arg-type]


def test_what_validation_and_several_shapes_ask_for() -> None:
    """A dropped picture would change a score, and pictures of several shapes cannot be mixed."""
    with pytest.raises(UsageError, match="drop_last must be False where every picture counts exactly once"):
        loader_of(Pictures(20, augment=False), drop_last=True)
    shaped: dict[str, Any] = {"shapes_hw": [(4, 8), (8, 4)], "batch_size": 4}
    with pytest.raises(UsageError, match="batch_size must be that of the samples"):
        loader_of(Pictures(8, augment=False, **shaped), 2)
    for augment, options in ((True, {}), (False, {"shuffle": True}), (True, {"shuffle": False, "world_size": 2})):
        with pytest.raises(UsageError, match=r"must come in order.*set shuffle=False or rect=False"):
            loader_of(Pictures(8, augment=augment, **shaped), 4, **options)


def test_threads_are_the_cores_shared_among_the_ranks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks with all cores each would stand in each other's way."""
    monkeypatch.setattr("fastdata.loader.usable_cores", lambda: 12)
    for told, number in (("", 12), ("1", 12), ("8", 1), ("4", 3), ("99", 1), ("x", 12), ("0", 12)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
        assert Loader(Pictures(20)).threads == number  # type: ignore[arg-type]
    assert Loader(Pictures(20), threads=5).threads == 5  # type: ignore[arg-type]


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


def test_two_loaders_do_not_disturb_each_other() -> None:
    """Training and validation, batch by batch."""
    train, val = loader_of(Pictures(30), 3), loader_of(Pictures(30, augment=False), 3)
    pairs = list(itertools.zip_longest(train, val))
    assert all_ids(a for a, _ in pairs) == epoch_order(30, 3, 0).tolist()
    assert all_ids(b for _, b in pairs) == list(range(30))
