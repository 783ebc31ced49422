"""One picture through the conversion: file → decode → settle labels → resize → payload and its checksum.

``process`` is a pure function of the files and the job but for the buffer that it fills. It runs in worker processes (``serve``,
see pool.py) or, for small sets, in the converting process itself: the same function, so the same bytes.

A payload goes straight into the shared buffer at the job's offset (planes are split into it, nothing is copied twice); one that
does not fit there goes into a file beside the store, and its path comes back.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastdata.checksum import crc32c
from fastdata.images import Decoded, Refused, decode_image
from fastdata.labels import Instances
from fastdata.pixels import encode, fitted_size, is_original_jpeg, resize, to_planar
from fastdata.problems import Problem, Skip
from fastdata.settle import scaled, settle
from fastdata.sources.files import open_regular
from fastdata.sources.scan import RowTable

Encoding = Literal["raw", "jpeg", "webp"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What all jobs of a conversion share."""

    imgsz: int | None
    codec: Literal["raw", "jpeg", "webp", "original"]
    quality: int
    resample: Literal["trainer", "area"]
    decoder: Literal["simplejpeg", "turbojpeg", "opencv"]
    max_pixels: int
    allow_truncated: bool
    spill_folder: str
    """Where payloads go that do not fit into the shared buffer."""
    phase: int = 0
    """Where in a line of :data:`LINE_NBYTES` a payload begins in the store, and so in the buffer: see ``placed``."""


LINE_NBYTES = 64
"""A cache line."""


def placed(setup: Setup, offset: int) -> int:
    """Return the first place from ``offset`` on where a payload may begin in the buffer.

    Behind the header of an LMDB page it begins 16 bytes into a line. Copying it there from the beginning of a line costs an
    AMD EPYC 0.25 ms more for 0.9 MB than from the same place in one, two thirds of the whole write.
    """
    return -(-(offset - setup.phase) // LINE_NBYTES) * LINE_NBYTES + setup.phase


@dataclass(frozen=True, slots=True)
class Job:
    """One picture to convert."""

    index: int
    """Its row in the scan."""
    key: str
    path: str
    label_file: str
    """Name of its label file, for reports."""


@dataclass(slots=True)
class Done:
    """One picture converted, or the reason why not."""

    index: int
    skip: Skip | None = None
    encoding: Encoding = "raw"
    size_hw: tuple[int, int] = (0, 0)
    """Of the stored picture."""
    original_hw: tuple[int, int] = (0, 0)
    """Of the upright picture in the source."""
    crc32c: int = 0
    offset: int = 0
    """Of the payload in the shared buffer."""
    nbytes: int = 0
    spill: str | None = None
    """File that holds the payload instead of the buffer."""
    instances: Instances | None = None
    problems: tuple[Problem, ...] = ()
    recoded: bool = False
    """Codec original: the published bytes could not be kept, so the picture was encoded anew."""


def process(setup: Setup, table: RowTable, job: Job, buffer: npt.NDArray[np.uint8], offset: int, limit: int) -> Done:
    """Convert one picture.

    Args:
        setup: Shared by all jobs.
        table: The label rows of the scan.
        job: The picture.
        buffer: Shared bytes.
        offset: Where the payload may start in ``buffer``.
        limit: Where it must end at the latest.

    Raises:
        OSError: Out of file descriptors or memory: not the picture's fault, so the run must stop.
    """
    try:
        with open(open_regular(job.path), "rb", buffering=0) as file:
            data = file.readall()
    except OSError as err:
        return Done(job.index, skip=_unreadable(job, err))
    picture = decode_image(data, max_pixels=setup.max_pixels, jpeg=setup.decoder, allow_truncated=setup.allow_truncated)
    if isinstance(picture, Refused):
        return Done(job.index, skip=Skip(job.key, picture.reason, picture.detail))

    original_hw = (picture.rgb.shape[0], picture.rgb.shape[1])
    instances, problems = settle(table.rows(job.index, file=job.label_file), original_hw, key=job.key)
    notes = [Problem(job.key, kind, "noted", detail, image=job.key) for kind, detail in picture.notes]
    done = Done(job.index, original_hw=original_hw, size_hw=original_hw, problems=tuple(notes + problems), offset=offset)
    if setup.codec == "original":
        payload = _original(setup, data, picture, done)
    else:
        rgb = picture.rgb
        if setup.imgsz is not None:
            done.size_hw = fitted_size(original_hw, setup.imgsz)
            rgb = resize(rgb, done.size_hw, setup.resample)
        done.encoding = setup.codec
        if setup.codec == "raw":
            payload = _planes(rgb, buffer, offset, limit)
        else:
            payload = np.frombuffer(encode(rgb, setup.codec, setup.quality), np.uint8)
    done.instances = scaled(instances, original_hw, done.size_hw)
    done.nbytes = len(payload)
    done.crc32c = crc32c(payload)
    if not np.shares_memory(payload, buffer):
        if offset + len(payload) <= limit:
            buffer[offset : offset + len(payload)] = payload
        else:
            done.spill = os.path.join(setup.spill_folder, f"spill-{job.index}")
            Path(done.spill).write_bytes(payload.data)
    return done


def _planes(rgb: npt.NDArray[np.uint8], buffer: npt.NDArray[np.uint8], offset: int, limit: int) -> npt.NDArray[np.uint8]:
    """Split ``rgb`` (H, W, 3) into planes, in the shared buffer if they fit."""
    room = buffer[offset : offset + rgb.size] if offset + rgb.size <= limit else np.empty(rgb.size, np.uint8)
    to_planar(rgb, out=room)
    return room


def _original(setup: Setup, data: bytes, picture: Decoded, done: Done) -> npt.NDArray[np.uint8]:
    """Keep the published bytes of an upright 8-bit JPEG; encode anything else as JPEG at its own size."""
    done.encoding = "jpeg"
    if is_original_jpeg(data):
        return np.frombuffer(data, np.uint8)
    done.recoded = True
    return np.frombuffer(encode(picture.rgb, "jpeg", setup.quality), np.uint8)


def _unreadable(job: Job, err: OSError) -> Skip:
    """Tell a missing or forbidden file from a machine that is out of something."""
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        return Skip(job.key, "not-found", "no such file")
    if err.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise err
    return Skip(job.key, "unreadable", err.strerror or str(err))


def quiet_libraries() -> None:
    """One thread per process: as many processes run as there are cores."""
    import cv2

    cv2.setNumThreads(1)


def serve(fd: int) -> None:
    """Answer jobs over a connection until it closes: ``(jobs, offset, limit)`` in, ``list[Done]`` or an exception out."""
    import mmap
    from multiprocessing.connection import Connection

    quiet_libraries()
    with Connection(fd) as line:
        try:
            setup, settings, fds, buffer_fd = line.recv()
            table = RowTable.reopen(settings, fds)
            buffer = np.frombuffer(mmap.mmap(buffer_fd, 0), np.uint8)
            while True:
                jobs, offset, limit = line.recv()
                line.send(_answer(setup, table, jobs, buffer, offset, limit))
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return  # the parent is done, or gone


def _answer(
    setup: Setup, table: RowTable, jobs: list[Job], buffer: npt.NDArray[np.uint8], offset: int, limit: int
) -> list[Done] | tuple[str, Any]:
    out: list[Done] = []
    for job in jobs:
        offset = placed(setup, offset)
        try:
            done = process(setup, table, job, buffer, offset, limit)
        except Exception as err:  # anything: it must reach the user with the picture's name, not die in a worker
            import traceback

            return job.key, (err if isinstance(err, OSError) else None, traceback.format_exc())
        out.append(done)
        if done.skip is None and done.spill is None:
            offset += done.nbytes
    return out
