"""Stores are synced to the device again and again; in memory that costs nothing, and nothing here depends on the device."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_kit import BACKENDS, place

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A fresh folder, in memory where there is room for it."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 2 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="fastdata-test-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Either backend."""
    return str(request.param)


@pytest.fixture
def out(backend: str, tmp_path: Path) -> Path:
    """Where a store goes."""
    return place(tmp_path, backend)
