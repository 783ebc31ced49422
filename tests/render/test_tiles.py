"""A tile's pixels are the trainers' own load of a picture, whatever the store keeps, read once and copied only where needed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import recipe_kit as kit
from answers_kit import noise
from recipe_kit import Group, Tile

from fastdata.errors import StoreError
from fastdata.pixels import fitted_size, resize
from fastdata.render import tiles as module
from fastdata.render.tiles import BadRecord, load_tiles


def _tiles(store: Any, *tiles: Tile) -> list[np.ndarray]:
    return load_tiles(store, kit.one(store, Group(tiles), out_hw=(8, 8)))


def smooth(h: int, w: int, seed: int = 0) -> np.ndarray:
    """(h, w, 3) that a lossy codec keeps roughly."""
    return np.asarray(cv2.GaussianBlur(noise(h, w, seed), (0, 0), 2.0))


def test_a_raw_record_of_the_right_size_is_not_copied() -> None:
    """A view of the store's bytes, whole or a part."""
    picture = noise(20, 30)
    store = kit.memory_store([picture])
    whole, part = _tiles(store, Tile(0), Tile(0, source=(3, 4, 20, 19)))
    assert np.shares_memory(whole, store.read_record(0))
    assert np.shares_memory(part, store.read_record(0))
    assert not whole.flags.writeable
    assert np.array_equal(whole, picture.transpose(2, 0, 1))
    assert np.array_equal(part, picture[4:19, 3:20].transpose(2, 0, 1))


@pytest.mark.parametrize("imgsz", [320, 97, 33])
@pytest.mark.parametrize("gray", [False, True])
def test_a_resized_tile_is_bit_for_bit_what_a_trainer_loads(imgsz: int, gray: bool) -> None:
    """Up and down, whole records and parts; a gray picture as the trainers see it, in three equal channels."""
    picture = noise(81, 118)[:, :, 0].copy() if gray else noise(81, 118)
    store = kit.memory_store([picture])
    interleaved = np.repeat(picture[:, :, None], 3, axis=2) if gray else picture
    for source in (0, 0, 118, 81), (7, 3, 100, 70):
        x0, y0, x1, y1 = source
        part = np.ascontiguousarray(interleaved[y0:y1, x0:x1])
        h, w = fitted_size(part.shape[:2], imgsz)
        (tile,) = _tiles(store, Tile(0, source=source, size=(h, w)))
        assert tile.shape == (1 if gray else 3, h, w)
        theirs = cv2.resize(part[:, :, ::-1], (w, h), interpolation=cv2.INTER_LINEAR)  # a trainer's picture is BGR
        assert np.array_equal(np.broadcast_to(tile, (3, h, w)), theirs[:, :, ::-1].transpose(2, 0, 1))


@pytest.mark.parametrize("codec", ["raw", "jpeg", "webp"])
def test_every_codec_and_size_gives_planes(codec: str, tmp_path: Path) -> None:
    """Decoded, then cut, then resized."""
    pictures = [smooth(40, 56, 0), smooth(64, 48, 1)]
    store = kit.file_store(tmp_path, pictures, codec=codec, quality=95)
    a, b, small, part = _tiles(store, Tile(0), Tile(1), Tile(1, size=(32, 24)), Tile(0, source=(8, 8, 40, 24)))
    for got, i in ((a, 0), (b, 1)):
        assert np.array_equal(got, store.image(i))
        assert np.abs(got.transpose(1, 2, 0).astype(int) - pictures[i]).mean() < 3
    interleaved = np.ascontiguousarray(store.image(1).transpose(1, 2, 0))
    assert np.array_equal(small.transpose(1, 2, 0), resize(interleaved, (32, 24), "trainer"))
    assert np.array_equal(part, store.image(0)[:, 8:24, 8:40])


def test_a_gray_record_stays_one_plane(tmp_path: Path) -> None:
    """Also through a codec and a resize."""
    for codec in ("raw", "jpeg"):
        folder = tmp_path / codec
        folder.mkdir()
        store = kit.file_store(folder, [smooth(30, 40)[:, :, 0].copy()], codec=codec)
        assert [t.shape for t in _tiles(store, Tile(0), Tile(0, size=(15, 20)))] == [(1, 30, 40), (1, 15, 20)]


def test_a_record_is_decoded_once_and_a_form_resized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tiles of a batch show it, and in whatever order they come."""
    store = kit.file_store(tmp_path, [smooth(30, 40, s) for s in range(3)], codec="jpeg")
    calls: list[str] = []
    for name in ("decode_payload", "resize"):
        right = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, right=right: (calls.append(name), right(*a))[1])
    got = _tiles(store, *(Tile(i, size=size) for size in ((15, 20), (30, 40), (15, 20), (9, 12)) for i in (2, 0, 1, 0)))
    assert calls.count("decode_payload") == 3
    assert calls.count("resize") == 6
    assert got[0] is got[8]
    assert got[1] is got[3]
    for k, tile in enumerate(got):
        assert tile.shape[1:] == ((15, 20), (30, 40), (15, 20), (9, 12))[k // 4]
        assert np.array_equal(tile, _tiles(store, Tile((2, 0, 1, 0)[k % 4], size=tile.shape[1:]))[0])


def test_a_tile_of_which_nothing_is_visible_is_not_read(tmp_path: Path) -> None:
    """Not even if its record is damaged: what is not seen can do no harm."""
    store = _damaged(tmp_path)
    seen, unseen = _tiles(store, Tile(0), Tile(1, visible=(4, 4, 4, 9)))
    assert seen.shape == (3, 30, 40)
    assert unseen.shape == (1, 0, 0)
    assert _tiles(store) == []


def _damaged(folder: Path) -> Any:
    """A store of three pictures, the second with a flipped bit."""
    with kit.file_store(folder, [noise(30, 40, s) for s in range(3)]) as store:
        at = int(store.catalog.rec_offset[1])
    file = folder / "made.lmdb"
    data = bytearray(file.read_bytes())
    data[at + 100] ^= 4
    file.write_bytes(data)
    return kit.fastdata.open_store(file)


def test_a_damaged_record_is_named_with_its_picture(tmp_path: Path) -> None:
    """Key, entry, record and file; as a StoreError that says which entry to do without, also after a trip between processes."""
    store = _damaged(tmp_path)
    with pytest.raises(StoreError, match=r"^00000001: entry 1, record 1 of .*made\.lmdb: .*must have CRC32C") as caught:
        _tiles(store, Tile(0), Tile(1))
    for err in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(err, BadRecord)
        assert (err.entry, err.record) == (1, 1)
        assert str(err) == str(caught.value)


def test_a_record_that_is_no_picture_of_its_size_is_named_too() -> None:
    """Bytes that agree with their checksum and not with the catalog."""
    store = kit.memory_store([noise(5, 6), noise(7, 8)])
    store._payloads[1] = store._payloads[1][:-1]
    want = r"^1: entry 1, record 1 of memory: a raw payload of 3 x 7 x 8 must have 168 bytes, got 167"
    with pytest.raises(BadRecord, match=want):
        _tiles(store, Tile(0), Tile(1))
