"""Labels drawn onto a picture so that a person can judge them: boxes, outlines, masks with their holes, keypoints, names.

A drawing maps picture to canvas by ``canvas = picture * gain + origin``, both in pixel edges (see ``fastdata.boxes``): an edge at
x lies between the pixels x - 1 and x, at any size of the drawing.

Signs: a colour is a class. Outlines are filled translucently (even-odd for a mask, so holes stay open). A crowd is hatched and
has a dashed border; an object that its dataset calls difficult has a dashed border. A keypoint is a disc where it is visible, a
circle where it is hidden; its colour says on which side of a left-right pair it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata.boxes import F64
from fastdata.catalog import Keypoints
from fastdata.labels import CROWD, DIFFICULT, MASK, Instances
from fastdata.paint import (
    HALO,
    HALO_ALPHA,
    U8,
    Colour,
    class_colour,
    corners,
    disc,
    fill,
    put_text,
    stroke,
    text_colour,
    text_mask,
)

FILL_ALPHA = 0.30
HATCH_ALPHA = 0.60

SIDES: tuple[Colour, Colour, Colour] = ((255, 138, 20), (40, 200, 255), (255, 255, 255))
"""Keypoints that come first in their left-right pair, those that come second, and those without a partner."""

MAX_NAME = 24
"""Longer class names are cut when they stand in a picture."""

MAX_COST = 0.6
"""A name is left out if every place for it hides more than this share of other objects' boxes."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a picture lies on a canvas."""

    origin_px: tuple[float, float]
    """x, y of the picture's upper left corner."""
    gain: tuple[float, float]
    """Canvas pixels per picture pixel, in x and y."""

    def __call__(self, points_px: npt.NDArray[np.floating]) -> F64:
        """Carry (..., 2) points of the picture to the canvas."""
        on_canvas: F64 = np.asarray(points_px, np.float64) * np.array(self.gain) + np.array(self.origin_px)
        return on_canvas


def draw_labels(
    canvas: U8,
    place: Placement,
    instances: Instances,
    names: Sequence[str],
    keypoints: Keypoints | None,
    *,
    line_px: float,
    text_px: int,
) -> int:
    """Draw the labels of one picture.

    Args:
        canvas: (H, W, 3) RGB, changed in place.
        place: Where the picture lies on it.
        instances: In pixels of the picture.
        names: Class names by index.
        keypoints: What the keypoints are.
        line_px: Width of lines on the canvas.
        text_px: Size of names on the canvas; 0 for none.

    Returns:
        How many names found no place where they would not hide other objects.
    """
    n = len(instances)
    if n == 0:
        return 0
    xyxy = instances.xyxy_px.astype(np.float64)
    by_size = np.argsort(-(xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1]), kind="stable")  # small ones on top
    rings = [[place(ring) for ring in instances.parts(i)] for i in range(n)]
    boxes = [place(corners(box)) for box in xyxy]
    for i in by_size:
        colour, flags = class_colour(int(instances.cls[i])), int(instances.flags[i])
        shape = rings[i] or ([boxes[i]] if flags & CROWD else [])
        if shape:
            crowd = bool(flags & CROWD)
            even_odd = int(instances.kind[i]) == MASK
            fill(canvas, shape, colour, HATCH_ALPHA if crowd else FILL_ALPHA, even_odd=even_odd, hatch=crowd)
    for i in by_size:
        colour, flags = class_colour(int(instances.cls[i])), int(instances.flags[i])
        stroke(canvas, rings[i] or [boxes[i]], colour, line_px, dashed=bool(flags & (CROWD | DIFFICULT)))
    if keypoints is not None:
        for points in instances.keypoints_px:
            _draw_keypoints(canvas, place, points, keypoints, line_px)
    if text_px == 0:
        return 0
    texts = [_label(names, int(c), int(f)) for c, f in zip(instances.cls, instances.flags, strict=True)]
    colours = [class_colour(int(c)) for c in instances.cls]
    bounds = np.array([[b[0, 0], b[0, 1], b[2, 0], b[2, 1]] for b in boxes])
    return _draw_names(canvas, bounds, texts, colours, by_size[::-1], text_px)


def side_of(keypoint: int, keypoints: Keypoints) -> int:
    """Return 0 or 1 for the first or second of a left-right pair, 2 for a keypoint without a partner."""
    partner = keypoints.flip_idx[keypoint] if keypoints.flip_idx else keypoint
    return 2 if partner == keypoint else int(keypoint > partner)


def _draw_keypoints(canvas: U8, place: Placement, points: npt.NDArray[np.float32], keypoints: Keypoints, line_px: float) -> None:
    at = place(points[:, :2])
    seen = points[:, 2]
    for a, b in keypoints.skeleton:
        if seen[a] > 0 and seen[b] > 0:
            sides = {side_of(a, keypoints), side_of(b, keypoints)}
            side = min(sides - {2}, default=2) if len(sides) < 3 and sides != {0, 1} else 2
            visible = seen[a] > 1 and seen[b] > 1
            stroke(canvas, [at[[a, b]]], SIDES[side], line_px * 0.8, closed=False, dashed=not visible, alpha=0.9)
    radius = 1.5 * line_px
    for k in np.flatnonzero(seen > 0):
        circle = disc(at[k], radius)
        colour = SIDES[side_of(int(k), keypoints)]
        if seen[k] > 1:
            fill(canvas, [disc(at[k], radius + 0.8)], HALO, HALO_ALPHA * 1.6)
            fill(canvas, [circle], colour, 1.0)
        else:
            stroke(canvas, [circle], colour, line_px * 0.7)


def printable(text: str) -> str:
    """Return text that any font and terminal can take: bytes that are no UTF-8 and control characters become question marks."""
    clean = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c.isprintable() and c != "\ufffd" else "?" for c in clean)


def elide(text: str, limit: int) -> str:
    """Cut the middle out of text longer than ``limit``; its end, which tells files apart, keeps two thirds."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) * 2 // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def _label(names: Sequence[str], cls: int, flags: int) -> str:
    name = elide(printable(names[cls]), MAX_NAME)
    return name + (" (crowd)" if flags & CROWD else " (difficult)" if flags & DIFFICULT else "")


def _draw_names(
    canvas: U8, boxes: F64, texts: Sequence[str], colours: Sequence[Colour], order: npt.NDArray[np.intp], text_px: int
) -> int:
    """Write names beside their boxes, smallest box first, where they hide least."""
    height, width = canvas.shape[:2]
    area = np.maximum((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]), 1e-9)
    taken = np.zeros((0, 4))
    left_out = 0
    for i in order:
        mask = text_mask(texts[i], text_px)
        w, h = mask.shape[1] + 5, mask.shape[0]
        plates = _places(boxes[i], w, h, width, height)
        cost = _overlap(plates, boxes) / area  # (places, n)
        own = cost[:, i].copy()
        cost[:, i] = 0
        total = cost.sum(axis=1) + 0.4 * own + 0.02 * np.arange(len(plates))
        if len(taken):
            total[(_overlap(plates, taken) > 0).any(axis=1)] = np.inf
        best = int(np.argmin(total))
        if total[best] > MAX_COST:
            left_out += 1
            continue
        taken = np.concatenate([taken, plates[best : best + 1]])
        x, y = int(plates[best, 0]), int(plates[best, 1])
        canvas[y : y + h, x : x + w] = colours[i]
        put_text(canvas, (x + 3, y), texts[i], text_px, text_colour(colours[i]))
    return left_out


def _places(box: F64, w: int, h: int, width: int, height: int) -> F64:
    """Return (9, 4) rectangles for a plate of w x h beside or in a box, best first, moved into the canvas."""
    x0, y0, x1, y1 = box
    left, right = x0 - 1, x1 - w + 1
    above, below = y0 - h - 1, y1 + 1
    xy = np.array(
        [
            *((left, above), (x0, y0), (left, below)),
            *((right, above), (x1 - w, y0), (right, below)),
            *((x0, y1 - h), (x0 - w - 1, y0), (x1 + 1, y0)),
        ]
    )
    xy = np.rint(xy).clip(0, np.array([max(width - w, 0), max(height - h, 0)]))
    return np.concatenate([xy, xy + np.array([w, h])], axis=1)


def _overlap(a: F64, b: F64) -> F64:
    """Return (n, m) areas that n boxes have in common with m boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    common: F64 = np.maximum(high - low, 0).prod(axis=2)
    return common
