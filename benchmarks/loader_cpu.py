"""How fast the loader makes training batches on the CPU, how soon the first one is there, and what eight processes hold together.

``speed``: images per second of three loaders over the same invented set (default policy), each in a process of its own, in turn:
ours with so many threads over a store; Ultralytics' own with as many workers and ``cache="ram"``; torch's with as many workers
over ``YoloDataset``. What each hands out is looked at first: shapes, boxes within the frame, and pixels and boxes that are alike.

``first``: seconds from opening a store of ``--entries`` pictures to its first batch, in fresh processes after their imports: once
with an empty cache of kernels, then with a warm one. The pictures are entries over the records of the other store: the index has
its full size, the pixels do not.

``memory``: eight processes train over one store for an epoch; then the proportional share of each (smaps) is added up.

    python benchmarks/loader_cpu.py --folder bench-data/loader
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

PACKAGES = ("numpy", "numba", "opencv-python-headless", "torch", "ultralytics-opencv-headless", "ultralytics")
ROOT = Path(__file__).resolve().parents[1]
OURS, THEIRS, TORCH = "Loader", "Ultralytics, cache=ram", "DataLoader(YoloDataset)"
ALIKE = 0.15
"""How much pixels and boxes a picture of two loaders may differ, relatively: the samples are drawn by different chance."""


def prepare(folder: Path, images: int, imgsz: int, entries: int) -> None:
    """Write the set, its store, and the store of many entries, unless they are there."""
    import fastdata
    from fastdata.conversion.options import ConvertOptions
    from fastdata.sources.scan import SourceOptions
    from fastdata.store.format import Manifest
    from fastdata.store.write import Entry, Record, StoreWriter
    from fastdata.synth import write_dataset

    source, store, many = folder / "source", folder / "store.lmdb", folder / "many.lmdb"
    if not store.exists():
        write_dataset(source, images, task="detect", splits={"train": 0.97, "val": 0.03})
        fastdata.convert(source, store, ConvertOptions(SourceOptions(task="detect"), imgsz=imgsz, codec="raw"))
    if many.exists():
        return
    with fastdata.open_store(store, "train") as small, StoreWriter.begin(many, fingerprint=str(entries), keypoints=0) as writer:
        c = small.catalog
        writer.begin_split("train")
        records = [int(c.entry_record[small.entry(i)]) for i in range(len(small))]
        for r in records:
            hw = (int(c.rec_hw[r, 0]), int(c.rec_hw[r, 1]))
            writer.add_record(Record(small.read_record(r).tobytes(), "raw", hw, int(c.rec_channels[r]), int(c.rec_crc[r])))
        for k in range(entries):
            i = k % len(small)
            h, w = c.entry_original_hw[small.entry(i)].tolist()
            writer.add_entry(Entry(f"train/{k:09d}.jpg", i, (h, w), small.instances(i), image_id=k))
        writer.publish(Manifest(names=small.names, codec="raw", task="detect", imgsz=imgsz))


def ours(options: argparse.Namespace) -> Any:
    """Our loader."""
    import fastdata

    store = fastdata.open_store(options.folder / "store.lmdb", "train")
    return fastdata.Loader(store, options.batch, threads=options.workers, imgsz=options.imgsz)


def torch_over_ours(options: argparse.Namespace) -> Any:
    """Torch's loader over our dataset."""
    import torch

    import fastdata

    store = fastdata.open_store(options.folder / "store.lmdb", "train")
    dataset = fastdata.YoloDataset(store, imgsz=options.imgsz, batch_size=options.batch)
    workers: dict[str, Any] = {"num_workers": options.workers, "persistent_workers": True, "prefetch_factor": 4}
    return torch.utils.data.DataLoader(
        dataset, options.batch, sampler=dataset.sampler(), collate_fn=dataset.collate_fn, drop_last=True, **workers
    )


def theirs(options: argparse.Namespace) -> Any:
    """Ultralytics' loader, as its trainer builds it; but with workers, which it would not use without a GPU."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data.build import build_dataloader, build_yolo_dataset
    from ultralytics.data.utils import check_det_dataset

    cfg = get_cfg(overrides={"imgsz": options.imgsz, "cache": "ram", "task": "detect", "workers": options.workers})
    data = check_det_dataset(str(options.folder / "source" / "data.yaml"), autodownload=False)
    dataset = build_yolo_dataset(cfg, data["train"], options.batch, data, mode="train", rect=False, stride=32)
    return build_dataloader(dataset, options.batch, options.workers, shuffle=True, rank=-1, drop_last=True, pin_memory=False)


LOADERS = {OURS: ours, THEIRS: theirs, TORCH: torch_over_ours}


def endless(loader: Any) -> Iterator[dict[str, Any]]:
    """Epoch after epoch."""
    while True:
        yield from loader


def look(batches: list[dict[str, Any]], imgsz: int) -> dict[str, float]:
    """Check what some batches hold; return what must be alike between loaders."""
    for batch in batches:
        img, boxes = batch["img"], batch["bboxes"]
        assert img.shape[1:] == (3, imgsz, imgsz), img.shape
        assert img.is_contiguous()
        assert len(boxes) == len(batch["cls"]) == len(batch["batch_idx"])
        x, y, w, h = boxes.T
        for low, high in ((x - w / 2, x + w / 2), (y - h / 2, y + h / 2)):
            assert float(low.min()) > -1e-4, "a box begins outside its picture"
            assert float(high.max()) < 1 + 1e-4, "a box ends outside its picture"
    images = sum(len(batch["img"]) for batch in batches)
    return {
        "boxes": sum(len(batch["bboxes"]) for batch in batches) / images,
        "mean": sum(float(batch["img"].float().mean()) * len(batch["img"]) for batch in batches) / images,
        "deviation": sum(float(batch["img"].float().std()) * len(batch["img"]) for batch in batches) / images,
        "box side": statistics.fmean(float(batch["bboxes"][:, 2:4].prod(1).sqrt().mean()) for batch in batches),
    }


def child_speed(options: argparse.Namespace) -> dict[str, Any]:
    """Iterate over one loader; return images per second and what its batches were like.

    The batches that are looked at fill the queues besides; the time begins when they have been used up and made again.
    """
    batches = endless(LOADERS[options.loader](options))
    seen = look(list(islice(batches, 8)), options.imgsz)
    for _ in islice(batches, 4 * options.workers + 2):
        pass
    start, images = time.perf_counter(), 0
    for batch in islice(batches, options.batches):
        images += len(batch["img"])
    return {"images_per_s": images / (time.perf_counter() - start), "seen": seen}


def child_first(options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds that imports took, and from there to the first batch."""
    start = time.perf_counter()
    import torch  # noqa: F401 - what a training has imported anyway

    torch_s = time.perf_counter() - start
    import fastdata
    import fastdata.loader

    imported = time.perf_counter()
    store = fastdata.open_store(options.folder / "many.lmdb", "train")
    loader = fastdata.Loader(store, options.batch, threads=options.workers, imgsz=options.imgsz)
    batch = next(iter(loader))
    done = time.perf_counter()
    look([batch], options.imgsz)
    return {"import_s": imported - start - torch_s, "first_s": done - imported, "entries": len(store)}


def child(options: argparse.Namespace, what: str, loader: str = "", cache: Path | None = None) -> dict[str, Any]:
    """Run one of the functions above in a fresh process."""
    arguments = [f"--{name}={getattr(options, name)}" for name in ("folder", "batch", "batches", "workers", "imgsz")]
    environment = os.environ | {"YOLO_VERBOSE": "False"} | ({"NUMBA_CACHE_DIR": str(cache)} if cache else {})
    command = [sys.executable, __file__, *arguments, f"--child={what}", f"--loader={loader}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        raise RuntimeError(f"{what} {loader}: {done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the loaders in turn, so that what else the machine does falls on all of them."""
    figures: dict[str, list[float]] = {name: [] for name in LOADERS}
    seen: dict[str, dict[str, float]] = {}
    for _ in range(options.repeats):
        for name in LOADERS:
            result = child(options, "speed", name)
            figures[name].append(result["images_per_s"])
            seen[name] = result["seen"]
            sys.stderr.write(f"{name}: {figures[name][-1]:.0f} images/s, {seen[name]}\n")
    for name in (OURS, TORCH):
        for what, value in seen[THEIRS].items():
            assert abs(seen[name][what] - value) <= ALIKE * value, f"{what} of {name}: {seen[name][what]}, not {value}"
    base = statistics.median(figures[THEIRS])
    more = {"workers": options.workers, "batch": options.batch, "imgsz": options.imgsz, "images": options.images}
    return [
        record.row(
            "loader_cpu", name, values, "images/s", packages=PACKAGES,
            ratio=None if name == THEIRS else statistics.median(values) / base,
            against=None if name == THEIRS else THEIRS, **more,
        )
        for name, values in figures.items()
    ]  # fmt: skip


def first(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the first batch, kernels compiled and kernels kept."""
    with tempfile.TemporaryDirectory() as cache:
        cold = child(options, "first", cache=Path(cache))
        warm = [child(options, "first", cache=Path(cache)) for _ in range(max(options.repeats, 3))]
    more = {"batch": options.batch, "workers": options.workers, "imgsz": options.imgsz, "entries": cold["entries"]}
    rows = [
        ("first batch, after imports", [w["first_s"] for w in warm]),
        ("import of fastdata.loader, after torch", [w["import_s"] for w in warm]),
        ("import and first batch, kernels compiled", [cold["import_s"] + cold["first_s"]]),
    ]
    return [record.row("loader_cpu", what, values, "s", packages=PACKAGES, **more) for what, values in rows]


def pss_mb() -> dict[str, float]:
    """Return this process's share of memory, of files and its own, in MB: what is mapped by k processes counts 1/k."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024 / 1e6
    return {"files": fields["Pss_File"] + fields["Pss_Shmem"], "own": fields["Pss_Anon"]}


def hold(folder: Path, batch: int, imgsz: int, seed: int, barrier: Barrier, queue: Queue[dict[str, float]]) -> None:
    """Train over the store for an epoch together with the others; report what this process's share grew by, in MB."""
    import torch

    import fastdata
    import fastdata.loader

    torch.set_num_threads(1)
    barrier.wait()
    before = pss_mb()
    barrier.wait()
    store = fastdata.open_store(folder / "store.lmdb", "train")
    loader = fastdata.Loader(store, batch, threads=1, imgsz=imgsz, seed=seed)
    iterator = iter(loader)
    kept = [next(iterator)]
    for kept[0] in iterator:
        pass
    barrier.wait()
    after = pss_mb()
    queue.put({key: after[key] - before[key] for key in before})
    barrier.wait()


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure what the processes hold together, beside the bytes of all pictures that they read."""
    import fastdata

    context = get_context("spawn")
    barrier, queue = context.Barrier(options.processes), context.Queue()
    arguments = (options.folder, options.batch, options.imgsz)
    children = [context.Process(target=hold, args=(*arguments, seed, barrier, queue)) for seed in range(options.processes)]
    for process in children:
        process.start()
    grown = [queue.get() for _ in children]
    for process in children:
        process.join()
    with fastdata.open_store(options.folder / "store.lmdb", "train") as store:
        records = sorted({int(store.catalog.entry_record[store.entry(i)]) for i in range(len(store))})
        data = float(store.catalog.rec_nbytes[records].sum()) / 1e6
    more = {"processes": options.processes, "batch": options.batch, "imgsz": options.imgsz, "data_mb": data}
    files = sum(g["files"] for g in grown)
    return [
        record.row(
            "loader_cpu", f"pages of files, {options.processes} processes together", [files], "MB", packages=PACKAGES,
            ratio=files / data, against="bytes of the pictures", **more,
        ),
        record.row("loader_cpu", "memory of its own, each process", [g["own"] for g in grown], "MB", packages=PACKAGES, **more),
    ]  # fmt: skip


PARTS = {"speed": speed, "first": first, "memory": memory}


def main() -> None:
    """Measure and append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=100, help="that are timed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--trial", action="store_true", help="print, and record nothing")
    parser.add_argument("--child", choices=("speed", "first"), help=argparse.SUPPRESS)
    parser.add_argument("--loader", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    if options.child:
        result = child_speed(options) if options.child == "speed" else child_first(options)
        sys.stdout.write("\n" + json.dumps(result) + "\n")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.folder, options.images, options.imgsz, options.entries)
    rows = [row for part in options.parts.split(",") for row in PARTS[part](options)]
    if not options.trial:
        record.append("loader_cpu", rows)
    for row in rows:
        sys.stdout.write(json.dumps({key: row[key] for key in ("what", "value", "unit", "low", "high", "n", "ratio")}) + "\n")


if __name__ == "__main__":
    main()
