"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared datasets and cases: ``FASTDATA_SHARED``, else ``../shared`` beside the project."""
    root = Path(os.environ.get("FASTDATA_SHARED", Path(__file__).resolve().parents[2] / "shared")).resolve()
    if not root.is_dir():
        pytest.fail(f"shared data must lie at FASTDATA_SHARED or beside the project, got {root}")
    return root
