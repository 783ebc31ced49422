"""How functions of this room are compiled: at their first call, without the interpreter's lock, kept on disk for later processes.

The compiled code lies beside the source, or in the user's cache folder, or where ``NUMBA_CACHE_DIR`` says. Where none of them can
be written, as in a container with a read-only installation and no home, numba would refuse at import; here each process compiles
for itself instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function, from the cache where there can be one."""
    done: Any
    try:
        done = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        done = njit(nogil=True)(function)
    return done  # type: ignore[no-any-return]
