"""Pictures whose pixels are known without a renderer: by slicing, turning and averaging arrays. Every renderer must give them.

Each function of :data:`KNOWN` takes a renderer and how many levels it may be off, 0 for the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import recipe_kit as kit
from recipe_kit import Group, Slot, Tile

from fastdata.augment.recipe import FILL
from fastdata.pixels import resize

Pixels = npt.NDArray[np.uint8]
Check = Callable[[kit.Render, float], None]


def noise(h: int, w: int, seed: int = 0) -> Pixels:
    """(h, w, 3) without any symmetry."""
    return np.random.default_rng(seed).integers(0, 256, (h, w, 3), np.uint8)


def flat(h: int, w: int, rgb: tuple[int, int, int]) -> Pixels:
    """(h, w, 3) of one colour."""
    return np.full((h, w, 3), rgb, np.uint8)


def agree(got: Pixels, want: npt.NDArray[np.generic], within: float) -> None:
    """Compare (3, H, W) with an (H, W, 3) of real numbers, which is rounded half up."""
    rounded = np.floor(np.asarray(want, np.float64) + 0.5).transpose(2, 0, 1)
    assert got.shape == rounded.shape
    worst = np.abs(got.astype(np.float64) - rounded).max()
    assert worst <= within, f"{worst} levels off"


def on_canvas(canvas_hw: tuple[int, int], *placed: tuple[Pixels, int, int]) -> npt.NDArray[np.float64]:
    """Pictures pasted in order, (h, w, 3)."""
    canvas = np.full((*canvas_hw, 3), float(FILL))
    for picture, x, y in placed:
        canvas[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return canvas


def identity(render: kit.Render, within: float) -> None:
    """Nothing is done to the picture."""
    picture = noise(7, 9)
    store = kit.memory_store([picture])
    agree(render(store, kit.one(store, Group([Tile(0)]), out_hw=(7, 9)))[0], picture, within)


def whole_shift(render: kit.Render, within: float) -> None:
    """A shift by whole pixels, FILL where nothing is."""
    picture = noise(7, 9)
    store = kit.memory_store([picture])
    got = render(store, kit.one(store, Group([Tile(0)], kit.moved(3, 2)), out_hw=(12, 14)))[0]
    agree(got, on_canvas((12, 14), (picture, 3, 2)), within)
    got = render(store, kit.one(store, Group([Tile(0, origin=(5, 4))], kit.moved(-6, -6)), out_hw=(4, 5)))[0]
    agree(got, picture[2:6, 1:6], within)


def half_shift(render: kit.Render, within: float) -> None:
    """Half a pixel to the right: each pixel is the mean of two."""
    picture = noise(5, 6).astype(np.float64)
    store = kit.memory_store([picture.astype(np.uint8)])
    got = render(store, kit.one(store, Group([Tile(0)], kit.moved(0.5, 0)), out_hw=(5, 7)))[0]
    padded = np.pad(picture, ((0, 0), (1, 1), (0, 0)), constant_values=FILL)
    agree(got, (padded[:, 1:] + padded[:, :-1]) / 2, within)


def doubled(render: kit.Render, within: float) -> None:
    """At k = 2 output centres lie a quarter pixel from the picture's: 3/4 of one pixel, 1/4 of the next, FILL beyond the edge."""
    picture = noise(5, 6).astype(np.float64)
    store = kit.memory_store([picture.astype(np.uint8)])
    want = np.pad(picture, ((1, 1), (1, 1), (0, 0)), constant_values=FILL)
    for axis in (0, 1):
        a = np.moveaxis(want, axis, 0)
        up, down = 0.25 * a[:-2] + 0.75 * a[1:-1], 0.75 * a[1:-1] + 0.25 * a[2:]
        want = np.moveaxis(np.stack([up, down], axis=1).reshape(-1, *a.shape[1:]), 0, axis)
    got = render(store, kit.one(store, Group([Tile(0)], kit.scaled(2)), out_hw=(10, 12)))[0]
    agree(got, want, within)


def halved(render: kit.Render, within: float) -> None:
    """At k = 1/2 each pixel is the mean of the 2 x 2 that it covers, halves rounded up."""
    picture = noise(8, 6)
    store = kit.memory_store([picture])
    got = render(store, kit.one(store, Group([Tile(0)], kit.scaled(0.5)), out_hw=(4, 3)))[0]
    agree(got, picture.reshape(4, 2, 3, 2, 3).mean(axis=(1, 3)), within)


def flips_and_turns(render: kit.Render, within: float) -> None:
    """Mirrors and quarter turns only move pixels."""
    picture = noise(6, 9)
    store = kit.memory_store([picture])
    up_down = np.array([[1, 0, 0], [0, -1, 6], [0, 0, 1]], np.float64)
    clockwise = np.array([[0, -1, 6], [1, 0, 0], [0, 0, 1]], np.float64)
    for matrix, want in (
        (kit.mirrored(9), picture[:, ::-1]),
        (up_down, picture[::-1]),
        (clockwise, np.rot90(picture, -1)),
        (kit.moved(6, 0) @ kit.turned(90), np.rot90(picture, -1)),
    ):
        out_hw = want.shape[:2]
        agree(render(store, kit.one(store, Group([Tile(0)], matrix), out_hw=out_hw))[0], want, within)


def seams(render: kit.Render, within: float) -> None:
    """Four tiles around a centre make one picture: across a seam pixels blend as inside a tile."""
    pictures = [noise(5, 7, seed) for seed in range(4)]
    store = kit.memory_store(pictures)
    corners = ((0, 0), (7, 0), (0, 5), (7, 5))
    tiles = [Tile(i, origin=corner) for i, corner in enumerate(corners)]
    canvas = on_canvas((10, 14), *((p, *corner) for p, corner in zip(pictures, corners, strict=True)))
    agree(render(store, kit.one(store, Group(tiles), out_hw=(10, 14)))[0], canvas, within)
    got = render(store, kit.one(store, Group(tiles, kit.moved(-0.5, -0.5)), out_hw=(9, 13)))[0]
    agree(got, (canvas[:-1, :-1] + canvas[1:, :-1] + canvas[:-1, 1:] + canvas[1:, 1:]) / 4, within)


def overlaps(render: kit.Render, within: float) -> None:
    """A later tile covers an earlier one, where it is visible."""
    pictures = [noise(6, 6, seed) for seed in range(3)]
    store = kit.memory_store(pictures)
    tiles = [Tile(0), Tile(1, origin=(3, 2)), Tile(2, origin=(1, 1), visible=(2, 2, 4, 5))]
    want = on_canvas((8, 9), (pictures[0], 0, 0), (pictures[1], 3, 2), (pictures[2][1:4, 1:3], 2, 2))
    agree(render(store, kit.one(store, Group(tiles), out_hw=(8, 9)))[0], want, within)


def cut_tiles(render: kit.Render, within: float) -> None:
    """A tile may begin outside the canvas, show a part of a record, be resized, and be invisible."""
    picture = noise(12, 16)
    store = kit.memory_store([picture])
    got = render(store, kit.one(store, Group([Tile(0, origin=(-4, -3), visible=(0, 0, 10, 8))]), out_hw=(9, 12)))[0]
    agree(got, on_canvas((9, 12), (picture[3:11, 4:14], 0, 0)), within)
    got = render(store, kit.one(store, Group([Tile(0, origin=(1, 2), source=(3, 4, 9, 11))]), out_hw=(10, 10)))[0]
    agree(got, on_canvas((10, 10), (picture[4:11, 3:9], 1, 2)), within)
    for size in ((6, 8), (24, 31)):
        got = render(store, kit.one(store, Group([Tile(0, size=size)]), out_hw=size))[0]
        agree(got, resize(picture, size, "trainer"), within)
    got = render(store, kit.one(store, Group([Tile(0, visible=(5, 0, 5, 12))]), out_hw=(4, 4)))[0]
    agree(got, flat(4, 4, (FILL,) * 3), within)


def blends(render: kit.Render, within: float) -> None:
    """Two groups in order: MixUp by weight, CutMix by rectangle, which may reach beyond the output."""
    a, b = noise(6, 8, 0), noise(6, 8, 1)
    store = kit.memory_store([a, b])
    mixed = kit.one(store, Group([Tile(0)]), Group([Tile(1)], weight=0.25), out_hw=(6, 8))
    agree(render(store, mixed)[0], 0.75 * a + 0.25 * b, within)
    cut = kit.one(store, Group([Tile(0)]), Group([Tile(1)], kit.moved(1, 0), clip=(2, 1, 7, 4)), out_hw=(6, 8))
    want = a.copy()
    want[1:4, 2:7] = b[1:4, 1:6]
    agree(render(store, cut)[0], want, within)
    cut = kit.one(store, Group([Tile(0)]), Group([Tile(1)], clip=(-3, -1, 2, 70)), out_hw=(6, 8))
    agree(render(store, cut)[0], np.concatenate([b[:, :2], a[:, 2:]], axis=1), within)
    three = kit.one(store, *(Group([Tile(i)], weight=w) for i, w in ((0, 1), (1, 0.5), (0, 0.5))), out_hw=(6, 8))
    agree(render(store, three)[0], (a / 2 + b / 2) / 2 + a / 2, within)


def masked(render: kit.Render, within: float) -> None:
    """Shapes: their union, each even-odd with its hole; within the clip; no shape paints nothing."""
    a, b = noise(12, 14, 0), noise(12, 14, 1)
    store = kit.memory_store([a, b])

    def square(x0: float, y0: float, x1: float, y1: float) -> kit.Ring:
        return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]

    donut, over = [square(1, 1, 8, 8), square(3, 3, 6, 6)], [square(5, 5, 11, 11)]
    inside = np.zeros((12, 14), np.bool_)
    inside[1:8, 1:8] = True
    inside[3:6, 3:6] = False
    inside[5:11, 5:11] = True
    for clip, kept in (None, (slice(None), slice(None))), ((2, 0, 9, 7), (slice(0, 7), slice(2, 9))):
        recipe = kit.one(store, Group([Tile(0)]), Group([Tile(1)], clip=clip, shapes=[donut, over]), out_hw=(12, 14))
        want = a.copy()
        want[kept][inside[kept]] = b[kept][inside[kept]]
        agree(render(store, recipe)[0], want, within)
    recipe = kit.one(store, Group([Tile(0)]), Group([Tile(1)], shapes=[]), out_hw=(12, 14))
    agree(render(store, recipe)[0], a, within)


def channels(render: kit.Render, within: float) -> None:
    """Gray is in all three channels, beside colour in the same canvas; BGR turns the channels around."""
    gray, colour = noise(5, 6)[:, :, 0].copy(), noise(5, 6, 1)
    store = kit.memory_store([gray, colour])
    group = Group([Tile(0), Tile(1, origin=(6, 0))])
    want = np.concatenate([np.repeat(gray[:, :, None], 3, axis=2), colour], axis=1)
    got = render(store, kit.recipe(store, [Slot([group]), Slot([group], bgr=True)], (5, 12)))
    agree(got[0], want, within)
    agree(got[1], want[:, :, ::-1], within)


def colours(render: kit.Render, within: float) -> None:
    """Hue turns, saturation fades, value stops at 255, gray has no hue; gains come after the blend and before BGR."""
    picture = np.array([[(250, 10, 10), (10, 250, 10), (60, 120, 180), (77, 77, 77), (0, 0, 0), (200, 110, 50)]], np.uint8)
    store = kit.memory_store([picture])
    third = np.array([1 / 3], np.float32)[0]
    for gains, want in (
        ((third, 1, 1, 1), picture[:, :, [2, 0, 1]]),  # red becomes green, green blue, blue red
        ((-third, 1, 1, 1), picture[:, :, [1, 2, 0]]),
        ((0, 1, 0, 1), np.repeat(picture.max(axis=2, keepdims=True), 3, axis=2)),
        ((0, 1, 1, 0.5), picture / 2),
        ((0, 0, 1, 1), [[(250, 10, 10), (250, 10, 10), (180, 60, 60), (77, 77, 77), (0, 0, 0), (200, 50, 50)]]),
        ((0, 1, 1, 2), [[(255, 10.2, 10.2), (10.2, 255, 10.2), (85, 170, 255), (154,) * 3, (0, 0, 0), (255, 140.25, 63.75)]]),
        ((0, 1, 1.5, 1), [[(250, 0, 0), (0, 250, 0), (0, 90, 180), (77, 77, 77), (0, 0, 0), (200, 80, 0)]]),
        (kit.NO_GAINS, picture),
    ):  # fmt: skip
        recipe = kit.one(store, Group([Tile(0)]), out_hw=(1, 6), gains=gains)
        agree(render(store, recipe)[0], np.asarray(want), within)
    red, blue = flat(2, 2, (200, 0, 0)), flat(2, 2, (0, 0, 200))
    store = kit.memory_store([red, blue])
    mix = Slot([Group([Tile(0)]), Group([Tile(1)], weight=0.25)], (0, 1, 0.5, 1), bgr=True)
    agree(render(store, kit.recipe(store, [mix], (2, 2)))[0], flat(2, 2, (100, 75, 150)), within)  # R 150, G 75, B 100


def batches(render: kit.Render, within: float) -> None:
    """Slots of different make do not touch each other, and none, one or all give the same pixels."""
    pictures = [noise(8, 8, seed) for seed in range(3)]
    store = kit.memory_store(pictures)
    slots = [
        Slot([Group([Tile(0)])]),
        Slot([Group([Tile(1), Tile(2, origin=(4, 4))]), Group([Tile(0)], clip=(0, 0, 3, 3))], (0, 1, 0, 1)),
        Slot([Group([Tile(2)], kit.mirrored(8))], bgr=True),
    ]
    recipe = kit.recipe(store, slots, (8, 8))
    whole = render(store, recipe)
    for i in range(3):
        assert np.array_equal(render(store, recipe.slots(i, i + 1))[0], whole[i])
    assert render(store, recipe.slots(1, 1)).shape == (0, 3, 8, 8)
    agree(whole[0], pictures[0], within)
    agree(whole[2], pictures[2][:, ::-1, ::-1], within)


def perspective(render: kit.Render, within: float) -> None:
    """A ramp in x keeps its value along the mapped x; what lies behind the viewer is FILL."""
    ramp = np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], 40, axis=0).repeat(3, axis=2)
    store = kit.memory_store([ramp, flat(40, 800, (9, 9, 9))])
    matrix = np.array([[1, 0, 0], [0, 1, 0], [0.02, 0.0, 1.0]])
    behind = Tile(1, origin=(-800, -20))  # where the same division takes what lies behind
    got = render(store, kit.one(store, Group([behind, Tile(0)], matrix), out_hw=(8, 60)))[0]
    x = np.arange(60) + 0.5
    back = x / (1 - 0.02 * x)  # of u / (0.02 u + 1) = x; beyond 50 it comes from behind
    inside = (back > 0.5) & (back < 59.5)
    assert 20 < inside.sum() < 40
    assert np.abs(got[:, 2, inside] - (back[inside] - 0.5) * 4).max() <= within + 0.5
    assert (got[:, :, 51:] == FILL).all()


KNOWN: tuple[Check, ...] = (
    identity, whole_shift, half_shift, doubled, halved, flips_and_turns, seams, overlaps, cut_tiles, blends, masked, channels,
    colours, batches, perspective,
)  # fmt: skip
