"""Parts of the compiled renderer, each against a few lines of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.augment.recipe import FILL
from fastdata.masks import rings_to_mask
from fastdata.render.kernels import axis, bands, colour, compiled, lanes, memory, paint
from fastdata.render.kernels.compiled import part
from fastdata.render.kernels.memory import address_of, keep
from fastdata.render.reference import recolour

I64 = npt.NDArray[np.int64]

# Lanes ----------------------------------------------------------------------------------------------------------------------


@part
def _operations(a: Any, b: Any, out: Any) -> None:
    x, y = memory.load_v16(address_of(a)), memory.load_v16(address_of(b))
    at = address_of(out)
    memory.store_v16(at, lanes.product_q15(x, y))
    memory.store_v16(at + 32, lanes.add_saturated(x, y))
    memory.store_v16(at + 64, lanes.sub_unsigned(x, y))
    memory.store_v16(at + 96, lanes.choose(lanes.greater(x, y), x, y))
    positive = lanes.shift_right(x, 1)
    memory.store_v16(at + 128, lanes.to_i16(lanes.f32_mul(lanes.to_f32(positive), lanes.all_f32(np.float32(1.7)))))
    memory.store_low_bytes(at + 160, lanes.shift_right(x, 8))
    memory.store_v16(at + 192, lanes.weighted_pairs(x, y))
    keep((a, b, out))


@given(st.integers(0, 1 << 30))
def test_an_instruction_on_16_numbers_is_what_it_says(seed: int) -> None:
    """Signs, rounding, saturation and the order of the lanes."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-32768, 32768, (2, 16)).astype(np.int16)
    b[0] = a[0] = -32767
    low = rng.integers(0, 256, 16)
    weights = (low | (255 - low) << 8).astype(np.uint16).view(np.int16)
    out = np.zeros((7, 16), np.int16)
    _operations(a, b, out)
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    assert np.array_equal(out[0], (wide_a * wide_b + (1 << 14)) >> 15)
    assert np.array_equal(out[1], np.clip(wide_a + wide_b, -32768, 32767))
    unsigned = np.maximum(a.view(np.uint16).astype(np.int64) - b.view(np.uint16), 0)
    assert np.array_equal(out[2].view(np.uint16), unsigned)
    assert np.array_equal(out[3], np.maximum(a, b))
    half = (a.view(np.uint16) >> 1).astype(np.float32)
    assert np.array_equal(out[4], np.minimum(np.rint(half * np.float32(1.7)), 32767))
    assert np.array_equal(out[5].view(np.uint8)[:16], a.view(np.uint16) >> 8)
    _operations(a, weights, out)
    pixels = a.view(np.uint8).reshape(16, 2).astype(np.int64) - 128
    assert np.array_equal(out[6], (pixels * np.stack([low, 255 - low], axis=1)).sum(axis=1))


# Across and down ------------------------------------------------------------------------------------------------------------


def test_places_are_those_of_pixel_centres() -> None:
    """Between which two pixels, and how far from the first; a whole pixel needs no second one."""
    first, share = np.empty(4, np.int64), np.empty(4, np.int64)
    axis.place_samples(2.0, 0.0, 4, first, share, 255)
    assert first.tolist() == [-1, 0, 0, 1]
    assert share.tolist() == [191, 64, 191, 64]  # 0.75 and 0.25 of 255
    axis.place_samples(-1.0, 4.0, 4, first, share, 255)
    assert first.tolist() == [3, 2, 1, 0]
    assert share.tolist() == [0, 0, 0, 0]
    axis.place_samples(1.0, 0.001, 4, first, share, 255)  # 0.999 of a pixel to the right is the next pixel
    assert first.tolist() == [0, 1, 2, 3]


def _tiles(rng: np.random.Generator, count: int) -> I64:
    """Tiles of a canvas of 200 x 200, overlapping, some hidden; addresses and strides are numbers to find again."""
    table = np.zeros((count, bands.TILE_FIELDS), np.int64)
    for t in range(count):
        x, y = rng.integers(-60, 180, 2)
        w, h = rng.integers(1, 120, 2)
        x0, x1 = np.sort(rng.integers(0, w + 1, 2))
        y0, y1 = np.sort(rng.integers(0, h + 1, 2))
        if rng.random() < 0.5:
            x0, x1 = 0, w  # so that runs end where the tile's memory does
        table[t] = [t << 32, 1 << 20, 1 << 10, x, y, x + w, y + h, x + x0, y + y0, x + x1, y + y1]
    return table


def _owner(tiles: I64, x: int, y: int) -> int:
    """The last tile that shows a canvas pixel."""
    shown = (tiles[:, 7] <= x) & (x < tiles[:, 9]) & (tiles[:, 8] <= y) & (y < tiles[:, 10])
    return int(np.flatnonzero(shown)[-1]) if shown.any() else -1


@settings(max_examples=150)
@given(st.integers(0, 1 << 30))
def test_runs_and_seams_are_every_column_once_and_say_whose_pixels_it_needs(seed: int) -> None:
    """For each row of the band, by looking each pixel up; and what 16 bytes at once would read lies within the tile's row."""
    rng = np.random.default_rng(seed)
    count, width = int(rng.integers(0, 7)), int(rng.integers(1, 150))
    tiles = _tiles(rng, count)
    columns, shares = np.empty(width, np.int64), np.empty(width, np.int64)
    scale = float(rng.choice([0.2, 0.47, 0.5, 0.77, 1.0, 1.5, 3.0])) * rng.choice([-1, 1])
    axis.place_samples(scale, rng.uniform(-60, 60) + (width if scale < 0 else 0), width, columns, shares, 255)
    band, edges = np.zeros(bands.BAND_FIELDS, np.int64), np.empty(2 * count + 1, np.int64)
    runs, seams = np.empty((2 * count + 1, bands.RUN_FIELDS), np.int64), np.empty((width, bands.SEAM_FIELDS), np.int64)
    blocks = np.empty((width // 16 + 2 * count + 2, bands.BLOCK_FIELDS), np.int64)
    y = int(rng.integers(-70, 220))
    bands.find_band(tiles, 0, count, y, columns, shares, edges, band, runs, seams, blocks, 7)
    assert band[bands.BAND_TOP] <= y < band[bands.BAND_BOTTOM]
    seen = np.zeros(width, np.int64)
    rows = [y, int(np.clip(band[bands.BAND_TOP], -300, 300)), int(np.clip(band[bands.BAND_BOTTOM] - 1, -300, 300))]
    for run in runs[: band[bands.BAND_RUNS]]:
        first, last = run[bands.RUN_FIRST], run[bands.RUN_LAST]
        seen[first:last] += 1
        owners = {_owner(tiles, int(columns[j]) + side, row) for j in range(first, last) for side in (0, 1) for row in rows}
        assert len(owners) == 1
        (owner,) = owners
        source = 0 if owner < 0 else tiles[owner, 0] - (tiles[owner, 4] << 10) - tiles[owner, 3]
        assert run[bands.RUN_SOURCE] == source
        _check_blocks(run, blocks, tiles, owner, columns, shares)
    for seam in seams[: band[bands.BAND_SEAMS]]:
        j = seam[bands.SEAM_COLUMN]
        seen[j] += 1
        assert seam[bands.SEAM_SHARE] == shares[j]
        for side, field in enumerate((bands.SEAM_LOW, bands.SEAM_HIGH)):
            x = int(columns[j]) + side
            owner = _owner(tiles, x, y)
            source = 7 if owner < 0 else tiles[owner, 0] - (tiles[owner, 4] << 10) - tiles[owner, 3] + x
            assert seam[field : field + 3].tolist() == [source, *([0, 0] if owner < 0 else [1 << 20, 1 << 10])]
    assert (seen == 1).all()
    drawn = [j for j in range(width) if any(_owner(tiles, int(columns[j]) + side, y) >= 0 for side in (0, 1))]
    assert all(band[bands.BAND_LEFT] <= j < band[bands.BAND_RIGHT] for j in drawn)


def _check_blocks(run: I64, blocks: I64, tiles: I64, owner: int, columns: I64, shares: I64) -> None:
    """16 bytes from each base lie within the tile's row and hold both pixels of all columns of the run."""
    covered = set()
    for block in blocks[run[bands.RUN_BLOCK] : run[bands.RUN_BLOCK] + run[bands.RUN_BLOCKS]]:
        j = int(block[bands.BLOCK_COLUMN])
        covered |= set(range(j, j + 16))
        packed = block[bands.BLOCK_PLACES :].view(np.uint8).reshape(2, 16, 2).astype(np.int64)
        bases = np.repeat(block[[bands.BLOCK_LOW, bands.BLOCK_HIGH]], 8)
        assert (bases >= tiles[owner, 3]).all()
        assert (bases + 16 <= tiles[owner, 5]).all()
        assert packed[0].max() < 16
        assert np.array_equal(bases[:, None] + packed[0], columns[j : j + 16, None] + [0, 1])
        assert np.array_equal(packed[1], np.stack([255 - shares[j : j + 16], shares[j : j + 16]], axis=1))
    if run[bands.RUN_BLOCKS]:
        assert covered == set(range(run[bands.RUN_FIRST], run[bands.RUN_LAST]))


# Colour ---------------------------------------------------------------------------------------------------------------------


@part
def _coloured(row: Any, gains: Any, out: Any) -> None:
    fields, reals, at = np.zeros(colour.COLOUR_FIELDS, np.int64), np.zeros(colour.REALS), np.empty(3, np.int64)
    spare = np.empty(48, np.uint8)
    colour.prepare_colour(gains, fields, reals)
    for channel in range(3):
        at[channel] = address_of(out) + channel * out.shape[1]
    colour.finish_row(address_of(row), 2 * row.shape[1], np.int64(0), out.shape[1], fields, reals, at, address_of(spare))
    keep((row, out, spare))


def _all_colours() -> npt.NDArray[np.int16]:
    """Corners and edges of the cube, grays, and colours with fractions of a level, in steps of 1/128."""
    levels = np.array([0, 1, 2, 3, 64, 127, 128, 200, 254, 255]) * 128
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=0).reshape(3, -1)
    between = np.random.default_rng(0).integers(0, 255 * 128 + 1, (3, 7000))
    return np.ascontiguousarray(np.concatenate([cube, between], axis=1), np.int16)


HUES = (0.0, 0.001, 0.015, -0.015, 1 / 12, -0.1, 1 / 6, 0.25, 1 / 3, 0.5, -0.49, 0.97)


@pytest.mark.parametrize("sat", [0.0, 0.3, 0.999, 1.0, 1.2, 1.7, 2.0])
@pytest.mark.parametrize("val", [0.0, 0.6, 1.0, 1.4, 2.0])
def test_gains_are_within_a_level_where_the_pixels_are_exact(sat: float, val: float) -> None:
    """What is left is steps of 1/128 of a level and one rounding, also in dark colours, whose saturation is a rough fraction."""
    row = _all_colours()
    out = np.zeros(row.shape, np.uint8)
    for hue in HUES:
        gains = np.array([hue, 1, sat, val], np.float32)
        _coloured(row, gains, out)
        off = np.abs(out - recolour(row / 128.0, gains.astype(np.float64)))
        assert off.max() < 0.5 + 10 / 128, hue


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33])
def test_no_byte_beyond_a_row_is_written(width: int) -> None:
    """However few columns are left over."""
    row = np.zeros((3, (width + 15) // 16 * 16), np.int16)
    row[:] = (np.arange(row.shape[1]) * 128)[None]
    out = np.full((4, width), 7, np.uint8)
    _coloured(row, np.array([0, 1, 1, 1], np.float32), out)
    assert np.array_equal(out[:3], np.tile(np.arange(width), (3, 1)))
    assert (out[3] == 7).all()


@pytest.mark.parametrize("scale", [1.01, 0.95, 1.08])
def test_multiplied_hue_is_exact_but_at_the_ends_of_the_circle(scale: float) -> None:
    """Where no rounding stands between the two, red of the one end is never taken for red of the other."""
    row = _all_colours()
    out = np.zeros(row.shape, np.uint8)
    gains = np.array([0, scale, 1.3, 0.9], np.float32)
    _coloured(row, gains, out)
    assert np.abs(out - recolour(row / 128.0, gains.astype(np.float64))).max() < 0.5 + 8 / 128


# Paint ----------------------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.integers(0, 1 << 30))
def test_a_mask_is_the_union_of_its_shapes_as_rings_are_filled_elsewhere(seed: int) -> None:
    """Rings of whole and of broken coordinates, outside of the frame, with too few points, crossing themselves."""
    rng = np.random.default_rng(seed)
    height, width = (int(n) for n in rng.integers(1, 40, 2))
    shapes = []
    for _ in range(rng.integers(0, 4)):
        low, high = [(-10, 50), (0, 4)][rng.integers(2)]  # few places: edges along the centres of a row or a column
        rings = [rng.uniform(low, high, (int(rng.integers(0, 8)), 2)) for _ in range(rng.integers(0, 4))]
        step = rng.choice([0.5, 1.0, 1 / 64])
        shapes.append([(np.rint(ring / step) * step).astype(np.float32) for ring in rings])
    flat = [ring for shape in shapes for ring in shape]
    shape_rings = np.cumsum([0, *map(len, shapes)])
    ring_points = np.cumsum([0, *map(len, flat)])
    points = np.concatenate([*flat, np.zeros((0, 2), np.float32)]).astype(np.float32)
    spans, toggles = np.empty((len(shapes), 2), np.int64), np.zeros((2, width + 1), np.uint8)
    paint.shape_rows(0, len(shapes), shape_rings, ring_points, points, spans)
    want = np.zeros((height, width), np.bool_)
    for shape in shapes:
        want |= rings_to_mask(shape, (height, width)) > 0
    x0, x1 = sorted(rng.integers(-3, width + 4, 2).tolist())
    want[:, : max(x0, 0)] = False
    want[:, max(x1, 0) :] = False
    inside = np.empty(width, np.int16)
    for y in range(height):
        paint.clip_row(x0, min(x1, width), inside)
        found = paint.mask_row(y, 0, len(shapes), shape_rings, ring_points, points, spans, width, inside, toggles)
        assert np.array_equal(inside != 0, want[y])
        assert found or not want[y].any()


def test_fill_is_what_the_kernels_say_it_is() -> None:
    """Across, in 255ths around 128."""
    assert axis.FILL_ACROSS == (FILL - 128) * 255
    assert round(axis.FILL_ACROSS * axis.ROW_WEIGHT / 32768) + 128 * axis.UNIT == FILL * axis.UNIT


def test_a_change_in_any_source_is_a_change_of_what_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Numba itself would only look at the entry's own file."""
    for name in ("axis.py", "draw.py"):
        (tmp_path / name).write_text("a = 1\n")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    before = compiled.digest_of_sources()
    assert before == compiled.digest_of_sources()
    (tmp_path / "axis.py").write_text("a = 2\n")
    assert compiled.digest_of_sources() != before
