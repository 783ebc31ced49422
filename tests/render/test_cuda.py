"""The GPU draws what the reference draws: on the GPU where there is one, in Triton's interpreter everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import answers_kit
import gpu_kit
import numpy as np
import pytest
import recipe_kit as kit
import torch
from case_kit import GAINS, case
from recipe_kit import Group, Tile

from fastdata.augment.recipe import Recipe
from fastdata.errors import UsageError
from fastdata.render import cuda, reference
from fastdata.render.tolerance import TOLERANCES, differs, near_outlines
from fastdata.store.read import Store

WITH_GPU = torch.cuda.is_available()
SEEDS, LARGEST = (60, 120) if WITH_GPU else (3, 20)
"""The interpreter takes seconds for what takes the GPU a millisecond."""


@pytest.mark.parametrize("known", answers_kit.KNOWN, ids=lambda check: check.__name__)
def test_a_picture_that_is_known_without_a_renderer_comes_out(known: answers_kit.Check) -> None:
    """Within one level."""
    known(gpu_kit.render, TOLERANCES["cuda"].levels)


def _check(store: Store, recipe: Recipe) -> None:
    got, want = gpu_kit.render(store, recipe), reference.render(store, recipe)
    ignore = near_outlines(recipe)
    off = np.where(ignore, 0, np.abs(got.astype(int) - want))
    assert off.max(initial=0) <= TOLERANCES["cuda"].levels, np.argwhere(off == off.max())[:5].tolist()
    assert differs(got, want, "cuda", ignore=ignore) is None or got.size < 20_000


@pytest.mark.parametrize("kind", ["upright", "turned", "perspective"])
def test_pixels_are_within_a_level_of_the_reference(kind: str) -> None:
    """On noise, in every odd size, with everything that a recipe may hold."""
    for seed in range(SEEDS):
        _check(*case(seed, kind, largest=LARGEST))


@pytest.mark.parametrize("gains", [*GAINS.values(), (0.0, 1.2, 1.0, 1.0), (0.3, 0.7, 1.5, 1.2)], ids=str)
def test_gains_do_what_they_do_in_the_reference(gains: tuple[float, ...]) -> None:
    """Hue by adding and by multiplying."""
    for seed in range(1000, 1000 + SEEDS // 3):
        _check(*case(seed, "upright", gains, LARGEST))


def _one() -> tuple[Store, Recipe]:
    picture = answers_kit.noise(21, 30)
    store = kit.memory_store([picture])
    group = Group([Tile(0, (3, 2))], kit.scaled(0.7))
    return store, kit.one(store, group, out_hw=(24, 36), gains=(0.02, 1.0, 1.1, 0.9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_floating_output_is_the_level_over_255(dtype: Any) -> None:
    """So that a picture is the same one in every type."""
    store, recipe = _one()
    levels = gpu_kit.render(store, recipe)
    got = gpu_kit.render(store, recipe, dtype=dtype)
    want = torch.from_numpy(levels).float() * (1 / 255)
    if dtype is torch.bfloat16 and not WITH_GPU:  # the interpreter cuts bits off, where a GPU rounds
        want = (want.view(torch.int32) & ~0xFFFF).view(torch.float32)
    want = want.to(dtype).float().numpy()
    assert np.array_equal(got, want)


def test_channels_last_is_the_same_picture_in_another_order() -> None:
    """For all three kernels."""
    for seed, kind in ((1, "upright"), (2, "turned")):
        store, recipe = case(seed, kind, largest=LARGEST)
        assert np.array_equal(gpu_kit.render(store, recipe, channels_last=True), gpu_kit.render(store, recipe))


def test_the_caller_s_memory_is_drawn_into() -> None:
    """And what does not fit is refused, by shape, type and order."""
    store, recipe = _one()
    device = gpu_kit.any_device()
    where, kept = gpu_kit.placed([answers_kit.noise(21, 30).transpose(2, 0, 1)], device)
    out = torch.full((1, 3, 24, 36), 77, dtype=torch.uint8, device=device)
    assert cuda.render(recipe, where, device=device, out=out) is out
    assert np.array_equal(out.cpu().numpy(), gpu_kit.render(store, recipe))
    for wrong in (out[:, :, :23], out.int(), out.transpose(2, 3)):
        with pytest.raises(UsageError, match="out must be contiguous uint8 or floating numbers of shape"):
            cuda.render(recipe, where, device=device, out=wrong)
    del kept


def test_a_tile_that_shows_more_than_there_is_of_it_is_refused() -> None:
    """Before anything is read."""
    store, recipe = _one()
    wrong = replace(recipe, visible_xyxy=recipe.visible_xyxy + np.array([0, 0, 1, 0], np.int32))
    with pytest.raises(UsageError, match="visible_xyxy of tile 0 must lie within the tile"):
        gpu_kit.render(store, wrong)


def test_a_tile_that_is_nowhere_is_gray_and_not_read() -> None:
    """An address of 0 says that nothing of the tile is needed."""
    _, recipe = _one()
    got = cuda.render(recipe, np.zeros((1, 3), np.int64), device=gpu_kit.any_device())
    assert len(torch.unique(got)) <= 3


def test_an_empty_batch_is_empty() -> None:
    """It launches nothing."""
    _, recipe = _one()
    got = cuda.render(recipe.slots(0, 0), np.zeros((0, 3), np.int64), device=gpu_kit.any_device())
    assert tuple(got.shape) == (0, 3, 24, 36)


def test_blocks_meet_without_a_seam() -> None:
    """A mosaic of four, larger than a block in both directions: whole blocks, mixed ones and gray ones, and a turned one."""
    store = kit.memory_store([answers_kit.noise(40, 300, seed) for seed in range(4)])
    tiles = [Tile(0, (-20, -3)), Tile(1, (280, -3)), Tile(2, (-60, 37)), Tile(3, (240, 37))]
    tiles = [replace(tile, visible=(max(tile.origin[0], 0), max(tile.origin[1], 0), 0, 0)) for tile in tiles]
    tiles = [replace(t, visible=(*t.visible[:2], t.origin[0] + 300, t.origin[1] + 40)) for t in tiles if t.visible]
    for turn, out_hw in ((0.0, (50, 140)), (4.0, (50, 150) if WITH_GPU else (20, 40))):
        matrix = kit.moved(-130, -10) @ kit.scaled(0.9) @ kit.turned(turn)
        _check(store, kit.one(store, Group(tiles, matrix), out_hw=out_hw, gains=(0.01, 1.0, 1.2, 0.9)))


def test_upright_slots_and_others_share_a_batch() -> None:
    """Each is drawn by its own kernel: both by the turned one give the same within a level."""
    store, recipe = case(11, "upright", largest=LARGEST)
    tables = cuda.tables_of(recipe, np.zeros((len(recipe.record), 3), np.int64))
    assert 0 < tables["slots"][:, 2].sum() < len(recipe)
    _check(store, recipe)


def test_a_device_says_why_it_cannot_draw() -> None:
    """None where it can."""
    assert cuda.unsupported(gpu_kit.any_device()) is None
    assert "CUDA device" in str(cuda.unsupported(torch.device("meta")))
