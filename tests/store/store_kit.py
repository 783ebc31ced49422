"""Pictures and labels to put into stores, and the comparison of what comes out."""

from __future__ import annotations

import json
import multiprocessing
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.catalog import Keypoints
from fastdata.checksum import crc32c
from fastdata.labels import Instances
from fastdata.store.format import Manifest
from fastdata.store.read import Store
from fastdata.store.write import Entry, Record, StoreWriter

BACKENDS = ("lmdb", "shards")


@dataclass(frozen=True)
class Sample:
    """One entry, and the record that it brings, unless it shows an earlier one."""

    split: str
    key: str
    instances: Instances
    payload: bytes = b""
    encoding: str = "raw"
    size_hw: tuple[int, int] = (1, 1)
    channels: int = 3
    record: int | None = None
    rect: tuple[int, int, int, int] | None = None
    original_hw: tuple[int, int] = (11, 13)
    image_id: int = -1
    source_nbytes: int = -1
    source_mtime_ns: int = 0


@dataclass(frozen=True)
class Label:
    """A label file and its digest."""

    path: str
    digest: bytes


def labels(rng: np.random.Generator, n: int, keypoints: int = 0) -> Instances:
    """n objects with 0 to 2 parts of 3 to 5 points each."""
    parts = np.concatenate([[0], np.cumsum(rng.integers(0, 3, n))]).astype(np.int64)
    points = np.concatenate([[0], np.cumsum(rng.integers(3, 6, parts[-1]))]).astype(np.int64)
    return Instances(
        cls=rng.integers(0, 2, n).astype(np.int32),
        xyxy_px=rng.random((n, 4)).astype(np.float32),
        kind=rng.integers(0, 4, n).astype(np.uint8),
        flags=rng.integers(0, 8, n).astype(np.uint8),
        original_id=rng.integers(0, 1 << 40, n),
        area_px=np.where(rng.random(n) < 0.5, np.nan, rng.random(n)).astype(np.float32),
        part_offsets=parts,
        point_offsets=points,
        points_px=rng.random((points[-1], 2)).astype(np.float32),
        keypoints_px=rng.random((n, keypoints, 3)).astype(np.float32),
    )


def picture(rng: np.random.Generator, split: str, key: str, *, keypoints: int = 0, objects: int = 2, side: int = 12) -> Sample:
    """A raw picture of random size, at most ``side`` on each side."""
    h, w = rng.integers(1, side + 1, 2).tolist()
    payload = rng.integers(0, 256, 3 * h * w, np.uint8).tobytes()
    original_hw = (2 * h, 2 * w)
    return Sample(
        split, key, labels(rng, objects, keypoints), payload, size_hw=(h, w), original_hw=original_hw, image_id=len(key)
    )


def pictures(n: int, *, seed: int = 0, keypoints: int = 0, side: int = 12) -> list[Sample]:
    """n pictures, the last third of them in a second split."""
    rng = np.random.default_rng(seed)
    first = n - n // 3
    return [
        picture(rng, "train" if k < first else "val", f"images/{k:06d}.jpg", keypoints=keypoints, objects=k % 4, side=side)
        for k in range(n)
    ]


def manifest(keypoints: int = 0, **more: Any) -> Manifest:
    """A small manifest, the writer's part left to the writer."""
    points = Keypoints(keypoints, flip_idx=tuple(range(keypoints))) if keypoints else None
    return Manifest(**({"names": ("cat", "dog"), "codec": "raw", "task": "detect", "keypoints": points} | more))


def feed(writer: StoreWriter, samples: Iterable[Sample]) -> None:
    """Give samples to a writer, in order."""
    for s in samples:
        writer.begin_split(s.split)
        record = s.record
        if record is None:
            crc = crc32c(s.payload)
            record = writer.add_record(Record(s.payload, s.encoding, s.size_hw, s.channels, crc))  # type: ignore[arg-type]
        entry = Entry(
            s.key, record, s.original_hw, s.instances, s.rect, s.image_id, s.source_nbytes, s.source_mtime_ns
        )  # fmt: skip
        writer.add_entry(entry)


def write_store(
    out: Path,
    samples: Sequence[Sample],
    *,
    keypoints: int = 0,
    splits: Sequence[str] = (),
    label_files: Sequence[Label] = (),
    problems: bytes | None = None,
    said: Manifest | None = None,
    **begin: Any,
) -> Path:
    """Write a store in one go. ``splits`` are begun at the end, empty."""
    with StoreWriter.begin(out, **({"fingerprint": "f", "keypoints": keypoints} | begin)) as writer:
        feed(writer, samples)
        for split in splits:
            writer.begin_split(split)
        return writer.publish(said or manifest(keypoints), label_files, problems)


def place(folder: Path, backend: str, name: str = "store") -> Path:
    """Where a store of this backend goes."""
    return folder / (f"{name}.lmdb" if backend == "lmdb" else name)


def same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Equal in type, shape and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_same_instances(got: Instances, want: Instances) -> None:
    """Every array is the same, bit by bit."""
    for name in want.__dataclass_fields__:
        assert same(getattr(got, name), getattr(want, name)), name


def assert_holds(store: Store, samples: Sequence[Sample]) -> None:
    """The store, opened without a split, holds the samples and nothing else."""
    assert len(store) == len(samples) == len(store.catalog)
    owners: list[Sample] = []
    for i, s in enumerate(samples):
        if s.record is None:
            owners.append(s)
        number = len(owners) - 1 if s.record is None else s.record
        owner = owners[number]
        assert store.catalog.entry_record[i] == number
        assert store.read(i).tobytes() == owner.payload
        assert store.key(i) == s.key
        assert_same_instances(store.instances(i), s.instances)
        h, w = owner.size_hw
        assert store.catalog.rec_hw[number].tolist() == [h, w]
        assert store.catalog.entry_rect[i].tolist() == list(s.rect or (0, 0, w, h))
        assert store.catalog.entry_original_hw[i].tolist() == list(s.original_hw)
        assert store.catalog.entry_image_id[i] == s.image_id
        assert store.catalog.entry_source_nbytes[i] == s.source_nbytes
        assert store.catalog.entry_source_mtime_ns[i] == s.source_mtime_ns
    assert store.catalog.counts.records == len(owners)


def read_some(store: Store, queue: multiprocessing.Queue[object]) -> None:
    """Read three pictures and a key in a child, which must be able to import this by its name."""
    try:
        queue.put([store.read(i).tobytes() for i in range(3)] + [store.key(0)])
    except BaseException as e:
        queue.put(repr(e))


def files_of(out: Path) -> list[Path]:
    """Every file of a store, by name."""
    return sorted(out.iterdir()) if out.is_dir() else [out]


def bytes_of(out: Path) -> dict[str, bytes]:
    """Every byte of a store, under names that do not depend on its own."""
    return {file.name if out.is_dir() else "": file.read_bytes() for file in files_of(out)}


def check_all(store: Store) -> None:
    """Compare every byte of the store with a checksum."""
    store.check_sections()
    store.check_gaps()
    for r in range(store.catalog.counts.records):
        store.check_record(r)


@dataclass
class RawIndex:
    """An index taken apart and put together again by the document alone, to be wrong in one place and right in all others."""

    manifest: dict[str, Any]
    sections: dict[str, npt.NDArray[Any]]
    version: tuple[int, int] = (1, 0)
    manifest_text: bytes | None = None
    """Instead of the JSON of ``manifest``."""
    uid: bytes | None = None
    """In the end mark, instead of the manifest's."""

    @classmethod
    def of(cls, file: Path) -> RawIndex:
        """Read the index that ends a file."""
        data = file.read_bytes()
        (offset,) = struct.unpack_from("<Q", data, len(data) - 48)
        blob = data[offset:]
        nbytes, table, count = struct.unpack_from("<QQI", blob, 24)
        sections = {}
        for k in range(count):
            name, dtype, axes, _, at, size, *shape = struct.unpack_from("<24s3sBIQQQII", blob, table + 64 * k)
            array = np.frombuffer(blob[at : at + size], np.dtype(dtype.decode())).reshape(shape[:axes])
            sections[name.rstrip(b"\0").decode()] = array
        return cls(json.loads(blob[64 : 64 + nbytes]), sections)

    def encode(self, offset: int) -> bytes:
        """Return the index as it stands at ``offset`` of its file."""
        crc = google_crc32c.value
        text = json.dumps(self.manifest).encode() if self.manifest_text is None else self.manifest_text
        text += b" " * (-len(text) % 64)
        body, rows = b"", b""
        for name, array in self.sections.items():
            raw = array.tobytes() + bytes(-array.nbytes % 64)
            shape = (*array.shape, 0, 0)[:3]
            at = 64 + len(text) + len(body)
            rows += struct.pack(
                "<24s3sBIQQQII", name.encode(), array.dtype.str.encode(), array.ndim, crc(raw), at, array.nbytes, *shape
            )
            body += raw
        table = 64 + len(text) + len(body)
        total = table + len(rows) + 64
        count = len(self.sections)
        head = struct.pack("<8sHHIQQQII", b"\x89FDX\r\n\x1a\n", *self.version, 64, total, len(text), table, count, crc(text))
        head += struct.pack("<I8x", crc(rows))
        head += struct.pack("<I", crc(head))
        uid = self.uid or bytes.fromhex(self.manifest["uid"])
        mark = struct.pack("<8sHHIQQQ8s", b"\x89FDE\r\n\x1a\n", *self.version, 64, offset, total, offset + total, uid)
        mark += head[60:] + bytes(8)
        mark += struct.pack("<I", crc(mark))
        return head + text + body + rows + mark

    def put(self, out: Path) -> None:
        """Write the index in the place of the one of the store ``out``."""
        if out.is_dir():
            (out / "index.fastdata").write_bytes(self.encode(0))
            return
        data = out.read_bytes()
        (offset,) = struct.unpack_from("<Q", data, len(data) - 48)
        out.write_bytes(data[:offset] + self.encode(offset))


def index_of(out: Path) -> RawIndex:
    """Take the index of a store apart."""
    return RawIndex.of(out / "index.fastdata" if out.is_dir() else out)
