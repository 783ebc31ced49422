"""Recipes made by hand, and stores to draw them from, for the tests of every renderer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fastdata
from fastdata.augment.recipe import Labels, Recipe
from fastdata.catalog import Catalog, CatalogHead, Counts
from fastdata.labels import BOX, POLYGON
from fastdata.pixels import to_planar
from fastdata.store.read import Store

Picture = npt.NDArray[np.uint8]
"""(h, w, 3) RGB or (h, w) gray."""
Matrix = npt.NDArray[np.float64]
Ring = Sequence[Sequence[float]]
Render = Callable[[Store, Recipe], npt.NDArray[np.uint8]]
"""What every renderer is; ``out`` has a default."""

NO_GAINS = (0.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Tile:
    """Picture number ``entry``, whole and unresized at the canvas's corner unless something else is said."""

    entry: int
    origin: tuple[int, int] = (0, 0)
    size: tuple[int, int] | None = None
    """(h, w)"""
    source: tuple[int, int, int, int] | None = None
    visible: tuple[int, int, int, int] | None = None
    """On the canvas."""


@dataclass(frozen=True)
class Group:
    """Tiles on a canvas, seen through a matrix."""

    tiles: Sequence[Tile]
    matrix: Any = field(default_factory=lambda: np.eye(3))
    weight: float = 1.0
    clip: tuple[int, int, int, int] | None = None
    shapes: Sequence[Sequence[Ring]] | None = None
    """Each a list of rings; ``None``: not masked."""


@dataclass(frozen=True)
class Slot:
    """Groups, one over the other."""

    groups: Sequence[Group]
    gains: tuple[float, float, float, float] = NO_GAINS
    bgr: bool = False


@dataclass(frozen=True)
class Thing:
    """An object."""

    rings: Sequence[Ring] = ()
    kind: int = POLYGON
    cls: int = 0
    box: tuple[float, float, float, float] | None = None
    """Of the rings, unless given."""


def moved(dx: float, dy: float) -> Matrix:
    """A shift."""
    return np.array([[1, 0, dx], [0, 1, dy], [0, 0, 1]], np.float64)


def scaled(kx: float, ky: float | None = None) -> Matrix:
    """A scale about the corner."""
    return np.diag([kx, kx if ky is None else ky, 1.0])


def mirrored(width: int) -> Matrix:
    """A left-right flip of an output."""
    return np.array([[-1, 0, width], [0, 1, 0], [0, 0, 1]], np.float64)


def turned(degrees: float) -> Matrix:
    """A turn about the corner, x towards y: clockwise on the screen."""
    a = np.deg2rad(degrees)
    return np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])


def affine(rng: np.random.Generator, canvas_hw: tuple[int, int], out_hw: tuple[int, int], *, flips: bool = True) -> Matrix:
    """A random scale, turn, shear and shift that takes the canvas's middle near the output's middle."""
    (ch, cw), (h, w) = canvas_hw, out_hw
    k, shear = rng.uniform(0.6, 1.6), np.array([[1, rng.uniform(-0.2, 0.2), 0], [rng.uniform(-0.2, 0.2), 1, 0], [0, 0, 1.0]])
    matrix = moved(w / 2 + rng.uniform(-3, 3), h / 2 + rng.uniform(-3, 3)) @ shear @ turned(rng.uniform(-180, 180)) @ scaled(k)
    matrix = matrix @ moved(-cw / 2, -ch / 2)
    return mirrored(w) @ matrix if flips and rng.random() < 0.5 else matrix


class MemoryStore:
    """What a renderer asks of a store, with raw records in memory: for properties that need hundreds of them."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.path = Path("memory")
        self._payloads = [to_planar(picture).reshape(-1) for picture in pictures]
        hw = np.array([picture.shape[:2] for picture in pictures], np.int32)
        names = [f"{i}".encode() for i in range(len(pictures))]
        columns: dict[str, npt.NDArray[Any]] = {
            "rec_hw": hw,
            "rec_channels": np.array([1 if p.ndim == 2 else 3 for p in pictures], np.uint8),
            "rec_encoding": np.zeros(len(pictures), np.uint8),
            "rec_nbytes": np.array([len(p) for p in self._payloads], np.int64),
            "entry_record": np.arange(len(pictures), dtype=np.uint32),
            "entry_rect": np.concatenate([np.zeros_like(hw), hw[:, ::-1]], axis=1),
            "key_offsets": np.cumsum([0, *map(len, names)]),
            "key_bytes": np.frombuffer(b"".join(names), np.uint8),
        }
        counts = Counts(records=len(pictures), entries=len(pictures))
        self.catalog = Catalog.from_columns(CatalogHead(counts=counts), columns)

    def read_record(self, r: int) -> npt.NDArray[np.uint8]:
        """The bytes of a record, read-only."""
        payload = self._payloads[r].view()
        payload.flags.writeable = False
        return payload


def memory_store(pictures: Sequence[Picture]) -> Store:
    """A store in memory."""
    return MemoryStore(pictures)  # type: ignore[return-value]


def file_store(folder: Path, pictures: Sequence[Picture], **options: Any) -> Store:
    """A store on disk; ``options`` of ``fastdata.create``."""
    with fastdata.create(folder / "made.lmdb", ["thing"], **options) as writer:
        for picture in pictures:
            writer.add(picture, boxes=np.zeros((0, 4)))
    return fastdata.open_store(folder / "made.lmdb")


def recipe(
    store: Store, slots: Sequence[Slot], out_hw: tuple[int, int], labels: Labels | None = None, *, task: str = "segment"
) -> Recipe:
    """Put a batch together."""
    groups = [group for slot in slots for group in slot.groups]
    tiles = [_placed(store, tile) for group in groups for tile in group.tiles]
    shapes = [shape for group in groups for shape in group.shapes or ()]
    rings = [ring for shape in shapes for ring in shape]
    whole = (0, 0, out_hw[1], out_hw[0])
    entry = np.array([slot.groups[0].tiles[0].entry if slot.groups[0].tiles else 0 for slot in slots], np.int64)
    return Recipe(
        out_hw=out_hw,
        task=task,
        entry=entry,
        gains=np.array([slot.gains for slot in slots], np.float32).reshape(-1, 4),
        bgr=np.array([slot.bgr for slot in slots], np.bool_),
        gain_hw=np.ones((len(slots), 2)),
        pad_xy=np.zeros((len(slots), 2)),
        group_offsets=_offsets([len(slot.groups) for slot in slots]),
        matrix=np.array([group.matrix for group in groups], np.float64).reshape(-1, 3, 3),
        weight=np.array([group.weight for group in groups], np.float32),
        clip_xyxy=np.array([group.clip or whole for group in groups], np.int32).reshape(-1, 4),
        is_masked=np.array([group.shapes is not None for group in groups], np.bool_),
        tile_offsets=_offsets([len(group.tiles) for group in groups]),
        shape_offsets=_offsets([len(group.shapes or ()) for group in groups]),
        shape_ring_offsets=_offsets([len(shape) for shape in shapes]),
        ring_point_offsets=_offsets([len(ring) for ring in rings]),
        mask_points_px=_points(rings),
        tile_entry=np.array([tile[0] for tile in tiles], np.int64),
        record=np.array([tile[1] for tile in tiles], np.int64),
        source_xyxy=np.array([tile[2] for tile in tiles], np.int32).reshape(-1, 4),
        size_hw=np.array([tile[3] for tile in tiles], np.int32).reshape(-1, 2),
        origin_xy=np.array([tile[4] for tile in tiles], np.int32).reshape(-1, 2),
        visible_xyxy=np.array([tile[5] for tile in tiles], np.int32).reshape(-1, 4),
        labels=labels_of([[] for _ in slots]) if labels is None else labels,
    )


def one(store: Store, *groups: Group, out_hw: tuple[int, int], **slot: Any) -> Recipe:
    """A batch of one picture."""
    return recipe(store, [Slot(groups, **slot)], out_hw)


def labels_of(things: Sequence[Sequence[Thing]]) -> Labels:
    """The objects of each slot."""
    flat = [thing for own in things for thing in own]
    rings = [ring for thing in flat for ring in thing.rings]
    points = _points(rings)
    offsets, ring_offsets = _offsets([len(ring) for ring in rings]), _offsets([len(thing.rings) for thing in flat])
    boxes = []
    for i, thing in enumerate(flat):
        own = points[offsets[ring_offsets[i]] : offsets[ring_offsets[i + 1]]]
        boxes.append(thing.box or (*own.min(axis=0).tolist(), *own.max(axis=0).tolist()))
    return Labels(
        offsets=_offsets([len(own) for own in things]),
        cls=np.array([thing.cls for thing in flat], np.int32),
        xyxy_px=np.array(boxes, np.float32).reshape(-1, 4),
        instance=np.arange(len(flat), dtype=np.int64),
        kind=np.array([thing.kind if thing.rings else BOX for thing in flat], np.uint8),
        ring_offsets=ring_offsets,
        point_offsets=offsets,
        points_px=points,
        keypoints_px=np.zeros((len(flat), 0, 3), np.float32),
        xywhr_px=np.zeros((0, 5), np.float32),
    )


def _placed(store: Store, tile: Tile) -> tuple[Any, ...]:
    """Entry, record, source, size, origin and visible part of a tile."""
    catalog = store.catalog
    source = tile.source or tuple(catalog.entry_rect[tile.entry].tolist())
    h, w = tile.size or (source[3] - source[1], source[2] - source[0])
    (x, y) = tile.origin
    visible = (x, y, x + w, y + h) if tile.visible is None else tile.visible
    return tile.entry, int(catalog.entry_record[tile.entry]), source, (h, w), tile.origin, visible


def _offsets(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _points(rings: Sequence[Ring]) -> npt.NDArray[np.float32]:
    return np.concatenate([np.array(ring, np.float32).reshape(-1, 2) for ring in [*rings, []]])
