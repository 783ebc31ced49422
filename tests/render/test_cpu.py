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

GAINS = {
    "none": kit.NO_GAINS,
    "darker and paler": (0.015, 1.0, 0.4, 0.7),
    "brighter and deeper": (-0.012, 1.0, 1.7, 1.4),
    "brighter and paler": (0.004, 1.0, 0.5, 1.3),
    "darker and deeper": (-0.015, 1.0, 1.6, 0.8),
    "hue alone": (0.08, 1.0, 1.0, 1.0),
    "hue in two steps": (0.13, 1.0, 1.1, 1.0),
    "hue by more than a third": (-0.4, 1.0, 0.9, 1.0),
    "largest of a policy": (1.0, 1.0, 2.0, 2.0),
    "nothing left": (0.3, 1.0, 0.0, 0.0),
}


@pytest.mark.parametrize("known", answers_kit.KNOWN, ids=lambda check: check.__name__)
def test_a_picture_that_is_known_without_a_renderer_comes_out(known: answers_kit.Check) -> None:
    """Within one level."""
    known(cpu.render, TOLERANCES["cpu"].levels)


# Random recipes -------------------------------------------------------------------------------------------------------------


def _pictures(rng: np.random.Generator) -> list[kit.Picture]:
    """A few sizes, from one pixel to more than an output, one of them gray."""
    sizes = [(1, 1), (2, 37), (37, 2), (15, 16), (17, 90), tuple(rng.integers(1, 70, 2)), tuple(rng.integers(40, 120, 2))]
    pictures = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in sizes]
    return [*pictures, rng.integers(0, 256, tuple(rng.integers(3, 60, 2)), np.uint8)]


def _group(rng: np.random.Generator, pictures: list[kit.Picture], out_hw: tuple[int, int], kind: str, **options: Any) -> Group:
    """Up to nine tiles that overlap, cut by the canvas or not, through a matrix of one kind."""
    height, width = out_hw
    canvas = (int(rng.integers(height, 2 * height + 1)), int(rng.integers(width, 2 * width + 1)))
    tiles = []
    for _ in range(rng.choice([0, 1, 2, 4, 9])):
        entry = int(rng.integers(len(pictures)))
        h, w = pictures[entry].shape[:2]
        x, y = int(rng.integers(-w, canvas[1])), int(rng.integers(-h, canvas[0]))
        visible = (max(x, 0), max(y, 0), min(x + w, canvas[1]), min(y + h, canvas[0]))
        if visible[0] >= visible[2] or visible[1] >= visible[3]:
            visible = (x, y, x, y)
        tiles.append(Tile(entry, (x, y), visible=visible))
    k = float(rng.choice([0.1, 0.34, 0.47, 0.5, 0.51, 0.8, 1.0, 1.4, 3.0, rng.uniform(0.3, 1.6)]))
    shift = rng.integers(-8, 9, 2) if rng.random() < 0.5 else rng.uniform(-8, 8, 2)
    matrix = kit.moved(width / 2 + shift[0], height / 2 + shift[1]) @ kit.scaled(k) @ kit.moved(-canvas[1] // 2, -canvas[0] // 2)
    if kind != "upright":
        matrix = kit.moved(*shift) @ kit.affine(rng, canvas, out_hw)
    if kind == "perspective":
        matrix = kit.moved(width / 2, height / 2) @ _tilted(rng, out_hw) @ kit.moved(-width / 2, -height / 2) @ matrix
    for axis in range(2):
        if rng.random() < 0.4:
            mirror = np.eye(3)
            mirror[axis, axis], mirror[axis, 2] = -1, out_hw[1 - axis]
            matrix = mirror @ matrix
    return Group(tiles, matrix, **options)


def _tilted(rng: np.random.Generator, out_hw: tuple[int, int]) -> kit.Matrix:
    tilt = np.eye(3)
    tilt[2, :2] = rng.uniform(-2.5, 2.5, 2) / max(out_hw)  # up to where a part lies behind the viewer
    return tilt


def _over(rng: np.random.Generator, out_hw: tuple[int, int]) -> dict[str, Any]:
    """How a group that is not the first may be painted."""
    height, width = out_hw
    options: dict[str, Any] = {}
    if rng.random() < 0.6:
        options["weight"] = float(rng.choice([0.0, 0.3, 0.5, 0.9, 1.0]))
    if rng.random() < 0.4:
        x, y = np.sort(rng.integers(-3, width + 4, 2)), np.sort(rng.integers(-3, height + 4, 2))
        options["clip"] = (int(x[0]), int(y[0]), int(x[1]), int(y[1]))
    if rng.random() < 0.5:
        scale = np.array([width + 10, height + 10])
        options["shapes"] = [
            [(rng.random((int(rng.integers(3, 9)), 2)) * scale - 5).tolist() for _ in range(rng.integers(0, 3))]
            for _ in range(rng.integers(0, 4))
        ]
    return options


def _case(seed: int, kind: str, gains: tuple[float, ...] | None = None) -> tuple[Store, Recipe]:
    """Three slots of one to three groups, in an output of any size."""
    rng = np.random.default_rng(seed)
    out_hw = (int(rng.integers(1, 70)), int(rng.choice([rng.integers(1, 20), rng.integers(20, 120), 64])))
    pictures = _pictures(rng)
    slots = []
    for _ in range(3):
        groups = [_group(rng, pictures, out_hw, kind)]
        groups += [_group(rng, pictures, out_hw, kind, **_over(rng, out_hw)) for _ in range(rng.choice([0, 0, 1, 2]))]
        own = tuple(GAINS.values())[rng.integers(len(GAINS))] if gains is None else gains
        slots.append(Slot(groups, gains=own, bgr=bool(rng.random() < 0.3)))  # type: ignore[arg-type]
    store = kit.memory_store(pictures)
    return store, kit.recipe(store, slots, out_hw)


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
    _check(*_case(seed, kind, kit.NO_GAINS), "cpu")


@pytest.mark.parametrize("gains", GAINS.values(), ids=GAINS.keys())
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30))
def test_gains_do_what_they_do_in_the_reference(gains: tuple[float, ...], seed: int) -> None:
    """Of every way that the kernel has."""
    _check(*_case(seed, "upright", gains), "cpu_colour")


@settings(max_examples=120)
@given(seed=st.integers(0, 1 << 30), kind=st.sampled_from(["upright", "turned", "perspective"]))
def test_one_path_draws_the_bytes_of_the_other(seed: int, kind: str) -> None:
    """16 columns at once, or one by one."""
    store, recipe = _case(seed, kind)
    tiles = load_tiles(store, recipe)
    wide, narrow = (np.zeros((len(recipe), 3, *recipe.out_hw), np.uint8) for _ in range(2))
    cpu.draw(recipe, tiles, wide)
    cpu.draw(recipe, tiles, narrow, by_vector=False)
    assert np.array_equal(wide, narrow)


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), kind=st.sampled_from(["upright", "turned"]))
def test_a_batch_is_its_slots_one_by_one(seed: int, kind: str) -> None:
    """Nothing is left behind by the slot before."""
    store, recipe = _case(seed, kind)
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
    cases = [_case(seed, kind) for seed in range(4) for kind in ("upright", "turned")]
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
        digest.update(cpu.render(*test_cpu._case(seed, kind)).tobytes())
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
            digest.update(cpu.render(*_case(seed, kind)).tobytes())
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
