"""How much of a core does one augmented training sample cost, beside the trainer's own?

Both sides make samples of the trainers' default policy (mosaic, affine, HSV, mirror; 640 px) in a process of their own, bound to
one core, each library told to use one thread:

* **fastdata**: ``Samples.draw`` and ``Samples.batch`` over a raw store, ``--batch`` samples a call: finished batches, collated;
* **trainer**: Ultralytics' ``YOLODataset.__getitem__`` with ``cache="ram"``, one sample a call, not collated (its worker does
  that besides).

Rounds alternate, so that a noisy neighbour meets both. Before anything counts, the outputs are compared: sizes, the number of
objects a sample and the mean pixel value must agree, as they must for equal distributions. Page cache and compiled code are warm.

Sets: COCO's photographs with their boxes (``photos``, as many copies as it takes), or generated pictures.

    python benchmarks/one_core.py --folder bench-data/one_core --set photos --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

PACKAGES = ("numpy", "numba", "opencv-python-headless", "ultralytics-opencv-headless", "torch")
IMGSZ = 640
PARTS = ("plan", "render", "batch")


def photos(folder: Path, copies: int) -> Path:
    """Copies of coco128's photographs with their YOLO boxes, as links."""
    root = Path(os.environ.get("FASTDATA_SHARED", Path(__file__).resolve().parents[2] / "shared")).resolve()
    src = root / "data/coco128/lightly"
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    boxes = {p.stem: p for p in (src / "object_detection/labels").rglob("*.txt")}
    for photo in sorted((src / "images/train2017").glob("*.jpg")):
        for k in range(copies):
            shutil.copy(photo, folder / "images" / f"{photo.stem}_{k}.jpg")
            if photo.stem in boxes:
                shutil.copy(boxes[photo.stem], folder / "labels" / f"{photo.stem}_{k}.txt")
    names = "\n".join(f"  {c}: class {c}" for c in range(80))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images\nval: images\nnames:\n{names}\n")
    return folder / "data.yaml"


def generated(folder: Path, images: int) -> Path:
    """Invented pictures of 640x480 with seven objects on average."""
    from fastdata.synth import write_dataset

    write_dataset(folder, images, task="detect", size_hw=(480, 640), splits={"train": 1.0})
    text = (folder / "data.yaml").read_text()
    if "val:" not in text:
        (folder / "data.yaml").write_text(text + "val: images/train\n")
    return folder / "data.yaml"


def one_core() -> None:
    """Bind this process to one core, the last that it may use."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def ours(store: Path, batch: int, samples: int) -> dict[str, Any]:
    """Make batches; return ms a sample, of it what each part takes, and what came out."""
    one_core()
    import numpy as np
    import torch

    from fastdata.samples import Samples
    from fastdata.store.read import open_store

    torch.set_num_threads(1)
    s = Samples(open_store(store, "train"), imgsz=IMGSZ, seed=0)
    out = np.empty((batch, 3, IMGSZ, IMGSZ), np.uint8)
    order = np.random.default_rng(0).permutation(len(s))
    s.batch(*s.draw(order[:batch], 0, out=out))
    for i in range(len(s)):  # every record checked once, as a first epoch does
        s.store.read(i)
    objects, mean, spent, n = 0, 0.0, dict.fromkeys(PARTS, 0.0), 0
    wall, cpu = 0.0, time.process_time()
    for at in range(0, samples, batch):
        ids = order[np.arange(at, at + batch) % len(s)]
        t0 = time.perf_counter()
        recipe = s.recipe(ids, 1 + at // len(s))
        t1 = time.perf_counter()
        images = s.render(recipe, out)
        t2 = time.perf_counter()
        made = s.batch(recipe, torch.from_numpy(images))
        t3 = time.perf_counter()
        for part, seconds in zip(PARTS, (t1 - t0, t2 - t1, t3 - t2), strict=True):
            spent[part] += seconds
        wall, n = wall + t3 - t0, n + batch
        cpu_now = time.process_time()
        objects += len(made["cls"])
        if at < 8 * batch:
            mean += float(images.mean())
        cpu += time.process_time() - cpu_now
    return {
        "ms": 1000 * wall / n, "cpu_ms": 1000 * (time.process_time() - cpu) / n, "objects": objects / n,
        "mean": mean / min(8, n // batch), "shape": list(made["img"].shape[1:]),
        **{part: 1000 * seconds / n for part, seconds in spent.items()},
    }  # fmt: skip


def single(store: Path, samples: int) -> dict[str, Any]:
    """Make samples one at a time through ``YoloDataset.__getitem__``."""
    one_core()
    import numpy as np
    import torch

    from fastdata.dataset import YoloDataset
    from fastdata.store.read import open_store

    torch.set_num_threads(1)
    data = YoloDataset(open_store(store, "train"), imgsz=IMGSZ, seed=0)
    data.set_epoch(0)
    order = np.random.default_rng(0).permutation(len(data))[:samples].tolist()
    for i in range(len(data)):
        data.samples.store.read(i)
    data[order[0]]
    began = time.perf_counter()
    for i in order:
        data[i]
    return {"ms": 1000 * (time.perf_counter() - began) / len(order)}


def theirs(data: Path, samples: int) -> dict[str, Any]:
    """Make samples by the trainer's dataset, its images in memory."""
    one_core()
    os.environ |= {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "YOLO_VERBOSE": "0"}
    import random

    import cv2
    import numpy as np
    import torch
    from ultralytics.cfg import get_cfg
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the trainer draws from this one
    content = check_det_dataset(str(data), autodownload=False)
    made = YOLODataset(
        img_path=content["train"], imgsz=IMGSZ, cache="ram", augment=True, hyp=get_cfg(), data=content, task="detect"
    )
    assert made.cache == "ram", "the trainer must hold its images in memory, got too little of it"
    order = np.random.default_rng(0).permutation(len(made)).tolist()
    for i in order[:20]:
        made[i]
    objects, mean, wall, cpu = 0, 0.0, 0.0, 0.0
    for k in range(samples):
        t0, c0 = time.perf_counter(), time.process_time()
        sample = made[order[k % len(order)]]
        wall, cpu = wall + time.perf_counter() - t0, cpu + time.process_time() - c0
        objects += len(sample["cls"])
        mean += float(sample["img"].float().mean()) if k < 128 else 0.0
    return {
        "ms": 1000 * wall / samples, "cpu_ms": 1000 * cpu / samples, "objects": objects / samples,
        "mean": mean / min(128, samples), "shape": list(sample["img"].shape),
    }  # fmt: skip


def run(kind: str, options: argparse.Namespace, data: Path, store: Path) -> dict[str, Any]:
    """Run one side in a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--folder", str(options.folder)]
    command += ["--data", str(data), "--store", str(store), "--batch", str(options.batch), "--samples", str(options.samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Refuse to time two sides that do not make the same thing."""
    assert a["shape"] == b["shape"] == [3, IMGSZ, IMGSZ], (a["shape"], b["shape"])
    assert abs(a["objects"] / b["objects"] - 1) < 0.1, (
        f"objects a sample must agree to 10 %, got {a['objects']} and {b['objects']}"
    )
    assert abs(a["mean"] - b["mean"]) < 5, f"mean pixels must agree to 5 levels, got {a['mean']} and {b['mean']}"


def main() -> None:
    """Run the rounds, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for datasets and stores; kept for the next run")
    parser.add_argument("--set", choices=("photos", "generated"), default="photos")
    parser.add_argument("--copies", type=int, default=4, help="of each of 128 photographs")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="append the results to results/one_core.jsonl")
    for hidden in ("child", "data", "store"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work = {
            "ours": lambda: ours(Path(options.store), options.batch, options.samples),
            "single": lambda: single(Path(options.store), min(options.samples, 512)),
            "theirs": lambda: theirs(Path(options.data), max(options.samples // 4, 64)),
        }
        print(json.dumps(work[options.child]()))
        return

    folder = options.folder / options.set
    data, store = folder / "set/data.yaml", folder / "store"
    if not data.exists():
        photos(folder / "set", options.copies) if options.set == "photos" else generated(folder / "set", 128 * options.copies)
    if not store.exists():
        from fastdata.conversion.options import ConvertOptions
        from fastdata.conversion.run import convert
        from fastdata.sources.scan import SourceOptions

        convert(data, store, ConvertOptions(imgsz=IMGSZ, codec="raw", source=SourceOptions(splits=("train",))))
    compare(run("ours", options, data, store), run("theirs", options, data, store))
    rounds = [{kind: run(kind, options, data, store) for kind in ("ours", "theirs", "single")} for _ in range(options.repeats)]
    times = {kind: [r[kind]["ms"] for r in rounds] for kind in ("ours", "theirs", "single")}
    ratio = statistics.median(r["theirs"]["ms"] / r["ours"]["ms"] for r in rounds)
    ratio_single = statistics.median(r["theirs"]["ms"] / r["single"]["ms"] for r in rounds)
    against = "Ultralytics' __getitem__ with cache=ram, same run (its time / this time)"
    common: dict[str, Any] = {"packages": PACKAGES, "set": options.set, "imgsz": IMGSZ}
    samples = (
        ("a training sample, in finished batches", "ours", {"ratio": ratio, "against": against, "batch": options.batch}),
        ("a training sample, one at a time", "single", {"ratio": ratio_single, "against": against}),
        ("a training sample of the trainer's, cache=ram", "theirs", {}),
    )
    rows = [record.row("one_core", what, times[kind], "ms/image", **more, **common) for what, kind, more in samples]
    rows += [
        record.row("one_core", f"part: {part}", [r["ours"][part] for r in rounds], "ms/image", batch=options.batch, **common)
        for part in PARTS
    ]
    for row in rows:
        print(
            f"{row['what']}: {row['median']:.3f} ms ({row['low']:.3f} to {row['high']:.3f})",
            f"ratio {row['ratio']:.2f}" if row.get("ratio") else "",
        )
    if options.keep:
        record.append("one_core", rows)


if __name__ == "__main__":
    main()
