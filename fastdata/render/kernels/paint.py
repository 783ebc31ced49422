"""Paint a group's row over a slot's row, within its clip rectangle and its shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.render.kernels.compiled import part
from fastdata.render.kernels.lanes import WIDTH, add, all_lanes, bit_and, product_q15, sub
from fastdata.render.kernels.memory import load_v16, store_v16

INSIDE = -1
"""All bits: where a row is painted."""


@part
def shape_rows(first: int, last: int, shape_rings: Any, ring_points: Any, points: Any, spans: Any) -> None:
    """Say which rows each shape may reach, half-open."""
    for s in range(first, last):
        top, bottom = np.inf, -np.inf
        for p in range(ring_points[shape_rings[s]], ring_points[shape_rings[s + 1]]):
            top, bottom = min(top, points[p, 1]), max(bottom, points[p, 1])
        spans[s, 0] = int(max(np.floor(min(top, 1e8)), 0.0))
        spans[s, 1] = int(min(np.ceil(max(bottom, -1e8)) + 1, 1e8))


@part
def clip_row(x0: int, x1: int, inside: Any) -> None:
    """Mark columns ``x0:x1``, and no others."""
    inside[:] = 0
    for j in range(max(x0, 0), min(x1, len(inside))):
        inside[j] = INSIDE


@part
def mask_row(
    y: int, first: int, last: int, shape_rings: Any, ring_points: Any, points: Any, spans: Any, width: int, inside: Any,
    toggles: Any,
) -> bool:  # fmt: skip
    """Keep of the marked columns those whose pixel centre lies in a shape, and say whether there may be any.

    Even-odd within a shape, the union of several; a centre on an edge belongs to the area right of or below it, as
    ``fastdata.masks.rings_to_mask`` has it.

    Args:
        y: Row.
        spans: From :func:`shape_rows`.
        inside: (>= W,) marks, changed.
        toggles: (2, W + 1) room for bytes.
    """
    middle = y + 0.5
    found = False
    toggles[1, :] = 0
    for s in range(first, last):
        if y < spans[s, 0] or y >= spans[s, 1]:
            continue
        low, high = width, -1
        for r in range(shape_rings[s], shape_rings[s + 1]):
            p0, p1 = ring_points[r], ring_points[r + 1]
            if p1 - p0 < 3:
                continue
            for p in range(p0, p1):
                q = p + 1 if p + 1 < p1 else p0
                ay, by = float(points[p, 1]), float(points[q, 1])
                if (ay <= middle) == (by <= middle):
                    continue
                share = (middle - ay) / (by - ay)
                x = float(points[p, 0]) + share * (float(points[q, 0]) - float(points[p, 0]))
                j = int(min(max(np.ceil(x - 0.5), 0.0), float(width)))
                if high < 0:
                    toggles[0, :] = 0
                toggles[0, j] ^= 1
                low, high = min(low, j), max(high, j)
        is_in = 0
        for j in range(low, high):
            is_in ^= toggles[0, j]
            toggles[1, j] |= is_in
        found = found or high > low
    for j in range(width):
        if toggles[1, j] == 0:
            inside[j] = 0
    return found


@part
def paint_row(over_at: int, row_at: int, row_nbytes: int, inside_at: int, weight: int) -> None:
    """``row += weight * (over - row)`` where it is marked.

    Args:
        over_at: Address of the group's row; its three channels are ``row_nbytes`` apart.
        row_at: Address of the slot's row, likewise.
        inside_at: Address of the marks.
        weight: In 1/32768; from 32768 on the group alone.
    """
    share = all_lanes(min(weight, 32_767))
    for channel in range(3):
        for j in range(0, row_nbytes, 2 * WIDTH):
            at = channel * row_nbytes + j
            below = load_v16(row_at + at)
            difference = sub(load_v16(over_at + at), below)
            if weight < 32_768:
                difference = product_q15(difference, share)
            store_v16(row_at + at, add(below, bit_and(difference, load_v16(inside_at + j))))
