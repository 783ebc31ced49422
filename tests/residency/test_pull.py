"""What can be seen of a batch's tiles is brought to the GPU, and drawn from there as from where it was."""

from __future__ import annotations

import gpu_kit
import numpy as np
import pytest
from case_kit import case

from fastdata.render import cuda
from fastdata.render.tiles import load_tiles
from fastdata.residency.pull import PULLED_NBYTES, plan_copy, pull


def test_a_copy_has_every_visible_pixel_and_nothing_overlaps() -> None:
    """By copying as the table says, piece by piece, in NumPy."""
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, 400_000, np.uint8)
    where, rects, at = [], [], PULLED_NBYTES
    for _ in range(40):
        h, w, gray = int(rng.integers(1, 30)), int(rng.integers(1, 40)), bool(rng.random() < 0.3)
        line = -(-w // PULLED_NBYTES) * PULLED_NBYTES
        where.append((at, 0 if gray else h * line, line))
        x, y = np.sort(rng.integers(0, w + 1, 2)), np.sort(rng.integers(0, h + 1, 2))
        rects.append((x[0], y[0], x[1], y[1]))
        at += h * line * 3
    table, found, nbytes = plan_copy(np.array(where, np.int64), np.array(rects, np.int64))
    copy = np.full(nbytes, 7, np.uint8)
    written = np.zeros(nbytes, int)
    for source, plane, line, target, copy_plane, length, rows in table.tolist():
        for c in range(1 if plane == 0 else 3):
            for y in range(rows):
                a, b = 16 * (source + c * plane + y * line), 16 * (target + c * copy_plane + y * length)
                copy[b : b + 16 * length] = memory[a : a + 16 * length]
                written[b : b + 16 * length] += 1
    assert (written == 1).all()
    for (address, plane, line), (there, there_plane, there_line), (x0, y0, x1, y1) in zip(
        where, found.tolist(), rects, strict=True
    ):
        for c in range(3):
            for y in range(y0, y1):
                for x in range(x0, x1):
                    assert copy[there + c * there_plane + y * there_line + x] == memory[address + c * plane + y * line + x]


@pytest.mark.parametrize("kind", ["upright", "perspective"])
def test_what_is_drawn_is_the_same(kind: str) -> None:
    """With noise around what was copied."""
    device = gpu_kit.any_device()
    for seed in range(200 if device.type == "cuda" else 1):
        store, recipe = case(seed, kind, largest=120 if device.type == "cuda" else 20)
        tiles = [np.pad(t, ((0, 0), (0, 0), (0, -t.shape[2] % PULLED_NBYTES))) for t in load_tiles(store, recipe)]
        where, kept = gpu_kit.placed(tiles, device)
        assert not (where[:, 0] % PULLED_NBYTES).any()
        want = cuda.render(recipe, where, device=device)
        fetched = pull(recipe, where, device)
        got = cuda.render(recipe, fetched.where, device=device)
        assert (got == want).all()
        del kept
