"""Small stores whose pictures and labels a test spells out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.catalog import Keypoints
from fastdata.checksum import crc32c
from fastdata.export import COUNTS, export
from fastdata.labels import BOX, MASK, OBB, POLYGON, Instances
from fastdata.masks import polygons_to_mask, rings_to_mask
from fastdata.pixels import encode
from fastdata.store.manifest import Manifest
from fastdata.store.read import Store, open_store
from fastdata.store.write import Entry, Record, StoreWriter


@dataclass(frozen=True)
class Thing:
    """One object. Its box is the bounds of its outline unless it is given."""

    cls: int = 0
    xyxy: tuple[float, float, float, float] | None = None
    parts: Sequence[npt.ArrayLike] = ()
    kind: int | None = None
    flags: int = 0
    keypoints: npt.ArrayLike | None = None
    id: int = 0
    area: float = np.nan


@dataclass(frozen=True)
class Shot:
    """One picture."""

    rgb: npt.NDArray[np.uint8] = field(repr=False)
    """(H, W, 3), or (H, W) for one channel."""
    things: Sequence[Thing] = ()
    key: str = ""
    split: str = "train"
    encoding: str = "raw"
    payload: bytes | None = None
    """Instead of the encoded picture."""
    image_id: int = -1
    rect: tuple[int, int, int, int] | None = None
    original_hw: tuple[int, int] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the entry."""


def instances(things: Sequence[Thing], keypoints: int = 0) -> Instances:
    """Put objects into the arrays of a picture's labels."""
    rings = [[np.asarray(part, np.float32).reshape(-1, 2) for part in thing.parts] for thing in things]
    boxes = [
        thing.xyxy if thing.xyxy is not None else (*np.concatenate(own).min(axis=0), *np.concatenate(own).max(axis=0))
        for thing, own in zip(things, rings, strict=True)
    ]
    kinds = [thing.kind if thing.kind is not None else POLYGON if own else BOX for thing, own in zip(things, rings, strict=True)]
    flat = [ring for own in rings for ring in own]
    points = [np.zeros((keypoints, 3)) if thing.keypoints is None else np.asarray(thing.keypoints) for thing in things]
    return Instances(
        cls=np.array([thing.cls for thing in things], np.int32),
        xyxy_px=np.array(boxes, np.float32).reshape(-1, 4),
        kind=np.array(kinds, np.uint8),
        flags=np.array([thing.flags for thing in things], np.uint8),
        original_id=np.array([thing.id for thing in things], np.int64),
        area_px=np.array([thing.area for thing in things], np.float32),
        part_offsets=np.cumsum([0, *(len(own) for own in rings)]),
        point_offsets=np.cumsum([0, *(len(ring) for ring in flat)]),
        points_px=np.concatenate(flat) if flat else np.zeros((0, 2), np.float32),
        keypoints_px=np.array(points, np.float32).reshape(len(things), keypoints, 3),
    )


def write(
    out: Path, shots: Sequence[Shot], *, names: Sequence[str] = ("cat", "dog"), keypoints: Keypoints | None = None, **more: Any
) -> Path:
    """Write a store; ``more`` goes into its manifest."""
    count = keypoints.count if keypoints else 0
    with StoreWriter.begin(out, fingerprint="test", keypoints=count) as writer:
        for number, shot in enumerate(shots):
            writer.begin_split(shot.split)
            payload = encode(shot.rgb, shot.encoding, 95) if shot.payload is None else np.frombuffer(shot.payload, np.uint8)  # type: ignore[arg-type]
            h, w = shot.rgb.shape[:2]
            channels = 1 if shot.rgb.ndim == 2 else 3
            record = writer.add_record(Record(payload, shot.encoding, (h, w), channels, crc32c(payload)))  # type: ignore[arg-type]
            writer.add_entry(
                Entry(
                    key=shot.key or f"{number:06d}.png",
                    record=record,
                    original_hw=shot.original_hw or (h, w),
                    instances=instances(shot.things, count),
                    rect=shot.rect,
                    image_id=shot.image_id,
                    **shot.more,
                )
            )
        task = "pose" if keypoints else "segment"
        said = {"names": tuple(names), "codec": "raw", "task": task, "keypoints": keypoints, "category_ids": range(len(names))}
        writer.publish(Manifest(**{**said, **more, "category_ids": tuple(more.get("category_ids", said["category_ids"]))}), [])  # type: ignore[arg-type]
    return out


def blank(h: int, w: int, value: int = 0) -> npt.NDArray[np.uint8]:
    """A picture of one colour."""
    return np.full((h, w, 3), value, np.uint8)


def square(x0: float, y0: float, x1: float, y1: float) -> npt.NDArray[np.float32]:
    """The ring of a rectangle."""
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32)


def covered(labels: Instances, i: int, size_hw: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """The pixels of one object's outline, by the rule of its kind."""
    return (rings_to_mask if labels.kind[i] in (MASK, OBB) else polygons_to_mask)(labels.parts(i), size_hw)


def entries(store: Store) -> Iterator[tuple[str, int]]:
    """Split and number of every entry."""
    for name, (start, stop) in store.manifest.splits.items():
        for e in range(start, stop):
            yield name, e


def exported(tmp_path: Path, format: str, *own: Thing, **more: Any) -> tuple[dict[str, int], Path]:
    """Export one picture with these objects: the counts, and where the export is."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(40, 40), own, "k.png")], **more)) as store:
        done = export(store, tmp_path / "out", format=format)  # type: ignore[arg-type]
        assert all(text in " ".join(done.notes) for key, text in COUNTS.items() if key in done.counts)
        return done.counts, tmp_path / "out"
