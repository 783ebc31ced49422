"""What is streamed is bit for bit what tiles are, wherever it can be seen, and its memory is used again at the right time."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_kit
import numpy as np
import pytest
import recipe_kit as kit
import torch
import training_kit
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_kit import Group, Slot, Tile

from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.pixels import encode
from fastdata.render import reference
from fastdata.render.tiles import BadRecord, load_tiles
from fastdata.residency import Fetched
from fastdata.residency import stream as module
from fastdata.residency.gather import LINE_NBYTES
from fastdata.residency.stream import Stream
from fastdata.residency.visible import visible_rects
from fastdata.samples import Samples
from fastdata.store.read import Store

CPU = torch.device("cpu")
BUSY = Policy(mosaic=0.8, mosaic9=0.3, mixup=0.5, cutmix=0.5, copy_paste=0.5, degrees=10, perspective=0.0005, flipud=0.5)


class Of:
    """Stands in for samples: a store is all that is asked of them."""

    def __init__(self, store: Store) -> None:
        self.store = store


def stream_of(store: Store, device: torch.device = CPU) -> Stream:
    """A source of one store's records."""
    return Stream(Of(store), device)  # type: ignore[arg-type]


def check(store: Store, recipe: Recipe, fetched: Fetched) -> None:
    """Every visible pixel of every tile is there, bit for bit."""
    rects = visible_rects(recipe)
    tiles = load_tiles(store, recipe)
    assert fetched.where.dtype == np.int64
    assert fetched.where.shape == (len(tiles), 3)
    for tile, rect, (at, plane, line) in zip(tiles, rects.tolist(), fetched.where.tolist(), strict=True):
        x0, y0, x1, y1 = rect
        if x0 == x1:
            assert (at, plane, line) == (0, 0, 0)
            continue
        assert (plane == 0) == (len(tile) == 1)
        assert line >= x1 - x0
        staged = fetched.staged.numpy()
        first = at + y0 * line + x0
        assert 0 <= first <= at + (len(tile) - 1) * plane + (y1 - 1) * line + x1 <= len(staged)
        for channel in range(len(tile)):
            rows = [staged[at + channel * plane + i * line + x0 :][: x1 - x0] for i in range(y0, y1)]
            assert np.array_equal(np.stack(rows), tile[channel, y0:y1, x0:x1])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of the same pictures: of 64 px, and as they were."""
    return {
        name: training_kit.converted(tmp_path_factory.mktemp(name), "segment", 10, imgsz=imgsz)
        for name, imgsz in (("fitted", 64), ("original", None))
    }


@settings(max_examples=25)
@given(
    stored=st.sampled_from([("fitted", 32), ("fitted", 64), ("original", 32), ("original", 64), ("original", 96)]),
    policy=st.sampled_from([Policy(), BUSY, Policy(mosaic=0), Policy(perspective=0.01, degrees=180)]),
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    seed=st.integers(0, 1 << 30),
)
def test_every_visible_pixel_is_that_of_its_tile(
    paths: dict[str, Path], stored: tuple[str, int], policy: Policy, ids: list[int], seed: int
) -> None:
    """Raw records of the tile's size and of others, plans of all kinds, batch after batch in the same memory."""
    samples = Samples(paths[stored[0]], imgsz=stored[1], policy=policy, seed=seed)
    source = Stream(samples, CPU)
    for epoch in range(3):
        recipe = samples.recipe(ids, epoch)
        fetched = source.fetch(recipe)
        check(samples.store, recipe, fetched)
        if fetched.hold:
            fetched.staged[:] = 0xA5
            fetched.hold[0].after(None)


@pytest.mark.parametrize("codec", ["raw", "jpeg", "webp"])
def test_every_codec_colour_gray_and_parts_of_records(codec: str, tmp_path: Path) -> None:
    """More tiles than are decoded at once, of one record several, whole and in part, at several sizes, in any order."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 56, 3) if k % 3 or codec == "webp" else (30, 44), np.uint8) for k in range(50)]
    store = kit.file_store(tmp_path, pictures, codec=codec)
    tiles = []
    for k in rng.permutation(50).tolist() * 2:
        h, w = pictures[k].shape[:2]
        tiles += [
            Tile(k),
            Tile(k, source=(3, 5, w - 2, h - 7)),
            Tile(k, size=(20, 28)),
            Tile(k, source=(1, 1, 9, 9), size=(8, 8)),
        ]
    slots = [Slot([Group([tile], kit.moved(rng.uniform(-20, 20), rng.uniform(-20, 20)))]) for tile in tiles]
    recipe = kit.recipe(store, slots, (32, 32))
    check(store, recipe, stream_of(store).fetch(recipe))


def test_a_record_is_decoded_once_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tiles show it; some records at a time, so that what is decoded does not pile up."""
    rng = np.random.default_rng(1)
    store = kit.file_store(tmp_path, [rng.integers(0, 256, (40, 56, 3), np.uint8) for _ in range(9)], codec="jpeg")
    calls: list[list[int]] = []
    monkeypatch.setattr(module, "DECODED_AT_ONCE", 4)
    monkeypatch.setattr(module, "load_tiles", lambda s, part: (calls.append(part.record.tolist()), load_tiles(s, part))[1])
    recipe = kit.recipe(store, [Slot([Group([Tile(k)])]) for k in [*range(9), 3, 3, 5]], (40, 56))
    check(store, recipe, stream_of(store).fetch(recipe))
    assert calls == [[0, 1, 2, 3, 3, 3], [4, 5, 5], [6, 7, 8]]


def test_a_jpeg_as_long_as_its_pixels_is_not_taken_for_them(tmp_path: Path) -> None:
    """A small picture of noise whose encoding has 3 bytes a pixel."""
    rng = np.random.default_rng(4)
    pictures = (rng.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(2000))
    picture = next(p for p in pictures if len(encode(p, "jpeg", 95)) == p.size)
    store = kit.file_store(tmp_path, [picture], codec="jpeg", quality=95)
    assert store.catalog.rec_nbytes[0] == picture.size
    recipe = kit.one(store, Group([Tile(0)]), out_hw=(32, 32))
    check(store, recipe, stream_of(store).fetch(recipe))


def test_nothing_that_cannot_be_seen_is_read(tmp_path: Path) -> None:
    """A tile beyond the output may be damaged; a batch that shows nothing needs no memory."""
    store = damaged(tmp_path, "raw")
    source = stream_of(store)
    recipe = kit.one(store, Group([Tile(0), Tile(1, origin=(50, 0))]), out_hw=(30, 40))
    fetched = source.fetch(recipe)
    assert fetched.where[1].tolist() == [0, 0, 0]
    assert len(fetched.staged) < 2 * 3 * 30 * LINE_NBYTES
    for empty in (kit.recipe(store, [], (8, 8)), kit.one(store, Group([Tile(1)], kit.moved(99, 0)), out_hw=(8, 8))):
        fetched = source.fetch(empty)
        assert fetched.staged is None
        assert not fetched.where.any()


def damaged(folder: Path, codec: str) -> Store:
    """A store of three pictures, the second of which has a flipped bit."""
    rng = np.random.default_rng(2)
    kit.file_store(folder, [rng.integers(0, 256, (30, 40, 3), np.uint8) for _ in range(3)], codec=codec).close()
    training_kit.damage(folder / "made.lmdb", 1)
    return kit.fastdata.open_store(folder / "made.lmdb")


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_a_damaged_record_is_named_with_its_picture(codec: str, tmp_path: Path) -> None:
    """Each time, exactly as the processor's renderers name it; the memory comes back, and the next batch is right."""
    store = damaged(tmp_path, codec)
    source = stream_of(store)
    bad = kit.one(store, Group([Tile(0), Tile(1), Tile(2)]), out_hw=(30, 40))
    with pytest.raises(BadRecord) as theirs:
        load_tiles(store, bad)
    for _ in range(2):
        with pytest.raises(BadRecord, match=r"^00000001: entry 1, record 1 of .*made\.lmdb: .*must have CRC32C") as ours:
            source.fetch(bad)
        assert (str(ours.value), ours.value.entry, ours.value.record) == (str(theirs.value), 1, 1)
    good = kit.one(store, Group([Tile(0), Tile(2)]), out_hw=(30, 40))
    del ours
    gc.collect()
    assert (source._ring.nbytes > 0) == (codec == "jpeg")  # a raw one is looked at before any memory is taken
    check(store, good, source.fetch(good))
    assert source.nbytes_host < 3 * 2 * 3 * 30 * LINE_NBYTES


def test_several_threads_fetch_at_once(paths: dict[str, Path]) -> None:
    """Each its own batch, while the others give memory back and take it again."""
    samples = Samples(paths["original"], imgsz=64, policy=BUSY)
    source = Stream(samples, CPU)

    def work(thread: int) -> None:
        for k in range(12):
            recipe = samples.recipe(range(5), epoch=100 * thread + k)
            fetched = source.fetch(recipe)
            check(samples.store, recipe, fetched)
            fetched.staged[:] = 0xA5
            fetched.hold[0].after(None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_batch_outlives_its_store(tmp_path: Path) -> None:
    """What is fetched is a copy, and what it is copied from is alive until then."""
    rng = np.random.default_rng(3)
    store = kit.file_store(tmp_path, [rng.integers(0, 256, (30, 40, 3), np.uint8)])
    recipe = kit.one(store, Group([Tile(0)]), out_hw=(30, 40))
    fetched = stream_of(store).fetch(recipe)
    store.close()
    gc.collect()
    check(kit.fastdata.open_store(tmp_path / "made.lmdb"), recipe, fetched)


def test_a_drawing_shows_none_of_what_was_not_gathered(paths: dict[str, Path]) -> None:
    """The reference draws the same from tiles that are poison wherever nothing was copied."""
    samples = Samples(paths["fitted"], imgsz=64, policy=BUSY)
    source = Stream(samples, CPU)
    for epoch in range(4):
        recipe = samples.recipe(range(8), epoch)
        fetched = source.fetch(recipe)
        tiles = []
        for tile, (x0, y0, x1, y1), (at, plane, line) in zip(
            load_tiles(samples.store, recipe), visible_rects(recipe).tolist(), fetched.where.tolist(), strict=True
        ):
            there = np.full((3, *tile.shape[1:]), 0xA5, np.uint8)
            for channel, i in np.ndindex(3, y1 - y0):
                first = at + channel * plane + (y0 + i) * line + x0
                there[channel, y0 + i, x0:x1] = fetched.staged.numpy()[first : first + x1 - x0]
            tiles.append(there)
        for slot in range(len(recipe)):
            want = reference._painted(recipe, load_tiles(samples.store, recipe), slot)
            assert np.array_equal(reference._painted(recipe, tiles, slot), want)


@pytest.mark.gpu
def test_page_locked_memory_is_copied_while_the_program_goes_on(paths: dict[str, Path]) -> None:
    """On the GPU: buffers are pinned, used again after their events, and every batch arrives whole."""
    device = gpu_kit.needs_cuda()
    samples = Samples(paths["original"], imgsz=64, policy=BUSY)
    source = Stream(samples, device)
    side = torch.cuda.Stream(device)
    kept = []
    for epoch in range(20):
        recipe = samples.recipe(range(10), epoch)
        fetched = source.fetch(recipe)
        assert fetched.staged.is_pinned()
        with torch.cuda.stream(side):
            arrived = fetched.staged.to(device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(side)
        fetched.hold[0].after(event)
        kept.append((recipe, fetched.where, arrived))
    side.synchronize()
    for recipe, where, arrived in kept:
        check(samples.store, recipe, Fetched(where, arrived.cpu()))
    assert source.nbytes_host <= 2 * 2 * max(len(arrived) for _, _, arrived in kept)
    source.close()
    assert source.nbytes_host == 0
