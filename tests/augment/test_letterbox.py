"""Letterboxes and rectangular batches: the trainers' rounding, every label, and the way back to the original picture."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_kit import Thing
from plan_kit import catalog_of, complaints, random_catalog

from fastdata.augment.letterbox import letterbox, rect_shapes
from fastdata.augment.recipe import TASKS, differences
from fastdata.catalog import Keypoints
from fastdata.errors import UsageError
from fastdata.labels import CROWD, OBB, POLYGON

side = st.integers(1, 3000)


@given(st.tuples(side, side), st.integers(1, 700), st.tuples(st.integers(1, 800), st.integers(1, 800)) | st.none())
def test_sizes_margins_and_gains_are_the_trainers(hw: tuple[int, int], imgsz: int, out_hw: tuple[int, int] | None) -> None:
    """The formula, one picture at a time and with Python's own rounding."""
    h0, w0 = hw
    big_h, big_w = out_hw or (imgsz, imgsz)
    r = imgsz / max(h0, w0)
    h1, w1 = (max(min(math.ceil(x * r), imgsz), 1) if r != 1 else x for x in hw)
    s = min(big_h / h1, big_w / w1, 1)
    h2, w2 = max(round(h1 * s), 1), max(round(w1 * s), 1)
    left, top = round((big_w - w2) / 2 - 0.1), round((big_h - h2) / 2 - 0.1)

    found = letterbox([0], catalog_of([hw]), imgsz=imgsz, out_hw=out_hw)
    assert found.out_hw == (big_h, big_w)
    assert found.size_hw.tolist() == [[h1, w1]]
    assert found.pad_xy.tolist() == [[left, top]]
    assert found.gain_hw.tolist() == [[h1 / h0 * s, w1 / w0 * s]]
    assert found.matrix.tolist() == [[[w2 / w1, 0, left], [0, h2 / h1, top], [0, 0, 1]]]
    assert (found.weight.tolist(), found.clip_xyxy.tolist()) == ([1], [[0, 0, big_w, big_h]])
    assert found.visible_xyxy.tolist() == [[0, 0, w1, h1]]


def test_known_pictures_come_out_as_observed() -> None:
    """48 x 64 at 640 as seen in Ultralytics 8.4.190; an odd margin has its larger half below."""
    found = letterbox([0, 1], catalog_of([(48, 64), (41, 64)]), imgsz=640)
    assert (found.gain_hw[0].tolist(), found.pad_xy[0].tolist()) == ([10, 10], [0, 80])
    odd = letterbox([0], catalog_of([(41, 64)]), imgsz=64)
    assert odd.pad_xy.tolist() == [[0, 11]]  # 11 above, 12 below


def test_labels_are_the_stored_ones_scaled_and_moved() -> None:
    """No keep rule: an object of a twentieth of a pixel stays. Gains are those of the sides, which differ by rounding."""
    boxes = [(10, 5, 30, 15), (0, 0, 64, 33), (1, 1, 1.05, 1.05)]
    things = [*(Thing(i, box) for i, box in enumerate(boxes, 1)), Thing(4, (1, 1, 5, 5), flags=CROWD)]
    catalog = catalog_of([(33, 64)], [things], original_hw=[(330, 640)])
    found = letterbox([0], catalog, imgsz=100)
    assert found.size_hw.tolist() == [[52, 100]]
    gain = np.array([100 / 64, 52 / 33] * 2)
    want = np.array(boxes) * gain + np.array([0, 24, 0, 24])
    np.testing.assert_allclose(found.labels.xyxy_px, want, rtol=1e-6)
    assert found.labels.cls.tolist() == [1, 2, 3]
    assert found.labels.instance.tolist() == [0, 1, 2]


@settings(max_examples=40)
@given(st.integers(0, 50), st.sampled_from(TASKS), st.integers(20, 130), st.booleans())
def test_boxes_lead_back_to_the_original_picture(seed: int, task: str, imgsz: int, is_square: bool) -> None:
    """By gain and pad, for every object of every kind, to a hundredth of a pixel."""
    catalog = random_catalog(seed)
    entries = np.array([2, 5, 2, 9])
    found = letterbox(entries, catalog, imgsz=imgsz, out_hw=None if is_square else (imgsz, imgsz + 17), task=task)
    assert list(complaints(found)) == []
    slot = np.repeat(np.arange(4), np.diff(found.labels.offsets))
    entry = entries[slot]
    gain, pad = found.gain_hw[slot][:, [1, 0, 1, 0]], found.pad_xy[slot][:, [0, 1, 0, 1]]
    rect = catalog.entry_rect[entry]
    original_wh = np.where(
        (rect[:, 2:] - rect[:, :2] == catalog.rec_hw[entry, ::-1]).all(1, keepdims=True),
        catalog.entry_original_hw[entry, ::-1],
        rect[:, 2:] - rect[:, :2],
    )
    stored = catalog.xyxy_px[found.labels.instance] * np.tile(original_wh / (rect[:, 2:] - rect[:, :2]), 2)
    back = (found.labels.xyxy_px - pad) / gain
    if task != "obb":  # there it is the extent of the oriented box
        np.testing.assert_allclose(back, stored, atol=0.01)
    counts = [int(((catalog.flags[a:b] & CROWD) == 0).sum()) for a, b in (catalog.inst_offsets[e : e + 2] for e in entries)]
    assert np.diff(found.labels.offsets).tolist() == counts
    for k in range(4):
        one = letterbox(
            entries[k : k + 1], catalog, imgsz=imgsz, out_hw=None if is_square else (imgsz, imgsz + 17), task=task
        )
        assert differences(found.slots(k, k + 1), one) == []


def test_outlines_keypoints_and_oriented_boxes_move_with_their_boxes() -> None:
    """Each task gets what it asks for and nothing else."""
    ring = [[10, 10], [30, 10], [10, 30]]
    points = [[10, 10, 2], [0, 0, 0], [64, 32, 1]]
    quad = [[30, -4], [60, 10], [53, 25], [23, 11]]
    things = [
        Thing(0, parts=[ring], kind=POLYGON, keypoints=points),
        Thing(0, (23, 0, 60, 25), parts=[quad], kind=OBB, keypoints=points),
    ]
    catalog = catalog_of([(32, 64)], [things], keypoints=Keypoints(3))
    options = {"imgsz": 128, "out_hw": (128, 192)}
    segment, pose, obb, detect = (letterbox([0], catalog, task=t, **options).labels for t in ("segment", "pose", "obb", "detect"))
    shift = np.array([32, 32])
    np.testing.assert_allclose(segment.rings(0)[0], np.array(ring) * 2 + shift)
    assert pose.keypoints_px[0].tolist() == [[52, 52, 2], [0, 0, 0], [160, 96, 1]]
    # the oriented box is not cut, though a corner lies outside its picture
    np.testing.assert_allclose(obb.xywhr_px[1, :2], np.array(quad).mean(axis=0) * 2 + shift, rtol=1e-6)
    np.testing.assert_allclose(obb.xywhr_px[1, 2], 2 * np.hypot(30, 14), rtol=1e-6)
    assert len(detect.points_px) == len(detect.xywhr_px) == detect.keypoints_px.shape[1] == len(obb.points_px) == 0


def test_classes_are_chosen_and_not_renumbered_and_single_cls_makes_all_0() -> None:
    """As in the trainers."""
    catalog = catalog_of([(32, 64)], [[Thing(c, (1, 1, 9, 9)) for c in (3, 1, 2, 3)]])
    chosen = letterbox([0], catalog, imgsz=64, classes=[3, 2]).labels
    assert (chosen.cls.tolist(), chosen.instance.tolist()) == ([3, 2, 3], [0, 2, 3])
    assert letterbox([0], catalog, imgsz=64, classes=[3], single_cls=True).labels.cls.tolist() == [0, 0]
    assert len(letterbox([0], catalog, imgsz=64, classes=[]).labels) == 0


def test_an_unknown_task_and_a_size_of_nothing_are_refused() -> None:
    """Before anything is planned."""
    with pytest.raises(UsageError, match="task must be one of detect, segment, pose, obb, got 'depth'"):
        letterbox([0], catalog_of([(8, 8)]), imgsz=8, task="depth")
    with pytest.raises(UsageError, match="imgsz must be at least 1, got 0"):
        letterbox([0], catalog_of([(8, 8)]), imgsz=0)


def test_a_square_batch_is_one_stride_larger_with_the_usual_pad() -> None:
    """672 at 640, as observed."""
    order, shapes = rect_shapes([(500, 500)] * 3, 2, 640)
    assert (order.tolist(), shapes.tolist()) == ([0, 1, 2], [[672, 672]] * 2)


def test_batches_are_of_pictures_of_like_shape() -> None:
    """Wide ones first; a batch is as high as its highest of the wide, as wide as its widest of the high, else square."""
    sizes = [(400, 200), (200, 400), (300, 300), (100, 400), (800, 400), (290, 300)]
    order, shapes = rect_shapes(sizes, 2, 640, stride=32, pad=0.0)
    assert order.tolist() == [3, 1, 5, 2, 0, 4]
    assert shapes.tolist() == [[320, 640], [640, 640], [640, 320]]
    assert rect_shapes(sizes, 4, 640, pad=0.0)[1].tolist() == [[640, 640], [640, 320]]


@given(st.lists(st.tuples(side, side), max_size=30), st.integers(1, 9), st.sampled_from([320, 640]), st.sampled_from([0.0, 0.5]))
def test_rectangular_batches_are_the_trainers(sizes: list[tuple[int, int]], batch: int, imgsz: int, pad: float) -> None:
    """The same numbers, computed batch by batch; every picture fits into its batch but for a pixel of rounding."""
    order, shapes = rect_shapes(sizes, batch, imgsz, pad=pad)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    aspects = [sizes[i][0] / sizes[i][1] for i in order]
    assert aspects == sorted(aspects)
    want = []
    for first in range(0, len(sizes), batch):
        low, high = min(aspects[first : first + batch]), max(aspects[first : first + batch])
        h, w = (high, 1) if high < 1 else (1, 1 / low) if low > 1 else (1, 1)
        want.append([math.ceil(x * imgsz / 32 + pad) * 32 for x in (h, w)])
    assert shapes.tolist() == want


def test_numbers_of_rectangular_batches_must_be_positive() -> None:
    """A batch of nothing has no shape."""
    with pytest.raises(UsageError, match="must be at least 1, got 0, 640 and 32"):
        rect_shapes([(4, 4)], 0, 640)
