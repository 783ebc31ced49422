"""Pictures of known shapes, and where labels say that they are after a plan: the shapes are looked for in the drawn pixels.

The pictures are the trainers' gray with flat shapes on it, a colour for each class. So a pixel tells by its colour which class
it shows, wherever chance has put it. Shapes end between pixels; a shape's pixels are those nearer to its colour than to the gray,
which bilinear sampling puts on its edges to a fifth of a pixel, corners included.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

import fastdata
from fastdata.augment.oriented import xywhr_to_corners
from fastdata.augment.recipe import FILL, Labels
from fastdata.catalog import Keypoints
from fastdata.masks import rings_to_mask
from fastdata.store.read import Store

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

IMGSZ = 96
COLOURS = np.array([[r, g, b] for r in (0, 255) for g in (0, 255) for b in (0, 255)], np.float64)
"""Of the classes: the corners of the colour cube, so that half way to the gray no colour is like another."""
SIZES_HW = ((96, 96), (61, 96), (96, 53), (33, 96), (72, 96), (192, 144), (96, 95), (95, 96), (96, 96), (96, 40))
"""Square and not, odd and even; one is to be halved, and its shapes end on even pixels."""
COUNTS = (3, 1, 0, 2, 8, 4, 1, 5, 0, 2)
"""Objects in each."""
GAP = 4
"""Between shapes, and between a shape and the border, px of a picture at IMGSZ."""
HALF_PX = 0.5


def store_of(folder: Path, task: str) -> Store:
    """Write the pictures with labels for a task: boxes, outlines (some L-shaped), corners, or a keypoint in the middle."""
    rng = np.random.default_rng(5)
    keypoints = Keypoints(1, flip_idx=(0,)) if task == "pose" else None
    out = folder / f"{task}.lmdb"
    with fastdata.create(out, names=[f"colour {c}" for c in range(len(COLOURS))], keypoints=keypoints) as writer:
        for i, (size_hw, count) in enumerate(zip(SIZES_HW, COUNTS, strict=True)):
            step = 2 if max(size_hw) > IMGSZ else 1
            boxes = _apart(rng, size_hw, count, step)
            classes = rng.permutation(len(COLOURS))[: len(boxes)]
            picture = np.full((*size_hw, 3), FILL, np.uint8)
            rings = []
            for k, (x0, y0, x1, y1) in enumerate(boxes):
                xm, ym = x0 + (x1 - x0) // (2 * step) * step, y0 + (y1 - y0) // (2 * step) * step
                has_notch = task == "segment" and k % 2 == 1
                picture[y0:y1, x0:x1] = COLOURS[classes[k]]
                if has_notch:
                    picture[y0:ym, xm:x1] = FILL
                notch = [[xm, y0], [xm, ym], [x1, ym]] if has_notch else [[x1, y0]]
                rings.append(np.array([[x0, y0], *notch, [x1, y1], [x0, y1]], np.float64))
            middles = [[[(x0 + x1) / 2, (y0 + y1) / 2, 2]] for x0, y0, x1, y1 in boxes]
            said = {
                "detect": {"boxes": boxes},
                "segment": {"polygons": [[ring] for ring in rings]},
                "obb": {"corners": np.array(rings).reshape(-1, 4, 2) if task == "obb" else None},
                "pose": {"boxes": boxes, "keypoints": middles},
            }[task]
            if not boxes:
                writer.add(picture, key=f"{i}.png")
            else:
                writer.add(picture, classes=classes, key=f"{i}.png", **said)
    return fastdata.open_store(out)


def _apart(rng: np.random.Generator, size_hw: tuple[int, int], count: int, step: int) -> list[tuple[int, int, int, int]]:
    """Rectangles on whole steps that keep away from each other and from the border."""
    h, w = size_hw[0] // step, size_hw[1] // step
    found: list[tuple[int, int, int, int]] = []
    for _ in range(2000):
        if len(found) == count:
            break
        bw, bh = rng.integers(8, 25, 2)
        if bw + 2 * GAP > w or bh + 2 * GAP > h:
            continue
        x, y = rng.integers(GAP, w - bw - GAP + 1), rng.integers(GAP, h - bh - GAP + 1)
        if all(x > c + GAP or x + bw < a - GAP or y > d + GAP or y + bh < b - GAP for a, b, c, d in found):
            found.append((int(x), int(y), int(x + bw), int(y + bh)))
    return [(step * a, step * b, step * c, step * d) for a, b, c, d in found]


def classes_of(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """(H, W) class that each pixel of a (3, H, W) picture shows, -1 for gray."""
    palette = np.concatenate([[[FILL] * 3], COLOURS])
    off = ((picture.transpose(1, 2, 0)[:, :, None].astype(np.float64) - palette) ** 2).sum(axis=-1)
    return off.argmin(axis=-1) - 1


def outlines_of(labels: Labels, slot: int, task: str) -> list[tuple[int, list[F64]]]:
    """Class and rings of each object of a slot: what its label says that it covers."""
    first, last = labels.offsets[slot : slot + 2].tolist()
    out = []
    for i in range(first, last):
        if task == "segment":
            rings = [ring.astype(np.float64) for ring in labels.rings(i)]
        elif task == "obb":
            rings = [xywhr_to_corners(labels.xywhr_px[i : i + 1].astype(np.float64))[0]]
        else:
            x0, y0, x1, y1 = labels.xyxy_px[i].astype(np.float64)
            rings = [np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])]
        out.append((int(labels.cls[i]), rings))
    return out


def depth_of(objects: list[list[F64]], size_hw: tuple[int, int]) -> F64:
    """(H, W) how far each pixel's centre lies within any of some objects, in px; negative outside."""
    h, w = size_hw
    if not objects:
        return np.full(size_hw, -1e9)
    centres = np.stack(np.meshgrid(np.arange(w) + 0.5, np.arange(h) + 0.5), axis=-1).reshape(-1, 1, 2)
    rings = [ring for one in objects for ring in one]
    a = np.concatenate(rings)
    edge = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings]) - a
    along = np.clip(((centres - a) * edge).sum(axis=-1) / np.maximum((edge**2).sum(axis=-1), 1e-12), 0, 1)
    gap = np.linalg.norm(centres - a - along[..., None] * edge, axis=-1).min(axis=1).reshape(size_hw)
    inside = np.zeros(size_hw, np.bool_)
    for one in objects:
        inside |= rings_to_mask(one, size_hw) > 0
    return np.where(inside, gap, -gap)


def complaints(picture: npt.NDArray[np.uint8], labels: Labels, slot: int, task: str, *, may_be_hidden: bool = False) -> list[str]:
    """Say where pixels and labels of a slot disagree by more than half a pixel.

    Args:
        picture: (3, H, W)
        labels: Of its recipe.
        slot: Number of the picture.
        task: Of the labels.
        may_be_hidden: Whether something else may be seen where a label is: another object (Copy-Paste), another tile (nine).
    """
    shown, size_hw = classes_of(picture), picture.shape[1:]
    outlines = outlines_of(labels, slot, task)
    out = []
    for c in range(len(COLOURS)):
        depth = depth_of([rings for cls, rings in outlines if cls == c], size_hw)  # type: ignore[arg-type]
        stray = (shown == c) & (depth < -HALF_PX)
        if stray.any():
            out.append(f"class {c}: {int(stray.sum())} pixels lie outside every label, the first at {np.argwhere(stray)[0]}")
        bare = (shown != c) & (depth > HALF_PX)
        if task == "obb":  # at the border the rectangle is that of what is left of it, and reaches beyond
            bare &= _whole(outlines, c, size_hw)
        if bare.any() and not may_be_hidden:
            out.append(f"class {c}: {int(bare.sum())} pixels within a label do not show it, the first at {np.argwhere(bare)[0]}")
    if task == "pose" and not may_be_hidden:
        out += _wrong_keypoints(picture, labels, slot)
    return out


def _whole(outlines: list[tuple[int, list[F64]]], c: int, size_hw: tuple[int, int]) -> Bool:
    """(H, W) pixels within objects of a class that the frame does not cut."""
    h, w = size_hw
    far = [r for cls, r in outlines if cls == c and (r[0] > 1).all() and (r[0] < np.array([w, h]) - 1).all()]
    return depth_of(far, size_hw) > 0


def _wrong_keypoints(picture: npt.NDArray[np.uint8], labels: Labels, slot: int) -> list[str]:
    """A keypoint in the middle of its object must be in the middle of its pixels, where all of these are seen."""
    h, w = picture.shape[1:]
    y, x = np.mgrid[:h, :w] + 0.5
    shown = classes_of(picture)
    first, last = labels.offsets[slot : slot + 2].tolist()
    out = []
    for i in range(first, last):
        c, xyxy = int(labels.cls[i]), labels.xyxy_px[i]
        x0, y0, x1, y1 = xyxy
        # how much of each pixel is the object's: its neighbours are further away than the two pixels around the box
        share = (picture.transpose(1, 2, 0) - float(FILL)) @ (COLOURS[c] - FILL) / ((COLOURS[c] - FILL) ** 2).sum()
        share = np.where((x > x0 - 2) & (x < x1 + 2) & (y > y0 - 2) & (y < y1 + 2), np.clip(share, 0, 1), 0)
        own = (share > 0) & (shown == c)
        sides = [x[own].min() - 0.5, y[own].min() - 0.5, x[own].max() + 0.5, y[own].max() + 0.5] if own.any() else [np.inf] * 4
        is_alone = (labels.cls[first:last] == c).sum() == 1
        if not is_alone or min(x0, y0, w - x1, h - y1) < 2 or np.abs(sides - xyxy).max() > HALF_PX + 0.01:
            continue  # the frame or a tile's border has cut it, and so its middle
        at = np.array([(x * share).sum(), (y * share).sum()]) / share.sum()
        kx, ky, seen = labels.keypoints_px[i, 0]
        if seen > 0 and np.abs(at - (kx, ky)).max() > HALF_PX:
            out.append(f"keypoint of object {i} must be at {at[0]:.2f}, {at[1]:.2f}, got {kx:.2f}, {ky:.2f}")
    return out
