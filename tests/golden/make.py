"""Make the golden stores: ``python tests/golden/make.py [FOLDER]``.

One store per backend, with everything that the format knows: two payload files in the folder of shards, three splits of which one
is empty, a name that is not UTF-8, a picture that two entries show, one of them a part of it, all encodings, keypoints, outlines
of several parts, label files, a report. They are written once per major version of the format and then never again: what is
published must stay readable, and the writer of today must still make the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fastdata.catalog import Keypoints
from fastdata.checksum import crc32c
from fastdata.labels import BOX, CROWD, MASK, OBB, POLYGON, Instances
from fastdata.store.format import Manifest
from fastdata.store.write import Entry, Record, StoreWriter

HERE = Path(__file__).parent
JPEG, WEBP = b"\xff\xd8 stands for a JPEG file \xff\xd9", b"RIFF stands for a WebP file"


class Label:
    """A label file."""

    def __init__(self, path: str, digest: bytes) -> None:
        self.path, self.digest = path, digest


def objects() -> Instances:
    """Four objects, one of each kind: 0, 2, 1 and 2 parts."""
    rings = [np.array([[0, 0], [2 + k, 0], [1, 1.5 + k]], np.float32) for k in range(4)]
    rings.insert(2, np.array([[-1, 2], [2, -1], [5, 2], [2, 5]], np.float32))
    return Instances(
        cls=np.array([0, 1, 1, 0], np.int32),
        xyxy_px=np.array([[0, 0, 4, 3], [0.5, 0.25, 3, 2], [0, 0, 4, 3], [1, 1, 2, 2]], np.float32),
        kind=np.array([BOX, POLYGON, OBB, MASK], np.uint8),
        flags=np.array([0, 0, 2, CROWD], np.uint8),
        original_id=np.array([7, 1 << 40, 9, -1], np.int64),
        area_px=np.array([np.nan, 2.5, np.nan, 1], np.float32),
        part_offsets=np.array([0, 0, 2, 3, 5], np.int64),
        point_offsets=np.cumsum([0, *(len(ring) for ring in rings)]).astype(np.int64),
        points_px=np.concatenate(rings),
        keypoints_px=np.arange(24, dtype=np.float32).reshape(4, 2, 3) % 3,
    )


def make(out: Path) -> Path:
    """Write the golden store at ``out``."""
    raw = (np.arange(3 * 3 * 4) * 7 % 256).astype(np.uint8).tobytes()
    gray = bytes(range(6))
    pictures = [
        Record(raw, "raw", (3, 4), 3, crc32c(raw)),
        Record(JPEG, "jpeg", (40, 50), 3, crc32c(JPEG)),
        Record(WEBP, "webp", (9, 5), 3, crc32c(WEBP)),
        Record(gray, "raw", (2, 3), 1, crc32c(gray)),
    ]
    none = Instances.empty(2)
    with StoreWriter.begin(out, fingerprint="golden", keypoints=2, overwrite=True, shard_nbytes=250) as writer:
        writer.begin_split("train")
        for record in pictures[:2]:
            writer.add_record(record)
        writer.add_entry(Entry("images/a.jpg", 0, (6, 8), objects(), None, 1000, 1234, 1_600_000_000_000_000_001))
        writer.add_entry(Entry("images/b\udcff.jpg", 1, (80, 100), none))
        writer.checkpoint({})
        writer.begin_split("val")
        writer.begin_split("test")
        for record in pictures[2:]:
            writer.add_record(record)
        writer.add_entry(Entry("images/c – d.webp", 2, (9, 5), none, image_id=2))
        writer.add_entry(Entry("images/gray.png", 3, (2, 3), none))
        writer.add_entry(Entry("images/a.jpg#part", 0, (6, 8), objects(), (1, 0, 4, 2), 1000))
        writer.log(b'{"kind": "clipped", "file": "labels/a.txt", "line": 3}')
        return writer.publish(
            Manifest(
                names=("cat", "dög\udce4"),
                codec="raw",
                task="pose",
                imgsz=4,
                resample="trainer",
                category_ids=(1, 18),
                keypoints=Keypoints(2, ("left", "right"), (1, 0), ((0, 1),), 3),
                source="coco",
                decisions={"label-rule": "images->labels"},
                options={"imgsz": 4, "codec": "raw"},
                summary={"images": {"in": 5, "stored": 5}},
                writer="golden",
                extra={"later": [1, None]},
            ),
            [Label("labels/a.txt", bytes(range(16))), Label("labels/b\udcff.txt", bytes(16))],
        )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name in ("store-v1.lmdb", "store-v1"):
        sys.stdout.write(f"{make(folder / name)}\n")
