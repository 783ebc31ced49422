"""How fast a loader makes training batches for the GPU, labels included, with no model beside it; and what it takes.

Ours: batches drawn on the GPU, default policy, 640 px, for each residency (``decode+window``: with ``partners=window:W``), each
number of threads and batch size, counted when the GPU has drawn them. Ultralytics': its training loader as its trainer builds it,
page-locked batches on the host, not yet copied to the GPU. Each in a process of its own; what it hands out is looked at first:
shapes, boxes within the frame, and pixels and boxes alike. An epoch has as many pictures as COCO; pixels lie in the page cache.

    python benchmarks/gpu_loader.py --folder /tmp/data --photos photographs --out /tmp/out --seconds 240
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_data import data_of, prepare
from gpu_rows import Rows, line_of, run_child, say
from gpu_telemetry import Telemetry, host_used_gb
from loader_cpu import ALIKE, endless, look

OURS = ("device", "pinned", "stream", "decode+window", "decode", "host")
"""``host``: drawn by the processor, copied to the GPU from page-locked memory by the consumer."""
THEIRS: dict[str, tuple[int, str | bool]] = {
    "ultralytics-8": (8, False),
    "ultralytics-16-ram": (16, "ram"),
    "ultralytics-16": (16, False),
    "ultralytics-8-ram": (8, "ram"),
}
"""Workers and cache; the first are the trainer's defaults."""
PREFETCH_FACTOR = 4
"""Batches that each worker of theirs makes ahead: ``build_dataloader`` of 8.4.190."""


def our_loader(options: argparse.Namespace, name: str, batch: int, threads: int | None, **more: Any) -> Any:
    """Return a loader of ours.

    Args:
        options: Of the command line.
        name: One of :data:`OURS`.
        batch: Pictures a batch.
        threads: That make batches; the loader's own number when ``None``.
        more: Further options of ``Loader``.
    """
    from fastdata.augment.policy import Policy
    from fastdata.loader import Loader
    from fastdata.samples import Samples
    from fastdata.store.read import open_store

    residency, _, partners = name.partition("+")
    data = data_of(options.folder)
    store = open_store(data.jpeg if residency == "decode" else data.raw, "train")
    policy = Policy(partners=f"window:{options.window}" if partners else "uniform")
    samples = Samples(store, imgsz=options.imgsz, policy=policy, batch_size=batch)
    if not (options.dry or residency == "host"):
        more = {"device": "cuda", "residency": residency, **more}
    return Loader(samples, batch, threads=threads, drop_last=True, **more)


def their_loader(options: argparse.Namespace, batch: int, workers: int, cache: str | bool) -> Any:
    """Return Ultralytics' training loader, as its trainer builds it."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data.build import build_dataloader, build_yolo_dataset
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    # It asks for twice as much free memory as it takes, and a machine whose memory grows with its use does not show that.
    YOLODataset.check_cache_ram = lambda self, *a, **k: True
    cfg = get_cfg(overrides={"imgsz": options.imgsz, "cache": cache, "task": "detect", "workers": workers})
    data = check_det_dataset(str(data_of(options.folder).yaml), autodownload=False)
    dataset = build_yolo_dataset(cfg, data["train"], batch, data, mode="train", rect=False, stride=32)
    assert (dataset.ims[0] is not None) == bool(cache), "the pictures must be cached if asked for, and only then"
    device = "cpu" if options.dry else "cuda"
    return build_dataloader(dataset, batch, workers, shuffle=True, rank=-1, drop_last=True, device=device)


def wait() -> None:
    """Wait for the GPU, where there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def cpu_s() -> float:
    """Return the processor time of this process and of its workers, in s."""
    import psutil

    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def windows(batches: Iterator[Any], seconds: float, count: int, batch: int) -> dict[str, Any]:
    """Return images per second of some windows, and ms of processor time per image."""
    rates, made, cpu = [], 0, cpu_s()
    for _ in range(count):
        wait()
        start, taken = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            taken += 1
        wait()
        rates.append(taken * batch / (time.perf_counter() - start))
        made += taken * batch
    return {"rates": rates, "cpu_ms": 1e3 * (cpu_s() - cpu) / made}


def alike(seen: dict[str, float], other: dict[str, float]) -> str | None:
    """Return what differs between the batches of two loaders; ``None``: nothing."""
    off = [what for what, value in other.items() if abs(seen[what] - value) > ALIKE * value]
    return f"{', '.join(off)} differ: {seen} and {other}" if off else None


def on_host(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with its tensors on the host."""
    return {key: value.cpu() if hasattr(value, "cpu") else value for key, value in batch.items()}


def child(options: argparse.Namespace) -> None:
    """Measure one loader in this process."""
    rows, name = Rows("gpu_loader", options.out), options.child
    batches_of = [int(b) for b in options.batches.split(",")]
    is_ours = name in OURS
    import torch

    if not options.dry:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    host, free, start = host_used_gb(), _free_gb(), time.perf_counter()
    if is_ours:
        loader = our_loader(options, name, batches_of[0], None)
    else:
        workers, cache = THEIRS[name]
        loader = their_loader(options, batches_of[0], min(workers, options.most_workers), cache)
    made = time.perf_counter() - start
    batches = endless(loader)
    first = next(batches)
    wait()
    seconds = time.perf_counter() - start
    seen = look([on_host(first), *(on_host(b) for b in itertools.islice(batches, 3))], options.imgsz)
    took = {"gpu_gb": free - _free_gb(), "host_gb": host_used_gb() - host}
    facts = {"loader": name, "batch": batches_of[0], "imgsz": options.imgsz, "seen": seen, **took}
    if is_ours and not options.dry and name != "host":
        facts |= {"residency": loader.residency, "why": str(loader.why)}
    note = f"made in {made:.2f} s; GPU {took['gpu_gb']:.2f} GB, host {took['host_gb']:.2f} GB; {seen['boxes']:.1f} boxes"
    rows.add(f"{title(name)}: from nothing to the first batch", [seconds], "s", note=note, **facts)
    if is_ours:
        _rates_of_ours(options, name, loader, rows)
        del loader, batches, first
        start = time.perf_counter()
        next(iter(our_loader(options, name, batches_of[0], None)))
        wait()
        # The first time in a process, and the more so on a machine, kernels are loaded or even compiled.
        rows.add(
            f"{title(name)}: from nothing to the first batch, once more in the same process", [time.perf_counter() - start], "s"
        )
    else:
        _rates_of_theirs(options, name, loader, batches, rows)


def _rates_of_ours(options: argparse.Namespace, name: str, loader: Any, rows: Rows) -> None:
    first, *others = [int(b) for b in options.batches.split(",")]
    threads = [int(t) for t in options.threads.split(",")]
    own = loader.threads
    settings: list[tuple[int, int | None]] = [(first, None), *((first, t) for t in threads if t != own)]
    settings += [(b, None) for b in others]
    for batch, asked in settings:
        # Read when an iteration begins: what lies on the GPU stays there.
        loader.reset()
        loader.batch_size, loader.threads = batch, asked or own
        batches = endless(loader)
        ready = time.perf_counter() + options.warm_s
        for _ in range(2 * loader.threads * loader.prefetch + 2):
            next(batches)
        while time.perf_counter() < ready:
            next(batches)
        telemetry = Telemetry()
        mark = telemetry.mark()
        got = windows(batches, options.window_s, options.windows, batch)
        facts = telemetry.since(mark) | {"missing": telemetry.missing}
        telemetry.close()
        what = f"{name}, B={batch}, {loader.threads} threads" + (" (its own number)" if asked is None else "")
        rows.add(
            what, got["rates"], "images/s", cpu_ms=got["cpu_ms"], note=f"{got['cpu_ms']:.3f} ms of a core an image", loader=name,
            batch=batch, threads=loader.threads, own_number=asked is None, imgsz=options.imgsz, telemetry=facts,
        )  # fmt: skip
        batches.close()
    loader.close()


def _rates_of_theirs(options: argparse.Namespace, name: str, loader: Any, batches: Iterator[Any], rows: Rows) -> None:
    # What the workers have made ahead says nothing of how fast they are.
    for _ in range(PREFETCH_FACTOR * loader.num_workers + 2):
        next(batches)
    got = windows(batches, 3 * options.window_s, options.windows, loader.batch_size)
    rows.add(
        f"{title(name)}, B={loader.batch_size}", got["rates"], "images/s", cpu_ms=got["cpu_ms"], loader=name,
        note=f"{got['cpu_ms']:.3f} ms of a core an image", threads=loader.num_workers, batch=loader.batch_size,
        imgsz=options.imgsz,
    )  # fmt: skip
    loader.close()


def _free_gb() -> float:
    import torch

    return torch.cuda.mem_get_info()[0] / 1e9 if torch.cuda.is_available() else 0.0


def compare(rows: list[dict[str, Any]]) -> None:
    """Say whether all loaders handed out the same kind of batches."""
    seen = {row["loader"]: row["seen"] for row in rows if "seen" in row}
    theirs = next((name for name in seen if name in THEIRS), None)
    for name in seen:
        fault = alike(seen[name], seen[theirs]) if theirs else "nothing to compare with"
        say(f"batches of {name}: {'alike' if fault is None else 'NOT ALIKE: ' + fault}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what all loader benchmarks are told."""
    parser.add_argument("--folder", type=Path, required=True, help="for the data, made unless they are there")
    parser.add_argument("--photos", type=Path, help="folder with images/*.jpg and labels/*.txt; invented pictures without it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--repeat", type=int, default=16, help="entries per record")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--window", type=int, default=1024, help="of the partners, in decode+window")
    parser.add_argument("--most-workers", type=int, default=16)
    parser.add_argument("--dry", action="store_true", help="tiny, on the processor")
    parser.add_argument("--child", help=argparse.SUPPRESS)


def told(options: argparse.Namespace) -> list[str]:
    """Return the arguments that make a child see the same options."""
    out = []
    for name, value in vars(options).items():
        if value is True:
            out.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False):
            out.append(f"--{name.replace('_', '-')}={value}")
    return out


def title(name: str) -> str:
    """Return how results call a loader."""
    if name not in THEIRS:
        return name
    workers, cache = THEIRS[name]
    return f"Ultralytics, {workers} workers" + (f", cache={cache}" if cache else "")


def run_each(options: argparse.Namespace, script: str, names: list[str], rows: Rows, limit_s: float) -> bool:
    """Measure each in a process of its own until the time is up, and say what each has added; returns whether all went well."""
    deadline, well, said = time.monotonic() + options.seconds, True, len(rows.own())
    for name in names:
        left = deadline - time.monotonic()
        if left < 10:
            say(f"the time is up before {name}")
            break
        log = options.out / "logs" / f"{Path(script).stem}-{name.replace('/', '-').replace(':', '-')}.log"
        well &= run_child([script, *told(options), f"--child={name}"], log, min(left, limit_s))
        for row in rows.own()[said:]:
            say(line_of(row))
            said += 1
    return well


def main() -> None:
    """Measure until the time is up, what matters most first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--batches", default="128,64", help="the first one with all numbers of threads")
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument(
        "--loaders", default=";".join(("device", "pinned", "stream", *list(THEIRS)[:2], *OURS[3:], *list(THEIRS)[2:]))
    )
    parser.add_argument("--warm-s", type=float, default=0.7)
    parser.add_argument("--window-s", type=float, default=0.7, help="three times as long for theirs")
    parser.add_argument("--windows", type=int, default=3)
    options = parser.parse_args()
    if options.dry and not options.child:
        options.images, options.repeat, options.imgsz, options.batches, options.threads = 32, 2, 64, "4,2", "1,2"
        options.window_s, options.warm_s, options.most_workers, options.window = 0.1, 0.05, 2, 8
    if options.child:
        child(options)
        return
    prepare(options.photos, options.folder, options.images, options.repeat, options.imgsz, Rows("gpu_data", options.out))
    rows = Rows("gpu_loader", options.out)
    well = run_each(options, __file__, options.loaders.split(","), rows, 75.0)
    compare(rows.own())
    if not well:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
