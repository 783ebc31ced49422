"""How far renderers may be from the reference, and the reference from the trainers: every such number, and why it is that.

Numbers are levels of 0..255. ``levels`` bounds every pixel, by argument: it must hold for noise, where neighbours differ by 255.
``mean`` bounds the average over a batch, so that a systematic error is seen which no single pixel betrays: half a pixel of shift
is 4 to 80 levels on average, one wrong rounding 0.25 to 0.5. Measured values are those of ``tests/render``, on noise and on
photographs, which are kinder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe

Which = Literal["cpu", "cpu_colour", "cuda", "trainer", "trainer_mixup", "trainer_32nds", "trainer_colour"]
Bool = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Bounds on the difference of two batches of pixels."""

    levels: float
    """Largest difference of any value."""
    mean: float
    """Largest mean of the absolute differences."""
    why: str
    """What makes the difference, as an explanation of a failure."""


TOLERANCES: dict[Which, Tolerance] = {
    # Weights across are bytes that add up to 255: the weighed place is off by up to 1/510 px, so by 255 / 510 = 0.5 level.
    # Weights down have 15 bits, rows 128 steps a level, blends 15 bits: 0.02 more. So after rounding 1. Measured: 1, mean 0.09 on
    # noise.
    "cpu": Tolerance(1, 0.12, "weights in whole 255ths"),
    # Gains enlarge what comes in. With sat_mul m, val_mul v and a turn whose part beyond whole sixths is d <= 1/2 of one, a
    # channel becomes v (V (1 - m + m d) + smallest (2 m - m d) - m middle) at worst: 10 times the error of one channel for m = 2
    # and v = 2, 8 times within the default ranges (1.7, 1.4, 0.09). So 0.52 becomes 5.2, and after rounding 6. Measured: 6 for
    # m = v = 2, 4 within the default ranges; mean 0.15.
    "cpu_colour": Tolerance(6, 0.2, "gains enlarge what whole 255ths leave, up to ten times"),
    # Places are float32, 1/4096 px off at worst: 0.06 level where neighbours differ by 255, and ten times that after gains (see
    # above) for pixels of such places. So rounding may fall the other way: 1.
    "cuda": Tolerance(1, 0.02, "places and sums in float32"),
    # Both stages are the trainers' own operations on 8 bits, and OpenCV's warp with exact places (see ``opencv_warp``) rounds
    # once: what is left is its float32. Measured: 1 level, mean 0.001.
    "trainer": Tolerance(1, 0.05, "OpenCV's warp sums in float32"),
    # Rounded groups are blended and then truncated, where the reference rounds once: one level lower for half of the values.
    "trainer_mixup": Tolerance(2, 0.75, "the trainers' MixUp truncates"),
    # OpenCV's older warp rounds places to 1/32 px: off by up to 1/64 px an axis, 2 * 255 / 64 = 8 levels, and a rounding.
    # Measured with places rounded that way: 7 levels, mean 0.8 on noise, 2 levels and 0.02 on photographs.
    "trainer_32nds": Tolerance(9, 1.0, "OpenCV's older warp rounds places to 1/32 px"),
    # 8-bit HSV keeps hue in steps of 1/180 turn. Rounding and then truncating in a table leaves it up to 1.5 steps off, which are
    # 255 * 6 / 180 * 1.5 = 12.75 levels of the middle channel; saturation and value, rounded and truncated likewise, 1.5 levels
    # each; and the rounding before, enlarged as above, 4, or 12 after a MixUp. Measured on whole pixels: 12 levels, mean 1.55 on
    # noise, 10 and 0.71 on photographs.
    "trainer_colour": Tolerance(28, 2.0, "the trainers' hue has 180 steps, and each gain truncates to whole levels"),
}

EDGE_PX = 1 / 512
"""A pixel whose centre is this close to the outline of a mask may be painted by one renderer and not by another. Outlines are
float32: a coordinate of up to 1,280 px has steps of 1/8192 px, and the crossing of an edge with a row takes six operations."""

MASK_SHARE = {1: 0.25, 2: 0.2, 4: 0.12, 8: 0.08}
"""Largest share of the boundary pixels (those with an unequal pixel among their eight neighbours) of instance masks that differ
from the trainers', by ratio. They cut corners to whole pixels, towards zero, and fill the border of the outline too; then they
shrink bilinearly from the four pixels in the middle of each block and round half up. So their masks are about half a pixel larger
all around, at full size. Measured on 240 outlines of 10 to 120 px: 0.19, 0.15, 0.084, 0.047 of the boundary pixels, and an area
2.3 to 3.5 % above that of the outlines, where ours is 0.00 to 0.03 % off."""


def differs(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8], which: Which, ignore: Bool | None = None) -> str | None:
    """Compare two batches of pixels.

    Args:
        a: (..., H, W), channels before the last two axes.
        b: Of the same shape.
        which: What they come from, a key of :data:`TOLERANCES`.
        ignore: Pixels to leave out, of a shape that fits; see :func:`near_outlines`.

    Returns:
        ``None``, or what is wrong: how much, how often, where first, and what would have been fine.
    """
    if a.shape != b.shape:
        return f"both must be of the same shape, got {a.shape} and {b.shape}"
    allowed = TOLERANCES[which]
    off = np.abs(a.astype(np.int16) - b)
    if ignore is not None:
        off = np.where(np.broadcast_to(ignore, off.shape), 0, off)
    worst, mean = int(off.max(initial=0)), float(off.mean()) if off.size else 0.0
    if worst <= allowed.levels and mean <= allowed.mean:
        return None
    at = tuple(int(n) for n in np.unravel_index(int(off.argmax()), off.shape))
    return (
        f"levels must differ by at most {allowed.levels:g}, and by {allowed.mean:g} on average ({allowed.why}), got {worst} and "
        f"{mean:.3f}: "
        f"{int((off > allowed.levels).sum())} of {off.size} values are too far off, the worst at {at}: {a[at]} and {b[at]}"
    )


def near_outlines(recipe: Recipe, within_px: float = EDGE_PX) -> Bool:
    """Tell which pixels have their centre so close to the outline of a mask that renderers may disagree.

    Returns:
        (B, 1, H, W).
    """
    height, width = recipe.out_hw
    near = np.zeros((len(recipe), 1, height, width), np.bool_)
    for slot in range(len(recipe)):
        shapes = recipe.shape_offsets[recipe.group_offsets[slot : slot + 2]]
        first, last = recipe.shape_ring_offsets[shapes].tolist()
        for ring in range(first, last):
            a = recipe.mask_points_px[recipe.ring_point_offsets[ring] : recipe.ring_point_offsets[ring + 1]].astype(np.float64)
            for p, q in zip(a, np.roll(a, -1, axis=0), strict=True):
                x0, y0 = (int(v) for v in np.clip(np.floor(np.minimum(p, q)) - 1, 0, (width, height)))
                x1, y1 = (int(v) for v in np.clip(np.ceil(np.maximum(p, q)) + 1, 0, (width, height)))
                centre = np.stack(np.meshgrid(np.arange(x0, x1) + 0.5, np.arange(y0, y1) + 0.5), axis=-1)
                along = np.clip((centre - p) @ (q - p) / max(float((q - p) @ (q - p)), 1e-30), 0, 1)
                gap = np.linalg.norm(centre - p - along[..., None] * (q - p), axis=-1)
                near[slot, 0, y0:y1, x0:x1] |= gap <= within_px
    return near


def opencv_warp() -> Which:
    """Return which of OpenCV's warps is at work here: it depends on the version and the processor."""
    import cv2

    # 64 levels a pixel and just over 1/64 px of shift: one level, or two where places come in steps of 1/32 px
    ramp: Any = np.tile(np.array([0, 64, 128, 192], np.uint8), (4, 1))
    shift = np.array([[1, 0, -1 / 64 - 1 / 1024], [0, 1, 0]])
    shifted = cv2.warpAffine(ramp, shift, (4, 4), flags=cv2.INTER_LINEAR)
    return "trainer" if shifted[1, 1] - ramp[1, 1] == 1 else "trainer_32nds"
