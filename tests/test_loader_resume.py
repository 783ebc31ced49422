"""Going on: after any batch, in another process, over any number of ranks, and never with samples of another run."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import training_kit
from hypothesis import given
from hypothesis import strategies as st
from loader_kit import Pictures, all_ids, all_threads_end, ids_of, loader_of, threads

from fastdata.augment.order import epoch_order
from fastdata.errors import FastdataError, UsageError
from fastdata.loader import Loader

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert all_threads_end()


def saved(loader: Loader) -> dict[str, Any]:
    """The state, by way of a file."""
    state = loader.state_dict()
    read: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    assert read == state
    return read


@given(st.booleans(), st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.data())
def test_a_run_that_was_cut_anywhere_is_the_run_that_was_not(
    augment: bool, n: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    """Bit for bit, over three epochs, cut after any batch of any rank, into a new loader with other threads."""
    if augment and n // world_size < batch_size:
        return
    rank = data.draw(st.integers(0, world_size - 1))
    settings: dict[str, Any] = {"rank": rank, "world_size": world_size}
    if augment:
        settings["drop_last"] = data.draw(st.booleans())
    whole = loader_of(Pictures(n, augment=augment), batch_size, threads=1, **settings)
    want = [list(whole) for _ in range(3)]
    epoch = data.draw(st.integers(0, 1))
    cut = data.draw(st.integers(0, len(want[epoch])))
    first = loader_of(Pictures(n, augment=augment), batch_size, threads=2, **settings)
    for _ in range(epoch):
        list(first)
    iterator = iter(first)
    head = [next(iterator) for _ in range(cut)]
    second = loader_of(Pictures(n, augment=augment), batch_size, threads=data.draw(st.integers(1, 3)), **settings)
    second.load_state_dict(saved(first))
    got = [*head, *second]
    assert ids_of(got) == ids_of(want[epoch])
    assert all(torch.equal(a["img"], b["img"]) and torch.equal(a["cls"], b["cls"]) for a, b in zip(got, want[epoch], strict=True))
    assert ids_of(second) == ids_of(want[epoch + 1])


@given(st.integers(4, 80), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=5))
def test_any_world_sizes_together_take_each_id_of_an_epoch_once(n: int, legs: list[tuple[int, int, int]]) -> None:
    """Legs of (ranks, batch size, steps), then whatever is left: the global order, but for the last leg's tail."""
    state, taken = saved(loader_of(Pictures(n), 1)), list[int]()
    for world_size, batch_size, steps in [*legs, (3, 1, 10**9)]:
        ranks = [
            loader_of(Pictures(n), min(batch_size, n // world_size), rank=r, world_size=world_size, threads=1)
            for r in range(world_size)
        ]
        for loader in ranks:
            loader.load_state_dict(state)
        batches = [ids_of(islice(loader, steps)) for loader in ranks]
        assert len({len(b) for b in batches}) == 1
        taken += [i for step in zip(*batches, strict=True) for row in zip(*step, strict=True) for i in row]
        states = [saved(loader) for loader in ranks]
        assert all(s == states[0] for s in states)
        state = states[0]
        if state["epoch"] == 1:
            break
        assert state["position"] == len(taken)
    order = epoch_order(n, 3, 0).tolist()
    assert taken == order[: len(taken)]
    assert n - len(taken) < max(world_size for world_size, _, _ in [*legs, (3, 1, 0)])


def test_two_ranks_become_one_and_then_three() -> None:
    """By hand: 23 ids, two steps of 2 x 3, one of 1 x 4, the rest over 3 x 2."""
    order = epoch_order(23, 3, 0).tolist()
    two = [loader_of(Pictures(23), 3, rank=r, world_size=2) for r in range(2)]
    assert [ids_of(islice(loader, 2)) for loader in two] == [[order[r:6:2], order[6 + r : 12 : 2]] for r in range(2)]
    one = loader_of(Pictures(23), 4)
    one.load_state_dict(saved(two[1]))
    assert ids_of(islice(one, 1)) == [order[12:16]]
    three = [loader_of(Pictures(23), 2, rank=r, world_size=3) for r in range(3)]
    for loader in three:
        loader.load_state_dict(saved(one))
    assert [ids_of(loader) for loader in three] == [[[order[16 + r], order[19 + r]]] for r in range(3)]  # order[22] is the tail
    assert saved(three[0])["epoch"] == 1


def test_batches_that_are_ready_do_not_count() -> None:
    """The state is where the consumer is, however far the threads are."""
    loader = loader_of(Pictures(40), 4, threads=4, prefetch=4)
    assert saved(loader)["position"] == 0
    for k, _ in enumerate(loader, 1):
        assert (loader.epoch, saved(loader)["position"]) == (0, 4 * k)
    assert (loader.epoch, saved(loader)["position"]) == (1, 0)


def test_asking_for_an_iterator_does_not_use_up_a_state() -> None:
    """Trainers ask for two an epoch."""
    first = loader_of(Pictures(40), 4)
    list(islice(first, 3))
    second = loader_of(Pictures(40), 4)
    second.load_state_dict(saved(first))
    iter(second)
    assert saved(second) == saved(first)
    assert len(list(second)) == 7
    assert len(list(second)) == 10


def test_a_state_of_the_last_batch_leaves_an_empty_rest() -> None:
    """The loop around the epochs counts the same with and without the interruption."""
    loader = loader_of(Pictures(7), 2)
    states = [saved(loader) for _ in loader]
    again = loader_of(Pictures(7), 2)
    again.load_state_dict(states[-1])
    assert list(again) == []
    assert {b["epoch"] for b in again} == {1}


def test_a_state_can_be_loaded_in_the_middle_of_an_iteration() -> None:
    """Back to a checkpoint after the loss has gone wrong; the iteration that was under way may be thrown away later."""
    loader = loader_of(Pictures(40), 4)
    iterator = iter(loader)
    next(iterator)
    state = saved(loader)
    next(iterator)
    loader.load_state_dict(state)
    assert threads() == []
    rest = list(loader)
    del iterator
    assert all_ids(rest) == epoch_order(40, 3, 0).tolist()[4:]
    assert saved(loader)["epoch"] == 1


def test_naming_the_epoch_of_a_state_keeps_its_place_and_another_one_does_not() -> None:
    """Loops that call set_epoch, or are asked, at the beginning of every epoch."""
    state = loader_of(Pictures(40), 4).state_dict() | {"epoch": 2, "position": 12}
    for told, batches in ((2, 7), (3, 10), (0, 10)):
        loader = loader_of(Pictures(40), 4)
        loader.load_state_dict(state)
        loader.set_epoch(told)
        assert saved(loader)["position"] == (12 if told == 2 else 0)
        assert len(list(loader)) == batches
        asked = loader_of(Pictures(40), 4, epoch_of=lambda told=told: told)
        asked.load_state_dict(state)
        assert len(list(asked)) == batches
        assert len(list(asked)) == 10


def test_a_state_at_the_end_of_an_epoch_is_of_the_one_that_comes() -> None:
    """Also where another iteration, or set_epoch, has moved on while this one was under way."""
    loader = loader_of(Pictures(8), 4)
    for _ in loader:
        for _ in loader:
            pass
    assert saved(loader)["epoch"] == next(iter(loader))["epoch"] == 3
    for _ in loader:
        loader.set_epoch(7)
    assert saved(loader)["epoch"] == next(iter(loader))["epoch"] == 7


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_stands_where_the_loader_stands(copied: Callable[[Loader], Loader], tmp_path: Path) -> None:
    """Also in the middle of an epoch, with threads at work; then they are apart."""
    loader = Loader(training_kit.flat(tmp_path), 2, imgsz=32, threads=2)
    loader.set_epoch(4)
    iterator = iter(loader)
    next(iterator)
    other = copied(loader)
    assert saved(other) == saved(loader)
    assert [training_kit.digest(b) for b in other] == [training_kit.digest(b) for b in loader]
    assert len(list(iterator)) == 3


def test_the_place_after_an_error_is_that_of_the_last_batch() -> None:
    """So the failing batch is tried again by a run that goes on."""
    order = epoch_order(20, 3, 0).tolist()

    def happens(ids: list[int], epoch: int) -> None:
        if order[9] in ids:
            raise OSError("gone for a moment")

    loader = loader_of(Pictures(20, happens=happens), 4)
    iterator = iter(loader)
    with pytest.raises(FastdataError, match="gone for a moment"):
        list(iterator)
    assert list(iterator) == []
    assert (loader.epoch, saved(loader)["position"]) == (0, 8)
    again = loader_of(Pictures(20), 4)
    again.load_state_dict(saved(loader))
    assert all_ids(again) == order[8:]


def test_validation_goes_on_on_its_own_rank() -> None:
    """Exactly once each, also over an interruption; another rank's place is refused."""
    first = loader_of(Pictures(23, augment=False), 4, rank=1, world_size=2)
    head = list(islice(first, 1))
    second = loader_of(Pictures(23, augment=False), 4, rank=1, world_size=2)
    second.load_state_dict(saved(first))
    assert all_ids(chain(head, second)) == list(range(12, 23))
    other = loader_of(Pictures(23, augment=False), 4, rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"loader\.rank must be 1, got 0"):
        other.load_state_dict(saved(first))


def test_entries_that_are_known_to_be_bad_travel_with_the_state() -> None:
    """In any thread's order they are the same list; a loader that knew others keeps them."""
    first = loader_of(Pictures(20))
    first.samples.bad.update((17, 3, 11))
    state = saved(first)
    assert state["bad"] == [3, 11, 17]
    second = loader_of(Pictures(20))
    second.samples.bad.add(5)
    second.load_state_dict(state)
    assert second.samples.bad == {3, 5, 11, 17}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"store": "two"}, "store must be 'one', got 'two'"),
        ({"policy": {"scale": (0.5, 1.5), "mosaic": 0.5}}, r"policy\.mosaic must be 1\.0, got 0\.5"),
        ({"policy": {"scale": (0.5, 1.4), "mosaic": 1.0}}, r"policy\.scale must be \[0\.5, 1\.5\], got \[0\.5, 1\.4\]"),
        ({"policy": {"scale": (0.5, 1.5)}}, r"policy\.mosaic must be 1\.0, got nothing"),
        ({"plan_version": 2}, "plan_version must be nothing, got 2"),
        ({"store": "two", "plan_version": 2}, "plan_version must be nothing, got 2; store must be 'one', got 'two'"),
    ],
)
def test_a_state_of_other_samples_is_refused(settings: dict[str, Any], says: str) -> None:
    """Each differing setting with both values, and what to do; nothing has changed then."""
    state = saved(loader_of(Pictures(20)))
    state["position"] = 4
    other = Pictures(20)
    other.settings |= settings
    loader = loader_of(other)
    with pytest.raises(UsageError, match=rf"unseen: {says}; give the loader the same settings.*set_epoch\(0\)$"):
        loader.load_state_dict(state)
    assert saved(loader)["position"] == 0


def test_another_order_is_refused() -> None:
    """Positions of one order say nothing in another."""
    with pytest.raises(UsageError, match=r"loader\.shuffle must be True, got False"):
        loader_of(Pictures(20), shuffle=False).load_state_dict(loader_of(Pictures(20)).state_dict())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version of the state must be 1, got 2; go on with the version of fastdata that wrote it"),
        ({"epoch": -1}, "epoch of the state must be a whole number at least 0, got -1"),
        ({"epoch": "0"}, "epoch of the state must be a whole number at least 0, got '0'"),
        ({"position": 21}, r"position of the state must be a whole number in 0\.\.20, got 21"),
        ({"position": 1.0}, "position of the state must be a whole number"),
        ({"position": True}, "position of the state must be a whole number"),
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any], says: str) -> None:
    """With what to pass instead."""
    loader = loader_of(Pictures(20))
    with pytest.raises(UsageError, match=says):
        loader.load_state_dict(loader.state_dict() | change)


@pytest.mark.parametrize("junk", [{}, {"epoch": 0}, None, [1, 2]])
def test_junk_is_refused(junk: Any) -> None:
    """A whole checkpoint passed by mistake, say."""
    with pytest.raises(UsageError, match=r"the state must have the keys version, epoch.*pass what state_dict\(\) returned"):
        loader_of(Pictures(20)).load_state_dict(junk)
