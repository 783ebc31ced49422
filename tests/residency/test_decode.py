"""What the GPU decodes is what the processor decodes, once, and with every picture accounted for.

In ordinary memory torchvision's own libjpeg-turbo stands in for nvJPEG, so all but nvJPEG is tested everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipe_kit as kit
import simplejpeg
import torch
import training_kit
from decode_kit import CPU, FileStore, agree, damaged, expected, jpeg, read, recipe_of, smooth, source_of, stored
from recipe_kit import Tile

import fastdata
from fastdata.augment.order import epoch_order
from fastdata.augment.policy import Policy
from fastdata.pixels import encode
from fastdata.prefetch import Prefetch
from fastdata.render.tiles import BadRecord, load_tiles
from fastdata.residency import decode as module
from fastdata.residency.decode import HALF_CHROMA, Decode, unavailable
from fastdata.samples import Samples


def test_tiles_are_those_of_every_other_residency(tmp_path: Path) -> None:
    """Whole, in part, resized, seen twice, not seen at all; and a batch without any tile."""
    store = kit.file_store(tmp_path, [smooth(40, 56, s) for s in range(4)], codec="jpeg", quality=95)
    recipe = recipe_of(
        store,
        Tile(2),
        Tile(0, source=(3, 4, 20, 19)),
        Tile(1, visible=(4, 4, 4, 9)),
        Tile(2, size=(20, 28)),
        Tile(2),
        Tile(3, source=(3, 4, 20, 19), size=(9, 9)),
    )
    source = source_of(store)
    agree(source, store, recipe)
    assert (source.decoded, source.by_processor) == (4, 2)
    assert source.fetch(recipe_of(store)).where.shape == (0, 3)


def test_a_gray_picture_is_one_plane_for_three_channels(tmp_path: Path) -> None:
    """Also one that its record counts as three."""
    gray = np.ascontiguousarray(smooth(30, 40)[:, :, 0])
    store = kit.file_store(tmp_path, [gray, smooth(30, 40, 1)], codec="jpeg")
    recipe = recipe_of(store, Tile(0), Tile(1), Tile(0, size=(15, 20)))
    assert source_of(store).fetch(recipe).where[:, 1].tolist() == [0, 1200, 0]
    agree(source_of(store), store, recipe)
    kind, data, hw, _ = jpeg(gray)
    as_three = FileStore((kind, data, hw, 3))
    agree(source_of(as_three), as_three, recipe_of(as_three, Tile(0)))


@pytest.mark.parametrize(
    ("options", "by_processor"),
    [
        ({"quality": 95, "subsampling": 0}, 0),
        ({"quality": 80, "subsampling": 2}, 0),
        ({"progressive": True}, 1),
        ({"keep_rgb": True}, 1),
    ],
    ids=["444", "420", "progressive", "rgb"],
)
def test_what_the_gpu_would_decode_badly_is_decoded_by_the_processor(options: dict[str, Any], by_processor: int) -> None:
    """Bit for bit the same either way here."""
    store = FileStore(jpeg(smooth(40, 56), **options))
    source = source_of(store)
    agree(source, store, recipe_of(store, Tile(0)))
    assert (source.decoded, source.by_processor) == (1, by_processor)


def test_other_codecs_in_the_store_are_decoded_by_the_processor() -> None:
    """Only the part that is shown of a raw one."""
    raw = smooth(40, 56, 1)
    webp = encode(smooth(32, 24, 2), "webp", 90).tobytes()
    store = FileStore(jpeg(smooth(40, 56)), ("raw", raw.transpose(2, 0, 1).tobytes(), (40, 56), 3), ("webp", webp, (32, 24), 3))
    source = source_of(store)
    recipe = recipe_of(store, Tile(0), Tile(1, source=(3, 4, 20, 19)), Tile(2))
    agree(source, store, recipe)
    assert (source.decoded, source.by_processor) == (3, 2)
    assert sum(picture.nbytes for picture in source.fetch(recipe).hold) == 3 * (40 * 56 + 15 * 17 + 32 * 24)


def refusing(monkeypatch: pytest.MonkeyPatch, refused: bytes, message: str = "Error while decoding: 3") -> list[int]:
    """Make the decoder fail on a file; return how many files each of its calls has."""
    calls: list[int] = []
    right = module.decode_jpegs

    def decode(payloads: list[Any], planes: int, device: Any) -> list[Any]:
        calls.append(len(payloads))
        if any(payload.numpy().tobytes() == refused for payload in payloads):
            raise RuntimeError(message)
        return right(payloads, planes, device)

    monkeypatch.setattr(module, "decode_jpegs", decode)
    return calls


def test_a_picture_that_the_decoder_refuses_costs_the_batch_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are decoded one by one, it is decoded by the processor, and is never handed to the decoder again."""
    files = [jpeg(smooth(40, 56, s)) for s in range(3)]
    store = FileStore(*files)
    calls = refusing(monkeypatch, files[1][1])
    source = source_of(store)
    recipe = recipe_of(store, *map(Tile, range(3)))
    agree(source, store, recipe)
    assert calls == [3, 1, 1, 1]
    assert (source.decoded, source.by_processor) == (3, 1)
    agree(source, store, recipe)
    assert calls == [3, 1, 1, 1, 2]


@pytest.mark.parametrize("wrong", [(3, 40, 55), (1, 40, 56)])
def test_a_picture_of_another_shape_is_not_believed(wrong: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor decides what the record holds."""
    store = FileStore(jpeg(smooth(40, 56)))
    monkeypatch.setattr(module, "decode_jpegs", lambda payloads, planes, device: [torch.zeros(wrong, dtype=torch.uint8)])
    source = source_of(store)
    agree(source, store, recipe_of(store, Tile(0)))
    assert (source.decoded, source.by_processor) == (1, 1)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered", RuntimeError),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", torch.cuda.OutOfMemoryError),
        ("Error while decoding JPEG images: Failed to decode batch: 5", torch.cuda.OutOfMemoryError),
    ],
)
def test_a_fault_of_the_device_is_no_fault_of_a_picture(
    message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, no picture is tried again, and the next batch is as if nothing had been."""
    files = [jpeg(smooth(40, 56, s)) for s in range(2)]
    store = FileStore(*files)
    recipe = recipe_of(store, Tile(0), Tile(1))
    source = source_of(store)
    with monkeypatch.context() as patch:
        calls = refusing(patch, files[0][1], message)
        with pytest.raises(kind, match=r"CUDA|batch: 5"):
            source.fetch(recipe)
        assert calls == [2]
    agree(source, store, recipe)
    assert (source.decoded, source.by_processor) == (2, 0)


def test_a_damaged_record_is_named_as_everywhere(tmp_path: Path) -> None:
    """Word for word; and batches without it are unharmed."""
    store = damaged(tmp_path, 2)
    recipe = recipe_of(store, Tile(0), Tile(2), Tile(1))
    with pytest.raises(BadRecord) as want:
        load_tiles(store, recipe)
    source = source_of(store)
    with pytest.raises(BadRecord, match=r"^00000002: entry 2, record 2 .*CRC32C") as got:
        source.fetch(recipe)
    assert (str(got.value), got.value.entry, got.value.record) == (str(want.value), 2, 2)
    agree(source, store, recipe_of(store, Tile(0), Tile(3)))


def test_a_file_that_is_not_what_its_record_states_is_named_as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another size, colour where gray is stated, a file that breaks off in its header: none is given to the GPU."""
    monkeypatch.setattr(module, "decode_jpegs", lambda payloads, planes, device: pytest.fail("it must not be decoded"))
    kind, data, _, _ = jpeg(smooth(40, 56))
    for file in (kind, data, (40, 55), 3), (kind, data, (40, 56), 1), (kind, data[:99], (40, 56), 3):
        store = FileStore(file)
        recipe = recipe_of(store, Tile(0))
        with pytest.raises(BadRecord) as want:
            load_tiles(store, recipe)  # type: ignore[arg-type]
        with pytest.raises(BadRecord) as got:
            source_of(store).fetch(recipe)
        assert str(got.value) == str(want.value)


@pytest.mark.parametrize("threads", [1, 4])
def test_with_a_window_a_sample_costs_about_one_decode(threads: int, tmp_path: Path) -> None:
    """Over an epoch of four-picture mosaics, whatever the threads, in the memory of the window; and all of it is right."""
    n, window, batch = 96, 24, 4
    samples = Samples(stored(tmp_path, n), policy=Policy(partners=f"window:{window}"), imgsz=32, batch_size=batch, seed=3)
    source = Decode(samples, CPU)
    order = epoch_order(n, 3, 0)
    recipes = [samples.recipe(order[i : i + batch]) for i in range(0, n, batch)]
    done = Prefetch(lambda k: agree(source, samples.store, recipes[k]), len(recipes), threads, ahead=4)
    assert len(list(done)) == len(recipes)
    shown = sum(len(np.unique(recipe.record)) for recipe in recipes)
    assert shown > 2.5 * n
    assert n <= source.decoded <= 1.1 * n
    assert source.by_processor == 0
    picture = 3 * 24 * 32
    assert source.limit_nbytes == (window + 4 * batch) * picture
    assert source.nbytes_device == source._cache.nbytes == source.limit_nbytes


def test_without_a_window_nothing_is_kept(tmp_path: Path) -> None:
    """Uniform partners come back too seldom, and validation has none."""
    path = stored(tmp_path, 8)
    for samples in Samples(path, imgsz=32), Samples(path, policy=Policy(partners="window:4"), imgsz=32, augment=False):
        source = Decode(samples, CPU)
        recipe = samples.recipe([0, 1, 0])
        pictures = len(np.unique(recipe.record))
        source.fetch(recipe)
        assert source.decoded == pictures
        source.fetch(recipe)
        assert source.decoded == 2 * pictures
        assert source.nbytes_device == 0


def test_less_memory_than_the_window_takes_more_decodes_and_the_same_pictures(tmp_path: Path) -> None:
    """The bound in bytes holds."""
    samples = Samples(stored(tmp_path, 40), policy=Policy(partners="window:20"), imgsz=32, batch_size=4)
    picture = 3 * 24 * 32
    source = Decode(samples, CPU, limit_nbytes=5 * picture + 1)
    for i in range(0, 40, 4):
        agree(source, samples.store, samples.recipe(range(i, i + 4)))
        assert source.nbytes_device <= 5 * picture
    assert source.decoded > 40


def test_what_a_batch_holds_outlives_the_cache(tmp_path: Path) -> None:
    """Until the batch goes."""
    samples = Samples(stored(tmp_path, 8), policy=Policy(partners="window:4"), imgsz=32, batch_size=2)
    source = Decode(samples, CPU)
    recipe = samples.recipe([0, 1])
    fetched = source.fetch(recipe)
    assert source.nbytes_device > 0
    source.close()
    assert source.nbytes_device == 0
    again = [torch.full((3, 24, 32), 7, dtype=torch.uint8) for _ in range(50)]
    for got, want in zip(read(fetched, recipe, CPU), expected(samples.store, recipe), strict=True):
        assert np.array_equal(got, want)
    assert len(again) == 50
    agree(source, samples.store, recipe)


def test_it_says_what_it_is_not_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No JPEGs, JPEGs that must be resized, no GPU, no torchvision; and nothing where all is well, gray pictures included."""
    good = Samples(stored(tmp_path, 8), imgsz=32)
    assert unavailable(CPU, good) is None
    with fastdata.create(tmp_path / "g.lmdb", ["thing"], codec="jpeg") as writer:
        for i in range(8):
            picture = smooth(32, 32, i)
            writer.add(picture if i % 2 else np.ascontiguousarray(picture[:, :, 0]), boxes=[[2, 2, 20, 20]])
    assert unavailable(CPU, Samples(tmp_path / "g.lmdb", imgsz=32)) is None
    assert unavailable(CPU, Samples(training_kit.flat(tmp_path), imgsz=32)) == "the store must hold JPEGs for it, got raw"
    other = unavailable(CPU, Samples(tmp_path / "s.lmdb", imgsz=64))
    assert other is not None
    assert other.startswith("0 of 8 pictures looked at are JPEGs that a GPU decodes")
    if not torch.cuda.is_available():
        assert unavailable(torch.device("cuda"), good) == "there is no GPU that PyTorch can use"
    monkeypatch.setitem(sys.modules, "torchvision", None)
    said = unavailable(CPU, good)
    assert said is not None
    assert said.startswith("torchvision cannot be imported: ")


def test_a_decoder_that_fails_or_lies_is_found_out_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built without nvJPEG; every picture but the first is black; all are one."""
    samples = Samples(stored(tmp_path, 8), imgsz=32)
    right = module.decode_jpegs

    def without(payloads: list[Any], planes: int, device: Any) -> list[Any]:
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nmore")

    def black(payloads: list[Any], planes: int, device: Any) -> list[Any]:
        first, *rest = right(payloads, planes, device)
        return [first, *map(torch.zeros_like, rest)]

    def same(payloads: list[Any], planes: int, device: Any) -> list[Any]:
        return [right(payloads, planes, device)[0]] * len(payloads)

    says = {
        without: "torchvision cannot decode on cpu: decode_jpegs_cuda: torchvision not compiled with nvJPEG support",
        black: f"the JPEG decoder of cpu makes another picture of record 1 of {samples.store.path}",
        same: f"the JPEG decoder of cpu makes another picture of record 1 of {samples.store.path}",
    }
    for decoder, want in says.items():
        monkeypatch.setattr(module, "decode_jpegs", decoder)
        assert unavailable(CPU, samples) == want


def test_a_damaged_picture_among_those_looked_at_is_left_to_training(tmp_path: Path) -> None:
    """Which raises or plans around it, as it was told."""
    path = stored(tmp_path, 8)
    training_kit.damage(path, 3)
    assert unavailable(CPU, Samples(path, imgsz=32)) is None


def test_the_bound_on_blended_colour_is_what_the_two_ways_of_libjpeg_turbo_differ_by(shared: Path) -> None:
    """Photographs with colour halved: repeated as nvJPEG does, and blended."""
    off = []
    for file in sorted((shared / "data/coco128").rglob("*.jpg"))[:32]:
        data = simplejpeg.encode_jpeg(simplejpeg.decode_jpeg(file.read_bytes()), 85, "RGB", "420")
        blended, repeated = simplejpeg.decode_jpeg(data), simplejpeg.decode_jpeg(data, fastupsample=True)
        off.append(np.abs(blended.astype(np.int16) - repeated))
    assert 20 < max(int(one.max()) for one in off) <= HALF_CHROMA.levels
    assert 0.2 < np.concatenate([one.reshape(-1) for one in off]).mean() <= HALF_CHROMA.mean
