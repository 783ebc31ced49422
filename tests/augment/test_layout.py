"""Tiles on canvases: sizes as the trainers round them, places as the facts state them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_kit import catalog_of

from fastdata.augment.draws import Draws, plain
from fastdata.augment.layout import Tiles, fitted_sizes, place
from fastdata.pixels import fitted_size


def mosaic(sizes_hw: list[tuple[int, int]], imgsz: int, centre_yx: tuple[int, int] = (0, 0)) -> Tiles:
    """One scene of all these pictures."""
    n = len(sizes_hw)
    one = plain([0])
    draws = replace(one, tile_entry=np.arange(n), tile_offsets=np.array([0, n]), centre_yx=np.array([centre_yx]))
    return place(draws, catalog_of(sizes_hw), imgsz)


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), min_size=1, max_size=20), st.integers(1, 2000))
def test_sizes_are_those_of_the_store(sizes_hw: list[tuple[int, int]], imgsz: int) -> None:
    """The rule is written twice, because the plan may not know of pixels: here they are one."""
    assert fitted_sizes(np.array(sizes_hw), imgsz).tolist() == [list(fitted_size(hw, imgsz)) for hw in sizes_hw]


def test_a_whole_record_is_sized_by_its_published_picture_and_a_view_by_itself() -> None:
    """A store of 640 keeps 427 of 426.67 rows; from its own size 640 x 427 another imgsz would get another height."""
    catalog = catalog_of(
        [(427, 640), (427, 640)], original_hw=[(1000, 1500), (1000, 1500)], rects=[(0, 0, 640, 427), (0, 0, 320, 400)]
    )
    tiles = place(plain([0, 1]), catalog, 960)
    assert tiles.original_hw.tolist() == [[1000, 1500], [400, 320]]
    assert tiles.size_hw.tolist() == [[640, 960], [960, 768]]
    assert tiles.gain_xy.tolist() == [[960 / 640, 640 / 427], [768 / 320, 960 / 400]]
    assert tiles.source_xyxy.tolist() == [[0, 0, 640, 427], [0, 0, 320, 400]]


def test_the_canvas_of_one_picture_is_the_picture() -> None:
    """Nothing around it, nothing hidden."""
    tiles = place(plain([0]), catalog_of([(30, 40)]), 80)
    assert (tiles.canvas_wh.tolist(), tiles.origin_xy.tolist()) == ([[80, 60]], [[0, 0]])
    assert tiles.visible_xyxy.tolist() == [[0, 0, 80, 60]]


def test_four_tiles_touch_the_centre_with_their_nearest_corners() -> None:
    """The numbers of case geo-mosaic-corners, with tiles of unequal sizes."""
    tiles = mosaic([(40, 40), (20, 40), (40, 30), (40, 40)], 40, (30, 50))
    assert tiles.canvas_wh.tolist() == [[80, 80]]
    assert tiles.origin_xy.tolist() == [[10, -10], [50, 10], [20, 30], [50, 30]]
    assert tiles.visible_xyxy.tolist() == [[10, 0, 50, 30], [50, 10, 80, 30], [20, 30, 50, 70], [50, 30, 80, 70]]


def four_by_the_table(sizes: npt.NDArray[np.int64], s: int, yc: int, xc: int) -> list[tuple[int, int, int, int]]:
    """The canvas rectangles of the facts, one by one."""
    (h0, w0), (h1, w1), (h2, w2), (h3, w3) = sizes.tolist()
    return [
        (max(xc - w0, 0), max(yc - h0, 0), xc, yc),
        (xc, max(yc - h1, 0), min(xc + w1, 2 * s), yc),
        (max(xc - w2, 0), yc, xc, min(yc + h2, 2 * s)),
        (xc, yc, min(xc + w3, 2 * s), min(yc + h3, 2 * s)),
    ]


size = st.tuples(st.integers(1, 300), st.integers(1, 300))


@given(st.lists(size, min_size=4, max_size=4), st.integers(8, 64), st.data())
def test_four_tiles_lie_where_the_table_says(sizes_hw: list[tuple[int, int]], s: int, data: st.DataObject) -> None:
    """For any sizes and centre; no two of them overlap."""
    yc, xc = data.draw(st.tuples(*[st.integers(s // 2, 3 * s // 2 - 1)] * 2))
    tiles = mosaic(sizes_hw, s, (yc, xc))
    want = four_by_the_table(tiles.size_hw, s, yc, xc)
    assert [tuple(row) for row in tiles.visible_xyxy.tolist()] == want
    covered = np.zeros((2 * s, 2 * s), np.int64)
    for x0, y0, x1, y1 in want:
        covered[y0:y1, x0:x1] += 1
    assert covered.max() <= 1


@given(st.lists(size, min_size=9, max_size=9), st.integers(4, 32).map(lambda half: 2 * half))
def test_nine_tiles_lie_where_the_facts_say(sizes_hw: list[tuple[int, int]], s: int) -> None:
    """Written as the list of corners on the large canvas, cropped by half of imgsz."""
    tiles = mosaic(sizes_hw, s)
    corners: list[tuple[int, int]] = []
    (h0, w0), hp, wp = tiles.size_hw[0].tolist(), 0, 0
    for i, (h, w) in enumerate(tiles.size_hw.tolist()):
        corners.append(
            [
                (s, s),
                (s, s - h),
                (s + wp, s - h),
                (s + w0, s),
                (s + w0, s + hp),
                (s + w0 - w, s + h0),
                (s + w0 - wp - w, s + h0),
                (s - w, s + h0 - h),
                (s - w, s + h0 - hp - h),
            ][i]
        )
        hp, wp = h, w
    assert (tiles.origin_xy + s // 2).tolist() == [list(corner) for corner in corners]
    assert tiles.canvas_wh.tolist() == [[2 * s, 2 * s]]


def test_tiles_outside_the_canvas_show_nothing() -> None:
    """A flat strip at the top of nine may lie wholly above the middle."""
    tiles = mosaic([(64, 64)] * 8 + [(64, 8)], 64)
    v = tiles.visible_xyxy
    assert (v[:, :2] <= v[:, 2:]).all()
    assert (v >= 0).all()
    assert (v <= 128).all()
    # of nine full squares: the middle whole, half of four neighbours, a quarter of four corners
    area = (v[:, 2:] - v[:, :2]).prod(axis=1).tolist()
    assert sorted(area)[1:] == [32 * 32] * 3 + [32 * 64] * 4 + [64 * 64]


def test_scenes_of_different_kinds_lie_in_one_batch() -> None:
    """One, four and nine tiles beside each other, as each alone."""
    catalog = catalog_of([(30 + i, 70 - 3 * i) for i in range(14)])
    base = plain([0, 1, 5])
    draws = replace(
        base,
        tile_entry=np.arange(14),
        tile_offsets=np.array([0, 1, 5, 14]),
        centre_yx=np.array([[0, 0], [40, 50], [0, 0]]),
    )
    tiles = place(draws, catalog, 64)
    for k in range(3):
        first, last = draws.tile_offsets[k : k + 2]
        own: Draws = replace(
            plain([0]),
            tile_entry=draws.tile_entry[first:last],
            tile_offsets=np.array([0, last - first]),
            centre_yx=draws.centre_yx[k : k + 1],
        )
        alone = place(own, catalog, 64)
        for name in ("size_hw", "origin_xy", "visible_xyxy", "record", "original_hw"):
            assert (getattr(tiles, name)[first:last] == getattr(alone, name)).all(), name
        assert (tiles.canvas_wh[k] == alone.canvas_wh[0]).all()
    assert tiles.scene.tolist() == [0] + [1] * 4 + [2] * 9


def test_the_check_of_the_table_sees_a_tile_that_is_one_off() -> None:
    """Meta-test: the fault of yolov5#1020 is a tile moved by another amount than its labels."""
    tiles = mosaic([(40, 40)] * 4, 40, (30, 50))
    assert four_by_the_table(tiles.size_hw, 40, 30, 51) != [tuple(row) for row in tiles.visible_xyxy.tolist()]
    with pytest.raises(AssertionError):
        assert tiles.origin_xy.tolist() == [[10, -9], [50, -10], [10, 30], [50, 30]]
