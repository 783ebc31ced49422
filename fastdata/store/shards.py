"""A folder of shards: payload files that are mapped, and one index.

::

    out/shard-00000-<token>.bin     64-byte header, then records, each at a multiple of 64, zeros between them
    out/index.fastdata              the index (``fastdata.store.format``), renamed into place last

The token names the content of the shard. So a new version of a store can be moved in beside the old one, shard by shard, while
the old index still finds its own files; only the rename of the index changes what the folder holds.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from fastdata.store.format import ALIGN_NBYTES, VERSION

MAGIC: Final = b"\x89FDS\r\n\x1a\n"
HEADER: Final = struct.Struct("<8sHHI48x")
"""Magic, major, minor, number of the shard."""
assert HEADER.size == ALIGN_NBYTES

NAME: Final = re.compile(r"shard-\d{5,}-[0-9a-f]{16}\.bin")


def shard_name(number: int, *columns: npt.NDArray[Any]) -> str:
    """Return the name of a shard.

    Args:
        number: Of the shard in the store, from 0.
        columns: Offset, length and checksum of each of its records.
    """
    token = hashlib.blake2b(digest_size=8)
    for column in columns:
        token.update(np.ascontiguousarray(column).data)
    return f"shard-{number:05d}-{token.hexdigest()}.bin"


@final
@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Where records lie in the files of a folder of shards."""

    shard_nbytes: int
    """A record that would end beyond this begins another shard; a larger record has one for itself."""
    max_record_nbytes: int = 1 << 62

    def start(self, number: int) -> bytes:
        """Return the first bytes of shard ``number``."""
        return HEADER.pack(MAGIC, *VERSION, number)

    def frame(self, end: int, nbytes: int) -> bytes:
        """Return what stands between the last record, which ends at ``end``, and the payload of the next one."""
        return bytes(-end % ALIGN_NBYTES)

    def is_full(self, end: int, nbytes: int) -> bool:
        """Tell whether a record of ``nbytes`` after ``end`` needs another shard."""
        return end > HEADER.size and end + (-end % ALIGN_NBYTES) + nbytes > self.shard_nbytes
