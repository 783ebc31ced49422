"""Does the real trainer wait for its batches? The same model, fed by a loader and by one batch again and again, in turn.

Ultralytics' ``DetectionTrainer`` from a yaml, AMP, its defaults but for: no validation, no plots, one long epoch, mosaic never
closed. Its loader is wrapped (:class:`Alternating`): for a window of ``--steps`` steps it hands out the candidate's batches, for
the next one the last of them again and again, from GPU memory (the ceiling), and so on. So candidate and ceiling run in one
process, one model, seconds apart. What was made ahead during a window of the ceiling is thrown away before the candidate's next
one, and the first steps of a window do not count. The time of a window ends when the GPU has done its steps.

AU is the candidate's rate over that of the windows of the ceiling around it: a geometric mean over the windows, with the interval
that holds it with 95 %.

    python benchmarks/gpu_train.py --folder /tmp/data --photos photographs --out /tmp/out --seconds 500 --jobs yolo11n:128
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_data import data_of, prepare
from gpu_loader import PREFETCH_FACTOR, THEIRS, add_arguments, run_each, title
from gpu_rows import Ratio, Rows, beside, paired
from gpu_telemetry import Telemetry, host_used_gb, mean_of

OURS = ("device", "pinned", "stream", "decode", "decode+window", "host", "auto")
"""``host``: drawn by the processor, copied by the trainer. ``decode``: from the JPEG store."""
DEFAULTS, BEST = "ultralytics-8", "ultralytics-16-ram"
"""Of ``gpu_loader``'s: the trainer's defaults, and the best that 16 cores and enough memory can do."""
CANDIDATES = ("device", "pinned", "stream", DEFAULTS, BEST, "decode", "host", "decode+window")
FEW = ("device", DEFAULTS)
"""Of the larger models."""

TINY = """
nc: 80
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
head:
  - [[2, 3, 4], 1, Detect, [nc]]
"""


class Enough(Exception):
    """Ends the training when all windows are done."""


def wait() -> None:
    """Wait for the GPU, where there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Alternating:
    """A trainer's loader: the candidate's batches and one batch again and again, in turn.

    Args:
        loader: The candidate.
        ahead: How many batches it makes ahead.
        options: Of the command line.
        deadline: By ``time.monotonic``; the last window begins before it.
    """

    def __init__(self, loader: Any, ahead: int, options: argparse.Namespace, deadline: float) -> None:
        self.loader, self.ahead, self.options, self.deadline = loader, ahead, options, deadline
        self.dataset, self.sampler, self.batch_size = loader.dataset, loader.sampler, loader.batch_size
        self.num_workers, self.drop_last = loader.num_workers, True
        self.telemetry = Telemetry()
        self.made_at = time.perf_counter()
        self.first_s = self.warm_s = 0.0
        self.candidate: list[dict[str, Any]] = []
        self.ceiling: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        """The batch that the ceiling repeats."""

    def __len__(self) -> int:
        return 1_000_000  # one epoch, longer than any run; its learning rate stays in the warm-up, so that no loss runs away

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self._endless()
        first = next(batches)
        wait()
        self.first_s = time.perf_counter() - self.made_at
        yield self._kept(first)
        for _ in range(self.options.warm_steps):
            yield self._kept(next(batches))
        self.warm_s = time.perf_counter() - self.made_at
        yield from self._window(self._again(), self.ceiling)
        while len(self.candidate) < self.options.pairs and time.monotonic() < self.deadline:
            for _ in range(self.ahead):
                next(batches)
            yield from self._window(batches, self.candidate)
            yield from self._window(self._again(), self.ceiling)
        self.telemetry.close()
        raise Enough

    def reset(self) -> None:
        """Do as any loader of this trainer."""

    def close(self) -> None:
        """End what the candidate has started."""
        self.loader.close()

    def _endless(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self.loader

    def _kept(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.last = dict(batch)  # the trainer puts other tensors into the one that it is handed
        return batch

    def _again(self) -> Iterator[dict[str, Any]]:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        kept = {key: value.to(device, copy=True) if hasattr(value, "to") else value for key, value in self.last.items()}
        while True:
            yield dict(kept)

    def _window(self, source: Iterator[dict[str, Any]], results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Hand out the steps of a window, and add what they took to the results."""
        for _ in range(self.options.settle):
            yield next(source)
        wait()
        mark, waited, objects = self.telemetry.mark(), 0.0, 0
        start = time.perf_counter()
        for left in reversed(range(self.options.steps)):
            asked = time.perf_counter()
            batch = next(source)
            waited += time.perf_counter() - asked
            objects += len(batch["cls"])
            yield batch if left else self._kept(batch)
        wait()  # the trainer asks for the next batch: all its work is queued
        seconds = time.perf_counter() - start
        images = self.options.steps * self.batch_size
        results.append(
            {"rate": images / seconds, "waited": waited / seconds, "objects": objects / images}
            | {"telemetry": self.telemetry.since(mark)}
        )


def prepare_ultralytics() -> Path:
    """Set its environment before it is imported: no network, no home, no check of AMP that fetches weights."""
    home = Path(tempfile.mkdtemp(prefix="yolo-config-"))
    os.environ |= {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "YOLO_CONFIG_DIR": str(home)}
    import matplotlib

    shutil.copy(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", home / "Arial.ttf")
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.engine import trainer
    from ultralytics.utils import SETTINGS

    SETTINGS.update({"sync": False, "datasets_dir": str(home), "runs_dir": str(home)})
    trainer.check_amp = lambda model: True
    # It asks for twice as much free memory as it takes, and a machine whose memory grows with its use does not show that.
    YOLODataset.check_cache_ram = lambda self, *a, **k: True
    return home


def trainer_class(options: argparse.Namespace, name: str) -> Any:
    """Return the trainer of a candidate, its own loader not wrapped yet."""
    from ultralytics.models.yolo.detect import DetectionTrainer

    if name in THEIRS:
        return DetectionTrainer
    from fastdata.trainers.ultralytics import accelerate

    residency, _, partners = name.partition("+")
    data = data_of(options.folder)
    more: dict[str, Any] = {"device": "cpu"} if residency == "host" else {"residency": residency}
    if partners:
        more["policy"] = {"partners": f"window:{options.window}"}
    return accelerate(DetectionTrainer, data.jpeg if residency == "decode" else data.raw, **more)


def child(options: argparse.Namespace) -> None:
    """Train with one candidate in this process."""
    born = time.monotonic()
    job, name = options.child.split("/", 1)
    model, batch = job.rsplit(":", 1)
    home = prepare_ultralytics()
    import torch
    from ultralytics.data.dataset import YOLODataset

    base = trainer_class(options, name)

    class Fed(base):  # type: ignore[misc, valid-type]
        """The trainer, its loader wrapped."""

        def get_dataloader(self, dataset_path: Any, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Any:
            """Return the loader of one use."""
            start, host = time.perf_counter(), host_used_gb()
            loader = super().get_dataloader(dataset_path, batch_size, rank, mode)
            if mode != "train":
                return loader
            if isinstance(loader.dataset, YOLODataset):
                is_cached = loader.dataset.ims[0] is not None
                assert is_cached == bool(THEIRS[name][1]), "pictures must be cached if asked for, and only then"
                ahead = PREFETCH_FACTOR * loader.num_workers + 1
            else:
                ahead = loader._loader.threads * loader._loader.prefetch + 1
            alternating = Alternating(loader, ahead, options, born + options.child_s)
            alternating.made_at, alternating.host_before = start, host
            return alternating

    network = f"{model}.yaml"
    if options.dry:
        (home / "tiny.yaml").write_text(TINY)
        network = str(home / "tiny.yaml")
    settings: dict[str, Any] = {
        "model": network, "data": str(data_of(options.folder).yaml), "imgsz": options.imgsz, "batch": int(batch), "epochs": 1,
        "close_mosaic": 0, "val": False, "plots": False, "save": False, "amp": not options.dry, "seed": 0,
        "project": str(home), "name": "run", "exist_ok": True, "device": "cpu" if options.dry else 0,
    }  # fmt: skip
    if name in THEIRS:
        settings["workers"], settings["cache"] = THEIRS[name]
        if options.dry:
            settings["workers"] = 0
        if settings["cache"]:
            settings["fraction"] = min(1.0, options.cached / options.images)
    trainer = Fed(overrides=settings)
    try:
        trainer.train()
    except Enough:
        pass
    fed: Alternating = trainer.train_loader
    report(options, fed, job, name, trainer, torch)
    fed.close()
    sys.stdout.flush()
    os._exit(0)  # nothing is left to be done, and workers that are asked to end take seconds


def report(options: argparse.Namespace, fed: Any, job: str, name: str, trainer: Any, torch: Any) -> None:
    """Keep what a candidate's windows came to."""
    rows = Rows("gpu_train", options.out)
    rates, ceiling = [w["rate"] for w in fed.candidate], [w["rate"] for w in fed.ceiling]
    au = paired(rates, beside(ceiling))
    inner = getattr(fed.loader, "_loader", None)
    facts = {
        "job": job, "candidate": name, "steps": options.steps, "settle": options.settle, "imgsz": options.imgsz,
        "steps_per_epoch": len(fed.loader), "batch": fed.batch_size, "threads": fed.num_workers,
        "optimizer": type(trainer.optimizer).__name__, "amp": bool(trainer.amp),
        "residency": str(getattr(inner, "residency", "")), "why": str(getattr(inner, "why", "")),
        "first_batch_s": fed.first_s, "missing": fed.telemetry.missing,
        "host_gb": host_used_gb() - fed.host_before,
    }  # fmt: skip
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        facts |= {"gpu_gb": (total - free) / 1e9, "reserved_peak_gb": torch.cuda.max_memory_reserved() / 1e9}
    own, other = _means(fed.candidate), _means(fed.ceiling)
    rows.add(f"{job} {title(name)}: ceiling beside it", ceiling, "images/s", telemetry=other, note=_short(other), **facts)
    note = f"{_short(own)}, waits {100 * own['waited']:.2f} %, first batch {fed.first_s:.1f} s"
    note += f", GPU {facts['gpu_gb']:.1f} GB" if "gpu_gb" in facts else ""
    interval = {"ratio": au.value, "ratio_low": au.low, "ratio_high": au.high}
    rows.add(
        f"{job} {title(name)}", rates, "images/s", **interval, against="the same batch again and again, in interleaved windows",
        input_share=own["waited"], telemetry=own, ceiling=ceiling, note=note, **facts,
    )  # fmt: skip


def _means(windows: list[dict[str, Any]]) -> dict[str, Any]:
    shares = {key: sum(w[key] for w in windows) / len(windows) for key in ("waited", "objects")}
    return mean_of([w["telemetry"] for w in windows]) | shares


def _short(facts: dict[str, Any]) -> str:
    names = {"gpu_util": "util %", "sm_activity": "SM %", "power_w": "W"}
    return ", ".join(f"{text} {facts[key]:.0f}" for key, text in names.items() if facts.get(key) is not None)


def against_theirs(rows: Rows) -> None:
    """Add how each of ours stands to Ultralytics' own loaders: the quotient of two AUs, in which processes' own speed cancels."""
    found = {(r["job"], r["candidate"]): r for r in rows.own() if r.get("ratio_low") is not None and "candidate" in r}
    for (job, name), row in found.items():
        for theirs in THEIRS:
            other = found.get((job, theirs))
            if name in THEIRS or other is None:
                continue
            au, base = (Ratio(r["ratio"], r["ratio_low"], r["ratio_high"]) for r in (row, other))
            q = au.over(base)
            interval = {"ratio": q.value, "ratio_low": q.low, "ratio_high": q.high}
            rows.add(f"{job} {name} over {title(theirs)}", [q.value], "times", **interval, against=title(theirs), job=job)


def main() -> None:
    """Measure until the time is up, in the order of the jobs and candidates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--jobs", default="yolo11n:128,yolov8s:64,yolo11m:64", help="model:batch")
    parser.add_argument("--candidates", default=",".join(CANDIDATES), help="of the first job")
    parser.add_argument("--few", default=",".join(FEW), help="candidates of the other jobs")
    parser.add_argument("--steps", type=int, default=40, help="of a window")
    parser.add_argument("--settle", type=int, default=6, help="steps of a window before it counts")
    parser.add_argument("--warm-steps", type=int, default=25)
    parser.add_argument("--pairs", type=int, default=6, help="windows of the candidate")
    parser.add_argument("--cached", type=int, default=4096, help="pictures that theirs trains on with cache=ram")
    parser.add_argument("--child-s", type=float, default=75.0, help="for each, imports and all")
    options = parser.parse_args()
    if options.dry and not options.child:
        options.images, options.repeat, options.imgsz, options.jobs, options.window = 32, 2, 64, "tiny:4", 8
        options.steps, options.settle, options.warm_steps = 3, 1, 1
        options.pairs, options.most_workers = 3, 2
    if options.child:
        child(options)
        return
    prepare(options.photos, options.folder, options.images, options.repeat, options.imgsz, Rows("gpu_data", options.out))
    rows = Rows("gpu_train", options.out)
    first, *others = options.jobs.split(",")
    names = [f"{first}/{name}" for name in options.candidates.split(",")]
    names += [f"{job}/{name}" for job in others for name in options.few.split(",")]
    well = run_each(options, __file__, names, rows, options.child_s + 40)
    against_theirs(rows)
    if not well:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
