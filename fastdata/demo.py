"""The two-minute tour: make a small dataset, convert it both ways, verify, look at it, measure what can be measured.

Everything happens below one folder, which only this demo may have made. Figures printed are those of the very run.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from fastdata.errors import UsageError

MARKER = "made-by-fastdata-demo"
"""File that says that a folder is the demo's own and may be replaced."""

LOOKS = 200
"""Pictures read in the comparison: a second or two of decoding."""


def run(folder: Path, *, images: int = 400, overwrite: bool = False) -> None:
    """Run the tour.

    Args:
        folder: Where everything goes.
        images: Pictures to make.
        overwrite: Replace the folder of an earlier demo.

    Raises:
        UsageError: The folder is there already, or is not the demo's.
    """
    from rich.rule import Rule

    from fastdata.augment.policy import Policy
    from fastdata.conversion.options import ConvertOptions
    from fastdata.conversion.run import convert
    from fastdata.conversion.tables import summary_table
    from fastdata.samples import Samples
    from fastdata.show import write_contact_sheet
    from fastdata.show_augmented import write_samples_sheet
    from fastdata.store.read import open_store
    from fastdata.synth import write_dataset
    from fastdata.terminal import stdout, ticking
    from fastdata.verification import render as render_verdict
    from fastdata.verification import verify

    if images < 8:
        raise UsageError(f"images must be at least 8, got {images}")
    _prepare(folder, overwrite)
    out = stdout()

    out.print(Rule("1. a dataset, as people publish them", align="left"))
    began = time.perf_counter()
    dataset = write_dataset(folder / "dataset", images, format="yolo", task="segment")
    out.print(f"{images} textured pictures with polygons in {time.perf_counter() - began:.1f} s: {dataset}")

    for number, name in ((2, "shapes.lmdb"), (3, "shapes")):
        kind = "one LMDB file" if name.endswith(".lmdb") else "a folder of memory-mapped shards"
        out.print(Rule(f"{number}. fastdata convert {dataset} {folder / name}   ({kind})", align="left"))
        with ticking("converting") as ticker:
            done = convert(dataset, folder / name, ConvertOptions(codec="raw"), listener=ticker)
        out.print(summary_table(done))

    out.print(Rule(f"4. fastdata verify {folder / 'shapes.lmdb'} --source {dataset}", align="left"))
    verdict = verify(folder / "shapes.lmdb", source=dataset)
    out.print(render_verdict(verdict))

    out.print(Rule(f"5. fastdata show {folder / 'shapes.lmdb'} {folder / 'sheet.png'}", align="left"))
    with open_store(folder / "shapes.lmdb") as store:
        write_contact_sheet(store, folder / "sheet.png", max_images=12)
    out.print(f"look at {folder / 'sheet.png'}: boxes, polygons and names drawn on the stored pictures")

    out.print(Rule(f"6. fastdata show {folder / 'shapes.lmdb'} {folder / 'samples.png'} --augment", align="left"))
    with open_store(folder / "shapes.lmdb", "train") as store:
        samples = Samples(store, imgsz=640, policy=Policy(mixup=0.15, copy_paste=0.3), seed=1)
        write_samples_sheet(samples, folder / "samples.png", max_images=12)
    out.print(f"look at {folder / 'samples.png'}: what a training would see, mosaic, MixUp and Copy-Paste with their labels")

    out.print(Rule("7. what it buys", align="left"))
    out.print(_measure(folder / "shapes.lmdb", dataset))
    out.print(_measure_samples(folder / "shapes.lmdb"))

    out.print(Rule("next", align="left"))
    out.print(
        "your own data:   fastdata convert path/to/data.yaml my.lmdb --dry-run\n"
        "what is in it:   fastdata info my.lmdb\n"
        "this machine:    fastdata doctor\n"
        "train on it:     README.md, \"Train Ultralytics on it\"; needs torch: pip install 'fastdata-yolo[train]'",
        markup=False,
    )


def _prepare(folder: Path, overwrite: bool) -> None:
    """Make the folder; replace one only if an earlier demo made it."""
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise UsageError(f"folder must be new, or made by an earlier demo, got {folder}; choose another name")
        if not overwrite:
            raise UsageError(f"folder must be new, got {folder} of an earlier demo; replace it with --overwrite")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text("fastdata demo may replace this folder\n")


def _measure(store_path: Path, dataset: Path) -> str:
    """Compare, on one core, reading pictures from the store with decoding their files. Pixels are compared first."""
    import cv2
    import numpy as np
    import numpy.typing as npt

    from fastdata.images import Refused, decode_image
    from fastdata.pixels import fitted_size, resize, to_planar
    from fastdata.store.read import open_store

    def from_file(path: Path) -> npt.NDArray[np.uint8]:
        picture = decode_image(path.read_bytes())
        assert not isinstance(picture, Refused)
        hw = (picture.rgb.shape[0], picture.rgb.shape[1])
        return to_planar(resize(picture.rgb, fitted_size(hw, 640), "trainer"))

    cv2.setNumThreads(1)
    with open_store(store_path) as store:
        ids = range(min(LOOKS, len(store)))
        paths = [dataset / store.key(i) for i in ids]
        same = all(np.array_equal(store.image(i), from_file(paths[i])) for i in ids)
        began = time.process_time()
        for i in ids:
            store.image(i).copy()
        from_store_s = (time.process_time() - began) / len(ids)
        began = time.process_time()
        for path in paths:
            from_file(path)
        from_files_s = (time.process_time() - began) / len(ids)
    assert same, "the store must hold the pixels that decoding the files gives"
    return (
        f"{len(paths)} pictures, one core, files and store in the page cache, pixels equal: "
        f"decode and resize the files {1 / from_files_s:,.0f} images/s, "
        f"read the store {1 / from_store_s:,.0f} images/s ({from_files_s / from_store_s:.0f} x)"
    )


def _measure_samples(store_path: Path) -> str:
    """Time the making of training samples on one core: planned and drawn, in batches of 16."""
    import numpy as np

    from fastdata.samples import Samples
    from fastdata.store.read import open_store

    with open_store(store_path, "train") as store:
        samples = Samples(store, imgsz=640, task="detect")
        batches = np.arange(LOOKS // 16 * 16).reshape(-1, 16) % len(samples)
        out = np.empty((16, 3, 640, 640), np.uint8)
        for ids in batches:  # every record compared with its checksum once, as in a first epoch
            samples.draw(ids, 0, out=out)
        began = time.process_time()
        for ids in batches:
            samples.draw(ids, 1, out=out)
        each_s = (time.process_time() - began) / batches.size
    made = "augmented training samples for detection (mosaic, affine, HSV, mirror; 640 px)"
    return f"{made} on one core: {1 / each_s:,.0f} images/s"
