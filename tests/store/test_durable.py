"""After a power cut: whatever a journal line or a name speaks of has reached the device before it.

A process that is killed loses nothing that it has written; a machine that loses power loses what was not synced. So the calls of
a whole conversion are watched, and at each one that declares something, everything that it declares must have been synced. (Cuts
of a file need not be: whoever continues makes them again.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_kit import BACKENDS, assert_holds, feed, manifest, pictures, place, write_store

from fastdata.store.read import open_store
from fastdata.store.write import StoreWriter


class Device:
    """Which bytes and which names have not reached the device yet."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.bytes: set[Path] = set()
        self.names: set[Path] = set()
        """Folders with names that are not synced."""
        self.declared: list[str] = []
        for name in ("open", "pwritev", "pwrite", "fsync", "rename"):
            monkeypatch.setattr(os, name, self.watched(getattr(self, name), getattr(os, name)))

    @staticmethod
    def watched(look: Callable[..., None], real: Callable[..., Any]) -> Callable[..., Any]:
        """Look at a call, then make it."""

        def call(*args: Any, **more: Any) -> Any:
            look(*args, **more)
            return real(*args, **more)

        return call

    @staticmethod
    def path(fd: int) -> Path:
        """The file of a descriptor."""
        return Path(os.readlink(f"/proc/self/fd/{fd}"))

    def open(self, path: Any, flags: int, *_: Any, **__: Any) -> None:
        """A new name is not synced."""
        if flags & os.O_CREAT and not os.path.exists(path):
            self.names.add(Path(path).parent)

    def pwritev(self, fd: int, buffers: Any, at: int) -> None:
        """Bytes are not synced; a line of the journal declares all others."""
        path = self.path(fd)
        if path.name == "journal":
            line = b"".join(buffers)
            kind = next((k for k in ("begin", "checkpoint", "seal") if b'"kind":"%s"' % k.encode() in line), "?")
            self.declared.append(kind)
            if kind == "checkpoint":
                assert {p.name for p in self.bytes if p.exists()} <= {"lock"}
                assert path.parent not in self.names
            if kind == "seal":
                assert not {p for p in self.bytes if p.name.startswith(("payload", "index"))}
                assert path.parent not in self.names
        else:
            assert not {p for p in self.bytes if p.name == "journal"}
        self.bytes.add(path)

    def pwrite(self, fd: int, data: Any, at: int) -> None:
        """Bytes are not synced."""
        self.bytes.add(self.path(fd))

    def fsync(self, fd: int) -> None:
        """A file, or the names in a folder."""
        self.bytes.discard(self.path(fd))
        self.names.discard(self.path(fd))

    def rename(self, source: Any, place: Any) -> None:
        """A name declares the bytes behind it; the index, all shards."""
        self.declared.append(f"rename {Path(place).suffix}")
        assert Path(source) not in self.bytes
        assert Path(source).parent / "journal" not in self.bytes
        if Path(place).name == "index.fastdata":
            assert Path(place).parent not in self.names
            assert Path(place).parent.parent not in self.names
        self.names.add(Path(place).parent)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_declared_before_it_is_on_the_device(
    backend: str, overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints, the seal, and every rename, over a run of several shards and a continued one."""
    out = place(tmp_path, backend)
    samples = pictures(12, side=30)
    if overwrite:
        write_store(out, samples[:2])
    with monkeypatch.context() as m:
        device = Device(tmp_path, m)
        for part in (samples[:7], samples[7:]):
            with StoreWriter.begin(out, fingerprint="f", keypoints=0, overwrite=overwrite, shard_nbytes=3000) as writer:
                for sample in part:
                    feed(writer, [sample])
                    writer.log(b"x")
                    writer.checkpoint({})
                if len(part) == 5:
                    writer.publish(manifest())
        assert device.declared[:2] == ["begin", "checkpoint"]
        assert device.declared.count("checkpoint") == 12
        assert device.declared.index("seal") == 13
        assert device.declared[-1] == ("rename .lmdb" if backend == "lmdb" else "rename .fastdata")
        assert not {p for p in device.bytes if p.exists() and tmp_path in p.parents}
        assert not {p for p in device.names if p.exists()}
    assert_holds(open_store(out), samples)
