"""How fast the GPU draws by itself, and what bounds it: bytes that must move against the bandwidth of its memory.

Pictures lie in GPU memory, several GB of them, so that no cache holds them; each repetition draws another one of ``--recipes``
batches. Before anything is timed, slots of each policy are compared with the reference.

* **kernel**: the time between CUDA events around a call whose tables are on the GPU, while the GPU is kept behind: it sleeps
  until all calls are queued, so no interval waits for the host.
* **with tables**: likewise, with the copy of the tables, of some hundred bytes a sample.
* **call**: wall time of the calls one after another, packing of the tables included, which a thread does beside the training.
* **plan**: wall time of the plan of a batch, on one thread.

Bytes: of the output, and of the pictures under what the output shows (each group's frame, taken back to its canvas and cut with
its tiles, of three channels). Lines that zooming out skips count, weights and tables do not.

    python benchmarks/gpu_kernel.py --folder /tmp/data --photos photographs --out /tmp/out --seconds 60
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gpu_data import prepare
from gpu_rows import Rows, say

F64 = npt.NDArray[np.float64]

BYTES_PER_S = 4.3e12
"""What a copy within the memory of an H200 moves, bytes read plus bytes written: measured there with a copy of 8.6 GB."""

POLICIES: dict[str, dict[str, Any]] = {
    "default": {},
    "rotation": {"degrees": 10.0, "shear": 2.0},
    "perspective": {"perspective": 0.0005},
    "mixup": {"mixup": 1.0},
    "cutmix": {"cutmix": 1.0},
    "copy-paste": {"copy_paste": 1.0, "copy_paste_mode": "mixup"},
    "no mosaic": {"mosaic": 0.0},
    "mosaic of nine": {"mosaic9": 1.0},
}
LETTERBOX = "letterbox"
"""Validation: no policy at all."""


def polygon_area_within(points: F64, rectangle: F64) -> float:
    """Return the area of a convex polygon's part within a rectangle.

    Args:
        points: (n, 2) corners in order.
        rectangle: x0, y0, x1, y1.
    """
    for axis, bound, sign in ((0, rectangle[0], 1), (0, rectangle[2], -1), (1, rectangle[1], 1), (1, rectangle[3], -1)):
        inside = sign * (points[:, axis] - bound) >= 0
        kept = []
        for i, (p, q) in enumerate(zip(points, np.roll(points, -1, axis=0), strict=True)):
            if inside[i]:
                kept.append(p)
            if inside[i] != inside[(i + 1) % len(points)]:
                kept.append(p + (q - p) * (bound - p[axis]) / (q[axis] - p[axis]))
        if len(kept) < 3:
            return 0.0
        points = np.array(kept)
    x, y = points.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def source_nbytes(recipe: Any) -> float:
    """Return how many bytes of the pictures a recipe's output shows, three channels of a byte each."""
    total = 0.0
    for g, matrix in enumerate(np.linalg.inv(recipe.matrix)):
        x0, y0, x1, y1 = recipe.clip_xyxy[g].astype(np.float64)
        frame = np.array([[x0, y0, 1], [x1, y0, 1], [x1, y1, 1], [x0, y1, 1]]) @ matrix.T
        corners = frame[:, :2] / frame[:, 2:]
        for t in range(int(recipe.tile_offsets[g]), int(recipe.tile_offsets[g + 1])):
            visible = recipe.visible_xyxy[t].astype(np.float64)
            if visible[0] < visible[2] and visible[1] < visible[3]:
                total += 3 * polygon_area_within(corners, visible)
    return total


def queued_ms(calls: list[Callable[[], object]], repeats: int) -> list[float] | None:
    """Return the GPU's time of each call, in ms, over so many rounds; ``None`` where the host could not be kept ahead.

    The GPU sleeps until a round is queued.
    """
    import torch

    out: list[float] = []
    cycles = 100_000_000  # 50 ms at 2 GHz
    while len(out) < repeats:
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        torch.cuda._sleep(cycles)
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        was_behind = not events[0].query()
        torch.cuda.synchronize()
        if was_behind:
            out += [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
        elif cycles > 1_000_000_000:
            return None
        else:
            cycles *= 3
    return out


def wall_ms(calls: list[Callable[[], object]], repeats: int, device: Any) -> list[float]:
    """Return the mean wall time of a call of each round, in ms; on the processor that of the call itself."""
    import torch

    out = []
    for _ in range(-(-repeats // len(calls))):
        start = time.perf_counter()
        for call in calls:
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        out.append(1e3 * (time.perf_counter() - start) / len(calls))
    return out


class KeptTables:
    """Within it, calls copy their tables to the GPU the first time only: what is left are the kernels."""

    def __enter__(self) -> KeptTables:
        from fastdata.render import cuda

        self._copy, self._kept, cuda.to_device = cuda.to_device, {}, self._copied
        return self

    def __exit__(self, *error: object) -> None:
        from fastdata.render import cuda

        cuda.to_device = self._copy

    def of(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return the same call with tables of its own."""

        def again() -> None:
            self._now = call
            call()

        return again

    def _copied(self, arrays: Any, device: Any) -> Any:
        if self._now not in self._kept:
            self._kept[self._now] = self._copy(arrays, device)
        return self._kept[self._now]


class Bench:
    """Draws of one store from one source."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from fastdata.residency.device import Device
        from fastdata.samples import Samples
        from fastdata.store.read import open_store

        self.options, self.rows = options, Rows("gpu_kernel", options.out)
        self.device = torch.device("cpu" if options.dry else "cuda")
        shape = (options.images, options.repeat, options.imgsz)
        data = prepare(options.photos, options.folder, *shape, Rows("gpu_data", options.out))
        self.stores = {False: open_store(data.raw, "train")}
        start = time.perf_counter()
        self.sources = {False: Device(Samples(self.stores[False], imgsz=options.imgsz), self.device)}
        seconds = time.perf_counter() - start
        nbytes = self.sources[False].nbytes_device
        self.rows.add("upload of the split", [nbytes / seconds / 1e9], "GB/s", nbytes_device=nbytes, seconds=seconds)

    def add_outlines(self) -> None:
        """Make a store whose objects have outlines, invented ones: boxes cannot be cut out and pasted."""
        import fastdata
        from fastdata.conversion.options import ConvertOptions
        from fastdata.residency.device import Device
        from fastdata.samples import Samples
        from fastdata.sources.scan import SourceOptions
        from fastdata.store.read import open_store
        from fastdata.synth import write_dataset

        folder, imgsz = self.options.folder / "outlines", self.options.imgsz
        if not (folder / "raw.lmdb").exists():
            folder.mkdir(exist_ok=True)
            size_hw = (max(3 * imgsz // 4, 32), imgsz)
            write_dataset(folder / "source", self.options.outlines, task="segment", size_hw=size_hw, splits={"train": 1.0})
            options = ConvertOptions(SourceOptions(task="segment"), imgsz=imgsz, codec="raw")
            fastdata.convert(folder / "source", folder / "raw.lmdb", options)
        self.stores[True] = open_store(folder / "raw.lmdb", "train")
        self.sources[True] = Device(Samples(self.stores[True], imgsz=imgsz), self.device)

    def samples(self, policy: str) -> Any:
        """Return samples with a policy of :data:`POLICIES`, or letterboxed."""
        from fastdata.augment.policy import Policy
        from fastdata.samples import Samples

        store = self.stores["copy_paste" in POLICIES.get(policy, {})]
        if policy == LETTERBOX:
            return Samples(store, imgsz=self.options.imgsz, augment=False)
        return Samples(store, imgsz=self.options.imgsz, policy=Policy(**POLICIES[policy]), seed=1)

    def recipes(self, samples: Any, batch: int) -> list[Any]:
        """Return recipes of different batches."""
        order = np.random.default_rng(0).permutation(len(samples))
        count = self.options.recipes
        return [samples.recipe(order[np.arange(k * batch, (k + 1) * batch) % len(samples)], k) for k in range(count)]

    def check(self, samples: Any, source: Any, recipe: Any, what: str) -> None:
        """Compare some slots with the reference.

        Raises:
            AssertionError: They differ by more than the renderers may.
        """
        from fastdata.render import reference
        from fastdata.render.cuda import render
        from fastdata.render.tolerance import differs, near_outlines

        part = recipe.slots(0, self.options.compared)
        mine = render(part, source.fetch(part).where, device=self.device).cpu().numpy()
        fault = differs(mine, reference.render(samples.store, part), "cuda", near_outlines(part))
        assert fault is None, f"{what}: {fault}"

    def measure(self, policy: str, batch: int, dtype: str = "uint8", channels_last: bool = False) -> None:
        """Compare, then time one setting."""
        import torch

        from fastdata.render.cuda import render

        options, device = self.options, self.device
        has_outlines = "copy_paste" in POLICIES.get(policy, {})
        if has_outlines and True not in self.stores:
            self.add_outlines()
        samples, source = self.samples(policy), self.sources[has_outlines]
        recipes = self.recipes(samples, batch)
        what = f"{policy}, B={batch}, {dtype}{', channels last' if channels_last else ''}"
        self.check(samples, source, recipes[0], what)
        more: dict[str, Any] = {"dtype": getattr(torch, dtype), "channels_last": channels_last}
        fetched = [source.fetch(r) for r in recipes]
        out = render(recipes[0], fetched[0].where, device=device, **more)
        calls: list[Callable[[], object]] = [
            lambda r=r, f=f: render(r, f.where, device=device, out=out, **more) for r, f in zip(recipes, fetched, strict=True)
        ]
        for call in calls:
            call()
        facts = {"batch": batch, "policy": policy, "dtype": dtype, "channels_last": channels_last, "imgsz": options.imgsz}
        nbytes = {
            "output_nbytes": float(out.element_size() * out[0].numel()),
            "source_nbytes": statistics.fmean(source_nbytes(r) / len(r) for r in recipes),
        }
        moved = sum(nbytes.values())
        repeats = max(options.draws, len(calls))
        on_gpu = device.type == "cuda"
        copied = queued_ms(calls, repeats) if on_gpu else wall_ms(calls, repeats, device)
        with KeptTables() as tables:
            kept = [tables.of(call) for call in calls]
            for call in kept:
                call()
            drawn = queued_ms(kept, repeats) if on_gpu else wall_ms(kept, repeats, device)
        for name, ms in (("kernel", drawn), ("with tables", copied)):
            if ms is None:
                say(f"{name}: {what}: the host could not be kept ahead of the GPU")
                continue
            rates = [1e3 * batch / m for m in ms]
            share = statistics.median(rates) * moved / BYTES_PER_S
            note = f"{moved / 1e6:.2f} MB an image, {100 * share:.0f} % of {BYTES_PER_S / 1e12:g} TB/s"
            self.rows.add(f"{name}: {what}", rates, "images/s", bandwidth_share=share, note=note, **nbytes, **facts)
        if dtype == "uint8" and not channels_last:
            call_ms = wall_ms(calls, repeats, device)
            self.rows.add(f"call: {what}", [1e3 * batch / ms for ms in call_ms], "images/s", **facts)
            plans: list[Callable[[], object]] = [lambda: self.recipes(samples, batch)]
            plan_ms = [ms / len(recipes) for ms in wall_ms(plans, 3, torch.device("cpu"))]
            self.rows.add(f"plan on one thread: {what}", [1e3 * batch / ms for ms in plan_ms], "images/s", **facts)


def main() -> None:
    """Measure until the time is up, what matters most first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the data, made unless they are there")
    parser.add_argument("--photos", type=Path, help="folder with images/*.jpg and labels/*.txt; invented pictures without it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--repeat", type=int, default=16, help="entries per record")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--outlines", type=int, default=512, help="invented pictures with outlines, for Copy-Paste")
    parser.add_argument("--batches", default="128,64,256,32")
    parser.add_argument("--policies", default=",".join((*POLICIES, LETTERBOX)))
    parser.add_argument("--recipes", type=int, default=10)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--compared", type=int, default=2, help="slots that are compared with the reference")
    parser.add_argument("--dry", action="store_true", help="tiny, on the processor")
    options = parser.parse_args()
    if options.dry:
        import os

        os.environ["TRITON_INTERPRET"] = "1"
        options.images, options.repeat, options.imgsz, options.batches = 8, 2, 32, "2"
        options.recipes, options.draws, options.compared, options.outlines = 2, 1, 1, 8
    deadline = time.monotonic() + options.seconds
    bench = Bench(options)
    sizes, policies = [int(b) for b in options.batches.split(",")], options.policies.split(",")
    first = sizes[0]
    plan: list[tuple[Any, ...]] = []
    if "default" in policies:
        plan += [("default", b) for b in sizes]
        plan += [("default", first, "float16"), ("default", first, "bfloat16"), ("default", first, "uint8", True)]
        plan += [("default", first, "float16", True), ("default", first, "float32")]
    plan += [(policy, first) for policy in policies if policy != "default"]
    failed = []
    for setting in plan:
        if time.monotonic() > deadline:
            say(f"the time is up before {setting}")
            break
        try:
            bench.measure(*setting)
        except Exception as err:
            failed.append(f"{setting}: {type(err).__name__}: {err}")
            say(f"FAILED {failed[-1]}")
    bench.rows.table()
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
