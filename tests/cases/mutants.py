"""Wrong expectations made of right ones: each differs in one thing that a check must notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from cases.checks import TOL_PX
from fastdata.problems import KINDS


def mutants(expect: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (what is wrong with it, expectation of a conversion), one difference each."""
    yield from _applied(expect, _changes(expect))


def result_mutants(expect: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (what is wrong with it, expected result of a plan), one difference each."""
    yield from _applied(expect, _changes_of_result(expect))


def _applied(
    expect: dict[str, Any], changes: Iterator[tuple[str, list[Any], Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, path, value in changes:
        wrong = copy.deepcopy(expect)
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        yield f"{name} at {'/'.join(map(str, path))}", wrong


def _changes(expect: dict[str, Any]) -> Iterator[tuple[str, list[Any], Any]]:
    if "images" in expect:
        yield "one image more", ["images"], expect["images"] + 1
    for name in ("names", "category_ids"):
        if name in expect:
            yield "another order", [name], expect[name][::-1]
    for name in ("label_count", "training_label_count"):
        for key, count in expect.get(name, {}).items():
            yield "one label more", [name, key], count + 1
    if "skipped" in expect:
        yield "a skip that is not there", ["skipped"], [*expect["skipped"], {"file": "images/no.png", "reason": "unreadable"}]
        for i, row in enumerate(expect["skipped"]):
            yield "a skip forgotten", ["skipped"], expect["skipped"][:i] + expect["skipped"][i + 1 :]
            yield "another reason", ["skipped", i, "reason"], "too-large" if row["reason"] != "too-large" else "not-found"
    yield from _changes_of_problems(expect)
    for key, labels in expect.get("labels", {}).items():
        yield from _changes_of_labels(labels, ["labels", key], TOL_PX)
        if expect.get("ordered") and len(labels) > 1:
            yield "another order", ["labels", key], labels[::-1]
    for key, pixels in expect.get("pixels", {}).items():
        yield from _changes_of_pixels(pixels, ["pixels", key])
    if "mask" in expect:
        yield "one object fewer", ["mask", "values", "distinct_objects"], expect["mask"]["values"]["distinct_objects"] - 1
        yield "a number that fits a byte", ["mask", "values", "largest"], 255
        yield "an object for background", ["mask", "background_at"], [expect["mask"]["all_different_at"]["first"]]
    for name in ("contains", "contains_any"):
        if name in expect.get("error", {}):
            yield "another message", ["error", name], ["no message has these words"]
    if "error" in expect:
        yield "no error", ["error"], {"contains": ["\0"]}
    for name in ("max_seconds", "max_memory_mb"):
        if name in expect:
            yield "no time or room at all", [name], 0


def _changes_of_problems(expect: dict[str, Any]) -> Iterator[tuple[str, list[Any], Any]]:
    if "problems" not in expect:
        return
    problems, allowed = expect["problems"], set(expect.get("may_report", []))
    yield "a report that is not there", ["problems"], [*problems, {"file": "labels/no.txt", "line": 1, "kind": "clipped"}]
    for i, problem in enumerate(problems):
        kinds = problem["kind"] if isinstance(problem["kind"], list) else [problem["kind"]]
        if not allowed & set(kinds):
            yield "a report forgotten", ["problems"], problems[:i] + problems[i + 1 :]
        yield "another kind", ["problems", i, "kind"], next(kind for kind in KINDS if kind not in kinds)
        yield "another file", ["problems", i, "file"], "labels/no.txt"
        for place in ("line", "annotation_id", "object"):
            if place in problem:
                yield "another place", ["problems", i, place], problem[place] + 100


def _changes_of_result(expect: dict[str, Any]) -> Iterator[tuple[str, list[Any], Any]]:
    tol_px, tol_deg = expect.get("tol_px", TOL_PX), expect.get("tol_deg", 0)
    for key in ("labels", "labels_back"):
        yield from _changes_of_labels(expect.get(key, []), [key], tol_px)
    yield from _changes_of_pixels(expect, [])
    for name, step in (("resized", 1), ("pad_tlbr", 1), ("gain_hw", 1e-7)):
        for i, value in enumerate(expect.get(name, [])):
            yield "another number", [name, i], value + step
    for i, label in enumerate(expect["labels"]):
        if "rotated_px" in label:
            place = ["labels", i, "rotated_px"]
            for name in ("center_xy", "size"):
                for k, value in enumerate(label["rotated_px"][name]):
                    yield "a number beyond the tolerance", [*place, name, k], value + 2.5 * tol_px
            yield "another direction", [*place, "angle_deg"], label["rotated_px"]["angle_deg"] + 2.5 * tol_deg
            yield "a direction mirrored", [*place, "angle_deg"], -label["rotated_px"]["angle_deg"]
    yield "a word that is not known", ["colour"], 1


def _changes_of_labels(labels: list[dict[str, Any]], path: list[Any], tol_px: float) -> Iterator[tuple[str, list[Any], Any]]:
    if not labels:
        return
    yield "a label more", path, [*labels, {"class": 0, "xyxy_px": [0, 0, 1, 1]}]
    for i, label in enumerate(labels):
        yield "a label forgotten", path, labels[:i] + labels[i + 1 :]
        for name, place, value in _changes_of_label(label, tol_px):
            yield name, [*path, i, *place], value


def _changes_of_pixels(pixels: dict[str, Any], path: list[Any]) -> Iterator[tuple[str, list[Any], Any]]:
    h, w = pixels["size"]
    yield ("height and width exchanged", [*path, "size"], [w, h]) if h != w else ("a row more", [*path, "size"], [h + 1, w])
    for i, (_, _, rgb, tolerance) in enumerate(pixels.get("at", [])):
        if max(abs(a - b) for a, b in zip(rgb, rgb[::-1], strict=True)) > 2 * tolerance:
            yield "BGR for RGB", [*path, "at", i, 2], rgb[::-1]
        step = 2 * tolerance + 1
        yield "another brightness", [*path, "at", i, 2], [c + step if c < 128 else c - step for c in rgb]


def _changes_of_label(label: dict[str, Any], tol_px: float) -> Iterator[tuple[str, list[Any], Any]]:
    for i, x in enumerate(label.get("xyxy_px", [])):
        yield "a side moved by a pixel", ["xyxy_px", i], x + 1
        yield "a side moved by little more than the tolerance", ["xyxy_px", i], x - 2 * tol_px
    if "class" in label:
        yield "another class", ["class"], label["class"] + 1
    if "kind" in label:
        yield "another kind", ["kind"], "obb"
    for name in ("crowd", "difficult"):
        if name in label:
            yield "the other flag", [name], not label[name]
    if "polygon_px" in label:
        yield from _changes_of_ring(label["polygon_px"], ["polygon_px"])
    for i, part in enumerate(label.get("polygon_parts_px", [])):
        yield from _changes_of_ring(part, ["polygon_parts_px", i])
        yield "a part forgotten", ["polygon_parts_px"], label["polygon_parts_px"][:i] + label["polygon_parts_px"][i + 1 :]
    for i, (x, _, visibility) in enumerate(label.get("keypoints", [])):
        if x is not None:
            yield "a point moved by a pixel", ["keypoints", i, 0], x + 1
        yield "another visibility", ["keypoints", i, 2], (visibility + 1) % 3
    if "mask_px" in label:
        mask = label["mask_px"]
        yield "a pixel more", ["mask_px", "area"], mask["area"] + 1
        yield "a hole that is none", ["mask_px", "inside"], [*mask["inside"], mask["outside"][0]]
        yield "an object that is none", ["mask_px", "outside"], [*mask["outside"], mask["inside"][0]]


def _changes_of_ring(ring: list[list[float]], path: list[Any]) -> Iterator[tuple[str, list[Any], Any]]:
    for i, (x, y) in enumerate(ring):
        yield "a corner moved by a pixel", [*path, i], [x + 1, y]
    yield "a corner forgotten", path, ring[1:]
    if len(ring) > 3:
        yield "two corners exchanged", path, [ring[1], ring[0], *ring[2:]]
