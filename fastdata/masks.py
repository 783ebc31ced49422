"""Masks in their three forms: run lengths as COCO publishes them, (h, w) uint8 pictures of 0 and 1, and rings of pixel edges.

Invariant: ``rings_to_mask(mask_to_rings(mask), mask.shape) == mask`` for every mask, holes, diagonals and borders included.

A ring is (v, 2) float64 points x, y, closed without repeating the first. Filled even-odd: a pixel is set if its centre lies
within an odd number of rings, so a hole is one more ring. Run lengths count down the columns, background first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.uint8]

MAX_MASK_PIXELS = 178_956_970
"""Default limit of a decoded mask, the default limit of a picture; checked before anything is allocated."""

MAX_RUN_GROUPS = 12
"""Groups of five bits in one packed number: 60 bits, so that every number and its sign fit 64."""


def rle_to_mask(rle: Mapping[str, Any], *, max_pixels: int = MAX_MASK_PIXELS) -> Mask:
    """Decode run lengths.

    Args:
        rle: ``{"size": [h, w], "counts": ...}``; counts are a list of integers or the packed string of pycocotools.
        max_pixels: Largest h * w.

    Returns:
        (h, w), in column-major memory.

    Raises:
        ValueError: The size or the counts are no such thing, the picture is too large, or the runs do not fill it exactly.
    """
    size = rle.get("size")
    is_pair = isinstance(size, Sequence) and not isinstance(size, str | bytes) and len(size) == 2
    if not is_pair or not all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in size):  # type: ignore[union-attr]
        raise ValueError(f"size must be two whole numbers > 0, got {size!r:.80}")
    h, w = size  # type: ignore[misc]
    if h * w > max_pixels:
        raise ValueError(f"h * w must be at most {max_pixels}, got {h} x {w}")
    counts = rle.get("counts")
    if isinstance(counts, str | bytes):
        runs = _unpack_counts(counts)
    elif isinstance(counts, Sequence):
        runs = _listed_counts(counts)
    else:
        raise ValueError(f"counts must be a list or a string, got {counts!r:.80}")
    if len(runs) and (runs.min() < 0 or runs.max() > h * w):
        wrong = runs[(runs < 0) | (runs > h * w)][0]
        raise ValueError(f"every run must be 0..{h * w} pixels long, got {wrong}")
    # Each run is at most h * w and a string or list has fewer than 2**31 of them, so the sum cannot wrap around.
    if int(runs.sum()) != h * w:
        raise ValueError(f"runs must add up to h * w = {h * w}, got {int(runs.sum())}")
    values = (np.arange(len(runs)) & 1).astype(np.uint8)
    return np.repeat(values, runs).reshape(w, h).T


def _listed_counts(counts: Sequence[Any]) -> I64:
    for count in counts:
        if type(count) is not int and not (isinstance(count, float) and count.is_integer()):
            raise ValueError(f"counts must be whole numbers, got {count!r:.80}")
    try:
        return np.array([int(c) for c in counts], np.int64)
    except OverflowError as err:
        raise ValueError("counts must fit 64 bits") from err


def _unpack_counts(packed: str | bytes) -> I64:
    """Turn the packed string into run lengths.

    The format of pycocotools (common/maskApi.c, rleFrString): characters minus 48, five data bits each with the lowest first, bit
    32 says that more follow, bit 16 of the last is the sign. From the fourth on, a number is the difference to the one two places
    before. Read here and not by that library, which (2.0.11) hands out uninitialised memory where runs do not fill the picture.
    """
    try:
        raw = packed.encode("ascii") if isinstance(packed, str) else packed
    except UnicodeEncodeError as err:
        raise ValueError("packed counts must be ASCII") from err
    codes = np.frombuffer(raw, np.uint8).astype(np.int64) - 48
    if not len(codes):
        return np.zeros(0, np.int64)
    if codes.min() < 0 or codes.max() > 63:
        at = int(np.flatnonzero((codes < 0) | (codes > 63))[0])
        raise ValueError(f"packed counts must hold characters '0' to 'o', got {raw[at : at + 1]!r} at {at}")
    last = np.flatnonzero((codes & 32) == 0)
    if not len(last) or last[-1] != len(codes) - 1:
        raise ValueError("packed counts must not end within a number")
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    if lengths.max() > MAX_RUN_GROUPS:
        raise ValueError(f"packed counts must have at most {MAX_RUN_GROUPS} characters a number, got {int(lengths.max())}")
    shift = 5 * (np.arange(len(codes)) - np.repeat(first, lengths))
    numbers = np.add.reduceat((codes & 31) << shift, first)
    numbers -= ((codes[last] & 16) >> 4) << (5 * lengths)
    for start in (1, 2):  # odd and even places are two chains of differences; place 0 stands alone
        numbers[start::2] = np.cumsum(numbers[start::2])
    return numbers


def mask_to_rle(mask: npt.NDArray[Any]) -> dict[str, Any]:
    """Pack an (h, w) mask, non-zero meaning set, into ``{"size": [h, w], "counts": "..."}`` with ASCII text as counts."""
    from pycocotools import mask as coco_mask

    packed = coco_mask.encode(np.asfortranarray(mask != 0).view(np.uint8))
    return {"size": [int(x) for x in packed["size"]], "counts": packed["counts"].decode("ascii")}


def mask_to_rings(mask: npt.NDArray[Any]) -> list[F64]:
    """Trace the pixel edges between set and unset pixels.

    Args:
        mask: (h, w), non-zero meaning set.

    Returns:
        Rings with corners only, ordered by their topmost, then leftmost corner, where each begins. Outer rings run clockwise on
        the screen, holes the other way, so the signed areas add up to the number of set pixels. Where two set pixels touch at a
        corner only, the rings touch there and do not join.
    """
    # Every corner joins one horizontal and one vertical edge, and along a line of the grid corners begin and end edges in turn.
    # So the partners of a corner are its neighbours in row order (0-1, 2-3, ...) and in column order, known without walking.
    h, w = mask.shape
    padded = np.zeros((h + 2, w + 2), np.uint8)
    padded[1:-1, 1:-1] = mask != 0
    # code: (h + 1, w + 1), the four pixels around each grid point: 1 upper left, 2 upper right, 4 lower left, 8 lower right
    code = padded[:-1, :-1] | (padded[:-1, 1:] << 1) | (padded[1:, :-1] << 2) | (padded[1:, 1:] << 3)
    nodes_at = _NODES_AT[code]
    y, x = np.nonzero(nodes_at)
    if not len(y):
        return []
    at = code[y, x]
    count = nodes_at[y, x]
    y, x, at = np.repeat(y, count), np.repeat(x, count), np.repeat(at, count)
    second = np.zeros(len(y), np.bool_)
    second[1:] = (y[1:] == y[:-1]) & (x[1:] == x[:-1])
    # Two corners at one point: in row order the first owns the edge to the left. On the falling diagonal it turns up (it is the
    # corner of the upper left pixel) and comes first in column order too. On the rising one it turns down and comes last there.
    below = second ^ (at == _RISING)
    by_column = np.argsort((x * (h + 1) + y) * 2 + below)
    vertical = np.empty_like(by_column)
    vertical[by_column[0::2]], vertical[by_column[1::2]] = by_column[1::2], by_column[0::2]
    starts_hole = (padded[y + 1, x + 1] == 0).tolist()  # seen from a ring's topmost, leftmost corner
    order, ends = _walk(vertical.tolist(), starts_hole)
    points = np.stack([x, y], axis=1).astype(np.float64)[order]
    return [points[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


_FALLING, _RISING = 0b1001, 0b0110
"""The two diagonals: upper left with lower right, upper right with lower left."""

_NODES_AT: I64 = np.array([(c.bit_count() & 1) + 2 * (c in (_FALLING, _RISING)) for c in range(16)], np.int64)
"""Corners at a grid point by the code of the pixels around it."""


def _walk(vertical: list[int], starts_hole: list[bool]) -> tuple[list[int], list[int]]:
    """Follow horizontal partner (i ^ 1) and vertical partner in turn: all nodes ring by ring, and where each ring ends."""
    done = bytearray(len(vertical))
    order: list[int] = []
    ends: list[int] = []
    push = order.append
    for start in range(len(vertical)):
        if done[start]:
            continue
        node = start
        if starts_hole[start]:
            while not done[node]:
                other = vertical[node]
                done[node] = done[other] = 1
                push(node)
                push(other)
                node = other ^ 1
        else:
            while not done[node]:
                other = node ^ 1
                done[node] = done[other] = 1
                push(node)
                push(other)
                node = vertical[other]
        ends.append(len(order))
    return order, ends


def rings_to_mask(rings: Sequence[npt.NDArray[Any]], size_hw: tuple[int, int]) -> Mask:
    """Fill rings even-odd: 1 where the centre of the pixel lies within an odd number of them.

    A centre exactly on an edge belongs to the area right of or below it. Rings may cross themselves, each other and the border.

    Args:
        rings: (v, 2) each, finite.
        size_hw: Size of the mask.
    """
    h, w = size_hw
    mask = np.zeros((h, w), np.uint8)
    used = [np.asarray(ring, np.float64) for ring in rings if len(ring) >= 3]
    if not used or h == 0 or w == 0:
        return mask
    a = np.concatenate(used)
    b = np.concatenate([np.roll(ring, -1, axis=0) for ring in used])
    # An edge crosses the centre lines y = row + 0.5 with min(y) <= row + 0.5 < max(y).
    first = np.clip(np.ceil(np.minimum(a[:, 1], b[:, 1]) - 0.5), 0, h).astype(np.int64)
    stop = np.clip(np.ceil(np.maximum(a[:, 1], b[:, 1]) - 0.5), 0, h).astype(np.int64)
    crossings = np.maximum(stop - first, 0)
    if not crossings.any():
        return mask
    edge = np.repeat(np.arange(len(a)), crossings)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(crossings) - crossings, crossings) + first[edge]
    share = (row + 0.5 - a[edge, 1]) / (b[edge, 1] - a[edge, 1])  # 0..1 along the edge
    at_x = a[edge, 0] + share * (b[edge, 0] - a[edge, 0])
    column = np.clip(np.ceil(at_x - 0.5), 0, w).astype(np.int64)  # everything from here to the right changes sides
    top, left, bottom, right = int(row.min()), int(column.min()), int(row.max()) + 1, int(column.max())
    height, width = bottom - top, right - left + 1
    toggles = np.bincount((row - top) * width + (column - left), minlength=height * width)
    inside = np.bitwise_xor.accumulate((toggles & 1).astype(np.uint8).reshape(height, width), axis=1)
    mask[top:bottom, left:right] = inside[:, :-1]
    return mask


def polygons_to_mask(parts: Sequence[npt.NDArray[Any]], size_hw: tuple[int, int]) -> Mask:
    """Fill the union of the parts of a POLYGON: 1 where the centre of the pixel lies within any of them."""
    mask = np.zeros(size_hw, np.uint8)
    for part in parts:
        mask |= rings_to_mask([part], size_hw)
    return mask
