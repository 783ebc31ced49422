"""Decode by OpenCV: from bytes, with its own handling of orientation switched off, and quietly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

_SILENT = 0
_lock = threading.Lock()
_inside = 0
_level_before = 0


def by_opencv(data: bytes, *, deep_bits: int = 0) -> npt.NDArray[np.uint8] | None:
    """Decode a picture.

    Samples of more than 8 bits keep their high byte, alpha is dropped, gray is replicated, CMYK is converted.

    Args:
        data: The file.
        deep_bits: 9 to 16 reads the samples themselves and shifts them down: for TIFF and JPEG 2000 of that depth, whose colour
            reads round, or take every depth for 16. 0 lets OpenCV make 8 bits of them.

    Returns:
        (H, W, 3) RGB as stored (TIFF: upright, OpenCV turns those whatever it is told), or None when OpenCV cannot.
    """
    import cv2

    flags = cv2.IMREAD_UNCHANGED if deep_bits else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        with _quiet():
            found = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    if found is None:
        return None
    samples: npt.NDArray[np.uint8]
    if found.dtype == np.uint16 and deep_bits:
        samples = np.right_shift(np.asarray(found, np.uint16), deep_bits - 8).astype(np.uint8)
    elif found.dtype == np.uint8:
        samples = np.asarray(found, np.uint8)
    else:
        return None
    if samples.ndim == 2:
        samples = samples[:, :, None]
    if samples.shape[2] < 3:
        return np.repeat(samples[:, :, :1], 3, axis=2)
    turn = cv2.COLOR_BGRA2RGB if samples.shape[2] == 4 else cv2.COLOR_BGR2RGB
    return np.asarray(cv2.cvtColor(samples, turn), np.uint8)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep OpenCV from logging what becomes a reported reason anyway; its level is given back when the last thread leaves."""
    import cv2

    global _inside, _level_before
    logging = getattr(cv2.utils, "logging", cv2)  # where OpenCV 5 has it, and where OpenCV 4 has it
    with _lock:
        if _inside == 0:
            _level_before = logging.setLogLevel(_SILENT)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                logging.setLogLevel(_level_before)
