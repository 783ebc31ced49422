"""Store → a dataset as trainers and tools read it: labels, and the stored pictures.

Everything is written to a folder beside the target and renamed at the end, so the target is the whole export or what it was
before. Pictures lie in ``images/<split>/``: an encoded record as its very bytes, a raw one as PNG (or JPEG on request). COCO has
``annotations/instances_<split>.json``, YOLO ``labels/<split>/`` and ``data.yaml``.

With ``images=False`` labels belong to the published pictures: COCO's pixels are theirs, and its file names are the keys.

What the formats can say is decided in ``export_coco`` and ``export_yolo``; what they cannot is counted by :data:`COUNTS`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2

from fastdata import __version__, export_coco, export_yolo
from fastdata.conversion.run import Listener, Progress
from fastdata.errors import UsageError
from fastdata.export_files import Writer, file_names, folder_name, new_folder
from fastdata.pixels import encode, to_interleaved
from fastdata.settle import scaled

if TYPE_CHECKING:
    from rich.table import Table

    from fastdata.store.read import Store

Format = Literal["coco", "yolo"]
ImageFormat = Literal["png", "jpg"]

JPEG_QUALITY = 95
"""Of raw pictures written as JPEG."""

RAW, JPEG = 0, 1
"""Values of the catalog's ``rec_encoding``."""

SUFFIXES = {"png": (".png",), "jpg": (".jpg", ".jpeg"), "webp": (".webp",)}
"""Endings that suit what a file holds; the first is given to a file with another one."""

COUNTS = {
    "crowd": "crowd objects left out: a YOLO row cannot say what they are",
    "bridged": "objects of several parts or with holes joined into one outline by bridges of no width",
    "traced": "of these have parts that overlap: the outline of their pixels was taken",
    "outlines": "outlines left out: rows of this dataset hold boxes",
    "outlines_as_rectangles": "outlines written as the smallest rectangle around them",
    "boxes_as_outlines": "boxes written as outlines of four corners, since trainers drop files that mix the two",
    "boxes_of_outlines": "boxes differ from the bounds of their outline, which stand for them now",
    "oriented_as_outlines": "oriented boxes written as outlines of four corners",
    "masks_as_outlines": "masks without a pixel centre in them written as outlines",
    "flags": "objects are marked difficult or truncated, for which the format has no place",
}
"""What an export could not say as the store has it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of an export."""

    path: Path
    format: Format
    splits: dict[str, int]
    """Pictures in each split."""
    instances: int
    """Objects written."""
    nbytes: int
    """Of the pictures written."""
    counts: dict[str, int]
    """By the keys of :data:`COUNTS`, those that are not 0."""
    remarks: tuple[str, ...]
    """What else a person should know."""
    seconds: float

    @property
    def images(self) -> int:
        """Pictures whose labels were written."""
        return sum(self.splits.values())

    @property
    def notes(self) -> list[str]:
        """Counts and remarks, one sentence each."""
        return [f"{count:,} {COUNTS[key]}" for key, count in self.counts.items()] + list(self.remarks)

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {**asdict(self), "path": str(self.path), "images": self.images, "notes": self.notes}


def render(done: Exported) -> Table:
    """Say what came of an export, for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(title=f"{done.path}", box=box.SIMPLE, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("format", done.format.upper())
    table.add_row("images", f"{done.images:,} ({', '.join(f'{name} {count:,}' for name, count in done.splits.items())})")
    table.add_row("objects", f"{done.instances:,}")
    table.add_row("bytes", f"{done.nbytes / 1e6:,.1f} MB of pictures" if done.nbytes else "labels alone")
    for note in done.notes:
        table.add_row("note", note)
    table.add_row("time", f"{done.seconds:.1f} s")
    return table


def export(
    store: Store,
    dst: str | os.PathLike[str],
    *,
    format: Format,
    images: bool = True,
    image_format: ImageFormat = "png",
    overwrite: bool = False,
    listener: Listener | None = None,
) -> Exported:
    """Write the labels and pictures of a store as a dataset.

    Args:
        store: All its splits, or the one that it was opened for.
        dst: Folder to make; must not be there yet, or be empty.
        format: ``coco`` or ``yolo``.
        images: Write the pictures too.
        image_format: What raw pictures become: ``png`` keeps every pixel, ``jpg`` has quality 95.
        overwrite: Replace an earlier export.
        listener: Called now and then with the progress.

    Raises:
        UsageError: The target is in use, or an argument breaks its rule.
        StoreError: A record is damaged.
        OSError: No space, no permission.
    """
    began = time.monotonic()
    for name, value, choices in (("format", format, ("coco", "yolo")), ("image_format", image_format, ("png", "jpg"))):
        if value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value}")
    run = _Run(store, images, image_format, listener or (lambda progress: None))
    with new_folder(Path(dst), overwrite=overwrite, source=Path(store.path)) as folder:
        remarks = run.coco(folder) if format == "coco" else run.yolo(folder)
    return Exported(
        path=Path(dst),
        format=format,
        splits={split.name: len(split.ids) for split in run.splits},
        instances=run.counts["instances"],
        nbytes=run.nbytes,
        counts={key: run.counts[key] for key in COUNTS if run.counts[key]},
        remarks=tuple(remarks),
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """One split of the opened store."""

    name: str
    folder: str
    """Its name as part of a path."""
    ids: range
    """Positions in the opened store."""
    first: int
    """Entry of the catalog at the first position."""

    @property
    def entries(self) -> slice:
        """Its entries in the catalog."""
        return slice(self.first, self.first + len(self.ids))


def _splits(store: Store) -> list[_Split]:
    wanted = store.manifest.splits if store.split is None else {store.split: store.manifest.splits[store.split]}
    base = store.entry_range.start
    out: list[_Split] = []
    for name, (start, stop) in wanted.items():
        folder = folder_name(name)
        while folder in {split.folder for split in out}:
            folder += "_"
        out.append(_Split(name, folder, range(start - base, stop - base), start))
    return out


def _shows_parts(store: Store) -> bool:
    """Tell whether some entry shows less than its whole record."""
    catalog = store.catalog
    rect, hw = catalog.entry_rect, catalog.rec_hw[catalog.entry_record]
    return bool((rect[:, 3] - rect[:, 1] != hw[:, 0]).any() or (rect[:, 2] - rect[:, 0] != hw[:, 1]).any())


class _Run:
    """One export: what it reads, and what it has counted."""

    def __init__(self, store: Store, images: bool, image_format: ImageFormat, tell: Listener) -> None:
        self.store, self.images, self.image_format, self.tell = store, images, image_format, tell
        self.splits = _splits(store)
        if not images and _shows_parts(store):
            raise UsageError("images must be written too for a store whose entries show parts of pictures, got images=False")
        self.counts: Counter[str] = Counter()
        self.nbytes = self.done = 0
        self.told = -1.0

    # YOLO

    def yolo(self, folder: Path) -> list[str]:
        """Write images/, labels/ and data.yaml."""
        store = self.store
        form = export_yolo.choose_form(store.manifest, store.catalog)
        columns = export_yolo.keypoint_columns(store.manifest, store.catalog)
        for split in self.splits:
            with Writer() as writer:
                for i, name in zip(split.ids, self._names(split), strict=True):
                    text = export_yolo.rows_text(store.instances(i), self._stored_hw(i), form, columns, self.counts)
                    writer.put(folder / "labels" / split.folder / f"{os.path.splitext(name)[0]}.txt", text.encode("ascii"))
                    self._write_picture(writer, folder, split, i, name)
                    self._step()
            self.nbytes += writer.nbytes
        folders = {split.name: f"images/{split.folder}" for split in self.splits}
        description, remarks = export_yolo.data_yaml(store.names, folders, form, store.manifest.keypoints, columns)
        (folder / "data.yaml").write_bytes(description)
        return remarks

    # COCO

    def coco(self, folder: Path) -> list[str]:
        """Write images/ and annotations/."""
        (folder / "annotations").mkdir()
        manifest = self.store.manifest
        head = {
            "info": {"description": Path(self.store.path).name, "version": f"fastdata {__version__}"},
            "categories": export_coco.categories(manifest),
        }
        kind = "instances" if manifest.keypoints is None else "person_keypoints"
        for split in self.splits:
            image_ids = export_coco.image_ids(self.store.catalog.entry_image_id[split.entries], split.first)
            with Writer() as writer, open(folder / "annotations" / f"{kind}_{split.folder}.json", "w", encoding="ascii") as out:
                pictures = self._coco_images(writer, folder, split, image_ids.tolist())
                export_coco.write_json(out, head, pictures, self._coco_labels(split, image_ids.tolist()))
            self.nbytes += writer.nbytes
        return []

    def _coco_images(self, writer: Writer, folder: Path, split: _Split, image_ids: list[int]) -> Iterator[dict[str, Any]]:
        names = self._names(split) if self.images else [self.store.key(i) for i in split.ids]
        for i, name, number in zip(split.ids, names, image_ids, strict=True):
            self._write_picture(writer, folder, split, i, name)
            h, w = self._label_hw(i)
            yield {"id": number, "file_name": name, "width": w, "height": h}
            self._step()

    def _coco_labels(self, split: _Split, image_ids: list[int]) -> Iterator[dict[str, Any]]:
        manifest, catalog = self.store.manifest, self.store.catalog
        first, stop = (int(catalog.inst_offsets[e]) for e in (split.entries.start, split.entries.stop))
        ids = export_coco.annotation_ids(catalog, first, stop, manifest.source)
        category_ids = [category["id"] for category in export_coco.categories(manifest)]
        at = 0
        for i, number in zip(split.ids, image_ids, strict=True):
            hw = self._label_hw(i)
            instances = scaled(self.store.instances(i), self._stored_hw(i), hw)
            own = ids[at : at + len(instances)].tolist()
            at += len(instances)
            yield from export_coco.annotation_rows(
                instances, hw, image_id=number, ids=own, category_ids=category_ids, counts=self.counts
            )

    # Both

    def _names(self, split: _Split) -> list[str]:
        """Return the file name of each picture, relative to the split's folder."""
        suffixes = [SUFFIXES[self._written_as(i)] if self.images else () for i in split.ids]
        return file_names((self.store.key(i) for i in split.ids), suffixes)

    def _written_as(self, i: int) -> str:
        """Return "jpg", "webp" or "png": what the picture's file will hold."""
        if not self._keeps_bytes(i):
            return self.image_format
        record = int(self.store.catalog.entry_record[self.store.entry(i)])
        return "jpg" if int(self.store.catalog.rec_encoding[record]) == JPEG else "webp"

    def _keeps_bytes(self, i: int) -> bool:
        catalog = self.store.catalog
        record = int(catalog.entry_record[self.store.entry(i)])
        whole = self._stored_hw(i) == tuple(catalog.rec_hw[record].tolist())
        return whole and int(catalog.rec_encoding[record]) != RAW

    def _write_picture(self, writer: Writer, folder: Path, split: _Split, i: int, name: str) -> None:
        if self.images:
            writer.later(folder / "images" / split.folder / name, partial(self._picture, i))

    def _picture(self, i: int) -> bytes:
        """Return the bytes of one picture's file; called in threads."""
        if self._keeps_bytes(i):
            return bytes(self.store.read(i))
        planes = self.store.image(i)
        rgb = to_interleaved(planes)
        if self.image_format == "jpg":
            return encode(rgb, "jpeg", JPEG_QUALITY).tobytes()
        done, data = cv2.imencode(".png", rgb if len(planes) == 1 else cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
        assert done
        return bytes(data)

    def _stored_hw(self, i: int) -> tuple[int, int]:
        return self.store.catalog.size_hw(self.store.entry(i))

    def _label_hw(self, i: int) -> tuple[int, int]:
        """Return the size of the picture that labels belong to: the one written, or else the published one."""
        if self.images:
            return self._stored_hw(i)
        h, w = self.store.catalog.entry_original_hw[self.store.entry(i)].tolist()
        return h, w

    def _step(self) -> None:
        self.done += 1
        if time.monotonic() - self.told > 0.1 or self.done == len(self.store):
            self.told = time.monotonic()
            self.tell(Progress("export", self.done, len(self.store), self.nbytes, 0))
