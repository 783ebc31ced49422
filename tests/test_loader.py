"""The loader: which samples each batch holds, that nothing but the settings decides it, and the memory they lie in."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_kit import WAIT_S, Pictures, all_ids, all_threads_end, ids_of, is_right, loader_of

from fastdata.augment.order import epoch_order
from fastdata.errors import UsageError
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
    """As when pictures are sorted by shape, where it is the default."""
    assert ids_of(loader_of(Pictures(5), 2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    shaped = Pictures(5, shapes_hw=[(4, 8), (8, 4), (2, 2)], batch_size=2)
    assert ids_of(loader_of(shaped, 2)) == [[0, 1], [2, 3], [4]]


def test_batches_of_several_shapes() -> None:
    """Each has the shape that the samples say, in one set of buffers."""
    shapes = [(4, 8), (8, 4), (6, 6), (2, 2)]
    loader = loader_of(Pictures(7, augment=False, shapes_hw=shapes, batch_size=2))
    for _ in range(2):
        batches = list(loader)
        assert [tuple(b["img"].shape[2:]) for b in batches] == shapes
        assert all(map(is_right, batches))


def test_what_is_kept_of_a_batch_never_changes() -> None:
    """Slices of some batches of many epochs, while all others come and go in the same memory."""
    loader, kept, places = loader_of(Pictures(30), 3, threads=3), [], set()
    for epoch in range(8):
        for k, batch in enumerate(loader):
            assert is_right(batch)
            places.add(batch["img"].data_ptr())
            assert batch["img"].data_ptr() % mmap.PAGESIZE == 0  # a buffer of ours, and no copy
            if k == epoch:
                kept.append((batch["img"][1:, :, ::2], batch["img"][1:, :, ::2].clone(), batch["cls"], batch["cls"].clone()))
    assert all(torch.equal(img, was) and torch.equal(cls, had) for img, was, cls, had in kept)
    # 8 are kept, at most 6 are ahead, 2 are in the loop's hands at a change, and 3 threads may hold one a moment too long.
    assert len(places) <= 8 + 6 + 2 + 3


def test_no_more_is_made_ahead_than_was_asked_for() -> None:
    """Two threads with room for two batches each, of which the consumer has taken one: a fifth is not begun."""
    fourth, fifth, begun = threading.Event(), threading.Event(), list[int]()

    def happens(ids: list[int], epoch: int) -> None:
        begun.append(ids[0])
        if len(begun) >= 4:
            (fourth if len(begun) == 4 else fifth).set()

    iterator = iter(loader_of(Pictures(40, happens=happens), prefetch=2))
    next(iterator)
    assert fourth.wait(WAIT_S)
    assert not fifth.wait(0.2)


def test_labels_are_new_memory_each_time() -> None:
    """A trainer plots them in a thread, and changes them in place."""
    loader = loader_of(Pictures(30), 3)
    batches = [(b["cls"], b["cls"].clone()) for b in loader]
    assert len({cls.data_ptr() for cls, _ in batches}) == 10
    assert all(torch.equal(cls, was) for cls, was in batches)


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
    for augment, options in ((True, {"shuffle": True}), (False, {"shuffle": True}), (True, {"shuffle": False, "world_size": 2})):
        with pytest.raises(UsageError, match=r"must come in order.*set shuffle=False or rect=False"):
            loader_of(Pictures(8, augment=augment, **shaped), 4, **options)


def test_threads_are_the_cores_shared_among_the_ranks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks with all cores each would stand in each other's way."""
    monkeypatch.setattr("fastdata.loader.usable_cores", lambda: 12)
    for told, number in (("", 12), ("1", 12), ("8", 1), ("4", 3), ("99", 1), ("x", 12), ("0", 12)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
        assert Loader(Pictures(20)).threads == number  # type: ignore[arg-type]
    assert Loader(Pictures(20), threads=5).threads == 5  # type: ignore[arg-type]
