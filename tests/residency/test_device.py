"""Every picture in GPU memory, bit for bit what a renderer loads; and what becomes of that memory when something is wrong."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import residency_kit as kit
import torch
import training_kit
from gpu_kit import needs_cuda

from fastdata import terminal
from fastdata.errors import UsageError
from fastdata.render.tiles import BadRecord
from fastdata.residency import device as module
from fastdata.residency import upload
from fastdata.residency.budget import DoesNotFit, gpu_memory
from fastdata.residency.device import Device


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks of several blocks each, also of few and small pictures."""
    monkeypatch.setattr(module, "CHUNK_NBYTES", 60_000)
    monkeypatch.setattr(upload, "BLOCK_NBYTES", 25_000)


@pytest.mark.parametrize("imgsz", kit.IMGSZ)
@pytest.mark.parametrize("kind", kit.KINDS)
def test_every_tile_is_what_a_renderer_loads(kind: str, imgsz: int, tmp_path: Path, small: None) -> None:
    """Of training and validation; raw, coded, gray, parts of a record, resized."""
    path = kit.stored(tmp_path, kind)
    for samples in kit.trained(path, imgsz), kit.validated(path, imgsz):
        source = Device(samples, kit.CPU, progress=False, threads=3)
        assert kit.agree(source, samples) >= len(samples)
        assert source.nbytes_host == 0
        source.close()


def test_memory_comes_in_chunks_and_its_size_is_told(tmp_path: Path, small: None) -> None:
    """As many bytes as there are, slack included."""
    samples = kit.trained(kit.stored(tmp_path), 96)
    source = Device(samples, kit.CPU, progress=False)
    recipe = samples.recipe([0])
    chunks = source.fetch(recipe).hold
    assert len(chunks) > 2
    assert source.nbytes_device == sum(chunk.numel() for chunk in chunks)
    assert source.nbytes_device < 1.01 * 175_680 + 1000


def test_pictures_can_be_uploaded_in_inference_mode_and_with_another_default_device(tmp_path: Path, small: None) -> None:
    """A validation makes its loader's first batch there; other threads write to the memory, which are in no mode."""
    samples = kit.trained(kit.stored(tmp_path))
    with torch.inference_mode(), torch.device("meta"):
        source = Device(samples, kit.CPU, progress=False, threads=2)
    assert not any(chunk.is_inference() for chunk in source.fetch(samples.recipe([0])).hold)
    assert kit.agree(source, samples) >= len(samples)


def test_recipes_are_looked_up_by_several_threads_at_once(tmp_path: Path) -> None:
    """Each gets its own."""
    samples = kit.trained(kit.stored(tmp_path))
    source = Device(samples, kit.CPU, progress=False)
    recipes = [samples.recipe(np.arange(6), epoch) for epoch in range(40)]
    right = [source.fetch(recipe).where for recipe in recipes]
    with ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(lambda recipe: source.fetch(recipe).where, recipes * 5), right * 5, strict=True):
            assert np.array_equal(got, want)


def test_a_tile_of_which_nothing_is_seen_has_a_row_of_zeros(tmp_path: Path) -> None:
    """And only such a tile."""
    samples = kit.trained(kit.stored(tmp_path))
    source = Device(samples, kit.CPU, progress=False)
    hidden = 0
    for epoch in range(20):
        recipe = samples.recipe(np.arange(9), epoch)
        x0, y0, x1, y1 = recipe.visible_xyxy.T
        is_hidden = (x0 >= x1) | (y0 >= y1)
        assert np.array_equal((source.fetch(recipe).where == 0).all(axis=1), is_hidden)
        hidden += int(is_hidden.sum())
    assert hidden
    flat = recipe.visible_xyxy.copy()
    flat[:3, 2:] = flat[:3, :2] + [[5, 0], [0, 5], [5, 5]]
    where = source.fetch(replace(recipe, visible_xyxy=flat)).where
    assert (where[:3, 0] != 0).tolist() == [False, False, True]


def test_progress_is_shown_if_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Without a terminal as lines."""
    monkeypatch.setattr(terminal, "QUIET_EVERY_S", -1.0)
    monkeypatch.setattr(upload, "TOLD_EVERY_S", -1.0)
    samples = kit.trained(kit.stored(tmp_path))
    Device(samples, kit.CPU, progress=False)
    assert capsys.readouterr().err == ""
    Device(samples, kit.CPU)
    assert "uploading: 9 of 9 images" in capsys.readouterr().err


# Damage


def test_a_damaged_record_is_named_and_nothing_is_kept(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory, no thread; and a validation is never made without a picture."""
    path = kit.stored(tmp_path)
    training_kit.damage(path, 5)
    chunks = _watched(monkeypatch)
    for samples in kit.trained(path), kit.validated(path, on_bad="replan"):
        with pytest.raises(BadRecord, match=r"^005-0\.png: entry 5, record 5 .*CRC32C"):
            Device(samples, kit.CPU, progress=False, threads=3)
        assert samples.bad == set()
    gc.collect()
    assert chunks
    assert [chunk for chunk in chunks if chunk() is not None] == []
    assert kit.threads_end()


@pytest.mark.parametrize("kind", ["raw", "parts"])
def test_a_damaged_record_is_left_out_where_samples_are_planned_without_it(kind: str, tmp_path: Path, small: None) -> None:
    """All entries that show it are known to be bad, and what was planned before is told so."""
    path = kit.stored(tmp_path, kind)
    samples, innocent = (kit.trained(path, on_bad=on_bad) for on_bad in ("replan", "raise"))
    bad = {5} if kind == "raw" else set(range(5, 10))  # record 1
    training_kit.damage(path, 5)
    early = innocent.recipe([5])
    source = Device(samples, kit.CPU, progress=False, threads=3)
    assert samples.bad == bad
    assert kit.agree(source, samples)
    key = "005-0" if kind == "raw" else "001-0"
    with pytest.raises(BadRecord, match=rf"^{key}\.png: entry 5, record . of .*CRC32C") as caught:
        source.fetch(early)
    assert caught.value.entry == 5


def test_a_record_that_is_no_picture_is_met_when_it_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by any renderer: its checksum is right, so a pick of which nothing is seen does no harm."""
    path = kit.stored(tmp_path, "jpeg")
    monkeypatch.setattr("fastdata.store.read.Store._compare", lambda self, r: None)
    training_kit.damage(path, 4)  # the first bytes: no JPEG any more
    samples = kit.trained(path, on_bad="replan")
    source = Device(samples, kit.CPU, progress=False)
    assert samples.bad == set()
    with pytest.raises(BadRecord, match=r"^004-0\.png: entry 4, record 4 of .*a jpeg payload must"):
        source.fetch(kit.validated(path).recipe([kit.validated(path).entries.tolist().index(4)]))
    recipe, _ = samples.planned([4], 0, 0, source.fetch)
    assert samples.bad == {4}
    assert 4 not in recipe.tile_entry


# Memory


def _watched(monkeypatch: pytest.MonkeyPatch, fail_at: int = -1) -> list[weakref.ref[Any]]:
    """References to every chunk that is made; the one of number ``fail_at`` does not fit."""
    chunks: list[weakref.ref[Any]] = []
    right = module._Arena.allocate

    def allocate(self: Any, sizes: Any) -> None:
        real = torch.empty

        def empty(*args: Any, **options: Any) -> Any:
            if len(chunks) == fail_at:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.\nMore lines")
            chunk = real(*args, **options)
            chunks.append(weakref.ref(chunk))
            return chunk

        monkeypatch.setattr(torch, "empty", empty)
        try:
            right(self, sizes)
        finally:
            monkeypatch.setattr(torch, "empty", real)

    monkeypatch.setattr(module._Arena, "allocate", allocate)
    return chunks


def test_too_little_memory_is_said_before_anything_is_read(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had been taken is given back."""
    samples = kit.trained(kit.stored(tmp_path), 96)
    chunks = _watched(monkeypatch, fail_at=2)
    monkeypatch.setattr(module, "fill", lambda *a, **o: pytest.fail("nothing may be read"))
    with pytest.raises(DoesNotFit, match=r"^0\.0 GB of pictures must fit in the memory of cpu, got: CUDA out of .* 1\.00 GiB\.$"):
        Device(samples, kit.CPU, progress=False)
    gc.collect()
    assert len(chunks) == 2
    assert [chunk for chunk in chunks if chunk() is not None] == []


def test_closing_lets_the_memory_go_when_no_batch_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice does no harm, and afterwards nothing is fetched."""
    samples = kit.trained(kit.stored(tmp_path))
    chunks = _watched(monkeypatch)
    source = Device(samples, kit.CPU, progress=False)
    fetched = source.fetch(samples.recipe([0]))
    source.close()
    source.close()
    assert source.nbytes_device == 0
    assert all(chunk() is not None for chunk in chunks)
    del fetched
    assert [chunk for chunk in chunks if chunk() is not None] == []
    with pytest.raises(UsageError, match=r"^the source must be open"):
        source.fetch(samples.recipe([0]))


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kind", kit.KINDS)
def test_what_is_in_gpu_memory_is_what_a_renderer_loads(kind: str, tmp_path: Path, small: None) -> None:
    """Read back, also when nothing has been waited for but the upload."""
    device = needs_cuda()
    path = kit.stored(tmp_path, kind, images=40)
    for samples in kit.trained(path, 96), kit.validated(path):
        source = Device(samples, device, progress=False, threads=4)
        assert kit.agree(source, samples, device) >= len(samples)
        source.close()


@pytest.mark.gpu
def test_the_gpus_memory_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the driver, not only to PyTorch: 147 MB."""
    device = needs_cuda()
    monkeypatch.setattr(module, "CHUNK_NBYTES", 16 << 20)
    samples = kit.trained(kit.stored(tmp_path, images=40), 1280)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    source = Device(samples, device, progress=False)
    assert torch.cuda.memory_reserved(device) - before >= source.nbytes_device > 100e6
    source.close()
    assert torch.cuda.memory_reserved(device) == before


@pytest.mark.gpu
def test_under_a_limit_the_pictures_do_not_fit_and_all_memory_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some chunks fit, all do not; with the limit raised they do."""
    device = needs_cuda()
    monkeypatch.setattr(module, "CHUNK_NBYTES", 16 << 20)
    samples = kit.trained(kit.stored(tmp_path, images=40), 1280)
    torch.cuda.empty_cache()
    before, total = torch.cuda.memory_reserved(device), torch.cuda.mem_get_info(device)[1]
    torch.cuda.set_per_process_memory_fraction((before + (64 << 20)) / total, device)
    try:
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            capped = gpu_memory(device)
            assert abs(capped.total - before - (64 << 20)) < 1 << 20
            assert capped.free <= 64 << 20
        with pytest.raises(DoesNotFit, match=r"of pictures must fit in the memory of cuda:0, got: CUDA out of memory"):
            Device(samples, device, progress=False)
        assert torch.cuda.memory_reserved(device) == before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    source = Device(samples, torch.device("cuda"), progress=False)
    assert kit.agree(source, samples, device)
    source.close()
