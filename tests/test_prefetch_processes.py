"""Results made ahead by threads, when a process is forked or ends in the middle."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import training_kit
from loader_kit import WAIT_S, all_threads_end

from fastdata.prefetch import Prefetch

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert all_threads_end()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of fork beside threads, from Python 3.12 on
def test_a_forked_child_goes_on_by_itself_and_so_does_its_parent() -> None:
    """The child has no thread that would make what its copy of the iterator waits for."""
    blocked = threading.Event()
    parent = os.getpid()

    def make(k: int) -> int:
        if k == 2 and os.getpid() == parent:
            assert blocked.wait(WAIT_S)  # in the making when the fork comes
        return k

    ahead = Prefetch(make, 8, 2, 4)
    assert [next(ahead), next(ahead)] == [0, 1]
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if list(ahead) == [2, 3, 4, 5, 6, 7] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    blocked.set()
    assert list(ahead) == [2, 3, 4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("end", ["drop", "forget"])
def test_a_forked_child_can_let_go_of_what_it_inherited(end: str) -> None:
    """Without waiting for threads that it does not have, or for a lock that another thread held at the fork."""
    blocked = threading.Event()
    ahead: Prefetch[bool] | None = Prefetch(lambda k: k == 0 or blocked.wait(WAIT_S), 8, 2, 4)
    assert ahead is not None
    next(ahead)
    assert ahead._pool is not None
    with ahead._pool._shutdown_lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            if end == "drop":
                ahead.drop()
            ahead = None
            gc.collect()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    blocked.set()


PROGRAM = """
import time
from fastdata.prefetch import Prefetch
def make(k):
    time.sleep(0.01)
    return k
ahead = Prefetch(make, 1000, 2, 4)
next(ahead)
{last}
"""

HANDLED = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""What Python does by itself unless it was started in the background."""


BEGUN = """
import threading
ahead.drop()
start = threading.Thread.start
def interrupted(thread):
    start(thread)
    threading.Thread.start = start
    raise KeyboardInterrupt
threading.Thread.start = interrupted
next(ahead)
"""
"""Ctrl-C while the first thread starts, before its pool has noted it; the traceback holds the iterator to the end."""


@pytest.mark.parametrize(
    ("last", "code", "says"),
    [
        ("", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise ValueError('unmet')", 1, "ValueError: unmet\n"),
        ("circle = [ahead]; circle.append(circle); del ahead", 0, ""),
        (f"{HANDLED}; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT, "KeyboardInterrupt\n"),
        (f"{HANDLED}; {BEGUN}", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_a_program_ends_in_the_middle_of_an_iteration(last: str, code: int, says: str) -> None:
    """At once, with its own exit status and nothing said that is not its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(last=last)], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr[-len(says) :] if says else done.stderr) == (code, says)
    assert done.stderr.count("Error") <= 1


FORKED = """
import os, signal, sys, time
import cv2
import numpy as np
import training_kit
from fastdata.dataset import YoloDataset
from fastdata.loader import Loader
from torch.utils.data import DataLoader

def first(way):
    if way == "loader":
        return next(iter(Loader(sys.argv[1], 2, imgsz=32)))
    ds = YoloDataset(sys.argv[1], imgsz=32)
    options = dict(num_workers=1, multiprocessing_context="fork", timeout=20)
    return next(iter(DataLoader(ds, 2, sampler=ds.sampler(), collate_fn=ds.collate_fn, **options)))

first("loader")  # kernels and imports are there
cv2.setNumThreads(4)
cv2.GaussianBlur(np.zeros((2000, 2000, 3), np.uint8), (31, 31), 5)
time.sleep(0.3)  # OpenCV's threads stop looking for work, and sleep
child = os.fork()
if child == 0:
    signal.alarm(30)
    first(sys.argv[2])
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("way", ["loader", "workers"])
def test_a_process_is_forked_after_opencv_has_used_its_threads(way: str, tmp_path: Path) -> None:
    """They do not exist in the child: to tell OpenCV to end them would wait for ever."""
    store = str(training_kit.flat(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, store, way], capture_output=True, text=True, check=False, timeout=120,
        cwd=Path(__file__).parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
