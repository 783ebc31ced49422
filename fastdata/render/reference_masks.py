"""The definition of instance masks: what ``fastdata.render.masks`` must give bit for bit, in NumPy, one object after another.

The mask of an object at ratio r has H // r x W // r pixels, and the outline is shrunk by that very factor per axis. A pixel is
set if its centre lies in the outline as ``fastdata.masks`` fills it: MASK even-odd over all rings, any other kind the union of
its rings. An object without an outline has its box for one.

In the overlap form the pixel of slot s has the value k where the k-th object of the slot is, 0 where none is, and objects are
numbered by the area of their outlines, largest first, so that a smaller object lies over a larger one. The area is measured on
the outline itself, in the frame of the output: the order is the same at every ratio. Areas that differ by less than 1/256 px² may
count as equal, and equal ones keep the order of the labels.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Labels
from fastdata.labels import MASK
from fastdata.masks import rings_to_mask

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

AREA_STEPS = 256
"""Steps of a px² in which areas are compared. Two equal outlines at two places differ by rounding, about 1e-9 px² after a warp:
without the steps that would decide which lies on top, and differently on the two sides of a mirror. 1/256 px² is the area of no
object, so nothing that can be seen depends on it."""

CROSSING_LINES = 16
"""Lines on which a slab is measured where edges cross in it; one line is exact elsewhere."""

MAX_NUMBER = 255
"""Largest number of objects of a slot that fit a byte."""


def overlap_masks(labels: Labels, out_hw: tuple[int, int], ratio: int) -> tuple[npt.NDArray[np.uint8 | np.int32], I64]:
    """As :func:`fastdata.render.masks.overlap_masks`."""
    alone = separate_masks(labels, out_hw, ratio)
    counts = np.diff(labels.offsets)
    masks = np.zeros((len(counts), *alone.shape[1:]), np.uint8 if counts.max(initial=0) <= MAX_NUMBER else np.int32)
    order = []
    for slot, (first, last) in enumerate(itertools.pairwise(labels.offsets.tolist())):
        areas = [area_steps(units_of(labels, i)) for i in range(first, last)]
        ranked = first + np.argsort(-np.array(areas, np.int64), kind="stable")
        for number, i in enumerate(ranked.tolist(), 1):
            masks[slot][alone[i] > 0] = number
        order += ranked.tolist()
    return masks, np.array(order, np.int64)


def separate_masks(labels: Labels, out_hw: tuple[int, int], ratio: int) -> U8:
    """As :func:`fastdata.render.masks.separate_masks`."""
    small_hw = (out_hw[0] // ratio, out_hw[1] // ratio)
    scale = np.array([small_hw[1] / out_hw[1], small_hw[0] / out_hw[0]])
    masks = np.zeros((len(labels), *small_hw), np.uint8)
    for i in range(len(labels)):
        for unit in units_of(labels, i):
            masks[i] |= rings_to_mask([ring * scale for ring in unit], small_hw)
    return masks


def units_of(labels: Labels, i: int) -> list[list[F64]]:
    """Return the outline of object ``i``: lists of rings, each list filled even-odd, the object being the union of the lists."""
    rings = [ring.astype(np.float64) for ring in labels.rings(i)]
    if not rings:
        x0, y0, x1, y1 = labels.xyxy_px[i].astype(np.float64).tolist()
        rings = [np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])]
    return [rings] if labels.kind[i] == MASK else [[ring] for ring in rings]


def area_steps(units: list[list[F64]]) -> int:
    """Return the area of an outline in steps of 1 / AREA_STEPS px².

    Between two neighbouring heights of corners all edges are straight, so the covered length changes linearly and the one in the
    middle gives the area exactly. Only where edges cross between them is that an approximation, taken on finer lines. (The
    shoelace formula would count a part twice where parts overlap, and the two halves of a figure of eight against each other.)
    """
    edges, owner = [], []
    for number, unit in enumerate(units):
        for ring in unit:
            edges.append(np.stack([ring, np.roll(ring, -1, axis=0)], axis=1))
            owner += [number] * len(ring)
    edge, unit_of_edge = np.concatenate(edges), np.array(owner)
    low, high = edge[..., 1].min(axis=1), edge[..., 1].max(axis=1)
    area = 0.0
    for y0, y1 in itertools.pairwise(np.unique(edge[..., 1]).tolist()):
        crossed = (low <= y0) & (high >= y1)
        (ax, ay), (bx, by) = edge[crossed].transpose(1, 2, 0)
        slope = (bx - ax) / (by - ay)
        sorting = np.argsort(ax + ((y0 + y1) / 2 - ay) * slope, kind="stable")
        at_ends = [np.diff((ax + (y - ay) * slope)[sorting]).min(initial=0) for y in (y0, y1)]
        lines = CROSSING_LINES if min(at_ends) < -1e-6 else 1
        for line in range(lines):
            x = ax + (y0 + (line + 0.5) * (y1 - y0) / lines - ay) * slope
            area += _covered(x, unit_of_edge[crossed]) * (y1 - y0) / lines
    return round(area * AREA_STEPS)


def _covered(x: F64, unit: I64) -> float:
    """Return how much of a line lies within any unit, each of which it enters and leaves in turn."""
    inside: set[int] = set()
    length = 0.0
    at = np.argsort(x, kind="stable").tolist()
    for here, there in itertools.pairwise(at):
        inside ^= {int(unit[here])}
        if inside:
            length += float(x[there] - x[here])
    return length
