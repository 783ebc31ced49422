"""Where the label of an image is looked for, and what is told about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from yolo_kit import ROW, classes, keys, read, told, tree

from fastdata.errors import UsageError
from fastdata.sources.scan import SourceOptions
from fastdata.sources.yolo_labels import Finder
from fastdata.sources.yolo_paths import Layout, lay_out

YAML = "train: images/train\nval: images/val\nnames: [a, b, c]\n"


def row(cls: int) -> str:
    return f"{cls} 0.5 0.5 0.2 0.4\n"


def both(*names: str, cls: int = 0) -> dict[str, str | bytes]:
    """Files of images and their labels in images/ and labels/."""
    images: dict[str, str | bytes] = {f"images/{name}.jpg": "" for name in names}
    return images | {f"labels/{name}.txt": row(cls) for name in names}




# The label of an image


def finder(root: str = "/set", images: str = "", labels: str = "") -> Finder:
    return Finder(Layout(root, "data.yaml", images_root=images), labels)


@pytest.mark.parametrize(
    ("path", "labels"),
    [
        ("/set/images/a.jpg", ["/set/labels/a.txt", "/set/images/a.txt"]),
        ("/set/images/train/a.jpg", ["/set/labels/train/a.txt", "/set/images/train/a.txt"]),
        ("/set/images/site/images/p.png", ["/set/images/site/labels/p.txt", "/set/images/site/images/p.txt"]),
        ("/set/a.jpg.jpg", ["/set/a.jpg.txt"]),
        ("/set/a_jpg.rf.0.jpg", ["/set/a_jpg.rf.0.txt"]),
        ("/set/v1.0/images/a", ["/set/v1.0/labels/a.txt", "/set/v1.0/images/a.txt"]),
        ("/set/Images/a.jpg", ["/set/Images/a.txt"]),
        ("/set/myimages/a.jpg", ["/set/myimages/a.txt"]),
        ("/set/images.jpg", ["/set/images.txt"]),
        ("/images/a.jpg", ["/labels/a.txt", "/images/a.txt"]),
    ],
)
def test_a_label_is_looked_for_in_labels_and_beside(path: str, labels: list[str]) -> None:
    """The last whole folder called images is replaced, and the last suffix alone."""
    assert [place for place, _ in finder().places(path)] == labels


@pytest.mark.parametrize(
    ("kit", "path", "labels"),
    [
        (("/set", "", "/lab"), "/set/images/train/a.jpg", ["/lab/images/train/a.txt", "/lab/train/a.txt"]),
        (("/set", "/pics", "/lab"), "/pics/train/a.jpg", ["/lab/train/a.txt"]),
        (("/set", "", "/lab"), "/else/images/a.jpg", ["/lab/a.txt"]),
        (("/set", "", "/lab"), "/else/b/a.jpg", ["/lab/a.txt"]),
        (("/set", "/pics", ""), "/pics/train/a.jpg", ["/set/labels/train/a.txt", "/pics/train/a.txt"]),
        (("/set", "/b/images", ""), "/b/images/x/a.jpg", ["/set/labels/x/a.txt", "/b/labels/x/a.txt", "/b/images/x/a.txt"]),
    ],
)
def test_separate_roots_mirror_the_path_of_the_image(kit: tuple[str, str, str], path: str, labels: list[str]) -> None:
    """Given labels are looked for nowhere else; given images have their labels below the root first."""
    assert [place for place, _ in finder(*kit).places(path)] == labels


PICS: dict[str, str | bytes] = {"pics/train/1.jpg": "", "pics/val/2.jpg": ""}


@pytest.mark.parametrize(
    ("files", "options", "found"),
    [
        ({**PICS, "lab/train/1.txt": row(1), "lab/val/2.txt": row(2)}, ("pics", "lab"), [[1], [2]]),
        ({**PICS, "labels/train/1.txt": row(1), "labels/val/2.txt": row(2)}, ("pics", ""), [[1], [2]]),
        ({**both("train/1", "val/2"), "lab/train/1.txt": row(1), "lab/images/val/2.txt": row(2)}, ("", "lab"), [[1], [2]]),
    ],
)
@pytest.mark.parametrize("yaml", [True, False])
def test_images_and_labels_may_lie_in_separate_roots(
    tmp_path: Path, files: dict[str, str | bytes], options: tuple[str, str], found: list[list[int]], yaml: bool
) -> None:
    """With a data.yaml, whose 'images/' is then the given folder, and without."""
    tree(tmp_path, {**files, **({"data.yaml": YAML} if yaml else {})})
    given: dict[str, Any] = {name: tmp_path / at for name, at in zip(("images", "labels"), options, strict=True) if at}
    assert list(classes(read(tmp_path, **given)).values()) == found


def test_keys_of_images_in_a_given_folder_are_relative_to_it(tmp_path: Path) -> None:
    """As if it were part of the set; a folder that is not there is a usage error."""
    tree(tmp_path, {"set/data.yaml": YAML, "set/labels/train/1.txt": row(2), "pool/train/1.jpg": "", "pool/val/1.jpg": ""})
    scan = read(tmp_path / "set", images=tmp_path / "pool")
    assert scan.root == tmp_path / "set"
    assert classes(scan) == {"train/1.jpg": [2], "val/1.jpg": []}
    assert list(scan.paths) == [str(tmp_path / "pool/train/1.jpg"), str(tmp_path / "pool/val/1.jpg")]
    for name in ("images", "labels"):
        with pytest.raises(UsageError, match=f"{name} must be an existing folder"):
            read(tmp_path / "set", **{"images": tmp_path / "pool", name: tmp_path / "nothing"})


def test_labels_beside_images_are_read_where_labels_has_none(tmp_path: Path) -> None:
    """And both are named where there are two, with the one that was not read."""
    files = {"images/1.jpg": "", "images/1.txt": row(1), "images/2.jpg": "", "images/2.txt": row(1), "labels/2.txt": row(2)}
    files |= {"images/3.jpg": "", "images/3.txt": row(1)}
    scan = read(tree(tmp_path, files))
    assert classes(scan) == {"images/1.jpg": [1], "images/2.jpg": [2], "images/3.jpg": [1]}
    assert [(p.where, p.kind, p.image) for p in scan.problems] == [
        ("images/2.txt", "label-beside", "images/2.jpg"),
        ("images/1.txt", "label-beside", None),
    ]
    assert "labels/2.txt comes first" in scan.problems[0].detail
    assert scan.problems[1].detail.endswith("so are 1 more in images")
    assert scan.decisions["label-rule"] == "beside the image (2), images to labels (1)"


def test_labels_beside_images_need_no_word_where_there_is_no_other_place(tmp_path: Path) -> None:
    """A set without a folder images is laid out like that on purpose."""
    assert read(tree(tmp_path, {"1.jpg": "", "1.txt": ROW})).problems == []


def test_an_upper_case_label_is_read_where_there_is_no_other(tmp_path: Path) -> None:
    """In labels/ before beside the image; noted once a folder."""
    files = {f"images/{i}.jpg": "" for i in range(1, 5)}
    files |= {"labels/1.TXT": row(1), "labels/2.Txt": row(2), "labels/3.txt": row(0), "labels/3.TXT": row(1)}
    files |= {"images/2.txt": row(0), "images/3.TXT": row(2), "images/3.txt": row(2), "images/4.TXT": row(2)}
    scan = read(tree(tmp_path, files))
    assert list(classes(scan).values()) == [[1], [2], [0], [2]]
    assert told(scan.problems) == [
        ("images/2.txt", "label-beside"),
        ("images/3.txt", "label-beside"),
        ("labels/1.TXT", "label-case"),
        ("images/4.TXT", "label-case"),
        ("images/4.TXT", "label-beside"),
    ]


def test_a_linked_folder_is_mapped_by_the_path_as_given(tmp_path: Path) -> None:
    """images → pool: the link's name counts, not where it leads."""
    tree(tmp_path, {"pool/1.jpg": "", "pool/1.txt": row(2), "set/labels/1.txt": row(1)})
    (tmp_path / "set/images").symlink_to(tmp_path / "pool")
    scan = read(tmp_path / "set")
    assert classes(scan) == {"images/1.jpg": [1]}
    assert list(scan.paths) == [str(tmp_path / "set/images/1.jpg")]


def test_a_label_without_an_image_is_counted(tmp_path: Path) -> None:
    """Only when every split is read: another one's labels may lie in the same folder."""
    files = {"data.yaml": "train: train.txt\nval: val.txt\nnc: 1\n", "train.txt": "images/1.jpg\n", "val.txt": "images/2.jpg\n"}
    tree(tmp_path, {**files, **both("1", "2"), **{f"labels/{n}.txt": ROW for n in "abcd"}, "labels/classes.txt": "x\n"})
    assert read(tmp_path).decisions["unused-label-files"] == "4: labels/a.txt, labels/b.txt, labels/c.txt, ..."
    assert "unused-label-files" not in read(tmp_path, splits=("train",)).decisions
    assert read(tmp_path).problems == []


def test_odd_names_are_names(tmp_path: Path) -> None:
    """Blanks, signs, other scripts, bytes that are no text, from a folder and from a list."""
    names = ["plage été", "零件 7", "a#b", "q&a (1)", "крыша", "x%20y", "'\"", "a\\b", "\udcff\udce9", "-", "a\tb"]
    tree(tmp_path, both(*names))
    (tmp_path / "train.txt").write_bytes("".join(f"images/{name}.jpg\n" for name in names).encode("utf-8", "surrogateescape"))
    for scan in (read(tmp_path, splits=("train",)), read(tmp_path / "train.txt")):
        assert sorted(keys(scan)) == sorted(f"images/{name}.jpg" for name in names)
        assert all(found == [0] for found in classes(scan).values())
        assert all(Path(path).exists() for path in scan.paths)
        assert [scan.table.file(i) for i in range(len(scan))] == [f"labels/{key[7:-4]}.txt" for key in keys(scan)]


def test_one_label_may_belong_to_two_images(tmp_path: Path) -> None:
    """a.jpg and a.png are two images by the full path, and have the same label by the stem."""
    scan = read(tree(tmp_path, {"images/a.jpg": "", "images/a.png": "", "labels/a.txt": row(1)}))
    assert classes(scan) == {"images/a.jpg": [1], "images/a.png": [1]}
    assert [file.path for file in scan.label_files] == ["labels/a.txt"]
    assert scan.rows_in == 2


def test_a_folder_with_the_name_of_a_label_is_none(tmp_path: Path) -> None:
    """It happens where labels were unpacked one level too deep."""
    tree(tmp_path, {"images/a.jpg": "", "images/b.jpg": "", "labels/b.txt": ROW})
    (tmp_path / "labels/a.txt").mkdir()
    assert classes(read(tmp_path)) == {"images/a.jpg": [], "images/b.jpg": [0]}


def test_large_label_files_are_read_whole(tmp_path: Path) -> None:
    """Beyond one read of the operating system."""
    rows = "".join(f"0 0.5 0.5 0.2 {i / 9999:.6f}\n" for i in range(1, 9000))
    scan = read(tree(tmp_path, {"images/a.jpg": "", "labels/a.txt": rows}))
    assert (len(rows) > 1 << 17, scan.rows_in, scan.rows_dropped) == (True, 8999, 0)


def test_laying_out_reads_no_image_and_no_label(tmp_path: Path) -> None:
    """The layout is known before the first of a million files is opened."""
    tree(tmp_path, {"data.yaml": YAML, **both("train/1", "val/2")})
    layout = lay_out(tmp_path, SourceOptions())
    assert [split for split, _ in layout.splits] == ["train", "val"]
    assert layout.read_files == [str(tmp_path / "data.yaml")]
