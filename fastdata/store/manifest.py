"""The manifest: the small, whole-dataset facts of a store, as one JSON object.

Invariant: ``Manifest.from_json(m.to_json()) == m``, keys that this version does not know included. Its size does not depend on
the number of pictures or labels. It holds no date and no path of the machine, so equal input gives equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from fastdata.catalog import Counts, Keypoints

Backend = Literal["lmdb", "shards"]
Codec = Literal["raw", "jpeg", "webp", "original"]
Task = Literal["detect", "segment", "pose", "obb"]


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """One file that holds records."""

    name: str
    """A plain name in the folder of the index; ``""`` is the very file that holds the index."""
    payload_nbytes: int
    """Records lie in the bytes 0 : payload_nbytes of the file."""
    gap_crc: int
    """CRC32C over all bytes of that range that are in no record, in order."""
    file_nbytes: int | None = None
    """Size of the whole file; ``None`` for ``""``, whose end mark says it."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; the checksum is 8 hexadecimal digits, so that its length does not depend on its value."""
        out: dict[str, Any] = {"name": self.name, "payload_nbytes": self.payload_nbytes, "gap_crc": f"{self.gap_crc:08x}"}
        return out if self.file_nbytes is None else out | {"file_nbytes": self.file_nbytes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object."""
        size = data.get("file_nbytes")
        return cls(str(data["name"]), int(data["payload_nbytes"]), int(data["gap_crc"], 16), None if size is None else int(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a store is. The writer fills ``backend``, ``splits``, ``counts``, ``files`` and ``uid``; the caller the others."""

    names: tuple[str, ...]
    """Class names by index."""
    codec: Codec
    """How the pictures were asked to be stored; each record says for itself how it is encoded."""
    task: Task
    channels: int = 3
    """Channels of a decoded picture, where all records agree."""
    dtype: str = "uint8"
    layout: str = "CHW"
    """Axes of a decoded picture: planes of R, G and B, one after the other."""
    imgsz: int | None = None
    """Length of the longer side of a stored picture; ``None``: as published."""
    resample: str | None = None
    """The filter that made that size."""
    quality: int | None = None
    """Of a lossy codec."""
    category_ids: tuple[int, ...] = ()
    """Published id of each class."""
    keypoints: Keypoints | None = None
    source: str = ""
    """Kind of the dataset that was read."""
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """Rules chosen by looking at the data."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the user asked for."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Counts of the conversion: images and rows in, kept, dropped, and why."""
    writer: str = ""
    """Name and version of the program; this package where it is empty."""
    backend: Backend | Literal[""] = ""
    splits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Range of entries of each split, in order; together they cover every entry once."""
    counts: Counts = field(default_factory=Counts)
    files: tuple[PayloadFile, ...] = ()
    """What ``rec_file`` counts."""
    uid: str = ""
    """16 hexadecimal digits that name this content: pictures, labels and manifest."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys that this version does not know, kept as they are."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object: known keys in the order above, then the others by name."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        out["keypoints"] = None if self.keypoints is None else asdict(self.keypoints)
        out["splits"] = [{"name": name, "start": start, "stop": stop} for name, (start, stop) in self.splits.items()]
        out["counts"] = asdict(self.counts)
        out["files"] = [file.to_json() for file in self.files]
        return out | {key: self.extra[key] for key in sorted(self.extra)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object.

        Raises:
            KeyError, TypeError, ValueError: A key is missing or of another type.
        """
        known = {f.name for f in fields(cls)} - {"extra"}
        for name in ("decisions", "options", "summary"):
            if not isinstance(data.get(name, {}), Mapping):
                raise TypeError(f"{name} must be an object, got {type(data[name]).__name__}")
        values = {key: value for key, value in data.items() if key in known}
        points = values.get("keypoints")
        splits = {str(s["name"]): (int(s["start"]), int(s["stop"])) for s in data["splits"]}
        values |= {
            "names": tuple(str(name) for name in data["names"]),
            "category_ids": tuple(int(i) for i in values.get("category_ids", ())),
            "keypoints": None if points is None else _keypoints(points),
            "splits": splits,
            "counts": Counts(**{f.name: int(data["counts"][f.name]) for f in fields(Counts)}),
            "files": tuple(PayloadFile.from_json(f) for f in data["files"]),
            "extra": {key: data[key] for key in sorted(data.keys() - known)},
        }
        return cls(**values)

    def encode(self, pad: int = 1) -> bytes:
        """Return the JSON text in ASCII, followed by spaces up to a multiple of ``pad``.

        Names that are not UTF-8 come back: their bytes stand as escaped surrogates.

        Raises:
            ValueError: A number is not finite, which JSON cannot say.
            TypeError: A value is not of JSON.
        """
        text = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False).encode("ascii")
        return text + b" " * (-len(text) % pad)


def _keypoints(data: Mapping[str, Any]) -> Keypoints:
    return Keypoints(
        count=int(data["count"]),
        names=tuple(str(name) for name in data["names"]),
        flip_idx=tuple(int(i) for i in data["flip_idx"]),
        skeleton=tuple((int(a), int(b)) for a, b in data["skeleton"]),
        dims=int(data["dims"]),
    )
