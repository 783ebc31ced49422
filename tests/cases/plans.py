"""Carry out the cases about one geometric step with fixed numbers: write the pictures into a store, put the numbers where chance
would have put them, and look at what the package itself plans and draws.

An affine step of a case is a matrix, the package's an angle, a scale and a shift: they are solved for here, and the matrix that
comes out is compared with the one that was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from label_kit import Shot, Thing, write

from cases.checks import TOL_PX, describe, is_label, match, near, pixel_complaints
from fastdata.augment.assemble import assemble
from fastdata.augment.draws import BASE, MIXUP, Draws, plain
from fastdata.augment.letterbox import letterbox
from fastdata.augment.policy import Policy, preset
from fastdata.augment.recipe import FILL, Recipe
from fastdata.catalog import Keypoints
from fastdata.labels import OBB, POLYGON, Instances
from fastdata.render import cpu, reference
from fastdata.show_augmented import instances_of
from fastdata.store.read import Store, open_store

KEYS = {"size", "labels", "at", "resized", "pad_tlbr", "gain_hw", "labels_back", "tol_px", "tol_deg"}
"""Of an expected result."""

GAIN_TOL = 1e-8


@dataclass(slots=True)
class Result:
    """What the first slot of a recipe became."""

    recipe: Recipe
    images: dict[str, npt.NDArray[np.uint8]]
    """(3, H, W) by the name of the renderer."""

    @property
    def labels(self) -> Instances:
        """In pixels of the picture."""
        return instances_of(self.recipe.labels, 0)

    @property
    def pad_tlbr(self) -> list[float]:
        """Margins of a letterbox."""
        (left, top), (h, w) = self.recipe.pad_xy[0].tolist(), self.resized
        return [top, left, self.recipe.out_hw[0] - top - h, self.recipe.out_hw[1] - left - w]

    @property
    def resized(self) -> list[int]:
        """Size of the first tile."""
        return [int(side) for side in self.recipe.size_hw[0]]

    @property
    def labels_back(self) -> Instances:
        """In pixels of the source, by the gains and pads that were stored."""
        gain, pad = self.recipe.gain_hw[0, ::-1], self.recipe.pad_xy[0]
        return replace(self.labels, xyxy_px=(self.labels.xyxy_px - np.tile(pad, 2)) / np.tile(gain, 2))


def run_plan_case(do: dict[str, Any], expect: dict[str, Any], case_folder: Path, folder: Path) -> None:
    """Carry out every step, with every renderer.

    Raises:
        AssertionError: Something differs from what the case says.
    """
    for number, step, want in steps_of(do, expect):
        wrong = plan_complaints(want, carry_out(step, case_folder, folder / str(number)))
        assert not wrong, f"step {number}:\n  " + "\n  ".join(wrong)


def steps_of(do: dict[str, Any], expect: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield number, step and expected result."""
    steps, wants = (do["steps"], expect["steps"]) if "steps" in do else ([do], [expect])
    for number, (step, want) in enumerate(zip(steps, wants, strict=True), 1):
        assert (step.keys(), want.keys()) == ({"plan"}, {"result"})
        yield number, step["plan"], want["result"]


def carry_out(step: dict[str, Any], case_folder: Path, folder: Path) -> Result:
    """Plan and draw one step."""
    folder.mkdir()
    assert step.get("fill", FILL) == FILL
    shown = step.get("tiles") or [step[name] for name in ("first", "second") if name in step] or [step]
    flip_idx = tuple(step.get("flip_idx", ()))
    keypoints = Keypoints(len(flip_idx), flip_idx=flip_idx) if flip_idx else None
    shots = [Shot(_picture(picture, case_folder), [_thing(label) for label in picture["labels"]]) for picture in shown]
    out = write(folder / "store.lmdb", shots, names=[f"class {i}" for i in range(4)], keypoints=keypoints)
    with open_store(out) as store:
        recipe = OPERATIONS[step["op"]](step, store)
        assert len(recipe) == 1
        images = {name: render(store, recipe)[0] for name, render in (("reference", reference.render), ("cpu", cpu.render))}
    return Result(recipe, images)


def _picture(picture: dict[str, Any], folder: Path) -> npt.NDArray[np.uint8]:
    if "image" not in picture:
        return np.zeros((*picture["image_size"], 3), np.uint8)
    return cv2.cvtColor(cv2.imread(str(folder / picture["image"])), cv2.COLOR_BGR2RGB)


def _thing(label: dict[str, Any]) -> Thing:
    outline = label.get("polygon_px") or label.get("corners_px")
    known = {"class", "xyxy_px", "polygon_px", "corners_px", "keypoints"}
    assert not label.keys() - known, f"the runner must know {sorted(label.keys() - known)} of a label"
    return Thing(
        label["class"],
        tuple(label["xyxy_px"]) if "xyxy_px" in label else None,
        [outline] if outline else [],
        OBB if "corners_px" in label else POLYGON if outline else None,
        keypoints=label.get("keypoints"),
    )


def _plan(store: Store, draws: Draws, *, imgsz: int, out_hw: tuple[int, int], task: str, **policy: Any) -> Recipe:
    """Finish a plan of which every draw is given; the policy's own numbers are limits, not chance."""
    limits = Policy(**{**preset("none").as_dict(), **policy})
    return assemble(draws, store.catalog, limits, imgsz=imgsz, out_hw=out_hw, task=task)


def _long_side(store: Store, entry: int = 0) -> int:
    """The imgsz at which a picture keeps its size."""
    return max(store.catalog.size_hw(entry))


def _mosaic(step: dict[str, Any], store: Store) -> Recipe:
    """Four tiles on a canvas of twice imgsz, all of which is seen."""
    draws = replace(plain([0]), centre_yx=np.array([step["center_yx"]]), tile_offsets=np.array([0, 4]), tile_entry=np.arange(4))
    side = 2 * step["imgsz"]
    return _plan(store, draws, imgsz=step["imgsz"], out_hw=(side, side), task="detect")


def _mixup(step: dict[str, Any], store: Store) -> Recipe:
    """A second scene, of the second picture."""
    one, both = plain([0]), plain([0, 1])
    of_sample = ("entry", "hsv", "flip_ud", "flip_lr", "bgr", "cutmix_xyxy_px", "cutmix_choice")
    draws = replace(
        both, **{name: getattr(one, name) for name in of_sample}, mixup_weight=np.array([step["share_of_first"]]),
        scene_offsets=np.array([0, 2]), role=np.array([BASE, MIXUP], np.uint8),
    )  # fmt: skip
    return _plan(store, draws, imgsz=_long_side(store), out_hw=store.catalog.size_hw(0), task="detect")


def _copy_paste(step: dict[str, Any], store: Store) -> Recipe:
    """All own objects are pasted mirrored: the share is 1 and the case pastes its only one."""
    assert step["paste"] == list(range(len(step["labels"])))
    return _plan(
        store, plain([0]), imgsz=_long_side(store), out_hw=store.catalog.size_hw(0), task="segment",
        copy_paste=1.0, copy_paste_mode=step["mode"],
    )  # fmt: skip


def _affine(step: dict[str, Any], store: Store) -> Recipe:
    """M = T R C with R = k [[cos, sin], [-sin, cos]] about the centre of the picture (shear and perspective are 0)."""
    (a, b, x), (c, d, y) = step["matrix"]
    assert (c, d) == (-b, a), "the runner must learn shear"
    h, w = store.catalog.size_hw(0)
    out_h, out_w = step["size"]
    draws = replace(
        plain([0]), degrees=np.array([math.degrees(math.atan2(b, a))]), scale=np.array([math.hypot(a, b)]),
        translate=np.array([[(a * w / 2 + b * h / 2 + x) / out_w, (c * w / 2 + d * h / 2 + y) / out_h]]),
    )  # fmt: skip
    outlines = any("polygon_px" in label for label in step["labels"])
    limits = {name: step[name] for name in ("min_side_px", "min_area_share", "max_aspect")}
    task = step.get("task", "segment" if outlines else "detect")
    recipe = _plan(store, draws, imgsz=_long_side(store), out_hw=(out_h, out_w), task=task, **limits)
    assert np.allclose(recipe.matrix[0], [*step["matrix"], [0, 0, 1]], rtol=0, atol=1e-8)
    return recipe


def _flip(step: dict[str, Any], store: Store) -> Recipe:
    """One flip, nothing else."""
    axis = {"left-right": "flip_lr", "up-down": "flip_ud"}[step["axis"]]
    draws = replace(plain([0]), **{axis: np.array([True])})
    return _plan(store, draws, imgsz=_long_side(store), out_hw=store.catalog.size_hw(0), task="pose")


def _letterbox(step: dict[str, Any], store: Store) -> Recipe:
    """As in validation, to a square."""
    assert step.get("then", "boxes back to the source") == "boxes back to the source"
    return letterbox([0], store.catalog, imgsz=step["imgsz"])


OPERATIONS: dict[str, Callable[[dict[str, Any], Store], Recipe]] = {
    "mosaic4": _mosaic, "mixup": _mixup, "copy_paste": _copy_paste, "affine": _affine, "flip": _flip, "letterbox": _letterbox,
}  # fmt: skip


def plan_complaints(want: dict[str, Any], result: Result) -> list[str]:
    """Return what is wrong with a result, one sentence each."""
    wrong = [f"the runner must know what to do with {key!r}" for key in sorted(want.keys() - KEYS)]
    tol_px, tol_deg = want.get("tol_px", TOL_PX), want.get("tol_deg", 0)
    for name, tol in (("resized", 0), ("pad_tlbr", 0)):
        if name in want and not near(want[name], getattr(result, name), tol):
            wrong.append(f"{name} must be {want[name]}, got {getattr(result, name)}")
    if "gain_hw" in want and not near(want["gain_hw"], result.recipe.gain_hw[0].tolist(), GAIN_TOL):
        wrong.append(f"gain_hw must be {want['gain_hw']}, got {result.recipe.gain_hw[0].tolist()}")
    for name in ("labels", "labels_back"):
        if name in want:
            found = getattr(result, name)
            wrong += [f"{name}: {w}" for w in _label_complaints(want[name], found, result.recipe, tol_px, tol_deg)]
    for name, image in result.images.items():
        wrong += [f"{name}: {w}" for w in pixel_complaints(want, image)]
    return wrong


def _label_complaints(
    wants: list[dict[str, Any]], found: Instances, recipe: Recipe, tol_px: float, tol_deg: float
) -> list[str]:
    def agrees(want: dict[str, Any], i: int) -> bool:
        plain_want = {key: value for key, value in want.items() if key != "rotated_px"}
        rotated = want.get("rotated_px")
        return is_label(plain_want, found, i, tol_px) and (
            rotated is None or _is_rotated(rotated, recipe.labels.xywhr_px[i].tolist(), tol_px, tol_deg)
        )

    partner = match(wants, list(range(len(found))), agrees)
    wrong = [f"this object must be there: {want}" for want, at in zip(wants, partner, strict=True) if at is None]
    wrong += [
        f"this object must not be there: {describe(found, i)} {recipe.labels.xywhr_px[i : i + 1].tolist()}"
        for i in range(len(found))
        if i not in partner
    ]
    return wrong


def _is_rotated(want: dict[str, Any], got: list[float], tol_px: float, tol_deg: float) -> bool:
    x, y, w, h, radians = got
    turn = (math.degrees(radians) - want["angle_deg"] + 90) % 180 - 90  # a rectangle turned by half a turn is the same one
    return near(want["center_xy"], [x, y], tol_px) and near(want["size"], [w, h], tol_px) and abs(turn) <= tol_deg
