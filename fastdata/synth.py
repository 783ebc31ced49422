"""Invented datasets: complete YOLO and COCO folders of any size, whose labels are exact.

For tests, for the demonstration and for measuring how things grow. Picture ``index`` is :func:`fastdata.figures.make_picture` of
(seed, index), and its size is the one that :func:`size_of` draws: the same for any number of pictures, any splits, workers and
either format. Pictures lie in ``images/<split>/<index>.jpg``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import simplejpeg

from fastdata.boxes import F64, xyxy_px_to_xywh_norm
from fastdata.errors import FastdataError, UsageError
from fastdata.figures import CLASSES, FLIP_IDX, KEYPOINT_VERTICES, KEYPOINTS, SIZES_HW, Figure, check_picture, make_picture

Format = Literal["yolo", "coco"]
Task = Literal["detect", "segment", "pose", "obb"]

QUALITY = 90
"""JPEG quality, with the 4:2:0 chroma that cameras and most published datasets have."""

ALONE = 200
"""Pictures below which starting processes costs more than they save."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A dataset to be written, with every choice made; fields as the arguments of :func:`write_dataset`."""

    folder: str
    images: int
    format: Format
    task: Task
    splits: tuple[str, ...]
    ends: tuple[int, ...]
    """Index after the last picture of each split."""
    sizes_hw: tuple[tuple[int, int], ...]
    classes: tuple[str, ...]
    seed: int
    background_share: float

    def split_of(self, index: int) -> str:
        """Return the split that a picture belongs to."""
        return self.splits[int(np.searchsorted(self.ends, index, side="right"))]


def write_dataset(
    folder: Path | str,
    images: int,
    *,
    format: Format = "yolo",
    task: Task = "segment",
    splits: Mapping[str, float] | None = None,
    size_hw: tuple[int, int] | Sequence[tuple[int, int]] = SIZES_HW,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    background_share: float = 0.1,
    workers: int | None = None,
) -> Path:
    """Write a dataset: pictures, labels, and the file that describes them.

    Args:
        folder: Is made; must be empty if it exists.
        images: Number of pictures in all splits together.
        format: ``yolo``: ``data.yaml`` and one label file a picture; ``coco``: ``annotations/instances_<split>.json``.
        task: What a label says. In COCO, ``detect`` leaves the outline out and ``pose`` adds keypoints to outlines; COCO has no
            ``obb``. In an ``obb`` set every figure lies wholly inside its picture.
        splits: Name to share of the pictures, four fifths ``train`` and one ``val`` by default. Shares count relative to their
            sum; pictures are dealt in order.
        size_hw: Size of every picture, or sizes to draw from.
        classes: Names out of :data:`fastdata.figures.CLASSES`; all by default, for ``pose`` all that have keypoints.
        seed: Chooses the pictures.
        background_share: Share of pictures without a figure. In YOLO their label file exists and is empty.
        workers: Processes; by default one, and from 200 pictures on one per core that this process may use. The files do not
            depend on it.

    Returns:
        ``folder``.

    Raises:
        UsageError: An argument breaks its rule, or the folder is not empty.
    """
    spec = specify(folder, images, format, task, splits, size_hw, classes, seed, background_share)
    root = Path(folder)
    if root.exists() and any(root.iterdir()):
        raise UsageError(f"folder must be empty or not exist, got {root}")
    for split in spec.splits:
        (root / "images" / split).mkdir(parents=True)
        (root / "labels" / split).mkdir(parents=True)
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if images >= ALONE else 1
    if workers == 1:
        draw(spec, range(images))
    else:
        _draw_in_processes(spec, workers)
    if format == "yolo":
        (root / "data.yaml").write_text(_data_yaml(spec), encoding="utf-8")
    else:
        _gather_coco(spec)
    return root


def specify(
    folder: Path | str,
    images: int,
    format: Format,
    task: Task,
    splits: Mapping[str, float] | None,
    size_hw: tuple[int, int] | Sequence[tuple[int, int]],
    classes: Sequence[str] | None,
    seed: int,
    background_share: float,
) -> Spec:
    """Check the arguments of :func:`write_dataset` and fill in what follows from them.

    Raises:
        UsageError: An argument breaks its rule.
    """
    if format not in ("yolo", "coco"):
        raise UsageError(f"format must be yolo or coco, got {format}")
    if task not in ("detect", "segment", "pose", "obb") or (format, task) == ("coco", "obb"):
        raise UsageError(f"task must be detect, segment, pose or, in yolo, obb, got {task} in {format}")
    if images < 0:
        raise UsageError(f"images must be 0 or more, got {images}")
    shares = dict(splits or {"train": 0.8, "val": 0.2})
    if min(shares.values()) < 0 or not 0 < sum(shares.values()) < float("inf"):
        raise UsageError(f"splits must be shares of 0 or more, and one above 0, got {shares}")
    for name in shares:
        if not name.strip(".") or not all(c.isalnum() or c in "-_." for c in name):
            raise UsageError(f"splits must have names of letters, digits, '-', '_' and '.', got {name!r}")
    if classes is None:
        classes = tuple(KEYPOINT_VERTICES) if task == "pose" else CLASSES
    if task == "pose" and not set(classes) <= set(KEYPOINT_VERTICES):
        raise UsageError(f"classes must have keypoints in a pose set: {', '.join(KEYPOINT_VERTICES)}, got {', '.join(classes)}")
    sizes = np.array(size_hw, np.int64).reshape(-1, 2).tolist()
    sizes_hw = tuple((int(h), int(w)) for h, w in sizes)
    check_picture(classes, background_share, sizes_hw)
    ends = np.round(np.cumsum(list(shares.values())) / sum(shares.values()) * images).astype(np.int64).tolist()
    return Spec(str(folder), images, format, task, tuple(shares), tuple(ends), sizes_hw, tuple(classes), seed, background_share)


def size_of(spec: Spec, index: int) -> tuple[int, int]:
    """Return the size (h, w) of a picture: Fibonacci hashing spreads indices evenly over the sizes (Knuth, TAOCP 3, 6.4)."""
    return spec.sizes_hw[((index * 11400714819323198485) % 2**64) * len(spec.sizes_hw) >> 64]


def picture(spec: Spec, index: int) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], list[Figure]]:
    """Draw picture ``index`` of a dataset as :func:`write_dataset` does, before JPEG."""
    uncut = spec.task == "obb"
    return make_picture(
        spec.seed, index, size_of(spec, index), classes=spec.classes, background_share=spec.background_share, uncut=uncut
    )


def draw(spec: Spec, indices: range) -> None:
    """Write some pictures and what is said about each: a label file, or in COCO its part of the annotations as JSON."""
    root = Path(spec.folder)
    for index in indices:
        rgb, figures = picture(spec, index)
        size_hw = (rgb.shape[0], rgb.shape[1])
        split, stem = spec.split_of(index), f"{index:06d}"
        (root / "images" / split / f"{stem}.jpg").write_bytes(
            simplejpeg.encode_jpeg(rgb, quality=QUALITY, colorspace="RGB", colorsubsampling="420")
        )
        if spec.format == "yolo":
            rows = "".join(f"{yolo_row(figure, size_hw, spec.task)}\n" for figure in figures)
            (root / "labels" / split / f"{stem}.txt").write_text(rows, encoding="ascii")
        else:
            part = {
                "image": {"id": index + 1, "file_name": f"{stem}.jpg", "height": size_hw[0], "width": size_hw[1]},
                "annotations": [coco_annotation(figure, spec.task) for figure in figures],
            }
            (root / "labels" / split / f"{stem}.json").write_text(json.dumps(part), encoding="ascii")


def yolo_row(figure: Figure, size_hw: tuple[int, int], task: Task) -> str:
    """Return the line of a YOLO label file: class, then fractions of the picture with six decimals (0.001 px at 1000 px)."""
    h, w = size_hw
    scale = np.array([w, h], np.float64)
    match task:
        case "segment":
            numbers = (figure.outline_px / scale).ravel()
        case "obb":
            numbers = (figure.corners_px / scale).ravel()
        case _:
            numbers = xyxy_px_to_xywh_norm(figure.xyxy_px[None], size_hw)[0]
    text = [str(figure.cls), *(f"{number:.6f}" for number in numbers.tolist())]
    if task == "pose":
        for x, y, visibility in figure.keypoints_px.tolist():
            text += [f"{x / w:.6f}", f"{y / h:.6f}", f"{int(visibility)}"]
    return " ".join(text)


def coco_annotation(figure: Figure, task: Task) -> dict[str, Any]:
    """Return a COCO annotation without its ids; lengths have three decimals."""
    x0, y0, x1, y1 = figure.xyxy_px.tolist()
    out: dict[str, Any] = {
        "category_id": figure.cls + 1,
        "bbox": _round(np.array([x0, y0, x1 - x0, y1 - y0])),
        "area": round(figure.area_px, 3),
        "iscrowd": 0,
    }
    if task != "detect":
        out["segmentation"] = [_round(figure.outline_px.ravel())]
    if task == "pose":
        out["keypoints"] = _round(figure.keypoints_px.ravel())
        out["num_keypoints"] = int((figure.keypoints_px[:, 2] > 0).sum())
    return out


def _round(numbers: F64) -> list[float]:
    return [float(number) for number in np.round(numbers, 3)]


def _draw_in_processes(spec: Spec, workers: int) -> None:
    """Share the pictures out to fresh interpreters: nothing is forked, and a script without a main guard is not run twice."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-P", "-m", "fastdata.synth", json.dumps(asdict(spec))]
    with ExitStack() as stack:
        started = []
        for rank in range(workers):
            process = subprocess.Popen([*command, str(rank), str(workers)], env=environment, stderr=subprocess.PIPE, text=True)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)  # runs before the wait that ends the context above; too late to harm one that has ended
        for process in started:
            _, said = process.communicate()
            if process.returncode:
                raise FastdataError(f"a process that draws pictures ended with code {process.returncode}:\n{said}")


def _data_yaml(spec: Spec) -> str:
    lines = [f"{split}: images/{split}" for split in spec.splits]
    lines += ["names:", *(f"  {k}: {name}" for k, name in enumerate(spec.classes))]
    if spec.task == "pose":
        lines += [f"kpt_shape: [{len(KEYPOINTS)}, 3]", f"flip_idx: {list(FLIP_IDX)}"]
    return "\n".join(lines) + "\n"


def _parts(spec: Spec, split: str) -> Iterator[dict[str, Any]]:
    """Yield what was said about each picture of a split, in order, and forget the files."""
    folder = Path(spec.folder) / "labels" / split
    for file in sorted(folder.iterdir()):
        yield json.loads(file.read_text(encoding="ascii"))
        file.unlink()
    folder.rmdir()


def _gather_coco(spec: Spec) -> None:
    """Write one annotation file a split; annotation ids count through all of them."""
    categories: list[dict[str, Any]] = [
        {"id": k + 1, "name": name, "supercategory": "figure"} for k, name in enumerate(spec.classes)
    ]
    if spec.task == "pose":
        ring = [[k + 1, (k + 1) % len(KEYPOINTS) + 1] for k in range(len(KEYPOINTS))]
        categories = [{**category, "keypoints": list(KEYPOINTS), "skeleton": ring} for category in categories]
    folder = Path(spec.folder) / "annotations"
    folder.mkdir()
    annotation_id = 0
    for split in spec.splits:
        images, annotations = [], []
        for part in _parts(spec, split):
            images.append(part["image"])
            for annotation in part["annotations"]:
                annotation_id += 1
                annotations.append({"id": annotation_id, "image_id": part["image"]["id"], **annotation})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / f"instances_{split}.json").write_text(json.dumps(content), encoding="ascii")
    (Path(spec.folder) / "labels").rmdir()


def _main() -> None:
    """Draw one process's share: ``python -m fastdata.synth SPEC RANK WORKERS``."""
    fields: dict[str, Any] = json.loads(sys.argv[1])
    fields |= {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}  # JSON has no tuples
    spec = Spec(**fields)
    cv2.setNumThreads(1)
    draw(spec, range(int(sys.argv[2]), spec.images, int(sys.argv[3])))


if __name__ == "__main__":
    _main()
