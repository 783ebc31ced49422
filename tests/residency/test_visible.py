"""What a renderer reads of a tile lies in the rectangle that is said to be visible, and little else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import recipe_kit as kit
import training_kit
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_kit import Group, Slot, Tile

from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.render import reference
from fastdata.residency.visible import MARGIN_PX, visible_rects
from fastdata.samples import Samples

I64 = npt.NDArray[np.int64]

policies = st.builds(
    Policy,
    mosaic=st.sampled_from([0.0, 0.7, 1.0]),
    mosaic9=st.sampled_from([0.0, 0.5]),
    mixup=st.sampled_from([0.0, 0.7]),
    cutmix=st.sampled_from([0.0, 0.7]),
    copy_paste=st.sampled_from([0.0, 0.8]),
    copy_paste_mode=st.sampled_from(["flip", "mixup"]),
    degrees=st.sampled_from([0.0, 0.0, 20.0, 180.0]),
    shear=st.sampled_from([0.0, 10.0]),
    perspective=st.sampled_from([0.0, 0.0, 0.001, 0.01]),
    scale=st.sampled_from([0.0, 0.5, 0.9]),
    translate=st.sampled_from([0.0, 0.1, 0.6]),
    flipud=st.just(0.5),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of outlines, so that there is something to paste."""
    return training_kit.converted(tmp_path_factory.mktemp("segment"), "segment", 10)


def read_by_reference(recipe: Recipe) -> list[I64]:
    """The pixels of each tile, (n, 2) x, y, that the reference reads with a weight above 0, for pixels that it paints."""
    found: list[I64] = []
    for g in range(len(recipe.matrix)):
        place = reference.places(recipe.matrix[g], recipe.out_hw)[reference._mask(recipe, g)]
        place = place[~np.isnan(place[:, 0])] - 0.5
        place = place[(np.abs(place) < 1e6).all(axis=1)]
        low = np.floor(place).astype(np.int64)
        high = low + (place > low)
        canvas = np.concatenate([np.stack([x[:, 0], y[:, 1]], axis=1) for x in (low, high) for y in (low, high)])
        for t in range(int(recipe.tile_offsets[g]), int(recipe.tile_offsets[g + 1])):
            x0, y0, x1, y1 = recipe.visible_xyxy[t].tolist()
            x, y = canvas.T
            is_here = (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
            found.append(canvas[is_here] - recipe.origin_xy[t])
    return found


def check(recipe: Recipe) -> None:
    """Every pixel that is read is in the rectangle of its tile, and that lies in the tile."""
    rects = visible_rects(recipe)
    assert rects.shape == (len(recipe.record), 4)
    for t, (rect, pixels) in enumerate(zip(rects, read_by_reference(recipe), strict=True)):
        assert (rect >= 0).all()
        assert (rect[2:] <= recipe.size_hw[t, ::-1]).all()
        assert (rect[:2] < rect[2:]).all() or not rect.any()
        assert (pixels >= rect[:2]).all(), (t, rect, pixels.min(axis=0))
        assert (pixels < rect[2:]).all(), (t, rect, pixels.max(axis=0))


@settings(max_examples=60)
@given(policy=policies, seed=st.integers(0, 1 << 30), ids=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_every_pixel_that_has_a_weight_is_visible(path: Path, policy: Policy, seed: int, ids: list[int]) -> None:
    """Of plans of all kinds."""
    check(Samples(path, imgsz=64, policy=policy, seed=seed).recipe(ids))


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_every_pixel_is_visible_in_pictures_that_fold_over_themselves(seed: int) -> None:
    """Projective matrices of any kind, horizons within the output included, clips and shapes that reach over it."""
    rng = np.random.default_rng(seed)
    store = kit.memory_store([np.zeros((40, 56, 3), np.uint8)] * 2)
    groups = []
    for _ in range(4):
        matrix = kit.affine(rng, (40, 56), (32, 48))
        if rng.random() < 0.7:
            matrix[2, :2] = rng.normal(0, 0.02, 2)
        clip = None if rng.random() < 0.5 else tuple(np.sort(rng.integers(-10, 60, (2, 2)), axis=0).reshape(-1).tolist())
        shapes = None if rng.random() < 0.5 else [[rng.uniform(-8, 56, (5, 2)).tolist()] for _ in range(rng.integers(0, 3))]
        tiles = [Tile(0, origin=(-3, 2), visible=(0, 2, 53, 40)), Tile(1, origin=(20, 10), size=(20, 30))]
        groups.append(Group(tiles, matrix, clip=clip, shapes=shapes))  # type: ignore[arg-type]
    check(kit.recipe(store, [Slot(groups)], (32, 48)))


def test_what_is_visible_is_hardly_more_than_what_is_read(path: Path) -> None:
    """Of upright pictures; turned ones have the box around what is read."""
    policy = Policy(mosaic=1, scale=0.5, mixup=0.5, cutmix=0.5, copy_paste=0.5, flipud=0.5)
    recipe = Samples(path, imgsz=64, policy=policy).recipe(range(10))
    rects, read = visible_rects(recipe), read_by_reference(recipe)
    is_masked = np.repeat(recipe.is_masked, np.diff(recipe.tile_offsets))
    plain = [t for t in np.flatnonzero(~is_masked).tolist() if len(read[t])]
    assert len(plain) > 20
    for t in plain:
        assert (read[t].min(axis=0) - rects[t, :2] <= 2 * MARGIN_PX).all()
        assert (rects[t, 2:] - 1 - read[t].max(axis=0) <= 2 * MARGIN_PX).all()
    assert is_masked.any()
    assert (
        sum((rects[t, 2:] - rects[t, :2]).prod() for t in range(len(rects)) if is_masked[t])
        < recipe.size_hw[is_masked].prod(1).sum() / 2
    )


def test_a_tile_out_of_sight_is_not_visible() -> None:
    """Beyond the output, outside the clip, outside all shapes, or of a group that is painted nowhere."""
    store = kit.memory_store([np.zeros((16, 16, 3), np.uint8)])
    here, beyond = Tile(0), Tile(0, origin=(30, 0))
    square = [[[2, 3], [5, 3], [5, 7], [2, 7]]]
    recipe = kit.one(
        store,
        Group([here, beyond]),
        Group([here], clip=(5, 5, 5, 9)),
        Group([here], shapes=[]),
        Group([here], shapes=[square]),  # type: ignore[list-item]
        Group([here], clip=(0, 0, 2, 16), shapes=[square]),  # type: ignore[list-item]
        Group([here], clip=(4, 4, 8, 8)),
        Group([here], kit.moved(-100, 0)),
        out_hw=(16, 16),
    )
    nothing = [0, 0, 0, 0]
    want = [[0, 0, 16, 16], nothing, nothing, nothing, [0, 1, 7, 9], nothing, [2, 2, 10, 10], nothing]
    assert visible_rects(recipe).tolist() == want


def test_a_batch_of_nothing_has_no_rectangles() -> None:
    """No slots, or slots without tiles."""
    store = kit.memory_store([np.zeros((4, 4, 3), np.uint8)])
    assert visible_rects(kit.recipe(store, [], (8, 8))).shape == (0, 4)
    assert visible_rects(kit.one(store, Group([]), out_hw=(8, 8))).shape == (0, 4)


def test_no_rectangle_reaches_beyond_its_tile() -> None:
    """Not even when a wrong recipe says that more of it is visible: what is there would be read from the store."""
    store = kit.memory_store([np.zeros((6, 8, 3), np.uint8)])
    recipe = kit.one(store, Group([Tile(0, origin=(2, 2), visible=(0, 0, 16, 16))]), out_hw=(16, 16))
    assert visible_rects(recipe).tolist() == [[0, 0, 8, 6]]
