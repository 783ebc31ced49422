"""How kernels are compiled, kept on disk, and what happens where nothing can be kept.

Numba keeps what it compiled in ``NUMBA_CACHE_DIR``, beside the source, or in the user's cache folder, whichever can be written to
first. Where none can, as in a read-only container, a process compiles for itself: some seconds at its first batch.

Numba looks for changes only in the file that holds the entry function. So an entry function is a closure over the digest of all
kernels' sources: numba keeps the values of a closure apart, and no process runs what an older version left behind.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.extending import intrinsic

SILENT_S = 5.0
"""Seconds after which a compilation says that it is one."""

_njit: Any = numba.njit
F = TypeVar("F", bound=Callable[..., Any])


def part(function: F) -> F:
    """Compile a function that kernels call."""
    compiled: F = _njit(error_model="numpy")(function)
    return compiled


def instruction(emit: Callable[..., Any]) -> Any:
    """Make a function of one that says its types and emits its LLVM code."""
    return intrinsic(emit)


def digest_of_sources() -> str:
    """Return a digest of every file of this folder that a kernel may be compiled from."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def entry(signature: Any, function: F) -> F:
    """Compile a function that Python calls, without the interpreter's lock while it runs.

    Args:
        signature: Types of its arguments: with others it fails instead of compiling anew.
        function: A closure over :func:`digest_of_sources`.
    """
    options = {"nogil": True, "error_model": "numpy"}
    compiled: F
    # Loading takes half a second, compiling some twenty: who waits should know why.
    said = "fastdata: compiling the renderer, once on this machine (about 20 s)\n"
    notice = threading.Timer(SILENT_S, sys.stderr.write, [said])
    notice.daemon = True
    notice.start()
    try:
        compiled = _njit(signature, cache=True, **options)(function)
    except (RuntimeError, OSError) as err:  # no place that can be written to, or a full one
        if isinstance(err, RuntimeError) and "cannot cache" not in str(err):
            raise
        warnings.warn(
            f"compiled kernels cannot be kept ({err}); every process compiles them anew, which takes seconds; "
            f"set NUMBA_CACHE_DIR to a folder that can be written to",
            RuntimeWarning,
            stacklevel=2,
        )
        compiled = _njit(signature, **options)(function)
    finally:
        notice.cancel()
        notice.join()
    return compiled
