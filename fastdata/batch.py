"""Samples in the trainers' form: a recipe's labels and its pixels as one dictionary of torch tensors."""

from __future__ import annotations

from typing import Any

from fastdata.augment.recipe import Recipe
from fastdata.catalog import Catalog


def make_batch(
    recipe: Recipe, images: Any, catalog: Catalog, *, augmented: bool, overlap_mask: bool = True, mask_ratio: int = 4
) -> dict[str, Any]:
    """Return a batch as Ultralytics 8.4.190 collates it, before ``preprocess_batch``.

    ``img`` (B, 3, H, W) uint8; ``cls`` (N, 1), ``bboxes`` (N, 4) xywh_norm, for obb (N, 5) with the angle in radians, and
    ``batch_idx`` (N,), all float32; ``im_file``, ``ori_shape``, ``resized_shape``, ``ratio_pad`` tuples of B. segment adds
    ``masks`` and ``sem_masks``, pose ``keypoints`` (N, K, 3) with x over W and y over H.

    Args:
        recipe: What was drawn.
        images: (B, 3, H, W) uint8, an array or a torch tensor; not copied. All other tensors are new memory.
        catalog: Of the store.
        augmented: Whether ``ratio_pad`` is that of training, (gain_h, gain_w), or of validation, with the pads.
        overlap_mask: One plane of ranks a picture, or one plane an object.
        mask_ratio: Masks are so many times smaller than the picture.
    """
    raise NotImplementedError
