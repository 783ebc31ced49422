"""How long, and with how much memory, a COCO file of any size is read.

Writes a stand-in for COCO's instances file into a folder (as many annotations per image, numbers per outline and bytes per
annotation as train2017 has; the same on every run) and reads it in fresh processes: with read_coco, which leaves rows in spooled
columns, and with json.load, which leaves Python objects and converts nothing. What both hold is compared, outside the time,
before anything is reported. Memory is the peak of anonymous pages, which cannot be dropped.

    python benchmarks/read_coco.py --folder bench-data/coco --images 118000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import record

KINDS = ("read_coco", "json.load")
PACKAGES = ("numpy",)
ANNOTATIONS_PER_IMAGE = 7.29
"""860,001 annotations of 118,287 images."""
CATEGORIES = 80
CROWD_SHARE = 0.012
COMPARED = 2000
"""Images whose rows are compared number by number; counts are compared over all."""

ON_DISK = 8
"""Image files that are really there (empty): enough for the image folder to be found. The others cost a look all the same."""


def write_stand_in(folder: Path, images: int) -> Path:
    """Write annotations/instances_train2017.json for ``images`` pictures, in COCO's own order of lists."""
    path = folder / "annotations" / "instances_train2017.json"
    size_file = folder / "images.txt"
    if size_file.is_file() and size_file.read_text() == str(images):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = folder / "images" / "train2017"
    pictures.mkdir(parents=True, exist_ok=True)
    for i in range(min(ON_DISK, images)):
        (pictures / f"{i * 3 + 9:012d}.jpg").touch()
    rng = np.random.default_rng(0)
    counts = rng.poisson(ANNOTATIONS_PER_IMAGE, images)
    with open(path, "w", encoding="ascii") as out:
        out.write('{"info": {"description": "stand-in", "year": 2017}, "licenses": [{"id": 1, "name": "none"}], "images": [')
        for i in range(images):
            entry = {
                "license": 1,
                "file_name": f"{i * 3 + 9:012d}.jpg",
                "coco_url": f"http://images.example/train2017/{i * 3 + 9:012d}.jpg",
                "height": 480,
                "width": 640,
                "date_captured": "2013-11-14 11:18:45",
                "flickr_url": f"http://farm9.example/8186/{i * 3 + 9:010d}_{i % 65536:010x}_z.jpg",
                "id": i * 3 + 9,
            }
            out.write((", " if i else "") + json.dumps(entry))
        out.write('], "annotations": [')
        number = 0
        for i in rng.permutation(images).tolist():  # COCO's annotations are not sorted by image
            for _ in range(counts[i]):
                out.write((", " if number else "") + json.dumps(one_annotation(rng, i * 3 + 9, number)))
                number += 1
        categories = [{"supercategory": "thing", "id": c + 1, "name": f"thing {c}"} for c in range(CATEGORIES)]
        out.write(f'], "categories": {json.dumps(categories)}}}')
    size_file.write_text(str(images))
    return path


def one_annotation(rng: np.random.Generator, image_id: int, number: int) -> dict[str, Any]:
    """Invent one annotation: an outline of one or a few parts, or now and then the run lengths of a crowd."""
    x, y = rng.uniform(0, [500, 380]).round(2).tolist()
    w, h = rng.uniform(4, [140, 100]).round(2).tolist()
    crowd = rng.random() < CROWD_SHARE
    if crowd:
        runs = rng.integers(1, 500, 600)
        runs[-1] += max(0, 640 * 480 - int(runs.sum()))
        segmentation: Any = {"counts": runs.tolist(), "size": [480, 640]}
    else:
        parts = 1 + int(rng.random() < 0.1)
        points = np.exp(rng.normal(2.55, 0.7, parts)).astype(int) + 3
        segmentation = [np.round(rng.random((n, 2)) * [w, h] + [x, y], 2).reshape(-1).tolist() for n in points]
    return {
        "segmentation": segmentation,
        "area": round(w * h * 0.6, 4),
        "iscrowd": int(crowd),
        "image_id": image_id,
        "bbox": [x, y, w, h],
        "category_id": int(rng.integers(1, CATEGORIES + 1)),
        "id": number + 1,
    }


class AnonymousMemory:
    """The largest number of anonymous bytes while the block runs, looked at every 10 ms."""

    def __enter__(self) -> AnonymousMemory:
        self.base = self.peak = anonymous_nbytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.peak = max(self.peak, anonymous_nbytes())


def anonymous_nbytes() -> int:
    """Return the anonymous resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def one(kind: str, path: Path) -> dict[str, Any]:
    """Read the file in this process; return the figures, and what both ways must agree on."""
    from fastdata.sources.coco import read_coco
    from fastdata.sources.scan import SourceOptions

    with AnonymousMemory() as memory:
        began, began_cpu = time.perf_counter(), time.process_time()
        if kind == "read_coco":
            held: Any = read_coco(path.parents[1], SourceOptions())
        else:
            with open(path, "rb") as file:
                held = json.load(file)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    held_by = held_by_scan if kind == "read_coco" else held_by_objects
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_nbytes": memory.peak - memory.base, "held": held_by(held)}


def held_by_scan(scan: Any) -> list[Any]:
    """Return counts over everything, then every number of the rows of some images."""
    assert not scan.problems, scan.problems[:3]
    cls, flags = scan.table.column("cls"), scan.table.column("flags")
    out: list[Any] = [len(scan), len(cls), int(np.count_nonzero(flags)), np.bincount(cls, minlength=CATEGORIES).tolist()]
    for i in range(0, len(scan), max(1, len(scan) // COMPARED)):
        rows = scan.rows(i)
        out += [int(scan.image_id[i]), scan.keys[i], rows.declared_hw, rows.where.tolist(), rows.cls.tolist()]
        out += [rows.area.tolist(), rows.xyxy.reshape(-1).tolist(), rows.points.reshape(-1).tolist()]
        out += [np.diff(rows.part_offsets).tolist(), [json.loads(rle) for rle in rows.rle if rle]]
    return json.loads(json.dumps(out))


def held_by_objects(loaded: dict[str, Any]) -> list[Any]:
    """Return what :func:`held_by_scan` returns, from parsed JSON."""
    images, notes = loaded["images"], loaded["annotations"]
    per_class = np.bincount([a["category_id"] - 1 for a in notes], minlength=CATEGORIES).tolist()
    out: list[Any] = [len(images), len(notes), sum(a["iscrowd"] for a in notes), per_class]
    chosen = images[:: max(1, len(images) // COMPARED)]
    of_image: dict[int, list[Any]] = {image["id"]: [] for image in chosen}
    for a in notes:
        if a["image_id"] in of_image:
            of_image[a["image_id"]].append(a)
    for image in chosen:
        mine = of_image[image["id"]]
        outlines = [a["segmentation"] if isinstance(a["segmentation"], list) else [] for a in mine]
        boxes = [a["bbox"] for a in mine]
        out += [image["id"], f"images/train2017/{image['file_name']}", [image["height"], image["width"]]]
        out += [[a["id"] for a in mine], [a["category_id"] - 1 for a in mine], [a["area"] for a in mine]]
        out += [[v for x, y, w, h in boxes for v in (x, y, x + w, y + h)], [v for o in outlines for part in o for v in part]]
        out += [[len(o) for o in outlines], [dict(a["segmentation"]) for a in mine if isinstance(a["segmentation"], dict)]]
    return json.loads(json.dumps(out))


def fresh(kind: str, path: Path) -> dict[str, Any]:
    """Run one kind in a fresh process."""
    command = [sys.executable, __file__, "--one", kind, "--file", str(path)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    """Measure, compare, print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("bench-data/coco"))
    parser.add_argument("--images", type=int, default=118_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="do not append to results/")
    parser.add_argument("--one", choices=KINDS)
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    if args.one:
        sys.stdout.write(json.dumps(one(args.one, args.file)))
        return
    path = write_stand_in(args.folder, args.images)
    nbytes = path.stat().st_size
    os.sync()
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(args.repeats):
        pair = {kind: fresh(kind, path) for kind in KINDS}
        if pair["read_coco"]["held"] != pair["json.load"]["held"]:
            sys.exit("read_coco must hold what json.load holds, but some counts or rows differ")
        for kind in KINDS:
            runs[kind].append(pair[kind])
    ours, whole = (sorted(run["seconds"] for run in runs[kind]) for kind in KINDS)
    our_cpu, whole_cpu = (min(run["cpu_s"] for run in runs[kind]) for kind in KINDS)
    our_peak, whole_peak = (max(run["peak_nbytes"] for run in runs[kind]) for kind in KINDS)
    result = record.row(
        "read_coco",
        "seconds to read a stand-in for COCO's instances file into rows",
        ours,
        "s",
        packages=PACKAGES,
        ratio=round(whole[len(whole) // 2] / ours[len(ours) // 2], 3),
        against="json.load alone, same run (its time / this time)",
        images=args.images,
        annotations=runs["read_coco"][0]["held"][1],
        file_mb=round(nbytes / 1e6, 1),
        mb_per_s=round(nbytes / 1e6 / ours[len(ours) // 2], 1),
        cpu_s=round(our_cpu, 2),
        cpu_ratio=round(whole_cpu / our_cpu, 3),
        peak_anonymous_mb=round(our_peak / 1e6, 1),
        json_load_s=round(whole[len(whole) // 2], 2),
        json_load_cpu_s=round(whole_cpu, 2),
        json_load_peak_anonymous_mb=round(whole_peak / 1e6, 1),
    )
    sys.stdout.write(json.dumps(result) + "\n")
    if not args.dry:
        record.append("read_coco", [result])


if __name__ == "__main__":
    main()
