"""Small stores of every task to train on, converted or made by hand, and what a sample looks like in bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fastdata
from fastdata.catalog import Keypoints
from fastdata.conversion.options import ConvertOptions
from fastdata.sources.scan import SourceOptions
from fastdata.store.read import Store
from fastdata.synth import Task, write_dataset

TASKS: tuple[Task, ...] = ("detect", "segment", "pose", "obb")

COLOURS = np.array(
    [[200, 0, 0], [0, 200, 0], [0, 0, 200], [200, 200, 0], [0, 200, 200], [200, 0, 200], [250, 250, 250], [10, 10, 10]], np.uint8
)
"""Of the flat pictures; no two alike, and none the trainers' gray."""


def converted(
    folder: Path,
    task: Task = "detect",
    images: int = 8,
    *,
    splits: Mapping[str, float] | None = None,
    imgsz: int | None = 64,
    size_hw: Sequence[tuple[int, int]] = ((48, 64), (64, 48), (40, 40)),
    background_share: float = 0.2,
    seed: int = 0,
) -> Path:
    """Write an invented dataset into ``folder/source`` and convert it to ``folder/<task>.lmdb``; one split, train, by default."""
    source = write_dataset(
        folder / "source",
        images,
        task=task,
        splits=splits or {"train": 1},
        size_hw=size_hw,
        seed=seed,
        background_share=background_share,
        workers=1,
    )
    out = folder / f"{task}.lmdb"
    fastdata.convert(source, out, ConvertOptions(SourceOptions(task=task), imgsz=imgsz, codec="raw", workers=1))
    return out


def flat(folder: Path, images: int = 8, size_hw: tuple[int, int] = (32, 32), name: str = "flat.lmdb") -> Path:
    """A store of pictures of one colour each, with one box each that leaves a margin of a quarter."""
    h, w = size_hw
    out = folder / name
    with fastdata.create(out, names=["thing", "other"]) as writer:
        for i in range(images):
            picture = np.broadcast_to(COLOURS[i % len(COLOURS)], (h, w, 3)).copy()
            writer.add(picture, boxes=[[w / 4, h / 4, 3 * w / 4, 3 * h / 4]], classes=[i % 2], key=f"{i:03d}.png")
    return out


def empty(folder: Path, images: int = 2, *, keypoints: Keypoints | None = None) -> Path:
    """A store whose pictures have no label."""
    out = folder / "empty.lmdb"
    with fastdata.create(out, names=["thing"], keypoints=keypoints) as writer:
        for i in range(images):
            writer.add(np.full((32, 32, 3), i, np.uint8), key=f"{i:03d}.png")
    return out


def damage(path: Path, entry: int) -> None:
    """Flip a bit in the record of an entry of an LMDB store of one file."""
    with fastdata.open_store(path) as store:
        record = int(store.catalog.entry_record[entry])
        offset = int(store.catalog.rec_offset[record])
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def opened(path: Path, split: str | None = None) -> Store:
    """The store, opened."""
    return fastdata.open_store(path, split)


def digest(batch: Mapping[str, Any]) -> str:
    """All that a batch or a sample says, down to the last bit."""
    out = hashlib.sha256()
    for key in sorted(batch):
        value = batch[key]
        what = f"{value.dtype} {tuple(value.shape)}" if hasattr(value, "dtype") else repr(value)
        out.update(f"{key} {what} ".encode())
        if hasattr(value, "numpy"):
            out.update(np.ascontiguousarray(value.numpy()).tobytes())
    return out.hexdigest()


def colours_in(picture: np.ndarray[Any, Any]) -> int:
    """How many of the flat colours a (3, H, W) picture has, the trainers' gray and blends at edges left out."""
    pixels = picture.reshape(3, -1).T
    return sum(bool((pixels == colour).all(axis=1).any()) for colour in COLOURS)
