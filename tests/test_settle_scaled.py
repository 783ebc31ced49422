"""Labels follow their picture through a resize."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from settle_kit import HW, check_invariant, one, rows_of

from fastdata import settle as settle_module
from fastdata.labels import OBB
from fastdata.settle import DUST_PX, scaled, settle


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
