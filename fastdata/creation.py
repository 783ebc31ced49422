"""Make a store from anything that a person can loop over: arrays, encoded bytes or files, with boxes, polygons and keypoints.

    with fastdata.create("own.lmdb", names=["cat", "dog"]) as w:
        w.add(image, boxes=[[10, 20, 110, 220]], classes=[0])

It is the writer that a conversion uses, under the same rules: labels follow the pixels through the resize, boxes are clipped and
what cannot be kept is reported, and nothing stands at the target before the whole store does.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fastdata.catalog import Keypoints
from fastdata.checksum import crc32c
from fastdata.errors import DataError, UsageError
from fastdata.images import Refused, decode_image
from fastdata.labels import BOX, CROWD, OBB, POLYGON, Rows
from fastdata.pixels import encode, fitted_size, resize, to_planar
from fastdata.problems import Problem
from fastdata.settle import scaled, settle
from fastdata.store.manifest import Manifest
from fastdata.store.write import Entry, Record, StoreWriter

Picture = npt.NDArray[np.uint8] | bytes | str | os.PathLike[str]
"""(H, W, 3) RGB or (H, W) gray uint8, an encoded picture, or the path of one."""

Task = Literal["detect", "segment", "pose", "obb"]


def create(
    out: str | os.PathLike[str],
    names: Sequence[str],
    *,
    codec: Literal["raw", "jpeg", "webp"] = "raw",
    imgsz: int | None = None,
    resample: Literal["trainer", "area"] = "trainer",
    quality: int = 95,
    keypoints: Keypoints | None = None,
    on_error: Literal["safe", "raise"] = "safe",
    overwrite: bool = False,
) -> Creator:
    """Begin a store.

    Args:
        out: ``*.lmdb`` makes one LMDB file, anything else a folder of shards.
        names: Class names by index.
        codec: How pictures are stored.
        imgsz: Long side of the stored pictures in px; ``None`` keeps their size.
        resample: ``trainer``: the bilinear resize of the trainers; ``area``: antialiased when shrinking.
        quality: Of jpeg and webp, 1..100.
        keypoints: What the keypoints of an object are, if it has any.
        on_error: ``safe`` clips and drops label rows and warns at the end; ``raise`` stops at the first fault.
        overwrite: Replace a store that is there.

    Returns:
        The writer, to be used in a ``with`` statement: leaving it publishes the store, leaving it by an exception leaves nothing.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"names must be a list of texts, got {names!r}")
    for what, value, choices in (
        ("codec", codec, ("raw", "jpeg", "webp")),
        ("resample", resample, ("trainer", "area")),
        ("on_error", on_error, ("safe", "raise")),
    ):
        if value not in choices:
            raise UsageError(f"{what} must be one of {', '.join(choices)}, got {value!r}")
    if len(names) == 0:
        raise UsageError("names must hold at least one class name, got none")
    if len(set(names)) != len(names):
        raise UsageError(f"names must be different, got {list(names)}")
    if not 1 <= quality <= 100:
        raise UsageError(f"quality must be 1..100, got {quality}")
    writer = StoreWriter.begin(
        Path(out), fingerprint="", keypoints=keypoints.count if keypoints else 0, overwrite=overwrite, resume=False
    )
    settings = {"imgsz": imgsz, "codec": codec, "resample": resample, "quality": quality}
    return Creator(writer, tuple(names), settings, keypoints, on_error)


class Creator:
    """Adds pictures one by one. Not for several threads at once."""

    def __init__(
        self, writer: StoreWriter, names: tuple[str, ...], settings: dict[str, Any], keypoints: Keypoints | None, on_error: str
    ) -> None:
        self._writer, self._names, self._settings, self._keypoints = writer, names, settings, keypoints
        self._on_error = on_error
        self._splits: list[str] = []
        self._keys: set[str] = set()
        self._kinds: set[int] = set()
        self._channels: set[int] = set()
        self.problems: list[Problem] = []
        """Every label row that was clipped, changed or dropped, so far."""

    def add(
        self,
        image: Picture,
        boxes: npt.ArrayLike | None = None,
        classes: npt.ArrayLike | None = None,
        *,
        polygons: Sequence[Sequence[npt.ArrayLike] | None] | None = None,
        corners: npt.ArrayLike | None = None,
        keypoints: npt.ArrayLike | None = None,
        crowd: npt.ArrayLike | None = None,
        key: str | None = None,
        split: str = "train",
        image_id: int = -1,
    ) -> int:
        """Add one picture with its n objects.

        Args:
            image: (H, W, 3) RGB or (H, W) gray uint8, encoded bytes, or a path. Encoded pictures are turned upright.
            boxes: (n, 4) x0, y0, x1, y1 in pixels of the upright picture. May be left out where polygons or corners say it.
            classes: (n,) class indices; may be left out where there is one name.
            polygons: For each object its parts, each (v, 2) points in pixels, or None for a box.
            corners: (n, 4, 2) corners of oriented boxes, instead of boxes and polygons.
            keypoints: (n, K, 3) x, y in pixels, visibility 0, 1 or 2.
            crowd: (n,) whether an object is a crowd, left out of training by default.
            key: Name of the picture, unique in its split; its path, or a number, by default.
            split: Splits are added one after another.
            image_id: Number that evaluation tools know the picture by.

        Returns:
            The number of the entry.

        Raises:
            UsageError: An argument breaks its rule.
            DataError: The picture cannot be decoded, or with ``on_error="raise"`` a label breaks a rule.
        """
        if isinstance(image_id, bool) or not isinstance(image_id, int) or not -1 <= image_id < 1 << 63:
            raise UsageError(f"image_id must be a whole number from 0 on, got {image_id!r}")
        name = (
            key
            if key is not None
            else os.fspath(image)
            if isinstance(image, str | os.PathLike)
            else f"{self._writer.entries:08d}"
        )
        pixels = _pixels(image, name)
        original_hw = (pixels.shape[0], pixels.shape[1])
        rows = self._rows(name, boxes, classes, polygons, corners, keypoints, crowd)
        instances, problems = settle(rows, original_hw, key=name)
        if problems and self._on_error == "raise":
            first = problems[0]
            raise DataError(f"{name}: object {first.object}: {first.kind}: {first.detail}")
        size_hw = original_hw
        if self._settings["imgsz"] is not None:
            size_hw = fitted_size(original_hw, self._settings["imgsz"])
            pixels = resize(pixels, size_hw, self._settings["resample"])
        channels = 1 if pixels.ndim == 2 else 3
        if self._settings["codec"] == "raw":
            payload = to_planar(pixels).reshape(-1)
        else:
            payload = np.frombuffer(encode(pixels, self._settings["codec"], self._settings["quality"]), np.uint8)
        self._enter(split, name)  # nothing before this leaves a trace when it fails
        self.problems += problems
        self._kinds |= set(instances.kind.tolist())
        self._channels.add(channels)
        record = self._writer.add_record(
            Record(payload=payload, encoding=self._settings["codec"], size_hw=size_hw, channels=channels, crc32c=crc32c(payload))
        )
        entry = self._writer.entries
        self._writer.add_entry(
            Entry(
                key=name,
                record=record,
                original_hw=original_hw,
                instances=scaled(instances, original_hw, size_hw),
                image_id=image_id,
            )
        )
        return entry

    def _enter(self, split: str, key: str) -> None:
        """Begin a split, or make sure that it is the current one and that the key is new in it."""
        if not isinstance(split, str) or not split or "/" in split:
            raise UsageError(f"split must be a name such as 'train', got {split!r}")
        if not self._splits or self._splits[-1] != split:
            if split in self._splits:
                raise UsageError(f"splits must be added one after another, got {split!r} again after {self._splits[-1]!r}")
            self._splits.append(split)
            self._keys.clear()
            self._writer.begin_split(split)
        if key in self._keys:
            raise UsageError(f"key must be unique in its split, got {key!r} twice in {split!r}")
        self._keys.add(key)

    def _rows(
        self,
        name: str,
        boxes: npt.ArrayLike | None,
        classes: npt.ArrayLike | None,
        polygons: Sequence[Sequence[npt.ArrayLike] | None] | None,
        corners: npt.ArrayLike | None,
        keypoints: npt.ArrayLike | None,
        crowd: npt.ArrayLike | None,
    ) -> Rows:
        """Check the arguments against each other and put them into the form that readers use."""
        if corners is not None and (boxes is not None or polygons is not None):
            raise UsageError(f"{name}: corners must come without boxes and polygons")
        quads = None if corners is None else _array(f"{name}: corners", corners, np.float64, (None, 4, 2))
        given = ([] if quads is None else [len(quads)]) + ([] if polygons is None else [len(polygons)])
        xyxy = None if boxes is None else _array(f"{name}: boxes", boxes, np.float64, (None, 4))
        n = len(xyxy) if xyxy is not None else given[0] if given else 0
        if any(count != n for count in given):
            raise UsageError(f"{name}: boxes, polygons and corners must be of the same length, got {n} and {given}")
        if classes is None and n and len(self._names) > 1:
            raise UsageError(f"{name}: classes must be given where there are {len(self._names)} names, got none")
        cls = np.zeros(n, np.int32) if classes is None else _array(f"{name}: classes", classes, np.int32, (n,))
        if n and (cls.min() < 0 or cls.max() >= len(self._names)):
            raise UsageError(f"{name}: classes must be 0..{len(self._names) - 1}, got {sorted(set(cls.tolist()))}")
        k = self._keypoints.count if self._keypoints else 0
        if keypoints is not None and k == 0:
            raise UsageError(f"{name}: keypoints must be declared: create(..., keypoints=Keypoints(count=K))")
        points = np.zeros((n, k, 3)) if keypoints is None else _array(f"{name}: keypoints", keypoints, np.float64, (n, k, 3))
        flags = np.zeros(n, np.uint8)
        if crowd is not None:
            flags[_array(f"{name}: crowd", crowd, np.bool_, (n,))] = CROWD

        parts: list[list[npt.NDArray[np.float64]]] = [[] for _ in range(n)]
        kind = np.full(n, BOX, np.uint8)
        if quads is not None:
            parts, kind = [[quad] for quad in quads], np.full(n, OBB, np.uint8)
        for i, outline in enumerate(polygons or ()):
            if outline is not None:
                parts[i] = [_array(f"{name}: polygon {i}", ring, np.float64, (None, 2)) for ring in outline]
                kind[i] = POLYGON
                if any(len(ring) < 3 for ring in parts[i]) or not parts[i]:
                    raise UsageError(f"{name}: polygon {i} must have parts of at least 3 points")
        missing = (kind == BOX) if xyxy is None else np.zeros(n, np.bool_)
        if missing.any():
            raise UsageError(
                f"{name}: boxes must be given for objects without a polygon, got none for object {int(missing.argmax())}"
            )
        rings = [ring for own in parts for ring in own]
        return Rows(
            unit="px",
            file=name,
            place="object",
            cls=cls,
            xyxy=np.zeros((n, 4)) if xyxy is None else xyxy,
            has_box=np.full(n, xyxy is not None),
            kind=kind,
            flags=flags,
            where=np.arange(1, n + 1),
            area=np.full(n, np.nan),
            part_offsets=np.cumsum([0, *(len(own) for own in parts)]),
            point_offsets=np.cumsum([0, *(len(ring) for ring in rings)]),
            points=np.concatenate(rings) if rings else np.zeros((0, 2)),
            keypoints=points,
            rle=[None] * n,
        )

    def _task(self) -> Task:
        if self._keypoints:
            return "pose"
        if OBB in self._kinds:
            return "obb"
        return "segment" if self._kinds - {BOX} else "detect"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._writer.abandon()
            return
        if not self._splits:
            self._writer.abandon()
            raise UsageError("a store must hold at least one picture, got none")
        manifest = Manifest(
            names=self._names,
            codec=self._settings["codec"],
            task=self._task(),
            channels=self._channels.pop() if len(self._channels) == 1 else 3,
            imgsz=self._settings["imgsz"],
            resample=self._settings["resample"] if self._settings["imgsz"] is not None else None,
            quality=self._settings["quality"] if self._settings["codec"] != "raw" else None,
            category_ids=tuple(range(len(self._names))),
            keypoints=self._keypoints,
            source="create",
        )
        try:
            self._writer.publish(manifest, [])
        except BaseException:
            self._writer.abandon()
            raise
        if self.problems:
            first = self.problems[0]
            warnings.warn(
                f"{len(self.problems)} label rows were clipped, changed or dropped; the first: {first.file}: "
                f"object {first.object}: {first.kind}: {first.detail}; all of them are in .problems",
                stacklevel=2,
            )


def _pixels(image: Picture, name: str) -> npt.NDArray[np.uint8]:
    """Return (H, W, 3) or (H, W) uint8, decoded where needed."""
    if isinstance(image, str | os.PathLike):
        image = Path(image).read_bytes()
    if isinstance(image, bytes | bytearray | memoryview):
        picture = decode_image(bytes(image))
        if isinstance(picture, Refused):
            raise DataError(f"{name}: {picture.reason}: {picture.detail}")
        return picture.rgb
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or array.size == 0:
        raise UsageError(f"{name}: image must be uint8 of shape (H, W, 3) in RGB or (H, W), got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _array(name: str, values: npt.ArrayLike, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values, dtype)
        given = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as err:
        raise UsageError(f"{name} must be numbers of one shape, got {err}") from None
    if given.size and (given.dtype.kind not in "biuf" or not np.array_equal(array, given, equal_nan=given.dtype.kind == "f")):
        raise UsageError(
            f"{name} must be of type {np.dtype(dtype)} without loss, got {given.dtype}: {given.ravel()[:3].tolist()}"
        )
    if array.size == 0 and not shape[0]:
        return np.zeros((0, *(s or 0 for s in shape[1:])), dtype)  # an empty list has lost its shape
    if array.ndim != len(shape) or any(s is not None and s != a for s, a in zip(shape, array.shape, strict=True)):
        want = ", ".join("n" if s is None else str(s) for s in shape)
        raise UsageError(f"{name} must be of shape ({want}), got {array.shape}")
    return array
