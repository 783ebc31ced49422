"""Published rows → finished instances: the one place where the rules on label geometry live.

Invariant: ``len(instances) + dropped == len(rows)``, every dropped or changed row has a :class:`Problem`, and what is returned
obeys the invariant of :class:`fastdata.labels.Instances` in pixels of the upright source picture.

A row is judged in this order, and the first rule that drops it names it: not-finite, negative-size, zero-area, outside. What is
left is clipped to the picture; reaching over the border by less than :data:`DUST_PX` is rounding, not a fault.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata import boxes
from fastdata.labels import BOX, MASK, OBB, Instances, Rows
from fastdata.problems import Problem

Bools = npt.NDArray[np.bool_]

Reports = list[tuple[int, Problem]]
"""Problems, each with the index of its row; -1 for the image itself."""

DUST_PX = 0.01
"""Six printed digits of a fraction leave up to 0.004 px on a picture of 8,000 px, so less than this is no statement of anybody.
Also the smallest side a stored box may have on a picture of up to 65,536 px; beyond, see :func:`_smallest_side`."""

LIMIT_PX = float(np.finfo(np.float32).max)
"""Largest coordinate: beyond it the store's numbers are infinite."""

LIMIT_AREA_PX2 = 1e18
"""Largest published area: far beyond any picture, and still a number after any resize."""

MIN_RING_PX2 = DUST_PX**2
"""Smallest area of an outline: that of the smallest box. A line has less, whatever its direction and rounding."""


def settle(rows: Rows, size_hw: tuple[int, int], *, key: str) -> tuple[Instances, list[Problem]]:
    """Apply the rules on geometry to the rows of one image.

    Args:
        rows: As published.
        size_hw: Size of the upright decoded picture.
        key: The image's key, for reports that belong to the image.

    Returns:
        The instances in pixels of the upright picture, and the problems in the order of the rows.
    """
    problems: Reports = []
    if rows.declared_hw is not None and rows.declared_hw != size_hw:
        problems.append((-1, _size_mismatch(rows, size_hw, key)))
    n = len(rows)
    keypoint_count = rows.keypoints.shape[1]
    if n == 0:
        return Instances.empty(keypoint_count), _in_row_order(problems)

    h, w = size_hw
    scale = np.array([w, h], np.float64) if rows.unit == "norm" else np.ones(2)
    with np.errstate(over="ignore"):  # what becomes infinite here is dropped as that
        points = rows.points * scale
        xyxy = rows.xyxy * np.concatenate([scale, scale])
    clean = _boxes_if_clean(rows, xyxy, points, size_hw)
    if clean is not None:
        keypoints = _settle_keypoints(rows, np.arange(n), scale, size_hw, problems)
        return _as_published(rows, clean, points, keypoints), _in_row_order(problems)
    finite_points: Bools = np.asarray((np.abs(points) <= LIMIT_PX).all(axis=1))  # NaN compares false
    kept: list[_Kept] = []
    for i in range(n):
        part, part_end = int(rows.part_offsets[i]), int(rows.part_offsets[i + 1])
        rings = [points[rows.point_offsets[p] : rows.point_offsets[p + 1]] for p in range(part, part_end)]
        first, last = rows.point_offsets[part], rows.point_offsets[part_end]
        finite = bool(finite_points[first:last].all())
        judged = _judge(rows, i, xyxy[i], rings, finite, size_hw, problems)
        if judged is not None:
            kept.append(judged)

    at = np.array([k.row for k in kept], np.int64)
    keypoints = _settle_keypoints(rows, at, scale, size_hw, problems)
    all_rings = [ring for k in kept for ring in k.rings]
    return (
        Instances(
            cls=rows.cls[at].astype(np.int32),
            xyxy_px=np.array([k.box for k in kept], np.float32).reshape(-1, 4),
            kind=np.array([k.kind for k in kept], np.uint8),
            flags=rows.flags[at].astype(np.uint8),
            original_id=rows.where[at].astype(np.int64),
            area_px=_settle_area(rows.area[at]),
            part_offsets=_offsets([len(k.rings) for k in kept]),
            point_offsets=_offsets([len(ring) for ring in all_rings]),
            points_px=np.concatenate(all_rings).astype(np.float32) if all_rings else np.zeros((0, 2), np.float32),
            keypoints_px=keypoints,
        ),
        _in_row_order(problems),
    )


def _boxes_if_clean(rows: Rows, xyxy: boxes.F64, points: boxes.F64, size_hw: tuple[int, int]) -> boxes.F64 | None:
    """Return the (n, 4) boxes if no rule changes any row, else None.

    Skips the judging of rows whose outcome is known: everything finite and inside, every side and every ring's area above its
    limit. Most images of most datasets are like that, and judging them row by row costs ten times as much.
    """
    h, w = size_hw
    if rows.part_offsets[-1] == 0 and rows.has_box.all() and not rows.kind.any():  # boxes alone
        cut = boxes.clip_xyxy(xyxy, size_hw)
        whole = (np.abs(cut - xyxy) <= DUST_PX).all() and (cut[:, 2:] - cut[:, :2] >= _smallest_side(size_hw)).all()
        return cut if whole else None  # NaN compares false
    if (rows.kind == MASK).any() or ((rows.kind == BOX) != (np.diff(rows.part_offsets) == 0)).any():
        return None
    sizes = np.diff(rows.point_offsets)
    if len(sizes) and sizes.min() < 3:
        return None
    box = xyxy
    if len(points):
        if not ((points >= 0) & (points <= np.array([w, h], np.float64))).all():  # NaN compares false
            return None
        nxt = np.arange(1, len(points) + 1)
        nxt[rows.point_offsets[1:] - 1] = rows.point_offsets[:-1]
        cross = points[:, 0] * points[nxt, 1] - points[nxt, 0] * points[:, 1]
        # Twice the area; twice the limit again, so that no rounding of this sum lets through what polygon_area does not.
        if not (np.abs(np.add.reduceat(cross, rows.point_offsets[:-1])) >= 4 * MIN_RING_PX2).all():
            return None
    if not rows.has_box.all():
        outlined = np.flatnonzero(~rows.has_box)
        if (np.diff(rows.part_offsets)[outlined] == 0).any():
            return None
        first = rows.point_offsets[rows.part_offsets[outlined]]
        # Rows without a box lie between rows with points of their own, so every segment ends where the next outline begins.
        last = rows.point_offsets[rows.part_offsets[outlined + 1]]
        cuts = np.stack([first, last], axis=1).reshape(-1)
        padded = np.concatenate([points, points[-1:]])
        box = xyxy.copy()
        box[outlined, :2] = np.minimum.reduceat(padded, cuts)[::2]
        box[outlined, 2:] = np.maximum.reduceat(padded, cuts)[::2]
    if not ((box >= 0) & (box <= np.array([w, h, w, h], np.float64))).all():
        return None
    return box if (box[:, 2:] - box[:, :2] >= _smallest_side(size_hw)).all() else None


def _as_published(rows: Rows, box: boxes.F64, points: boxes.F64, keypoints: npt.NDArray[np.float32]) -> Instances:
    return Instances(
        cls=rows.cls.astype(np.int32),
        xyxy_px=box.astype(np.float32),
        kind=rows.kind.astype(np.uint8),
        flags=rows.flags.astype(np.uint8),
        original_id=rows.where.astype(np.int64),
        area_px=_settle_area(rows.area),
        part_offsets=rows.part_offsets.astype(np.int64),
        point_offsets=rows.point_offsets.astype(np.int64),
        points_px=points.astype(np.float32),
        keypoints_px=keypoints,
    )


def scaled(instances: Instances, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> Instances:
    """Carry instances along when the picture is resized.

    Each axis has its own gain, because both sides are rounded to whole pixels.
    """
    if from_hw == to_hw:
        return instances
    gain_y, gain_x = to_hw[0] / from_hw[0], to_hw[1] / from_hw[1]
    gain = np.array([gain_x, gain_y], np.float64)
    limit = np.array([to_hw[1], to_hw[0]], np.float32)
    xyxy = (instances.xyxy_px.astype(np.float64) * np.concatenate([gain, gain])).astype(np.float32)
    points = (instances.points_px.astype(np.float64) * gain).astype(np.float32)
    keypoints = instances.keypoints_px.copy()
    keypoints[..., :2] = np.minimum((keypoints[..., :2].astype(np.float64) * gain).astype(np.float32), limit)
    is_obb_point = np.repeat(np.repeat(instances.kind == OBB, np.diff(instances.part_offsets)), np.diff(instances.point_offsets))
    points[~is_obb_point] = np.minimum(points[~is_obb_point], limit)  # rounding must not push an edge point over the edge
    return Instances(
        cls=instances.cls,
        xyxy_px=np.minimum(xyxy, np.concatenate([limit, limit])),
        kind=instances.kind,
        flags=instances.flags,
        original_id=instances.original_id,
        area_px=(instances.area_px.astype(np.float64) * gain_x * gain_y).astype(np.float32),
        part_offsets=instances.part_offsets,
        point_offsets=instances.point_offsets,
        points_px=points,
        keypoints_px=keypoints,
    )


def _smallest_side(size_hw: tuple[int, int]) -> float:
    """Return the smallest side of a box whose edges float32 tells apart anywhere in the picture, and after any resize of it.

    Neighbouring numbers below w are at most 2^-23 w apart, and at least 2^-24 w at its end. So twice the distance there is still
    one distance or more in a picture of any other width, which rounding cannot bring to nothing.
    """
    return max(DUST_PX, 2 * float(np.spacing(np.float32(max(size_hw)))))


class _Kept:
    """One row that stays: its index, kind, box (4,) and rings, in pixels."""

    __slots__ = ("box", "kind", "rings", "row")

    def __init__(self, row: int, kind: int, box: boxes.F64, rings: list[boxes.F64]) -> None:
        self.row, self.kind, self.box, self.rings = row, kind, box, rings


def _judge(
    rows: Rows, i: int, given: boxes.F64, rings: list[boxes.F64], finite: bool, size_hw: tuple[int, int], problems: Reports
) -> _Kept | None:
    """Judge row ``i``: what stays of it, or None when it is dropped."""
    h, w = size_hw
    kind = int(rows.kind[i])
    has_box = bool(rows.has_box[i])
    if not finite or (has_box and not (np.abs(given) <= LIMIT_PX).all()):
        _tell(problems, rows, i, "not-finite", "dropped", f"a coordinate is NaN, infinite or beyond {LIMIT_PX:.2g} px")
        return None
    if kind == MASK:
        decoded = _rings_of_mask(rows, i, size_hw)
        if isinstance(decoded, _Unusable):
            action, end = ("changed", "kept as a box") if has_box else ("dropped", "there is no box to keep")
            _tell(problems, rows, i, decoded.kind, action, f"{decoded.detail}; {end}")
            if not has_box:
                return None
            kind, rings = BOX, []
        else:
            rings = decoded
    if kind != BOX:
        full = [ring for ring in rings if len(ring) >= 3 and boxes.polygon_area(ring) >= MIN_RING_PX2]
        if not full and has_box:
            _tell(problems, rows, i, "zero-area", "changed", "the outline encloses nothing; kept as a box")
            kind = BOX
        elif len(full) < len(rings):
            note = f"{len(rings) - len(full)} of {len(rings)} parts of the outline enclose nothing"
            _tell(problems, rows, i, "zero-area", "changed" if full else "dropped", note + ("; left out" if full else ""))
            if not full:
                return None
        rings = full
    if not has_box and not any(len(ring) for ring in rings):
        _tell(problems, rows, i, "zero-area", "dropped", "there is neither a box nor an outline")
        return None
    box = given if has_box else boxes.bounds(np.concatenate(rings))
    width, height = box[2] - box[0], box[3] - box[1]
    smallest = _smallest_side(size_hw)
    if width < 0 or height < 0:
        _tell(problems, rows, i, "negative-size", "dropped", f"width and height must be > 0, got {width:.6g} x {height:.6g} px")
        return None
    if width < smallest or height < smallest:
        _tell(problems, rows, i, "zero-area", "dropped", f"width and height must be > 0, got {width:.6g} x {height:.6g} px")
        return None

    cut = np.clip(box, 0.0, np.array([w, h, w, h], np.float64))
    over = float(np.abs(cut - box).max())
    if kind != BOX:
        whole = np.concatenate(rings)
        reach = max(0.0, float(-whole.min()), float((whole - np.array([w, h])).max()))
        seen = [boxes.clip_polygon(ring, size_hw) for ring in rings] if reach > 0 else rings
        seen = [ring for ring in seen if boxes.polygon_area(ring) >= MIN_RING_PX2]
        if not seen and has_box:
            _tell(problems, rows, i, "outside", "changed", "the outline does not reach into the picture; kept as a box")
            kind = BOX
        elif not seen:
            cut = np.zeros(4)
        elif kind != OBB:
            over, rings = max(over, reach), seen
            cut = cut if has_box else boxes.bounds(np.concatenate(rings))
    if cut[2] - cut[0] < smallest or cut[3] - cut[1] < smallest:
        where = ", ".join(f"{x:.6g}" for x in box)
        _tell(problems, rows, i, "outside", "dropped", f"the object must reach into the picture of {w} x {h} px, got {where}")
        return None
    if over > DUST_PX:
        note = "corners kept, box clipped" if kind == OBB else "clipped"
        _tell(problems, rows, i, "clipped", "clipped", f"reaches {over:.6g} px over the border of {w} x {h} px: {note}")
    return _Kept(i, kind, cut, rings if kind != BOX else [])


@dataclass(frozen=True, slots=True)
class _Unusable:
    """Why a mask gives no outline."""

    kind: str
    detail: str


def _rings_of_mask(rows: Rows, i: int, size_hw: tuple[int, int]) -> list[boxes.F64] | _Unusable:
    """Decode the run lengths of row ``i`` into pixel-edge rings."""
    from fastdata import masks

    packed = rows.rle[i]
    assert packed is not None
    try:
        rle = json.loads(packed)
        if not isinstance(rle, dict):
            raise ValueError(f"must be an object with size and counts, got {type(rle).__name__}")
        size = rle.get("size")
        if isinstance(size, list) and [type(x) for x in size] == [int, int] and tuple(size) != size_hw:
            return _Unusable("size-mismatch", f"run lengths are for {size[1]} x {size[0]} px, not {size_hw[1]} x {size_hw[0]}")
        rings = masks.mask_to_rings(masks.rle_to_mask(rle, max_pixels=size_hw[0] * size_hw[1]))
    except ValueError as err:
        return _Unusable("bad-number", f"run lengths cannot be used ({err})")
    return rings or _Unusable("zero-area", "the mask is empty")


def _settle_area(area: boxes.F64) -> npt.NDArray[np.float32]:
    """Return published areas; what cannot be one counts as not given (NaN)."""
    return np.where((area >= 0) & (area <= LIMIT_AREA_PX2), area, np.nan).astype(np.float32)


def _settle_keypoints(
    rows: Rows, at: npt.NDArray[np.int64], scale: boxes.F64, size_hw: tuple[int, int], problems: Reports
) -> npt.NDArray[np.float32]:
    """Return (n, K, 3): points outside the picture become invisible, points on its border are kept."""
    if rows.keypoints.shape[1] == 0:
        return np.zeros((len(at), 0, 3), np.float32)
    k = rows.keypoints[at].copy()
    h, w = size_hw
    limit = np.array([w, h], np.float64)
    with np.errstate(over="ignore"):
        k[..., :2] *= scale
    labelled: Bools = k[..., 2] > 0  # NaN compares false
    finite: Bools = np.asarray(np.isfinite(k).all(axis=2))
    beyond: Bools = np.asarray(((k[..., :2] < -DUST_PX) | (k[..., :2] > limit + DUST_PX)).any(axis=2))
    outside: Bools = labelled & finite & beyond
    broken: Bools = ~finite & ~(k[..., 2] <= 0)
    for bad, kind in ((outside, "keypoint-outside"), (broken, "not-finite")):
        for row in np.flatnonzero(bad.any(axis=1)):
            numbers = ", ".join(str(int(p)) for p in np.flatnonzero(bad[row]))
            _tell(problems, rows, int(at[row]), kind, "changed", f"keypoint {numbers}: set to not labelled")
    gone = ~labelled | outside | broken
    visibility = np.where(gone, 0.0, np.clip(np.rint(np.where(finite, k[..., 2], 0.0)), 1.0, 2.0))
    xy = np.where(gone[..., None], 0.0, np.clip(np.where(finite[..., None], k[..., :2], 0.0), 0.0, limit))
    return np.concatenate([xy, visibility[..., None]], axis=2).astype(np.float32)


def _size_mismatch(rows: Rows, size_hw: tuple[int, int], key: str) -> Problem:
    assert rows.declared_hw is not None
    (h, w), (said_h, said_w) = size_hw, rows.declared_hw
    detail = f"the picture is {w} x {h} px, the label file says {said_w} x {said_h}"
    if (said_h, said_w) == (w, h):
        detail += "; that is its size before the EXIF rotation, or the two numbers are swapped: boxes are taken as they are"
    return Problem(file=rows.file, kind="size-mismatch", action="noted", detail=detail, image=key)


def _tell(problems: Reports, rows: Rows, i: int, kind: str, action: str, detail: str) -> None:
    place = int(rows.where[i])
    problem = Problem(
        file=rows.file,
        kind=kind,
        action=action,
        detail=detail,
        line=place if rows.place == "line" else None,
        annotation_id=place if rows.place == "annotation_id" else None,
        object=place if rows.place == "object" else None,
    )
    problems.append((i, problem))


def _in_row_order(problems: Reports) -> list[Problem]:
    """Sort by row; what belongs to the image comes first, and what was said about one row keeps its order."""
    return [problem for _, problem in sorted(problems, key=lambda pair: pair[0])]


def _offsets(lengths: list[int]) -> npt.NDArray[np.int64]:
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out
