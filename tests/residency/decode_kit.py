"""Stores of JPEGs, and what a source of decoded pictures made of them."""

from __future__ import annotations

import ctypes
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import recipe_kit as kit
import torch
import training_kit
from answers_kit import noise
from PIL import Image
from recipe_kit import Group, Tile

import fastdata
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.catalog import Catalog, CatalogHead, Counts
from fastdata.render.tiles import load_tiles
from fastdata.residency import Fetched
from fastdata.residency.decode import Decode
from fastdata.store.format import ENCODINGS

CPU = torch.device("cpu")
U8 = np.ndarray[Any, np.dtype[np.uint8]]
File = tuple[str, bytes, tuple[int, int], int]
"""Encoding, bytes, height and width, channels."""


def smooth(h: int, w: int, seed: int = 0) -> U8:
    """(h, w, 3) that a lossy codec keeps roughly."""
    return np.asarray(cv2.GaussianBlur(noise(h, w, seed), (0, 0), 2.0))


class FileStore:
    """What a source asks of a store, with any files as records, in memory."""

    def __init__(self, *files: File) -> None:
        self.path, self.split = Path("memory"), None
        self.manifest = SimpleNamespace(codec="jpeg")
        self._files = [np.frombuffer(data, np.uint8) for _, data, _, _ in files]
        hw = np.array([size for _, _, size, _ in files], np.int32)
        keys = [f"{i}.jpg".encode() for i in range(len(files))]
        columns: dict[str, Any] = {
            "rec_hw": hw,
            "rec_channels": np.array([channels for *_, channels in files], np.uint8),
            "rec_encoding": np.array([ENCODINGS.index(kind) for kind, *_ in files], np.uint8),  # type: ignore[arg-type]
            "entry_record": np.arange(len(files), dtype=np.uint32),
            "entry_rect": np.concatenate([np.zeros_like(hw), hw[:, ::-1]], axis=1),
            "key_offsets": np.cumsum([0, *map(len, keys)]),
            "key_bytes": np.frombuffer(b"".join(keys), np.uint8),
        }
        counts = Counts(records=len(files), entries=len(files))
        self.catalog = Catalog.from_columns(CatalogHead(counts=counts), columns)

    def read_record(self, r: int) -> U8:
        """The bytes of a record."""
        return self._files[r]


def jpeg(picture: U8, **options: Any) -> File:
    """A record as Pillow writes it."""
    target = io.BytesIO()
    mode = options.pop("mode", None)
    image = Image.fromarray(picture)
    (image if mode is None else image.convert(mode)).save(target, "JPEG", **options)
    return "jpeg", target.getvalue(), picture.shape[:2], 1 if picture.ndim == 2 else 3


def source_of(store: Any, device: Any = CPU, **options: Any) -> Decode:
    """A source of a store, as of samples that nothing is mixed in."""
    pool = range(len(store.catalog.entry_record))
    samples = SimpleNamespace(store=store, policy=Policy(), augment=False, rect=False, batch_size=4, pool=pool)
    return Decode(samples, device, **options)  # type: ignore[arg-type]


def recipe_of(store: Any, *tiles: Tile) -> Recipe:
    """One sample of tiles."""
    return kit.one(store, Group(tiles), out_hw=(8, 8))


def read(fetched: Fetched, recipe: Recipe, device: Any) -> list[U8]:
    """Read every tile from where it is said to be; three channels, nothing for a tile that is not seen."""
    out = []
    for (address, plane, line), (h, w) in zip(fetched.where.tolist(), recipe.size_hw.tolist(), strict=True):
        if not address:
            out.append(np.zeros((0, 0, 0), np.uint8))
        elif device.type == "cpu":
            flat = np.ctypeslib.as_array((ctypes.c_uint8 * (2 * plane + (h - 1) * line + w)).from_address(address))
            out.append(np.lib.stride_tricks.as_strided(flat, (3, h, w), (plane, line, 1)).copy())
        else:
            view = {"shape": (3, h, w), "typestr": "|u1", "data": (address, False), "strides": (plane, line, 1), "version": 3}
            memory = SimpleNamespace(__cuda_array_interface__=view)
            out.append(torch.as_tensor(memory, device=device).clone().cpu().numpy())
    return out


def expected(store: Any, recipe: Recipe) -> list[U8]:
    """What every other residency reads."""
    tiles = load_tiles(store, recipe)
    return [np.zeros((0, 0, 0), np.uint8) if not t.size else np.broadcast_to(t, (3, *t.shape[1:])) for t in tiles]


def agree(source: Decode, store: Any, recipe: Recipe, device: Any = CPU) -> None:
    """Compare bit for bit."""
    for got, want in zip(read(source.fetch(recipe), recipe, device), expected(store, recipe), strict=True):
        assert np.array_equal(got, want)


def damaged(folder: Path, which: int, **options: Any) -> Any:
    """A store of JPEGs, one of them with a flipped bit."""
    kit.file_store(folder, [smooth(40, 56, s) for s in range(4)], codec="jpeg", **options).close()
    training_kit.damage(folder / "made.lmdb", which)
    return fastdata.open_store(folder / "made.lmdb")


def stored(folder: Path, images: int, hw: tuple[int, int] = (24, 32), **options: Any) -> Path:
    """A store of JPEGs to train on at 32 px."""
    with fastdata.create(folder / "s.lmdb", ["thing"], codec="jpeg", **options) as writer:
        for i in range(images):
            writer.add(smooth(*hw, i), boxes=[[2, 2, 20, 20]], key=f"{i:03d}.jpg")
    return folder / "s.lmdb"
