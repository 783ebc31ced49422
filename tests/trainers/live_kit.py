"""The trainer's own augmentation, fed the numbers that ours has drawn.

Every step is Ultralytics' object; only its chance is replaced: ``random`` and ``numpy.random`` answer from a list, in the order
in which the trainer asks. The one change to a step is the half pixel: the trainer applies the matrix of its labels to pixel
*indices*, so its pixels lie half a pixel times (1 - zoom) beside its labels. Here its warp is given the matrix of the pixel
*edges*, and its labels the matrix as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import ultra_kit  # first: it sets the environment  # noqa: F401
from ultralytics.cfg import get_cfg
from ultralytics.data import augment as theirs
from ultralytics.data.dataset import YOLODataset
from ultralytics.data.utils import check_det_dataset

from fastdata.augment.draws import BASE, CUTMIX, MIXUP, Draws
from fastdata.augment.policy import Policy

HALF = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])


def their_dataset(data: Path | dict[str, Any], imgsz: int, task: str, split: str = "train", **more: Any) -> YOLODataset:
    """Their dataset of one split, with its images in the order of their names."""
    content = check_det_dataset(str(data), autodownload=False) if isinstance(data, Path) else data
    hyp = get_cfg(overrides={"mosaic": 0.0, "task": task, "imgsz": imgsz})
    return YOLODataset(
        img_path=content[split], imgsz=imgsz, cache=False, augment=True, hyp=hyp, data=content, task=task, rect=False, **more
    )


@contextmanager
def scripted(name: str, answers: list[Any]) -> Iterator[None]:
    """Answer a function of chance in the trainer's module from a list, which must be used up."""
    left = iter(answers)
    with patch.object(*_place(name), lambda *a, **k: next(left)):
        yield
    rest = list(left)
    assert not rest, f"{name} must be asked {len(answers)} times, got {len(answers) - len(rest)}"


def _place(name: str) -> tuple[Any, str]:
    owner, _, attribute = name.rpartition(".")
    return (theirs.random if owner == "random" else np.random), attribute


@dataclass(frozen=True, slots=True)
class Sample:
    """What came out, in pixels of the output."""

    rgb: np.ndarray
    """(3, H, W)"""
    cls: np.ndarray
    xyxy_px: np.ndarray
    segments: np.ndarray
    keypoints: np.ndarray | None


def their_sample(dataset: YOLODataset, ids: dict[int, int], draws: Draws, slot: int, policy: Policy, task: str) -> Sample:
    """Run the trainer's steps on one sample.

    Args:
        dataset: From :func:`their_dataset`.
        ids: Its index of each of our entries.
        draws: Ours.
        slot: Which sample.
        policy: What else the steps are told: shares and modes.
        task: Of the labels.
    """
    scenes = range(int(draws.scene_offsets[slot]), int(draws.scene_offsets[slot + 1]))
    at = {int(draws.role[s]): s for s in scenes}
    use_obb = task == "obb"

    def bracket(role: int) -> dict[str, Any]:
        labels = _scene(dataset, ids, draws, at[role], policy, use_obb)
        if role + 1 in at:  # Copy-Paste of the mode mixup
            paste = theirs.CopyPaste(dataset, pre_transform=lambda _: _scene(dataset, ids, draws, at[role + 1], policy, use_obb),
                                     p=policy.copy_paste, mode="mixup")  # fmt: skip
            asks = [0.0] if len(labels["instances"].segments) else []
            with scripted("random.uniform", asks), _first_of(dataset), stable_order():
                labels = paste(labels)
        return labels

    labels = bracket(BASE)
    if MIXUP in at:
        step = theirs.MixUp(dataset, pre_transform=lambda _: bracket(MIXUP), p=1.0)
        with _first_of(dataset), scripted("numpy.random.beta", [float(draws.mixup_weight[slot])]):
            params = step.get_params(labels)
        labels = step.apply_instances(step.apply_image(labels, params), params)
    if CUTMIX in at:
        step = theirs.CutMix(dataset, pre_transform=lambda _: bracket(CUTMIX), p=1.0)
        step.preserve_obb = use_obb
        regions = iter(draws.cutmix_xyxy_px[slot])
        step._rand_bbox = lambda w, h: tuple(next(regions))
        choice = float(draws.cutmix_choice[slot])
        with _first_of(dataset), patch.object(np.random, "choice", lambda idx: idx[int(choice * len(idx))]):
            params = step.get_params(labels)
        labels = step.apply_instances(step.apply_image(labels, params), params)
    labels["img"] = np.ascontiguousarray(labels["img"])
    if policy.hsv_h or policy.hsv_s or policy.hsv_v:  # else not even its way to HSV and back is gone
        with scripted("numpy.random.uniform", [draws.hsv[slot]]):
            labels = theirs.RandomHSV(1.0, 1.0, 1.0).apply_image(labels)
    flip_idx = dataset.data.get("flip_idx", [])
    for direction, fires in (("vertical", draws.flip_ud[slot]), ("horizontal", draws.flip_lr[slot])):
        step = theirs.RandomFlip(p=1.0 if fires else 0.0, direction=direction, flip_idx=flip_idx or None)
        params = step.get_params(labels)
        labels = step.apply_instances(step.apply_image(labels, params), params)
    instances = labels["instances"]
    instances.convert_bbox("xyxy")
    instances.denormalize(*labels["img"].shape[1::-1])
    rgb = np.ascontiguousarray(labels["img"][..., ::-1].transpose(2, 0, 1))
    return Sample(rgb, labels["cls"].reshape(-1), instances.bboxes, instances.segments, instances.keypoints)


@contextmanager
def stable_order() -> Iterator[None]:
    """Let equals keep their order: the trainer's sort of objects by their overlap, which is mostly 0, is not stable."""
    with patch.object(theirs.np, "argsort", lambda a: np.asarray(a).argsort(kind="stable")):
        yield


@contextmanager
def _first_of(dataset: YOLODataset) -> Iterator[None]:
    """Let a mix step load any picture: its ``pre_transform`` brings the one that is meant."""
    with patch.object(theirs.random, "randint", lambda a, b: 0):
        yield


def _scene(dataset: YOLODataset, ids: dict[int, int], draws: Draws, scene: int, policy: Policy, use_obb: bool) -> dict[str, Any]:
    tiles = [ids[int(e)] for e in draws.tile_entry[draws.tile_offsets[scene] : draws.tile_offsets[scene + 1]]]
    s = dataset.imgsz
    labels = dataset.get_image_and_label(tiles[0])
    if len(tiles) > 1:
        mosaic = theirs.Mosaic(dataset, imgsz=s, p=1.0, n=len(tiles))
        mosaic.preserve_obb = use_obb
        mosaic.get_indexes = lambda: tiles[1:]
        centre = draws.centre_yx[scene].tolist() if len(tiles) == 4 else []
        with scripted("random.uniform", [float(v) for v in centre]):
            params = mosaic.get_params(labels)
        labels = mosaic.apply_instances(mosaic.apply_image(labels, params), params)
        labels.pop("mix_labels", None)
    if policy.copy_paste > 0 and policy.copy_paste_mode == "flip":
        with stable_order():
            labels = theirs.CopyPaste(dataset, p=policy.copy_paste, mode="flip")(labels)
    affine = theirs.RandomPerspective(perspective=policy.perspective, size=(s, s), preserve_obb=use_obb)
    answers = [
        *draws.perspective[scene],
        draws.degrees[scene],
        draws.scale[scene],
        *draws.shear_deg[scene],
        *draws.translate[scene],
    ]
    with scripted("random.uniform", [float(v) for v in answers]):
        params = affine.get_params(labels)
    pixels = params | {"M": np.linalg.inv(HALF) @ params["M"].astype(np.float64) @ HALF}
    labels["img"] = np.ascontiguousarray(labels["img"])
    return affine.apply_instances(affine.apply_image(labels, pixels), params)
