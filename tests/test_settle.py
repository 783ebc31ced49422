"""The rules on label geometry, one by one, with exact numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from settle_kit import BROKEN, HW, one, rings_of, rle, rows_of

from fastdata.boxes import xywh_norm_to_xyxy_norm
from fastdata.labels import BOX, CROWD, MASK, OBB, POLYGON
from fastdata.masks import rings_to_mask
from fastdata.settle import settle

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
