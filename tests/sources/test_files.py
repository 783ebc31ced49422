"""Files of a dataset: what a listing holds, in which order, and what a digest is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yolo_kit import tree

from fastdata.sources.files import digest, digest_bytes, is_image_name, list_files, list_images, stat_image


def test_a_listing_is_recursive_sorted_as_text_and_blind_to_case(tmp_path: Path) -> None:
    """'/' sorts between '-' and '0', so a folder's files stand where their whole path belongs."""
    names = ["b.JPG", "a/z.png", "a-1.jpeg", "a0.tif", "a/b/c.WebP", "a.txt", "notes.md", "a.gif", "jpg"]
    tree(tmp_path, dict.fromkeys(names, ""))
    assert list_images(tmp_path) == ["a-1.jpeg", "a/b/c.WebP", "a/z.png", "a0.tif", "b.JPG"]
    assert list_files(tmp_path, (".txt", ".md")) == ["a.txt", "notes.md"]


def test_names_that_begin_with_a_dot_are_passed_over(tmp_path: Path) -> None:
    """A Mac's '._a.jpg' is no picture, and '.thumbnails' holds none of the dataset."""
    tree(tmp_path, dict.fromkeys(["a.jpg", "._a.jpg", ".thumbnails/a.jpg", "x/.y/b.jpg"], ""))
    assert list_images(tmp_path) == ["a.jpg"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    """A linked folder counts as often as it is linked; a link to a folder above ends there."""
    tree(tmp_path / "pool", {"p.jpg": "", "sub/q.jpg": ""})
    top = tree(tmp_path / "set", {"r.jpg": ""})
    (top / "one").symlink_to(tmp_path / "pool")
    (top / "two").symlink_to(tmp_path / "pool")
    (tmp_path / "pool/sub/up").symlink_to(tmp_path / "pool")
    (top / "s.jpg").symlink_to(top / "r.jpg")
    assert list_images(top) == ["one/p.jpg", "one/sub/q.jpg", "r.jpg", "s.jpg", "two/p.jpg", "two/sub/q.jpg"]


def test_a_link_that_leads_nowhere_is_listed_and_has_no_size(tmp_path: Path) -> None:
    """The image is lost, and must be reported as that and not be left out of the set."""
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    (tmp_path / "round.jpg").symlink_to(tmp_path / "round.jpg")
    (tmp_path / "folder.jpg").mkdir()
    assert list_images(tmp_path) == ["gone.jpg", "round.jpg"]
    for name in ("gone.jpg", "round.jpg", "folder.jpg", "never.jpg", "gone.jpg/below.jpg"):
        assert stat_image(tmp_path / name) == (-1, 0)


def test_size_and_time_are_those_of_the_file(tmp_path: Path) -> None:
    """Also through a link: the pixels are read from where it leads."""
    path = tmp_path / "a.jpg"
    path.write_bytes(b"12345")
    os.utime(path, ns=(7, 1_234_567_890_123_456_789))
    (tmp_path / "b.jpg").symlink_to(path)
    assert stat_image(path) == stat_image(tmp_path / "b.jpg") == (5, 1_234_567_890_123_456_789)


def test_a_missing_folder_is_an_error_of_the_operating_system(tmp_path: Path) -> None:
    """An empty list would make a misspelt folder an empty dataset."""
    with pytest.raises(FileNotFoundError):
        list_images(tmp_path / "nothing")


def test_names_that_are_no_text_come_back_as_they_are(tmp_path: Path) -> None:
    """A disk accepts any bytes."""
    name = b"caf\xe9 \xff.png"
    (tmp_path / os.fsdecode(name)).write_bytes(b"x")
    (found,) = list_images(tmp_path)
    assert os.fsencode(found) == name
    assert stat_image(f"{tmp_path}/{found}")[0] == 1


@pytest.mark.parametrize(
    ("name", "is_image"), [("a.JpG", True), ("a.jpg.txt", False), ("a.b.PNG", True), (".jpg", False), ("jpg", False)]
)
def test_only_what_follows_the_last_dot_is_the_ending(name: str, is_image: bool) -> None:
    """The rule by which a label's name is made, too."""
    assert is_image_name(name) is is_image


def test_every_ending_that_the_trainers_list_is_listed(tmp_path: Path) -> None:
    """The thirteen of Ultralytics 8.4.190, without GIF, which it does not read."""
    trainers = "avif bmp dng heic heif jp2 jpeg jpg mpo png tif tiff webp".split()
    tree(tmp_path, {f"a.{suffix}": "" for suffix in [*trainers, "gif"]})
    assert list_images(tmp_path) == [f"a.{suffix}" for suffix in trainers]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_a_digest_is_blake2b_of_the_whole_content(tmp_path: Path, data: bytes) -> None:
    """From a file and from bytes alike; 16 bytes."""
    (tmp_path / "f").write_bytes(data)
    assert digest(tmp_path / "f") == digest_bytes(data) == hashlib.blake2b(data, digest_size=16).digest()
