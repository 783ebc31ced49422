"""Recipes by chance, with everything that one may hold, for the tests of every renderer."""

from __future__ import annotations

from typing import Any

import numpy as np
import recipe_kit as kit
from recipe_kit import Group, Slot, Tile

from fastdata.augment.recipe import Recipe
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


def case(seed: int, kind: str, gains: tuple[float, ...] | None = None, largest: int = 120) -> tuple[Store, Recipe]:
    """Three slots of one to three groups, in an output of any size."""
    rng = np.random.default_rng(seed)
    out_hw = (int(rng.integers(1, 70)), int(rng.choice([rng.integers(1, 20), rng.integers(20, 120), 64])))
    out_hw = (min(out_hw[0], largest), min(out_hw[1], largest))
    pictures = _pictures(rng)
    slots = []
    for _ in range(3):
        groups = [_group(rng, pictures, out_hw, kind)]
        groups += [_group(rng, pictures, out_hw, kind, **_over(rng, out_hw)) for _ in range(rng.choice([0, 0, 1, 2]))]
        own = tuple(GAINS.values())[rng.integers(len(GAINS))] if gains is None else gains
        slots.append(Slot(groups, gains=own, bgr=bool(rng.random() < 0.3)))  # type: ignore[arg-type]
    store = kit.memory_store(pictures)
    return store, kit.recipe(store, slots, out_hw)
