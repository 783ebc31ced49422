"""The groups of a recipe: which canvases are painted over each other, how strongly, and where.

A sample is r A + (1 - r) B under MixUp, where A or B may have objects pasted onto them. Groups are painted one after the other,
so a paste into one of the two must not cover the other. Then B is painted first, pastes included; over it with weight r the parts
of A that nothing is pasted onto; and with weight r what is pasted onto A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata.augment import ragged
from fastdata.augment.draws import BASE, CUTMIX, MIXUP, Draws
from fastdata.augment.objects import Objects
from fastdata.labels import MASK
from fastdata.masks import mask_to_rings, rings_to_mask

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

Shape = list[F64]
"""Rings, filled even-odd."""


@dataclass(frozen=True, slots=True)
class Layers:
    """G groups of a recipe before flips; see ``fastdata.augment.recipe``."""

    scene: I64
    """(G,) whose tiles are seen."""
    slot: I64
    """(G,) ascending."""
    matrix: F64
    """(G, 3, 3)"""
    weight: F64
    """(G,)"""
    clip_xyxy: I64
    """(G, 4)"""
    is_masked: Bool
    """(G,)"""
    shape_offsets: I64
    """(G + 1,)"""
    shape_ring_offsets: I64
    """(S + 1,)"""
    ring_point_offsets: I64
    """(R + 1,)"""
    points: F64
    """(V, 2)"""


@dataclass(frozen=True, slots=True)
class Stamps:
    """What Copy-Paste paints onto scenes."""

    objects: Objects
    """Ascending by the scene that they are painted onto; outlines in the output."""
    lender: I64
    """(S,) scene whose tiles are seen in them."""
    matrix: F64
    """(S, 3, 3) how the lender's canvas is seen, by the scene that is painted onto."""


def plain_layers(matrix: F64, slot: I64, out_hw: tuple[int, int]) -> Layers:
    """One layer for each of S scenes, all over the output."""
    n = len(matrix)
    clip = np.zeros((n, 4), np.int64)
    clip[:, 2:] = out_hw[::-1]
    none = np.zeros(1, np.int64)
    return Layers(
        scene=np.arange(n),
        slot=slot,
        matrix=matrix,
        weight=np.ones(n),
        clip_xyxy=clip,
        is_masked=np.zeros(n, np.bool_),
        shape_offsets=np.zeros(n + 1, np.int64),
        shape_ring_offsets=none,
        ring_point_offsets=none,
        points=np.zeros((0, 2)),
    )


def stacked(
    draws: Draws, matrix: F64, out_hw: tuple[int, int], stamps: Stamps | None, region_xyxy: I64, is_cut: Bool
) -> Layers:
    """Put the layers of every sample in order.

    Args:
        draws: Roles of scenes, weights of MixUp.
        matrix: (S, 3, 3)
        out_hw: Size of the output.
        stamps: Of Copy-Paste.
        region_xyxy: (B, 4) that CutMix replaces.
        is_cut: (B,) whether it does.
    """
    scene_slot = draws.scene_slot
    role = draws.role.astype(np.int64)
    is_shown = (role == BASE) | (role == MIXUP) | ((role == CUTMIX) & is_cut[scene_slot])
    scenes = np.flatnonzero(is_shown)
    shapes = _shapes(stamps, is_shown, out_hw, scene_slot[role == MIXUP], scene_slot) if stamps is not None else {}
    onto = np.array(sorted(shapes), np.int64)

    # one row a layer: the scene that it belongs to, and whether it is that scene's stamp
    of = np.concatenate([scenes, onto])
    is_stamp = np.arange(len(of)) >= len(scenes)
    slot, part = scene_slot[of], role[of]
    has_mixup, is_stamped, base_stamped = (np.zeros(len(draws), np.bool_) for _ in range(3))
    has_mixup[scene_slot[role == MIXUP]] = True
    is_stamped[slot[is_stamp & (part < CUTMIX)]] = True
    base_stamped[slot[is_stamp & (part == BASE)]] = True
    second_first = (has_mixup & is_stamped)[slot]
    r = draws.mixup_weight[slot]
    weight = np.where((part == MIXUP) & ~second_first, 1 - r, np.where((part == BASE) & second_first, r, 1.0))
    is_holed = (part == BASE) & ~is_stamp & (has_mixup & base_stamped)[slot]
    order = np.lexsort((is_stamp, np.where((part == MIXUP) & second_first, -1, part), slot))

    frame = np.array([0, 0, out_hw[1], out_hw[0]])
    masks: list[list[Shape]] = []
    for row in order.tolist():
        if is_holed[row]:
            h, w = out_hw
            around = np.array([[0, 0], [w, 0], [w, h], [0, h]], np.float64)
            masks.append([[around, *(ring for shape in shapes[int(of[row])] for ring in shape)]])
        else:
            masks.append(shapes[int(of[row])] if is_stamp[row] else [])
    rings = [ring for mask in masks for shape in mask for ring in shape]
    stamp_matrix, lender = (stamps.matrix, stamps.lender) if stamps is not None else (matrix, np.arange(len(matrix)))
    scene = np.where(is_stamp, lender[of], of)[order]
    return Layers(
        scene=scene,
        slot=slot[order],
        matrix=np.where(is_stamp[:, None, None], stamp_matrix[of], matrix[of])[order],
        weight=weight[order],
        clip_xyxy=np.where((part >= CUTMIX)[:, None], region_xyxy[slot], frame)[order],
        is_masked=(is_stamp | is_holed)[order],
        shape_offsets=ragged.offsets_of(np.array([len(mask) for mask in masks], np.int64)),
        shape_ring_offsets=ragged.offsets_of(np.array([len(shape) for mask in masks for shape in mask], np.int64)),
        ring_point_offsets=ragged.offsets_of(np.array([len(ring) for ring in rings], np.int64)),
        points=np.concatenate([np.zeros((0, 2)), *rings]),
    )


def _shapes(stamps: Stamps, is_shown: Bool, out_hw: tuple[int, int], mixup_slots: I64, scene_slot: I64) -> dict[int, list[Shape]]:
    """Return the shapes of each scene onto which something is painted within the frame."""
    objects = stamps.objects
    found: dict[int, list[Shape]] = {}
    point_at, ring_at = objects.point_offsets.tolist(), objects.ring_offsets.tolist()
    for n, (scene, kind) in enumerate(zip(objects.scene.tolist(), objects.kind.tolist(), strict=True)):
        rings = [objects.points[point_at[p] : point_at[p + 1]] for p in range(ring_at[n], ring_at[n + 1])]
        rings = [ring for ring in rings if len(ring)]
        if rings and is_shown[scene]:
            found.setdefault(scene, []).extend([rings] if kind == MASK else [[ring] for ring in rings])
    mixed = set(mixup_slots.tolist())
    for scene, shapes in found.items():
        if len(shapes) > 1 and int(scene_slot[scene]) in mixed:
            found[scene] = [_union(shapes, out_hw)]
    return found


def _union(shapes: list[Shape], out_hw: tuple[int, int]) -> Shape:
    """Return one shape that covers the same pixels as some that may overlap, so that what it leaves is a shape too.

    Rings of shapes that lie apart, as most do, need only stand side by side; the others are filled and traced anew.
    """
    low = np.array([np.concatenate(shape).min(axis=0) for shape in shapes])
    high = np.array([np.concatenate(shape).max(axis=0) for shape in shapes])
    meets = ((low[:, None] <= high) & (low <= high[:, None])).all(axis=2)
    is_apart = meets.sum(axis=1) == 1  # it meets itself
    rings = [ring for shape, apart in zip(shapes, is_apart, strict=True) if apart for ring in shape]
    if is_apart.all():
        return rings
    mask = np.zeros(out_hw, np.uint8)
    for shape, apart in zip(shapes, is_apart, strict=True):
        if not apart:
            mask |= rings_to_mask(shape, out_hw)
    return rings + mask_to_rings(mask)
