"""Catalogs in memory for the tests of planning: pictures of odd sizes with objects of every kind, or exactly as told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from label_kit import Thing, instances

from fastdata.augment.draws import BASE, Draws, plain
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.catalog import Catalog, CatalogHead, Counts, Keypoints
from fastdata.labels import BOX, CROWD, MASK, OBB, POLYGON

FLIP_IDX = (0, 2, 1)

PLAIN = Policy(
    hsv_h=0, hsv_s=0, hsv_v=0, translate=0, scale=0, fliplr=0, mosaic=0, close_mosaic=0, min_side_px=0, min_area_share=0
)
"""Nothing is done and nothing is dropped."""


def catalog_of(
    sizes_hw: Sequence[tuple[int, int]],
    things: Sequence[Sequence[Thing]] | None = None,
    *,
    original_hw: Sequence[tuple[int, int]] | None = None,
    rects: Sequence[tuple[int, int, int, int]] | None = None,
    keypoints: Keypoints | None = None,
    classes: int = 10,
) -> Catalog:
    """A catalog of one record an entry.

    Args:
        sizes_hw: Of the records.
        things: Objects of each entry.
        original_hw: Of the pictures; the records' when left out.
        rects: What of its record each entry shows; all of it when left out.
        keypoints: Of the objects.
        classes: How many there are.
    """
    n = len(sizes_hw)
    k = keypoints.count if keypoints else 0
    labels = [instances(list(of), k) for of in (things or [[]] * n)]
    hw = np.array(sizes_hw, np.int32).reshape(n, 2)

    def stacked(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(of, name) for of in labels])

    def chained(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(getattr(of, name)) for of in labels]))]).astype(np.int64)

    columns: dict[str, npt.NDArray[Any]] = {
        "rec_hw": hw,
        "entry_record": np.arange(n, dtype=np.uint32),
        "entry_rect": np.array(rects or [(0, 0, w, h) for h, w in hw.tolist()], np.int32).reshape(n, 4),
        "entry_original_hw": np.array(original_hw or hw, np.int32).reshape(n, 2),
        "inst_offsets": np.concatenate([[0], np.cumsum([len(of) for of in labels])]).astype(np.int64),
        "part_offsets": chained("part_offsets"),
        "point_offsets": chained("point_offsets"),
    }
    columns |= {name: stacked(name) for name in ("cls", "xyxy_px", "kind", "flags", "points_px", "keypoints_px")}
    counts = Counts(n, n, len(columns["cls"]), len(columns["point_offsets"]) - 1, len(columns["points_px"]))
    head = CatalogHead(tuple(str(i) for i in range(classes)), keypoints=keypoints, counts=counts)
    return Catalog.from_columns(head, columns)


def draws_of(*samples: Mapping[int, Sequence[int]], **fields: Any) -> Draws:
    """Draws in which nothing moves.

    Args:
        samples: The tiles of the scene of each role, for each sample.
        fields: Of the draws, instead of what they would be.
    """
    scenes = [(role, tiles) for sample in samples for role, tiles in sorted(sample.items())]
    s = len(scenes)
    draws = replace(
        plain([sample[BASE][0] for sample in samples]),
        scene_offsets=np.cumsum([0, *map(len, samples)]),
        role=np.array([role for role, _ in scenes], np.uint8),
        centre_yx=np.zeros((s, 2), np.int64),
        perspective=np.zeros((s, 2)),
        degrees=np.zeros(s),
        scale=np.ones(s),
        shear_deg=np.zeros((s, 2)),
        translate=np.full((s, 2), 0.5),
        tile_offsets=np.cumsum([0, *(len(tiles) for _, tiles in scenes)]),
        tile_entry=np.array([entry for _, tiles in scenes for entry in tiles], np.int64),
    )
    return replace(draws, **fields)


def random_catalog(
    seed: int, n: int = 12, most: int = 6, kinds: Sequence[int] = (BOX, POLYGON, OBB, MASK), keypoints: bool = True
) -> Catalog:
    """A catalog of ``n`` pictures with up to ``most`` objects each, of these kinds; one in eight is a crowd."""
    rng = np.random.default_rng(seed)
    sizes: list[tuple[int, int]] = []
    originals: list[tuple[int, int]] = []
    rects: list[tuple[int, int, int, int]] = []
    all_things: list[list[Thing]] = []
    for _ in range(n):
        h, w = rng.integers(20, 120, 2).tolist()
        rect = (0, 0, w, h)
        if rng.random() < 0.25:
            rect = (int(w * 0.2), int(h * 0.1), int(w * 0.9), h)
        rects.append(rect)
        sizes.append((h, w))
        zoom = rng.uniform(0.5, 3)
        originals.append((max(int(h * zoom), 1), max(int(w * zoom), 1)))
        rect_hw = rect[3] - rect[1], rect[2] - rect[0]
        all_things.append([random_thing(rng, *rect_hw, kinds, keypoints) for _ in range(rng.integers(0, most + 1))])
    points = Keypoints(3, flip_idx=FLIP_IDX) if keypoints else None
    return catalog_of(sizes, all_things, original_hw=originals, rects=rects, keypoints=points)


def random_thing(rng: np.random.Generator, h: int, w: int, kinds: Sequence[int], keypoints: bool) -> Thing:
    """An object anywhere in a picture, now and then on its very border."""
    kind = int(rng.choice(kinds))
    size = np.array([w, h], np.float64)
    a = np.where(rng.random(2) < 0.15, 0.0, rng.uniform(0, 0.8, 2) * size)
    b = np.where(rng.random(2) < 0.15, size, a + (size - a) * rng.uniform(0.1, 1, 2))
    xyxy = (*a.tolist(), *b.tolist())

    def inside(unit: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return a + np.asarray(unit) * (b - a)

    parts: list[npt.NDArray[np.float64]] = []
    if kind == POLYGON:
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 9)))
        ring = 0.5 + 0.5 * np.stack([np.cos(angles), np.sin(angles)], 1) * rng.uniform(0.4, 1, (len(angles), 1))
        parts = [inside(ring)] if rng.random() < 0.8 else [inside(ring * 0.5), inside(0.5 + ring * 0.5)]
    elif kind == MASK:
        outer = [[0, 0], [1, 0], [1, 0.4], [0.3, 0.4], [0.3, 1], [0, 1]]
        parts = [inside(outer), inside([[0.1, 0.1], [0.1, 0.2], [0.2, 0.2], [0.2, 0.1]])]
    elif kind == OBB:
        turn = rng.uniform(0, np.pi)
        u, v = np.array([np.cos(turn), np.sin(turn)]), np.array([-np.sin(turn), np.cos(turn)])
        reach = (b - a) / 2 * rng.uniform(0.3, 1, 2)
        parts = [np.array([(a + b) / 2 + x * reach[0] * u + y * reach[1] * v for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])]
    if parts:
        bounds = np.concatenate([np.concatenate(parts).min(axis=0), np.concatenate(parts).max(axis=0)])
        xyxy = tuple(np.clip(bounds, 0, [w, h, w, h]).tolist())
    points = np.concatenate([inside(rng.random((3, 2))), rng.integers(0, 3, (3, 1))], axis=1) if keypoints else None
    if points is not None:
        points[points[:, 2] == 0] = 0
    return Thing(
        cls=int(rng.integers(10)),
        xyxy=xyxy,
        parts=parts,
        kind=kind,
        flags=CROWD if rng.random() < 0.125 else 0,
        keypoints=points,
    )


def share() -> st.SearchStrategy[float]:
    """A probability, often 0 or 1."""
    return st.sampled_from([0.0, 0.3, 1.0])


def policies() -> st.SearchStrategy[Policy]:
    """Policies with everything in them."""
    return st.builds(
        Policy,
        hue=st.sampled_from(["add", "multiply"]),
        degrees=st.sampled_from([0.0, 30.0, 180.0]),
        translate=st.sampled_from([0.0, 0.1, 0.5]),
        scale=st.sampled_from([0.0, 0.5, 0.9, (0.1, 2.0)]),
        shear=st.sampled_from([0.0, 10.0]),
        perspective=st.sampled_from([0.0, 0.0005, 0.002]),
        flipud=share(),
        fliplr=share(),
        bgr=share(),
        mosaic=share(),
        mosaic9=share(),
        mixup=share(),
        cutmix=share(),
        copy_paste=share(),
        copy_paste_mode=st.sampled_from(["flip", "mixup"]),
        partners=st.sampled_from(["uniform", "window:3"]),
        min_area_share=st.sampled_from([None, 0.0, 0.3]),
        close_mosaic=st.just(0),
    )


def fixed(policy: Policy, **changes: Any) -> Policy:
    """The policy with other values."""
    return replace(policy, **changes)


def complaints(recipe: Recipe) -> Iterable[str]:
    """What is wrong with a recipe whatever it is about: every rule that ``fastdata.augment.recipe`` states."""
    h, w = recipe.out_hw
    labels = recipe.labels
    b, g, t = len(recipe.entry), len(recipe.matrix), len(recipe.tile_entry)
    for name, offsets, rows, end in (
        ("group", recipe.group_offsets, b, g),
        ("tile", recipe.tile_offsets, g, t),
        ("shape", recipe.shape_offsets, g, len(recipe.shape_ring_offsets) - 1),
        ("shape_ring", recipe.shape_ring_offsets, len(recipe.shape_ring_offsets) - 1, len(recipe.ring_point_offsets) - 1),
        ("mask point", recipe.ring_point_offsets, len(recipe.ring_point_offsets) - 1, len(recipe.mask_points_px)),
        ("label", labels.offsets, b, len(labels)),
        ("ring", labels.ring_offsets, len(labels), len(labels.point_offsets) - 1),
        ("point", labels.point_offsets, len(labels.point_offsets) - 1, len(labels.points_px)),
    ):
        is_whole = offsets.dtype == np.int64 and len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == end
        if not is_whole or (np.diff(offsets) < 0).any():
            yield f"{name} offsets {offsets} of {rows} rows and {end} elements"
    first = recipe.group_offsets[:-1]
    whole = np.array([0, 0, w, h])
    if (np.diff(recipe.group_offsets) < 1).any() or recipe.is_masked[first].any() or (recipe.weight[first] != 1).any():
        yield "a slot must begin with a group that covers all"
    elif (recipe.clip_xyxy[first] != whole).any():
        yield "the first group of a slot must not be clipped"
    if ((recipe.weight < 0) | (recipe.weight > 1)).any() or not np.isfinite(recipe.matrix).all():
        yield "weights must be shares and matrices finite"
    c = recipe.clip_xyxy
    if (c < 0).any() or (c[:, 0::2] > w).any() or (c[:, 1::2] > h).any() or (c[:, :2] > c[:, 2:]).any():
        yield "clip rectangles must lie in the frame"
    v, origin, size = recipe.visible_xyxy, recipe.origin_xy, recipe.size_hw[:, ::-1]
    if (v[:, :2] < 0).any() or (v[:, 2:] < v[:, :2]).any():
        yield "visible parts must be rectangles of the canvas"
    is_seen = (v[:, 2:] > v[:, :2]).all(axis=1)
    if ((v[:, :2] < origin) | (v[:, 2:] > origin + size))[is_seen].any():
        yield "visible parts must lie within their tile"
    x = labels.xyxy_px
    if not (np.isfinite(x).all() and (x >= 0).all() and (x[:, 2:] <= (w, h)).all() and (x[:, :2] < x[:, 2:]).all()):
        yield f"boxes must lie in the frame: {x}"
    p = labels.points_px
    if not (np.isfinite(p).all() and (p >= 0).all() and (p <= (w, h)).all()):
        yield "outlines must lie in the frame"
    seen = labels.keypoints_px[labels.keypoints_px[:, :, 2] > 0]
    if not (np.isfinite(labels.keypoints_px).all() and (seen[:, :2] >= 0).all() and (seen[:, :2] <= (w, h)).all()):
        yield "visible keypoints must lie in the frame"
    r = labels.xywhr_px
    if not (np.isfinite(r).all() and (r[:, 2] >= r[:, 3]).all() and (np.abs(r[:, 4] - np.pi / 4) <= np.pi / 2 + 1e-6).all()):
        yield "oriented boxes must be wide and at an angle within [-pi/4, 3 pi/4)"
    if len(r) != (len(labels) if recipe.task == "obb" else 0):
        yield "oriented boxes belong to obb"
