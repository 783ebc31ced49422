"""Contact sheets: what is drawn where, and what is refused."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_kit import Shot, Thing, blank, instances, square, write

from fastdata.catalog import Keypoints
from fastdata.draw import FILL_ALPHA, SIDES, Placement, _draw_names, draw_labels, elide, printable
from fastdata.errors import UsageError
from fastdata.labels import CROWD, DIFFICULT, MASK, OBB
from fastdata.paint import class_colour, text_mask
from fastdata.show import GAP_PX, RIM_PX, contact_sheet, spread, write_contact_sheet
from fastdata.store.read import open_store

U8 = npt.NDArray[np.uint8]


def sheet_of(tmp_path: Path, *shots: Shot, keypoints: Keypoints | None = None, **options: object) -> U8:
    """The sheet of a store with these pictures, cut to the cell of the first one."""
    with open_store(write(tmp_path / "s.lmdb", shots, keypoints=keypoints)) as store:
        whole = contact_sheet(store, **options)  # type: ignore[arg-type]
    title_h = np.flatnonzero((whole[:, GAP_PX] == whole[0, 0]).all(axis=1))
    assert len(title_h)
    return whole


def drawn(
    h: int,
    w: int,
    things: list[Thing],
    gain: float = 1.0,
    *,
    value: int = 0,
    text_px: int = 0,
    line_px: float = 2.0,
    points: Keypoints | None = None,
) -> U8:
    """A picture of one grey with labels drawn on it, enlarged ``gain`` times, with a rim of ten pixels."""
    canvas = np.full((round(h * gain) + 20, round(w * gain) + 20, 3), value, np.uint8)
    labels = instances(things, points.count if points else 0)
    draw_labels(canvas, Placement((10, 10), (gain, gain)), labels, ["cat", "dog"], points, line_px=line_px, text_px=text_px)
    return canvas


@pytest.mark.parametrize("gain", [1.0, 3.0, 5.0])
def test_the_line_of_a_box_is_centred_on_its_edge(gain: float) -> None:
    """An edge at x lies between the pixels x - 1 and x: a line of two pixels covers one on each side, at any size."""
    canvas = drawn(40, 40, [Thing(1, (8, 12, 30, 32))], gain)
    colour = class_colour(1)
    middle = round(10 + 20 * gain)
    for edge in (8, 30):
        at = round(10 + edge * gain)
        assert (canvas[middle, at - 1 : at + 1] == colour).all(), edge
        assert not (canvas[middle, [at - 2, at + 1]] == colour).all(axis=1).any(), edge
    for edge in (12, 32):
        at = round(10 + edge * gain)
        assert (canvas[at - 1 : at + 1, middle] == colour).all(), edge
        assert not (canvas[[at - 2, at + 1], middle] == colour).all(axis=1).any(), edge
    assert (canvas[middle, middle] == 0).all(), "a box is not filled"


@pytest.mark.parametrize("line_px", [1.5, 2.0, 3.25])
@pytest.mark.parametrize("dashed", [False, True])
def test_lines_are_where_they_belong_to_a_fraction_of_a_pixel(line_px: float, dashed: bool) -> None:
    """The centre of gravity of a line's colour lies on the edge: exactly for a box, to a quarter pixel for what OpenCV draws."""
    edges = (8.15, 30.4) if dashed else (8.0, 30.5)
    canvas = drawn(40, 60, [Thing(0, (*edges[:1], 12, *edges[1:], 32), flags=DIFFICULT * dashed)], line_px=line_px)
    cover = canvas[24:40].astype(float).sum(axis=(0, 2))
    x = np.arange(len(cover)) + 0.5 - 10
    for edge, own in zip(edges, ((x > 2) & (x < 14), (x > 24) & (x < 38)), strict=True):
        cover_own = cover[own] - cover[own].min()
        centre = (cover_own * x[own]).sum() / cover_own.sum()
        assert abs(centre - edge) < (0.12 if dashed else 0.01)


def test_a_filled_pixel_is_the_pixel_that_the_label_names() -> None:
    """The outline of one pixel tints that pixel of the enlarged picture and no other (beyond the width of its line)."""
    canvas = drawn(8, 8, [Thing(0, parts=[square(3, 5, 4, 6)])], 16.0, value=100)
    tinted = (canvas.astype(int) - 100 != 0).any(axis=2)
    ys, xs = np.nonzero(tinted)
    assert (xs.min(), xs.max() + 1, ys.min(), ys.max() + 1) == (10 + 48 - 2, 10 + 64 + 2, 10 + 80 - 2, 10 + 96 + 2)
    want = np.rint(100 + FILL_ALPHA * (np.array(class_colour(0)) - 100))
    assert np.abs(canvas[10 + 88, 10 + 56] - want).max() <= 1


def test_the_hole_of_a_mask_stays_open() -> None:
    """The inner ring of a mask is not filled; the parts of a polygon are, also where they overlap."""
    rings = [square(4, 4, 36, 36), square(14, 14, 26, 26)]
    mask = drawn(40, 40, [Thing(0, parts=rings, kind=MASK)], 2.0, value=90)
    polygon = drawn(40, 40, [Thing(0, parts=rings)], 2.0, value=90)
    assert (mask[10 + 40, 10 + 40] == 90).all()
    assert (polygon[10 + 40, 10 + 40] != 90).any()
    assert (mask[10 + 18, 10 + 40] == polygon[10 + 18, 10 + 40]).all()
    assert (mask[10 + 18, 10 + 40] != 90).any()


def test_a_crowd_is_hatched_and_dashed() -> None:
    """Inside, lines of colour alternate with the picture; along the border, colour alternates with gaps."""
    plain = drawn(60, 60, [Thing(0, (5, 5, 55, 55))], value=80)
    crowd = drawn(60, 60, [Thing(0, (5, 5, 55, 55), flags=CROWD)], value=80)
    hard = drawn(60, 60, [Thing(0, (5, 5, 55, 55), flags=DIFFICULT)], value=80)
    inside = (crowd[25:55, 25:55] == 80).all(axis=2)
    assert 0.4 < inside.mean() < 0.9
    assert (hard[25:55, 25:55] == 80).all()
    line = (slice(14, 16), slice(25, 60))
    assert (plain[line] == class_colour(0)).all()
    for picture in (crowd, hard):
        share = (picture[line] == class_colour(0)).all(axis=2).mean()
        assert 0.3 < share < 0.8


def test_an_oriented_box_is_drawn_along_its_own_sides() -> None:
    """The colour lies on the turned corners, also beyond the border of the picture, and not on the axis-aligned box."""
    corners = [[20, -6], [40, 14], [30, 24], [10, 4]]
    canvas = drawn(40, 40, [Thing(1, (10, 0, 40, 24), [corners], OBB)])
    colour = np.array(class_colour(1))
    for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
        x, y = (np.array(a) + b) / 2 + 10
        assert np.abs(canvas[int(y), int(x)] - colour).max() < 90, (a, b)
    assert (canvas[10 + 24 - 1, 10 + 12] == 0).all()


PERSON = Keypoints(4, ("nose", "left_hand", "right_hand", "tail"), (0, 2, 1, 3), ((1, 2), (0, 3)))


def test_visible_keypoints_are_full_hidden_ones_hollow_and_others_not_there() -> None:
    """The centre has the colour of its side if visible, else stays the picture; the ring of a hidden one has the colour."""
    points = [[10, 10, 0], [12, 30, 2], [40, 30, 1], [50, 50, 2]]
    canvas = drawn(60, 60, [Thing(0, (2, 2, 58, 58), keypoints=points)], 2.0, points=PERSON)
    assert (canvas[10 + 60, 10 + 24] == SIDES[0]).all()
    assert (canvas[10 + 100, 10 + 100] == SIDES[2]).all()
    around = canvas[10 + 60 - 4 : 10 + 60 + 5, 10 + 80 - 4 : 10 + 80 + 5].reshape(-1, 3)
    assert (around == SIDES[1]).all(axis=1).sum() >= 8
    assert (canvas[10 + 10 : 10 + 28, 10 + 10 : 10 + 28] == 0).all(), "a keypoint that is not labelled is not drawn"
    assert (canvas[10 + 60, 10 + 52] != 0).any() or (canvas[10 + 60, 10 + 56] != 0).any(), "the joint is drawn"
    assert (canvas[10 + 60, 10 + 80] == 0).all() or (canvas[10 + 60, 10 + 80] != SIDES[1]).any()


def test_names_lie_beside_each_other() -> None:
    """Every name that is drawn is seen whole, however crowded the picture; those that find no place are counted."""
    corners_xy = [(x, y) for x in range(0, 100, 12) for y in range(0, 100, 9)]
    boxes = np.array([(x, y, x + 20, y + 14) for x, y in corners_xy], float)
    colours = [(1 + k, 255 - k, 3) for k in range(len(boxes))]
    texts = ["cat" if k % 2 else "a dog" for k in range(len(boxes))]
    canvas = np.zeros((120, 130, 3), np.uint8)
    left_out = _draw_names(canvas, boxes, texts, colours, np.arange(len(boxes)), 10)
    seen = 0
    for text, colour in zip(texts, colours, strict=True):
        ys, xs = np.nonzero((canvas == colour).all(axis=2))
        if not len(ys):
            continue
        seen += 1
        h, w = text_mask(text, 10).shape
        assert (xs.max() + 1 - xs.min(), ys.max() + 1 - ys.min()) == (w + 5, h)
        plate = canvas[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
        others = [c for c in colours if c != colour]
        assert not any((plate == other).all(axis=2).any() for other in others)
    assert seen == len(boxes) - left_out
    assert 5 < seen < len(boxes)


def test_a_lone_name_stands_above_its_box() -> None:
    """Outside the object, on a plate of the class's colour."""
    canvas = np.zeros((60, 60, 3), np.uint8)
    labels = instances([Thing(0, (0, 0, 18, 14))])
    assert draw_labels(canvas, Placement((10, 20), (1, 1)), labels, ["cat"], None, line_px=1.5, text_px=10) == 0
    assert (canvas[:19] == class_colour(0)).all(axis=2).sum() > 50


def test_colours_are_stable_and_far_apart() -> None:
    """A class has the same colour on every sheet; the first twelve are told apart at a glance, the first thousand all differ."""
    colours = np.array([class_colour(c) for c in range(1000)], float)
    assert [class_colour(c) for c in range(3)] == [class_colour(c) for c in range(3)]
    assert len({tuple(c) for c in colours.tolist()}) > 900
    first = colours[:12]
    apart = np.linalg.norm(first[:, None] - first[None], axis=2) + 1e3 * np.eye(12)
    assert apart.min() > 60
    assert (colours.max(axis=1) > 100).all(), "readable on dark paper"


@given(st.integers(1, 200), st.integers(1, 60))
def test_the_choice_of_images_is_an_even_spread(count: int, k: int) -> None:
    """Ascending, different, and as far from each other and from the ends as can be, to within one."""
    ids = spread(count, k)
    assert len(ids) == min(count, k)
    assert ids == sorted(set(ids))
    assert 0 <= ids[0] <= count // len(ids)
    steps = np.diff([*ids, ids[0] + count])
    assert steps.max() - steps.min() <= 1


def test_the_sheet_shows_the_stored_pixels_under_the_labels(tmp_path: Path) -> None:
    """A tile is the stored picture, enlarged pixel by pixel, in reading order; one channel is shown as gray."""
    first = (np.indices((20, 30)).sum(axis=0) % 2 * 255).astype(np.uint8)
    shots = [Shot(np.repeat(first[..., None], 3, axis=2)), Shot(first[::-1].copy()), Shot(blank(20, 30, 200))]
    whole = sheet_of(tmp_path, *shots, tile_px=300, columns=3)
    gray = (whole == 255).all(axis=2)
    rows = np.flatnonzero(gray.any(axis=1))
    top = int(rows[0])
    left = GAP_PX + RIM_PX
    for k, shot in enumerate((first, first[::-1])):
        x = left + k * (300 + 2 * RIM_PX + GAP_PX)
        tile = whole[top : top + 200, x : x + 300]
        want = np.repeat(np.repeat(shot, 10, axis=0), 10, axis=1)
        assert (tile == want[..., None]).all(), k
    x = left + 2 * (300 + 2 * RIM_PX + GAP_PX)
    assert (whole[top : top + 200, x : x + 300] == 200).all()


def test_ids_are_shown_in_the_order_given_and_no_others(tmp_path: Path) -> None:
    """The tiles of a sheet are those of its ids; without any, at most so many as asked for."""
    shots = [Shot(blank(10, 10, 20 * k + 10), split="train" if k < 4 else "val") for k in range(6)]
    with open_store(write(tmp_path / "s.lmdb", shots)) as store:
        sheet = contact_sheet(store, [5, 0], columns=2, tile_px=64)
        greys = [g for g in sheet.reshape(-1, 3).tolist() if g[0] == g[1] == g[2] and g[0] % 20 == 10]
        assert {g[0] for g in greys} & {10, 30, 50, 70, 90, 110} == {110, 10}
        assert sheet.tolist() == contact_sheet(store, [5, 0], columns=2, tile_px=64).tolist()
        assert contact_sheet(store, max_images=1, tile_px=64).shape[0] < contact_sheet(store, tile_px=64, columns=1).shape[0]
    with open_store(tmp_path / "s.lmdb", split="val") as store:
        assert (contact_sheet(store, [0], tile_px=64) == 90).all(axis=2).sum() >= 64 * 64


@pytest.mark.parametrize("ids", [[2], [0, -1], [7, 8]])
def test_an_id_outside_the_store_is_refused(tmp_path: Path, ids: list[int]) -> None:
    """The message names the ids there are and those asked for."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(4, 4)), Shot(blank(4, 4))])) as store:
        with pytest.raises(UsageError, match=r"ids must be 0\.\.1 \(2 images\), got"):
            contact_sheet(store, ids)
        for wrong in ({"max_images": 0}, {"tile_px": 8}, {"columns": 0}):
            with pytest.raises(UsageError, match="must be"):
                contact_sheet(store, **wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="at least one image"):
            contact_sheet(store, [])


@pytest.mark.parametrize("name", ["sheet.png", "sheet.PNG", "sheet.jpg", "sheet.jpeg"])
def test_a_sheet_is_written_by_its_ending(tmp_path: Path, name: str) -> None:
    """PNG holds the very pixels, JPEG nearly; nothing else is left beside it, and an old file is replaced."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("old")
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(30, 40, 77), [Thing(1, (3, 3, 20, 20))])])) as store:
        write_contact_sheet(store, folder / name, tile_px=64)
        want = contact_sheet(store, tile_px=64)
    got = cv2.cvtColor(cv2.imread(str(folder / name)), cv2.COLOR_BGR2RGB)
    assert [p.name for p in folder.iterdir()] == [name]
    if name.lower().endswith("png"):
        assert (got == want).all()
    else:
        assert np.abs(got.astype(int) - want).mean() < 4


def test_another_ending_is_refused_and_nothing_written(tmp_path: Path) -> None:
    """The message says which endings there are."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(4, 4))])) as store:
        with pytest.raises(UsageError, match=r"must end in \.png"):
            write_contact_sheet(store, tmp_path / "sheet.gif")
        with pytest.raises(FileNotFoundError):
            write_contact_sheet(store, tmp_path / "no" / "sheet.png")
    assert [p.name for p in tmp_path.iterdir()] == ["s.lmdb"]


def test_odd_names_are_shown_as_well_as_they_can_be(tmp_path: Path) -> None:
    """Names of other scripts, of no script at all, and very long ones do not break a sheet."""
    names = ["猫 и пёс", "x" * 300]
    shots = [Shot(blank(30, 30), [Thing(0, (2, 2, 20, 20)), Thing(1, (5, 5, 25, 25))], key="a\udcff\n" + "b" * 300 + ".png")]
    with open_store(write(tmp_path / "s.lmdb", shots, names=names)) as store:
        assert contact_sheet(store, tile_px=128).shape[2] == 3
    assert printable("a\udcff\x07b") == "a??b"
    assert elide("abcdefghij", 6) == "ab…hij"
    assert text_mask("猫", 12).max() > 100
    assert not np.array_equal(text_mask("猫", 12), text_mask("犬", 12)[:, : text_mask("猫", 12).shape[1]])


def test_a_picture_of_one_pixel_in_height_has_a_tile(tmp_path: Path) -> None:
    """No side of a tile vanishes."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(1, 2000, 255), [Thing(0, (0, 0, 2000, 1))])])) as store:
        sheet = contact_sheet(store, tile_px=100)
    assert (sheet != sheet[0, 0]).any()
