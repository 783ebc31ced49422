"""Which objects are still worth a label after a warp: the trainers' rule, with its limits as arguments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

EPS = 1e-16
"""Keeps a division by a side or an area of 0 a number (Ultralytics ``box_candidates``)."""

SHARE_BOX, SHARE_OUTLINE = 0.10, 0.01
"""Least share of the area that must be left, for samples of boxes and for samples with outlines, in Ultralytics 8.4.190."""


def is_kept(
    before_xyxy: F64,
    after_xyxy: F64,
    zoom: F64 | float,
    *,
    min_side_px: float,
    min_area_share: F64 | float,
    max_aspect: float,
) -> Bool:
    """Tell which objects stay: enough left in pixels and of its area, and no sliver.

    All four comparisons are strict (Ultralytics 8.4.190 ``box_candidates``)::

        w > min_side_px    h > min_side_px    w h / (area before + eps) > min_area_share    longer / (shorter + eps) < max_aspect

    Args:
        before_xyxy: (N, 4) boxes before the warp, clipped to the canvas (not to what of it comes out).
        after_xyxy: (N, 4) boxes after it, clipped to the frame; all zeros where nothing can be seen.
        zoom: Linear scale k of the warp, for all or (N,): the area before is counted k² times. Shear and perspective are left
            out, as in the trainers.
        min_side_px: Sides must be longer than this.
        min_area_share: More than this share of the area must be left; for all or (N,).
        max_aspect: The longer side must be less than so many times the shorter one.

    Returns:
        (N,)
    """
    w1, h1 = before_xyxy[:, 2] - before_xyxy[:, 0], before_xyxy[:, 3] - before_xyxy[:, 1]
    w2, h2 = after_xyxy[:, 2] - after_xyxy[:, 0], after_xyxy[:, 3] - after_xyxy[:, 1]
    share = w2 * h2 / (w1 * h1 * np.square(zoom) + EPS)
    aspect = np.maximum(w2 / (h2 + EPS), h2 / (w2 + EPS))
    out: Bool = (w2 > min_side_px) & (h2 > min_side_px) & (share > min_area_share) & (aspect < max_aspect)
    return out
