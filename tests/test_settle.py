"""The rules on label geometry, one by one with exact numbers, then for whatever rows go in."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastdata import settle as settle_module
from fastdata.boxes import xywh_norm_to_xyxy_norm
from fastdata.labels import BOX, CROWD, DIFFICULT, MASK, OBB, POLYGON, Instances, Rows
from fastdata.masks import mask_to_rle, rings_to_mask
from fastdata.problems import Problem
from fastdata.settle import DUST_PX, scaled, settle

HW = (50, 100)
"""Most tests use a picture 100 wide and 50 high, so that an exchange of the two shows."""


def rows_of(
    *rows: dict[str, Any], unit: str = "px", place: str = "line", declared_hw: tuple[int, int] | None = None, k: int = 0
) -> Rows:
    """Make Rows of plain values: ``box`` (corners or None), ``rings``, ``kind``, ``keypoints``, ``rle``, ``where``, ...

    The kind is BOX without rings and POLYGON with rings, unless a row says otherwise.
    """
    n = len(rows)
    rings = [row.get("rings", []) for row in rows]
    flat = [np.array(ring, np.float64).reshape(-1, 2) for parts in rings for ring in parts]
    boxes = [row.get("box") for row in rows]
    keypoints = np.array([row.get("keypoints", np.zeros((k, 3))) for row in rows], np.float64)
    return Rows(
        unit=unit,  # type: ignore[arg-type]
        file="labels/x.txt",
        place=place,  # type: ignore[arg-type]
        cls=np.array([row.get("cls", 0) for row in rows], np.int32),
        xyxy=np.array([[math.nan] * 4 if box is None else box for box in boxes], np.float64).reshape(n, 4),
        has_box=np.array([box is not None for box in boxes], np.bool_),
        kind=np.array([row.get("kind", POLYGON if row.get("rings") else BOX) for row in rows], np.uint8),
        flags=np.array([row.get("flags", 0) for row in rows], np.uint8),
        where=np.array([row.get("where", i + 1) for i, row in enumerate(rows)], np.int64),
        area=np.array([row.get("area", math.nan) for row in rows], np.float64),
        part_offsets=np.concatenate([[0], np.cumsum([len(parts) for parts in rings])]).astype(np.int64),
        point_offsets=np.concatenate([[0], np.cumsum([len(ring) for ring in flat])]).astype(np.int64),
        points=np.concatenate([*flat, np.zeros((0, 2))]),
        keypoints=keypoints.reshape(n, keypoints.shape[1] if n else k, 3),
        rle=[row.get("rle") for row in rows],
        declared_hw=declared_hw,
    )


def one(row: dict[str, Any], size_hw: tuple[int, int] = HW, **more: Any) -> tuple[Instances, list[tuple[str, str]]]:
    """Settle one row: the instances, and (kind, action) of the problems."""
    instances, problems = settle(rows_of(row, **more), size_hw, key="images/x.png")
    return instances, [(p.kind, p.action) for p in problems]


def rings_of(instances: Instances, i: int = 0) -> list[list[list[float]]]:
    return [ring.tolist() for ring in instances.parts(i)]


def rle(mask: np.ndarray) -> bytes:
    return json.dumps(mask_to_rle(mask)).encode()


# ---------------------------------------------------------------------------------------------------------------- boxes


def test_a_box_inside_stays_as_it_is() -> None:
    """Also when it is the whole picture."""
    for box in ([10, 5, 40, 35], [0, 0, 100, 50], [99.5, 49.5, 100, 50]):
        instances, told = one({"box": box, "cls": 3, "where": 7, "flags": CROWD, "area": 12.5})
        assert instances.xyxy_px.tolist() == [box]
        assert (instances.cls[0], instances.kind[0], instances.flags[0], instances.original_id[0]) == (3, BOX, CROWD, 7)
        assert instances.area_px.tolist() == [12.5]
        assert told == []


def test_fractions_are_multiplied_by_width_and_height() -> None:
    """x by the width, y by the height: corners, outlines and keypoints."""
    row = {"box": [0.1, 0.1, 0.5, 0.5], "rings": [[[0.1, 0.1], [0.5, 0.1], [0.5, 0.5]]], "keypoints": [[0.2, 0.4, 2]]}
    instances, told = one(row, unit="norm")
    assert instances.xyxy_px.tolist() == [[10, 5, 50, 25]]
    assert rings_of(instances) == [[[10, 5], [50, 5], [50, 25]]]
    assert instances.keypoints_px.tolist() == [[[20, 20, 2]]]
    assert told == []


@pytest.mark.parametrize(
    ("box", "left"),
    [
        ([90, 15, 110, 35], [90, 15, 100, 35]),
        ([-10, 15, 20, 35], [0, 15, 20, 35]),
        ([10, -3, 20, 35], [10, 0, 20, 35]),
        ([10, 15, 20, 60], [10, 15, 20, 50]),
        ([-1e9, -1e9, 1e9, 1e9], [0, 0, 100, 50]),
    ],
)
def test_a_box_leaving_the_frame_is_clipped_and_told(box: list[float], left: list[float]) -> None:
    """Each side by itself."""
    instances, told = one({"box": box})
    assert instances.xyxy_px.tolist() == [left]
    assert told == [("clipped", "clipped")]


def test_the_yolo_box_whose_corners_leave_the_frame_is_clipped_from_its_corners() -> None:
    """``0 0.99 0.5 0.5 0.2``: all four numbers are below 1, the right side is at 1.24."""
    corners = xywh_norm_to_xyxy_norm(np.array([[0.99, 0.5, 0.5, 0.2]]))[0]
    instances, told = one({"box": corners}, unit="norm")
    assert instances.xyxy_px.tolist() == [[74, 20, 100, 30]]
    assert told == [("clipped", "clipped")]


def test_dust_over_the_border_is_rounding_and_not_told() -> None:
    """Less than a hundredth of a pixel is clipped in silence, more is told."""
    instances, told = one({"box": [-0.009, 10, 100.009, 50.009]})
    assert instances.xyxy_px.tolist() == [[0, 10, 100, 50]]
    assert told == []
    assert one({"box": [-0.011, 10, 100, 50]})[1] == [("clipped", "clipped")]


@pytest.mark.parametrize("box", [[100, 10, 120, 30], [-30, 10, 0, 30], [10, 50, 20, 60], [10, -9, 20, 0], [200, 200, 210, 210]])
def test_a_box_outside_is_dropped(box: list[float]) -> None:
    """Also one that only touches the border."""
    instances, told = one({"box": box})
    assert len(instances) == 0
    assert told == [("outside", "dropped")]


@pytest.mark.parametrize("box", [[50, 25, 50, 25], [10, 10, 30, 10], [10, 10, 10, 30], [10, 10, 10.009, 30], [200, 9, 200, 9]])
def test_a_box_without_area_is_dropped(box: list[float]) -> None:
    """A side below a hundredth of a pixel, inside the picture or not."""
    instances, told = one({"box": box})
    assert len(instances) == 0
    assert told == [("zero-area", "dropped")]


def test_the_smallest_box_is_a_hundredth_of_a_pixel() -> None:
    """Just above the limit it stays."""
    assert len(one({"box": [10, 10, 10.0101, 10.0101]})[0]) == 1


@pytest.mark.parametrize("box", [[30, 10, 20, 20], [10, 30, 20, 20], [30, 30, 20, 20], [200, 10, 190, 20]])
def test_a_negative_size_is_named_as_that(box: list[float]) -> None:
    """Wherever it lies; the corners are not exchanged by guess."""
    instances, told = one({"box": box})
    assert len(instances) == 0
    assert told == [("negative-size", "dropped")]


def test_a_box_of_infinities_alone_is_dropped_without_a_warning() -> None:
    """Infinity minus infinity is nothing to compute with."""
    for box in ([math.inf] * 4, [-math.inf] * 4, [0, math.inf, 0, math.inf], [-math.inf, 0, math.inf, 10], [-3e38, 0, 3e38, 10]):
        assert one({"box": box})[1] == ([("clipped", "clipped")] if 3e38 in box else [("not-finite", "dropped")])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, -1e300])
@pytest.mark.parametrize("at", range(4))
def test_a_box_with_a_number_that_is_none_is_dropped(bad: float, at: int) -> None:
    """NaN, infinite, or beyond what the store's numbers hold."""
    box = [10.0, 10.0, 20.0, 20.0]
    box[at] = bad
    for unit in ("px", "norm"):
        instances, told = one({"box": box}, unit=unit)
        assert len(instances) == 0
        assert told == [("not-finite", "dropped")]


def test_a_box_on_a_very_wide_picture_has_two_different_edges_also_in_32_bits() -> None:
    """Beyond 65,536 px neighbouring float32 numbers are further apart than the smallest side."""
    size_hw = (1000, 178_956)
    for x in np.linspace(150_000, 150_001, 40):
        for side in (0.0101, 0.0157, 0.02, 0.05):
            instances, _ = one({"box": [x, 10, x + side, 20]}, size_hw)
            assert (instances.xyxy_px[:, 0] < instances.xyxy_px[:, 2]).all()
            assert len(instances) == 1 or side < 0.05


# ------------------------------------------------------------------------------------------------------------- outlines


def test_the_box_of_an_outline_without_a_box_is_its_bounds() -> None:
    """Several parts are one object with one box around all of them."""
    parts = [[[4, 10], [20, 10], [20, 30], [4, 30]], [[36, 10], [56, 10], [56, 26], [36, 26]]]
    instances, told = one({"rings": parts})
    assert instances.xyxy_px.tolist() == [[4, 10, 56, 30]]
    assert rings_of(instances) == parts
    assert instances.kind.tolist() == [POLYGON]
    assert told == []


def test_a_box_given_beside_an_outline_is_kept() -> None:
    """The dataset says both; neither is derived from the other."""
    instances, told = one({"box": [1, 2, 30, 40], "rings": [[[5, 5], [20, 5], [5, 20]]]})
    assert instances.xyxy_px.tolist() == [[1, 2, 30, 40]]
    assert rings_of(instances) == [[[5, 5], [20, 5], [5, 20]]]
    assert told == []


def test_an_outline_is_cut_at_the_frame_and_the_box_follows_the_cut() -> None:
    """A triangle whose tip sticks out: bounds of the rest, not clipped bounds of the whole."""
    instances, told = one({"rings": [[[80, 10], [120, 20], [80, 30]]]})
    assert rings_of(instances) == [[[80, 10], [100, 15], [100, 25], [80, 30]]]
    assert instances.xyxy_px.tolist() == [[80, 10, 100, 30]]
    assert told == [("clipped", "clipped")]
    # The widest place of this one lies outside, so its box inside is smaller in y than that of the whole.
    instances, _ = one({"rings": [[[80, 20], [120, 0], [120, 40]]]})
    assert instances.xyxy_px.tolist() == [[80, 10, 100, 30]]


def test_a_given_box_is_clipped_by_itself_when_the_outline_is_cut() -> None:
    """Both are cut at the frame, and one report says so."""
    instances, told = one({"box": [70, 5, 130, 35], "rings": [[[80, 10], [120, 20], [80, 30]]]})
    assert instances.xyxy_px.tolist() == [[70, 5, 100, 35]]
    assert len(rings_of(instances)[0]) == 4
    assert told == [("clipped", "clipped")]


def test_a_part_outside_leaves_the_other_part() -> None:
    """The object stays with what is seen of it."""
    instances, told = one({"rings": [[[10, 10], [20, 10], [10, 20]], [[110, 10], [120, 10], [110, 20]]]})
    assert rings_of(instances) == [[[10, 10], [20, 10], [10, 20]]]
    assert instances.xyxy_px.tolist() == [[10, 10, 20, 20]]
    assert told == [("clipped", "clipped")]


def test_an_outline_that_passes_by_a_corner_leaves_no_phantom_box() -> None:
    """Its bounds reach into the picture, the outline itself does not."""
    for kind in (POLYGON, OBB):
        instances, told = one({"rings": [[[-10, 5], [5, -10], [-4, -16], [-16, -4]]], "kind": kind})
        assert len(instances) == 0
        assert told == [("outside", "dropped")]


def test_an_outline_outside_leaves_the_box_that_is_inside() -> None:
    """The dataset gives the box by itself, so it counts by itself."""
    instances, told = one({"box": [80, 10, 100, 30], "rings": [[[110, 10], [120, 10], [110, 20]]]})
    assert instances.xyxy_px.tolist() == [[80, 10, 100, 30]]
    assert instances.kind.tolist() == [BOX]
    assert rings_of(instances) == []
    assert told == [("outside", "changed")]


LINES = [
    [[[10, 10], [30, 30], [20, 20]]],  # three points on a line
    [[[10, 10], [30, 30]]],  # two points
    [[[5, 5], [25, 30], [25, 30], [5, 5]]],  # there and back
    [[[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.7, 0.7]]],  # on a line but for rounding
]


@pytest.mark.parametrize("rings", LINES)
@pytest.mark.parametrize("kind", [POLYGON, OBB])
@pytest.mark.parametrize("unit", ["px", "norm"])
def test_an_outline_that_encloses_nothing_is_dropped(rings: list[list[list[float]]], kind: int, unit: str) -> None:
    """A line has no area, whatever its direction."""
    scale = 0.01 if unit == "norm" else 1
    instances, told = one({"rings": [[[x * scale, y * scale] for x, y in rings[0]]], "kind": kind}, unit=unit)
    assert len(instances) == 0
    assert told == [("zero-area", "dropped")]


@pytest.mark.parametrize("rings", [*LINES, [], [[]]])
@pytest.mark.parametrize("kind", [POLYGON, OBB])
def test_an_outline_that_encloses_nothing_leaves_the_given_box(rings: list[list[list[float]]], kind: int) -> None:
    """Kept as a box instance and told; a row of an outline kind without any outline is the same."""
    instances, told = one({"box": [5, 5, 40, 40], "rings": rings, "kind": kind})
    assert instances.xyxy_px.tolist() == [[5, 5, 40, 40]]
    assert instances.kind.tolist() == [BOX]
    assert rings_of(instances) == []
    assert told == [("zero-area", "changed")]


def test_a_part_that_encloses_nothing_is_left_out_and_told() -> None:
    """The rest of the object stays; the box does not reach to the lost part."""
    instances, told = one({"rings": [[[10, 10], [20, 10], [10, 20]], [[40, 40], [45, 45]]]})
    assert rings_of(instances) == [[[10, 10], [20, 10], [10, 20]]]
    assert instances.xyxy_px.tolist() == [[10, 10, 20, 20]]
    assert told == [("zero-area", "changed")]


def test_a_row_without_box_and_outline_is_dropped() -> None:
    """Nothing says where the object is."""
    for kind in (BOX, POLYGON, OBB):
        for rings in ([], [[]]):
            assert one({"rings": rings, "kind": kind})[1] == [("zero-area", "dropped")]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, -1e300])
@pytest.mark.parametrize("kind", [POLYGON, OBB])
@pytest.mark.parametrize("box", [None, [5, 5, 40, 40]])
def test_an_outline_with_a_number_that_is_none_is_dropped(bad: float, kind: int, box: list[float] | None) -> None:
    """The row is dropped even if its box is fine: nobody knows what else is wrong in it."""
    instances, told = one({"box": box, "rings": [[[10, 10], [30, bad], [20, 20], [5, 5]]], "kind": kind})
    assert len(instances) == 0
    assert told == [("not-finite", "dropped")]


def test_the_box_of_a_row_without_one_is_not_looked_at() -> None:
    """``xyxy`` is ignored where ``has_box`` is False, NaN or not."""
    rows = rows_of({"rings": [[[10, 10], [20, 10], [10, 20]]]})
    for value in (math.nan, math.inf, -5.0, 1e300):
        rows.xyxy[:] = value
        instances, problems = settle(rows, HW, key="k")
        assert instances.xyxy_px.tolist() == [[10, 10, 20, 20]]
        assert problems == []


def test_points_of_a_box_row_do_not_stay() -> None:
    """A BOX has no outline: inside the picture or over its border, the points only make the box."""
    for reach in (20, 120):
        instances, _ = one({"rings": [[[10, 10], [reach, 10], [reach, 30], [10, 30]]], "kind": BOX})
        assert instances.xyxy_px.tolist() == [[10, 10, min(reach, 100), 30]]
        assert rings_of(instances) == []
        assert len(instances.points_px) == 0


# ------------------------------------------------------------------------------------------------------- oriented boxes


def test_the_corners_of_an_oriented_box_are_kept_and_its_axis_box_is_clipped() -> None:
    """The angle must survive the border."""
    corners = [[80, 20], [110, 10], [115, 25], [85, 35]]
    instances, told = one({"rings": [corners], "kind": OBB})
    assert rings_of(instances) == [corners]
    assert instances.xyxy_px.tolist() == [[80, 10, 100, 35]]
    assert instances.kind.tolist() == [OBB]
    assert told == [("clipped", "clipped")]


def test_an_oriented_box_wholly_outside_is_dropped() -> None:
    """As every other row."""
    assert one({"rings": [[[110, 10], [120, 10], [120, 20], [110, 20]]], "kind": OBB})[1] == [("outside", "dropped")]


# ----------------------------------------------------------------------------------------------------------------- masks


def donut() -> np.ndarray:
    mask = np.zeros(HW, np.uint8)
    mask[4:20, 6:22] = 1
    mask[8:16, 10:18] = 0
    return mask


def test_run_lengths_become_rings_and_the_hole_stays_a_hole() -> None:
    """Filled even-odd the rings are the mask again; without a box the box is the bounds of the mask."""
    for box, edges in ((None, [6, 4, 22, 20]), ([5, 4, 22, 21], [5, 4, 22, 21])):
        instances, told = one({"box": box, "kind": MASK, "rle": rle(donut()), "flags": CROWD})
        assert instances.kind.tolist() == [MASK]
        assert np.array_equal(rings_to_mask(instances.parts(0), HW), donut())
        assert instances.xyxy_px.tolist() == [edges]
        assert told == []


BROKEN = [
    (b"{}", "bad-number"),
    (b"[]", "bad-number"),
    (b"not json", "bad-number"),
    (b'{"size": [50, 100]}', "bad-number"),
    (b'{"size": [50, 100], "counts": [4, 5]}', "bad-number"),
    (b'{"size": [50, 100], "counts": "\xc3\xa4"}', "bad-number"),
    (b'{"size": [50.5, 100], "counts": [5000]}', "bad-number"),
    (b'{"size": [1e999, 100], "counts": [5000]}', "bad-number"),
    (b'{"size": ["50", 100], "counts": [5000]}', "bad-number"),
    (b'{"size": [50], "counts": [5000]}', "bad-number"),
    (b'{"size": [100, 50], "counts": [5000]}', "size-mismatch"),
    (b'{"size": [99999999, 99999999], "counts": [5000]}', "size-mismatch"),
]


@pytest.mark.parametrize(("packed", "kind"), BROKEN)
def test_run_lengths_that_cannot_be_used_leave_the_box(packed: bytes, kind: str) -> None:
    """Told as a number that is none, or as a size that is not the picture's."""
    instances, told = one({"box": [5, 5, 40, 40], "kind": MASK, "rle": packed})
    assert instances.xyxy_px.tolist() == [[5, 5, 40, 40]]
    assert instances.kind.tolist() == [BOX]
    assert told == [(kind, "changed")]


@pytest.mark.parametrize(("packed", "kind"), BROKEN)
def test_run_lengths_that_cannot_be_used_without_a_box_leave_nothing(packed: bytes, kind: str) -> None:
    """One report, and it says that the row was dropped."""
    instances, told = one({"kind": MASK, "rle": packed})
    assert len(instances) == 0
    assert told == [(kind, "dropped")]


def test_an_empty_mask_leaves_the_box_or_nothing() -> None:
    """Zero area in both cases."""
    empty = rle(np.zeros(HW, np.uint8))
    instances, told = one({"box": [5, 5, 40, 40], "kind": MASK, "rle": empty})
    assert instances.kind.tolist() == [BOX]
    assert told == [("zero-area", "changed")]
    assert one({"kind": MASK, "rle": empty})[1] == [("zero-area", "dropped")]


def test_a_row_that_is_dropped_for_its_box_says_nothing_about_its_mask() -> None:
    """One row, one reason."""
    assert one({"box": [math.nan, 5, 40, 40], "kind": MASK, "rle": b"{}"})[1] == [("not-finite", "dropped")]


# ------------------------------------------------------------------------------------------------------------- keypoints


def test_a_keypoint_outside_is_not_labelled_and_all_the_rest_stays() -> None:
    """Visibility 0 and no place, rather than moved to the border; told once a row, by number."""
    points = [[40, 15, 2], [110, 20, 2], [60, 35, 1], [60, -5, 1]]
    instances, problems = settle(rows_of({"box": [30, 10, 70, 40], "keypoints": points}), HW, key="k")
    assert instances.keypoints_px.tolist() == [[[40, 15, 2], [0, 0, 0], [60, 35, 1], [0, 0, 0]]]
    assert [(p.kind, p.action, p.line) for p in problems] == [("keypoint-outside", "changed", 1)]
    assert "keypoint 1, 3" in problems[0].detail


def test_a_keypoint_on_the_border_or_a_hair_over_it_is_inside() -> None:
    """Edges belong to the picture; rounding is clipped in silence."""
    points = [[0, 0, 2], [100, 50, 1], [100.009, 50.009, 2], [-0.009, 10, 2]]
    instances, told = one({"box": [0, 0, 100, 50], "keypoints": points})
    assert instances.keypoints_px.tolist() == [[[0, 0, 2], [100, 50, 1], [100, 50, 2], [0, 10, 2]]]
    assert told == []


def test_a_keypoint_that_is_not_labelled_has_no_place() -> None:
    """Wherever the file puts it, and nothing is told."""
    instances, told = one({"box": [0, 0, 9, 9], "keypoints": [[500, 500, 0], [math.nan, 3, 0], [7, 8, -1]]})
    assert instances.keypoints_px.tolist() == [[[0, 0, 0]] * 3]
    assert told == []


@pytest.mark.parametrize("bad", [[math.nan, 3, 2], [3, math.inf, 1], [3, 3, math.nan], [3, 3, math.inf]])
def test_a_keypoint_with_a_number_that_is_none_is_not_labelled(bad: list[float]) -> None:
    """The row stays: its box is fine."""
    instances, told = one({"box": [0, 0, 9, 9], "keypoints": [[1, 2, 2], bad]})
    assert instances.keypoints_px.tolist() == [[[1, 2, 2], [0, 0, 0]]]
    assert told == [("not-finite", "changed")]


def test_visibility_is_0_1_or_2() -> None:
    """Anything above 0 is labelled; numbers between and beyond are rounded and limited."""
    points = [[1, 2, v] for v in (0, 1, 2, 0.3, 1.4, 7)]
    assert one({"box": [0, 0, 9, 9], "keypoints": points})[0].keypoints_px[0, :, 2].tolist() == [0, 1, 2, 1, 1, 2]


def test_keypoints_of_a_dropped_row_go_with_it() -> None:
    """The rest keep theirs, in step."""
    rows = rows_of(
        {"box": [0, 0, 0, 0], "keypoints": [[500, 1, 2]]},
        {"box": [0, 0, 9, 9], "keypoints": [[1, 2, 2]]},
    )
    instances, problems = settle(rows, HW, key="k")
    assert instances.keypoints_px.tolist() == [[[1, 2, 2]]]
    assert [(p.kind, p.line) for p in problems] == [("zero-area", 1)]


# ----------------------------------------------------------------------------------------------------- image and reports


def test_no_rows_are_a_background_picture() -> None:
    """Of the right shapes."""
    instances, problems = settle(rows_of(k=3), HW, key="k")
    assert len(instances) == 0
    assert instances.keypoints_px.shape == (0, 3, 3)
    assert problems == []


def test_a_stated_size_that_is_not_the_pictures_is_told_once_and_changes_nothing() -> None:
    """Before the rows, with the image's key; the swapped one gets its hint."""
    rows = rows_of({"box": [10, 5, 30, 25]}, {"box": [1, 1, 1, 1]}, declared_hw=(60, 100))
    instances, problems = settle(rows, HW, key="images/x.png")
    assert instances.xyxy_px.tolist() == [[10, 5, 30, 25]]
    assert [(p.kind, p.action, p.image, p.line) for p in problems] == [
        ("size-mismatch", "noted", "images/x.png", None),
        ("zero-area", "dropped", None, 2),
    ]
    assert "100 x 50 px, the label file says 100 x 60" in problems[0].detail
    assert "EXIF" not in problems[0].detail
    _, (turned,) = settle(rows_of(declared_hw=(100, 50)), HW, key="k")
    assert "EXIF" in turned.detail
    assert settle(rows_of(declared_hw=HW), HW, key="k")[1] == []


@pytest.mark.parametrize("place", ["line", "annotation_id", "object"])
def test_a_report_says_the_place_in_the_formats_own_terms(place: str) -> None:
    """Line, annotation id or object number."""
    _, (problem,) = settle(rows_of({"box": [1, 1, 1, 1], "where": 41}, place=place), HW, key="k")
    assert getattr(problem, place) == 41
    assert [p for p in ("line", "annotation_id", "object") if getattr(problem, p) is not None] == [place]
    assert problem.file == "labels/x.txt"


def test_reports_follow_the_rows_and_not_the_rules() -> None:
    """Keypoints are judged after the boxes and reported with their row, on the short way and on the long one."""
    outside, broken = [[500, 1, 2]], [[1, math.nan, 2]]
    box = {"box": [0, 0, 9, 9]}
    _, problems = settle(rows_of({**box, "keypoints": broken}, {**box, "keypoints": outside}), HW, key="k")
    assert [(p.line, p.kind) for p in problems] == [(1, "not-finite"), (2, "keypoint-outside")]
    rows = rows_of({**box, "keypoints": outside}, {"box": [1, 1, 1, 1], "keypoints": broken}, {**box, "keypoints": broken})
    _, problems = settle(rows, HW, key="k")
    assert [(p.line, p.kind) for p in problems] == [(1, "keypoint-outside"), (2, "zero-area"), (3, "not-finite")]


def test_reports_follow_the_rows_also_when_an_id_occurs_twice() -> None:
    """Annotation ids are arbitrary numbers; two rows with the same one stay apart."""
    box = {"box": [0, 0, 9, 9], "keypoints": [[500, 1, 2]]}
    between = {"box": [1, 1, 1, 1], "where": 6, "keypoints": [[0, 0, 0]]}
    rows = rows_of({**box, "where": 5}, between, {**box, "where": 5}, place="annotation_id")
    _, problems = settle(rows, HW, key="k")
    assert [p.annotation_id for p in problems] == [5, 6, 5]


@pytest.mark.parametrize(
    ("given_px", "kept"), [(12.5, 12.5), (0, 0), (math.inf, None), (-3, None), (1e300, None), (math.nan, None)]
)
def test_a_published_area_that_is_none_counts_as_not_given(given_px: float, kept: float | None) -> None:
    """NaN stands for no area; nothing else that is not a number gets through."""
    for box in ([10, 5, 40, 35], [10, 5, 140, 35]):
        (area,) = one({"box": box, "area": given_px})[0].area_px.tolist()
        assert math.isnan(area) if kept is None else area == kept


# ------------------------------------------------------------------------------------------------------------ properties

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


def check_invariant(instances: Instances, size_hw: tuple[int, int]) -> None:
    """What :class:`fastdata.labels.Instances` promises."""
    h, w = size_hw
    n, box = len(instances), instances.xyxy_px
    assert [a.dtype for a in (instances.cls, box, instances.kind, instances.flags, instances.original_id)] == [
        np.int32, np.float32, np.uint8, np.uint8, np.int64,
    ]  # fmt: skip
    assert instances.points_px.dtype == instances.keypoints_px.dtype == instances.area_px.dtype == np.float32
    assert instances.part_offsets.dtype == instances.point_offsets.dtype == np.int64
    assert box.shape == (n, 4)
    assert all(len(a) == n for a in (instances.kind, instances.flags, instances.original_id, instances.area_px))
    assert np.isfinite(box).all()
    assert (box[:, :2] >= 0).all()
    assert (box[:, :2] < box[:, 2:]).all()
    assert (box[:, 2:] <= np.array([w, h], np.float32)).all()
    assert ((instances.area_px >= 0) & np.isfinite(instances.area_px) | np.isnan(instances.area_px)).all()
    assert len(instances.part_offsets) == n + 1
    assert len(instances.point_offsets) == instances.part_offsets[-1] + 1
    assert len(instances.points_px) == instances.point_offsets[-1]
    assert instances.part_offsets[0] == instances.point_offsets[0] == 0
    assert (np.diff(instances.part_offsets) >= 0).all()
    assert (np.diff(instances.point_offsets) >= 3).all()
    assert np.isfinite(instances.points_px).all()
    for i in range(n):
        parts = instances.parts(i)
        kind = instances.kind[i]
        assert (len(parts) > 0) == (kind != BOX)
        for part in parts:
            assert kind == OBB or ((part >= 0).all() and (part <= np.array([w, h], np.float32)).all())
    keypoints = instances.keypoints_px
    assert len(keypoints) == n
    assert np.isfinite(keypoints).all()
    assert np.isin(keypoints[..., 2], [0, 1, 2]).all()
    assert (keypoints[keypoints[..., 2] == 0] == 0).all()
    assert (keypoints[..., :2] >= 0).all()
    assert (keypoints[..., :2] <= np.array([w, h], np.float32)).all()


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


# ----------------------------------------------------------------------------------------------------------------- scaled


def test_scaling_uses_the_gain_of_each_axis() -> None:
    """Both sides are rounded to whole pixels, so the two gains differ; areas go with their product."""
    row = {
        "box": [10, 5, 30, 25],
        "rings": [[[10, 5], [30, 5], [10, 25]]],
        "keypoints": [[20, 10, 1], [0, 0, 0]],
        "area": 200,
    }
    before, _ = one(row)
    after = scaled(before, HW, (24, 50))
    assert after.xyxy_px.tolist() == np.array([[5, 5 * 0.48, 15, 25 * 0.48]], np.float32).tolist()
    assert after.parts(0)[0].tolist() == np.array([[5, 5 * 0.48], [15, 5 * 0.48], [5, 25 * 0.48]], np.float32).tolist()
    assert after.keypoints_px.tolist() == np.array([[[10, 10 * 0.48, 1], [0, 0, 0]]], np.float32).tolist()
    assert after.area_px.tolist() == np.array([200 * 0.5 * 0.48], np.float32).tolist()
    assert scaled(before, HW, HW) is before
    assert before.xyxy_px.tolist() == [[10, 5, 30, 25]]  # the argument is not written to


def test_scaling_keeps_corners_of_oriented_boxes_that_lie_outside() -> None:
    """Only what must be inside is held inside."""
    before, _ = one({"rings": [[[80, 20], [110, 10], [115, 25], [85, 35]]], "kind": OBB})
    after = scaled(before, HW, (100, 200))
    assert after.parts(0)[0].tolist() == [[160, 40], [220, 20], [230, 50], [170, 70]]
    assert after.xyxy_px.tolist() == [[160, 20, 200, 70]]


SIDES = st.one_of(st.integers(1, 4), st.integers(1, 3000), st.sampled_from([65_536, 178_956]))


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(SIDES, SIDES),
    st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=4),
)
@example((1, 178_956), (1, 640), [[0.999, 0.0, 0.9990001, 1.0]])
@example((1, 1), (640, 640), [[0.0, 0.0, 1.0, 1.0]])
@example((2500, 2500), (1, 1), [[0.0, 0.0, 1.0, 1.0], [0.99999, 0.99999, 1.0, 1.0]])
def test_scaled_instances_obey_the_invariant_too(
    from_hw: tuple[int, int], to_hw: tuple[int, int], corners: list[list[float]]
) -> None:
    """Down and up, to and from a single pixel, also where a small box meets coarse float32 numbers."""
    rows = []
    for x0, y0, x1, y1 in corners:
        box = [min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)]
        ring = [[box[0], box[1]], [box[2], box[1]], [box[2], box[3]], [box[0], box[3]]]
        rows += [{"box": box, "keypoints": [[x0, y0, 2]]}, {"rings": [ring], "keypoints": [[x1, y1, 1]]}]
        rows += [{"rings": [ring], "kind": OBB, "keypoints": [[0, 0, 0]]}]
    instances, _ = settle(rows_of(*rows, unit="norm"), from_hw, key="k")
    check_invariant(instances, from_hw)
    check_invariant(scaled(instances, from_hw, to_hw), to_hw)


@pytest.mark.parametrize("from_width", [178_956, 131_071, 131_073, 65_537, 65_535, 33_000])
@pytest.mark.parametrize("to_width", [16_384, 1025, 640, 513, 64, 33, 1])
def test_the_smallest_box_keeps_two_different_edges_after_any_resize(from_width: int, to_width: int) -> None:
    """At the far end of a panorama, where neighbouring float32 numbers are furthest apart; widths beside powers of two."""
    from_hw, to_hw = (1, from_width), (1, to_width)
    side = settle_module._smallest_side(from_hw) * 1.0001
    rows = [{"box": [from_width - 3 + x, 0, from_width - 3 + x + side, 1]} for x in np.linspace(0, 2.9, 200)]
    instances, problems = settle(rows_of(*rows), from_hw, key="k")
    assert len(instances) == 200
    assert problems == []
    check_invariant(scaled(instances, from_hw, to_hw), to_hw)


def test_dust_is_the_documented_hundredth_of_a_pixel() -> None:
    """The limit that the tests above count on."""
    assert DUST_PX == 0.01
