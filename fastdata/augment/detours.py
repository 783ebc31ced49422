"""Ways along a border that enclose nothing, and how a cut outline does without them.

Cutting a ring at a rectangle, one border after another, joins the places where the ring leaves and comes back by a way along the
border. Between two arms that is a bridge, and harmless: it ends at true points of the object. But where the ring went around a
corner outside, the way leads to that corner and back, where the object is not. Filled, it covers nothing; but the object's extent
would reach there, and does wherever such a ring is turned afterwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def without_detours(ring: F64, rect_xyxy: F64) -> F64:
    """Return a ring that covers the same (even-odd) and keeps to the extent of what it covers.

    The ring's chains of sides inside the rectangle stay. Their ends, in order around the border, are where cover begins and ends
    by turns; so joining each to the next one over the covered stretch closes them to one or more rings. Several are returned
    as one, joined from first point to first point and back.

    Args:
        ring: (v, 2) within the rectangle, with a side that does not run along its border.
        rect_xyxy: (4,)

    Returns:
        (u, 2)
    """
    chains = _chains(ring, rect_xyxy)
    if not chains:
        return ring
    ends = _around(np.array([point for chain in chains for point in (chain[0], chain[-1])]), rect_xyxy)
    order = np.argsort(ends, kind="stable").tolist()
    if _covers_start(ring, rect_xyxy, ends[order]):
        order = [*order[1:], order[0]]
        ends[order[-1]] += 4  # over the upper left corner
    partner: dict[int, int] = {}
    way: dict[int, list[F64]] = {}
    for a, b in zip(order[0::2], order[1::2], strict=True):
        partner[a], partner[b] = b, a
        way[a] = _corners_between(float(ends[a]), float(ends[b]), rect_xyxy)
        way[b] = way[a][::-1]

    loops: list[list[F64]] = []
    left = set(range(len(chains)))
    while left:
        at = start = 2 * min(left)
        loop: list[F64] = []
        while True:
            chain, is_last = divmod(at, 2)
            left.discard(chain)
            loop.extend(chains[chain][::-1] if is_last else chains[chain])
            loop.extend(way[at ^ 1])
            at = partner[at ^ 1]
            if at == start:
                break
        loops.append(loop)
    joined = [*loops[0], *(point for loop in loops[1:] for point in (loops[0][0], *loop, loop[0]))]
    return np.array(joined)


def _chains(ring: F64, rect: F64) -> list[list[F64]]:
    """Return the longest runs of sides that do not run along the border, as lists of points."""
    at = ring[:, [0, 1, 0, 1]] == rect
    is_along = (at & np.roll(at, -1, axis=0)).any(axis=1)
    if not is_along.any() or is_along.all():
        return []
    first = int(np.flatnonzero(is_along)[0]) + 1  # begin after a side along the border, so that no run is torn
    chains: list[list[F64]] = []
    for i in range(first, first + len(ring)):
        here, there = i % len(ring), (i + 1) % len(ring)
        if not is_along[here]:
            if is_along[here - 1]:
                chains.append([ring[here]])
            chains[-1].append(ring[there])
    return chains


def _around(points: F64, rect: F64) -> F64:
    """Return how far along the border points on it lie, in sides: 0 at the upper left, clockwise on the screen, below 4."""
    x, y = ((points - rect[:2]) / (rect[2:] - rect[:2])).T
    on_top, on_right, on_bottom = points[:, 1] == rect[1], points[:, 0] == rect[2], points[:, 1] == rect[3]
    out: F64 = np.select([on_top, on_right, on_bottom], [x, 1 + y, 3 - x], 4 - y) % 4
    return out


def _covers_start(ring: F64, rect: F64, ends: F64) -> bool:
    """Tell whether the stretch from the last of the sorted ends over 0 to the first is covered."""
    # Any stretch of some length will do, for cover comes and goes by turns.
    lengths = np.diff(ends, append=ends[0] + 4)
    widest = int(lengths.argmax())
    place = float(ends[widest] + lengths[widest] / 2) % 4
    if place % 1 == 0:  # not on a corner
        place = (place + lengths[widest] / 8) % 4
    side, share = divmod(place, 1.0)
    axis = int(side) % 2
    value = rect[axis] + (share if side < 2 else 1 - share) * (rect[axis + 2] - rect[axis])
    on_side = ring[:, 1 - axis] == rect[[1, 2, 3, 0][int(side)]]
    a, b = ring[:, axis], np.roll(ring[:, axis], -1)
    runs_over = on_side & np.roll(on_side, -1) & ((a < value) != (b < value))
    is_covered = int(runs_over.sum()) % 2 == 1
    return is_covered ^ ((len(ends) - 1 - widest) % 2 == 1)


def _corners_between(first: float, last: float, rect: F64) -> list[F64]:
    """Return the corners on the way clockwise from one place of the border to another; both in sides."""
    corners = rect[[[0, 1], [2, 1], [2, 3], [0, 3]]]
    return [corners[n % 4] for n in range(8) if first < n < last]
