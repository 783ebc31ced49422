"""Append-only typed columns on disk: how tables larger than memory are built.

A :class:`Column` is one file that only grows. ``append`` copies the array's bytes to its end; ``array`` maps the file read-only.
Anonymous memory stays at the size of one write buffer per column, whatever the number of rows, because pages of a mapped file can
be dropped by the kernel at any time.

Owner: the column owns its file descriptor and closes it when it goes. A column without a path is an unlinked temporary file and
vanishes with its last descriptor and map, also when the process is killed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BUFFER_NBYTES = 1 << 18


class Column:
    """One growing array of shape (n, *row_shape) in a file.

    Args:
        dtype: Element type; stored little-endian.
        row_shape: Shape of one row; ``()`` for a flat column.
        path: The file; continued if it exists. ``None`` makes an unlinked temporary file.
        folder: Where the temporary file lies when ``path`` is ``None``; the system's temporary folder by default.
        fd: An open descriptor to take over instead, as handed to another process.
    """

    def __init__(
        self,
        dtype: npt.DTypeLike,
        row_shape: tuple[int, ...] = (),
        path: Path | None = None,
        folder: Path | None = None,
        fd: int | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.row_shape = row_shape
        self._row_nbytes = self.dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        if fd is not None:
            self._fd = fd
        elif path is not None:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        else:
            self._fd, name = tempfile.mkstemp(prefix="fastdata-", dir=folder)
            os.unlink(name)
        self._named = path is not None and fd is None
        self._nbytes = os.fstat(self._fd).st_size
        self._pending = bytearray()

    def __len__(self) -> int:
        return self.nbytes // self._row_nbytes if self._row_nbytes else 0

    @property
    def nbytes(self) -> int:
        """Bytes appended so far, written out or not."""
        return self._nbytes + len(self._pending)

    def append(self, rows: npt.ArrayLike) -> None:
        """Append rows of shape (k, *row_shape), or one row of shape ``row_shape``."""
        block = np.ascontiguousarray(rows, dtype=self.dtype)
        if block.size == 0:
            return
        if block.shape[1:] != self.row_shape and block.shape != self.row_shape:
            raise ValueError(f"rows must be of shape (k, *{self.row_shape}), got {block.shape}")
        self._pending += block.tobytes()
        if len(self._pending) >= BUFFER_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Hand all pending bytes to the operating system; what it does not take (disk full) stays pending."""
        view = memoryview(bytes(self._pending))
        done = 0
        try:
            while done < len(view):
                # At a place of our own: the descriptor's offset is left behind by a truncation and shared with other processes.
                done += os.pwrite(self._fd, view[done:], self._nbytes + done)
        finally:
            self._nbytes += done
            del self._pending[:done]

    def sync(self) -> None:
        """Flush, then wait until the bytes are on the device."""
        self.flush()
        os.fsync(self._fd)

    def truncate(self, rows: int) -> None:
        """Forget every row from ``rows`` on."""
        self.flush()
        if not 0 <= rows <= len(self):
            raise ValueError(f"rows must be 0..{len(self)}, got {rows}")
        self._nbytes = rows * self._row_nbytes
        os.ftruncate(self._fd, self._nbytes)

    def array(self) -> npt.NDArray[Any]:
        """Map what has been appended so far, read-only, of shape (n, *row_shape)."""
        self.flush()
        shape = (self._nbytes // self._row_nbytes if self._row_nbytes else 0, *self.row_shape)
        if not self._nbytes:
            return np.zeros(shape, self.dtype)
        with os.fdopen(os.dup(self._fd), "rb") as handle:
            mapped = np.memmap(handle, dtype=self.dtype, mode="r", shape=shape)
        return np.asarray(mapped)  # a plain array: cheaper to slice

    def fileno(self) -> int:
        """Flush and return the descriptor, for another process to take over."""
        self.flush()
        return self._fd

    def close(self) -> None:
        """Write out what is pending, where the file has a name, and release it; mapped arrays stay valid."""
        if self._fd < 0:
            return
        try:
            if self._named:
                self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self._release()
