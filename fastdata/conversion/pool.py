"""Worker processes that convert pictures, answered in order, in bounded memory.

Each worker is a fresh interpreter that calls ``worker.serve``: nothing is forked, so threads of the caller do no
harm, and a script without a main guard is not run twice. Jobs go out in blocks; a block owns one slot of a shared buffer from the
moment it is sent until its results have been used.

Invariant: slots in flight + free slots = ``2 * workers``; results come in the order of the jobs, so at most ``2 * workers``
blocks are ever held. A worker that dies ends the run with the names of the pictures it was working on.

Owner: :class:`Pool` owns processes, connections and the buffer; leaving its context ends them all at once.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from fastdata.conversion.worker import LINE_NBYTES, Done, Job, Setup, placed, process, quiet_libraries
from fastdata.errors import FastdataError
from fastdata.sources.scan import RowTable

BUFFER_NBYTES = 256 << 20
"""All slots together: a quarter of the promised peak of 1 GB."""
MAX_BLOCK = 8
"""Pictures a block: the cost of a message is spread over them; more would only hold more memory."""


class WorkerDied(FastdataError, RuntimeError):
    """A worker process ended before it answered."""


class Pool:
    """Convert pictures in ``workers`` processes, or in this one when ``workers`` is 1."""

    def __init__(self, setup: Setup, table: RowTable, workers: int, picture_nbytes: int) -> None:
        """Start the processes.

        Args:
            setup: Shared by all jobs.
            table: Finished rows of the scan.
            workers: Number of processes.
            picture_nbytes: Expected size of one payload; larger ones take a detour through a file.
        """
        self._setup, self._table, self._workers = setup, table, workers
        slots = 2 * workers
        self._block = max(1, min(MAX_BLOCK, BUFFER_NBYTES // (slots * max(picture_nbytes, 1))))
        wanted = max(1, min(self._block * (picture_nbytes + 2 * LINE_NBYTES), BUFFER_NBYTES // slots))
        self._slot_nbytes = -(-wanted // mmap.PAGESIZE) * mmap.PAGESIZE
        self._free = list(range(slots))
        self._memory_fd = _anonymous_file(self._slot_nbytes * slots)
        self._memory = np.frombuffer(mmap.mmap(self._memory_fd, self._slot_nbytes * slots), np.uint8)
        self._lines: dict[Connection, subprocess.Popen[bytes]] = {}
        self._busy: dict[Connection, list[tuple[int, list[Job]]]] = {}
        if workers > 1:
            try:
                for _ in range(workers):
                    self._start()
            except BaseException as err:
                self.__exit__(type(err), err, err.__traceback__)
                raise

    def _start(self) -> None:
        settings, fds = self._table.share()
        ours, theirs = Pipe()
        serve = f"from fastdata.conversion.worker import serve; serve({theirs.fileno()})"
        command = [sys.executable, "-P", "-c", serve]
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)  # the child must find this package the way we did
        worker = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), self._memory_fd, *fds.values()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C goes to the parent alone, which closes the connection
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self._lines[ours] = worker
        self._busy[ours] = []
        try:
            ours.send((self._setup, settings, fds, self._memory_fd))
        except (BrokenPipeError, ConnectionResetError):  # as it is, the command would take it for its own output's end
            raise self._death(ours) from None

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Done, npt.NDArray[np.uint8]]]:
        """Yield each job's result and its payload, in order. A payload is valid until the next one is asked for.

        Raises:
            WorkerDied: A process ended without an answer.
            OSError: The machine ran out of something.
        """
        blocks = enumerate(_batched(jobs, self._block))
        if self._workers == 1:
            quiet_libraries()
            for _, block in blocks:
                for job in block:
                    done = process(self._setup, self._table, job, self._memory, placed(self._setup, 0), self._slot_nbytes)
                    yield done, self._payload(done)
            return
        answered: dict[int, tuple[int, list[Done]]] = {}
        sent: dict[int, int] = {}  # block number → slot
        want, exhausted = 0, False
        while True:
            while not exhausted and self._free:
                number, block = next(blocks, (-1, []))
                if number < 0:
                    exhausted = True
                    break
                slot = self._free.pop()
                sent[number] = slot
                self._send(number, block, slot)
            if want in answered:
                slot, results = answered.pop(want)
                for done in results:
                    yield done, self._payload(done)
                self._free.append(slot)
                want += 1
                continue
            if want not in sent:
                return
            for number, results in self._receive():
                answered[number] = (sent.pop(number), results)

    def one(self, job: Job) -> tuple[Done, npt.NDArray[np.uint8]]:
        """Convert one picture in this process, aside from ``run``."""
        room = np.empty(0, np.uint8)  # nothing fits: the payload takes the detour through a file
        done = process(self._setup, self._table, job, room, 0, 0)
        return done, room if done.spill is None else self._payload(done)

    def _send(self, number: int, block: list[Job], slot: int) -> None:
        line = min(self._busy, key=lambda c: len(self._busy[c]))
        self._busy[line].append((number, block))
        start = slot * self._slot_nbytes
        try:
            line.send((block, start, start + self._slot_nbytes))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(line) from None

    def _receive(self) -> Iterator[tuple[int, list[Done]]]:
        for line in wait(list(self._lines)):
            assert isinstance(line, Connection)
            try:
                answer = line.recv()
            except (EOFError, ConnectionResetError):
                raise self._death(line) from None
            number, _ = self._busy[line].pop(0)
            if isinstance(answer, tuple):
                key, (os_error, trace) = answer
                if os_error is not None:
                    raise OSError(os_error.errno, f"{os_error.strerror} (while converting {key})")
                raise FastdataError(f"{key}: the worker failed; this is a defect of fastdata, please report it:\n{trace}")
            yield number, answer

    def _death(self, line: Connection) -> WorkerDied:
        code = self._lines[line].wait()
        keys = [job.key for _, block in self._busy[line][:1] for job in block]
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        hint = "; out of memory? try fewer --workers" if code == -signal.SIGKILL else ""
        busy = f"while converting one of {keys[0]} ... {keys[-1]}" if keys else "before it had anything to do"
        return WorkerDied(
            f"a worker process must answer, got {how}{hint}, {busy}; run the same command again to continue where it stopped"
        )

    def _payload(self, done: Done) -> npt.NDArray[np.uint8]:
        if done.spill is None:
            return self._memory[done.offset : done.offset + done.nbytes]
        payload = np.fromfile(done.spill, np.uint8)
        os.unlink(done.spill)
        return payload

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for line, worker in self._lines.items():
            line.close()
            if error is not None:
                worker.kill()
        for worker in self._lines.values():
            worker.wait()
        self._lines.clear()
        os.close(self._memory_fd)


def _batched(jobs: Iterable[Job], size: int) -> Iterator[list[Job]]:
    """Cut ``jobs`` into lists of ``size``, the last one shorter."""
    source = iter(jobs)
    while block := list(islice(source, size)):
        yield block


def _anonymous_file(nbytes: int) -> int:
    """Return a descriptor of ``nbytes`` of shared memory that vanishes with its last user.

    Not under /dev/shm: containers give it 64 MB by default.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("fastdata", os.MFD_CLOEXEC)
    else:
        fd, name = tempfile.mkstemp(prefix="fastdata-")
        os.unlink(name)
    os.ftruncate(fd, nbytes)
    return fd
