"""Contact sheets: stored pictures with their labels, side by side, for a person to judge.

What is drawn on a picture, and where, is said in ``fastdata.draw``. Pictures keep their shape; small ones are enlarged without
smoothing, so that their pixels can be counted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from fastdata.catalog import Keypoints
from fastdata.draw import SIDES, Placement, draw_labels, elide, printable, side_of
from fastdata.errors import UsageError
from fastdata.labels import CROWD, Instances
from fastdata.paint import U8, Colour, class_colour, put_text, text_mask

if TYPE_CHECKING:
    from fastdata.store.read import Store

PAPER: Colour = (24, 26, 30)
INK: Colour = (232, 234, 238)
FAINT: Colour = (150, 155, 165)

RIM_PX = 8
"""Room around a picture, so that lines on its border and corners beyond it are seen."""
GAP_PX = 10
MIN_TILE_PX, MAX_TILE_PX = 64, 4096
MAX_LEGEND = 60
"""Classes named below a sheet, the most frequent first."""

SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a sheet."""

    rgb: U8
    """(H, W, 3)"""
    instances: Instances
    """In pixels of ``rgb``."""
    caption: tuple[str, str]
    """Two lines: what it is, and what is on it."""


def spread(count: int, k: int) -> list[int]:
    """Return at most ``k`` of 0..count-1, evenly spread, ascending."""
    k = min(count, k)
    return [(2 * j + 1) * count // (2 * k) for j in range(k)]


def contact_sheet(
    store: Store, ids: Sequence[int] | None = None, *, columns: int | None = None, tile_px: int = 320, max_images: int = 24
) -> U8:
    """Draw pictures of a store with their labels.

    Args:
        store: The opened store, or one split of it.
        ids: Positions in it, drawn in this order; an even spread of at most ``max_images`` by default.
        columns: Pictures in a row; as many as make the sheet about 4:3 by default.
        tile_px: Longer side of every picture on the sheet.
        max_images: How many, when ``ids`` says nothing.

    Returns:
        (H, W, 3) RGB.

    Raises:
        UsageError: An id is not in the store, or a number breaks its rule.
        StoreError: A record is damaged.
    """
    if max_images < 1:
        raise UsageError(f"images must be at least 1, got {max_images}")
    if ids is None:
        ids = spread(len(store), max_images)
    wrong = [i for i in ids if not 0 <= i < len(store)]
    if wrong:
        raise UsageError(f"ids must be 0..{len(store) - 1} ({len(store)} images), got {', '.join(map(str, wrong[:10]))}")
    if not ids:
        raise UsageError("ids must name at least one image, got none")
    title = f"{printable(Path(store.path).name)}   {len(ids):,} of {len(store):,} images"
    return sheet(
        [_picture(store, i) for i in ids], store.names, store.manifest.keypoints, title=title, columns=columns, tile_px=tile_px
    )


def write_contact_sheet(
    store: Store,
    out: str | os.PathLike[str],
    ids: Sequence[int] | None = None,
    *,
    columns: int | None = None,
    tile_px: int = 320,
    max_images: int = 24,
) -> None:
    """Draw :func:`contact_sheet` into a file, PNG or JPEG by its ending; a file that is there is replaced at once.

    Raises:
        UsageError: As there, or the ending is another one.
        OSError: The file cannot be written.
    """
    target = sheet_path(out)
    save_sheet(contact_sheet(store, ids, columns=columns, tile_px=tile_px, max_images=max_images), target)


def sheet_path(out: str | os.PathLike[str]) -> Path:
    """Return where a sheet goes.

    Raises:
        UsageError: Its ending is not one of :data:`SUFFIXES`.
    """
    target = Path(out)
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(f"the sheet's name must end in {', '.join(SUFFIXES)}, got {target.name}")
    return target


def save_sheet(rgb: U8, target: Path) -> None:
    """Write (H, W, 3) RGB into a file, PNG or JPEG by its ending; a file that is there is replaced at once.

    Raises:
        UsageError: It is too large for the format.
        OSError: The file cannot be written.
    """
    suffix = target.suffix.lower()
    settings = [] if suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, 92]
    done, data = cv2.imencode(suffix, cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), settings)
    if not done:
        raise UsageError(
            f"a sheet of {rgb.shape[1]} x {rgb.shape[0]} px must fit {suffix[1:]}; show fewer images, or choose .png"
        )
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(data.tobytes())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _picture(store: Store, i: int) -> Picture:
    planes = store.image(i)
    rgb = np.ascontiguousarray(np.broadcast_to(planes, (3, *planes.shape[1:])).transpose(1, 2, 0))
    instances = store.instances(i)
    h, w = rgb.shape[:2]
    crowd = int(np.count_nonzero(instances.flags & CROWD))
    objects = f"{len(instances)} object{'s' if len(instances) != 1 else ''}" + (f", {crowd} crowd" if crowd else "")
    return Picture(rgb, instances, (f"{i}  {printable(store.key(i))}", f"{w} x {h}   {objects}"))


def sheet(
    pictures: Sequence[Picture],
    names: Sequence[str],
    keypoints: Keypoints | None,
    *,
    title: str = "",
    columns: int | None = None,
    tile_px: int = 320,
) -> U8:
    """Lay pictures out in rows, each with its caption, a legend of classes below them.

    Args:
        pictures: At least one.
        names: Class names by index.
        keypoints: What the keypoints are, if the objects have any.
        title: Line above the pictures.
        columns: Pictures in a row; about 4:3 by default.
        tile_px: Longer side of every picture.

    Returns:
        (H, W, 3) RGB.
    """
    if not MIN_TILE_PX <= tile_px <= MAX_TILE_PX:
        raise UsageError(f"tile must be {MIN_TILE_PX}..{MAX_TILE_PX} px, got {tile_px}")
    if columns is not None and columns < 1:
        raise UsageError(f"columns must be at least 1, got {columns}")
    text_px = max(10, min(14, tile_px // 24))
    tiles = [_tile(picture, names, keypoints, tile_px, text_px) for picture in pictures]
    cell_w = tile_px + 2 * RIM_PX
    if columns is None:
        mean_h = sum(tile.shape[0] for tile in tiles) / len(tiles)
        columns = max(1, round(math.sqrt(len(tiles) * 4 / 3 * mean_h / cell_w)))
    columns = min(columns, len(tiles))
    width = max(columns * (cell_w + GAP_PX) + GAP_PX, 320)
    blocks = [_line(title, width, text_px + 2, INK)] if title else []
    for start in range(0, len(tiles), columns):
        row = tiles[start : start + columns]
        block = _paper(max(tile.shape[0] for tile in row) + GAP_PX, width)
        for k, tile in enumerate(row):
            x = GAP_PX + k * (cell_w + GAP_PX)
            block[: tile.shape[0], x : x + cell_w] = tile
        blocks.append(block)
    blocks.append(_legend(pictures, names, keypoints, width, text_px))
    return np.concatenate(blocks)


def _paper(h: int, w: int) -> U8:
    return np.full((h, w, 3), PAPER, np.uint8)


def _line(text: str, width: int, size: int, colour: Colour) -> U8:
    out = _paper(round(size * 2.2), width)
    put_text(out, (GAP_PX + RIM_PX, round(size * 0.5)), text, size, colour)
    return out


def _tile(picture: Picture, names: Sequence[str], keypoints: Keypoints | None, tile_px: int, text_px: int) -> U8:
    """Draw one picture with its labels and its caption, on paper of the cell's width."""
    h, w = picture.rgb.shape[:2]
    gain = tile_px / max(h, w)
    to_h, to_w = max(1, round(h * gain)), max(1, round(w * gain))
    if gain < 1:
        method = cv2.INTER_AREA
    else:
        method = cv2.INTER_NEAREST_EXACT if gain >= 2 else cv2.INTER_LINEAR
    line_h = round(text_px * 1.4)
    out = _paper(RIM_PX + to_h + RIM_PX + 2 * line_h, tile_px + 2 * RIM_PX)
    left = RIM_PX + (tile_px - to_w) // 2
    out[RIM_PX : RIM_PX + to_h, left : left + to_w] = cv2.resize(picture.rgb, (to_w, to_h), interpolation=method)
    place = Placement((left, RIM_PX), (to_w / w, to_h / h))
    canvas = out[: RIM_PX + to_h + RIM_PX]
    line_px = min(max(1.4, tile_px / 200), 2.4)
    left_out = draw_labels(canvas, place, picture.instances, names, keypoints, line_px=line_px, text_px=text_px - 1)
    title, facts = picture.caption
    if left_out:
        facts += f"   {left_out} name{'s' if left_out > 1 else ''} left out"
    y = RIM_PX + to_h + RIM_PX
    put_text(out, (RIM_PX, y), _fit(title, tile_px, text_px), text_px, INK)
    put_text(out, (RIM_PX, y + line_h), _fit(facts, tile_px, text_px), text_px, FAINT)
    return out


def _fit(text: str, width_px: int, size: int) -> str:
    """Cut the middle out of text until it is no wider than ``width_px``."""
    limit = len(text)
    while limit > 1 and text_mask(elide(text, limit), size).shape[1] > width_px:
        limit = min(limit - 1, limit * width_px // text_mask(elide(text, limit), size).shape[1])
    return elide(text, max(limit, 1))


def _legend(pictures: Sequence[Picture], names: Sequence[str], keypoints: Keypoints | None, width: int, size: int) -> U8:
    """Name the classes on the sheet, the most frequent first, and the sides of keypoints."""
    counts = np.bincount(np.concatenate([p.instances.cls for p in pictures]), minlength=len(names))
    order = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    items = [(class_colour(c), f"{elide(printable(names[c]), 40)}  {counts[c]:,}") for c in order[:MAX_LEGEND]]
    if len(order) > MAX_LEGEND:
        items.append((PAPER, f"and {len(order) - MAX_LEGEND:,} more classes"))
    if keypoints is not None and keypoints.flip_idx:
        items += [(SIDES[side], f"keypoints: {_side_name(side, keypoints)}") for side in (0, 1)]
    line_h = round(size * 1.7)
    rows: list[list[tuple[Colour, str]]] = [[]]
    x = GAP_PX + RIM_PX
    for colour, text in items:
        item_w = size + 6 + text_mask(text, size).shape[1] + 18
        if rows[-1] and x + item_w > width - GAP_PX:
            rows.append([])
            x = GAP_PX + RIM_PX
        rows[-1].append((colour, text))
        x += item_w
    out = _paper(len(rows) * line_h + (2 * GAP_PX if items else 0), width)
    for r, row in enumerate(rows):
        x, y = GAP_PX + RIM_PX, GAP_PX // 2 + r * line_h
        for colour, text in row:
            out[y + 1 : y + 1 + size, x : x + size] = colour
            x += size + 6
            x += put_text(out, (x, y), text, size, INK) + 18
    return out


def _side_name(side: int, keypoints: Keypoints) -> str:
    """Return what the names of one side's keypoints have in common: "left", "right"; else its place in the pairs."""
    own = [name for k, name in enumerate(keypoints.names) if side_of(k, keypoints) == side]
    for word in ("left", "right"):
        if own and all(word in name.lower() for name in own):
            return word
    return ("first of a pair", "second of a pair")[side]
