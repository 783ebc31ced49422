"""Whatever label rows go in, what comes out obeys its invariant, by the short way as by the long one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from settle_kit import BROKEN, HW, check_invariant, rle, rows_of

from fastdata import settle as settle_module
from fastdata.labels import BOX, CROWD, DIFFICULT, MASK, OBB, POLYGON, Instances, Rows
from fastdata.problems import Problem
from fastdata.settle import settle

Numbers = st.SearchStrategy[float]

WILD = st.one_of(
    st.floats(-30, 130, width=32),
    st.sampled_from([0.0, -0.0, 50.0, 100.0, 100.005, -0.005, 49.995, 1e-12]),
    st.sampled_from([1e9, -1e9, 3e38, 1e300, math.nan, math.inf, -math.inf]),
    st.floats(),
)
TAME = st.one_of(st.integers(0, 50).map(float), st.floats(0, 50))
"""Inside the picture or on its border."""


def ring_of(number: Numbers, shortest: int, longest: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(number, min_size=2, max_size=2), min_size=shortest, max_size=longest)


def corners_of(number: Numbers) -> st.SearchStrategy[list[float]]:
    """Mostly a box with sides above zero, so that enough rows survive to be looked at."""
    straight = st.lists(number, min_size=4, max_size=4).map(
        lambda v: [min(v[0], v[1]), min(v[2], v[3]), max(v[0], v[1]), max(v[2], v[3])]
    )
    return st.one_of(straight, st.lists(number, min_size=4, max_size=4))


def masks(size_hw: tuple[int, int]) -> st.SearchStrategy[bytes]:
    def filled(corners: list[int]) -> bytes:
        mask = np.zeros(size_hw, np.uint8)
        y0, y1, x0, x1 = corners
        mask[y0:y1, x0:x1] = 1
        return rle(mask)

    good = st.lists(st.integers(0, min(size_hw)), min_size=4, max_size=4).map(filled)
    return st.one_of(good, st.sampled_from([packed for packed, _ in BROKEN]))


def row_strategy(number: Numbers, k: int, *, with_masks: bool, shortest: int) -> st.SearchStrategy[dict[str, Any]]:
    rings = st.lists(ring_of(number, shortest, 6), max_size=3)
    shape = st.one_of(
        st.fixed_dictionaries({"kind": st.just(BOX), "rings": st.just([])}),
        st.fixed_dictionaries({"kind": st.sampled_from([POLYGON, POLYGON, OBB, BOX]), "rings": rings}),
        *([st.fixed_dictionaries({"kind": st.just(MASK), "rle": masks(HW)})] if with_masks else []),
    )
    rest = st.fixed_dictionaries(
        {
            "box": st.one_of(st.none(), corners_of(number), corners_of(number)),
            "cls": st.integers(0, 9),
            "where": st.integers(1, 5),
            "flags": st.sampled_from([0, CROWD, DIFFICULT]),
            "area": st.floats(),
            "keypoints": st.lists(
                st.tuples(number, number, st.one_of(st.sampled_from([0.0, 1.0, 2.0]), number)).map(list), min_size=k, max_size=k
            ),
        }
    )
    return st.tuples(shape, rest).map(lambda pair: {**pair[0], **pair[1]})


def check_reports(rows: Rows, instances: Instances, problems: list[Problem]) -> None:
    """Every row is kept or told as dropped, and reports come in the order of the rows."""
    dropped = [p for p in problems if p.action == "dropped"]
    assert len(instances) + len(dropped) == len(rows)
    told = [p.line for p in problems]
    remaining = iter(rows.where.tolist())
    previous = None
    for line in told:  # each report stands at the row of the one before or at a later one
        if line != previous:
            assert line in remaining
        previous = line


@pytest.mark.parametrize("unit", ["px", "norm"])
@pytest.mark.parametrize("k", [0, 2])
def test_whatever_rows_go_in_the_instances_obey_their_invariant(unit: str, k: int) -> None:
    """NaN, infinite, huge, negative, degenerate, broken masks: kept + dropped = rows, and what is kept is sound."""

    @settings(max_examples=300, deadline=None)
    @given(st.lists(row_strategy(WILD, k, with_masks=True, shortest=0), max_size=4))
    def check(rows: list[dict[str, Any]]) -> None:
        made = rows_of(*[{**row, "where": i + 1} for i, row in enumerate(rows)], unit=unit, k=k)
        if unit == "norm":
            made.xyxy /= 100
            made.points /= 100
            made.keypoints[..., :2] /= 100
        instances, problems = settle(made, HW, key="k")
        check_invariant(instances, HW)
        check_reports(made, instances, problems)

    check()


def same(a: Instances, b: Instances) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name), equal_nan=getattr(a, name).dtype.kind == "f")
        for name in Instances.__slots__
    )


TRIANGLE = {"kind": POLYGON, "rings": [[[10, 10], [20, 10], [10, 20]]]}
TWO_PARTS = {"kind": POLYGON, "rings": [[[0, 0], [5, 0], [0, 5]], [[30, 30], [50, 30], [50, 50], [30, 50]]]}
PLAIN = {"kind": BOX, "box": [1, 2, 3, 4]}


@st.composite
def clean_row(draw: st.DrawFn) -> dict[str, Any]:
    """A row that no rule changes; some touch the border of the picture."""
    kind = draw(st.sampled_from([BOX, POLYGON, POLYGON, OBB]))
    rings = []
    for _ in range(0 if kind == BOX else draw(st.integers(1, 3))):
        x, y = draw(st.integers(0, 90)), draw(st.integers(0, 40))
        width, height = draw(st.sampled_from([1.0, 0.3, 10.0])), draw(st.sampled_from([1.0, 0.7, 10.0]))
        corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]
        rings.append(corners[: 4 if kind == OBB else draw(st.integers(3, 4))])
    left, top = draw(st.sampled_from([0, 0.5, 7])), draw(st.sampled_from([0, 0.25, 9]))
    box = [left, top, draw(st.sampled_from([10, 99.5, 100])), draw(st.sampled_from([10, 49.75, 50]))]
    keypoint = [draw(st.sampled_from([0, 50, 100, 101])), 5, draw(st.sampled_from([0, 1, 2]))]
    has_box = kind == BOX or draw(st.booleans())
    return {"kind": kind, "rings": rings, "box": box if has_box else None, "cls": kind + 3, "keypoints": [keypoint]}


BORDER = st.sampled_from([-0.011, -0.01, -0.005, 0.0, 0.005, 0.01, 0.0101, 20.0, 49.99, 50.0, 50.01, 99.995, 100.005, 100.02])
"""Either side of the borders and of the dust around them."""

TAME_ROW = row_strategy(TAME, 1, with_masks=False, shortest=3)
MIXED = st.one_of(
    st.lists(clean_row(), max_size=6),
    st.lists(TAME_ROW, max_size=4),
    st.lists(st.one_of(clean_row(), TAME_ROW), max_size=4),
    st.lists(st.fixed_dictionaries({"kind": st.just(BOX), "box": corners_of(st.one_of(BORDER, BORDER, WILD))}), max_size=4),
)


@settings(max_examples=400, deadline=None)
@given(MIXED)
@example([{**TRIANGLE, "box": None}, PLAIN, {**TWO_PARTS, "box": None}])
@example([PLAIN, {**TRIANGLE, "box": None}, {**TRIANGLE, "box": [0, 0, 50, 50]}, {**TWO_PARTS, "box": None}, PLAIN])
@example([{**TWO_PARTS, "box": [0, 0, 50, 50]}, {**TRIANGLE, "box": None}, PLAIN, PLAIN])
@example([{**TRIANGLE, "box": None}, {**TWO_PARTS, "box": None}, {**TRIANGLE, "box": None}])
@example([{"kind": BOX, "box": [0, 0, 100, 50]}, {"kind": OBB, "box": None, "rings": [[[0, 0], [100, 0], [100, 50], [0, 50]]]}])
@example([{"kind": BOX, "box": [-0.005, -0.009, 100.005, 50.009]}, PLAIN])
@example([{"kind": BOX, "box": [-0.009, 0, 0.0005, 10]}, PLAIN])
@example([{"kind": BOX, "box": None, "rings": [[[0, 0], [100, 0], [100, 50], [0, 50]]]}])
@example([{"kind": POLYGON, "box": [0, 0, 9, 9]}])
def test_the_short_way_for_clean_rows_gives_what_the_long_way_gives(rows: list[dict[str, Any]]) -> None:
    """``_boxes_if_clean`` skips work and decides nothing: rows with and without box and outline, in any order."""
    made = rows_of(*rows, k=1)
    short, short_problems = settle(made, HW, key="k")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle_module, "_boxes_if_clean", lambda *_: None)
        long, long_problems = settle(made, HW, key="k")
    assert same(short, long)
    assert short_problems == long_problems


@settings(max_examples=100, deadline=None)
@given(st.lists(clean_row(), min_size=1, max_size=6))
def test_clean_rows_take_the_short_way(rows: list[dict[str, Any]]) -> None:
    """Else the test above compares the long way with itself. The boxes are those given, or the bounds of the outlines."""
    made = rows_of(*rows, k=1)
    box = settle_module._boxes_if_clean(made, made.xyxy, made.points, HW)
    assert box is not None
    for got, row in zip(box.tolist(), rows, strict=True):
        x, y = zip(*[point for ring in row["rings"] for point in ring], strict=True) if row["rings"] else ((), ())
        assert got == (row["box"] or [min(x), min(y), max(x), max(y)])
