"""The data of the GPU benchmarks.

Photographs from a folder (``images/*.jpg`` and ``labels/*.txt``, YOLO boxes), copied until there are as many pictures as asked
for, converted to a raw and a JPEG store; then each store gets several entries per record, so that an epoch is as long as one of a
large set (COCO has 118,000 pictures) while there are no more pixels than the copies have. Without photographs, pictures are
invented.
"""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rows import Rows, say

CLASSES = 80
"""Of COCO, whose boxes the photographs have."""
VAL_IMAGES = 128


@dataclass(frozen=True, slots=True)
class Data:
    """Where the data are."""

    folder: Path
    yaml: Path
    raw: Path
    jpeg: Path


def data_of(folder: Path) -> Data:
    """Return where :func:`prepare` puts things."""
    return Data(folder, folder / "source" / "data.yaml", folder / "raw.lmdb", folder / "jpeg.lmdb")


def prepare(photos: Path | None, folder: Path, images: int, repeat: int, imgsz: int, rows: Rows, codec: str = "jpeg") -> Data:
    """Make the data unless they are there.

    Args:
        photos: Folder of the photographs; ``None``: invent them.
        folder: Is made.
        images: Copies for training.
        repeat: Entries per record of the stores.
        imgsz: Long side of the stored pictures, px.
        rows: Get the times.
        codec: Of the second store: ``jpeg`` (encoded anew) or ``original`` (the published bytes, at their size).
    """
    data, wanted = data_of(folder), {"images": images, "repeat": repeat, "imgsz": imgsz, "codec": codec}
    mark = folder / "ready.json"
    if mark.exists() and json.loads(mark.read_text()) == wanted:
        return data
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    write_source(photos, data.yaml.parent, images)
    say(f"{images} copies in {time.perf_counter() - start:.1f} s")
    for out, kept in ((data.raw, "raw"), (data.jpeg, codec)):
        _convert(data.yaml, out, kept, imgsz, images, repeat, rows)
    mark.write_text(json.dumps(wanted))
    return data


def _convert(source: Path, out: Path, codec: str, imgsz: int, images: int, repeat: int, rows: Rows) -> None:
    import fastdata
    from fastdata.conversion.options import ConvertOptions
    from fastdata.sources.scan import SourceOptions

    once = out.with_name(f"once-{out.name}")
    options: dict[str, Any] = {"imgsz": None if codec == "original" else imgsz, "codec": codec}
    done = fastdata.convert(source, once, ConvertOptions(SourceOptions(task="detect"), kind="yolo", **options))
    rows.add(f"convert to {codec}", [images / done.seconds], "images/s", images=images, nbytes=done.store_nbytes)
    start = time.perf_counter()
    if repeat == 1:
        once.rename(out)
    else:
        repeat_entries(once, out, repeat)
        once.unlink()
    say(f"{codec}: {repeat} entries per record in {time.perf_counter() - start:.1f} s")


def repeat_entries(source: Path, out: Path, repeat: int) -> None:
    """Write a store again, with several entries per record of its training split."""
    import fastdata
    from fastdata.store.format import ENCODINGS
    from fastdata.store.write import Entry, Record, StoreWriter

    records = 0
    with StoreWriter.begin(out, fingerprint=f"{source.name} x {repeat}", keypoints=0, overwrite=True) as writer:
        for split, times in (("train", repeat), ("val", 1)):
            writer.begin_split(split)
            with fastdata.open_store(source, split) as store:
                c, manifest = store.catalog, store.manifest
                shown = []
                for i in range(len(store)):
                    r, e = int(c.entry_record[store.entry(i)]), store.entry(i)
                    hw = (int(c.rec_hw[r, 0]), int(c.rec_hw[r, 1]))
                    encoding = ENCODINGS[c.rec_encoding[r]]
                    writer.add_record(Record(store.read_record(r), encoding, hw, int(c.rec_channels[r]), int(c.rec_crc[r])))
                    shown.append((records + i, tuple(c.entry_original_hw[e].tolist()), store.instances(i)))
                for k in range(times):
                    for i, (r, original_hw, instances) in enumerate(shown):
                        writer.add_entry(Entry(f"{split}/{k:03d}_{i:07d}.jpg", r, original_hw, instances))
                records += len(store)
        kept = {name: getattr(manifest, name) for name in ("names", "codec", "task", "imgsz", "resample", "quality")}
        writer.publish(type(manifest)(**kept))


def write_source(photos: Path | None, folder: Path, images: int) -> None:
    """Write a YOLO set of copies, and its data.yaml: real copies, not links, so that each has its own pages of the page cache."""
    if photos is None:
        photos = folder.parent / "invented"
        invent(photos, 16)
    found = sorted((photos / "images").glob("*.jpg"))
    if not found:
        raise FileNotFoundError(f"photographs must lie in {photos / 'images'}/*.jpg, got none there")
    jobs = [(p, "train", k) for k in range(-(-images // len(found))) for p in found][:images]
    jobs += [(p, "val", 0) for p in found[:VAL_IMAGES]]
    for kind in ("images", "labels"):
        for split in ("train", "val"):
            (folder / kind / split).mkdir(parents=True)

    def copy(job: tuple[Path, str, int]) -> None:
        photo, split, k = job
        shutil.copyfile(photo, folder / "images" / split / f"{photo.stem}_{k}.jpg")
        boxes = photos / "labels" / f"{photo.stem}.txt"
        if boxes.exists():
            shutil.copyfile(boxes, folder / "labels" / split / f"{photo.stem}_{k}.txt")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(copy, jobs))
    names = "\n".join(f"  {c}: class {c}" for c in range(CLASSES))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n{names}\n")


def invent(folder: Path, images: int, size_hw: tuple[int, int] = (48, 64)) -> None:
    """Write smooth pictures with two boxes each."""
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for i in range(images):
        coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
        cv2.imwrite(str(folder / "images" / f"{i:03d}.jpg"), cv2.resize(coarse, size_hw[::-1], interpolation=cv2.INTER_CUBIC))
        boxes = [f"{i % CLASSES} {x:.2f} 0.5 0.3 0.4" for x in (0.3, 0.7)]
        (folder / "labels" / f"{i:03d}.txt").write_text("\n".join(boxes) + "\n")
