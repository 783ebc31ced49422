"""A second reader of the store format, written from docs/format.md alone: nothing of the package is imported.

It reads everything at once and believes nothing: every byte of a store is compared with the checksum that covers it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TABLE = [0] * 256
for byte in range(256):
    value = byte
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    TABLE[byte] = value


def crc(data: bytes) -> int:
    """CRC-32C, one byte at a time."""
    out = 0xFFFFFFFF
    for byte in data:
        out = out >> 8 ^ TABLE[(out ^ byte) & 255]
    return out ^ 0xFFFFFFFF


def demand(condition: bool, what: str) -> None:
    """Refuse the store."""
    if not condition:
        raise ValueError(what)


class SecondReader:
    """A store, read as a whole.

    Attributes:
        manifest: The JSON object.
        sections: Name to array.
        records: The payload of each record.
    """

    def __init__(self, path: Path) -> None:
        file = path / "index.fastdata" if path.is_dir() else path
        data = file.read_bytes()
        mark = data[-64:]
        demand(mark[:8] == b"\x89FDE\r\n\x1a\n", "end mark: magic")
        demand(crc(mark[:60]) == struct.unpack_from("<I", mark, 60)[0], "end mark: crc")
        major, minor, _, index_offset, index_nbytes, file_nbytes = struct.unpack_from("<HHIQQQ", mark, 8)
        demand(major == 1, f"version {major}.{minor}")
        demand(file_nbytes == len(data) == index_offset + index_nbytes and index_offset % 4096 == 0, "end mark: sizes")
        index = data[index_offset:]
        header = index[:64]
        demand(header[:8] == b"\x89FDX\r\n\x1a\n", "header: magic")
        demand(header[60:] == mark[48:52] and crc(header[:60]) == struct.unpack_from("<I", header, 60)[0], "header: crc")
        manifest_nbytes, table, count, manifest_crc, table_crc = struct.unpack_from("<QQIII", header, 24)
        demand(struct.unpack_from("<Q", header, 16)[0] == index_nbytes == table + 64 * count + 64, "header: sizes")
        text = index[64 : 64 + manifest_nbytes]
        demand(crc(text) == manifest_crc and manifest_nbytes % 64 == 0, "manifest: crc")
        demand(crc(index[table : table + 64 * count]) == table_crc, "table: crc")
        self.manifest: dict[str, Any] = json.loads(text)
        demand(self.manifest["uid"] == mark[40:48].hex(), "uid")
        self.sections: dict[str, npt.NDArray[Any]] = {}
        end = 64 + manifest_nbytes
        for k in range(count):
            name_, dtype_, axes, want, offset, nbytes, *shape = struct.unpack_from("<24s3sBIQQQII", index, table + 64 * k)
            name, dtype = name_.rstrip(b"\0").decode(), np.dtype(dtype_.decode())
            padded = -(-nbytes // 64) * 64
            demand(offset == end and crc(index[offset : offset + padded]) == want, f"section {name}")
            demand(not any(index[offset + nbytes : offset + padded]), f"section {name}: padding")
            end = offset + padded
            self.sections[name] = np.frombuffer(index[offset : offset + nbytes], dtype).reshape(shape[:axes])
        demand(end == table, "sections do not fill the index")
        self.records = self._read_records(file, data)

    def _read_records(self, file: Path, own: bytes) -> list[bytes]:
        s = self.sections
        records = [b""] * self.manifest["counts"]["records"]
        for number, info in enumerate(self.manifest["files"]):
            data = file.with_name(info["name"]).read_bytes() if info["name"] else own
            demand(len(data) == info.get("file_nbytes", len(data)), "payload file: size")
            at, gaps = 0, b""
            for r in sorted(np.flatnonzero(s["rec_file"] == number).tolist(), key=lambda r: s["rec_offset"][r]):
                start, stop = int(s["rec_offset"][r]), int(s["rec_offset"][r] + s["rec_nbytes"][r])
                demand(at <= start <= stop <= info["payload_nbytes"], f"record {r}: place")
                gaps += data[at:start]
                records[r], at = data[start:stop], stop
                demand(crc(records[r]) == s["rec_crc"][r], f"record {r}: crc")
            gaps += data[at : info["payload_nbytes"]]
            demand(f"{crc(gaps):08x}" == info["gap_crc"], "gaps: crc")
        return records

    def text(self, offsets: str, data: str, i: int) -> str:
        """String i of an offset section and its bytes."""
        first, last = self.sections[offsets][i : i + 2].tolist()
        return self.sections[data][first:last].tobytes().decode("utf-8", "surrogateescape")

    def outline(self, i: int) -> list[npt.NDArray[np.float32]]:
        """The rings of instance i."""
        s = self.sections
        parts = range(s["part_offsets"][i], s["part_offsets"][i + 1])
        return [s["points_px"][s["point_offsets"][p] : s["point_offsets"][p + 1]] for p in parts]
