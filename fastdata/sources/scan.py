"""What a reader hands over: every image and every label row of a dataset, as flat tables; nothing decoded, nothing clipped.

``Scan.rows(i)`` gives the published rows of image i. Rows are kept in spooled columns (files), so a set of a million images needs
no more memory than one of a thousand; the image table is flat arrays, about 100 bytes an image.

Readers are functions ``read(src, *, options) -> Scan``: sources/yolo.py, coco.py, voc.py, dota.py. A reader never writes below
the source and never runs or fetches anything that a dataset names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastdata.labels import Rows
from fastdata.problems import Problem, Skip
from fastdata.spool import Column

OnError = Literal["safe", "skip", "raise"]
Task = Literal["detect", "segment", "pose", "obb"]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a user may say about a dataset. ``None`` means: as the dataset says, or as detected."""

    splits: tuple[str, ...] | None = None
    """Read these splits only, in this order; an unknown one is an error that lists the splits there are."""
    images: Path | None = None
    """Root folder of the images, where the labels do not lead to them."""
    labels: Path | None = None
    """Root folder of the labels, where the images do not lead to them."""
    names: tuple[str, ...] | None = None
    """Class names, in order of their index."""
    task: Task | None = None
    """Decides what 9 columns of a YOLO row are: a polygon (detect, segment) or an oriented box (obb)."""
    single_cls: bool = False
    """Every class becomes 0, before any range check."""
    voc_origin: Literal["auto", "one", "zero"] = "auto"
    """How Pascal VOC boxes count: ``one`` from 1 with the last pixel inside, ``zero`` as edges; ``auto`` lets the set decide."""
    on_error: OnError = "safe"
    """``safe`` stops only where the set is misread (:data:`problems.FATAL`), ``skip`` never, ``raise`` at every fault."""
    spool_folder: Path | None = None
    """Where the temporary columns lie; the system's temporary folder by default."""


class Strings:
    """A growing list of byte strings as one buffer and its offsets: no Python object per string is kept.

    Text is stored as file names are (``os.fsencode``: UTF-8 with surrogateescape), so every name that a disk accepts comes back.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends: npt.NDArray[np.int64] = np.zeros(1024, np.int64)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def append(self, text: str) -> None:
        """Append one string."""
        self._bytes += text.encode("utf-8", "surrogateescape")
        if self._n == len(self._ends):
            self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
        self._ends[self._n] = len(self._bytes)
        self._n += 1

    def __getitem__(self, i: int) -> str:
        if not 0 <= i < self._n:
            raise IndexError(i)
        start = int(self._ends[i - 1]) if i else 0
        return self._bytes[start : int(self._ends[i])].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(self._n))


@dataclass(slots=True)
class LabelFile:
    """One file that labels were read from: for ``verify --source``."""

    path: str
    """Relative to the dataset's root (absolute when it lies elsewhere)."""
    digest: bytes
    """16 bytes: BLAKE2b of the whole file."""


@dataclass(slots=True)
class Scan:
    """A dataset as published. N images, M rows."""

    source: Literal["yolo", "coco", "voc", "dota"]
    root: Path
    """Folder that every key is relative to."""
    names: tuple[str, ...]
    """Class names by index."""
    category_ids: tuple[int, ...]
    """Published id of each class; 0..n-1 where the format has none."""
    splits: tuple[str, ...]
    """Split names; ``split`` holds indices into them."""
    task: Task
    keypoint_names: tuple[str, ...] = ()
    flip_idx: tuple[int, ...] = ()
    """For each keypoint the one that it becomes under a left-right mirror; () when unknown."""
    skeleton: tuple[tuple[int, int], ...] = ()
    """Pairs of keypoint indices (from 0) that a drawing joins."""
    keypoints: int = 0
    """K: keypoints per object."""
    keypoint_dims: int = 3
    """2 or 3 columns per keypoint in the published rows (needed to write them back)."""
    keys: Strings = field(default_factory=Strings)
    """(N) path relative to the root, extension included, '/' as separator: unique."""
    paths: Strings = field(default_factory=Strings)
    """(N) where the image is read from: absolute."""
    split: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """(N,)"""
    image_id: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(N,) published id, -1 where the format has none."""
    nbytes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(N,) size of the image file; -1 when it is not there."""
    mtime_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(N,) modification time of the image file; 0 when it is not there."""
    table: RowTable | None = None
    """The label rows of all images."""
    label_files: list[LabelFile] = field(default_factory=list)
    """Every file that labels or the image list came from."""
    problems: list[Problem] = field(default_factory=list)
    """What the reader found, in the order of the dataset."""
    skips: list[Skip] = field(default_factory=list)
    """Images that the reader itself leaves out (listed twice, ...); files that are not there are left to the conversion."""
    rows_in: int = 0
    """Label rows found, kept or not (blank lines and comments do not count)."""
    rows_dropped: int = 0
    """Rows that the reader itself dropped (columns, bad-number, class-range, duplicate, unknown-image, ...)."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Rules chosen by looking at the data, for the manifest: {"voc-origin": "1-based", "label-rule": "images->labels"}."""

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, i: int) -> Rows:
        """Return the published rows of image ``i``."""
        assert self.table is not None
        return self.table.rows(i)

    def count_by_split(self) -> dict[str, int]:
        """Return the number of images listed in each split."""
        counts = np.bincount(self.split, minlength=len(self.splits))
        return {name: int(count) for name, count in zip(self.splits, counts, strict=True)}


class RowTable:
    """The published rows of N images in spooled columns.

    Args:
        unit: As in :class:`Rows`.
        place: As in :class:`Rows`.
        keypoints: K.
        folder: Where the temporary files lie.

    Use: ``add`` blocks in any order of images, then ``finish(n_images, ...)`` once, then ``rows(i)``. The order of rows within
    an image is the order in which they were added. ``share`` and ``reopen`` give a finished table to another process, which maps
    the same files.
    """

    def __init__(
        self,
        unit: Literal["norm", "px"],
        place: Literal["line", "annotation_id", "object"],
        keypoints: int,
        folder: Path | None = None,
        *,
        fds: dict[str, int] | None = None,
    ) -> None:
        self.unit: Literal["norm", "px"] = unit
        self.place: Literal["line", "annotation_id", "object"] = place
        self.keypoints = keypoints
        self._columns = {
            name: Column(dtype, (keypoints, 3) if name == "keypoints" else shape, folder=folder, fd=fds[name] if fds else None)
            for name, (dtype, shape) in _ROW_COLUMNS.items()
        }
        if fds is None:
            for name in ("parts", "ring_ends", "rle_ends"):
                self._columns[name].append(np.zeros(1, np.int64))
        self._parts = self._points = self._rle = 0
        self._view: dict[str, npt.NDArray[Any]] = {}
        self._files: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self._columns["image"])

    def add(self, image: npt.NDArray[np.int64], rows: Rows) -> None:
        """Append a block of rows. ``image`` (n,) is the index of the image that each row belongs to.

        ``rows.file`` and ``rows.declared_hw`` are not kept here: ``finish`` gets them for all images at once.
        """
        n = len(rows)
        if image.shape != (n,):
            raise ValueError(f"image must be of shape ({n}), got {image.shape}")
        if rows.keypoints.shape != (n, self.keypoints, 3):
            raise ValueError(f"keypoints must be of shape (n x {self.keypoints} x 3), got {rows.keypoints.shape}")
        c = self._columns
        c["image"].append(image)
        for name in ("cls", "xyxy", "has_box", "kind", "flags", "where", "area", "points"):
            c[name].append(getattr(rows, name))
        c["parts"].append(rows.part_offsets[1:] + self._parts)
        c["ring_ends"].append(rows.point_offsets[1:] + self._points)
        if self.keypoints:
            c["keypoints"].append(rows.keypoints)
        self._parts += int(rows.part_offsets[-1])
        self._points += int(rows.point_offsets[-1])
        lengths = np.array([len(r) if r else 0 for r in rows.rle], np.int64)
        c["rle_ends"].append(np.cumsum(lengths) + self._rle)
        self._rle += int(lengths.sum())
        c["rle"].append(np.frombuffer(b"".join(r for r in rows.rle if r), np.uint8))

    def finish(
        self,
        images: int,
        files: Sequence[str],
        file_of: npt.NDArray[np.int32],
        declared_hw: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Sort by image.

        Args:
            images: N.
            files: Names of label files, for reports.
            file_of: (N,) index into ``files`` of each image's label file, -1 for none.
            declared_hw: (N, 2) stated sizes, 0 where there is none.
        """
        image = self._columns["image"].array()
        if len(image) and (image.min() < 0 or image.max() >= images):
            wrong = int(image.max()) if image.max() >= images else int(image.min())
            raise ValueError(f"image must be 0..{images - 1}, got {wrong}")
        if len(image) and bool((np.diff(image) < 0).any()):
            self._columns["order"].append(np.argsort(image, kind="stable"))
        counts = np.bincount(image, minlength=images) if len(image) else np.zeros(images, np.int64)
        self._columns["starts"].append(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
        self._columns["file_of"].append(file_of)
        self._columns["declared_hw"].append(np.zeros((images, 2), np.int32) if declared_hw is None else declared_hw)
        self._files = files
        self._map()

    def _map(self) -> None:
        self._view = {name: column.array() for name, column in self._columns.items()}

    def share(self) -> tuple[tuple[Literal["norm", "px"], Literal["line", "annotation_id", "object"], int], dict[str, int]]:
        """Return what ``reopen`` needs: the three settings and the descriptor of every column."""
        return (self.unit, self.place, self.keypoints), {name: column.fileno() for name, column in self._columns.items()}

    @classmethod
    def reopen(
        cls,
        settings: tuple[Literal["norm", "px"], Literal["line", "annotation_id", "object"], int],
        fds: dict[str, int],
    ) -> RowTable:
        """Map a finished table of another process. Names of label files do not come along: ``rows(i, file=...)`` takes them."""
        table = cls(*settings, fds=fds)
        table._map()
        return table

    def counts(self) -> npt.NDArray[np.int64]:
        """Return (N,) rows per image."""
        return np.diff(self._view["starts"])

    def column(self, name: Literal["cls", "kind", "flags"]) -> npt.NDArray[Any]:
        """Return one whole column (M,) in the order in which rows were added."""
        return self._view[name]

    def declared_hw(self) -> npt.NDArray[np.int32]:
        """Return (N, 2) stated picture sizes, 0 where there is none."""
        return self._view["declared_hw"]

    def file(self, i: int) -> str:
        """Return the name of the label file of image ``i``, "" for none."""
        at = int(self._view["file_of"][i])
        return self._files[at] if at >= 0 else ""

    def rows(self, i: int, *, file: str | None = None) -> Rows:
        """Return the rows of image ``i``."""
        v = self._view
        start, stop = int(v["starts"][i]), int(v["starts"][i + 1])
        n = stop - start
        at: npt.NDArray[np.int64] | slice = slice(start, stop)
        if n and len(v["order"]):
            at = v["order"][start:stop]
            if int(at[-1]) - int(at[0]) == n - 1:  # ascending, so without a gap
                at = slice(int(at[0]), int(at[0]) + n)
        if isinstance(at, slice):
            part_offsets, point_offsets, points = self._outlines(at.start, at.stop)
        else:
            outlines = [self._outlines(k, k + 1) for k in at.tolist()]
            part_offsets = _offsets([int(p[-1]) for p, _, _ in outlines])
            point_offsets = _offsets(np.concatenate([np.diff(q) for _, q, _ in outlines]))
            points = np.concatenate([xy for _, _, xy in outlines])
        rle: list[bytes | None] = [None] * n
        if len(v["rle"]):
            ends = v["rle_ends"]
            numbers = range(at.start, at.stop) if isinstance(at, slice) else at.tolist()
            rle = [v["rle"][int(ends[k]) : int(ends[k + 1])].tobytes() or None for k in numbers]
        h, w = v["declared_hw"][i].tolist()
        return Rows(
            unit=self.unit,
            file=self.file(i) if file is None else file,
            place=self.place,
            cls=v["cls"][at],
            xyxy=v["xyxy"][at],
            has_box=v["has_box"][at],
            kind=v["kind"][at],
            flags=v["flags"][at],
            where=v["where"][at],
            area=v["area"][at],
            part_offsets=part_offsets,
            point_offsets=point_offsets,
            points=points,
            keypoints=v["keypoints"][at] if self.keypoints else np.zeros((n, 0, 3), np.float64),
            rle=rle,
            declared_hw=(h, w) if h > 0 and w > 0 else None,
        )

    def _outlines(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return part offsets, point offsets and points of rows ``start:stop`` as they were added."""
        parts, rings = self._view["parts"][start : stop + 1], self._view["ring_ends"]
        first, last = int(parts[0]), int(parts[-1])
        points = rings[first : last + 1]
        return parts - first, points - points[0], self._view["points"][int(points[0]) : int(points[-1])]


_ROW_COLUMNS: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]] = {
    "image": (np.int64, ()),
    "cls": (np.int32, ()),
    "xyxy": (np.float64, (4,)),
    "has_box": (np.bool_, ()),
    "kind": (np.uint8, ()),
    "flags": (np.uint8, ()),
    "where": (np.int64, ()),
    "area": (np.float64, ()),
    "parts": (np.int64, ()),  # cumulative, from 0: where the row's parts end
    "ring_ends": (np.int64, ()),  # cumulative, from 0: where the part's points end
    "points": (np.float64, (2,)),
    "rle_ends": (np.int64, ()),  # cumulative, from 0: where the row's run lengths end
    "rle": (np.uint8, ()),
    "keypoints": (np.float64, ()),  # (K, 3) a row
    "order": (np.int64, ()),  # rows sorted by image; empty when they came sorted
    "starts": (np.int64, ()),  # (N + 1,) first row of each image in that order
    "file_of": (np.int32, ()),
    "declared_hw": (np.int32, (2,)),
}


def _offsets(lengths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out
