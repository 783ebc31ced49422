"""Samples in the trainers' form: a recipe's labels and its pixels as one dictionary of torch tensors.

The form is that of Ultralytics 8.4.190 before ``preprocess_batch``. One difference: masks keep their integer type when a picture
has no label, where that version turns the whole batch to float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Labels, Recipe
from fastdata.boxes import xyxy_px_to_xywh_norm
from fastdata.catalog import Catalog
from fastdata.render.masks import class_masks, overlap_masks, separate_masks

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Masks = tuple[Any, Any, I64]
"""``masks`` and ``sem_masks`` of a batch, and (N,) the objects in the order of overlap masks."""

STACKED = ("img", "sem_masks")
"""Keys of which each sample has one tensor: they get a new first axis."""
JOINED = ("cls", "bboxes", "masks", "keypoints")
"""Keys of which each sample has a tensor of as many rows as objects (overlap masks: one): rows follow each other."""


def make_batch(
    recipe: Recipe,
    images: Any,
    catalog: Catalog,
    *,
    augmented: bool,
    overlap_mask: bool = True,
    mask_ratio: int = 4,
    device: Any = None,
    masks: Masks | None = None,
) -> dict[str, Any]:
    """Return a batch.

    ``img`` (B, 3, H, W) uint8; ``cls`` (N, 1), ``bboxes`` (N, 4) xywh_norm, for obb (N, 5) with the angle in radians, and
    ``batch_idx`` (N,), all float32; ``im_file``, ``ori_shape`` (h, w), ``resized_shape`` (H, W) and ``ratio_pad``: tuples of B.
    segment adds ``masks`` and ``sem_masks`` (float32 (B, H // r, W // r): the class of each pixel), and brings the objects of a
    picture into the order of its masks; pose adds ``keypoints`` (N, K, 3) with x over W and y over H.

    Args:
        recipe: What was drawn.
        images: (B, 3, H, W) uint8, an array or a torch tensor; not copied. All other tensors are new memory.
        catalog: Of the store.
        augmented: Whether ``ratio_pad`` is that of training, (gain_h, gain_w), or of validation: ((gain_h, gain_w), (left, top)).
        overlap_mask: ``masks`` is (B, H // r, W // r), 0 or the number of the object on top, counted from 1 in each picture by
            falling area; else (N, H // r, W // r) of 0 and 1.
        mask_ratio: r.
        device: A torch device that the labels are copied to, in one piece and without waiting for it; ``None``: ordinary memory.
        masks: Of segment, where they are drawn already.
    """
    import torch

    labels, n = recipe.labels, len(recipe)
    height, width = recipe.out_hw
    slot = np.repeat(np.arange(n, dtype=np.float32), np.diff(labels.offsets))
    boxes = _oriented(labels, recipe.out_hw) if recipe.task == "obb" else xyxy_px_to_xywh_norm(labels.xyxy_px, recipe.out_hw)
    cls = labels.cls.astype(np.float32)[:, None]
    more: dict[str, Any] = {}
    if recipe.task == "segment":
        masks = _masks(labels, recipe.out_hw, mask_ratio, overlap_mask) if masks is None else masks
        more["masks"], more["sem_masks"], order = masks
        if overlap_mask:
            boxes, cls = boxes[order], cls[order]
    if recipe.task == "pose":
        more["keypoints"] = (labels.keypoints_px / np.array([width, height, 1.0])).astype(np.float32)
    gains, pads = recipe.gain_hw.tolist(), recipe.pad_xy.tolist()
    arrays = {"cls": cls, "bboxes": boxes.astype(np.float32), "batch_idx": slot, **more}
    return {
        "img": torch.from_numpy(images) if isinstance(images, np.ndarray) else images,
        **_tensors(arrays, device),
        "im_file": tuple(catalog.keys(recipe.entry)),
        "ori_shape": tuple(map(tuple, catalog.entry_original_hw[recipe.entry].tolist())),
        "resized_shape": ((height, width),) * n,
        "ratio_pad": tuple(
            (h, w) if augmented else ((h, w), (int(left), int(top)))
            for (h, w), (left, top) in zip(gains, pads, strict=True)
        ),
    }  # fmt: skip


def _masks(labels: Labels, out_hw: tuple[int, int], ratio: int, overlap: bool) -> Masks:
    ranks, order = overlap_masks(labels, out_hw, ratio)
    return ranks if overlap else separate_masks(labels, out_hw, ratio), class_masks(ranks, order, labels), order


def _tensors(arrays: dict[str, Any], device: Any) -> dict[str, Any]:
    """Return arrays as tensors where they shall be; what is a tensor already is there."""
    import torch

    own = {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}
    if device is None:
        made = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in own.items()}
    else:
        from fastdata.render.cuda import to_device

        # They share memory. ``data`` is a view that does not share the count of changes too, or autograd would take a change of
        # one for a change of all.
        made = {key: tensor.data for key, tensor in to_device(own, device).items()}
    return arrays | made


def _oriented(labels: Labels, out_hw: tuple[int, int]) -> F64:
    """Return (N, 5) oriented boxes, centre and sides over W, H, W, H: as the trainers do, which multiply them back."""
    height, width = out_hw
    out: F64 = labels.xywhr_px / np.array([width, height, width, height, 1.0])
    return out


def take_sample(batch: dict[str, Any], i: int, *, overlap_mask: bool = True) -> dict[str, Any]:
    """Return sample ``i`` of a batch as a dictionary of its own, as the trainers' datasets give it: ``batch_idx`` is zeros.

    Args:
        batch: From :func:`make_batch`; tensors become views of its.
        i: From 0.
        overlap_mask: As the batch was made.
    """
    own = batch["batch_idx"] == i
    out: dict[str, Any] = {}
    for key, value in batch.items():
        if key in STACKED or isinstance(value, tuple):
            out[key] = value[i]
        elif key == "masks" and overlap_mask:
            out[key] = value[i : i + 1]
        else:
            out[key] = value[own]
    out["batch_idx"] = out["batch_idx"] * 0
    return out


def join_samples(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the batch of samples that were made one by one: the inverse of :func:`take_sample`."""
    import torch

    batch: dict[str, Any] = {}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        if key in STACKED:
            batch[key] = torch.stack(values)
        elif key in JOINED:
            batch[key] = torch.cat(values)
        elif key == "batch_idx":
            batch[key] = torch.cat([value + i for i, value in enumerate(values)])
        else:
            batch[key] = tuple(values)
    return batch
