"""Compare what came out of a conversion with what a case expects, and say everything that differs.

Written without the package's own geometry: masks are filled here point by point, outlines compared as sequences. (The overlap
mask is what one of the cases looks at, so it is the package's.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fastdata
from fastdata.labels import BOX, CROWD, DIFFICULT, KIND_NAMES, MASK, Instances

TOL_PX = 0.01
"""Where a case names none."""

PLACES = ("file", "line", "annotation_id", "object", "image")

KNOWN = {
    "images", "skipped", "labels", "label_count", "training_label_count", "names", "category_ids", "problems", "may_report",
    "pixels", "error", "source_unchanged", "no_subprocess", "ordered", "tol_px", "max_seconds", "max_memory_mb", "mask",
}  # fmt: skip


class UnknownWord(Exception):
    """A case says something that nobody here can do or compare: it must not pass unread."""


@dataclass(slots=True)
class Outcome:
    """What came of a conversion."""

    out: Path
    """Where the store is, if there is one."""
    root: Path
    """The ``input`` folder, which paths in a case are relative to."""
    split: str | None = None
    error: str | None = None
    """The message with which it stopped."""
    report: dict[str, Any] | None = None
    started: list[str] = field(default_factory=list)
    """Processes and connections."""
    touched: list[str] = field(default_factory=list)
    """Files of the source that are not what they were before."""
    is_replaced: bool = False
    """Whether another store is at ``out`` than before."""
    seconds: float | None = None
    memory_mb: float | None = None


def complaints(expect: dict[str, Any], outcome: Outcome, then: dict[str, Any] | None) -> list[str]:
    """Return what is wrong, one sentence each.

    Args:
        expect: Of the case, or of its step.
        outcome: What came out.
        then: What follows the conversion.
    """
    wrong = [f"the runner must know what to do with {key!r}" for key in sorted(expect.keys() - KNOWN)]
    if outcome.touched:
        wrong.append(f"no source file may change and none may appear, got {outcome.touched}")
    if outcome.started:
        wrong.append(f"nothing may be started, got {outcome.started}")
    if expect.get("max_seconds") is not None and not _at_most(outcome.seconds, expect["max_seconds"]):
        wrong.append(f"it must take at most {expect['max_seconds']} s, got {outcome.seconds}")
    if expect.get("max_memory_mb") is not None and not _at_most(outcome.memory_mb, expect["max_memory_mb"]):
        wrong.append(f"it must take at most {expect['max_memory_mb']} MB, got {outcome.memory_mb}")
    if "error" in expect:
        return wrong + _error_complaints(expect["error"], outcome)
    if outcome.error is not None:
        return [*wrong, f"it must not stop, got: {outcome.error}"]
    with fastdata.open_store(outcome.out, split=outcome.split) as store:
        wrong += _count_complaints(expect, store)
        wrong += _report_complaints(expect, outcome)
        keys = {store.key(i): i for i in range(len(store))}
        tol_px = expect.get("tol_px", TOL_PX)
        for key, labels in expect.get("labels", {}).items():
            if key in keys:
                found = store.instances(keys[key])
                wrong += [f"{key}: {w}" for w in label_complaints(labels, found, tol_px, ordered=expect.get("ordered", False))]
        for key, pixels in expect.get("pixels", {}).items():
            if key in keys:
                wrong += [f"{key}: {w}" for w in pixel_complaints(pixels, store.image(keys[key]))]
        asked = {key for name in ("labels", "pixels", "label_count", "training_label_count") for key in expect.get(name, {})}
        wrong += [f"{key} must be in the store, got {sorted(keys)}" for key in sorted(asked - keys.keys())]
        for key in asked & keys.keys():
            found = store.instances(keys[key])
            trained = int(np.count_nonzero((found.flags & CROWD) == 0))
            for name, count in (("label_count", len(found)), ("training_label_count", trained)):
                if expect.get(name, {}).get(key, count) != count:
                    wrong.append(f"{key}: {name} must be {expect[name][key]}, got {count}")
        if then is not None:
            asked = then["overlap_mask"]
            wrong += mask_complaints(expect["mask"], overlap_mask(store, keys[asked["image"]], asked["ratio"]))
    return wrong


def _at_most(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def _error_complaints(expect: dict[str, Any], outcome: Outcome) -> list[str]:
    if outcome.error is None:
        return [f"it must stop with a message that has {expect}, got none"]
    wrong = []
    said = outcome.error.casefold()
    if not all(word.casefold() in said for word in expect.get("contains", [])):
        wrong.append(f"the message must have all of {expect['contains']}, got: {outcome.error}")
    if "contains_any" in expect and not any(word.casefold() in said for word in expect["contains_any"]):
        wrong.append(f"the message must have one of {expect['contains_any']}, got: {outcome.error}")
    if outcome.is_replaced:
        wrong.append("a run that stopped must leave no store, and one that was there as it was")
    return wrong


def _count_complaints(expect: dict[str, Any], store: fastdata.Store) -> list[str]:
    found = {
        "images": len(store),
        "names": list(store.names),
        "category_ids": list(store.manifest.category_ids),
    }
    return [f"{name} must be {expect[name]}, got {got}" for name, got in found.items() if name in expect and expect[name] != got]


def _report_complaints(expect: dict[str, Any], outcome: Outcome) -> list[str]:
    report = outcome.report
    if report is None:
        return ["there must be a report"]
    wrong = []
    if "skipped" in expect:
        got = [(_relative(row["file"], outcome.root), row["reason"]) for row in report["skipped"]]
        want = [(row["file"], row["reason"]) for row in expect["skipped"]]
        if sorted(got) != sorted(want):
            wrong.append(f"skipped must be {sorted(want)}, got {sorted(got)}")
    if "problems" in expect:
        found = [{**row, "file": _relative(row["file"], outcome.root)} for row in report["problems"]]
        partner = match(expect["problems"], found, is_problem)
        wrong += [f"this must be reported: {want}" for want, at in zip(expect["problems"], partner, strict=True) if at is None]
        others = [row for i, row in enumerate(found) if i not in partner and row["kind"] not in expect.get("may_report", [])]
        wrong += [f"this must not be reported: {row}" for row in others]
    summary = report["summary"]
    counted = dict(sorted(Counter(row["kind"] for row in report["problems"]).items()))
    if summary["problems"] != counted:
        wrong.append(f"the summary must count the problems that are listed, {counted}, got {summary['problems']}")
    images, rows = summary["images"], summary["rows"]
    if images["images_in"] != images["stored"] + sum(images["skipped"].values()):
        wrong.append(f"images in must be stored + skipped, got {images}")
    if rows["rows_in"] != rows["kept"] + rows["dropped"] + rows["rows_of_skipped"]:
        wrong.append(f"rows in must be kept + dropped + gone with their image, got {rows}")
    return wrong


def _relative(file: str, root: Path) -> str:
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def is_problem(want: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether a report is the expected one: every place that the case names, and one of its kinds."""
    kinds = want["kind"] if isinstance(want["kind"], list) else [want["kind"]]
    return got["kind"] in kinds and all(got.get(place) == want[place] for place in PLACES if place in want)


def match(wants: list[Any], gots: list[Any], agrees: Callable[[Any, Any], bool], *, ordered: bool = False) -> list[int | None]:
    """Give each expected thing a found one of its own: the index, or None (augmenting paths, so no order is favoured)."""
    if ordered:
        return [i if i < len(gots) and agrees(want, gots[i]) else None for i, want in enumerate(wants)]
    options = [[g for g, got in enumerate(gots) if agrees(want, got)] for want in wants]
    owner: dict[int, int] = {}

    def place(w: int, tried: set[int]) -> bool:
        for g in options[w]:
            if g not in tried:
                tried.add(g)
                if g not in owner or place(owner[g], tried):
                    owner[g] = w
                    return True
        return False

    for w in range(len(wants)):
        place(w, set())
    found = {w: g for g, w in owner.items()}
    return [found.get(w) for w in range(len(wants))]


def label_complaints(wants: list[dict[str, Any]], found: Instances, tol_px: float, *, ordered: bool = False) -> list[str]:
    """Compare the labels of a picture, in any order unless ``ordered``."""
    partner = match(wants, list(range(len(found))), lambda want, i: is_label(want, found, i, tol_px), ordered=ordered)
    wrong = [f"this object must be there: {want}" for want, at in zip(wants, partner, strict=True) if at is None]
    wrong += [f"this object must not be there: {describe(found, i)}" for i in range(len(found)) if i not in partner]
    return wrong


def describe(found: Instances, i: int) -> dict[str, Any]:
    """Return an instance in the words of a case."""
    return {
        "class": int(found.cls[i]),
        "kind": KIND_NAMES[found.kind[i]],
        "xyxy_px": found.xyxy_px[i].tolist(),
        "polygon_parts_px": [part.tolist() for part in found.parts(i)],
        "keypoints": found.keypoints_px[i].tolist(),
        "crowd": bool(found.flags[i] & CROWD),
        "difficult": bool(found.flags[i] & DIFFICULT),
    }


def is_label(want: dict[str, Any], found: Instances, i: int, tol_px: float) -> bool:
    """Whether instance ``i`` is the expected object in everything that the case says of it."""
    got = describe(found, i)
    parts = got["polygon_parts_px"]
    for name, value in want.items():
        if name in ("class", "kind", "crowd", "difficult"):
            ok = got[name] == value
        elif name == "xyxy_px":
            ok = near(value, got[name], tol_px)
        elif name == "keypoints":
            ok = near(value, got[name], tol_px)
        elif name == "polygon_px":
            ok = len(parts) == 1 and same_ring(value, parts[0], tol_px)
        elif name == "polygon_parts_px":
            ok = None not in match(value, parts, lambda a, b: same_ring(a, b, tol_px)) and len(parts) == len(value)
        elif name == "mask_px":
            ok = is_mask(value, found, i)
        else:
            raise UnknownWord(f"the runner must know what to do with {name!r} of a label")
        if not ok:
            return False
    return True


def near(want: Any, got: Any, tol: float) -> bool:
    """Compare nested lists of numbers; None is not checked."""
    if want is None:
        return True
    if isinstance(want, list):
        return len(want) == len(got) and all(near(a, b, tol) for a, b in zip(want, got, strict=True))
    return bool(abs(want - got) <= tol)


def same_ring(want: list[list[float]], got: list[list[float]], tol_px: float) -> bool:
    """Compare two outlines as rings: where they begin and which way they run does not matter."""
    turned = [direction[k:] + direction[:k] for direction in (got, got[::-1]) for k in range(len(got))]
    return any(near(want, ring, tol_px) for ring in turned)


def covered(found: Instances, i: int, size_hw: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels whose centre lies in the outline: even-odd over all rings of a mask, in any part of a polygon."""
    y, x = np.mgrid[: size_hw[0], : size_hw[1]] + 0.5
    filled = []
    for ring in found.parts(i):
        inside = np.zeros(size_hw, np.bool_)
        for (x0, y0), (x1, y1) in zip(ring.tolist(), np.roll(ring, -1, axis=0).tolist(), strict=True):
            if y0 != y1:
                inside ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
        filled.append(inside)
    if not filled:
        return np.zeros(size_hw, np.bool_)
    return np.logical_xor.reduce(filled) if found.kind[i] == MASK else np.logical_or.reduce(filled)


def is_mask(want: dict[str, Any], found: Instances, i: int) -> bool:
    """Whether the area of an instance is the expected number of pixels, with these inside and those outside."""
    reach = np.array([want["inside"], want["outside"]], dtype=object)
    points = [point for part in reach for point in part]
    edge = np.ceil(found.xyxy_px[i]).astype(int)
    size_hw = (max(int(edge[3]), *(y + 1 for y, _ in points)), max(int(edge[2]), *(x + 1 for _, x in points)))
    mask = covered(found, i, size_hw)
    return bool(
        found.kind[i] != BOX
        and mask.sum() == want["area"]
        and all(mask[y, x] for y, x in want["inside"])
        and not any(mask[y, x] for y, x in want["outside"])
    )


def pixel_complaints(want: dict[str, Any], image: npt.NDArray[np.uint8]) -> list[str]:
    """Compare the size and some pixels of a (C, H, W) picture."""
    wrong = []
    if list(image.shape[1:]) != want["size"] or len(image) != 3 or image.dtype != np.uint8:
        wrong.append(f"the picture must have size {want['size']} and 3 channels of 8 bits, got {image.shape} {image.dtype}")
        return wrong
    for y, x, rgb, tolerance in want.get("at", []):
        got = image[:, y, x].tolist()
        if not near(rgb, got, tolerance):
            wrong.append(f"the pixel at y {y}, x {x} must be {rgb} (+-{tolerance}), got {got}")
    return wrong


def overlap_mask(store: fastdata.Store, i: int, ratio: int) -> npt.NDArray[np.uint8 | np.int32]:
    """Return the mask that a training gets for a picture at its own size."""
    from fastdata.augment.letterbox import letterbox
    from fastdata.render.masks import overlap_masks  # compiles: not for a process whose memory is measured

    size_hw = store.catalog.size_hw(store.entry(i))
    recipe = letterbox([store.entry(i)], store.catalog, imgsz=max(size_hw), out_hw=size_hw, task="segment")
    return overlap_masks(recipe.labels, recipe.out_hw, ratio)[0][0]


def mask_complaints(want: dict[str, Any], mask: npt.NDArray[np.uint8 | np.int32]) -> list[str]:
    """Check a picture of object numbers."""
    wrong = []
    values = want["values"]
    numbers = np.unique(mask[mask != values["background"]])
    found = {"size": list(mask.shape), "distinct_objects": len(numbers), "largest": int(numbers.max(initial=0))}
    for name, value in {"size": want["size"], **values}.items():
        if name in found and found[name] != value:
            wrong.append(f"{name} of the mask must be {value}, got {found[name]}")
    grid = want["all_different_at"]
    y, x = grid["first"]
    at = mask[y :: grid["step"], x :: grid["step"]][: grid["rows"], : grid["columns"]]
    if len(np.unique(at)) != grid["rows"] * grid["columns"] or (at == values["background"]).any():
        wrong.append(f"the numbers at the grid must all differ, got {len(np.unique(at))}")
    filled = [(y, x) for y, x in want["background_at"] if mask[y, x] != values["background"]]
    wrong += [f"y {y}, x {x} of the mask must be background" for y, x in filled]
    return wrong
