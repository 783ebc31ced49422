"""The compiled renderer draws what the reference draws, in any shape, on any path, in any number of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import answers_kit
import numpy as np
import pytest
import recipe_kit as kit
from answers_kit import noise
from case_kit import GAINS, case
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_kit import Group, Slot, Tile

import fastdata
from fastdata.augment.recipe import Recipe
from fastdata.errors import UsageError
from fastdata.render import cpu, reference
from fastdata.render.tiles import load_tiles
from fastdata.render.tolerance import TOLERANCES, differs, near_outlines
from fastdata.store.read import Store


@pytest.mark.parametrize("known", answers_kit.KNOWN, ids=lambda check: check.__name__)
def test_a_picture_that_is_known_without_a_renderer_comes_out(known: answers_kit.Check) -> None:
    """Within one level."""
    known(cpu.render, TOLERANCES["cpu"].levels)


# Random recipes -------------------------------------------------------------------------------------------------------------


def _check(store: Store, recipe: Recipe, which: Any) -> None:
    got, want = cpu.render(store, recipe), reference.render(store, recipe)
    for slot in range(len(recipe)):  # a mean of a few pixels is no mean
        ignore = near_outlines(recipe.slots(slot, slot + 1))
        off = np.where(ignore, 0, np.abs(got[slot].astype(int) - want[slot]))
        assert off.max() <= TOLERANCES[which].levels, (slot, np.argwhere(off == off.max())[:3])
    assert differs(got, want, which, ignore=near_outlines(recipe)) is None or got.size < 20_000


@pytest.mark.parametrize("kind", ["upright", "turned", "perspective"])
@settings(max_examples=120)
@given(seed=st.integers(0, 1 << 30))
def test_pixels_are_within_a_level_of_the_reference(kind: str, seed: int) -> None:
    """On noise, in every odd size, with everything that a recipe may hold but gains."""
    _check(*case(seed, kind, kit.NO_GAINS), "cpu")


@pytest.mark.parametrize("gains", GAINS.values(), ids=GAINS.keys())
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30))
def test_gains_do_what_they_do_in_the_reference(gains: tuple[float, ...], seed: int) -> None:
    """Of every way that the kernel has."""
    _check(*case(seed, "upright", gains), "cpu_colour")


@settings(max_examples=120)
@given(seed=st.integers(0, 1 << 30), kind=st.sampled_from(["upright", "turned", "perspective"]))
def test_one_path_draws_the_bytes_of_the_other(seed: int, kind: str) -> None:
    """16 columns at once, or one by one."""
    store, recipe = case(seed, kind)
    tiles = load_tiles(store, recipe)
    wide, narrow = (np.zeros((len(recipe), 3, *recipe.out_hw), np.uint8) for _ in range(2))
    cpu.draw(recipe, tiles, wide)
    cpu.draw(recipe, tiles, narrow, by_vector=False)
    assert np.array_equal(wide, narrow)


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), kind=st.sampled_from(["upright", "turned"]))
def test_a_batch_is_its_slots_one_by_one(seed: int, kind: str) -> None:
    """Nothing is left behind by the slot before."""
    store, recipe = case(seed, kind)
    whole = cpu.render(store, recipe)
    for slot in range(len(recipe)):
        assert np.array_equal(cpu.render(store, recipe.slots(slot, slot + 1))[0], whole[slot])


# The picture as a whole -----------------------------------------------------------------------------------------------------


def _mosaic(angle: float = 0.0, **slot: Any) -> tuple[Store, Recipe]:
    """Four pictures of a common size around a point, in an output of a common size."""
    pictures = [noise(96, 128, 1), noise(128, 90, 2), noise(64, 128, 3)[:, :, 0], noise(128, 128, 4)]
    store = kit.memory_store(pictures)
    at = (150, 110)
    tiles = [
        Tile(0, (at[0] - 128, at[1] - 96)),
        Tile(1, (at[0], at[1] - 128), visible=(at[0], 0, at[0] + 90, at[1])),
        Tile(2, (at[0] - 128, at[1])),
        Tile(3, at, visible=(*at, 256, at[1] + 128)),
    ]
    matrix = kit.moved(64, 64) @ kit.turned(angle) @ kit.scaled(0.83) @ kit.moved(-128, -128)
    return store, kit.one(store, Group(tiles, matrix), out_hw=(128, 128), **slot)


def test_seams_of_a_mosaic_lie_where_the_tiles_meet() -> None:
    """A column of tiles moved by one pixel is seen."""
    store, recipe = _mosaic()
    want = reference.render(store, recipe)
    assert differs(cpu.render(store, recipe), want, "cpu") is None
    recipe.origin_xy[1, 0] += 1
    recipe.visible_xyxy[1, ::2] += 1
    assert differs(cpu.render(store, recipe), want, "cpu") is not None


@pytest.mark.parametrize("scale", [1.01, 0.985, 1.08])
def test_multiplied_hue_is_the_reference_s(scale: float) -> None:
    """But for red whose green and blue are so close that a rounding puts it at the circle's other end."""
    store, recipe = _mosaic(gains=(0.0, scale, 1.2, 0.9))
    plain = reference.render(*_mosaic())[0].astype(int)
    coloured = plain.max(axis=0) - plain.min(axis=0) > 20  # of a gray pixel the end of the circle is as gray as its beginning
    at_the_end = coloured & (plain[0] == plain.max(axis=0)) & (np.abs(plain[1] - plain[2]) <= 2)
    off = np.abs(cpu.render(store, recipe)[0].astype(int) - reference.render(store, recipe)[0])
    assert np.where(at_the_end, 0, off).max() <= TOLERANCES["cpu_colour"].levels
    assert at_the_end.mean() < 0.05


@pytest.mark.parametrize("gains", [(0.2, 1.3, 1.0, 1.0), (0.0, 0.5, 1.0, 1.0), (0.01, 1.0, 3.0, 1.0), (0.0, 1.0, 1.0, 2.5)])
def test_gains_beyond_any_policy_are_drawn_all_the_same(gains: tuple[float, float, float, float]) -> None:
    """Gray pictures have no hue to argue about, and smooth ones no steep neighbours."""
    ramp = np.linspace(0, 255, 64)
    picture = np.stack(np.broadcast_arrays(ramp[None], ramp[:, None], 128.0), axis=-1).round().astype(np.uint8)
    store = kit.memory_store([picture, picture[:, :, 0]])
    groups = [Slot([Group([Tile(entry)], kit.scaled(1.3))], gains=gains) for entry in (0, 1)]
    recipe = kit.recipe(store, groups, (80, 80))
    off = np.abs(cpu.render(store, recipe).astype(int) - reference.render(store, recipe))
    assert np.quantile(off, 0.999) <= 1


def test_a_store_on_disk_is_drawn_from_where_it_lies(tmp_path: Path) -> None:
    """Raw records as views, cut out of their rows; others decoded."""
    pictures = [noise(50, 70, 1), noise(64, 33, 2)]
    store = kit.file_store(tmp_path, pictures, codec="raw")
    cut = Tile(0, (3, 5), source=(11, 7, 60, 48))
    recipe = kit.one(store, Group([cut, Tile(1, (52, 5)), Tile(1, (3, 46), (30, 49))], kit.scaled(0.9)), out_hw=(60, 70))
    assert differs(cpu.render(store, recipe), reference.render(store, recipe), "cpu") is None


def test_the_caller_s_memory_is_drawn_into() -> None:
    """And every byte of it is written."""
    store, recipe = _mosaic()
    out = np.full((1, 3, 128, 128), 7, np.uint8)
    assert cpu.render(store, recipe, out) is out
    again = np.full((1, 3, 128, 128), 200, np.uint8)
    cpu.render(store, recipe, again)
    assert np.array_equal(out, again)


def test_memory_that_does_not_fit_is_refused() -> None:
    """Shape, type, layout."""
    store, recipe = _mosaic()
    locked = np.empty((1, 3, 128, 128), np.uint8)
    locked.flags.writeable = False
    for out in (
        np.empty((2, 3, 128, 128), np.uint8),
        np.empty((1, 3, 128, 128), np.int8),
        np.empty((1, 3, 128, 256), np.uint8)[..., ::2],
        locked,
    ):
        with pytest.raises(UsageError, match="out must be contiguous, writable uint8 of shape"):
            cpu.render(store, recipe, out)


def test_a_tile_that_shows_more_than_there_is_of_it_is_refused() -> None:
    """Instead of reading somebody else's memory."""
    store, recipe = _mosaic()
    for side, by in ((0, -1), (1, -1), (2, 1), (3, 1)):
        wrong = recipe.visible_xyxy.copy()
        wrong[0] = [22, 14, 150, 110]
        wrong[0, side] += by
        broken = replace(recipe, visible_xyxy=wrong)
        with pytest.raises(UsageError, match="visible_xyxy of tile 0 must lie within the tile"):
            cpu.render(store, broken)


def test_an_empty_batch_is_empty() -> None:
    """No slots, or no pixels."""
    store, recipe = _mosaic()
    assert cpu.render(store, recipe.slots(0, 0)).shape == (0, 3, 128, 128)


def test_threads_draw_the_same_bytes_at_once() -> None:
    """Each into memory of its own, many times, without the interpreter's lock."""
    cases = [case(seed, kind) for seed in range(4) for kind in ("upright", "turned")]
    want = [cpu.render(*case) for case in cases]
    wrong: list[int] = []
    start = threading.Barrier(4)

    def work(offset: int) -> None:
        start.wait()
        for i in range(5 * len(cases)):
            at = (i + offset) % len(cases)
            if not np.array_equal(cpu.render(*cases[at]), want[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    from fastdata.render.kernels.draw import draw_batch

    assert draw_batch.targetoptions["nogil"]


def test_recipes_from_read_only_memory_do_not_compile_anew() -> None:
    """As arrays of a store or of shared memory may be."""
    from fastdata.render.kernels.draw import draw_batch

    store, recipe = _mosaic()
    want = cpu.render(store, recipe)
    for name in ("gains", "matrix", "tile_offsets", "clip_xyxy", "mask_points_px"):
        getattr(recipe, name).flags.writeable = False
    assert np.array_equal(cpu.render(store, recipe), want)
    assert len(draw_batch.signatures) == 1


# Where it is compiled -------------------------------------------------------------------------------------------------------

DRAW = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
import test_cpu
from fastdata.render import cpu
digest = hashlib.sha256()
for seed in range(12):
    for kind in ("upright", "turned", "perspective"):
        digest.update(cpu.render(*test_cpu.case(seed, kind)).tobytes())
print(digest.hexdigest())
"""


def _digest(package: Path, **environment: str) -> tuple[str, str]:
    """What a fresh process draws with a package, and what it says."""
    tests = Path(__file__).parent
    command = [sys.executable, "-c", DRAW, str(package), str(tests), str(tests.parent)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def _own_digest() -> str:
    import hashlib

    digest = hashlib.sha256()
    for seed in range(12):
        for kind in ("upright", "turned", "perspective"):
            digest.update(cpu.render(*case(seed, kind)).tobytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_a_processor_without_wide_instructions_draws_the_same_bytes(tmp_path: Path) -> None:
    """Compiled for the oldest processor of this kind."""
    package = Path(fastdata.__file__).parents[1]
    drawn, _ = _digest(package, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert drawn == _own_digest()


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_says_so_once_and_draws_all_the_same(tmp_path: Path) -> None:
    """A read-only installation of a user without a home. Files where folders should be are in nobody's power, not even root's."""
    package = tmp_path / "site"
    shutil.copytree(Path(fastdata.__file__).parent, package / "fastdata", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "fastdata/render/kernels/__pycache__").write_text("no folder")
    drawn, said = _digest(package, HOME=os.devnull, XDG_CACHE_HOME=os.devnull, NUMBA_CACHE_DIR="")
    assert drawn == _own_digest()
    assert said.count("compiled kernels cannot be kept") == 1
    assert "set NUMBA_CACHE_DIR" in said
