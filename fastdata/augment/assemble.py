"""From draws to a recipe: no chance, only geometry.

The steps and their order are the trainers': tiles onto canvases, Copy-Paste within them, the transform and the keep rule, MixUp,
CutMix, flips.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment import affine, mix, oriented, outline, ragged
from fastdata.augment.canvas import View, on_canvas
from fastdata.augment.draws import BASE, CUTMIX, Draws
from fastdata.augment.keep import SHARE_BOX, SHARE_OUTLINE, is_kept
from fastdata.augment.layers import Layers, Stamps, plain_layers, stacked
from fastdata.augment.layout import Tiles, place
from fastdata.augment.objects import Objects, merged, warped
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Labels, Recipe
from fastdata.catalog import Catalog
from fastdata.errors import UsageError

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


def assemble(
    draws: Draws,
    catalog: Catalog,
    policy: Policy,
    *,
    imgsz: int,
    out_hw: tuple[int, int] | None = None,
    task: str = "detect",
    classes: Collection[int] | None = None,
    single_cls: bool = False,
) -> Recipe:
    """Decide everything that follows from the draws.

    Args:
        draws: What chance said, or a person.
        catalog: Sizes and labels.
        policy: Of it only what is no chance counts: the hue's meaning, the limits of the keep rule, the share of objects that
            Copy-Paste takes and its mode.
        imgsz: Long side of a tile.
        out_hw: Size of the output; a square of ``imgsz`` when ``None``.
        task: One of ``fastdata.augment.recipe.TASKS``.
        classes: Keep objects of these classes only.
        single_cls: Call every object class 0.

    Raises:
        UsageError: The draws flip left and right, the task is pose, and the catalog does not say which keypoints are a pair.
    """
    out_hw = out_hw or (imgsz, imgsz)
    tiles = place(draws, catalog, imgsz)
    scene_slot = draws.scene_slot
    matrix = affine.matrices(
        tiles.canvas_wh,
        out_hw,
        perspective=draws.perspective,
        degrees=draws.degrees,
        scale=draws.scale,
        shear_deg=draws.shear_deg,
        translate=draws.translate,
    )
    can_paste = policy.copy_paste > 0 and task != "pose"
    objects = on_canvas(catalog, tiles, View(matrix, out_hw, can_paste | (draws.role >= CUTMIX)), task, classes)
    can_paste = can_paste and bool(objects.has_outline.any())
    stamps = None
    if can_paste and policy.copy_paste_mode == "flip":
        copies = mix.pasted(mix.mirrored(objects, tiles.canvas_wh), objects, policy.copy_paste)
        objects = merged(objects, copies)
        shown = warped(copies, matrix, out_hw, task)
        stamps = Stamps(shown, np.arange(len(matrix)), affine.mirrored_canvas(matrix, tiles.canvas_wh))
    placed = kept(objects, matrix, draws.scale, out_hw, policy, task)
    if draws.role.max(initial=BASE) == BASE and stamps is None:
        layers = plain_layers(matrix, scene_slot, out_hw)
        return written(draws, catalog, policy, tiles, layers, placed, scene_slot, out_hw, task, single_cls)

    is_lent = (draws.role % 2 == 1)[placed.scene]
    if is_lent.any():
        own, lent = placed.take(~is_lent), placed.take(is_lent)
        lent = replace(lent, scene=lent.scene - 1)  # a lender comes right after the scene that it lends to
        lent = mix.pasted(lent, own, policy.copy_paste)
        after = np.minimum(np.arange(1, len(matrix) + 1), len(matrix) - 1)
        stamps = Stamps(lent, after, matrix[after])
        placed = merged(own, lent)
    region, is_cut = np.zeros((len(draws), 4), np.int64), np.zeros(len(draws), np.bool_)
    if (draws.role == CUTMIX).any():
        placed, region, is_cut = mix.cutmix(draws, placed, scene_slot, task)
    layers = stacked(draws, matrix, out_hw, stamps, region, is_cut)
    return written(draws, catalog, policy, tiles, layers, placed, scene_slot, out_hw, task, single_cls)


def kept(objects: Objects, matrix: F64, scale: F64, out_hw: tuple[int, int], policy: Policy, task: str) -> Objects:
    """Warp objects and keep those that are worth a label; (S,) scales and (S, 3, 3) matrices of scenes."""
    after = warped(objects, matrix, out_hw, task)
    share: F64 | float = SHARE_BOX if policy.min_area_share is None else policy.min_area_share
    if policy.min_area_share is None and objects.has_outline.any():
        has_outline = np.zeros(len(matrix), np.bool_)
        has_outline[objects.scene[objects.has_outline]] = True
        share = np.where(has_outline, SHARE_OUTLINE, SHARE_BOX)[objects.scene]
    stays = is_kept(
        objects.xyxy,
        after.xyxy,
        scale[objects.scene],
        min_side_px=policy.min_side_px,
        min_area_share=share,
        max_aspect=policy.max_aspect,
    )
    return after if stays.all() else after.take(stays)


def written(
    draws: Draws,
    catalog: Catalog,
    policy: Policy,
    tiles: Tiles,
    layers: Layers,
    objects: Objects,
    object_slot: I64,
    out_hw: tuple[int, int],
    task: str,
    single_cls: bool,
) -> Recipe:
    """Write layers and objects down as a recipe, flips included."""
    lr, ud = draws.flip_lr, draws.flip_ud
    tile_offsets = tiles.offsets
    parts: list[npt.NDArray[Any]] = [
        tiles.entry,
        tiles.record,
        tiles.source_xyxy,
        tiles.size_hw,
        tiles.origin_xy,
        tiles.visible_xyxy,
    ]
    if not np.array_equal(layers.scene, np.arange(len(tile_offsets) - 1)):  # unless each scene is shown once, in order
        tile, tile_offsets = ragged.gather(layers.scene, tile_offsets)
        parts = [part.take(tile, axis=0) for part in parts]
    tile_entry, record, source_xyxy, size_hw, origin_xy, visible_xyxy = parts
    first = tiles.offsets[:-1][draws.scene_offsets[:-1]]
    h, w = out_hw
    slot = layers.slot
    clip = _flipped_boxes(layers.clip_xyxy, out_hw, lr[slot], ud[slot])
    points = layers.points
    if len(points):
        shape_of, ring_of = ragged.owners(layers.shape_ring_offsets), ragged.owners(layers.ring_point_offsets)
        of = slot[ragged.owners(layers.shape_offsets)[shape_of[ring_of]]]
        points = _flipped_points(points, out_hw, lr[of], ud[of])
    return Recipe(
        out_hw=(int(h), int(w)),
        task=task,
        entry=draws.entry,
        gains=_gains(draws.hsv, policy),
        bgr=draws.bgr,
        gain_hw=tiles.size_hw[first] / tiles.original_hw[first],
        pad_xy=np.zeros((len(draws), 2)),
        group_offsets=ragged.offsets_of(np.bincount(slot, minlength=len(draws))),
        matrix=affine.flipped(layers.matrix, out_hw, lr[slot], ud[slot]),
        weight=layers.weight.astype(np.float32),
        clip_xyxy=clip.astype(np.int32),
        is_masked=layers.is_masked,
        tile_offsets=tile_offsets,
        shape_offsets=layers.shape_offsets,
        shape_ring_offsets=layers.shape_ring_offsets,
        ring_point_offsets=layers.ring_point_offsets,
        mask_points_px=points.astype(np.float32),
        tile_entry=tile_entry,
        record=record,
        source_xyxy=source_xyxy,
        size_hw=size_hw.astype(np.int32),
        origin_xy=origin_xy.astype(np.int32),
        visible_xyxy=visible_xyxy.astype(np.int32),
        labels=_labels(objects, object_slot[objects.scene], draws, catalog, out_hw, task, single_cls),
    )


def _labels(
    objects: Objects, slot: I64, draws: Draws, catalog: Catalog, out_hw: tuple[int, int], task: str, single_cls: bool
) -> Labels:
    lr, ud = draws.flip_lr[slot], draws.flip_ud[slot]
    n = len(objects)
    ring_offsets, point_offsets, points = np.zeros(n + 1, np.int64), np.zeros(1, np.int64), objects.points[:0]
    if task == "segment":
        ring_offsets, point_offsets, points = objects.ring_offsets, objects.point_offsets, objects.points
        of = objects.point_owner
        points = _flipped_points(points, out_hw, lr[of], ud[of])
    xywhr = np.zeros((0, 5))
    if task == "obb":
        corners = objects.points.reshape(n, 4, 2)
        xywhr = oriented.corners_to_xywhr(_flipped_points(corners, out_hw, lr[:, None], ud[:, None]))
    keypoints = objects.keypoints
    if keypoints.shape[1]:
        seen = keypoints[:, :, 2:] > 0
        moved = _flipped_points(keypoints[:, :, :2], out_hw, lr[:, None], ud[:, None])
        keypoints = np.where(seen, np.concatenate([moved, keypoints[:, :, 2:]], axis=2), 0.0)
        if lr.any():
            if catalog.keypoints is None or not catalog.keypoints.flip_idx:
                raise UsageError("keypoints must have a flip_idx to be mirrored, got none; set fliplr=0, or give the dataset one")
            keypoints = outline.mirror_keypoints(keypoints, np.array(catalog.keypoints.flip_idx, np.int64), lr)
    cls = np.zeros(n, np.int32) if single_cls else objects.cls
    return Labels(
        offsets=ragged.offsets_of(np.bincount(slot, minlength=len(draws))),
        cls=cls.astype(np.int32),
        xyxy_px=_flipped_boxes(objects.xyxy, out_hw, lr, ud).astype(np.float32),
        instance=objects.instance,
        kind=objects.kind,
        ring_offsets=ring_offsets,
        point_offsets=point_offsets,
        points_px=points.astype(np.float32),
        keypoints_px=keypoints.astype(np.float32),
        xywhr_px=xywhr.astype(np.float32),
    )


def _gains(hsv: F64, policy: Policy) -> F32:
    out = np.zeros((len(hsv), 4))
    out[:, 1] = 1.0
    if policy.hue == "add":
        out[:, 0] = hsv[:, 0]
    else:
        out[:, 1] = 1 + hsv[:, 0]
    out[:, 2:] = 1 + hsv[:, 1:]
    return out.astype(np.float32)


def _flipped_boxes(xyxy: npt.NDArray[np.generic], out_hw: tuple[int, int], lr: Bool, ud: Bool) -> npt.NDArray[np.generic]:
    h, w = out_hw
    out = xyxy
    for axis, (size, flip) in enumerate(((w, lr), (h, ud))):
        if flip.any():
            out = xyxy.copy() if out is xyxy else out
            low, high = xyxy[:, axis], xyxy[:, axis + 2]
            out[:, axis], out[:, axis + 2] = np.where(flip, size - high, low), np.where(flip, size - low, high)
    return out


def _flipped_points(points: F64, out_hw: tuple[int, int], lr: Bool, ud: Bool) -> F64:
    h, w = out_hw
    out = points.copy()
    out[..., 0] = np.where(lr, w - points[..., 0], points[..., 0])
    out[..., 1] = np.where(ud, h - points[..., 1], points[..., 1])
    return out
