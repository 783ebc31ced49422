"""nvJPEG itself: how far it is from libjpeg-turbo, what it does with damage, and that no picture is written over another."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from decode_kit import FileStore, damaged, expected, jpeg, read, recipe_of, smooth, source_of
from gpu_kit import needs_cuda
from recipe_kit import Tile

import fastdata
from fastdata.augment.order import EpochOrder
from fastdata.augment.policy import Policy
from fastdata.pixels import encode
from fastdata.render.tiles import BadRecord
from fastdata.residency import decode as module
from fastdata.residency.decode import FULL_CHROMA, HALF_CHROMA, Decode, unavailable
from fastdata.samples import Samples

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("colour", ["444", "420", "gray"])
def test_the_gpus_pictures_are_within_the_stated_distance(colour: str, shared: Path, capsys: Any) -> None:
    """128 photographs in one batch: as published (4:4:4), with colour halved, and gray. The distances are printed."""
    device = needs_cuda()
    files: list[Any] = []
    for file in sorted((shared / "data/coco128").rglob("*.jpg")):
        rgb = simplejpeg.decode_jpeg(file.read_bytes())
        if colour == "gray":
            data = encode(np.ascontiguousarray(rgb[:, :, 1]), "jpeg", 95).tobytes()
        else:
            data = simplejpeg.encode_jpeg(rgb, 90, "RGB", colour)
        files.append(("jpeg", data, rgb.shape[:2], 1 if colour == "gray" else 3))
    store = FileStore(*files)
    recipe = recipe_of(store, *map(Tile, range(len(files))))
    source = source_of(store, device)
    got = read(source.fetch(recipe), recipe, device)
    assert (source.decoded, source.by_processor) == (len(files), 0)
    blended = [np.abs(a.astype(np.int16) - b).reshape(-1) for a, b in zip(got, expected(store, recipe), strict=True)]
    other = [np.moveaxis(simplejpeg.decode_jpeg(data, fastupsample=True), 2, 0) for _, data, _, _ in files]
    repeated = [np.abs(a.astype(np.int16) - b).reshape(-1) for a, b in zip(got, other, strict=True)]
    worst, mean = max(int(off.max()) for off in blended), float(np.concatenate(blended).mean())
    with capsys.disabled():
        sys.stdout.write(
            f"\nnvJPEG against libjpeg-turbo, {colour}: at most {worst} levels, mean {mean:.3f}, "
            f"{max(float(off.mean()) for off in blended):.3f} in the worst picture; against repeated colour at most "
            f"{max(int(off.max()) for off in repeated)}, mean {float(np.concatenate(repeated).mean()):.3f}\n"
        )
    allowed = HALF_CHROMA if colour == "420" else FULL_CHROMA
    assert worst <= allowed.levels
    assert mean <= allowed.mean


def test_what_the_processor_decodes_is_bit_for_bit_the_same_on_the_gpu() -> None:
    """Progressive, RGB in a JPEG, resized; a part and a gray one beside them by the GPU."""
    device = needs_cuda()
    store = FileStore(
        jpeg(smooth(40, 56), quality=95, subsampling=0),
        jpeg(smooth(40, 56, 1), progressive=True),
        jpeg(smooth(40, 56, 2), keep_rgb=True),
        jpeg(np.ascontiguousarray(smooth(33, 47, 3)[:, :, 0]), quality=95),
    )
    recipe = recipe_of(store, Tile(1), Tile(2), Tile(0, size=(20, 28)), Tile(0, source=(3, 4, 20, 19)), Tile(3))
    source = source_of(store, device)
    got = read(source.fetch(recipe), recipe, device)
    for t, (a, b) in enumerate(zip(got, expected(store, recipe), strict=True)):
        assert np.abs(a.astype(int) - b).max() <= (0 if t < 3 else FULL_CHROMA.levels), t
    assert (source.decoded, source.by_processor) == (5, 3)


def test_a_damaged_record_is_named_and_the_next_batch_is_whole(tmp_path: Path) -> None:
    """A flipped bit under a checksum."""
    device = needs_cuda()
    store = damaged(tmp_path, 2, quality=95)
    source = source_of(store, device)
    with pytest.raises(BadRecord, match=r"^00000002: entry 2, record 2 .*CRC32C"):
        source.fetch(recipe_of(store, *map(Tile, range(4))))
    recipe = recipe_of(store, Tile(0), Tile(1), Tile(3))
    for a, b in zip(read(source.fetch(recipe), recipe, device), expected(store, recipe), strict=True):
        assert np.abs(a.astype(int) - b).max() <= FULL_CHROMA.levels


def test_what_nvjpeg_refuses_spoils_no_other_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no JPEG, handed to it in a batch all the same: the batch is named after it, and all else is decoded."""
    device = needs_cuda()
    files = [jpeg(smooth(40, 56, s), quality=95, subsampling=0) for s in range(3)]
    store = FileStore(files[0], ("jpeg", b"\xff\xd8" + bytes(500), (40, 56), 3), files[1], files[2])
    monkeypatch.setattr(module, "planes_on_gpu", lambda payload, stored_hw, channels: 3)
    source = source_of(store, device)
    with pytest.raises(BadRecord, match=r"^1\.jpg: entry 1, record 1"):
        source.fetch(recipe_of(store, *map(Tile, range(4))))
    assert source.decoded == 3
    recipe = recipe_of(store, Tile(0), Tile(2), Tile(3))
    for a, b in zip(read(source.fetch(recipe), recipe, device), expected(store, recipe), strict=True):
        assert np.abs(a.astype(int) - b).max() <= FULL_CHROMA.levels
    assert source.by_processor == 0


SIDE, PICTURES, BATCH, WINDOW, THREADS = (480, 640), 256, 16, 64, 4
SLEEP_CYCLES = 20_000_000
"""About 10 ms: by then the host has fetched the next batches, so memory is wanted again that queued kernels have yet to read."""


def test_streams_that_are_far_behind_read_their_own_pictures_in_bounded_memory(tmp_path: Path) -> None:
    """Nothing is decoded over what a queued kernel will read, by this thread or another; and one output costs about one decode.

    Every picture has a colour of its own. Threads queue a wait and then the means of what they fetched, and let go of it at once.
    """
    device = needs_cuda()
    colours = np.array([[i, 7 * i % 256, 13 * i % 256] for i in range(PICTURES)], np.uint8)
    with fastdata.create(tmp_path / "s.lmdb", ["thing"], codec="jpeg") as writer:
        for colour in colours:
            writer.add(np.broadcast_to(colour, (*SIDE, 3)).copy(), boxes=[[100, 100, 300, 300]])
    samples = Samples(tmp_path / "s.lmdb", policy=Policy(partners=f"window:{WINDOW}"), imgsz=640, batch_size=BATCH)
    assert unavailable(device, samples) is None
    source = Decode(samples, device, ahead=THREADS * BATCH)
    count, nbytes = WINDOW + THREADS * BATCH, 3 * SIDE[0] * SIDE[1]
    assert source.limit_nbytes == count * nbytes

    def epoch_of_means(epoch: int) -> float:
        """Return how far the mean colours are from what they should be."""
        order = EpochOrder(PICTURES, samples.seed, epoch).at(np.arange(PICTURES))
        records: list[int] = []
        means = []
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for i in range(0, PICTURES, BATCH):
                recipe = samples.recipe(order[i : i + BATCH], epoch)
                fetched = source.fetch(recipe)
                record_at = dict(zip(fetched.where[:, 0].tolist(), recipe.record.tolist(), strict=True))
                torch.cuda._sleep(SLEEP_CYCLES)
                for picture in fetched.hold:
                    records.append(record_at[picture.where[0]])
                    means.append(picture.pixels.float().mean(dim=(1, 2)))
                del fetched, picture
            found = torch.stack(means).cpu().numpy()
        return float(np.abs(found - colours[records]).max())

    assert epoch_of_means(0) < 4
    assert PICTURES <= source.decoded <= 1.2 * PICTURES
    assert source.by_processor == 0
    with ThreadPoolExecutor(THREADS) as pool:
        assert max(pool.map(epoch_of_means, range(1, 5))) < 4
        torch.cuda.synchronize(device)
        free_before = torch.cuda.mem_get_info(device)[0]
        assert max(pool.map(epoch_of_means, range(5, 17))) < 4
        torch.cuda.synchronize(device)
        free_after = torch.cuda.mem_get_info(device)[0]
    # twelve epochs whose pictures stayed would take 2.8 GB
    assert free_before - free_after < 6 * PICTURES * nbytes
    assert source.nbytes_device <= source.limit_nbytes
    source.close()
    assert source.nbytes_device == 0


def test_the_decoders_stream_is_nobody_elses(shared: Path) -> None:
    """PyTorch hands out 32 streams in turn. What draws on the decoder's own would be written over: nothing would wait for it."""
    device = needs_cuda()
    file = next((shared / "data/coco128").rglob("*.jpg")).read_bytes()
    store = FileStore(("jpeg", file, simplejpeg.decode_jpeg(file).shape[:2], 3))
    own = source_of(store, device)._stream
    others = [torch.cuda.Stream(device) for _ in range(64)]
    assert len({stream.cuda_stream for stream in others}) < len(others)
    assert own.cuda_stream not in {stream.cuda_stream for stream in others}
