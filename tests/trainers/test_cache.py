"""A dataset is converted once, read again while it is unchanged, converted again when it is not, and by one process at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fastdata.errors import DataError, UsageError
from fastdata.store.read import open_store
from fastdata.synth import write_dataset
from fastdata.trainers.cache import Wanted, cache_folder, cached_store, place_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    """The training split of a small dataset."""
    root = tmp_path / "set"
    write_dataset(root, 6, task="detect", size_hw=(48, 64), splits={"train": 1}, workers=1)
    return Wanted("set.yaml", str(root), "train", (str(root / "images/train"),), tuple("abcdefgh"), {}, "detect", 64)


def uid(path: Path) -> str:
    """What names the content of a store."""
    with open_store(path) as store:
        return store.manifest.uid


def inode(path: Path) -> tuple[int, int]:
    """What changes when a store is written anew, even with the same content."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def test_a_split_is_converted_and_then_used_again(wanted: Wanted, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where it went is said on the terminal, and how long it took; the second time, that it is used again."""
    cache = tmp_path / "cache"
    out = cached_store(wanted, cache)
    said = capfd.readouterr().err
    assert f"converting train of set.yaml into {out} (once)" in said
    assert "6 images" in said
    with open_store(out, "train") as store:
        assert len(store) == 6
        assert store.manifest.imgsz == 64
        assert store.key(0) == "images/train/000000.jpg"
    before = inode(out)
    assert cached_store(wanted, cache) == out
    assert inode(out) == before
    assert "is read from" in capfd.readouterr().err
    assert cached_store(wanted, cache, quiet=True) == out
    assert capfd.readouterr().err == ""


def edit_label(root: Path) -> None:
    """The same size and the same time, other content."""
    file = next(f for f in sorted((root / "labels/train").iterdir()) if f.stat().st_size)
    stat, text = file.stat(), file.read_text()
    file.write_text(("1" if text[0] != "1" else "2") + text[1:])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace_picture(root: Path) -> None:
    """Another picture under the name of one."""
    shutil.copy(root / "images/train/000000.jpg", root / "images/train/000001.jpg")


def add_picture(root: Path) -> None:
    """One more."""
    shutil.copy(root / "images/train/000000.jpg", root / "images/train/9.jpg")


def remove_picture(root: Path) -> None:
    """One less."""
    (root / "images/train/000003.jpg").unlink()


@pytest.mark.parametrize("change", [edit_label, replace_picture, add_picture, remove_picture])
def test_a_changed_source_is_converted_again(
    change: Callable[[Path], None], wanted: Wanted, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Content counts: also a label that was edited without a trace in size and time."""
    out = cached_store(wanted, tmp_path / "cache")
    before = uid(out)
    capfd.readouterr()
    change(Path(wanted.root))
    assert cached_store(wanted, tmp_path / "cache") == out
    assert uid(out) != before
    assert "(the source has changed)" in capfd.readouterr().err


def test_a_copy_with_newer_times_is_the_same_source(wanted: Wanted, tmp_path: Path) -> None:
    """Times alone say nothing: the pictures are compared by content."""
    out = cached_store(wanted, tmp_path / "cache")
    before = inode(out)
    for file in Path(wanted.root).rglob("*.jpg"):
        os.utime(file)
    cached_store(wanted, tmp_path / "cache")
    assert inode(out) == before


def test_other_names_are_another_source(wanted: Wanted, tmp_path: Path) -> None:
    """The store would call its classes otherwise."""
    out = cached_store(wanted, tmp_path / "cache")
    renamed = replace(wanted, names=("z", *wanted.names[1:]))
    assert cached_store(renamed, tmp_path / "cache") == out
    with open_store(out) as store:
        assert store.names[0] == "z"


def test_a_damaged_store_is_made_anew(wanted: Wanted, tmp_path: Path) -> None:
    """A cache that cannot be read is no reason to stop."""
    out = cached_store(wanted, tmp_path / "cache")
    before = uid(out)
    with open(out, "r+b") as file:
        file.truncate(out.stat().st_size - 1)
    cached_store(wanted, tmp_path / "cache")
    assert uid(out) == before


def test_the_source_is_only_read(wanted: Wanted, tmp_path: Path) -> None:
    """Nothing is written beside the pictures."""
    root = Path(wanted.root)
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    cached_store(wanted, tmp_path / "cache")
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before


def test_splits_tasks_and_sizes_have_stores_of_their_own(wanted: Wanted, tmp_path: Path) -> None:
    """None is overwritten by another, nor by a dataset of the same name elsewhere."""
    variants = [
        wanted, replace(wanted, split="val"), replace(wanted, task="segment"), replace(wanted, imgsz=96),
        replace(wanted, root="/elsewhere"), replace(wanted, places=("/elsewhere",)),
    ]  # fmt: skip
    assert len({place_of(w, tmp_path) for w in variants}) == len(variants)


def test_a_misread_dataset_is_an_error_that_names_the_file(wanted: Wanted, tmp_path: Path) -> None:
    """A class beyond the names is a fault of the dataset, and is not passed over."""
    with pytest.raises(DataError, match=r"labels/train/00000\d\.txt:\d+: "):
        cached_store(replace(wanted, names=("only",)), tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_made_is_a_usage_error(wanted: Wanted, tmp_path: Path) -> None:
    """With the two ways out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="give another one with cache=, or a store with store="):
        cached_store(wanted, tmp_path / "file/cache")


def test_the_cache_lies_where_the_user_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The XDG specification, and its default."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/fastdata"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache/fastdata"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x/fastdata"
    assert cache_folder(tmp_path / "y") == tmp_path / "y"


def test_processes_that_want_the_same_convert_it_once(wanted: Wanted, tmp_path: Path) -> None:
    """As the ranks of a distributed training do, when nothing has been converted before."""
    fields = [wanted.title, wanted.root, wanted.split, wanted.places, wanted.names, {}, wanted.task, wanted.imgsz]
    code = (
        "import json, sys; from pathlib import Path; from fastdata.trainers.cache import Wanted, cached_store\n"
        "a = json.loads(sys.argv[1]); a[3], a[4] = tuple(a[3]), tuple(a[4])\n"
        "print(cached_store(Wanted(*a), Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", code, json.dumps(fields), str(tmp_path / "cache")]
    runs = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum("converting train" in err for _, err in said) == 1
