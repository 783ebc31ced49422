"""The definition is what its words say: known pictures, geometry found again in pixels, two libraries, mutants that die."""

from __future__ import annotations

import colorsys
from pathlib import Path
from types import ModuleType

import answers_kit
import cv2
import numpy as np
import pytest
import recipe_kit as kit
from answers_kit import flat, noise
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_kit import Group, Tile

from fastdata.augment.recipe import FILL
from fastdata.errors import UsageError
from fastdata.masks import rings_to_mask
from fastdata.render import reference
from fastdata.render.tolerance import differs, opencv_warp


@pytest.mark.parametrize("known", answers_kit.KNOWN, ids=lambda check: check.__name__)
def test_a_picture_that_is_known_without_a_renderer_comes_out_exactly(known: answers_kit.Check) -> None:
    """Not one level off."""
    known(reference.render, 0)


MUTANTS = {
    "half a pixel to the right": ("np.arange(width) + 0.5,", "np.arange(width) + 1.0,"),
    "half a pixel up": ("np.floor(x - 0.5), np.floor(y - 0.5)", "np.floor(x - 0.5), np.floor(y)"),
    "no half pixel at all": ("x - 0.5", "x"),
    "axes exchanged": ("np.stack([x.ravel(), y.ravel(),", "np.stack([y.ravel(), x.ravel(),"),
    "the earlier tile on top": ("range(int(recipe.tile_offsets[g]), int(recipe.tile_offsets[g + 1]))",
                                "reversed(range(int(recipe.tile_offsets[g]), int(recipe.tile_offsets[g + 1])))"),
    "matrix not inverted": ("np.linalg.inv(matrix)", "matrix"),
    "behind the viewer seen": ("seen = depth > 0", "seen = depth != 0"),
    "visible part ignored": ("x0, y0, x1, y1 = recipe.visible_xyxy[t].tolist()",
                             "x0, y0 = recipe.origin_xy[t].tolist(); y1, x1 = y0 + tiles[t].shape[1], x0 + tiles[t].shape[2]"),
    "last row of a tile lost": ("(i < y1)", "(i < y1 - 1)"),
    "weights ignored": ("float(recipe.weight[g])", "1.0"),
    "clip ignored": ("where[y0:y1, x0:x1] = True", "where[:] = True"),
    "clip counted from the end": ("np.maximum(recipe.clip_xyxy[g], 0)", "recipe.clip_xyxy[g]"),
    "mask ignored": ("return where & union", "return where"),
    "mask instead of clip": ("return where & union", "return union"),
    "shapes cancel each other": ("union |=", "union ^="),
    "holes filled": ("union |= rings_to_mask(rings, recipe.out_hw) > 0",
                     "union |= np.any([rings_to_mask([ring], recipe.out_hw) for ring in rings], axis=0)"),
    "not rounded": ("picture + 0.5", "picture"),
    "rounded to even": ("np.floor(picture + 0.5)", "np.rint(picture)"),
    "BGR for nobody": ("if recipe.bgr[slot]", "if False"),
    "hue turns the other way": ("hue * hue_mul + hue_add", "hue * hue_mul - hue_add"),
    "hue never multiplied": ("hue * hue_mul", "hue"),
    "saturation overflows": ("np.minimum(saturation * sat_mul, 1)", "saturation * sat_mul"),
    "value overflows": ("np.minimum(value * val_mul, 255)", "value * val_mul"),
    "green and blue exchanged": ("enumerate((5, 3, 1))", "enumerate((5, 1, 3))"),
}  # fmt: skip


def _mutant(name: str) -> ModuleType:
    """The reference with one thing changed."""
    source = Path(reference.__file__).read_text()
    right, wrong = MUTANTS[name]
    assert right in source
    module = ModuleType("mutant")
    exec(compile(source.replace(right, wrong), "mutant", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_version_of_the_definition_gives_a_known_picture_wrongly(name: str) -> None:
    """Each is one slip away from the right one."""
    render = _mutant(name).render
    with pytest.raises((AssertionError, ValueError, IndexError)):
        _check_all(render)


def _check_all(render: kit.Render) -> None:
    for known in answers_kit.KNOWN:
        known(render, 0)


# Geometry -------------------------------------------------------------------------------------------------------------------


def _white_box(seed: int) -> tuple[kit.Render, np.ndarray, np.ndarray]:
    """A white rectangle on black, drawn through a random affine: (H, W) 0..1, and its mapped corners."""
    rng = np.random.default_rng(seed)
    canvas_hw, out_hw = (int(rng.integers(60, 100)), int(rng.integers(60, 100))), (int(rng.integers(70, 110)),) * 2
    picture = flat(*canvas_hw, (0, 0, 0))
    (x0, y0), (w, h) = rng.integers(15, 25, 2), rng.integers(12, 25, 2)
    picture[y0 : y0 + h, x0 : x0 + w] = 255
    matrix = kit.affine(rng, canvas_hw, out_hw)
    store = kit.memory_store([picture])
    got = reference.render(store, kit.one(store, Group([Tile(0)], matrix), out_hw=out_hw))[0, 0] / 255
    corners = np.array([[x0, y0], [x0 + w, y0], [x0 + w, y0 + h], [x0, y0 + h]], np.float64)
    return got, corners @ matrix[:2, :2].T + matrix[:2, 2], matrix


def _depth(corners: np.ndarray, out_hw: tuple[int, int]) -> np.ndarray:
    """How far each pixel's centre lies within a convex outline, in px; negative outside."""
    if np.cross(np.append(corners[1] - corners[0], 0), np.append(corners[2] - corners[1], 0))[2] < 0:
        corners = corners[::-1]
    y, x = np.mgrid[: out_hw[0], : out_hw[1]] + 0.5
    sides = np.roll(corners, -1, axis=0) - corners
    normal = np.stack([-sides[:, 1], sides[:, 0]], axis=1) / np.linalg.norm(sides, axis=1)[:, None]
    away = [(x - cx) * nx + (y - cy) * ny for (cx, cy), (nx, ny) in zip(corners, normal, strict=True)]
    return np.min(away, axis=0)


@settings(max_examples=60)
@given(st.integers(0, 1 << 30))
def test_a_rectangle_is_found_where_the_matrix_takes_its_edges(seed: int) -> None:
    """The 50 % line lies within half a pixel of the mapped edges, everywhere, corners included."""
    got, corners, _ = _white_box(seed)
    depth = _depth(corners, got.shape)
    filled = depth > -1e-9  # FILL comes in only outside the tile, and that is not white
    assert (got[depth > 0.5] >= 0.5).all()
    assert (got[(depth < -0.5)] < 0.5).all()
    assert filled.any()


def test_rectangles_are_not_off_to_one_side() -> None:
    """Over many random matrices the middle of the white pixels lies on the mapped middle, to a twentieth of a pixel."""
    off = []
    for seed in range(60):
        got, corners, _ = _white_box(seed)
        # FILL makes a gray frame: only the surroundings of the rectangle count
        white = np.where(_depth(corners, got.shape) > -3, got, 0)
        if (corners.min() > 4) and (corners.max(axis=0) < np.array(got.shape[::-1]) - 4).all():
            y, x = np.mgrid[: got.shape[0], : got.shape[1]] + 0.5
            middle = np.array([(white * x).sum(), (white * y).sum()]) / white.sum()
            off.append(middle - corners.mean(axis=0))
    assert len(off) > 30
    assert np.abs(np.mean(off, axis=0)).max() < 0.02
    assert np.abs(off).max() < 0.1


@pytest.mark.parametrize("k", [0.5, 0.75, 1.0, 1.3, 2.0])
def test_axis_aligned_edges_weigh_what_they_cover(k: float) -> None:
    """Along a row the white of a rectangle adds up to its mapped width, and begins at its mapped edge."""
    picture = flat(40, 60, (0, 0, 0))
    picture[8:32, 20:44] = 255
    store = kit.memory_store([picture])
    matrix = kit.moved(3.3, 2.6) @ kit.scaled(k)
    got = reference.render(store, kit.one(store, Group([Tile(0)], matrix), out_hw=(80, 128)))[0, 0] / 255
    row = got[int(2.6 + 20 * k), int(3.3 + 10 * k) : int(3.3 + 54 * k)]
    left = int(3.3 + 10 * k)
    assert abs(row.sum() - 24 * k) < 0.13 / k
    at = np.interp(0.5, row[: len(row) // 2], np.arange(len(row) // 2) + 0.5) + left
    assert abs(at - (3.3 + 20 * k)) < 0.13 / k


# Other libraries ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.integers(0, 1 << 30))
def test_gains_are_those_of_colorsys(seed: int) -> None:
    """On random colours, in real numbers; colorsys knows the same hexcone."""
    rng = np.random.default_rng(seed)
    rgb = rng.uniform(0, 255, 3) if rng.random() < 0.7 else rng.choice([0.0, 100.0, 255.0], 3)
    gains = np.array([rng.uniform(-1, 1), rng.uniform(0.9, 1.1), rng.uniform(0, 2), rng.uniform(0, 2)])
    h, s, v = colorsys.rgb_to_hsv(*(rgb / 255))
    want = colorsys.hsv_to_rgb((h * gains[1] + gains[0]) % 1, min(s * gains[2], 1), min(v * gains[3], 1))
    assert np.allclose(reference.recolour(rgb, gains), np.array(want) * 255, atol=1e-9)


def test_no_gains_touch_nothing() -> None:
    """Not even by rounding."""
    rgb = noise(30, 30).transpose(2, 0, 1) / 3
    assert reference.recolour(rgb, np.array(kit.NO_GAINS)) is rgb
    nearly = reference.recolour(rgb, np.array([0, 1, 1, 1 + 1e-12]))
    assert np.abs(nearly - rgb).max() < 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_a_warp_is_that_of_opencv_fed_the_matrix_of_pixel_centres(seed: int) -> None:
    """OpenCV counts from the centre of the first pixel; without the half pixel the pictures are far apart."""
    rng = np.random.default_rng(seed)
    pictures = [cv2.GaussianBlur(noise(50, 64, s), (0, 0), 1.0) for s in range(2)]
    store = kit.memory_store(pictures)
    canvas = answers_kit.on_canvas((60, 130), (pictures[0], 0, 3), (pictures[1], 64, 7)).astype(np.uint8)
    matrix = kit.affine(rng, (60, 130), (90, 110))
    group = Group([Tile(0, origin=(0, 3)), Tile(1, origin=(64, 7))], matrix)
    got = reference.render(store, kit.one(store, group, out_hw=(90, 110)))
    theirs = {}
    for name, half in (("centres", 0.5), ("edges", 0.0)):
        centred = kit.moved(-half, -half) @ matrix @ kit.moved(half, half)
        warped = cv2.warpAffine(canvas, centred[:2], (110, 90), flags=cv2.INTER_LINEAR, borderValue=(FILL,) * 3)
        theirs[name] = np.asarray(warped).transpose(2, 0, 1)[None]
    assert differs(got, theirs["centres"], opencv_warp()) is None
    assert differs(got, theirs["edges"], opencv_warp()) is not None


@pytest.mark.parametrize("seed", range(4))
def test_a_perspective_is_that_of_opencv(seed: int) -> None:
    """As strong as the largest that a policy draws."""
    rng = np.random.default_rng(seed)
    picture = cv2.GaussianBlur(noise(100, 120, seed), (0, 0), 2.0)
    tilt = np.array([[1, 0, 0], [0, 1, 0], [*rng.uniform(-0.001, 0.001, 2), 1]])
    matrix = kit.moved(55, 45) @ kit.turned(rng.uniform(-30, 30)) @ tilt @ kit.moved(-60, -50)
    store = kit.memory_store([picture])
    got = reference.render(store, kit.one(store, Group([Tile(0)], matrix), out_hw=(90, 110)))
    centred = kit.moved(-0.5, -0.5) @ matrix @ kit.moved(0.5, 0.5)
    theirs = cv2.warpPerspective(picture, centred, (110, 90), flags=cv2.INTER_LINEAR, borderValue=(FILL,) * 3)
    assert differs(got, np.asarray(theirs).transpose(2, 0, 1)[None], opencv_warp()) is None


# Arguments ------------------------------------------------------------------------------------------------------------------


def test_a_batch_can_be_drawn_into_a_buffer() -> None:
    """And into nothing that does not fit."""
    store = kit.memory_store([noise(4, 5)])
    recipe = kit.one(store, Group([Tile(0)]), out_hw=(4, 5))
    room = np.zeros((2, 3, 4, 5), np.uint8)
    assert np.shares_memory(reference.render(store, recipe, room[1:]), room)
    assert np.array_equal(room[1], reference.render(store, recipe)[0])
    assert not room[0].any()
    for wrong in (room, room[:1, :2], room[:1].astype(np.int16)):
        with pytest.raises(UsageError, match=r"out must be writable uint8 of shape \(1, 3, 4, 5\), got"):
            reference.render(store, recipe, wrong)


def test_a_shape_s_edge_belongs_to_the_pixel_whose_centre_it_leaves_inside() -> None:
    """An outline between two centres decides which pixel is painted; on a centre the pixel right of it is."""
    store = kit.memory_store([flat(3, 9, (0, 0, 0)), flat(3, 9, (255, 255, 255))])
    for edge, first in ((2.0, 2), (2.49, 2), (2.5, 2), (2.51, 3), (3.0, 3)):
        ring = [[edge, 0], [9, 0], [9, 3], [edge, 3]]
        recipe = kit.one(store, Group([Tile(0)]), Group([Tile(1)], shapes=[[ring]]), out_hw=(3, 9))
        got = reference.render(store, recipe)[0, 0]
        assert np.array_equal(got > 0, np.tile(np.arange(9) >= first, (3, 1)))
        assert np.array_equal(got > 0, rings_to_mask([np.array(ring)], (3, 9)) > 0)
