"""Ultralytics without a network and without a home, and small datasets to train on.

Must be imported before ``ultralytics``, which reads its environment once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

CONFIG = Path(tempfile.mkdtemp(prefix="fastdata-yolo-config-"))
os.environ |= {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "YOLO_VERBOSE": "0", "YOLO_CONFIG_DIR": str(CONFIG)}

import matplotlib  # noqa: E402

# The plots are written with this font, which would be fetched if it were not there.
shutil.copy(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", CONFIG / "Arial.ttf")

import torch  # noqa: E402
from ultralytics import YOLO  # noqa: E402
from ultralytics.models.yolo.detect import DetectionTrainer, DetectionValidator  # noqa: E402
from ultralytics.models.yolo.obb import OBBTrainer, OBBValidator  # noqa: E402
from ultralytics.models.yolo.pose import PoseTrainer, PoseValidator  # noqa: E402
from ultralytics.models.yolo.segment import SegmentationTrainer, SegmentationValidator  # noqa: E402
from ultralytics.utils import SETTINGS  # noqa: E402

from fastdata.conversion.options import ConvertOptions  # noqa: E402
from fastdata.conversion.run import convert  # noqa: E402
from fastdata.sources.scan import SourceOptions  # noqa: E402
from fastdata.synth import write_dataset  # noqa: E402

torch.set_num_threads(1)
SETTINGS.update({"sync": False, "datasets_dir": str(CONFIG / "datasets"), "runs_dir": str(CONFIG / "runs")})

TRAINERS = {"detect": DetectionTrainer, "segment": SegmentationTrainer, "pose": PoseTrainer, "obb": OBBTrainer}
VALIDATORS = {"detect": DetectionValidator, "segment": SegmentationValidator, "pose": PoseValidator, "obb": OBBValidator}
NETWORKS = {"detect": "yolo11n.yaml", "segment": "yolo11n-seg.yaml", "pose": "yolo11n-pose.yaml", "obb": "yolo11n-obb.yaml"}

TINY = CONFIG / "tiny.yaml"
"""A detector of 60,000 weights, where it is not the network that matters."""
TINY.write_text(
    """
nc: 8
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, Conv, [32, 3, 2]]
head:
  - [[2, 3, 4], 1, Detect, [nc]]
"""
)


def dataset(folder: Path, task: str, images: int = 10, size_hw: Any = ((48, 64), (64, 48), (64, 64)), **more: Any) -> Path:
    """A YOLO dataset of invented pictures; returns its data.yaml."""
    write_dataset(folder, images, task=task, size_hw=size_hw, workers=1, **({"splits": {"train": 0.6, "val": 0.4}} | more))  # type: ignore[arg-type]
    return folder / "data.yaml"


def store(data: Path, out: Path, task: str, imgsz: int | None = 64, **more: Any) -> Path:
    """The store of a dataset."""
    source = SourceOptions(task=task)  # type: ignore[arg-type]
    convert(data, out, ConvertOptions(source=source, kind="yolo", imgsz=imgsz, workers=1, codec="raw", **more))
    return out


def settings(run: Path, data: Path | str, **more: Any) -> dict[str, Any]:
    """Arguments of a training of seconds on the processor."""
    return {
        "data": str(data), "imgsz": 64, "batch": 4, "epochs": 2, "close_mosaic": 1, "device": "cpu", "plots": False,
        "project": str(run), "name": "run", "exist_ok": True, "workers": 0, "verbose": False, "amp": False, "seed": 3,
    } | more  # fmt: skip


def train(trainer: Any, network: str, run: Path, data: Path | str, **more: Any) -> Any:
    """Train a network from nothing; returns the model, whose ``trainer`` has all that was made on the way."""
    model = YOLO(network)
    model.train(trainer=trainer, **settings(run, data, **more))
    return model
