"""Writes small COCO datasets and reads them back: for the tests of the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdata.problems import Problem
from fastdata.sources.coco import read_coco
from fastdata.sources.scan import Scan, SourceOptions

CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]


def image(number: int = 1, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": number, "file_name": name or f"{number}.jpg", "height": 40, "width": 60} | more


def note(number: int = 1, image_id: Any = 1, category_id: Any = 1, **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": image_id, "category_id": category_id, "bbox": [10, 5, 20, 30]} | more


def document(
    annotations: list[Any], images: list[Any] | None = None, categories: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "images": [image()] if images is None else images,
        "annotations": annotations,
        "categories": CATEGORIES if categories is None else categories,
        **more,
    }


def write(root: Path, files: dict[str, Any]) -> Path:
    """Write JSON documents (dict), texts, and empty image files (None)."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) if isinstance(content, dict) else content or "")
    return root


def read_one(root: Path, doc: dict[str, Any], **options: Any) -> Scan:
    """Read one document whose images all lie beside it."""
    names = [i["file_name"] for i in doc["images"] if isinstance(i, dict) and isinstance(i.get("file_name"), str)]
    write(root, {"set.json": doc} | {name.replace("\\", "/"): None for name in names if not name.startswith(("/", ".."))})
    return read_coco(root / "set.json", SourceOptions(**{"splits": ("train",)} | options))


def kinds(scan: Scan) -> list[tuple[int | None, str, str]]:
    return [(p.annotation_id, p.kind, p.action) for p in scan.problems]


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]
