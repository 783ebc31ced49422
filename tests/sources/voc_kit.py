"""Writes small Pascal VOC datasets and reads them back: for the tests of the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.sources.scan import Scan, SourceOptions
from fastdata.sources.voc import read_voc

SIZE = "<size><width>50</width><height>40</height><depth>3</depth></size>"


def box(name: str = "cat", xmin: object = 11, ymin: object = 6, xmax: object = 30, ymax: object = 25, more: str = "") -> str:
    edges = f"<xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax>"
    return f"<object><name>{name}</name>{more}<bndbox>{edges}</bndbox></object>"


def xml(*objects: str, filename: str = "", size: str = SIZE) -> str:
    name = f"<filename>{filename}</filename>" if filename else ""
    return f"<annotation>{name}{size}{''.join(objects)}</annotation>"


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def voc(root: Path, labels: dict[str, str], lists: dict[str, str] | None = None, images: tuple[str, ...] | None = None) -> Path:
    """Write a development kit: a picture for every xml, unless ``images`` says which."""
    files: dict[str, str | bytes] = {f"Annotations/{stem}.xml": text for stem, text in labels.items()}
    files |= {f"JPEGImages/{name}": b"picture" for name in (images if images is not None else [f"{s}.jpg" for s in labels])}
    files |= {f"ImageSets/Main/{name}.txt": text for name, text in (lists or {}).items()}
    (root / "JPEGImages").mkdir(parents=True, exist_ok=True)
    return tree(root, files)


def read(root: Path, **options: Any) -> Scan:
    return read_voc(root, SourceOptions(**options))


def labels_of(scan: Scan) -> dict[str, list[tuple[str, list[float]]]]:
    return {
        key: [(scan.names[c], box) for c, box in zip(scan.rows(i).cls, scan.rows(i).xyxy.tolist(), strict=True)]
        for i, key in enumerate(scan.keys)
    }


def splits_of(scan: Scan) -> dict[str, list[str]]:
    keys = list(scan.keys)
    return {name: [k for k, s in zip(keys, scan.split, strict=True) if s == at] for at, name in enumerate(scan.splits)}


def kinds(scan: Scan) -> list[tuple[str, str, int | None]]:
    return [(p.file, p.kind, p.object) for p in scan.problems]
