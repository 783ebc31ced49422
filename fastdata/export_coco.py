"""Instances → COCO annotations: one JSON file a split.

Pixels of the exported picture. An outline is a list of polygons; a mask, and every crowd that has an outline, is run lengths, so
holes stay holes. ``area`` is the published one where there was one, else that of the outline, else that of the box. Image ids
are the published ones where they are all there and differ, annotation ids likewise; else both count from 1.

Numbers have six decimals: 5e-7 px.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.boxes import polygon_area
from fastdata.labels import BOX, CROWD, DIFFICULT, MASK, OBB, TRUNCATED, Instances
from fastdata.masks import mask_to_rle, polygons_to_mask, rings_to_mask

if TYPE_CHECKING:
    from fastdata.catalog import Catalog, Keypoints
    from fastdata.store.manifest import Manifest

DECIMALS = 6


def categories(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the categories under their published ids; where there are none, they count from 1 as COCO's do."""
    ids = manifest.category_ids or tuple(range(1, len(manifest.names) + 1))
    more = {} if manifest.keypoints is None else _keypoint_fields(manifest.keypoints)
    return [{"id": number, "name": name, "supercategory": name, **more} for number, name in zip(ids, manifest.names, strict=True)]


def _keypoint_fields(keypoints: Keypoints) -> dict[str, Any]:
    names = keypoints.names or tuple(f"keypoint {k}" for k in range(keypoints.count))
    return {"keypoints": list(names), "skeleton": [[a + 1, b + 1] for a, b in keypoints.skeleton]}


def image_ids(published: npt.NDArray[np.int64], first_entry: int) -> npt.NDArray[np.int64]:
    """Return the ids of one split's images: the published ones, or 1 + the number of the entry."""
    return published if _all_differ(published, 0) else first_entry + 1 + np.arange(len(published), dtype=np.int64)


def annotation_ids(catalog: Catalog, first: int, stop: int, source: str) -> npt.NDArray[np.int64]:
    """Return the ids of instances ``first`` to ``stop``: the published ones, or numbers from 1 over the whole store.

    Only COCO publishes any. An id below 1 is never written: evaluation takes 0 for "no match".
    """
    published = catalog.original_id[first:stop]
    if source == "coco" and _all_differ(published, 1):
        return published
    return np.arange(first + 1, stop + 1, dtype=np.int64)


def _all_differ(ids: npt.NDArray[np.int64], least: int) -> bool:
    return len(ids) == 0 or (int(ids.min()) >= least and len(np.unique(ids)) == len(ids))


def annotation_rows(
    instances: Instances,
    size_hw: tuple[int, int],
    *,
    image_id: int,
    ids: Sequence[int],
    category_ids: Sequence[int],
    counts: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Yield the annotations of one picture.

    Args:
        instances: Of the picture.
        size_hw: Of the picture that the coordinates belong to.
        image_id: Its id.
        ids: One for each instance.
        category_ids: By class.
        counts: What could not be said is added here.
    """
    xyxy = _rounded(instances.xyxy_px)
    counts["instances"] += len(instances)
    counts["flags"] += int(np.count_nonzero(instances.flags & (DIFFICULT | TRUNCATED)))
    for i, (x0, y0, x1, y1) in enumerate(xyxy):
        crowd = bool(instances.flags[i] & CROWD)
        segmentation, area = _segmentation(instances, i, size_hw, crowd, counts)
        published = float(instances.area_px[i])
        width, height = round(x1 - x0, DECIMALS), round(y1 - y0, DECIMALS)
        out: dict[str, Any] = {
            "id": int(ids[i]),
            "image_id": image_id,
            "category_id": category_ids[int(instances.cls[i])],
            "bbox": [x0, y0, width, height],
            "area": round(published if np.isfinite(published) else width * height if area is None else area, 4),
            "iscrowd": int(crowd),
        }
        if segmentation is not None:
            out["segmentation"] = segmentation
        if instances.keypoints_px.shape[1]:
            points = instances.keypoints_px[i]
            out["keypoints"] = [
                v for (x, y), seen in zip(_rounded(points[:, :2]), points[:, 2], strict=True) for v in (x, y, int(seen))
            ]
            out["num_keypoints"] = int(np.count_nonzero(points[:, 2] > 0))
        yield out


def _rounded(array: npt.NDArray[np.float32]) -> list[list[float]]:
    out: list[list[float]] = np.round(array.astype(np.float64), DECIMALS).tolist()
    return out


def _segmentation(
    instances: Instances, i: int, size_hw: tuple[int, int], crowd: bool, counts: Counter[str]
) -> tuple[list[list[float]] | dict[str, Any] | None, float | None]:
    """Return the segmentation of one instance and its area in px², both None for a box."""
    kind = int(instances.kind[i])
    if kind == BOX:
        return None, None
    rings = instances.parts(i)
    if kind == MASK or (crowd and kind != OBB):
        mask = (rings_to_mask if kind == MASK else polygons_to_mask)(rings, size_hw)
        if mask.any():
            return mask_to_rle(mask), float(np.count_nonzero(mask))
        counts["masks_as_outlines"] += 1
    counts["oriented_as_outlines"] += kind == OBB
    area = sum(polygon_area(ring.astype(np.float64)) for ring in rings)
    return [[v for xy in _rounded(ring) for v in xy] for ring in rings], area


def write_json(
    out: IO[str],
    head: dict[str, Any],
    images: Iterator[dict[str, Any]],
    labels: Iterator[dict[str, Any]],
) -> None:
    """Write one file, row by row, so that memory does not grow with the dataset.

    Args:
        out: Where to.
        head: Everything but the two lists.
        images: Rows of ``images``.
        labels: Rows of ``annotations``.
    """
    out.write(json.dumps(head, separators=(",", ":"))[:-1])
    for name, rows in (("images", images), ("annotations", labels)):
        out.write(f',"{name}":[')
        separator = "\n"
        for row in rows:
            out.write(separator + json.dumps(row, separators=(",", ":")))
            separator = ",\n"
        out.write("\n]")
    out.write("}\n")
