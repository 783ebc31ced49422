"""Random outlines and warps, and slow, obvious answers about them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from fastdata.augment import ragged

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

W, H = 40, 30
FRAME = np.array([0.0, 0.0, W, H])

FREE = st.floats(-60, 100, width=32)
GRID = st.sampled_from([-20.0, -10.0, 0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 70.0])
"""Often on the border or in a corner of the frame."""


AROUND_A_CORNER = np.array([[30, 25], [50, 25], [50, -10], [5, -10], [5, -5], [45, -5], [45, 20], [30, 20]], np.float64)
"""Reaches in from the right at y 20..25 only, and runs around the upper right corner outside."""

AROUND_ALL = np.array(
    [
        [10, 5],
        [10, -9],
        [60, -9],
        [60, 50],
        [-9, 50],
        [-9, 10],
        [3, 10],
        [-3, 12],
        [-3, 40],
        [50, 40],
        [50, -5],
        [15, -5],
        [15, 5],
    ]
)
"""Two arms, one from the top and one from the left, on one body that runs around three corners outside."""


def ring_lists(shortest: int = 0, longest: int = 9, rings: int = 5) -> st.SearchStrategy[list[F64]]:
    """Lists of (v, 2) rings: free ones, and ones whose points like the frame's border."""
    point = st.one_of(st.tuples(FREE, FREE), st.tuples(GRID, GRID))
    ring = st.lists(point, min_size=shortest, max_size=longest).map(lambda p: np.array(p, np.float64).reshape(-1, 2))
    return st.lists(ring, max_size=rings)


def flat(rings: Sequence[F64]) -> tuple[F64, I64]:
    """Points and offsets of a list of rings."""
    points = np.concatenate([*rings, np.zeros((0, 2))])
    return points, ragged.offsets_of(np.array([len(ring) for ring in rings], np.int64))


def listed(points: F64, offsets: I64) -> list[F64]:
    """The rings of points and offsets."""
    return [points[a:b] for a, b in itertools.pairwise(offsets)]


def frames(n: int) -> F64:
    """The frame, n times."""
    return np.tile(FRAME, (n, 1))


def samples(nx: int = 53, ny: int = 47) -> tuple[F64, F64]:
    """Places in the frame that lie on no likely edge."""
    x, y = np.meshgrid(np.linspace(0.0137, W - 0.0171, nx), np.linspace(0.0119, H - 0.0153, ny))
    return x, y


def parity(ring: F64, x: F64, y: F64) -> npt.NDArray[np.bool_]:
    """Whether each place lies within an odd number of turns of the ring: a ray to the left, edge by edge."""
    inside = np.zeros(x.shape, np.bool_)
    for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if y0 != y1:
            inside ^= ((y0 <= y) != (y1 <= y)) & (x > x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    return inside


def seen_bounds(ring: F64) -> F64 | None:
    """The extent of what the frame shows of a ring in no special position: its points within, its crossings, covered corners."""
    found = [p for p in ring if (p >= FRAME[:2]).all() and (p <= FRAME[2:]).all()]
    for a, b in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        for axis, limit in ((0, 0.0), (0, W), (1, 0.0), (1, H)):
            if (a[axis] < limit) != (b[axis] < limit):
                other = a[1 - axis] + (limit - a[axis]) / (b[axis] - a[axis]) * (b[1 - axis] - a[1 - axis])
                if 0 <= other <= (H, W)[axis]:
                    found.append(np.array([limit, other] if axis == 0 else [other, limit]))
    corners = np.array([[0.0, 0], [W, 0], [W, H], [0, H]])
    found += list(corners[parity(ring, *corners.T)])
    return np.array([*np.min(found, axis=0), *np.max(found, axis=0)]) if found else None


def similarity(degrees: float, zoom: float, shift_xy: tuple[float, float], mirror: bool = False) -> F64:
    """A (3, 3) turn clockwise on the screen, zoom and shift, after a mirror left to right if wanted."""
    a, b = zoom * np.cos(np.radians(degrees)), zoom * np.sin(np.radians(degrees))
    turn = np.array([[a, -b, shift_xy[0]], [b, a, shift_xy[1]], [0.0, 0.0, 1.0]])
    return turn @ np.diag([-1.0 if mirror else 1.0, 1.0, 1.0])


def trainers_matrix(
    in_wh: tuple[float, float],
    out_wh: tuple[float, float],
    rng: np.random.Generator,
    *,
    degrees: float,
    shear: float,
    perspective: float,
) -> tuple[F64, float]:
    """Draw the trainers' warp T S R P C and its zoom."""
    centre, lens, shears, place = np.eye(3), np.eye(3), np.eye(3), np.eye(3)
    centre[:2, 2] = -in_wh[0] / 2, -in_wh[1] / 2
    lens[2, :2] = rng.uniform(-perspective, perspective, 2)
    zoom = float(rng.uniform(0.5, 1.5))
    shears[0, 1], shears[1, 0] = np.tan(np.radians(rng.uniform(-shear, shear, 2)))
    place[:2, 2] = rng.uniform(0.4, 0.6, 2) * out_wh
    return place @ shears @ similarity(-float(rng.uniform(-degrees, degrees)), zoom, (0, 0)) @ lens @ centre, zoom
