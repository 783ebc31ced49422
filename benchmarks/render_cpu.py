"""What drawing a batch costs on one core, by what is drawn and by what it is spent on.

Recipes are those that ``plan`` makes for a raw store of generated pictures of 640x480, more of them than the caches hold, at 640
px and 16 a batch; the page cache and the compiled code are warm. A fresh process bound to one core first draws two samples of
each policy with the reference and compares, then measures rounds of all policies in turn and keeps each one's fastest: a shared
machine only ever adds. In ms a sample:

* **render**: all of ``fastdata.render.cpu.render``, into memory that is used again;
* **tiles**: of that, finding the tiles' pixels in the store;
* **colour**: of that, the gains: the difference to the same recipes without any;
* **draw**: the rest, from the tiles to bytes.

    python benchmarks/render_cpu.py --folder bench-data/render_cpu --repeats 5
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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

PACKAGES = ("numpy", "numba", "llvmlite", "opencv-python-headless")
IMGSZ, BATCH, BATCHES = 640, 16, 4
POLICIES: dict[str, dict[str, Any]] = {
    "default": {},
    "hue multiplied": {"hue": "multiply"},
    "rotated up to 10 degrees": {"degrees": 10.0},
    "perspective": {"degrees": 10.0, "perspective": 0.0005},
    "every sample mixed with another": {"mixup": 1.0},
    "no mosaic": {"mosaic": 0.0},
}


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Compare with the reference, then time; ms a sample by policy and part."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import numpy as np

    from fastdata.augment.plan import plan
    from fastdata.augment.policy import Policy
    from fastdata.render import cpu, reference
    from fastdata.render.tiles import load_tiles
    from fastdata.render.tolerance import differs, near_outlines
    from fastdata.store.read import open_store

    store = open_store(path)
    out = np.empty((BATCH, 3, IMGSZ, IMGSZ), np.uint8)
    work: dict[str, dict[str, Callable[[], object]]] = {}
    for name, options in POLICIES.items():
        policy = Policy(**options)
        recipes = [
            plan(np.arange(i * BATCH, (i + 1) * BATCH) % len(store), store.catalog, policy, seed=0, epoch=0, imgsz=IMGSZ)
            for i in range(BATCHES)
        ]
        few = recipes[0].slots(0, 2)
        plain = [replace(r, gains=np.tile(np.array([0, 1, 1, 1], np.float32), (BATCH, 1))) for r in recipes]
        for some in (plain[0].slots(0, 2), few):
            if some is few and policy.hue == "multiply":
                continue  # red lies at both ends of the circle, and a rounding decides which: see the tests for what holds
            which = "cpu_colour" if some is few else "cpu"
            wrong = differs(cpu.render(store, some), reference.render(store, some), which, near_outlines(some))
            assert wrong is None, f"{name}: {wrong}"
        tiles = [load_tiles(store, r) for r in recipes]
        work[name] = {
            "render": lambda r=recipes: [cpu.render(store, one, out) for one in r],
            "tiles": lambda r=recipes: [load_tiles(store, one) for one in r],
            "coloured": lambda r=recipes, t=tiles: [cpu.draw(one, own, out) for one, own in zip(r, t, strict=True)],
            "draw": lambda r=plain, t=tiles: [cpu.draw(one, own, out) for one, own in zip(r, t, strict=True)],
        }
    best = {name: dict.fromkeys(parts, float("inf")) for name, parts in work.items()}
    for _ in range(rounds):
        for name, parts in work.items():
            for part, call in parts.items():
                best[name][part] = min(best[name][part], 1e3 * seconds(call) / (BATCH * BATCHES))
    for parts_ms in best.values():
        parts_ms["colour"] = max(parts_ms.pop("coloured") - parts_ms["draw"], 0.0)
    return best


def make_store(folder: Path, images: int) -> Path:
    """Generated pictures, raw."""
    from fastdata.conversion.options import ConvertOptions
    from fastdata.conversion.run import convert
    from fastdata.synth import write_dataset

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_dataset(folder / "set", images, task="detect", size_hw=(480, 640), splits={"train": 1.0})
    done = convert(folder / "set", folder / "store", ConvertOptions(codec="raw"))
    assert done.tally.stored == images
    return folder / "store"


def main() -> None:
    """Measure in fresh processes, print a table, append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="in each process")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="do not append to results/")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.rounds)))
        return
    path = make_store(args.folder, args.images)
    command = [sys.executable, __file__, "--folder", str(args.folder), "--rounds", str(args.rounds), "--one", str(path)]
    runs = []
    for _ in range(args.repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    print(f"{'ms a sample':34} {'render':>7} {'tiles':>7} {'colour':>7} {'draw':>7}")
    for name in POLICIES:
        figures = {part: [run[name][part] for run in runs] for part in ("render", "tiles", "colour", "draw")}
        middle = {part: statistics.median(values) for part, values in figures.items()}
        print(f"{name:34} " + " ".join(f"{middle[part]:7.3f}" for part in middle))
        rows.append(
            record.row(
                "render_cpu",
                f"{name}: draw a sample on one core, {IMGSZ} px",
                [round(value, 4) for value in figures["render"]],
                "ms/sample",
                packages=PACKAGES,
                ratio=round(middle["render"] / statistics.median(run["default"]["render"] for run in runs), 3),
                against="the default policy, same run",
                batch=BATCH,
                images=args.images,
                tiles_ms=round(middle["tiles"], 4),
                colour_ms=round(middle["colour"], 4),
                draw_ms=round(middle["draw"], 4),
            )
        )
    if not args.dry:
        print(record.append("render_cpu", rows))
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
