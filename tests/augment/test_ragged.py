"""Rows of different lengths, empty ones among them: each helper against the loop that it saves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.augment import ragged

COUNTS = st.lists(st.integers(0, 4), max_size=8)


def rows_of(counts: list[int]) -> list[list[int]]:
    """Elements 0, 1, 2, ... as rows of these lengths."""
    ends = np.cumsum([0, *counts]).tolist()
    return [list(range(a, b)) for a, b in itertools.pairwise(ends)]


def test_offsets_begin_at_zero_and_end_at_the_number_of_elements() -> None:
    """Of no rows too, and of flags as counts."""
    assert ragged.offsets_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert ragged.offsets_of(np.array([True, False, True])).tolist() == [0, 1, 1, 2]
    assert ragged.offsets_of(np.zeros(0, np.int64)).tolist() == [0]
    assert ragged.offsets_of(np.zeros(0, np.int32)).dtype == np.int64


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=8))
def test_many_ranges_are_one_range_after_the_other(spans: list[tuple[int, int]]) -> None:
    """In any order, overlapping, empty."""
    first = np.array([a for a, _ in spans], np.int64)
    last = first + np.array([n for _, n in spans], np.int64)
    assert ragged.ranges(first, last).tolist() == [i for a, n in spans for i in range(a, a + n)]


@given(COUNTS)
def test_owners_and_successors_are_those_of_each_row(counts: list[int]) -> None:
    """The successor of the last is the first; a row of one follows itself."""
    offsets, rows = ragged.offsets_of(np.array(counts, np.int64)), rows_of(counts)
    assert ragged.owners(offsets).tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert ragged.successors(offsets).tolist() == [j for row in rows for j in [*row[1:], *row[:1]]]


@given(COUNTS, st.data())
def test_chosen_rows_come_in_the_order_asked_for(counts: list[int], data: st.DataObject) -> None:
    """Also twice, also by flags, also out of offsets that do not begin at 0."""
    offsets, rows = ragged.offsets_of(np.array(counts, np.int64)), rows_of(counts)
    wanted = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=6)) if counts else []
    index, cut = ragged.gather(np.array(wanted, np.int64), offsets + 7)
    assert [(index[a:b] - 7).tolist() for a, b in itertools.pairwise(cut)] == [rows[i] for i in wanted]
    flags = np.array(data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts))), np.bool_)
    index, cut = ragged.gather(flags, offsets)
    assert [index[a:b].tolist() for a, b in itertools.pairwise(cut)] == [rows[i] for i in np.flatnonzero(flags)]


def test_objects_bring_their_rings_and_the_points_of_these() -> None:
    """Three objects of 2, 0 and 1 rings, of 3, 1 and 2 points."""
    outer, inner = np.array([0, 2, 2, 3]), np.array([0, 3, 4, 6])
    points, rings_of_objects, points_of_rings = ragged.gather_nested(np.array([2, 1, 0]), outer, inner)
    assert points.tolist() == [4, 5, 0, 1, 2, 3]
    assert rings_of_objects.tolist() == [0, 1, 1, 3]
    assert points_of_rings.tolist() == [0, 2, 5, 6]
    for part in ragged.gather_nested(np.zeros(0, np.int64), outer, inner):
        assert part.tolist() in ([], [0])


@given(COUNTS, st.data())
def test_offsets_follow_when_elements_are_dropped(counts: list[int], data: st.DataObject) -> None:
    """Each row keeps as many elements as it has flags."""
    n = sum(counts)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    got = ragged.offsets_kept(kept, ragged.offsets_of(np.array(counts, np.int64)))
    assert np.diff(got).tolist() == [int(kept[row].sum()) for row in rows_of(counts)]


@given(COUNTS, st.data())
def test_least_greatest_and_sum_are_those_of_each_row(counts: list[int], data: st.DataObject) -> None:
    """An empty row, first, last or between, takes nothing from its neighbours."""
    number = st.integers(-50, 50).map(float)
    values = np.array(data.draw(st.lists(st.tuples(number, number), min_size=sum(counts), max_size=sum(counts)))).reshape(-1, 2)
    offsets, rows = ragged.offsets_of(np.array(counts, np.int64)), rows_of(counts)
    full = [i for i, row in enumerate(rows) if row]
    least, greatest, total = ragged.row_min(values, offsets), ragged.row_max(values, offsets), ragged.row_sum(values, offsets)
    assert least.shape == greatest.shape == total.shape == (len(counts), 2)
    for i in full:
        assert least[i].tolist() == values[rows[i]].min(axis=0).tolist()
        assert greatest[i].tolist() == values[rows[i]].max(axis=0).tolist()
        assert total[i].tolist() == values[rows[i]].sum(axis=0).tolist()
    empty = np.setdiff1d(np.arange(len(counts)), full)
    assert (least[empty] == np.inf).all()
    assert (greatest[empty] == -np.inf).all()
    assert (total[empty] == 0).all()


@pytest.mark.parametrize("reduce", [ragged.row_min, ragged.row_max])
def test_an_empty_row_has_the_value_asked_for(reduce: object) -> None:
    """Also where every row is empty."""
    assert callable(reduce)
    assert reduce(np.zeros(0), np.array([0, 0, 0]), 7.0).tolist() == [7, 7]
    assert reduce(np.zeros(0), np.array([0])).tolist() == []
