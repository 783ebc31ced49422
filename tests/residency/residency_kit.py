"""Stores of every kind to keep in memory, and the comparison of what is kept with what every renderer loads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from answers_kit import noise
from decode_kit import smooth
from label_kit import Thing, instances

from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.checksum import crc32c
from fastdata.pixels import encode
from fastdata.prefetch import THREAD_NAME
from fastdata.render.tiles import load_tiles
from fastdata.residency import Fetched, Source
from fastdata.residency.visible import visible_rects
from fastdata.samples import Samples
from fastdata.store.format import Manifest
from fastdata.store.write import Entry, Record, StoreWriter

CPU = torch.device("cpu")
Fetch = Callable[[Recipe], Fetched]
KINDS = ("raw", "jpeg", "mixed", "parts")
"""Raw pictures; JPEGs; gray and colour, raw and coded; entries that share records, whole and in part."""
IMGSZ = (64, 96, 32)
"""The pictures' own longest side, and two that need a resize."""
SIZES = ((48, 64), (64, 48), (64, 64), (33, 64), (64, 21))


def stored(folder: Path, kind: str = "raw", images: int = 9) -> Path:
    """Write a store of one split. No picture's number of bytes is a multiple of 16, but for the square ones."""
    pictures = [smooth(*SIZES[i % len(SIZES)], seed=i) if i % 2 else noise(*SIZES[i % len(SIZES)], seed=i) for i in range(images)]
    if kind == "mixed":
        pictures = [np.ascontiguousarray(p[:, :, 1]) if i % 3 == 0 else p for i, p in enumerate(pictures)]
    codecs = {"raw": ["raw"], "parts": ["raw", "jpeg"], "jpeg": ["jpeg"], "mixed": ["jpeg", "raw"]}[kind]
    out = folder / f"{kind}.lmdb"
    with StoreWriter.begin(out, fingerprint="test", keypoints=0) as writer:
        writer.begin_split("train")
        for i, picture in enumerate(pictures):
            codec: Any = codecs[i % len(codecs)]
            payload = encode(picture, codec, 95)
            h, w = picture.shape[:2]
            record = writer.add_record(Record(payload, codec, (h, w), 1 if picture.ndim == 2 else 3, crc32c(payload)))
            rects: Sequence[Any] = [None]
            if kind == "parts":
                rects = [(5, 3, 20, 21), None, None, (5, 3, 20, 21), (0, 0, w, 20)]
            for k, rect in enumerate(rects):
                labels = instances([Thing(0, (2, 2, 12, 12), kind=0)])
                writer.add_entry(Entry(f"{i:03d}-{k}.png", record, (h, w), labels, rect))
        writer.publish(Manifest(names=("thing",), codec="raw", task="detect", keypoints=None, category_ids=(0,)), [])
    return out


def trained(path: Path, imgsz: int = 64, **options: Any) -> Samples:
    """Samples of mosaics of four and nine, of two of them mixed, and of single pictures."""
    policy = Policy(mosaic=0.6, mosaic9=0.3, mixup=0.3, degrees=10)
    return Samples(path, policy=policy, imgsz=imgsz, **options)


def validated(path: Path, imgsz: int = 64, **options: Any) -> Samples:
    """Samples of letterboxed pictures, in batches of their shape."""
    return Samples(path, augment=False, rect=True, imgsz=imgsz, batch_size=4, **options)


def agree(source: Source, samples: Samples, device: Any = CPU, *, whole: bool = True, fetch: Fetch | None = None) -> int:
    """Compare every tile of many batches bit for bit with what a renderer loads; return how many were seen.

    Args:
        source: What is tested.
        samples: Whose batches.
        device: Where its addresses count.
        whole: Compare whole tiles; else what the batch can show of them, for sources that bring no more.
        fetch: Instead of the source's own.
    """
    seen = 0
    for epoch in range(4 if samples.augment else 1):
        for first in range(0, len(samples), samples.batch_size):
            recipe = samples.recipe(np.arange(first, min(first + samples.batch_size, len(samples))), epoch)
            fetched = (fetch or source.fetch)(recipe)
            assert fetched.staged is None
            rects = _whole(recipe) if whole else visible_rects(recipe)
            for row, rect, want in zip(fetched.where, rects, load_tiles(samples.store, recipe), strict=True):
                x0, y0, x1, y1 = rect.tolist()
                if x0 < x1 and want.size:
                    assert np.array_equal(_read(row, rect, device), np.broadcast_to(want[:, y0:y1, x0:x1], (3, y1 - y0, x1 - x0)))
                    seen += 1
    return seen


def _whole(recipe: Recipe) -> Any:
    """All of each tile."""
    return np.concatenate([np.zeros_like(recipe.size_hw), recipe.size_hw[:, ::-1]], axis=1)


def _read(row: Any, rect: Any, device: Any) -> Any:
    """Read a rectangle of a tile from where it is said to be, in three channels."""
    (address, plane, line), (x0, y0, x1, y1) = row.tolist(), rect.tolist()
    assert address
    begin, shape, strides = address + y0 * line + x0, (3, y1 - y0, x1 - x0), (plane, line, 1)
    if device.type == "cpu":
        flat = np.ctypeslib.as_array((ctypes.c_uint8 * (2 * plane + (shape[1] - 1) * line + shape[2])).from_address(begin))
        return np.lib.stride_tricks.as_strided(flat, shape, strides).copy()
    view = {"shape": shape, "typestr": "|u1", "data": (begin, False), "strides": strides, "version": 3}
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=view), device=device).clone().cpu().numpy()


def threads_end() -> bool:
    """Whether no thread that makes something is left."""
    return not [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]
