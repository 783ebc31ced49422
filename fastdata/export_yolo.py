"""Instances → YOLO text rows, and the data.yaml beside them.

One form of row for the whole dataset, because trainers drop files that mix them::

    pose     class cx cy w h  K * (x y v)
    obb      class and four corners
    outline  class x1 y1 ... xn yn              where the store holds any outline
    box      class cx cy w h                    where it holds none

A row says one ring. An object of several parts, or with holes, becomes one ring by bridges of no width: filled even-odd, as
trainers fill it, it covers what the parts covered. What a row cannot say is counted: see ``fastdata.export.COUNTS``.

Numbers are fractions of the picture with nine digits: 1e-6 px on a picture of 1,000 px. Published ids of classes and images, and
the skeleton of keypoints, have no place in the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fastdata.boxes import F64, bounds, min_area_rectangle, polygon_area, xyxy_px_to_xywh_norm
from fastdata.labels import BOX, CROWD, DIFFICULT, OBB, POLYGON, TRUNCATED, Instances
from fastdata.masks import mask_to_rings, polygons_to_mask, rings_to_mask

if TYPE_CHECKING:
    from fastdata.catalog import Catalog, Keypoints
    from fastdata.store.manifest import Manifest

Form = Literal["pose", "obb", "outline", "box"]

BLOCK = 1 << 20
"""Rows of a column looked at together."""

TELL_PX = 0.01
"""A box that differs from the bounds of its outline by less is the same box."""

TRACE = 7
MAX_TRACED_PX = 2048
"""Where an outline must be traced: cells of the grid per pixel, and on one side altogether. An odd number of cells has one around
the centre of the pixel, so the pixels that are covered stay the same."""

SPLIT_WORDS = (("train", "train"), ("val", "val"), ("test", "test"), ("minival", "minival"))
"""What a split's name begins with, and the key under which trainers look for it."""


def choose_form(manifest: Manifest, catalog: Catalog) -> Form:
    """Return the one form that all rows of the store take."""
    if manifest.task == "pose" and manifest.keypoints is not None:
        return "pose"
    if manifest.task == "obb":
        return "obb"
    kind = catalog.kind
    has_outline = any(bool((kind[at : at + BLOCK] != BOX).any()) for at in range(0, len(kind), BLOCK))
    return "outline" if has_outline else "box"


def keypoint_columns(manifest: Manifest, catalog: Catalog) -> int:
    """Return 2 or 3 columns for each keypoint.

    Two say that every keypoint is labelled and nothing more, which is kept as visibility 1; so they are written only where they
    were read and that is all there is to say.
    """
    if manifest.keypoints is None or manifest.keypoints.dims == 3:
        return 3
    points = catalog.keypoints_px
    return 2 if all(bool((points[at : at + BLOCK, :, 2] == 1).all()) for at in range(0, len(points), BLOCK)) else 3


def rows_text(instances: Instances, size_hw: tuple[int, int], form: Form, columns: int, counts: Counter[str]) -> str:
    """Return the label file of one picture.

    Args:
        instances: Of the picture.
        size_hw: Of the picture that the coordinates belong to.
        form: Of every row.
        columns: Of each keypoint.
        counts: What could not be said is added here.
    """
    wanted = np.flatnonzero((instances.flags & CROWD) == 0)
    counts["crowd"] += len(instances) - len(wanted)
    counts["flags"] += int(np.count_nonzero(instances.flags[wanted] & (DIFFICULT | TRUNCATED)))
    counts["instances"] += len(wanted)
    h, w = size_hw
    boxes = xyxy_px_to_xywh_norm(instances.xyxy_px, size_hw)
    lines = []
    for i in wanted:
        if form == "pose":
            points = instances.keypoints_px[i, :, :columns].astype(np.float64)
            points[:, :2] /= [w, h]
            numbers = [*boxes[i].tolist(), *points.ravel().tolist()]
        elif form == "box":
            numbers = boxes[i].tolist()
        else:
            ring = _four_corners(instances, int(i), counts) if form == "obb" else _one_ring(instances, int(i), size_hw, counts)
            numbers = (ring / [w, h]).ravel().tolist()
        if form in ("pose", "box"):
            counts["outlines"] += int(instances.kind[i] != BOX)
        lines.append(f"{instances.cls[i]}" + (" %.9g" * len(numbers)) % tuple(numbers) + "\n")
    return "".join(lines)


def _rings(instances: Instances, i: int) -> list[F64]:
    return [ring.astype(np.float64) for ring in instances.parts(i)]


def _corners(instances: Instances, i: int) -> F64:
    x0, y0, x1, y1 = instances.xyxy_px[i].astype(np.float64).tolist()
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


def _four_corners(instances: Instances, i: int, counts: Counter[str]) -> F64:
    """Return (4, 2) corners: of the oriented box, of the box, or of the smallest rectangle around the outline."""
    if instances.kind[i] == OBB:
        return _rings(instances, i)[0]
    if instances.kind[i] == BOX:
        return _corners(instances, i)
    counts["outlines_as_rectangles"] += 1
    return min_area_rectangle(np.concatenate(_rings(instances, i)))


def _one_ring(instances: Instances, i: int, size_hw: tuple[int, int], counts: Counter[str]) -> F64:
    """Return (v, 2): the outline as one ring; the corners of the box where there is none."""
    if instances.kind[i] == BOX:
        counts["boxes_as_outlines"] += 1
        return _corners(instances, i)
    rings = _rings(instances, i)
    counts["oriented_as_outlines"] += instances.kind[i] == OBB
    counts["bridged"] += len(rings) > 1
    if len(rings) > 1 and instances.kind[i] == POLYGON:
        rings = _disjoint(rings, size_hw, counts)
    ring = bridge(rings)
    counts["boxes_of_outlines"] += bool(np.abs(bounds(ring) - instances.xyxy_px[i]).max() > TELL_PX)
    return ring


def _disjoint(rings: list[F64], size_hw: tuple[int, int], counts: Counter[str]) -> list[F64]:
    """Return rings that cover, even-odd, what the union of ``rings`` covers: the same ones unless they overlap.

    Where they do, even-odd filling would leave a hole. Their union is traced instead, on a grid of up to :data:`TRACE` cells a
    pixel. Its outermost points, which the grid may miss, are added as rings of one point, so that the bounds stay what they were.
    """
    if np.array_equal(polygons_to_mask(rings, size_hw), rings_to_mask(rings, size_hw)):
        return rings
    counts["traced"] += 1
    points = np.concatenate(rings)
    x0, y0, x1, y1 = bounds(points)
    corner = np.floor([x0, y0])
    fine = min(TRACE, int(MAX_TRACED_PX // max(x1 - x0, y1 - y0, 1)))
    fine = max(1, fine - 1 + fine % 2)
    grid_hw = (int(np.ceil(y1 - corner[1])) * fine, int(np.ceil(x1 - corner[0])) * fine)
    traced = mask_to_rings(polygons_to_mask([(ring - corner) * fine for ring in rings], grid_hw))
    outermost = points[[*points.argmin(axis=0), *points.argmax(axis=0)]]
    return [*(np.clip(ring / fine + corner, [x0, y0], [x1, y1]) for ring in traced), *outermost[:, None]]


def bridge(rings: Sequence[F64]) -> F64:
    """Join rings into one that covers, even-odd, what they cover even-odd.

    The largest comes first. Each other one is entered at a corner near the path so far, walked around, and left by the same way,
    so that the way has no width. The corner is the nearest but one step: corner of the path nearest to the ring's first point,
    corner of the ring nearest to that, corner of the path nearest to that again.

    Args:
        rings: (v, 2) each, at least one.

    Returns:
        (u, 2), not repeating its first point.
    """
    order = sorted(range(len(rings)), key=lambda k: -polygon_area(rings[k]))
    path = rings[order[0]]
    for k in order[1:]:
        ring = rings[k]
        door = _nearest(path, ring[0])
        entry = _nearest(ring, path[door])
        door = _nearest(path, ring[entry])
        around = np.concatenate([np.roll(ring, -entry, axis=0), ring[entry : entry + 1]])
        path = np.concatenate([path[: door + 1], around, path[door:]])
    return path


def _nearest(points: F64, to: npt.NDArray[np.float64]) -> int:
    return int(np.argmin(((points - to) ** 2).sum(axis=1)))


def data_yaml(
    names: Sequence[str], folders: Mapping[str, str], form: Form, keypoints: Keypoints | None, columns: int
) -> tuple[bytes, list[str]]:
    """Return data.yaml and what a reader of it should know.

    There is no ``path``: trainers take the folder of the file then, so the dataset can be moved. A split is named as trainers
    look for it (``train2017`` as ``train``), unless another one has that name already.

    Args:
        names: Class names by index.
        folders: Split name → its folder of images, relative to the file.
        form: Of the rows.
        keypoints: What the keypoints are.
        columns: Of each keypoint.
    """
    import yaml

    keys: dict[str, str] = {}
    notes = []
    for split in folders:
        word = next((key for word, key in SPLIT_WORDS if split.lower().startswith(word)), split)
        taken = word in keys or (word != split and word in folders)
        keys[split if taken else word] = folders[split]
        if not taken and word != split:
            notes.append(f"split {split} is called {word} in data.yaml, as trainers look for it")
    notes += [f"data.yaml has no split {key}, which most trainers ask for" for key in ("train", "val") if key not in keys]
    notes += [
        f"split {key} is read back by name alone: fastdata convert --split {key!r}"
        for key in keys
        if key not in dict(SPLIT_WORDS)
    ]
    content: dict[str, object] = {**keys, "nc": len(names), "names": dict(enumerate(names))}
    if form == "obb":
        content["task"] = "obb"  # fastdata convert reads it back
        notes.append("rows are four corners: the trainer must be told task obb")
    if form == "pose" and keypoints is not None:
        content["kpt_shape"] = [keypoints.count, columns]
        if keypoints.flip_idx:
            content["flip_idx"] = list(keypoints.flip_idx)
        if keypoints.names:
            content["kpt_names"] = {cls: list(keypoints.names) for cls in range(len(names))}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    head = "# Folders lie beside this file. A trainer that wants `path` gets the absolute path of the folder.\n"
    return (head + text).encode("utf-8", "backslashreplace"), notes
