"""The order of an epoch: a permutation for any size, cut among ranks without a gap or a repeat, from any position on."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.augment.order import EpochOrder, epoch_order, exact_batches, rank_positions
from fastdata.errors import UsageError

SEEDS = st.integers(-(1 << 65), 1 << 65)


def whole(n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    """All ids in order."""
    return EpochOrder(n, seed, epoch).at(np.arange(n)).tolist()


def deviations(counts: np.ndarray) -> float:
    """Chi-square against equal counts, in standard deviations from what chance gives."""
    want = counts.sum() / counts.size
    chi2 = float(((counts - want) ** 2 / want).sum())
    return (chi2 - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1))


@pytest.mark.parametrize("n", [*range(40), *range(40, 301, 7), 255, 256, 257])
def test_each_id_comes_once_in_a_set_of_any_size(n: int) -> None:
    """0 and 1 included, and the way back leads to the same positions."""
    order = EpochOrder(n, 5, n)
    ids = order.at(np.arange(n))
    assert ids.dtype == np.int64
    assert sorted(ids.tolist()) == list(range(n))
    assert order.position_of(ids).tolist() == list(range(n))


@settings(max_examples=20)
@given(st.integers(301, 60_000), SEEDS, st.integers(0, 1000))
def test_each_id_comes_once_in_a_large_set(n: int, seed: int, epoch: int) -> None:
    """Sizes between powers of two too, where most of the walk is."""
    ids = EpochOrder(n, seed, epoch).at(np.arange(n))
    assert np.array_equal(np.sort(ids), np.arange(n))


@given(st.integers(1, 1 << 40), SEEDS, st.data())
def test_a_position_and_its_id_lead_to_each_other(n: int, seed: int, data: st.DataObject) -> None:
    """In a set of any size, each by itself."""
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    order = EpochOrder(n, seed, 2)
    assert order.position_of(order.at(numbers)).tolist() == numbers
    assert order.at(order.position_of(numbers)).tolist() == numbers
    assert [int(order.at(p)[0]) for p in numbers] == order.at(numbers).tolist()


def test_a_thousand_million_ids_take_no_memory() -> None:
    """Single positions, ranks and batches of them: nothing that grows with the set."""
    n = 10**9
    tracemalloc.start()
    order = EpochOrder(n, 1, 7)
    ids = order.at([0, n // 2, n - 1])
    assert order.position_of(ids).tolist() == [0, n // 2, n - 1]
    assert len(rank_positions(n, 3, 8)) == n // 8
    assert next(iter(exact_batches(n, 64, 7, 8))) == range(875_000_000, 875_000_064)  # 7 / 8
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    assert len(set(ids.tolist())) == 3


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """Twelve of each, no two alike; and the same numbers give the same order."""
    orders = [tuple(whole(50, seed, epoch)) for seed, epoch in itertools.product(range(12), range(12))]
    assert len(set(orders)) == 144
    assert tuple(whole(50, 3, 4)) in orders
    assert whole(50) != list(range(50))


def test_without_shuffling_ids_stay_where_they_are() -> None:
    """In each epoch."""
    assert EpochOrder(9, 1, 5, shuffle=False).at(range(9)).tolist() == list(range(9))
    assert epoch_order(9, 1, 5, 1, 2, shuffle=False).tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("n", [2, 5, 17])
def test_every_id_may_stand_anywhere(n: int) -> None:
    """Over 1,500 epochs the first and the last id are at every position equally often: chi-square."""
    places = np.array([EpochOrder(n, 0, epoch).position_of([0, n - 1]) for epoch in range(1500)])
    assert deviations(np.bincount(places[:, 0], minlength=n)) < 4
    assert deviations(np.bincount(places[:, 1], minlength=n)) < 4


def test_all_orders_of_a_small_set_are_as_likely() -> None:
    """All 24 of four ids: chi-square over 2,400 epochs."""
    found = Counter(tuple(whole(4, 1, epoch)) for epoch in range(2400))
    assert len(found) == 24
    assert deviations(np.array(list(found.values()))) < 4


def test_any_two_ids_may_follow_each_other() -> None:
    """Pairs at neighbouring positions over 1,000 epochs: all n * (n - 1) are as likely."""
    n = 12
    counts = np.zeros((n, n))
    for epoch in range(1000):
        ids = whole(n, 9, epoch)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert not counts.diagonal().any()
    assert deviations(counts[~np.eye(n, dtype=bool)]) < 4


def test_neighbouring_epochs_are_unrelated() -> None:
    """Where an id stands says nothing about where it stands in the next epoch, or with the next seed."""
    n = 20_000
    orders = [np.array(whole(n, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for a, b in itertools.combinations(orders, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / np.sqrt(n)
        assert (a == b).sum() < 10
    assert abs(np.corrcoef(orders[0], np.arange(n))[0, 1]) < 4.5 / np.sqrt(n)


@given(st.integers(1, 300), st.integers(1, 9), SEEDS)
def test_ranks_share_an_epoch_without_gap_or_repeat(n: int, world_size: int, seed: int) -> None:
    """Equally many each; together the first n - n % world_size of the one order; only its tail is dropped."""
    if n < world_size:
        with pytest.raises(UsageError, match=f"got {n} images for {world_size} ranks"):
            epoch_order(n, seed, 3, 0, world_size)
        return
    parts = [epoch_order(n, seed, 3, rank, world_size) for rank in range(world_size)]
    assert {len(part) for part in parts} == {n // world_size}
    interleaved = np.stack(parts, 1).reshape(-1)
    assert interleaved.tolist() == whole(n, seed, 3)[: n - n % world_size]


@given(st.integers(1, 200), st.lists(st.tuples(st.integers(1, 7), st.integers(0, 12)), min_size=1, max_size=5), SEEDS)
def test_an_epoch_goes_on_at_any_world_size(n: int, legs: list[tuple[int, int]], seed: int) -> None:
    """Stopped after some steps and gone on with other numbers of ranks: the order is trained on once, up to the last tail."""
    done: list[int] = []
    for world_size, steps in legs:
        start = len(done)
        if start == 0 and n < world_size:
            continue
        parts = [epoch_order(n, seed, 1, rank, world_size, start=start) for rank in range(world_size)]
        assert len({len(part) for part in parts}) == 1
        done += np.stack([part[:steps] for part in parts], 1).reshape(-1).tolist()
    world_size = legs[-1][0]
    if done or n >= world_size:
        rest = [epoch_order(n, seed, 1, rank, world_size, start=len(done)) for rank in range(world_size)]
        tail = (n - len(done)) % world_size
        done += np.stack(rest, 1).reshape(-1).tolist()
        assert len(done) == n - tail
    assert done == whole(n, seed, 1)[: len(done)]


@given(st.integers(0, 300), st.integers(1, 70), st.integers(1, 9))
def test_exact_batches_count_every_id_once(n: int, batch_size: int, world_size: int) -> None:
    """Over the ranks in order: each position once, whole batches but for the last one, and no rank two ahead of another."""
    parts = [list(exact_batches(n, batch_size, rank, world_size)) for rank in range(world_size)]
    batches = [batch for part in parts for batch in part]
    assert [position for batch in batches for position in batch] == list(range(n))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (0, -1)])
def test_a_rank_that_is_none_is_refused_at_once(rank: int, world_size: int) -> None:
    """Before the first batch is asked for."""
    for call in (lambda: exact_batches(10, 2, rank, world_size), lambda: epoch_order(10, 0, 0, rank, world_size)):
        with pytest.raises(UsageError, match=f"got rank {rank} and world_size {world_size}"):
            call()


def test_numbers_that_break_their_rule_are_refused() -> None:
    """With the rule and the value."""
    with pytest.raises(UsageError, match="n must be at least 0, got -1"):
        EpochOrder(-1)
    with pytest.raises(UsageError, match="n must be at least 0, got -1"):
        exact_batches(-1, 4)
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        exact_batches(5, 0)
    for start in (-1, 6):
        with pytest.raises(UsageError, match=rf"start must be in 0\.\.5, got {start}"):
            epoch_order(5, 0, 0, start=start)
    with pytest.raises(UsageError, match="got 0 images for 1 ranks"):
        epoch_order(0, 0, 0)


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40])
def test_a_position_or_id_beyond_the_set_is_an_error(wrong: int) -> None:
    """Also among good ones, and without shuffling."""
    for order in (EpochOrder(5), EpochOrder(5, shuffle=False)):
        with pytest.raises(IndexError, match=r"position must be in 0\.\.4"):
            order.at([0, wrong])
        with pytest.raises(IndexError, match=r"id must be in 0\.\.4"):
            order.position_of([0, wrong])
    assert EpochOrder(0).at([]).tolist() == []


def test_an_order_is_worth_its_numbers() -> None:
    """It can be compared, and sent to another process; what is given to it stays as it was."""
    order = EpochOrder(40, 2, 3)
    again = pickle.loads(pickle.dumps(order))
    assert again == order != EpochOrder(40, 2, 4)
    given_ids = np.arange(40)
    assert again.at(given_ids).tolist() == order.at(given_ids).tolist() == whole(40, 2, 3)
    assert given_ids.tolist() == list(range(40))
