"""Our samples beside the trainer's own, made by Ultralytics 8.4.190 from the same files and the same drawn numbers.

What must agree: which objects are kept, in which order, their classes; boxes and keypoints to ``BOX_PX``; pixels as
``fastdata.render.tolerance`` says. Where the trainer's label is not exact, ours is, and the test says how they differ.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from live_kit import Sample, their_dataset, their_sample
from ultra_kit import dataset, store

from fastdata.augment.assemble import assemble
from fastdata.augment.draws import Draws, draw
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.render import reference
from fastdata.render.tolerance import Which, differs, near_outlines, opencv_warp
from fastdata.store.read import Store, open_store

BOX_PX = 0.002
"""Theirs is float32 throughout: a place near 640 has steps of 0.00006, and a matrix rounds a few times. Measured: 0.0008."""
IMGSZ = 320
GRAY = {"hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0}
"""Without colour gains, so that the pixels' places are compared and not the trainer's steps of hue."""

POLICIES: dict[str, dict[str, Any]] = {
    "default": {},
    "places": GRAY,
    "no mosaic": GRAY | {"mosaic": 0.0, "flipud": 0.5},
    "nine tiles": GRAY | {"mosaic9": 1.0},
    "turned": GRAY | {"degrees": 45.0, "shear": 8.0},
    "perspective": GRAY | {"perspective": 0.001, "degrees": 10.0},
    "far and near": GRAY | {"scale": 0.9},
    "mixup": GRAY | {"mixup": 1.0},
    "mixup colour": {"mixup": 1.0, "flipud": 0.5},
    "cutmix": GRAY | {"cutmix": 1.0, "mosaic": 0.5},
    "copy-paste flip": GRAY | {"copy_paste": 0.7},
    "copy-paste mixup": GRAY | {"copy_paste": 0.7, "copy_paste_mode": "mixup", "mixup": 0.3, "mosaic": 0.5},
}
SAMPLES = 8


@pytest.fixture(scope="module")
def sets(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Store]]:
    """Photographs of COCO with outlines, and invented pictures for the tasks that they have no labels for."""
    root = tmp_path_factory.mktemp("live")
    found = {}
    for task in ("segment", "detect", "pose", "obb"):
        folder = root / task
        if task == "segment":
            data = _photographs(shared, folder)
        else:
            data = dataset(folder, task, images=16, size_hw=((240, 320), (320, 240), (400, 320), (120, 200)))
        found[task] = data, open_store(store(data, root / f"{task}.store", task, IMGSZ), "train")
    return found


def _photographs(shared: Path, folder: Path) -> Path:
    """Every sixth photograph of coco128 with its outlines; classes are the published ids, so there are 91."""
    src = shared / "data/coco128/lightly"
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for photo in sorted((src / "images/train2017").iterdir())[::6]:
        shutil.copy(photo, folder / "images")
        for outlines in (src / "instance_segmentation/labels").rglob(f"{photo.stem}.txt"):
            shutil.copy(outlines, folder / "labels")
    names = {c: f"class {c}" for c in range(91)}
    (folder / "data.yaml").write_text(yaml.safe_dump({"path": str(folder), "train": "images", "val": "images", "names": names}))
    return folder / "data.yaml"


def both(data: Path, opened: Store, task: str, policy: Policy, seed: int = 1) -> tuple[Draws, Recipe, list[Sample]]:
    """Draw some samples; make them both ways."""
    entries = np.arange(opened.entry_range.start, opened.entry_range.start + min(SAMPLES, len(opened)))
    draws = draw(entries, policy, seed=seed, epoch=0, imgsz=IMGSZ, out_hw=(IMGSZ, IMGSZ), pool=opened.entry_range)
    if task == "pose" and not (opened.manifest.keypoints and opened.manifest.keypoints.flip_idx):
        draws = replace(draws, flip_lr=np.zeros(len(draws), np.bool_))
    recipe = assemble(draws, opened.catalog, policy, imgsz=IMGSZ, task=task)
    theirs = their_dataset(data, IMGSZ, task)
    by_name = {Path(file).name: i for i, file in enumerate(theirs.im_files)}
    ids = {e: by_name[Path(opened.catalog.key(e)).name] for e in opened.entry_range}
    return draws, recipe, [their_sample(theirs, ids, draws, k, policy, task) for k in range(len(recipe))]


def colour_of(policy: Policy) -> Which:
    """Return which tolerance is the pixels'."""
    if policy.hsv_h or policy.hsv_s or policy.hsv_v:
        return "trainer_colour"
    return "trainer_mixup" if policy.mixup or policy.copy_paste else opencv_warp()


@pytest.mark.parametrize("name", POLICIES)
def test_objects_and_pixels_are_the_trainers_for_the_same_drawn_numbers(name: str, sets: dict[str, tuple[Path, Store]]) -> None:
    """Photographs with outlines: every step of the pipeline, alone and together."""
    policy = Policy(**POLICIES[name])
    _, recipe, theirs = both(*sets["segment"], "segment", policy)
    pixels = reference.render(sets["segment"][1], recipe)
    exact, pasted = [], np.zeros((len(recipe), 1, IMGSZ, IMGSZ), np.bool_)
    if policy.copy_paste:  # the trainer pastes whole pixels of the canvas, corners cut, and enlarges them up to 1.5 times
        pasted = near_outlines(recipe, 3)
    for k, want in enumerate(theirs):
        first, last = recipe.labels.offsets[k : k + 2].tolist()
        assert recipe.labels.cls[first:last].tolist() == want.cls.tolist(), f"{name}, sample {k}"
        off = np.abs(recipe.labels.xyxy_px[first:last] - want.xyxy_px)
        exact += (off.max(axis=1, initial=0) <= BOX_PX).tolist()
        for i in np.flatnonzero(off.max(axis=1, initial=0) > BOX_PX):
            _must_be_a_tighter_box(recipe.labels.xyxy_px[first + i], want.xyxy_px[i], name)
    assert len(exact) > SAMPLES
    assert np.mean(exact) > 0.9
    rgb = np.stack([want.rgb for want in theirs])
    if policy.copy_paste:
        # Its outlines are clamped to the frame point by point, so where one crosses the border a few pixels more are pasted.
        far = (np.abs(pixels.astype(np.int16) - rgb).max(axis=1, keepdims=True) > 2) & ~pasted
        assert far.mean() < 1e-4
        pasted |= far
    assert (wrong := differs(pixels, rgb, colour_of(policy), pasted)) is None, wrong


def _must_be_a_tighter_box(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    """The trainer pushes the points of an outline that leaves the canvas, or CutMix's region, back to the border one by one, and
    then takes their bounds: its box is a little larger than the visible part. Ours is the visible part's."""
    assert (ours[:2] >= theirs[:2] - BOX_PX).all(), (name, ours, theirs)
    assert (ours[2:] <= theirs[2:] + BOX_PX).all(), (name, ours, theirs)


@pytest.mark.parametrize("task", ["detect", "pose", "obb"])
@pytest.mark.parametrize("name", ["default", "no mosaic", "turned", "mixup", "cutmix"])
def test_boxes_keypoints_and_oriented_boxes_are_the_trainers(task: str, name: str, sets: dict[str, tuple[Path, Store]]) -> None:
    """Invented pictures of the other tasks."""
    policy = Policy(**POLICIES[name])
    draws, recipe, theirs = both(*sets[task], task, policy)
    pixels = reference.render(sets[task][1], recipe)
    for k, want in enumerate(theirs):
        first, last = recipe.labels.offsets[k : k + 2].tolist()
        assert recipe.labels.cls[first:last].tolist() == want.cls.tolist(), f"{name}, sample {k}"
        if task == "detect":
            assert np.abs(recipe.labels.xyxy_px[first:last] - want.xyxy_px).max(initial=0) <= BOX_PX
        if task == "pose":
            _same_keypoints(recipe.labels.keypoints_px[first:last], want.keypoints, bool(draws.flip_ud[k]))
    rgb = np.stack([want.rgb for want in theirs])
    assert (wrong := differs(pixels, rgb, colour_of(policy))) is None, wrong


def _same_keypoints(ours: np.ndarray, theirs: np.ndarray | None, flipped_ud: bool) -> None:
    if theirs is None or not len(theirs):
        assert len(ours) == 0
        return
    if flipped_ud:
        return  # the trainer changes left and right here, which an upside-down picture does not (ultralytics#21254)
    seen = theirs[..., 2] > 0
    assert (seen == (ours[..., 2] > 0)).all()
    assert np.abs(np.where(seen[..., None], ours[..., :2] - theirs[..., :2], 0)).max() <= BOX_PX


def test_the_comparison_sees_a_label_that_is_half_a_pixel_off(sets: dict[str, tuple[Path, Store]]) -> None:
    """Meta-test: so would one that is a fiftieth of that."""
    policy = Policy(**POLICIES["places"])
    _, recipe, theirs = both(*sets["segment"], "segment", policy)
    first, last = recipe.labels.offsets[:2].tolist()
    moved = recipe.labels.xyxy_px[first:last] + 0.01
    assert np.abs(moved - theirs[0].xyxy_px).max() > BOX_PX


def test_the_comparison_sees_pixels_that_are_half_a_pixel_off(sets: dict[str, tuple[Path, Store]]) -> None:
    """Meta-test: the same matrix, applied to the places of pixels instead of their edges, is what the trainer does."""
    policy = Policy(**POLICIES["places"])
    _, recipe, theirs = both(*sets["segment"], "segment", policy)
    matrix = recipe.matrix.copy()
    matrix[:, :2, 2] += 0.25
    pixels = reference.render(sets["segment"][1], replace(recipe, matrix=matrix))
    assert differs(pixels, np.stack([want.rgb for want in theirs]), opencv_warp()) is not None
