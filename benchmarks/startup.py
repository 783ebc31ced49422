"""How long the command line takes to answer, and how much memory a conversion takes as the dataset grows.

``fastdata --help`` and ``import fastdata`` in fresh processes; then two conversions of very small pictures, one of
ten times as many as the other, with the peak of the resident memory of the converting process and of its largest worker.

    python benchmarks/startup.py --folder /dev/shm/fastdata-startup
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

PACKAGES = ("numpy", "typer", "rich", "opencv-python-headless", "simplejpeg")
HELP = "import sys; from fastdata.cli import main; sys.argv = ['fastdata', '--help']; main()"


def seconds(code: str) -> float:
    """Return the wall time of a fresh interpreter that runs ``code``."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def tiny_set(folder: Path, images: int) -> Path:
    """Write pictures of 64x48 with one box each."""
    import numpy as np
    import simplejpeg

    data = simplejpeg.encode_jpeg(np.full((48, 64, 3), 90, np.uint8), 90, "RGB")
    for i in range(images):
        part = f"{i // 1000:04d}"
        if i % 1000 == 0:
            for kind in ("images", "labels"):
                (folder / kind / "train" / part).mkdir(parents=True)
        (folder / "images/train" / part / f"{i:07d}.jpg").write_bytes(data)
        (folder / "labels/train" / part / f"{i:07d}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (folder / "data.yaml").write_text("train: images/train\nval: images/train\nnames: [a]\n")
    return folder


def convert(folder: Path, images: int) -> dict[str, float]:
    """Convert in this process and return the peaks."""
    from fastdata.conversion.options import ConvertOptions
    from fastdata.conversion.run import convert as run
    from fastdata.sources.scan import SourceOptions

    options = ConvertOptions(imgsz=None, codec="raw", workers=2, source=SourceOptions(splits=("train",)))
    done = run(folder / f"set-{images}", folder / f"out-{images}.lmdb", options)
    assert done.tally.stored == images
    own, workers = (resource.getrusage(who).ru_maxrss / 1e3 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"own_mb": own, "worker_mb": workers, "seconds": done.seconds}


def main() -> None:
    """Measure, print, append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/fastdata-startup"))
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--one", type=int)
    parser.add_argument("--dry", action="store_true", help="do not append to results/")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(convert(args.folder, args.one)))
        return
    rows = []
    for what, code in (("fastdata --help", HELP), ("import fastdata", "import fastdata"), ("python alone", "pass")):
        rows.append(record.row("startup", what, [seconds(code) for _ in range(args.repeats)], "s", packages=PACKAGES))
    shutil.rmtree(args.folder, ignore_errors=True)
    peaks = {}
    for images in (args.images // 10, args.images):
        tiny_set(args.folder / f"set-{images}", images)
        command = [sys.executable, __file__, "--one", str(images), "--folder", str(args.folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[images] = json.loads(done.stdout.splitlines()[-1])
        rows.append(
            record.row(
                "startup",
                "peak memory of converting pictures of 64x48",
                [peaks[images]["own_mb"]],
                "MB",
                packages=PACKAGES,
                ratio=round(peaks[images]["own_mb"] / peaks[args.images // 10]["own_mb"], 3),
                against="a tenth of the pictures",
                images=images,
                workers=2,
                worker_mb=peaks[images]["worker_mb"],
                images_per_s=round(images / peaks[images]["seconds"], 1),
            )
        )
    shutil.rmtree(args.folder, ignore_errors=True)
    for row in rows:
        print(
            row["what"], row.get("images", ""), row["median"], row["unit"], row.get("worker_mb", ""), row.get("images_per_s", "")
        )
    if not args.dry:
        print(record.append("startup", rows))


if __name__ == "__main__":
    main()
