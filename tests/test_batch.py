"""A recipe in the trainers' form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_kit as kit

import fastdata
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Labels, Recipe
from fastdata.batch import join_samples, make_batch, take_sample
from fastdata.labels import BOX, POLYGON
from fastdata.samples import Samples

H, W = 32, 64
SIZES = [(40, 20), (60, 90), (32, 32)]
KEYS = {"img", "cls", "bboxes", "batch_idx", "im_file", "ori_shape", "resized_shape", "ratio_pad"}
"""Of every batch (Ultralytics 8.4.190)."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of three pictures of different sizes."""
    out = tmp_path_factory.mktemp("batch") / "s.lmdb"
    with fastdata.create(out, names=["a", "b", "c"]) as writer:
        for i, hw in enumerate(SIZES):
            writer.add(np.zeros((*hw, 3), np.uint8), boxes=[[1, 1, 9, 9]], classes=[0], key=f"sub/{i}.png")
    return kit.opened(out).catalog


def recipe_of(task: str, boxes: list[list[list[float]]], classes: list[int], *, keypoints: int = 0) -> Recipe:
    """A recipe of which only the labels matter: squares with the given boxes, as outlines for segment, turned for obb."""
    xyxy = np.array([box for own in boxes for box in own], np.float32).reshape(-1, 4)
    n, b = len(xyxy), len(boxes)
    x0, y0, x1, y1 = xyxy.T
    rings = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).reshape(-1, 2)
    points = np.arange(n * keypoints * 3, dtype=np.float32).reshape(n, keypoints, 3)
    turned = np.concatenate([(xyxy[:, :2] + xyxy[:, 2:]) / 2, xyxy[:, 2:] - xyxy[:, :2], np.full((n, 1), 0.5)], axis=1)
    outlined = task == "segment"
    labels = Labels(
        offsets=np.cumsum([0, *map(len, boxes)]),
        cls=np.array(classes, np.int32),
        xyxy_px=xyxy,
        instance=np.arange(n),
        kind=np.full(n, POLYGON if outlined else BOX, np.uint8),
        ring_offsets=np.arange(n + 1) if outlined else np.zeros(n + 1, np.int64),
        point_offsets=np.arange(n + 1) * 4 if outlined else np.zeros(1, np.int64),
        points_px=rings if outlined else np.zeros((0, 2), np.float32),
        keypoints_px=points,
        xywhr_px=turned.astype(np.float32) if task == "obb" else np.zeros((0, 5), np.float32),
    )
    none = np.zeros(0, np.int64)
    return Recipe(
        out_hw=(H, W), task=task, entry=np.arange(b) % 3, gains=np.zeros((b, 4), np.float32), bgr=np.zeros(b, np.bool_),
        gain_hw=np.arange(2 * b).reshape(b, 2) / 4, pad_xy=np.arange(2.0 * b).reshape(b, 2),
        group_offsets=np.zeros(b + 1, np.int64), matrix=np.zeros((0, 3, 3)), weight=np.zeros(0, np.float32),
        clip_xyxy=np.zeros((0, 4), np.int32),
        is_masked=np.zeros(0, np.bool_), tile_offsets=np.zeros(1, np.int64), shape_offsets=np.zeros(1, np.int64),
        shape_ring_offsets=np.zeros(1, np.int64), ring_point_offsets=np.zeros(1, np.int64),
        mask_points_px=np.zeros((0, 2), np.float32), tile_entry=none, record=none.astype(np.uint32),
        source_xyxy=np.zeros((0, 4), np.int32), size_hw=np.zeros((0, 2), np.int32), origin_xy=np.zeros((0, 2), np.int32),
        visible_xyxy=np.zeros((0, 4), np.int32), labels=labels,
    )  # fmt: skip


SMALL, LARGE, FAR = [8.0, 8.0, 24.0, 16.0], [0.0, 0.0, 32.0, 32.0], [48.0, 16.0, 64.0, 32.0]
BOXES = [[SMALL, LARGE], [], [FAR]]
CLASSES = [2, 0, 1]
IMAGES = np.zeros((3, 3, H, W), np.uint8)


def test_boxes_are_fractions_of_the_picture_and_know_theirs(catalog: Any) -> None:
    """Types and shapes as the loss takes them, and no key more or less."""
    batch = make_batch(recipe_of("detect", BOXES, CLASSES), IMAGES, catalog, augmented=True)
    assert batch.keys() == KEYS
    assert batch["bboxes"].tolist() == [[0.25, 0.375, 0.25, 0.25], [0.25, 0.5, 0.5, 1.0], [0.875, 0.75, 0.25, 0.5]]
    assert batch["cls"].tolist() == [[2], [0], [1]]
    assert batch["batch_idx"].tolist() == [0, 0, 2]
    assert {batch[key].dtype for key in ("bboxes", "cls", "batch_idx")} == {torch.float32}
    assert (batch["img"].dtype, tuple(batch["img"].shape)) == (torch.uint8, (3, 3, H, W))
    assert batch["im_file"] == ("sub/0.png", "sub/1.png", "sub/2.png")
    assert batch["ori_shape"] == tuple(SIZES)
    assert batch["resized_shape"] == ((H, W),) * 3


def test_the_padding_is_told_in_validation_alone(catalog: Any) -> None:
    """Validators undo it: gains of height and width, then whole pixels on the left and above."""
    recipe = recipe_of("detect", BOXES, CLASSES)
    assert make_batch(recipe, IMAGES, catalog, augmented=True)["ratio_pad"] == ((0.0, 0.25), (0.5, 0.75), (1.0, 1.25))
    padded = make_batch(recipe, IMAGES, catalog, augmented=False)["ratio_pad"]
    assert padded == (((0.0, 0.25), (0, 1)), ((0.5, 0.75), (2, 3)), ((1.0, 1.25), (4, 5)))
    assert all(isinstance(pad, int) for _, pads in padded for pad in pads)


def test_pixels_are_not_copied_and_labels_are_new(catalog: Any) -> None:
    """A thread of the trainer plots a batch's labels long after the loader has gone on."""
    recipe, images = recipe_of("detect", BOXES, CLASSES), IMAGES.copy()
    first, second = (make_batch(recipe, images, catalog, augmented=True) for _ in range(2))
    assert first["img"].data_ptr() == images.ctypes.data
    assert make_batch(recipe, first["img"], catalog, augmented=True)["img"] is first["img"]
    first["bboxes"] += 1
    first["cls"] += 1
    assert second["cls"].tolist() == [[2], [0], [1]]
    assert recipe.labels.cls.tolist() == CLASSES
    assert second["bboxes"].max() <= 1


def test_ranks_go_by_falling_area_and_take_the_labels_along(catalog: Any) -> None:
    """The smaller object is on top; the k-th label of a picture is rank k."""
    batch = make_batch(recipe_of("segment", BOXES, CLASSES), IMAGES, catalog, augmented=True, mask_ratio=4)
    assert batch.keys() == KEYS | {"masks", "sem_masks"}
    assert batch["cls"].ravel().tolist() == [0, 2, 1]
    assert batch["bboxes"][:, 2].tolist() == [0.5, 0.25, 0.25]
    masks, classes = batch["masks"], batch["sem_masks"]
    assert (masks.dtype, tuple(masks.shape), classes.dtype) == (torch.uint8, (3, 8, 16), torch.float32)
    assert (masks[0, 2:4, 2:6] == 2).all()
    assert (masks[0] == 2).sum() == 8
    assert (masks[0] == 1).sum() == 64 - 8
    assert not masks[1].any()
    assert (masks[2, 4:, 12:] == 1).all()
    assert (classes[masks == 2] == 2).all()
    assert (classes[2][masks[2] == 1] == 1).all()


def test_separate_masks_are_a_plane_each_in_the_order_of_the_labels(catalog: Any) -> None:
    """As many as labels, also where a picture has none; the classes per pixel do not depend on the choice."""
    recipe = recipe_of("segment", BOXES, CLASSES)
    batch = make_batch(recipe, IMAGES, catalog, augmented=True, overlap_mask=False, mask_ratio=8)
    assert batch["masks"].shape == (3, 4, 8)
    assert batch["masks"].sum(dim=(1, 2)).tolist() == [2, 16, 4]
    assert batch["cls"].ravel().tolist() == CLASSES
    ranked = make_batch(recipe, IMAGES, catalog, augmented=True, mask_ratio=8)
    assert torch.equal(batch["sem_masks"], ranked["sem_masks"])


def test_keypoints_are_fractions_with_their_visibility(catalog: Any) -> None:
    """x over W, y over H, the third as it is."""
    batch = make_batch(recipe_of("pose", BOXES, CLASSES, keypoints=2), IMAGES, catalog, augmented=True)
    assert batch.keys() == KEYS | {"keypoints"}
    assert batch["keypoints"].dtype == torch.float32
    assert batch["keypoints"][1].tolist() == [[6 / W, 7 / H, 8], [9 / W, 10 / H, 11]]


def test_oriented_boxes_keep_their_angle_in_radians(catalog: Any) -> None:
    """Centre and sides over width, height, width, height: the trainers multiply them back."""
    batch = make_batch(recipe_of("obb", BOXES, CLASSES), IMAGES, catalog, augmented=True)
    assert batch["bboxes"].shape == (3, 5)
    np.testing.assert_allclose(batch["bboxes"][0], [16 / W, 12 / H, 16 / W, 8 / H, 0.5])


@pytest.mark.parametrize(
    ("task", "shapes"),
    [
        ("detect", {"cls": (0, 1), "bboxes": (0, 4), "batch_idx": (0,)}),
        ("segment", {"cls": (0, 1), "bboxes": (0, 4), "masks": (2, 8, 16), "sem_masks": (2, 8, 16)}),
        ("pose", {"cls": (0, 1), "bboxes": (0, 4), "keypoints": (0, 2, 3)}),
        ("obb", {"cls": (0, 1), "bboxes": (0, 5)}),
    ],
)
def test_a_batch_without_labels_has_every_key(catalog: Any, task: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Losses read the keys before they look how many there are."""
    recipe = recipe_of(task, [[], []], [], keypoints=2 if task == "pose" else 0)
    batch = make_batch(recipe, IMAGES[:2], catalog, augmented=True)
    assert {key: tuple(batch[key].shape) for key in shapes} == shapes


def test_more_than_255_objects_need_wider_ranks(catalog: Any) -> None:
    """Rank 256 is no background."""
    boxes = [[[0.0, 0.0, float(W), float(H)]] * 300]
    batch = make_batch(recipe_of("segment", boxes, [1] * 300), IMAGES[:1], catalog, augmented=True)
    assert batch["masks"].dtype == torch.int32
    assert batch["masks"].unique().tolist() == [300]


@pytest.mark.parametrize("overlap_mask", [True, False])
@pytest.mark.parametrize("task", kit.TASKS)
def test_taking_samples_out_and_joining_them_gives_the_batch(catalog: Any, task: str, overlap_mask: bool) -> None:
    """One by one or at once is the same to a trainer; every sample has every key, its own index zero."""
    recipe = recipe_of(task, BOXES, CLASSES, keypoints=2 if task == "pose" else 0)
    batch = make_batch(recipe, IMAGES, catalog, augmented=True, overlap_mask=overlap_mask)
    samples = [take_sample(batch, i, overlap_mask=overlap_mask) for i in range(3)]
    assert kit.digest(join_samples(samples)) == kit.digest(batch)
    assert [len(sample["cls"]) for sample in samples] == [2, 0, 1]
    assert all(sample.keys() == batch.keys() for sample in samples)
    assert all(not sample["batch_idx"].any() for sample in samples)
    assert samples[2]["img"].shape == (3, H, W)
    if task == "segment":
        assert [len(sample["masks"]) for sample in samples] == ([1, 1, 1] if overlap_mask else [2, 0, 1])
    assert samples[2]["im_file"] == "sub/2.png"
    assert batch["batch_idx"].tolist() == [0, 0, 2]


@pytest.mark.parametrize("task", kit.TASKS)
def test_what_a_store_gives_fits_the_form(tmp_path: Path, task: Any) -> None:
    """A converted set of each task, with pictures without labels among them."""
    samples = Samples(kit.converted(tmp_path, task, 6, background_share=0.4), imgsz=64, policy=Policy(mosaic=0.5))
    batch = samples.batch(*samples.draw(range(6)))
    n = len(batch["cls"])
    assert n == len(batch["batch_idx"]) == len(batch["bboxes"]) > 0
    sizes = batch["bboxes"][:, :4]
    assert ((sizes > -0.5) & (sizes < 1.5)).all()
    if task == "segment":
        assert batch["masks"].shape == batch["sem_masks"].shape == (6, 16, 16)
        per_picture = torch.bincount(batch["batch_idx"].long(), minlength=6)
        assert (batch["masks"].flatten(1).max(dim=1).values <= per_picture).all()
    if task == "pose":
        assert batch["keypoints"].shape == (n, 5, 3)
    if task != "obb":
        centre, size = batch["bboxes"][:, :2], batch["bboxes"][:, 2:]
        assert (centre - size / 2 >= -1e-6).all()
        assert (centre + size / 2 <= 1 + 1e-6).all()
