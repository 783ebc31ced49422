"""How much of a conversion is anything but decoding?

Converts the same 640x480 JPEGs to raw at 640 in fresh processes and takes the CPU time of the whole process tree (user + system,
workers included, start-up excluded by the difference between a large and a small set), against a loop in one process that only
decodes the same files with the same library. ratio = decode-only CPU time per image / conversion CPU time per image: 1 would mean
that labels, resizing, checksums and writing cost nothing.

Two sets: real photos of exactly that size (COCO's, about 150 kB each, as many copies as it takes, with their boxes), and the
project's own generated pictures: smaller files (about 65 kB), quicker to decode, so that everything else weighs more.

    python benchmarks/convert.py --folder /dev/shm/fastdata-bench --images 4000 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

PACKAGES = ("numpy", "opencv-python-headless", "simplejpeg", "google-crc32c", "lmdb")
KINDS = ("decode", "shards", "lmdb", "liblmdb")


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def one(kind: str, dataset: Path, target: Path, workers: int) -> dict[str, float]:
    """Run one kind in this process and return its figures."""
    files = sorted((dataset / "images/train").rglob("*.jpg"))
    began, began_cpu = time.perf_counter(), cpu_s()
    if kind == "decode":
        import simplejpeg

        for path in files:
            simplejpeg.decode_jpeg(path.read_bytes(), "RGB", fastdct=False, fastupsample=False)
    elif kind == "liblmdb":
        put_with_liblmdb(files, target)
    else:
        from fastdata.conversion.options import ConvertOptions
        from fastdata.conversion.run import convert
        from fastdata.sources.scan import SourceOptions

        out = target / ("out.lmdb" if kind == "lmdb" else "out")
        done = convert(dataset, out, ConvertOptions(codec="raw", workers=workers, source=SourceOptions(splits=("train",))))
        assert done.tally.stored == len(files), done.tally
    return {
        "images": len(files),
        "cpu_s": cpu_s() - began_cpu,
        "wall_s": time.perf_counter() - began,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "peak_worker_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3,
    }


def photo_set(folder: Path, images: int) -> Path:
    """Copy COCO photos of 640x480, upright or not, with their YOLO boxes, until there are enough."""
    from fastdata.images import probe_size

    shared = Path(os.environ.get("FASTDATA_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    source = shared / "data/coco128/lightly"
    photos = [
        p for p in sorted((source / "images/train2017").glob("*.jpg")) if probe_size(p.read_bytes()) in ((480, 640), (640, 480))
    ]
    for kind in ("images", "labels"):
        (folder / kind / "train").mkdir(parents=True)
    for i in range(images):
        photo = photos[i % len(photos)]
        labels = source / "object_detection/labels/train2017" / f"{photo.stem}.txt"
        (folder / "images/train" / f"{i:06d}.jpg").write_bytes(photo.read_bytes())
        (folder / "labels/train" / f"{i:06d}.txt").write_bytes(labels.read_bytes() if labels.exists() else b"")
    (folder / "data.yaml").write_text("train: images/train\nval: images/train\nnc: 80\n")
    return folder


def generated_set(folder: Path, images: int) -> Path:
    """Make textured pictures of 640x480 with boxes."""
    from fastdata.synth import write_dataset

    return write_dataset(folder, images, format="yolo", task="detect", size_hw=(480, 640))


SETS = {"photos": photo_set, "generated": generated_set}


def put_with_liblmdb(files: list[Path], target: Path) -> None:
    """Store planar pixels with the LMDB library and nothing else: no labels, no checksums."""
    import cv2
    import lmdb
    import numpy as np
    import simplejpeg

    env = lmdb.open(str(target / "plain.lmdb"), subdir=False, map_size=1 << 38, writemap=True, map_async=True, sync=False)
    transaction = env.begin(write=True)
    for i, path in enumerate(files):
        rgb = simplejpeg.decode_jpeg(path.read_bytes(), "RGB", fastdct=False, fastupsample=False)
        planes = np.stack(cv2.split(rgb))
        transaction.put(b"%010d" % i, planes.data.cast("B"), append=True)
        if i % 256 == 255:
            transaction.commit()
            transaction = env.begin(write=True)
    transaction.commit()
    env.sync(True)
    env.close()


def fresh(kind: str, dataset: Path, folder: Path, workers: int) -> dict[str, float]:
    """Run one kind in a fresh process with an empty target."""
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [
        sys.executable,
        __file__,
        "--one",
        kind,
        "--dataset",
        str(dataset),
        "--folder",
        str(folder),
        "--workers",
        str(workers),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(target, ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])


def disk_mb_per_s(folder: Path, nbytes: int) -> float:
    """Return what the disk takes: one file in pieces of 1 MiB, until fsync returns."""
    piece = os.urandom(1 << 20)
    path = folder / "plain.bin"
    began = time.perf_counter()
    with open(path, "wb", buffering=0) as out:
        for _ in range(max(1, nbytes >> 20)):
            out.write(piece)
        os.fsync(out.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return nbytes / seconds / 1e6


def against_disk(args: argparse.Namespace, name: str, dataset: Path) -> list[dict[str, object]]:
    """Convert to a disk and compare the rate with that of writing as many bytes and nothing else."""
    args.disk.mkdir(parents=True, exist_ok=True)
    nbytes = args.images * 640 * 480 * 3
    rows = []
    for kind in ("shards", "lmdb"):
        rates, plain = [], []
        for _ in range(args.repeats):
            plain.append(disk_mb_per_s(args.disk, nbytes))
            figures = fresh(kind, dataset, args.disk, args.workers)
            rates.append(nbytes / figures["wall_s"] / 1e6)
        ratio = statistics.median(rates) / statistics.median(plain)
        print(f"{kind:8} {statistics.median(rates):6.0f} MB/s to a disk of {statistics.median(plain):.0f} MB/s: {ratio:.2f}")
        rows.append(
            record.row(
                "convert",
                f"{kind}: wall time of a whole conversion to disk, as a rate of payload",
                rates,
                "MB/s",
                packages=PACKAGES,
                ratio=round(ratio, 3),
                against="writing as many bytes to one file and fsync, same disk, same run",
                set=name,
                images=args.images,
                workers=args.workers,
                disk_mb_per_s=round(statistics.median(plain), 1),
            )
        )
    shutil.rmtree(args.disk)
    return rows


def main() -> None:
    """Measure, print a table, append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/fastdata-bench"))
    parser.add_argument("--disk", type=Path, help="also convert to a folder on a real disk")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--small", type=int, default=400, help="the small set, whose time is taken off as start-up")
    parser.add_argument("--sets", default="photos,generated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--one", choices=KINDS)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--dry", action="store_true", help="do not append to results/")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.dataset, args.folder / "target", args.workers)))
        return

    rows: list[dict[str, object]] = []
    for name in args.sets.split(","):
        shutil.rmtree(args.folder, ignore_errors=True)
        sets = {n: SETS[name](args.folder / f"set-{n}", n) for n in (args.small, args.images)}
        for workers in sorted({1, args.workers}):
            rows += against_decoding(args, name, sets, workers)
        if args.disk:
            rows += against_disk(args, name, sets[args.images])
    if not args.dry:
        print(record.append("convert", rows))
    shutil.rmtree(args.folder, ignore_errors=True)


def against_decoding(args: argparse.Namespace, name: str, sets: dict[int, Path], workers: int) -> list[dict[str, object]]:
    """Measure every kind, print a table, return the results."""
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(args.repeats):
        for kind in KINDS:
            small, large = (fresh(kind, sets[n], args.folder, workers) for n in (args.small, args.images))
            extra = large["images"] - small["images"]
            figures[kind].append(
                {
                    "cpu_ms": 1e3 * (large["cpu_s"] - small["cpu_s"]) / extra,
                    "whole_cpu_ms": 1e3 * large["cpu_s"] / large["images"],
                    "images_per_s": large["images"] / large["wall_s"],
                    "peak_mb": large["peak_mb"],
                    "peak_worker_mb": large["peak_worker_mb"],
                }
            )
    decode_ms = statistics.median(f["cpu_ms"] for f in figures["decode"])
    rows = []
    print(f"{name}, {workers} workers")
    print(f"{'kind':8} {'CPU ms/image':>13} {'with start-up':>14} {'images/s':>9} {'peak MB':>8} {'worker MB':>10} {'ratio':>6}")
    for kind in KINDS:
        median = {what: statistics.median(f[what] for f in figures[kind]) for what in figures[kind][0]}
        ratio = decode_ms / median["cpu_ms"]
        print(
            f"{kind:8} {median['cpu_ms']:13.3f} {median['whole_cpu_ms']:14.3f} {median['images_per_s']:9.0f} "
            f"{median['peak_mb']:8.0f} {median['peak_worker_mb']:10.0f} {ratio:6.2f}"
        )
        rows.append(
            record.row(
                "convert",
                f"{kind}: CPU time per 640x480 JPEG, raw at 640, target on tmpfs",
                [round(f["cpu_ms"], 4) for f in figures[kind]],
                "ms/image",
                packages=PACKAGES,
                ratio=round(ratio, 3),
                against="a loop that only decodes, same library, same run (decode time / this time)",
                set=name,
                images=args.images,
                workers=workers if kind in ("shards", "lmdb") else 1,
                whole_cpu_ms=round(median["whole_cpu_ms"], 3),
                images_per_s=round(median["images_per_s"], 1),
                peak_mb=round(median["peak_mb"], 1),
                peak_worker_mb=round(median["peak_worker_mb"], 1),
            )
        )
    return rows


if __name__ == "__main__":
    main()
