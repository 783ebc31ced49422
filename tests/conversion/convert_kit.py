"""Datasets for the tests of conversion: small JPEGs whose pixels and labels differ from picture to picture."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import simplejpeg

RUN = "import sys; from fastdata.cli import main; sys.argv[0] = 'fastdata'; main()"


def jpeg(seed: int, size_hw: tuple[int, int] = (48, 64)) -> bytes:
    """A picture that no other seed gives."""
    h, w = size_hw
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (6, 8, 3), np.uint8)
    rgb = np.repeat(np.repeat(coarse, -(-h // 6), axis=0), -(-w // 8), axis=1)[:h, :w]
    return simplejpeg.encode_jpeg(np.ascontiguousarray(rgb), 90, "RGB")


def yolo(root: Path, splits: dict[str, int], *, size_hw: tuple[int, int] = (48, 64), names: int = 3) -> Path:
    """A YOLO folder; image i of a split has i % 4 objects. Returns the data.yaml."""
    lines = [f"names: [{', '.join(f'class{i}' for i in range(names))}]"]
    seed = 0
    for split, count in splits.items():
        lines.append(f"{split}: images/{split}")
        images, labels = root / "images" / split, root / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for i in range(count):
            seed += 1
            (images / f"{i:05d}.jpg").write_bytes(jpeg(seed, size_hw))
            rows = [f"{k % names} {0.3 + 0.1 * k} 0.5 0.2 {0.1 + i % 7 * 0.05:.2f}" for k in range(i % 4)]
            (labels / f"{i:05d}.txt").write_text("".join(row + "\n" for row in rows))
    (root / "data.yaml").write_text("\n".join(lines) + "\n")
    return root / "data.yaml"


def fingerprint(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Content, size and modification time of every file below a folder, and of the folders themselves."""
    out = {}
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        out[str(path.relative_to(folder))] = (content, stat.st_size, stat.st_mtime_ns)
    return out


def store_bytes(store: Path) -> dict[str, str]:
    """Content of every file of a store."""
    files = [store] if store.is_file() else sorted(store.iterdir())
    return {"" if path == store else path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def command(*args: object) -> list[str]:
    """The command line in a process of its own."""
    return [sys.executable, "-c", RUN, *map(str, args)]


def fastdata(*args: object, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line and wait for it."""
    return subprocess.run(command(*args), capture_output=True, text=True, cwd=cwd, timeout=timeout, check=False)
