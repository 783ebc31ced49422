"""Matrices: how a canvas is looked at.

Column vectors, pixel edges on both sides: an edge at canvas x comes to lie at output x' = M x. Written out number by number:
a matrix product may round differently for one picture than for a batch of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


def matrices(
    canvas_wh: npt.NDArray[np.integer],
    out_hw: tuple[int, int],
    *,
    perspective: F64,
    degrees: F64,
    scale: F64,
    shear_deg: F64,
    translate: F64,
) -> F64:
    """Return the (S, 3, 3) matrices T S R P C, canvas to output, of S scenes.

    C moves the canvas' centre to the origin, P bends, R turns (counter-clockwise on the screen) and scales, S shears, T moves the
    origin to a place of the output.

    Args:
        canvas_wh: (S, 2)
        out_hw: Size of the output.
        perspective: (S, 2) in x and y, per pixel.
        degrees: (S,)
        scale: (S,)
        shear_deg: (S, 2) in x and y.
        translate: (S, 2) as shares of the output's width and height.
    """
    cx, cy = (canvas_wh / 2).T
    px, py = perspective.T
    angle = np.deg2rad(degrees)
    a, b = scale * np.cos(angle), scale * np.sin(angle)
    shear = np.tan(np.deg2rad(shear_deg))
    sx, sy = shear[:, 0], shear[:, 1]
    tx, ty = translate[:, 0] * out_hw[1], translate[:, 1] * out_hw[0]
    out = np.empty((len(scale), 3, 3))
    # rows of R P C; P has only the third row, which R leaves alone
    x0, x1, x2 = a, b, -(a * cx + b * cy)
    y0, y1, y2 = -b, a, b * cx - a * cy
    w0, w1, w2 = px, py, 1 - px * cx - py * cy
    for row, (own, other, by, to) in enumerate((((x0, x1, x2), (y0, y1, y2), sx, tx), ((y0, y1, y2), (x0, x1, x2), sy, ty))):
        for column, (p, q, w) in enumerate(zip(own, other, (w0, w1, w2), strict=True)):
            out[:, row, column] = p + by * q + to * w + 0.0  # no minus zero
    out[:, 2, 0], out[:, 2, 1], out[:, 2, 2] = w0 + 0.0, w1 + 0.0, w2
    return out


def flipped(matrix: F64, out_hw: tuple[int, int], flip_lr: Bool, flip_ud: Bool) -> F64:
    """Return (S, 3, 3) matrices followed by flips: x becomes W - x, y becomes H - y.

    Args:
        matrix: (S, 3, 3)
        out_hw: Size of the output.
        flip_lr: (S,)
        flip_ud: (S,)
    """
    out = matrix.copy()
    for row, (size, flip) in enumerate(((out_hw[1], flip_lr), (out_hw[0], flip_ud))):
        if flip.any():
            scenes = np.flatnonzero(flip)
            out[scenes, row] = size * matrix[scenes, 2] - matrix[scenes, row]
    return out


def mirrored_canvas(matrix: F64, canvas_wh: npt.NDArray[np.integer]) -> F64:
    """Return (S, 3, 3) matrices preceded by a left-right mirror of the canvas."""
    out = matrix.copy()
    out[:, :, 0] = -matrix[:, :, 0]
    out[:, :, 2] = matrix[:, :, 2] + canvas_wh[:, :1] * matrix[:, :, 0]
    return out
