"""Which objects of other pictures come into a sample: Copy-Paste, CutMix. (MixUp takes all.)"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastdata.augment import oriented, outline, ragged
from fastdata.augment.draws import CUTMIX, Draws
from fastdata.augment.keep import SHARE_BOX, SHARE_OUTLINE
from fastdata.augment.objects import Objects, merged, seen_keypoints
from fastdata.labels import MASK

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

FREE_SHARE = 0.30
"""Copy-Paste may hide less than this share of each object that is there (Ultralytics 8.4.190 ``CopyPaste``)."""

PAIRS_AT_ONCE = 1 << 15
"""Pairs of objects that are compared at once: 2 MiB, which the nearer caches hold."""


def mirrored(objects: Objects, canvas_wh: I64) -> Objects:
    """Return the objects as a left-right mirror of their (S, 2) canvases shows them."""
    width = canvas_wh[objects.scene, :1].astype(np.float64)
    of = objects.point_owner
    points = objects.points.copy()
    points[:, 0] = width[of, 0] - points[:, 0]
    x0, y0, x1, y1 = np.split(objects.xyxy, 4, axis=1)
    xyxy = np.concatenate([width - x1, y0, width - x0, y1], axis=1)
    return replace(objects, xyxy=xyxy, points=points)


def pasted(candidates: Objects, existing: Objects, share: float) -> Objects:
    """Choose the objects that Copy-Paste puts into scenes.

    Only objects with an outline come, and only into scenes that have outlines themselves. One may hide less than 30 percent of
    each object that is there. Of those that may come, those that hide least come first, and ``share`` of them come.

    Args:
        candidates: Ascending by the scene that they would come into.
        existing: Ascending by scene.
        share: 0 to 1.
    """
    scenes = int(max(candidates.scene.max(initial=-1), existing.scene.max(initial=-1))) + 1
    has_outline = np.zeros(scenes, np.bool_)
    has_outline[existing.scene[existing.has_outline]] = True
    worst = _most_hidden(candidates, existing, scenes)
    may_come = np.flatnonzero(candidates.has_outline & has_outline[candidates.scene] & (worst < FREE_SHARE))
    ordered = may_come[np.lexsort((worst[may_come], candidates.scene[may_come]))]
    scene = candidates.scene[ordered]
    starts = np.searchsorted(scene, np.arange(scenes + 1))
    wanted = np.rint(share * np.diff(starts))
    place = np.arange(len(ordered)) - starts[scene]
    return candidates.take(ordered[place < wanted[scene]])


def cutmix(draws: Draws, objects: Objects, scene_slot: I64, task: str) -> tuple[Objects, I64, Bool]:
    """Choose the region of each sample that CutMix replaces, and the objects that come with it.

    A region must touch no object that is there, and bring one: at least a tenth of it, or a hundredth in a sample with outlines.

    Returns:
        The objects of the samples, those that come cut to their region; (B, 4) regions; (B,) whether anything is replaced.
    """
    n = len(draws)
    slot = scene_slot[objects.scene]
    comes = draws.role[objects.scene] >= CUTMIX
    wanted = np.zeros(n, np.bool_)
    wanted[scene_slot[draws.role == CUTMIX]] = True
    has_outline = np.zeros(n, np.bool_)
    has_outline[slot[~comes & objects.has_outline]] = True

    regions = draws.cutmix_xyxy_px.astype(np.float64)
    is_free = np.ones(regions.shape[:2], np.bool_)
    there = np.flatnonzero(~comes)
    for k in range(regions.shape[1]):
        touched = there[_overlap(regions[slot[there], k], objects.xyxy[there]) > 0]
        is_free[slot[touched], k] = False
    free = is_free.sum(axis=1)
    nth = np.minimum((draws.cutmix_choice * free).astype(np.int64), np.maximum(free - 1, 0))
    chosen = (np.cumsum(is_free, axis=1) > nth[:, None]).argmax(axis=1)
    region = draws.cutmix_xyxy_px[np.arange(n), chosen]

    share = np.where(has_outline, SHARE_OUTLINE, SHARE_BOX)[slot]
    own_region = region[slot].astype(np.float64)
    brought = comes & (free[slot] > 0) & (_overlap(own_region, objects.xyxy) / _area(objects.xyxy) >= share)
    new = cut(objects.take(brought), own_region[brought], task)
    is_used = np.zeros(n, np.bool_)
    is_used[scene_slot[new.scene]] = True
    kept = objects.take(~comes)
    return (merged(kept, new) if len(new) else kept), region, is_used & wanted


def cut(objects: Objects, rects: F64, task: str) -> Objects:
    """Return what (N, 4) rectangles, one for each object, leave of them; an object of which nothing is left is left out."""
    if not len(objects):
        return objects
    if task == "obb":
        corners, xyxy = oriented.clip_corners(objects.points.reshape(-1, 4, 2), rects)
        objects = replace(objects, xyxy=xyxy, points=corners.reshape(-1, 2))
        return objects.take(xyxy[:, 2] > xyxy[:, 0])
    xyxy = outline.clip_boxes(objects.xyxy, rects)
    points, point_offsets = objects.points, objects.point_offsets
    if len(points):
        points, point_offsets = outline.clip_rings(points, point_offsets, rects[ragged.owners(objects.ring_offsets)])
        seen = outline.object_boxes(points, point_offsets, objects.ring_offsets, rects, objects.kind == MASK)
        xyxy = np.where(objects.has_rings[:, None], seen, xyxy)
    keypoints = seen_keypoints(objects.keypoints, rects) if objects.keypoints.shape[1] else objects.keypoints
    objects = replace(objects, xyxy=xyxy, points=points, point_offsets=point_offsets, keypoints=keypoints)
    return objects.take((xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1]))


def _most_hidden(candidates: Objects, existing: Objects, scenes: int) -> F64:
    """Return for each candidate the largest share of an object of its scene that it hides.

    Every candidate against every object: a mosaic of crowded pictures has millions of pairs, so only so many are in memory.
    """
    out = np.zeros(len(candidates))
    from_candidate, from_object = (np.searchsorted(of.scene, np.arange(scenes + 1)).tolist() for of in (candidates, existing))
    for (first, last), (i0, i1) in zip(itertools.pairwise(from_candidate), itertools.pairwise(from_object), strict=True):
        there = existing.xyxy[i0:i1]
        at_once = max(PAIRS_AT_ONCE // max(len(there), 1), 1)
        for j0 in range(first, last, at_once) if len(there) else ():
            own = candidates.xyxy[j0 : min(j0 + at_once, last), None]
            low, high = np.maximum(own[..., :2], there[:, :2]), np.minimum(own[..., 2:], there[:, 2:])
            side = np.maximum(high - low, 0.0)
            out[j0 : j0 + len(own)] = (side[..., 0] * side[..., 1] / _area(there)).max(axis=1)
    return out


def _overlap(a: F64, b: F64) -> F64:
    side = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    out: F64 = np.maximum(side, 0.0).prod(axis=1)
    return out


def _area(xyxy: F64) -> F64:
    out: F64 = (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1)
    return out
