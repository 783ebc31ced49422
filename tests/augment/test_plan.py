"""Planned batches: a sample does not depend on its batch, and every label is where its pixels are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_kit import Thing
from plan_kit import FLIP_IDX, PLAIN, catalog_of, complaints, fixed, policies, random_catalog

from fastdata.augment.assemble import assemble
from fastdata.augment.draws import draw
from fastdata.augment.plan import plan
from fastdata.augment.policy import Policy, preset
from fastdata.augment.recipe import TASKS, Recipe, differences
from fastdata.catalog import Catalog, Keypoints
from fastdata.errors import UsageError
from fastdata.labels import BOX, CROWD, OBB, POLYGON

ONE: dict[str, Any] = {"seed": 0, "epoch": 0, "imgsz": 64}
HALF = fixed(PLAIN, scale=(0.5, 0.5))
"""All of a mosaic's canvas, and nothing else."""


@settings(max_examples=60)
@given(
    st.integers(0, 100),
    policies(),
    st.sampled_from(TASKS),
    st.integers(0, 2**60),
    st.sampled_from([None, (64, 96), (32, 32)]),
    st.sampled_from([(), {3, 7}]),
    st.sampled_from([None, [1, 4, 5, 8]]),
)
def test_a_sample_does_not_depend_on_its_batch(
    catalog_seed: int, policy: Policy, task: str, seed: int, out_hw: tuple[int, int] | None, bad: Any, classes: Any
) -> None:
    """Bit for bit, for every policy, task and use; and what is planned obeys every rule of a recipe."""
    catalog = random_catalog(catalog_seed)
    entries, times = np.array([3, 1, 3, 0, 11]), np.array([0, 0, 1, 0, 0])
    options: dict[str, Any] = {"seed": seed, "epoch": 2, "imgsz": 64, "task": task}
    options |= {"out_hw": out_hw, "bad": bad, "classes": classes}
    whole = plan(entries, catalog, policy, draws=times, **options)
    assert list(complaints(whole)) == []
    for k in range(len(entries)):
        alone = plan(entries[k : k + 1], catalog, policy, draws=times[k : k + 1], **options)
        assert differences(whole.slots(k, k + 1), alone) == []
    assert differences(whole.slots(1, 4), plan(entries[1:4], catalog, policy, draws=times[1:4], **options)) == []


def test_the_check_on_batches_sees_a_last_bit() -> None:
    """Meta-test: one unit in the last place of one box is a difference."""
    found = plan([0, 1], random_catalog(0), Policy(), **ONE)
    boxes = found.labels.xyxy_px.copy()
    boxes[0, 0] = np.nextafter(boxes[0, 0], np.float32(np.inf))
    assert differences(found, replace(found, labels=replace(found.labels, xyxy_px=boxes))) == ["labels.xyxy_px"]


@settings(max_examples=60)
@given(
    st.integers(0, 300),
    st.sampled_from([0.0, 20.0, 180.0]),
    st.sampled_from([0.0, 8.0]),
    st.sampled_from([0.0, 0.0008]),
    st.booleans(),
)
def test_every_box_is_where_loops_over_tiles_and_objects_say(
    seed: int, degrees: float, shear: float, perspective: float, nine: bool
) -> None:
    """Gain, place, cut, warp, cut and keep rule, object by object with Python's numbers; and no other box."""
    catalog = random_catalog(seed, kinds=(BOX,))
    policy = Policy(
        mosaic=0.7, mosaic9=float(nine), degrees=degrees, shear=shear, perspective=perspective, flipud=0.5, min_area_share=0.1
    )
    drawn = draw(np.arange(12), policy, seed=seed, epoch=0, imgsz=64, out_hw=(64, 64), pool=range(12))
    found = assemble(drawn, catalog, policy, imgsz=64)
    scale = drawn.scale
    for slot in range(12):
        first, last = found.labels.offsets[slot : slot + 2]
        got = dict(enumerate(found.labels.xyxy_px[first:last].tolist()))
        want, is_close = boxes_by_loops(found, catalog, slot, float(scale[slot]), policy)
        if not is_close:  # to a limit of the keep rule, where a rounding decides
            assert [instance for instance, _ in want] == found.labels.instance[first:last].tolist()
            for n, (_, box) in enumerate(want):
                np.testing.assert_allclose(got[n], box, atol=1e-4)


def boxes_by_loops(
    recipe: Recipe, catalog: Catalog, slot: int, zoom: float, policy: Policy
) -> tuple[list[tuple[int, list[float]]], bool]:
    """Instances and boxes of a slot of one group, and whether any of them is a hair from being kept or not."""
    group = int(recipe.group_offsets[slot])
    m, (out_h, out_w) = recipe.matrix[group], recipe.out_hw
    found: list[tuple[int, list[float]]] = []
    is_close = False
    for t in range(*recipe.tile_offsets[group : group + 2]):
        entry = int(recipe.tile_entry[t])
        rx0, ry0, rx1, ry1 = catalog.entry_rect[entry].tolist()
        (th, tw), (ox, oy) = recipe.size_hw[t].tolist(), recipe.origin_xy[t].tolist()
        vx0, vy0, vx1, vy1 = recipe.visible_xyxy[t].tolist()
        for i in range(*catalog.inst_offsets[entry : entry + 2]):
            if catalog.flags[i] & CROWD:
                continue
            x0, y0, x1, y1 = catalog.xyxy_px[i].tolist()
            x0, x1 = (min(max(x * tw / (rx1 - rx0) + ox, vx0), vx1) for x in (x0, x1))
            y0, y1 = (min(max(y * th / (ry1 - ry0) + oy, vy0), vy1) for y in (y0, y1))
            if x1 <= x0 or y1 <= y0:
                continue
            corners = [m @ (x, y, 1) for x in (x0, x1) for y in (y0, y1)]
            if min(c[2] for c in corners) <= 1e-3:
                return [], True  # the horizon: other tests' matter
            xs, ys = [c[0] / c[2] for c in corners], [c[1] / c[2] for c in corners]
            u0, u1 = (min(max(v, 0), out_w) for v in (min(xs), max(xs)))
            v0, v1 = (min(max(v, 0), out_h) for v in (min(ys), max(ys)))
            w, h = u1 - u0, v1 - v0
            share = w * h / ((x1 - x0) * (y1 - y0) * zoom**2)
            is_close |= any(abs(a - b) < 1e-6 for a, b in ((w, policy.min_side_px), (h, policy.min_side_px), (share, 0.1)))
            if w > policy.min_side_px and h > policy.min_side_px and share > 0.1 and max(w / h, h / w) < policy.max_aspect:
                found.append((i, [u0, v0, u1, v1]))
    return found, is_close


@pytest.mark.parametrize("task", TASKS)
def test_nothing_happens_at_probability_nought(task: str) -> None:
    """The preset ``none``: the picture centred on the output, every label as stored but for its size; no gain, no flip."""
    catalog = random_catalog(5, kinds=(OBB,) if task == "obb" else (BOX, POLYGON))
    policy = fixed(preset("none"), min_side_px=0, min_area_share=0, max_aspect=1e9)
    found = plan(np.arange(12), catalog, policy, seed=1, epoch=0, imgsz=64, task=task)
    assert np.diff(found.group_offsets).tolist() == np.diff(found.tile_offsets).tolist() == [1] * 12
    assert (found.gains == [0, 1, 1, 1]).all()
    assert not found.bgr.any()
    assert not found.is_masked.any()
    assert (found.weight == 1).all()
    for e in range(12):
        h, w = found.size_hw[e].tolist()
        assert found.matrix[e].tolist() == [[1, 0, (64 - w) / 2], [0, 1, (64 - h) / 2], [0, 0, 1]]
        first, last = found.labels.offsets[e : e + 2]
        kept = [i for i in range(*catalog.inst_offsets[e : e + 2]) if not catalog.flags[i] & CROWD]
        assert found.labels.instance[first:last].tolist() == kept
        rect_w, rect_h = (catalog.entry_rect[e, 2:] - catalog.entry_rect[e, :2]).tolist()
        gain, shift = np.array([w / rect_w, h / rect_h]), found.matrix[e, :2, 2]
        if task == "pose":
            was = catalog.keypoints_px[kept].copy()
            was[:, :, :2] = np.where(was[:, :, 2:] > 0, was[:, :, :2] * gain + shift, 0)
            np.testing.assert_allclose(found.labels.keypoints_px[first:last], was, atol=1e-4)
        if task != "obb":
            stored = catalog.xyxy_px[kept] * np.tile(gain, 2) + np.tile(shift, 2)
            np.testing.assert_allclose(found.labels.xyxy_px[first:last], stored, atol=1e-4)


def test_mosaic_closes_in_the_last_epochs_and_stays_open_when_their_number_is_unknown() -> None:
    """As a function of the epoch: nothing is switched, so nothing can be switched too late."""
    catalog, policy = random_catalog(1), Policy(mixup=1.0, close_mosaic=2)

    def groups_and_tiles(epoch: int, epochs: int | None) -> tuple[int, int]:
        found = plan([0], catalog, policy, seed=0, epoch=epoch, imgsz=64, epochs=epochs)
        return len(found.matrix), len(found.tile_entry)

    assert [groups_and_tiles(e, 5) for e in range(5)] == [(2, 8)] * 3 + [(1, 1)] * 2
    assert groups_and_tiles(4, None) == (2, 8)


def test_rectangular_training_mixes_nothing_and_centres_one_picture() -> None:
    """As in the trainers; Copy-Paste, affine and colours stay."""
    catalog = random_catalog(2, kinds=(POLYGON,))
    policy = Policy(mixup=1.0, cutmix=1.0, copy_paste=1.0, scale=0.0, translate=0.0, fliplr=0.0)
    found = plan(np.arange(12), catalog, policy, out_hw=(96, 32), **ONE)
    assert (np.diff(found.tile_offsets) == 1).all()
    assert (found.weight == 1).all()
    assert (found.clip_xyxy == [0, 0, 32, 96]).all()
    assert set(found.tile_entry[found.tile_offsets[:-1]].tolist()) == set(range(12))
    assert (np.diff(found.group_offsets) <= 2).all()  # the picture, and what is pasted onto it
    assert found.is_masked.any()
    first = found.group_offsets[:-1]
    h, w = found.size_hw[first].T
    np.testing.assert_array_equal(found.matrix[first, :2, 2], np.stack([(32 - w) / 2, (96 - h) / 2], 1))


def test_gain_and_entry_are_those_of_the_first_tile() -> None:
    """Also when a bad picture has been replaced."""
    catalog = random_catalog(4)
    found = plan(np.arange(12), catalog, Policy(mixup=0.5), bad=[3], **ONE)
    first = found.tile_offsets[:-1][found.group_offsets[:-1]]
    assert (found.entry == found.tile_entry[first]).all()
    assert 3 not in found.tile_entry
    is_whole = (catalog.entry_rect[found.entry, 2:] == catalog.rec_hw[found.entry, ::-1]).all(axis=1)
    original = catalog.entry_original_hw[found.entry]
    np.testing.assert_array_equal(found.gain_hw[is_whole], (found.size_hw[first] / original)[is_whole])


def test_the_columns_of_a_catalog_stay_as_they_are() -> None:
    """They are read-only, and equal afterwards, whatever is planned (ultralytics#1926: labels wandered)."""
    catalog = random_catalog(6)
    names = ("xyxy_px", "points_px", "keypoints_px", "cls", "entry_rect", "part_offsets")
    before = {name: catalog.column(name).copy() for name in names}
    policy = Policy(mixup=1.0, cutmix=1.0, copy_paste=1.0, flipud=0.5)
    once = [plan(np.arange(12), catalog, policy, task=task, **ONE) for task in TASKS]
    again = [plan(np.arange(12), catalog, policy, task=task, **ONE) for task in TASKS]
    assert all(not differences(a, b) for a, b in zip(once, again, strict=True))
    for name in names:
        assert not catalog.column(name).flags.writeable
        assert (catalog.column(name) == before[name]).all()


def test_crowds_and_other_classes_are_no_labels() -> None:
    """Classes are chosen and not renumbered; with single_cls all are 0."""
    things = [Thing(3, (1, 1, 9, 9)), Thing(4, (1, 1, 9, 9), flags=CROWD), Thing(5, (1, 1, 9, 9)), Thing(3, (20, 1, 29, 9))]
    catalog = catalog_of([(64, 64)], [things])

    def classes(**options: Any) -> list[int]:
        return plan([0], catalog, PLAIN, **ONE, **options).labels.cls.tolist()

    assert classes() == [3, 5, 3]
    assert classes(classes=[5, 4]) == [5]
    assert classes(classes=(3,), single_cls=True) == [0, 0]
    assert classes(classes=[]) == []


@pytest.mark.parametrize("task", TASKS)
def test_pictures_without_labels_give_batches_without_labels(task: str) -> None:
    """Of the right shapes, with every mixing on."""
    policy = Policy(mixup=1.0, cutmix=1.0, copy_paste=1.0, copy_paste_mode="mixup")
    keypoints = Keypoints(3, flip_idx=FLIP_IDX)
    found = plan([0, 1, 2], catalog_of([(30, 40)] * 3, keypoints=keypoints), policy, task=task, **ONE)
    assert list(complaints(found)) == []
    assert found.labels.offsets.tolist() == [0, 0, 0, 0]
    assert found.labels.keypoints_px.shape == (0, 3 if task == "pose" else 0, 3)
    assert found.labels.xywhr_px.shape == (0, 5)


def test_an_empty_batch_is_a_batch() -> None:
    """The last rank of a validation may have none."""
    found = plan(np.zeros(0, np.int64), random_catalog(0), Policy(mixup=1.0, copy_paste=0.5), **ONE)
    assert (len(found), len(found.labels), found.group_offsets.tolist()) == (0, 0, [0])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task": "depth"}, "task must be one of detect, segment, pose, obb, got 'depth'"),
        ({"imgsz": 0}, "imgsz must be at least 1, got 0"),
        ({"entries": [0, 12]}, r"an entry must be in 0\.\.11, got 0\.\.12"),
        ({"entries": [-1]}, r"an entry must be in 0\.\.11, got -1\.\.-1"),
        ({"entries": [0, 1], "draws": [1, 2, 3]}, r"draws must be one number, or one for each of 2 entries, got shape \(3,\)"),
        ({"draws": [1, 2]}, r"draws must be one number, or one for each of 1 entries, got shape \(2,\)"),
    ],
)
def test_arguments_that_break_a_rule_are_named(change: dict[str, Any], why: str) -> None:
    """Before anything is drawn."""
    options = {"entries": [0]} | ONE | change
    with pytest.raises(UsageError, match=why):
        plan(options.pop("entries"), random_catalog(0), Policy(), **options)


def test_each_task_gets_its_own_labels_and_no_other() -> None:
    """Outlines for segment, keypoints for pose, angles for obb; boxes for all."""
    found = {task: plan(np.arange(12), random_catalog(9), Policy(), task=task, **ONE).labels for task in TASKS}
    assert {task for task in TASKS if len(found[task].points_px)} == {"segment"}
    assert {task for task in TASKS if found[task].keypoints_px.shape[1]} == {"pose"}
    assert {task for task in TASKS if len(found[task].xywhr_px)} == {"obb"}
    assert (np.diff(found["segment"].ring_offsets) > 0).all()  # a box's outline is its rectangle
