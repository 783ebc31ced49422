"""Compiled functions come from a cache where one can be written, and work where none can."""

from __future__ import annotations

import pytest
from numba.core import caching

from fastdata.render.compiled import compiled


def twice(x: int) -> int:
    """A function."""
    return 2 * x


def test_a_function_is_compiled_with_a_cache() -> None:
    """Its place is known before it is compiled."""
    function = compiled(twice)
    assert function._cache.cache_path  # type: ignore[attr-defined]
    assert function.targetoptions["nogil"]  # type: ignore[attr-defined]


def test_a_place_where_nothing_can_be_written_costs_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place for a cache is a slower start, not a failure to start."""
    monkeypatch.setattr(caching.CodeLibraryCacheImpl, "_locator_classes", [])
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    function = compiled(twice)
    assert function(21) == 42
    assert function.targetoptions["nogil"]  # type: ignore[attr-defined]
