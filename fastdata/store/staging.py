"""The folder ``<out>.partial`` in which a store grows: payload files, and one file per column.

Invariant: ``restore(point)`` gives back the very state that ``sync()`` returned as ``point``, whatever was appended since;
everything behind it is cut off. Payload is written straight from where the caller has it; columns are buffered and carry their
own checksum. Memory stays at the size of the buffers.
"""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from fastdata.checksum import crc32c
from fastdata.errors import UsageError
from fastdata.spool import Column
from fastdata.store.format import SECTIONS, row_shape
from fastdata.store.journal import explain_full, sync_folder, write_at

CHUNK_NBYTES: Final = 1 << 20
GATHER_NBYTES: Final = 1 << 16
NUMBER: Final = {"|u1": "<B", "<u2": "<H", "<u4": "<I", "<i4": "<i", "<i8": "<q"}
"""How a single number is packed, which is what most columns get of a picture: three times as fast as by way of an array."""
MAX_FILES: Final = 65535
"""What the element type of ``rec_file`` counts."""

LOG: Final = "log"
"""The column of the running report: bytes, no section of its own."""


class Layout(Protocol):
    """Where a backend puts records. Pure: bytes and numbers only."""

    @property
    def max_record_nbytes(self) -> int:
        """The largest record that it can hold."""

    def start(self, number: int) -> bytes:
        """Return the first bytes of payload file ``number``."""

    def frame(self, end: int, nbytes: int) -> bytes:
        """Return what stands between the last record, which ends at ``end``, and the payload of the next one."""

    def is_full(self, end: int, nbytes: int) -> bool:
        """Tell whether the next record needs another file."""


@final
class StagedColumn:
    """A spooled column that carries its own checksum, so that a rotten one is noticed before it becomes a store.

    Single rows are gathered before they are summed and spooled: a picture adds to some thirty columns.
    """

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self.path = path
        self._column = Column(dtype, row_shape, path=path)
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self._number = struct.Struct(NUMBER[dtype]) if dtype in NUMBER and not row_shape else None
        self._pending = bytearray()
        self._crc = 0
        self._synced_nbytes = 0

    def __len__(self) -> int:
        row_nbytes = self._dtype.itemsize * math.prod(self._row_shape)
        return self.nbytes // row_nbytes if row_nbytes else 0

    @property
    def nbytes(self) -> int:
        """Bytes appended so far."""
        return self._column.nbytes + len(self._pending)

    @property
    def crc(self) -> int:
        """Checksum of all bytes appended so far."""
        self._gather()
        return self._crc

    def append(self, rows: npt.ArrayLike) -> None:
        """Append rows of shape (k, *row_shape), or one row."""
        if self._number is not None and type(rows) is int:
            self._pending += self._number.pack(rows)
        else:
            block = np.asarray(rows, dtype=self._dtype)
            if block.shape[1:] != self._row_shape and block.shape != self._row_shape:
                raise ValueError(f"rows must be of shape (k, *{self._row_shape}), got {block.shape}")
            self._pending += block.tobytes()
        if len(self._pending) >= GATHER_NBYTES:
            self._gather()

    def _gather(self) -> None:
        if not self._pending:
            return
        rows = np.frombuffer(self._pending, self._dtype).reshape(-1, *self._row_shape)
        with self._explaining():
            self._column.append(rows)
        self._crc = crc32c(rows, self._crc)
        self._pending = bytearray()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise explain_full(e, self.path, self.nbytes - self._synced_nbytes) from e

    def flush(self) -> None:
        """Hand all rows to the operating system."""
        self._gather()
        with self._explaining():
            self._column.flush()

    def sync(self) -> None:
        """Wait until all rows are on the device."""
        if self._synced_nbytes != self.nbytes:
            self.flush()
            with self._explaining():
                self._column.sync()
            self._synced_nbytes = self.nbytes

    def restore(self, rows: int, crc: int) -> bool:
        """Forget every row from ``rows`` on; return whether the others are those that had this checksum."""
        if rows > len(self._column):
            return False
        self._column.truncate(rows)
        self._synced_nbytes = self._column.nbytes
        self._crc = 0
        for chunk in self.chunks():
            self._crc = crc32c(chunk, self._crc)
        return self._crc == crc

    def chunks(self, first: int = 0, nbytes: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of the column piece by piece, from byte ``first`` on."""
        self.flush()
        fd = self._column.fileno()
        end = self._column.nbytes if nbytes is None else first + nbytes
        while first < end:
            chunk = os.pread(fd, min(CHUNK_NBYTES, end - first), first)
            if not chunk:
                raise OSError(errno.EIO, f"the file must hold {end} bytes, got {first}", str(self.path))
            first += len(chunk)
            yield chunk

    def array(self) -> npt.NDArray[Any]:
        """Map what has been appended so far, read-only."""
        self.flush()
        return self._column.array()

    def close(self) -> None:
        """Release the file. Rows that have not been synced may be lost: no checkpoint speaks of them."""
        with suppress(OSError):  # of a full disk, which has been reported
            self._column.close()


@final
class Staging:
    """The growing store.

    Args:
        folder: Where; it exists.
        layout: Of the backend.
        keypoints: K.
    """

    def __init__(self, folder: Path, layout: Layout, keypoints: int) -> None:
        self.folder = folder
        self.layout = layout
        self.columns: dict[str, StagedColumn] = {}
        """Every section by its name, and the running report."""
        self.ends: list[int] = []
        """Where the last record of each payload file ends."""
        self._keypoints = keypoints
        self._fd = -1
        self._path = folder  # of the payload file that grows

    @property
    def payload_paths(self) -> list[Path]:
        """The payload files."""
        return [self.folder / f"payload-{number:05d}" for number in range(len(self.ends))]

    def create(self) -> None:
        """Begin in an empty folder."""
        self._open_columns()
        for spec in SECTIONS:
            if spec.rows.endswith("+1"):
                self.columns[spec.name].append(np.zeros(1, np.int64))
        self._next_file()

    def restore(self, point: dict[str, Any]) -> str | None:
        """Go back to what ``sync`` returned; return why that cannot be done, if it cannot."""
        self._open_columns()
        self.ends = list(point["ends"])
        for name, column in self.columns.items():
            if not column.restore(*point["columns"].get(name, (0, 0))):
                return f"{column.path} has changed since"
        paths = self.payload_paths
        for path, end in zip(paths, self.ends, strict=True):
            if not path.exists() or path.stat().st_size < end:
                return f"{path} is shorter than it was"
        for path in [*self.folder.glob("payload-*"), *self.folder.glob("spill-*")]:
            if path not in paths:
                path.unlink()
        self._path = paths[-1]
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._fd, self.ends[-1])
        return None

    def _open_columns(self) -> None:
        for spec in SECTIONS:
            path = self.folder / f"col-{spec.name}"
            self.columns[spec.name] = StagedColumn(path, spec.dtypes[0], row_shape(spec, self._keypoints))
        self.columns[LOG] = StagedColumn(log_of(self.folder), "|u1")

    def _next_file(self) -> None:
        if len(self.ends) >= MAX_FILES:
            raise UsageError(f"shard_nbytes must be so large that {MAX_FILES} shards are enough, got {self.layout}")
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
        start = self.layout.start(len(self.ends))
        self.ends.append(len(start))
        self._path = self.payload_paths[-1]
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        write_at(self._fd, [start], 0, self._path)

    def append_payload(self, payload: memoryview) -> tuple[int, int]:
        """Write one record: what stands before it and its bytes in one call, uncopied.

        Returns:
            Number of the payload file, and offset in it.
        """
        if self.layout.is_full(self.ends[-1], len(payload)):
            self._next_file()
        end = self.ends[-1]
        frame = self.layout.frame(end, len(payload))
        write_at(self._fd, [frame, payload], end, self._path)
        self.ends[-1] = end + len(frame) + len(payload)
        return len(self.ends) - 1, end + len(frame)

    def append(self, rows: dict[str, Any]) -> None:
        """Append to columns, by name."""
        for name, value in rows.items():
            self.columns[name].append(value)

    def size_hw(self, record: int) -> tuple[int, int]:
        """Return the size of a record that has been appended."""
        (raw,) = self.columns["rec_hw"].chunks(record * 8, 8)
        h, w = np.frombuffer(raw, "<i4").tolist()
        return h, w

    def sync_payload(self) -> None:
        """Wait until the records are on the device; older payload files are there already."""
        os.fsync(self._fd)

    def sync(self) -> dict[str, Any]:
        """Wait until everything is on the device; return what ``restore`` needs."""
        self.sync_payload()
        for column in self.columns.values():
            column.sync()
        sync_folder(self.folder)
        return {"ends": self.ends, "columns": {name: (len(c), c.crc) for name, c in self.columns.items() if c.nbytes}}

    def close(self) -> None:
        """Release the files."""
        for column in self.columns.values():
            column.close()
        self.columns = {}
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def log_of(folder: Path) -> Path:
    """Return the file of the running report."""
    return folder / f"col-{LOG}"
