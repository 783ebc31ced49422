"""Invented pictures: the outlines lie where the pixels are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from fastdata.boxes import bounds, polygon_area
from fastdata.errors import UsageError
from fastdata.figures import (
    CLASSES,
    FLIP_IDX,
    KEYPOINT_VERTICES,
    KEYPOINTS,
    SHAPES,
    Figure,
    coverage,
    make_background,
    make_picture,
)

F64 = npt.NDArray[np.float64]
SIZES_HW = [(150, 200), (200, 150), (160, 160), (97, 131)] * 2


def depth_px(ring: F64, size_hw: tuple[int, int]) -> F64:
    """Return (h, w) the distance of each pixel centre to the nearest edge of ``ring``, negative outside."""
    h, w = size_hw
    y, x = np.mgrid[:h, :w] + 0.5
    inside = np.zeros(size_hw, bool)
    nearest = np.full(size_hw, np.inf)
    for (ax, ay), (bx, by) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if ay != by:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) * (bx - ax) / (by - ay))
        length = (bx - ax) ** 2 + (by - ay) ** 2
        t = np.clip(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length, 0, 1) if length else 0.0
        nearest = np.minimum(nearest, np.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay)))
    return np.where(inside, nearest, -nearest)


def compare(rgb: npt.NDArray[np.uint8], figures: list[Figure], background: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
    """Count pixels that break the promise: touched outside all outlines, or of a wrong colour inside one; and pixels checked."""
    size_hw = (rgb.shape[0], rgb.shape[1])
    depths = [depth_px(figure.outline_px, size_hw) for figure in figures]
    free = np.all([d < -1 for d in depths], axis=0)
    touched = int((rgb != background)[free].any(axis=-1).sum())
    wrong = checked = 0
    for k, figure in enumerate(figures):
        mine = (depths[k] > 1) & np.all([np.ones(size_hw, bool), *(d < -1 for d in depths[k + 1 :])], axis=0)
        low, high = figure.colours.min(axis=0).astype(int) - 2, figure.colours.max(axis=0).astype(int) + 2
        pixels = rgb[mine].astype(int)
        wrong += int(((pixels < low) | (pixels > high)).any(axis=-1).sum())
        checked += len(pixels)
    return touched, wrong, checked


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(("index", "size_hw"), list(enumerate(SIZES_HW)))
def test_outlines_lie_where_the_pixels_are(seed: int, index: int, size_hw: tuple[int, int]) -> None:
    """More than a pixel outside: the background, bit for bit. More than a pixel inside: the figure's colours."""
    rgb, figures = make_picture(seed, index, size_hw, background_share=0)
    touched, wrong, checked = compare(rgb, figures, make_background(seed, index, size_hw))
    assert (touched, wrong) == (0, 0)
    assert checked > 0


@pytest.mark.parametrize("shift_px", [(1.5, 0), (0, 1.5), (-1.5, 0), (0, -1.5)])
def test_outlines_that_are_off_by_a_pixel_and_a_half_are_seen(shift_px: tuple[float, float]) -> None:
    """Meta-test: the comparison above fails when every outline is moved a little."""
    rgb, figures = make_picture(0, 0, (150, 200), background_share=0)
    moved = [replace(figure, outline_px=figure.outline_px + shift_px) for figure in figures]
    touched, wrong, _ = compare(rgb, moved, make_background(0, 0, (150, 200)))
    assert touched > 10
    assert wrong > 10


def test_figures_stand_out_from_the_background() -> None:
    """A figure that looked like what is behind it could not be found by anyone."""
    for index in range(12):
        rgb, figures = make_picture(3, index, (100, 100), background_share=0)
        background = make_background(3, index, (100, 100))
        depths = [depth_px(figure.outline_px, (100, 100)) for figure in figures]
        for k in range(len(figures)):
            mine = (depths[k] > 0.8) & np.all([np.ones((100, 100), bool), *(d < -1 for d in depths[k + 1 :])], axis=0)
            contrast = np.abs(rgb[mine].astype(int) - background[mine]).sum(axis=-1)
            assert np.median(contrast) > 60


def centroid(ring: F64) -> F64:
    """Return the centre of mass of the area inside ``ring``."""
    nxt = np.roll(ring, -1, axis=0)
    cross = ring[:, 0] * nxt[:, 1] - nxt[:, 0] * ring[:, 1]
    return np.asarray(((ring + nxt) * cross[:, None]).sum(axis=0) / (3 * cross.sum()))


@pytest.mark.parametrize("name", CLASSES)
def test_coverage_adds_up_to_the_area(name: str) -> None:
    """Along the outline the filled share is right to a tenth of a pixel each time; there is no bias outwards nor to a side."""
    errors, offsets = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        angle, half = rng.uniform(0, 2 * np.pi), rng.uniform(4, 18)
        turn = half * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        rings = [ring @ turn + rng.uniform(28, 30, 2) for ring in SHAPES[name][:1]]
        length = float(np.hypot(*(rings[0] - np.roll(rings[0], 1, axis=0)).T).sum())
        share = coverage(rings, (0, 0), (60, 60)).astype(np.float64)
        errors.append((share.sum() - polygon_area(rings[0])) / length)
        middle = np.array([share.sum(axis=0), share.sum(axis=1)]) @ (np.arange(60) + 0.5) / share.sum()
        offsets.append(middle - centroid(rings[0]))
    assert np.abs(errors).max() < 0.1
    assert abs(np.mean(errors)) < 0.03  # 0.003 with OpenCV 5, 0.027 with OpenCV 4.10
    assert np.abs(np.mean(offsets, axis=0)).max() < 0.05


@pytest.mark.parametrize("edge", [10.0, 10.25, 10.5, 10.75])
def test_an_edge_between_two_pixels_is_shared_by_them(edge: float) -> None:
    """The pixel in which a vertical edge lies is covered as far as the edge reaches, to an eighth of a pixel."""
    share = coverage([np.array([[edge, 5.0], [20.0, 5.0], [20.0, 25.0], [edge, 25.0]])], (0, 0), (30, 30))[15]
    assert share[9] < 0.15
    assert abs(share[10] - (11 - edge)) < 0.15
    assert (share[11:19] == 1).all()
    assert share[21] == 0


def test_a_hole_is_part_of_the_outline() -> None:
    """A ring is one outline with a seam: its area is that of the disc less the hole, and its middle is background."""
    seen = 0
    for index in range(12):
        rgb, figures = make_picture(1, index, (160, 160), classes=["ring"], background_share=0, uncut=True)
        background = make_background(1, index, (160, 160))
        outer, hole = SHAPES["ring"]
        for figure in figures:
            corners = figure.corners_px
            area = np.hypot(*(corners[1] - corners[0])) * np.hypot(*(corners[2] - corners[1]))
            assert figure.area_px == pytest.approx(area * (polygon_area(outer) - polygon_area(hole)) / 4)
        if len(figures) == 1:
            x, y = figures[0].corners_px.mean(axis=0).astype(int)
            assert (rgb[y, x] == background[y, x]).all()
            seen += 1
    assert seen


@pytest.mark.parametrize("index", range(12))
def test_every_label_of_a_figure_agrees_with_its_outline(index: int) -> None:
    """Box, area and turned rectangle follow from the outline; nothing leaves the picture but the turned rectangle."""
    h, w = 120, 170
    _, figures = make_picture(5, index, (h, w), background_share=0)
    assert figures
    for figure in figures:
        x0, y0, x1, y1 = figure.xyxy_px
        assert 0 <= x0 < x1 <= w
        assert 0 <= y0 < y1 <= h
        assert (figure.xyxy_px == bounds(figure.outline_px)).all()
        assert figure.area_px == pytest.approx(polygon_area(figure.outline_px))
        sides = np.diff(figure.corners_px, axis=0)
        assert abs(float(sides[0] @ sides[1])) < 1e-6
        along = (figure.outline_px - figure.corners_px[0]) @ np.stack([sides[0], sides[1]], axis=1)
        assert (along > -1e-6).all()
        assert (along < (sides[:2] ** 2).sum(axis=1) + 1e-6).all()


def test_keypoints_say_whether_they_are_seen() -> None:
    """Hidden means below a later figure, 0 means outside the picture with no place, and each of the three occurs."""
    counts = {0: 0, 1: 0, 2: 0}
    for index in range(40):
        _, figures = make_picture(2, index, (120, 120), classes=list(KEYPOINT_VERTICES), background_share=0)
        depths = [depth_px(figure.outline_px, (120, 120)) for figure in figures]
        for k, figure in enumerate(figures):
            assert figure.keypoints_px.shape == (len(KEYPOINTS), 3)
            for x, y, visibility in figure.keypoints_px:
                counts[int(visibility)] += 1
                over = [d[int(y), int(x)] for d in depths[k + 1 :]]
                if visibility == 2:
                    assert all(d < 1 for d in over)
                elif visibility == 1:
                    assert any(d > -1 for d in over)
                else:
                    assert (x, y) == (0, 0)
    assert all(counts.values())


@pytest.mark.parametrize("name", KEYPOINT_VERTICES)
def test_a_mirrored_shape_has_its_keypoints_where_the_flip_table_says(name: str) -> None:
    """Mirroring a shape that is its own mirror image puts each keypoint on the one that the table names."""
    points = SHAPES[name][0][list(KEYPOINT_VERTICES[name])]
    assert np.allclose(points * [-1, 1], points[list(FLIP_IDX)])


def test_a_picture_is_a_function_of_its_arguments() -> None:
    """Drawn twice it is the same; with another seed or index it is another one; other classes leave the background alone."""
    rgb, figures = make_picture(0, 1, (64, 64))
    again, figures_again = make_picture(0, 1, (64, 64))
    assert (rgb == again).all()
    assert [f.outline_px.tolist() for f in figures] == [f.outline_px.tolist() for f in figures_again]
    for seed, index in ((1, 1), (0, 2), (1 << 40, 1)):
        assert (make_background(seed, index, (64, 64)) != make_background(0, 1, (64, 64))).any()


def test_the_share_of_backgrounds_is_kept() -> None:
    """None at 0, all at 1, about half at a half."""
    counts = {}
    for share in (0.0, 0.5, 1.0):
        counts[share] = sum(not make_picture(0, i, (32, 32), background_share=share)[1] for i in range(100))
    assert counts[0.0] == 0
    assert 30 < counts[0.5] < 70
    assert counts[1.0] == 100


def test_uncut_figures_lie_inside_with_their_turned_rectangle() -> None:
    """What an oriented box needs: all four corners in the picture."""
    for index in range(30):
        for figure in make_picture(4, index, (100, 140), uncut=True)[1]:
            assert (figure.corners_px >= 0).all()
            assert (figure.corners_px <= [140, 100]).all()


def test_every_class_occurs_and_its_number_follows_the_order_given() -> None:
    """The class index counts through the names as they were given."""
    seen = {CLASSES[f.cls] for i in range(40) for f in make_picture(0, i, (100, 100))[1]}
    assert seen == set(CLASSES)
    one = [f for i in range(10) for f in make_picture(0, i, (100, 100), classes=["moon", "arrow"])[1]]
    assert {f.cls for f in one} == {0, 1}
    assert all((len(f.keypoints_px) > 0) == (f.cls == 1) for f in one)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"classes": ["cat"]}, "classes must be different names out of rectangle, .*, got cat"),
        ({"classes": ["star", "star"]}, "got star, star"),
        ({"classes": []}, "got none"),
        ({"background_share": 1.5}, "background_share must be from 0 to 1, got 1.5"),
        ({"background_share": float("nan")}, "background_share must be from 0 to 1, got nan"),
        ({"size_hw": (31, 64)}, "size_hw must be at least 32 x 32, got 31 x 64"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: dict[str, object], says: str) -> None:
    """The message names the rule and the value."""
    with pytest.raises(UsageError, match=says):
        make_picture(0, 0, **{"size_hw": (64, 64), **arguments})  # type: ignore[arg-type]
