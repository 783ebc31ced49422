"""Tell the system about ranges of memory: hundreds of them in one call, without the interpreter's lock.

Called one by one from Python, each would wait for the lock again, and the disk may take its time with each. Not for Windows,
which has no such function.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from numba import types

from fastdata.render.kernels.compiled import digest_of_sources, entry

_madvise: Any = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))


def _entry(sources: str) -> Any:
    def advise(ranges: Any, advice: int) -> None:
        sources  # noqa: B018  part of the closure, see ``compiled``
        for k in range(len(ranges)):
            _madvise(ranges[k, 0], ranges[k, 1], advice)

    return entry(types.void(types.Array(types.int64, 2, "C", readonly=True), types.int32), advise)


advise = _entry(digest_of_sources())
"""Call madvise(2) with every row of an (n, 2) table: address and bytes. Its results are of no use: what cannot be read ahead will
be read later."""
