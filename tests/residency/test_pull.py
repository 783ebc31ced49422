"""What can be seen of a batch's tiles is brought to the GPU, and drawn from there as from where it was."""

from __future__ import annotations

import gpu_kit
import numpy as np
import pytest
from case_kit import case

from fastdata.render import cuda
from fastdata.render.tiles import load_tiles
from fastdata.residency.pull import SLACK, plan_copy, pull
from fastdata.residency.visible import visible_rects


def test_a_copy_has_every_visible_pixel_and_nothing_overlaps() -> None:
    """By copying as the table says, word by word, in NumPy."""
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, 200_000, np.uint8)
    where, rects, at = [], [], SLACK
    for _ in range(40):
        h, w, gray = int(rng.integers(1, 30)), int(rng.integers(1, 40)), bool(rng.random() < 0.3)
        where.append((at, 0 if gray else h * w, w))
        x, y = np.sort(rng.integers(0, w + 1, 2)), np.sort(rng.integers(0, h + 1, 2))
        rects.append((x[0], y[0], x[1], y[1]))
        at += h * w * 3 + int(rng.integers(0, 9))
    table, found, nbytes = plan_copy(np.array(where, np.int64), np.array(rects, np.int64))
    copy = np.full(nbytes, 7, np.uint8)
    written = np.zeros(nbytes, int)
    for source, plane, line, target, copy_plane, copy_line, words, rows in table.tolist():
        for c in range(1 if plane == 0 else 3):
            for y in range(rows):
                a, b = (source + c * plane + y * line) // 4 * 4, (target + c * copy_plane + y * copy_line) // 4 * 4
                copy[b : b + 4 * words] = memory[a : a + 4 * words]
                written[b : b + 4 * words] += 1
    assert written.max() == 1
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
        where, kept = gpu_kit.placed([np.pad(t, ((0, 0), (1, 1), (4, 4))) for t in load_tiles(store, recipe)], device)
        where[:, 0] += np.where(where[:, 2] > 0, where[:, 2] + 4, 0)
        where[(visible_rects(recipe)[:, 2] == 0), :] = 0
        want = cuda.render(recipe, where, device=device)
        fetched = pull(recipe, where, device)
        got = cuda.render(recipe, fetched.where, device=device)
        assert (got == want).all()
        del kept
