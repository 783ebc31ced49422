"""CRC32C of buffers, without copying them and without holding other threads up.

The checksum is Castagnoli's CRC-32 (polynomial 0x1EDC6F41, reflected, initial value and final xor 0xFFFFFFFF: RFC 3720,
appendix B.4), which processors compute in hardware. ``crc32c(a + b) == crc32c(b, crc32c(a))``, so that it can be carried along
while bytes are written.

``google-crc32c`` brings the library. Its Python wrapper keeps the interpreter lock for everything that is not ``bytes``; a first
read of a memory map can wait for a disk, so larger buffers go to the same C function by a foreign call, which lets other threads
run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]
"""Anything whose bytes lie in one C-contiguous block."""

CALL_NBYTES = 1 << 15
"""From here on the 2 µs of a foreign call are small against the sum itself."""

_CHECK = (b"123456789", 0xE3069283)
"""Check value of the CRC catalogue (CRC-32/ISCSI)."""


def _native() -> Callable[[int, int, int], int] | None:
    """Return ``f(crc, address, nbytes)`` of the C library behind google-crc32c, or ``None`` where it cannot be reached."""
    try:
        from google_crc32c import _crc32c

        call = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, AttributeError, OSError):
        return None
    call.restype = ctypes.c_uint32
    call.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    probe = np.frombuffer(_CHECK[0], np.uint8)
    return call if call(0, probe.ctypes.data, probe.nbytes) == _CHECK[1] else None


_call = _native()
_extend: Callable[[int, Any], int] = google_crc32c.extend


def crc32c(data: Bytes, start: int = 0) -> int:
    """Return the checksum of the bytes of ``data``, continuing from ``start``.

    Args:
        data: A C-contiguous buffer of any shape and type; it is not copied.
        start: Checksum of everything before ``data``; 0 at the beginning.

    Raises:
        ValueError: ``data`` does not lie in one block.
    """
    if isinstance(data, bytes):
        return _extend(start, data)
    block = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
    if not block.flags.c_contiguous:
        raise ValueError(f"data must be C-contiguous, got strides {block.strides} for shape {block.shape}")
    if _call is not None and block.nbytes >= CALL_NBYTES:
        return _call(start, block.ctypes.data, block.nbytes)
    return _extend(start, block)


def crc32c_zeros(count: int, start: int = 0) -> int:
    """Return the checksum of ``count`` zero bytes, continuing from ``start``."""
    while count > 0:
        start = _extend(start, _ZEROS[:count])
        count -= len(_ZEROS)
    return start


_ZEROS = bytes(1 << 14)
