"""The ids of a rank and their tags, epoch after epoch, however the loader around them behaves."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from fastdata.augment.order import epoch_order
from fastdata.errors import UsageError
from fastdata.sampler import Index, Sampler

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later


def epochs_of(ids: list[Index]) -> set[int]:
    """The epochs that ids are tagged with."""
    return {i.epoch for i in ids}


def test_an_index_is_the_int_and_keeps_its_tag_through_a_pickle() -> None:
    """A worker's queue pickles ids; a trainer compares them with ints and looks things up by them."""
    index = Index(7, epoch=3, draw=2)
    again = pickle.loads(pickle.dumps(index))
    assert isinstance(again, int)
    assert index == again == 7
    assert hash(again) == hash(7)
    assert [*range(9)][again] == 7
    assert (again.epoch, again.draw, type(again)) == (3, 2, Index)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 2**70), st.integers(0, 4), st.booleans())
def test_ranks_share_each_epoch_without_overlap(n: int, world_size: int, seed: int, epochs: int, shuffle: bool) -> None:
    """Over the ranks each id at most once, all but a tail shorter than the ranks; length as announced; the published order."""
    if n < world_size:
        with pytest.raises(UsageError, match="at least one image a rank"):
            Sampler(n, world_size=world_size)
        return
    samplers = [Sampler(n, seed=seed, rank=r, world_size=world_size, shuffle=shuffle) for r in range(world_size)]
    for epoch in range(epochs):
        lengths = [len(s) for s in samplers]
        passes = [list(s) for s in samplers]
        assert [len(p) for p in passes] == lengths == [n // world_size] * world_size
        together = [i for p in passes for i in p]
        assert len(set(together)) == len(together)
        assert epochs_of(together) == {epoch}
        want = [epoch_order(n, seed, epoch, r, world_size, shuffle=shuffle).tolist() for r in range(world_size)]
        assert passes == want


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9))
def test_a_validation_deals_whole_batches_and_every_id_once(n: int, world_size: int, batch_size: int) -> None:
    """A score counts each picture once; a rect batch must not be torn between ranks."""
    passes = [
        list(Sampler(n, rank=r, world_size=world_size, shuffle=False, exact=True, batch_size=batch_size))
        for r in range(world_size)
    ]
    assert [i for p in passes for i in p] == list(range(n))
    assert all(p[0] % batch_size == 0 for p in passes if p)


def test_an_iterator_that_nobody_asks_skips_no_epoch() -> None:
    """Trainers call ``iter`` twice an epoch."""
    sampler = Sampler(5)
    iter(sampler), iter(sampler)
    assert epochs_of(list(sampler)) == {0}
    iter(sampler)
    assert epochs_of(list(sampler)) == {1}


def test_every_epoch_has_another_order_and_the_same_again() -> None:
    """Case smp-rank-order in one process: union, overlap, and an epoch's order whoever starts there."""
    full = [Sampler(24, seed=7, rank=r, world_size=2) for r in range(2)]
    orders = [[list(s) for s in full] for _ in range(3)]
    assert all(sorted(a + b) == list(range(24)) for a, b in orders)
    assert len({str(o) for o in orders}) == 3
    late = Sampler(24, seed=7, rank=1, world_size=2)
    late.set_epoch(2)
    assert list(late) == orders[2][1] != orders[1][1]


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_fetches_ahead_gets_each_epoch_once(announced: bool, workers: int) -> None:
    """Case smp-rank-order through a real loader on each of two ranks, with and without ``set_epoch``."""
    seen: list[list[list[int]]] = []
    for rank in range(2):
        sampler = Sampler(24, seed=7, rank=rank, world_size=2)
        loader = DataLoader(
            range(24),  # type: ignore[arg-type]
            2,
            sampler=sampler,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            persistent_workers=workers > 0,
        )
        seen.append([])
        for epoch in range(3):
            if announced:
                sampler.set_epoch(epoch)
            seen[-1].append([int(i) for batch in loader for i in batch])
    for epoch in range(3):
        assert seen[0][epoch] == epoch_order(24, 7, epoch, 0, 2).tolist()
        assert seen[1][epoch] == epoch_order(24, 7, epoch, 1, 2).tolist()


class Endless:
    """A loader that never ends its sampler and has asked for more than it hands out, as the trainers' own does."""

    def __init__(self, sampler: Sampler, ahead: int) -> None:
        self._ids = (i for _ in iter(int, 1) for i in BatchSampler(sampler, 1, drop_last=False))
        self._queue: list[Index] = []
        self._ahead, self._n = ahead, len(sampler)

    def __iter__(self) -> Iterator[Index]:
        for _ in range(self._n):
            while len(self._queue) <= self._ahead:
                self._queue += next(self._ids)
            yield self._queue.pop(0)


@pytest.mark.parametrize("ahead", [0, 3, 6])
@pytest.mark.parametrize("announced", [True, False])
def test_a_call_that_comes_after_the_loader_has_fetched_ahead_changes_nothing(ahead: int, announced: bool) -> None:
    """The trainers' defect: epoch 1 repeats epoch 0's order and all later ones lag by one."""
    sampler = Sampler(7, seed=1)
    loader = Endless(sampler, ahead)
    for epoch in range(4):
        if announced:
            sampler.set_epoch(epoch)
        assert list(loader) == epoch_order(7, 1, epoch).tolist()


def test_looking_at_one_batch_before_training_shifts_nothing() -> None:
    """A pass that was given up is not an epoch that was fetched ahead, neither at the start nor later."""
    sampler = Sampler(7)
    for epoch in range(3):
        peeked = iter(sampler)
        assert epochs_of(list(islice(peeked, 2))) == {epoch}
        sampler.set_epoch(epoch)
        assert epochs_of(list(sampler)) == {epoch}


def test_an_epoch_can_be_said_again() -> None:
    """After a recovery the trainer repeats an epoch, and goes on from there."""
    sampler = Sampler(7)
    for epoch in (0, 1, 2, 2, 3, 1, 2):
        sampler.set_epoch(epoch)
        assert epochs_of(list(sampler)) == {epoch}


@given(st.integers(4, 50), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_training_goes_on_within_an_epoch_at_any_world_size(n: int, old: int, new: int, data: st.DataObject) -> None:
    """What was not trained on yet is dealt to the ranks that are there now; then whole epochs follow."""
    before = [Sampler(n, seed=3, rank=r, world_size=old) for r in range(old)]
    for s in before:
        list(s)
    taken = data.draw(st.integers(1, n // old))
    done = [i for s in before for i in islice(s, taken)]
    states = [s.state_dict(taken) for s in before]
    assert all(state == states[0] for state in states)
    after = [Sampler(n, seed=3, rank=r, world_size=new) for r in range(new)]
    for s in after:
        s.load_state_dict(states[0])
    rest = [list(s) for s in after]
    if taken == n // old or n - taken * old < new:
        assert {i.epoch for p in rest for i in p} == {2}
        return
    assert {i.epoch for p in rest for i in p} == {1}
    together = done + [i for p in rest for i in p]
    assert len(set(together)) == len(together) > n - max(old, new)
    assert {i.epoch for s in after for i in s} == {2}


def test_a_state_between_epochs_names_the_next_one() -> None:
    """Nothing taken, everything taken, and an epoch that was said but not begun."""
    sampler = Sampler(6)
    assert sampler.state_dict()["epoch"] == 0
    list(sampler)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (1, 0)
    sampler.set_epoch(5)
    assert sampler.state_dict()["epoch"] == 5
    part = iter(sampler)
    next(part)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (5, 1)


def test_a_state_is_taken_again_before_the_pass_has_begun() -> None:
    """A run that is stopped right after it went on must not lose its place."""
    sampler = Sampler(6)
    list(sampler)
    list(islice(sampler, 4))
    state = sampler.state_dict()
    again = Sampler(6)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert len(again) == 2


def test_a_validation_begins_its_pass_anew() -> None:
    """Half a score is none."""
    sampler = Sampler(6, shuffle=False, exact=True, batch_size=2)
    list(islice(sampler, 3))
    again = Sampler(6, shuffle=False, exact=True, batch_size=2)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == list(range(6))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"n": 5}, "n of a state must be 6"), ({"seed": 1}, "seed of a state must be 0"), ({"version": 0}, "version of a state")],
)
def test_a_state_of_another_set_is_refused(change: dict[str, int], message: str) -> None:
    """Going on in another order would repeat some pictures and leave out others, silently."""
    with pytest.raises(UsageError, match=message):
        Sampler(6).load_state_dict(Sampler(6).state_dict() | change)


def test_what_breaks_a_rule_is_said() -> None:
    """At once, not in the first epoch."""
    with pytest.raises(UsageError, match="rank must be"):
        Sampler(6, rank=2, world_size=2)
    with pytest.raises(UsageError, match="epoch must be at least 0"):
        Sampler(6).set_epoch(-1)
    with pytest.raises(UsageError, match="shuffle must be False"):
        Sampler(6, exact=True)
