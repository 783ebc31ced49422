"""Pictures that more than one split lists: each is stored once, with one entry per split.

Published sets do that on purpose (train and val of the same folder, to try a training out) and by accident.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from fastdata.sources.scan import Scan


def in_order(scan: Scan) -> npt.NDArray[np.int64]:
    """Return the images in the order in which they are stored: split by split, and as listed within one."""
    return np.argsort(scan.split, kind="stable")


def shown_again(scan: Scan, order: npt.NDArray[np.int64]) -> dict[int, int]:
    """Map each image whose file an earlier one shows to the first image with that file.

    Args:
        scan: N images.
        order: (N,) their order.
    """
    if len(scan.splits) < 2:
        return {}
    digests = np.array([_hash64(scan.paths[int(i)]) for i in order], np.uint64)
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(order)))
    pairs = ((int(order[k]), int(order[first[inverse[k]]])) for k in again)
    return {image: earlier for image, earlier in pairs if scan.paths[image] == scan.paths[earlier]}


def _hash64(text: str) -> int:
    """Return 64 bits that stand for a text where a million texts would need too much memory; the texts decide."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
