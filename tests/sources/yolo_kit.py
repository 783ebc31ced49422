"""Small YOLO datasets on disk, and short views of what was read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.problems import Problem
from fastdata.sources.scan import Scan, SourceOptions
from fastdata.sources.yolo import read_yolo

ROW = "0 0.5 0.5 0.2 0.4\n"
"""One good row."""


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below ``root``; an image needs no content, because a reader never opens one."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def read(src: Path, **options: Any) -> Scan:
    return read_yolo(src, SourceOptions(**options))


def keys(scan: Scan, split: str | None = None) -> list[str]:
    """The keys of a split, or of all."""
    at = None if split is None else scan.splits.index(split)
    return [key for i, key in enumerate(scan.keys) if at is None or scan.split[i] == at]


def classes(scan: Scan) -> dict[str, list[int]]:
    """Class of each row, by key."""
    return {key: scan.rows(i).cls.tolist() for i, key in enumerate(scan.keys)}


def told(problems: list[Problem]) -> list[tuple[str, str]]:
    """(where, kind) of each problem, in order."""
    return [(problem.where, problem.kind) for problem in problems]
