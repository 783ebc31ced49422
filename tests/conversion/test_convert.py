"""A dataset becomes a store: what is in it, what is reported, and that nothing else happens."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import convert_kit as kit
import numpy as np
import pytest

import fastdata
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.errors import DataError, UsageError
from fastdata.images import Refused, decode_image
from fastdata.pixels import fitted_size, resize
from fastdata.sources.scan import SourceOptions
from fastdata.synth import write_dataset

BACKENDS = ("out.lmdb", "out")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_store_holds_the_decoded_pixels_and_the_labels_of_every_split(tmp_path: Path, name: str) -> None:
    """Every picture equals its file, decoded and resized; every box is where the text puts it, at the stored size."""
    data = kit.yolo(tmp_path / "set", {"train": 9, "val": 4})
    done = convert(data, tmp_path / name, ConvertOptions(imgsz=96, codec="raw"))
    assert done.tally.stored == 13
    assert done.summary["splits"] == {"train": 9, "val": 4}
    for split, count in (("train", 9), ("val", 4)):
        with fastdata.open_store(tmp_path / name, split=split) as store:
            assert len(store) == count
            for i in range(count):
                picture = decode_image((tmp_path / "set" / store.key(i)).read_bytes())
                assert not isinstance(picture, Refused)
                want = resize(picture.rgb, fitted_size((48, 64), 96), "trainer")
                assert np.array_equal(store.image(i), want.transpose(2, 0, 1))
                found = store.instances(i)
                assert len(found) == i % 4
                h = 0.1 + i % 7 * 0.05
                for k, box in enumerate(found.xyxy_px):
                    cx = 0.3 + 0.1 * k
                    want_box = [(cx - 0.1) * 96, (0.5 - h / 2) * 72, (cx + 0.1) * 96, (0.5 + h / 2) * 72]
                    assert np.allclose(box, want_box, atol=0.01)


@pytest.mark.parametrize("name", BACKENDS)
def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, name: str) -> None:
    """Three processes that answer in any order write what one does."""
    data = kit.yolo(tmp_path / "set", {"train": 110, "val": 20})
    convert(data, tmp_path / "one" / name if (tmp_path / "one").mkdir() is None else Path(), ConvertOptions(workers=1))
    (tmp_path / "three").mkdir()
    convert(data, tmp_path / "three" / name, ConvertOptions(workers=3))
    assert kit.store_bytes(tmp_path / "one" / name) == kit.store_bytes(tmp_path / "three" / name)


def test_the_source_is_only_read(tmp_path: Path) -> None:
    """No byte, no time stamp and no name in the source changes, and a source without write permission is as good."""
    data = kit.yolo(tmp_path / "set", {"train": 6})
    for folder, _, files in os.walk(tmp_path / "set"):
        for path in (Path(folder), *(Path(folder) / f for f in files)):
            path.chmod(path.stat().st_mode & ~0o222)
    before = kit.fingerprint(tmp_path / "set")
    convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    assert kit.fingerprint(tmp_path / "set") == before


@pytest.mark.parametrize("codec", ["raw", "jpeg", "webp", "original"])
def test_every_codec_gives_back_the_picture(tmp_path: Path, codec: str) -> None:
    """raw is exact; jpeg and webp are close; original keeps the very bytes of the file."""
    data = kit.yolo(tmp_path / "set", {"train": 3})
    options = ConvertOptions(imgsz=None, codec=codec, quality=98)  # type: ignore[arg-type]
    convert(data, tmp_path / "out.lmdb", options)
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        for i in range(3):
            file = (tmp_path / "set" / store.key(i)).read_bytes()
            picture = decode_image(file)
            assert not isinstance(picture, Refused)
            difference = np.abs(store.image(i).astype(int) - picture.rgb.transpose(2, 0, 1)).mean()
            assert difference <= {"raw": 0, "jpeg": 4, "webp": 10, "original": 0}[codec]
            if codec == "original":
                assert bytes(store.read(i)) == file


def test_original_encodes_anew_what_is_no_upright_jpeg_and_counts_it(tmp_path: Path) -> None:
    """A PNG becomes a JPEG; the report says how many were encoded anew."""
    import cv2

    data = kit.yolo(tmp_path / "set", {"train": 2})
    cv2.imwrite(str(tmp_path / "set/images/train/extra.png"), np.full((20, 30, 3), 77, np.uint8))
    done = convert(data, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="original"))
    assert done.tally.recoded == 1
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        assert np.abs(store.image(2).astype(int) - 77).max() <= 2


def test_codec_original_excludes_a_size() -> None:
    """Published bytes cannot be resized."""
    with pytest.raises(UsageError, match="imgsz must be 'full' with codec original"):
        ConvertOptions(codec="original", imgsz=640)


def test_area_and_trainer_resizing_differ_and_the_choice_is_in_the_manifest(tmp_path: Path) -> None:
    """Large pictures shrink with or without antialiasing; labels follow either way."""
    data = kit.yolo(tmp_path / "set", {"train": 2}, size_hw=(2100, 2800))
    pixels = {}
    for resample in ("trainer", "area"):
        out = tmp_path / f"{resample}.lmdb"
        convert(data, out, ConvertOptions(imgsz=320, codec="raw", resample=resample))  # type: ignore[arg-type]
        with fastdata.open_store(out) as store:
            assert store.manifest.resample == resample
            assert store.image(0).shape == (3, 240, 320)
            pixels[resample] = store.image(0).copy()
    assert not np.array_equal(pixels["trainer"], pixels["area"])


def test_a_picture_that_two_splits_list_is_stored_once(tmp_path: Path) -> None:
    """train and val of the same folder: twice the entries, half the bytes, the same labels."""
    kit.yolo(tmp_path / "set", {"train": 5})
    data = tmp_path / "set" / "data.yaml"
    data.write_text("names: [a, b, c]\ntrain: images/train\nval: images/train\n")
    done = convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    assert (done.tally.stored, done.tally.shared) == (10, 5)
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        assert store.catalog.counts.records == 5
        for i in range(5):
            assert store.key(i) == store.key(i + 5)
            assert np.array_equal(store.image(i), store.image(i + 5))
            assert np.array_equal(store.instances(i).xyxy_px, store.instances(i + 5).xyxy_px)


def test_a_picture_that_two_splits_list_and_that_is_broken_is_skipped_in_both(tmp_path: Path) -> None:
    """It is left out of either split, each time with its reason."""
    kit.yolo(tmp_path / "set", {"train": 3})
    (tmp_path / "set/images/train/00001.jpg").write_bytes(b"")
    data = tmp_path / "set" / "data.yaml"
    data.write_text("names: [a, b, c]\ntrain: images/train\nval: images/train\n")
    done = convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    assert (done.tally.stored, done.tally.skipped) == (4, {"empty-file": 2})


def test_the_report_adds_up_and_lists_every_fault(tmp_path: Path) -> None:
    """images in = stored + skipped, rows in = kept + dropped + rows of skipped images; each fault has its file and line."""
    data = kit.yolo(tmp_path / "set", {"train": 8})
    whole = (tmp_path / "set/images/train/00003.jpg").read_bytes()
    (tmp_path / "set/images/train/00003.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "set/labels/train/00002.txt").write_text("0 0.5 0.5 0.2 0.2\n0 0.5 0.5 nan 0.2\n1 0.99 0.5 0.2 0.2\n7 bad\n")
    report = tmp_path / "problems.json"
    convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"), report=report)
    read = json.loads(report.read_text())
    assert [(s["file"], s["reason"]) for s in read["skipped"]] == [("images/train/00003.jpg", "truncated")]
    found = {(p["file"], p["line"], p["kind"], p["action"]) for p in read["problems"]}
    assert found == {
        ("labels/train/00002.txt", 2, "not-finite", "dropped"),
        ("labels/train/00002.txt", 3, "clipped", "clipped"),
        ("labels/train/00002.txt", 4, "bad-number", "dropped"),
    }
    images, rows = read["summary"]["images"], read["summary"]["rows"]
    assert images["images_in"] == 8 == images["stored"] + sum(images["skipped"].values())
    assert rows["rows_in"] == rows["kept"] + rows["dropped"] + rows["rows_of_skipped"]
    assert (rows["dropped"], rows["rows_of_skipped"]) == (2, 3)


def test_raise_stops_at_the_first_broken_picture_and_leaves_nothing(tmp_path: Path) -> None:
    """on_error=raise names the file; neither a store nor a staging folder stays."""
    data = kit.yolo(tmp_path / "set", {"train": 4})
    (tmp_path / "set/images/train/00002.jpg").write_bytes(b"not a picture")
    options = ConvertOptions(codec="raw", source=SourceOptions(on_error="raise"))
    with pytest.raises(DataError, match=r"00002\.jpg: unreadable"):
        convert(data, tmp_path / "out.lmdb", options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]


def test_a_truncated_picture_is_kept_only_on_request(tmp_path: Path) -> None:
    """allow_truncated keeps what could be decoded and says so."""
    data = kit.yolo(tmp_path / "set", {"train": 2}, size_hw=(480, 640))
    whole = (tmp_path / "set/images/train/00001.jpg").read_bytes()
    (tmp_path / "set/images/train/00001.jpg").write_bytes(whole[: len(whole) * 2 // 3])
    assert convert(data, tmp_path / "a.lmdb", ConvertOptions(codec="raw")).tally.skipped == {"truncated": 1}
    kept = convert(data, tmp_path / "b.lmdb", ConvertOptions(codec="raw", allow_truncated=True))
    assert (kept.tally.stored, kept.tally.truncated_kept) == (2, 1)
    assert any("break off" in text for text in kept.warnings)


def test_a_picture_with_too_many_pixels_is_left_out_before_it_is_decoded(tmp_path: Path) -> None:
    """The limit is the user's."""
    data = kit.yolo(tmp_path / "set", {"train": 2})
    (tmp_path / "set/images/train/00000.jpg").write_bytes(kit.jpeg(1, (300, 400)))
    done = convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw", max_pixels=100 * 100))
    assert done.tally.skipped == {"too-large": 1}


def test_a_picture_larger_than_its_slot_takes_a_detour_and_arrives(tmp_path: Path) -> None:
    """Full size, one giant among small ones, several workers: same pixels, and no file stays in the staging folder."""
    data = kit.yolo(tmp_path / "set", {"train": 80})
    (tmp_path / "set/images/train/00041.jpg").write_bytes(kit.jpeg(5, (1500, 2000)))
    convert(data, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="raw", workers=2))
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        picture = decode_image(kit.jpeg(5, (1500, 2000)))
        assert not isinstance(picture, Refused)
        assert np.array_equal(store.image(41), picture.rgb.transpose(2, 0, 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.lmdb", "set"]


def test_an_existing_store_is_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    """Without overwrite the target is refused and unchanged; with it the new store takes its place."""
    first = kit.yolo(tmp_path / "first", {"train": 2})
    second = kit.yolo(tmp_path / "second", {"train": 5})
    convert(first, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    before = kit.store_bytes(tmp_path / "out.lmdb")
    with pytest.raises(UsageError, match="--overwrite"):
        convert(second, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    assert kit.store_bytes(tmp_path / "out.lmdb") == before
    convert(second, tmp_path / "out.lmdb", ConvertOptions(codec="raw"), overwrite=True)
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        assert len(store) == 5


def test_no_store_comes_of_a_set_without_one_good_picture(tmp_path: Path) -> None:
    """Every picture broken: an error, not an empty store."""
    data = kit.yolo(tmp_path / "set", {"train": 2})
    for path in (tmp_path / "set/images/train").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="at least one picture"):
        convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    assert not (tmp_path / "out.lmdb").exists()


def test_a_store_of_an_earlier_conversion_says_that_a_label_has_changed_by_starting_anew(tmp_path: Path) -> None:
    """The same command after an edit of the same length reads what is in the file now."""
    data = kit.yolo(tmp_path / "set", {"train": 3})
    convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    label = tmp_path / "set/labels/train/00001.txt"
    stat = label.stat()
    label.write_text(label.read_text().replace("0 0.3", "2 0.3", 1))
    os.utime(label, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"), overwrite=True)
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        assert store.instances(1).cls.tolist() == [2]


def test_a_moved_source_gives_the_same_bytes(tmp_path: Path) -> None:
    """No absolute path enters a store: a copy elsewhere, with its times, converts to the same file."""
    data = kit.yolo(tmp_path / "set", {"train": 4, "val": 2})
    convert(data, tmp_path / "a.lmdb", ConvertOptions(codec="raw"))
    shutil.copytree(tmp_path / "set", tmp_path / "elsewhere" / "copy")
    convert(tmp_path / "elsewhere/copy/data.yaml", tmp_path / "b.lmdb", ConvertOptions(codec="raw"))
    assert kit.store_bytes(tmp_path / "a.lmdb") == kit.store_bytes(tmp_path / "b.lmdb")


def test_a_pipe_or_a_broken_link_in_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    """A label that cannot be read must not make its picture background; an image that is a pipe is left out with its reason."""
    data = kit.yolo(tmp_path / "set", {"train": 4})
    label = tmp_path / "set/labels/train/00001.txt"
    for make in (lambda: os.mkfifo(label), lambda: label.symlink_to("gone")):
        label.unlink()
        make()
        with pytest.raises(OSError, match=r"00001\.txt"):
            convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"))
    label.unlink()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "set/images/train/00009.jpg").symlink_to(tmp_path / "pipe")
    assert convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw")).tally.skipped == {"unreadable": 1}


def test_a_report_replaces_nothing_but_a_report(tmp_path: Path) -> None:
    """A label file given by mistake stays; a pipe is written to; an earlier report is replaced; a folder is refused at once."""
    data = kit.yolo(tmp_path / "set", {"train": 3})
    label = tmp_path / "set/labels/train/00001.txt"
    before = label.read_bytes()
    for wrong in (label, tmp_path / "set", tmp_path / "no/such/report.json"):
        with pytest.raises(UsageError, match="report"):
            convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"), report=wrong)
    assert label.read_bytes() == before
    assert not (tmp_path / "out.lmdb").exists()
    for _ in range(2):
        convert(data, tmp_path / "out.lmdb", ConvertOptions(codec="raw"), report=tmp_path / "r.json", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.lmdb", "r.json", "set"]
    done = kit.fastdata("convert", data, tmp_path / "out.lmdb", "--overwrite", "--report", "/dev/stderr")
    assert done.returncode == 0
    assert '"summary"' in done.stderr


def test_what_a_user_should_look_at_is_a_warning(tmp_path: Path) -> None:
    """A split that is not there, pictures that two splits share, a store inside its dataset."""
    kit.yolo(tmp_path / "set", {"train": 3})
    data = tmp_path / "set/data.yaml"
    data.write_text("names: [a, b, c]\ntrain: images/train\nval: images/train\ntest: images/gone\n")
    assert len(convert(data, tmp_path / "set/beside.lmdb", ConvertOptions(codec="raw")).warnings) == 2
    warnings = convert(data, tmp_path / "set/images/out.lmdb", ConvertOptions(codec="raw")).warnings
    assert len(warnings) == 3
    assert any("gone" in text for text in warnings)
    assert any("two splits" in text for text in warnings)
    assert any("in the folder of its dataset" in text for text in warnings)


def test_options_may_be_given_by_name(tmp_path: Path) -> None:
    """As in the README; a name that does not exist is said with those that do."""
    data = write_dataset(tmp_path / "set", 4, size_hw=(48, 64), splits={"train": 1}, workers=1)
    fastdata.convert(data, tmp_path / "small.lmdb", imgsz=32, workers=1)
    with fastdata.open_store(tmp_path / "small.lmdb") as store:
        assert store.image(0).shape == (3, 24, 32)
    with pytest.raises(UsageError, match=r"options of convert must be .*imgsz.*, got image_size"):
        fastdata.convert(data, tmp_path / "other.lmdb", image_size=32)
