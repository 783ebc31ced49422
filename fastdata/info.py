"""What a store holds, as one JSON document and as tables for a terminal.

Every count is made from the catalog's columns, in blocks, with no loop over pictures. Invariants: the counts of the splits add up
to those of the whole; the counts of the classes add up to the number of objects.

Words: an *image* is an entry of a split, an *annotation* one labelled object of it, crowds included.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.conversion.estimate import gigabytes
from fastdata.errors import StoreError
from fastdata.labels import CROWD, DIFFICULT, KIND_NAMES, POLYGON, TRUNCATED
from fastdata.store.format import ENCODINGS, VERSION

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fastdata.catalog import Catalog
    from fastdata.store.read import Store

BLOCK = 1 << 20
"""Rows of a column that are looked at together."""

TOP_CLASSES = 20
"""Classes that the terminal names; the JSON has all of them."""

FLAGS = {"crowd": CROWD, "difficult": DIFFICULT, "truncated": TRUNCATED}


def describe(store: Store) -> dict[str, Any]:
    """Return everything that is known about a store, all its splits included, as JSON can say it.

    Raises:
        StoreError: A column is damaged.
    """
    manifest, catalog = store.manifest, store.catalog
    summary = _json(manifest.summary)
    splits = {name: _count(catalog, start, stop) for name, (start, stop) in manifest.splits.items()}
    total = _sum(list(splits.values()))
    per_class = total.pop("per_class")
    images_of = total.pop("images_per_class")
    ids = manifest.category_ids or tuple(range(len(manifest.names)))
    classes = [
        {
            "index": i,
            "name": name,
            "category_id": ids[i],
            "annotations": int(per_class[i]),
            "images": int(images_of[i]),
            "splits": {split: int(counts["per_class"][i]) for split, counts in splits.items()},
        }
        for i, name in enumerate(manifest.names)
    ]
    for counts in splits.values():
        del counts["per_class"], counts["images_per_class"]
    records = catalog.counts.records
    encodings = np.bincount(catalog.rec_encoding, minlength=len(ENCODINGS))
    return {
        "path": str(store.path),
        "format_version": ".".join(map(str, VERSION)),
        "uid": manifest.uid,
        "writer": manifest.writer,
        "backend": manifest.backend,
        "task": manifest.task,
        "codec": manifest.codec,
        "quality": manifest.quality,
        "imgsz": manifest.imgsz if manifest.imgsz is not None else "full",
        "resample": manifest.resample,
        "channels": manifest.channels,
        "nbytes": _disk_nbytes(Path(store.path)),
        "payload_nbytes": int(catalog.rec_nbytes.sum()),
        "records": records,
        "encodings": {name: int(n) for name, n in zip(ENCODINGS, encodings, strict=True) if n},
        **total,
        "classes_named": len(manifest.names),
        "classes_used": int(np.count_nonzero(per_class)),
        "splits": splits,
        "size_px": {"stored": _sizes(_stored_hw(catalog)), "original": _sizes(catalog.entry_original_hw)},
        "keypoints": None if manifest.keypoints is None else _json(asdict(manifest.keypoints)),
        "classes": classes,
        "source": manifest.source,
        "decisions": _json(manifest.decisions),
        "options": _json(manifest.options),
        "skipped": summary.get("images", {}).get("skipped", {}),
        "problems": summary.get("problems", {}),
        "conversion": summary,
    }


def _json(value: Any) -> Any:
    """Return lists for tuples and plain dicts for mappings, as reading the JSON would."""
    return json.loads(json.dumps(value, default=dict))


# Counting


def _count(catalog: Catalog, start: int, stop: int) -> dict[str, Any]:
    """Count entries ``start`` to ``stop``: numbers, and arrays by class."""
    offsets = catalog.inst_offsets[start : stop + 1]
    per_image = np.diff(offsets)
    classes = len(catalog.names)
    out: dict[str, Any] = {
        "images": stop - start,
        "annotations": int(offsets[-1] - offsets[0]),
        "backgrounds": int(np.count_nonzero(per_image == 0)),
        "most_in_an_image": int(per_image.max(initial=0)),
        **dict.fromkeys(FLAGS, 0),
        "kinds": dict.fromkeys(KIND_NAMES, 0),
        "multi_part": 0,
        "outline_points": 0,
        "with_keypoints": 0,
        "per_class": np.zeros(classes, np.int64),
        "images_per_class": np.zeros(classes, np.int64),
    }
    last_seen = np.full(classes, -1, np.int64)
    for first in range(int(offsets[0]), int(offsets[-1]), BLOCK):
        _count_instances(catalog, first, min(first + BLOCK, int(offsets[-1])), start, out, last_seen)
    return out


def _count_instances(
    catalog: Catalog, first: int, last: int, start: int, out: dict[str, Any], last_seen: npt.NDArray[np.int64]
) -> None:
    """Add objects ``first`` to ``last``. ``last_seen`` is the last entry in which each class was found, by earlier blocks."""
    cls, flags = catalog.cls[first:last], catalog.flags[first:last]
    parts = catalog.part_offsets[first : last + 1]
    for what, column, limit in (("class", cls, len(catalog.names)), ("kind", catalog.kind[first:last], len(KIND_NAMES))):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < limit:
            raise StoreError(
                f"{what} of every object must be 0..{limit - 1}, got {int(column.min())}..{int(column.max())}; run verify"
            )
    for name, bit in FLAGS.items():
        out[name] += int(np.count_nonzero(flags & bit))
    kind = catalog.kind[first:last]
    kinds = np.bincount(kind, minlength=len(KIND_NAMES))
    for name, count in zip(KIND_NAMES, kinds, strict=True):
        out["kinds"][name] += int(count)
    out["multi_part"] += int(np.count_nonzero((np.diff(parts) > 1) & (kind == POLYGON)))  # rings of a mask are no parts
    points = catalog.point_offsets[[int(parts[0]), int(parts[-1])]]
    out["outline_points"] += int(points[1] - points[0])
    if catalog.keypoints is not None:
        out["with_keypoints"] += int(np.count_nonzero((catalog.keypoints_px[first:last, :, 2] > 0).any(axis=1)))
    out["per_class"] += np.bincount(cls, minlength=len(out["per_class"]))
    # Entries rise with their objects, so each pair of entry and class is new, or was met in this block, or is the class's last.
    entry = np.searchsorted(catalog.inst_offsets, np.arange(first, last), side="right") - 1
    pairs = np.unique(entry * len(last_seen) + cls)
    entry, cls = pairs // len(last_seen), pairs % len(last_seen)
    out["images_per_class"] += np.bincount(cls[entry != last_seen[cls]], minlength=len(last_seen))
    np.maximum.at(last_seen, cls, entry)


def _sum(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """Add the counts of the splits up."""
    total: dict[str, Any] = dict(counts[0])
    for one in counts[1:]:
        for name, value in one.items():
            if name == "kinds":
                total[name] = {kind: total[name][kind] + n for kind, n in value.items()}
            elif name == "most_in_an_image":
                total[name] = max(total[name], value)
            else:
                total[name] = total[name] + value
    return total


def _stored_hw(catalog: Catalog) -> npt.NDArray[np.int64]:
    rect = catalog.entry_rect.astype(np.int64)
    return np.stack([rect[:, 3] - rect[:, 1], rect[:, 2] - rect[:, 0]], axis=1)


def _sizes(hw: npt.NDArray[np.integer[Any]]) -> dict[str, Any]:
    """Return smallest, middle and largest of pictures (by their area, as width and height), of widths and of heights."""
    if not len(hw):
        return {}
    hw = hw.astype(np.int64)
    by_area = np.argsort(hw.prod(axis=1), kind="stable")
    out: dict[str, Any] = {}
    for name, at in (("min", 0), ("median", len(hw) // 2), ("max", -1)):
        h, w = hw[by_area[at]].tolist()
        out[name] = [w, h]
    for name, axis in (("width", 1), ("height", 0)):
        values = hw[:, axis]
        out[name] = [int(values.min()), float(np.median(values)), int(values.max())]
    out["different"] = len(np.unique(hw[:, 0] << 32 | hw[:, 1]))
    return out


def _disk_nbytes(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


# For people


def render(description: dict[str, Any]) -> RenderableType:
    """Return what :func:`describe` found as tables for a terminal; nothing needs more than 60 columns."""
    from rich.console import Group

    more = sum(c["annotations"] > 0 for c in description["classes"]) - TOP_CLASSES
    rest = [f"and {more:,} more classes; --json has all of them"] if more > 0 else []
    return Group(_facts(description), _split_table(description), _class_table(description), *rest)


def _facts(d: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(d["path"]), box=box.SIMPLE, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str) -> None:
        table.add_row(name, Text(text))

    size = "size as published" if d["imgsz"] == "full" else f"long side {d['imgsz']} px, resized by {d['resample']}"
    quality = f" quality {d['quality']}" if d["quality"] is not None else ""
    row("kind", f"{d['backend']}, format {d['format_version']}, task {d['task']}, from {d['source'] or 'unknown'}")
    row("pictures", f"{d['codec']}{quality}, {size}, {d['channels']} channels")
    row("bytes", f"{gigabytes(d['nbytes'])}, {gigabytes(d['payload_nbytes'])} of it pictures ({d['records']:,} records)")
    for name, sizes in d["size_px"].items():
        if sizes:
            (w0, h0), (w1, h1), (w2, h2) = sizes["min"], sizes["median"], sizes["max"]
            row(name, f"{w0} x {h0} to {w2} x {h2} px, median {w1} x {h1}, {sizes['different']:,} different sizes")
    kinds = ", ".join(f"{n:,} {name}" for name, n in d["kinds"].items() if n) or "none"
    row("objects", f"{d['annotations']:,}: {kinds}")
    more = [(name, d[name]) for name in ("multi_part", *FLAGS, "with_keypoints") if d[name]]
    if more:
        row("of these", ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in more))
    row("classes", f"{d['classes_named']:,}, {d['classes_used']:,} of them used")
    if d["keypoints"]:
        flip = "with mirror pairs" if d["keypoints"]["flip_idx"] else "mirror pairs unknown"
        row("keypoints", f"{d['keypoints']['count']} per object, {flip}")
    for name, value in d["decisions"].items():
        row(name, str(value))
    for name in ("skipped", "problems"):
        if d[name]:
            row(name, ", ".join(f"{kind} {n:,}" for kind, n in d[name].items()))
    return table


def _split_table(d: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("split", overflow="fold")
    for name in ("images", "background", "objects", "per image"):
        table.add_column(name, justify="right")
    rows = list(d["splits"].items())
    for name, s in [*rows, ("all", d)] if len(rows) > 1 else rows:
        per_image = f"{s['annotations'] / max(s['images'], 1):.1f}"
        table.add_row(Text(name), f"{s['images']:,}", f"{s['backgrounds']:,}", f"{s['annotations']:,}", per_image)
    return table


def _class_table(d: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class", overflow="ellipsis", no_wrap=True, max_width=32)
    for name in ("objects", "share", "images"):
        table.add_column(name, justify="right")
    ranked = sorted(d["classes"], key=lambda c: -c["annotations"])
    for c in [c for c in ranked if c["annotations"]][:TOP_CLASSES]:
        share = f"{100 * c['annotations'] / max(d['annotations'], 1):.1f} %"
        table.add_row(Text(c["name"]), f"{c['annotations']:,}", share, f"{c['images']:,}")
    return table
