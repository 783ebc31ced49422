"""Labels lie where the pixels are: planned, drawn by each renderer, and found again in what was drawn, within half a pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import found_kit as kit
import gpu_kit
import numpy as np
import pytest

from fastdata.augment.letterbox import letterbox
from fastdata.augment.plan import plan
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.render import cpu, reference
from fastdata.store.read import Store

RENDERERS = {"reference": reference.render, "cpu": cpu.render, "cuda": gpu_kit.render}
GRAY = {"hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "close_mosaic": 0}
EVERYTHING = {"min_side_px": 0.0, "min_area_share": 0.0, "max_aspect": 1e6}
"""No sliver is dropped: whatever is seen must have a label."""

KINDS: dict[str, dict[str, Any]] = {
    "mosaic": {"flipud": 0.5},
    "no mosaic": {"mosaic": 0.0, "flipud": 0.5},
    "shifted": {"mosaic": 0.5, "translate": 0.5},
    "turned": {"mosaic": 0.5, "degrees": 180.0, "flipud": 0.5},
    "sheared": {"mosaic": 0.5, "degrees": 20.0, "shear": 5.0},
    "nine": {"mosaic9": 1.0},
    "cutmix": {"mosaic": 0.5, "cutmix": 1.0, "flipud": 0.5},
    "paste": {"mosaic": 0.5, "copy_paste": 0.9, "flipud": 0.5},
    "paste of others": {"mosaic": 0.5, "copy_paste": 0.9, "copy_paste_mode": "mixup"},
}
TASKS = {
    "detect": ("mosaic", "no mosaic", "shifted", "nine", "cutmix"),  # a turned box is around the object, not on it
    "segment": tuple(KINDS),
    "obb": ("mosaic", "no mosaic", "shifted", "turned", "cutmix"),  # sheared, a rectangle is none
    "pose": ("mosaic", "no mosaic", "shifted", "nine"),
}
SEEDS = 3


SLOW = gpu_kit.any_device().type == "cpu"
"""Whether the GPU's kernels are interpreted, which takes ten seconds a picture: then one of each way that they have must do."""
CASES = [(task, kind, renderer) for task, kinds in TASKS.items() for kind in kinds for renderer in ("reference", "cpu")]
CASES += [
    (task, kind, "cuda")
    for task, kinds in TASKS.items()
    for kind in kinds
    if not SLOW or (task, kind) in {("detect", "mosaic"), ("segment", "turned"), ("segment", "paste"), ("pose", "mosaic")}
]
TASK_OF = [(task, renderer) for task in TASKS for renderer in RENDERERS if renderer != "cuda" or not SLOW or task == "detect"]


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """A store for each task, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("found"), dict[str, Store]()

    def get(task: str) -> Store:
        if task not in made:
            made[task] = kit.store_of(folder, task)
        return made[task]

    return get


def planned(store: Store, task: str, kind: str, seed: int) -> Recipe:
    """A batch of all pictures, of a policy of some kind with random strengths."""
    zoom = np.random.default_rng(seed).uniform(0.6, 1.4, 2)
    policy = Policy(**(GRAY | EVERYTHING | KINDS[kind] | {"scale": (float(zoom.min()), float(zoom.max()))}))
    return plan(np.arange(len(store)), store.catalog, policy, seed=seed, epoch=0, imgsz=kit.IMGSZ, task=task)


def found(store: Store, recipe: Recipe, renderer: str, **how: bool) -> list[str]:
    """What is wrong with a batch."""
    recipe = recipe.slots(0, 2 if recipe.task == "detect" else 1) if renderer == "cuda" and SLOW else recipe
    pixels = RENDERERS[renderer](store, recipe)
    return [
        f"{renderer}, slot {k}: {text}"
        for k in range(len(recipe))
        for text in kit.complaints(pixels[k], recipe.labels, k, recipe.task, **how)
    ]


@pytest.mark.parametrize(("task", "kind", "renderer"), CASES)
def test_shapes_are_found_where_the_labels_say(task: str, kind: str, renderer: str, store_of: Callable[[str], Store]) -> None:
    """Every pixel of a shape within its label, every pixel of a label showing its shape; none, one and many in a picture."""
    store, objects = store_of(task), 0
    for seed in range(1 if renderer == "cuda" and SLOW else SEEDS):
        recipe = planned(store, task, kind, seed)
        objects += len(recipe.labels)
        assert not (wrong := found(store, recipe, renderer, may_be_hidden=kind in ("nine", "paste", "paste of others"))), wrong
    assert objects > 20


@pytest.mark.parametrize(("task", "renderer"), TASK_OF)
@pytest.mark.parametrize("out_hw", [None, (96, 128), (128, 96)])
def test_shapes_are_found_in_a_validation(
    task: str, out_hw: tuple[int, int] | None, renderer: str, store_of: Callable[[str], Store]
) -> None:
    """Letterboxed into a square and into rectangles."""
    store = store_of(task)
    recipe = letterbox(np.arange(len(store)), store.catalog, imgsz=kit.IMGSZ, out_hw=out_hw, task=task)
    assert len(recipe.labels) == sum(kit.COUNTS) - _left_out(store)
    assert not (wrong := found(store, recipe, renderer)), wrong


def _left_out(store: Store) -> int:
    """Objects for which a picture had no room."""
    return sum(kit.COUNTS) - store.catalog.counts.instances


@pytest.mark.parametrize(("task", "renderer"), TASK_OF)
def test_shapes_that_are_one_pixel_off_are_noticed(task: str, renderer: str, store_of: Callable[[str], Store]) -> None:
    """Meta-test: pixels moved by one to the right or down, and pixels mirrored where labels are not."""
    store = store_of(task)
    recipe = planned(store, task, "mosaic", 1)
    for move in ([[1, 0, 1], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]], [[-1, 0, kit.IMGSZ], [0, 1, 0]]):
        moved = replace(recipe, matrix=np.array([*move, [0, 0, 1]], np.float64) @ recipe.matrix)
        assert len(found(store, moved, renderer)) > 5


def test_a_keypoint_that_is_one_pixel_off_is_noticed(store_of: Callable[[str], Store]) -> None:
    """Meta-test: with its box and pixels left where they are."""
    store = store_of("pose")
    recipe = planned(store, "pose", "no mosaic", 1)
    points = recipe.labels.keypoints_px + np.array([1, 0, 0], np.float32)
    wrong = found(store, replace(recipe, labels=replace(recipe.labels, keypoints_px=points)), "cpu")
    assert any("keypoint" in text for text in wrong)
