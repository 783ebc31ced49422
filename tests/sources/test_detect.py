"""The format of a dataset is told by what lies in it; what is none is refused with what was looked for and what is there."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fastdata.errors import DataError, UsageError
from fastdata.sources.detect import PEEK_NBYTES, detect, find, read
from fastdata.sources.scan import SourceOptions

YAML = "train: images\nnames: [cat]\n"
XML = (
    "<annotation><size><width>4</width><height>3</height></size><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>4</xmax><ymax>3</ymax></bndbox></object></annotation>"
)
COCO: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 3}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 3], "area": 12, "iscrowd": 0}],
    "categories": [{"id": 1, "name": "cat"}],
}
ROW = "0 0 4 0 4 3 0 3 cat 0\n"

SETS: dict[str, dict[str, str]] = {
    "yolo": {"data.yaml": YAML, "images/a.png": "x", "labels/a.txt": "0 0.5 0.5 1 1\n"},
    "coco": {"annotations/instances_train.json": json.dumps(COCO), "train/a.png": "x", "images/a.png": "x"},
    "voc": {"Annotations/a.xml": XML, "JPEGImages/a.png": "x"},
    "dota": {"labelTxt/a.txt": ROW, "images/a.png": "x"},
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def refusal(src: Path, error: type[Exception] = DataError) -> str:
    with pytest.raises(error) as info:
        detect(src)
    return str(info.value)


@pytest.mark.parametrize("kind", SETS)
def test_a_dataset_of_each_format_is_told_and_read(tmp_path: Path, kind: str) -> None:
    """One image and one object each way; what was detected, and by what, is said for the manifest."""
    root = tree(tmp_path, SETS[kind])
    assert detect(root) == kind
    for asked in (None, kind):
        scan = read(root, SourceOptions(), asked)
        assert scan.source == kind
        assert (len(scan), scan.rows_in, scan.names) == (1, 1, ("cat",))
        assert scan.decisions["detected"].startswith(kind)
    assert scan.decisions["detected"] == f"{kind}, as asked"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("bccd_voc", "voc"),
        ("bccd_voc/BCCD", "voc"),
        ("raccoon_voc", "voc"),
        ("obb_mmrotate/tests/data", "dota"),
        ("coco128/developer0hye", "coco"),
        ("coco128/developer0hye/annotations/instances_train2017.json", "coco"),
        ("coco128/lightly/object_detection", "yolo"),
        ("tinycoco_json/tests/data/tinycoco", "coco"),
        ("pose_minicoco/tests/data/pose_minicoco", "coco"),
    ],
)
def test_published_sets_are_told(shared: Path, data: str, kind: str) -> None:
    """None of them shows a second format."""
    assert [found.kind for found in find(shared / "data" / data)] == [kind]


def test_every_case_is_told(shared: Path) -> None:
    """Every small set of the shared cases, by the format that it is stated to have."""
    told = 0
    for path in sorted((shared / "cases").glob("*/case.json")):
        todo = json.loads(path.read_text())["do"]
        for step in todo.get("steps", [todo]):
            if "convert" in step:
                assert detect(path.parent / step["convert"]) == step["format"], path
                told += 1
    assert told > 30


@pytest.mark.parametrize("folder", ["", "train/", "valid/", "annotations/"])
@pytest.mark.parametrize("name", ["_annotations.coco.json", "labels.json"])
def test_coco_is_found_where_tools_put_it(tmp_path: Path, folder: str, name: str) -> None:
    """Beside the images, in split folders, in annotations; whatever the name."""
    assert detect(tree(tmp_path, {f"{folder}{name}": json.dumps(COCO), f"{folder}a.png": "x"})) == "coco"


def test_coco_is_told_by_head_and_tail_in_any_order_of_its_lists(tmp_path: Path) -> None:
    """Also where one list alone is longer than what is looked at; white space and a byte-order mark mean nothing."""
    much = COCO["annotations"] * (PEEK_NBYTES // 20)
    big = COCO | {"annotations": much, "images": COCO["images"] * (PEEK_NBYTES // 20)}
    assert len(json.dumps(much)) > 2 * PEEK_NBYTES
    for order in itertools.permutations(big):
        for indent in (None, 1):
            text = json.dumps({key: big[key] for key in order}, indent=indent)
            path = tmp_path / "x.json"
            path.write_bytes(b"\xef\xbb\xbf  " + text.encode())
            assert detect(path) == "coco"


def test_looking_at_a_json_file_reads_no_more_than_its_ends(tmp_path: Path) -> None:
    """A file of 1 GiB with nothing in between is told in a few hundred kilobytes."""
    path = tmp_path / "huge.json"
    path.write_bytes(json.dumps(COCO)[:-1].encode())
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    try:
        assert detect(path) == "coco"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"version": "5.0", "shapes": [], "imagePath": "a.png"}', "other keys"),
        ('{"images": ["a.png"]}', "other keys"),
        ('[{"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 0.5}]', "a list, as results have it"),
        ('{"images": [], "annotations": [{"segments_info": [], "image_id": 1}], "categories": []}', "panoptic"),
        ("", "an empty file"),
        ("images: []", "no JSON object"),
    ],
)
def test_json_of_another_purpose_is_not_taken_for_coco(tmp_path: Path, content: str, why: str) -> None:
    """Named itself it is refused with the reason; in a folder it is named as almost a dataset."""
    root = tree(tmp_path, {"instances_train.json": content})
    assert why in refusal(root / "instances_train.json")
    assert why in (text := refusal(root))
    assert "instances_train.json" in text
    assert "--source" in text


@pytest.mark.parametrize(
    "content",
    [
        "name: env\nchannels: [conda-forge]\n",
        "train: {lr: 0.1}\nnames: [a]\n",
        "lr0: 0.01\nnames: [a]\n",
        "train: images\n",
        "- train\n- val\n",
        "train: [\n",
        "",
        "a: &a {b: 1}\n---\ntrain: x\nnames: [a]\n",
    ],
)
def test_yaml_of_another_purpose_is_not_taken_for_a_data_yaml(tmp_path: Path, content: str) -> None:
    """The dataset beside it is found all the same."""
    root = tree(tmp_path, {"environment.yml": content})
    assert "environment.yml" in refusal(root)
    assert detect(tree(root, SETS["voc"])) == "voc"


def test_a_description_may_have_any_name_but_there_must_be_one(tmp_path: Path) -> None:
    """data.yaml wins by its name, also without class names; two others need the user's word."""
    root = tree(tmp_path, {"coco8.yaml": f"\ufeff{YAML}", "hyp.yaml": "lr0: 0.01\n"})
    assert [(f.what, f.path) for f in find(root)] == [("coco8.yaml", root / "coco8.yaml")]
    tree(root, {"coco9.yaml": YAML})
    assert "coco8.yaml, coco9.yaml; name the one to read" in refusal(root, UsageError)
    assert detect(root / "coco9.yaml") == "yolo"
    tree(root, {"data.yaml": "train: images\n"})
    assert find(root)[0].what == "data.yaml"


def test_yaml_that_would_grow_is_looked_at_in_bounds(tmp_path: Path) -> None:
    """Merge keys that refer to each other double at each line where values are built; here nothing is built."""
    lines = ["a0: &a0 {k: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 30)]
    assert detect(tree(tmp_path, {"data.yaml": "\n".join([*lines, YAML])})) == "yolo"
    assert "has no YAML" in refusal(tree(tmp_path / "deep", {"data.yaml": f"{YAML}x: {'[' * 500}"}))


def test_a_large_yaml_file_of_another_purpose_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are enough: a parser takes seconds for a few hundred kilobytes."""

    def never(*args: object, **more: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("yaml.compose", never)
    assert "log.yaml has the keys step, loss" in refusal(tree(tmp_path / "a", {"log.yaml": "step: 1\nloss: 2\n"}))
    assert "log.yaml has more than 524,288 bytes" in refusal(tree(tmp_path / "b", {"log.yaml": YAML + "#" * 600_000}))


def test_the_order_of_formats_is_fixed_and_the_others_are_said(tmp_path: Path) -> None:
    """yolo with a description, coco, voc, dota; each is dropped in turn and the next one wins."""
    for files in SETS.values():
        tree(tmp_path, files)
    assert [found.kind for found in find(tmp_path)] == ["yolo", "coco", "voc", "dota"]
    said = read(tmp_path, SourceOptions()).decisions["detected"]
    assert said.startswith("yolo: data.yaml; also here: annotations/instances_train.json (coco), which --source coco reads; ")
    (tmp_path / "data.yaml").unlink()
    assert [found.kind for found in find(tmp_path)] == ["coco", "voc", "dota", "yolo"]
    (tmp_path / "annotations/instances_train.json").unlink()
    assert detect(tmp_path) == "voc"
    (tmp_path / "Annotations/a.xml").unlink()
    assert detect(tmp_path) == "dota"
    (tmp_path / "labelTxt/a.txt").unlink()
    (tmp_path / "labelTxt").rmdir()
    assert detect(tmp_path) == "yolo"


@pytest.mark.parametrize(
    "files",
    [
        {"images/a.png": "x", "labels/a.txt": ""},
        {"images/train/a.png": "x", "labels/train/a.txt": ""},
        {"train/images/a.png": "x", "train/labels/a.txt": ""},
        {"a.png": "x", "a.txt": ""},
        {"images/a.JPG": "x", "images/a.txt": ""},
        {"images/val/a.jpg": "x", "images/val/a.txt": ""},
        {"obj_train_data/a.jpg": "x", "obj_train_data/a.txt": "", "obj.names": "cat"},
    ],
)
def test_yolo_without_a_description_is_told_by_its_text_files(tmp_path: Path, files: dict[str, str]) -> None:
    """In labels/ beside images/, in split folders, or beside the images."""
    assert detect(tree(tmp_path, files)) == "yolo"


@pytest.mark.parametrize("names", [("images/a.png", "labels/a.json"), ("a.png", "readme.txt"), ("images/a.png",)])
def test_images_without_labels_are_no_dataset(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Training on background alone is nobody's wish; the message lists what is there."""
    text = refusal(tree(tmp_path, dict.fromkeys(names, "{}")))
    assert f"Found {names[0].split('/')[0]}" in text


def test_a_refusal_lists_what_was_looked_for_what_is_there_and_the_fix(tmp_path: Path) -> None:
    """The first few names; an archive among them is named as the likely cause."""
    tree(tmp_path, {f"f{i:02d}.csv": "" for i in range(20)} | {"set.zip": "", "sub/x.csv": ""})
    text = refusal(tmp_path)
    assert text.startswith(f"{tmp_path}: no dataset of a known format. Looked for a YAML file")
    for word in ("COCO", "Pascal VOC", "labelTxt", "labels/"):
        assert word in text
    assert "Found f00.csv, f01.csv, f02.csv, f03.csv, f04.csv, f05.csv, f06.csv, f07.csv and 14 more" in text
    assert "set.zip is an archive: unpack it first" in text
    assert text.endswith("--source yolo|coco|voc|dota, or name the data.yaml or the JSON file itself")


def test_a_refusal_names_the_folder_below_that_is_a_dataset(tmp_path: Path) -> None:
    """People give the folder that they unpacked into."""
    tree(tmp_path / "v1/data", SETS["yolo"])
    assert refusal(tmp_path).endswith(f"{tmp_path}/v1/data holds a dataset (yolo: data.yaml): give that folder")


def test_an_empty_folder_is_called_empty(tmp_path: Path) -> None:
    """Nothing was looked for in vain."""
    assert refusal(tmp_path) == f"{tmp_path}: the dataset must hold files, got an empty folder; give the folder that holds it"


def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path) -> None:
    """A wrong name, a dead link, an address, and what is neither file nor folder."""
    tree(tmp_path, {"bccd/x": ""})
    text = refusal(tmp_path / "bcd/train", UsageError)
    assert f"got {tmp_path}/bcd/train; {tmp_path} holds bccd/" in text
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert f"a link to {tmp_path}/gone, which is not there" in refusal(tmp_path / "link", UsageError)
    assert "local" in refusal(Path("https://example.com/set.zip"), UsageError)
    os.mkfifo(tmp_path / "pipe.json")
    assert "neither" in refusal(tmp_path / "pipe.json", UsageError)
    with pytest.raises(UsageError, match="source must be one of yolo, coco, voc, dota, got 'tfrecord'"):
        detect(tmp_path, "tfrecord")


def test_a_folder_that_may_not_be_read_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its type and names the folder; a locked folder beside the dataset does not stop the search."""

    real = os.scandir

    def locked(path: str) -> Any:
        if os.path.basename(path) == "locked":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr("fastdata.sources.voc_layout.os.scandir", locked)
    tree(tmp_path / "locked", {"x": ""})
    with pytest.raises(PermissionError, match="locked"):
        detect(tmp_path / "locked")
    tree(tmp_path / "VOC2007", SETS["voc"])
    assert detect(tmp_path) == "voc"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("set.zip", "PK", "unpack it first"),
        ("set.tar.gz", "", "unpack it first"),
        ("set", "PK\x03\x04...", "unpack it first"),
        ("a.xml", XML, "give the folder"),
        ("a.png", "x", "give the folder"),
        ("train.csv", "a,b", "must be a data.yaml, a COCO JSON file or a text list of images"),
        ("list.txt", "0 0.5 0.5 1 1\n", "must list images, one a line, got '0 0.5 0.5 1 1'"),
        ("data.yaml", "lr: 1\n", "got the keys lr"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused_with_its_own_fix(tmp_path: Path, name: str, content: str, words: str) -> None:
    """Each for what it is."""
    assert words in refusal(tree(tmp_path, {name: content}) / name, ValueError)


@pytest.mark.parametrize("text", ["images/a.jpg\n", "\ufeff\n\n./b.PNG\r\n", "/data/my photos/c.jpeg"])
def test_a_text_file_that_lists_images_is_yolo(tmp_path: Path, text: str) -> None:
    """Its first line that is not blank decides."""
    assert detect(tree(tmp_path, {"train.txt": text}) / "train.txt") == "yolo"


def test_a_stated_format_is_not_looked_for(tmp_path: Path) -> None:
    """The reader then says what it misses; a folder format needs a folder."""
    root = tree(tmp_path, SETS["yolo"])
    assert detect(root, "voc") == "voc"
    with pytest.raises(DataError, match="Pascal VOC dataset must have a folder Annotations"):
        read(root, SourceOptions(), "voc")
    with pytest.raises(UsageError, match="kind dota must be a folder, got the file"):
        read(root / "data.yaml", SourceOptions(), "dota")


def test_only_the_reader_that_is_needed_is_imported(tmp_path: Path) -> None:
    """Reading DOTA brings neither YAML, XML nor the other readers."""
    root = tree(tmp_path, SETS["dota"])
    code = (
        "import sys; from pathlib import Path; from fastdata.sources.detect import read; "
        "from fastdata.sources.scan import SourceOptions; read(Path(sys.argv[1]), SourceOptions()); "
        "heavy = {'yaml', 'defusedxml', 'pycocotools', 'cv2', 'PIL', 'torch', 'fastdata.sources.voc', 'fastdata.sources.yolo'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(root)], check=True)


@pytest.mark.parametrize("content", ['{"train": "images", "names": ["cat"]}', "\ufeff {train: images,\n names: [cat]}\n"])
def test_a_data_yaml_in_braces_is_one(tmp_path: Path, content: str) -> None:
    """JSON is YAML, and programs write it."""
    root = tree(tmp_path, SETS["yolo"] | {"data.yaml": content})
    assert detect(root / "data.yaml") == "yolo"
    assert read(root / "data.yaml", SourceOptions()).names == ("cat",)


@pytest.mark.parametrize("content", ['{"epochs": 3}', '{"train": "images"', "{train: 3, names: [a]}"])
def test_braces_of_another_purpose_are_not_taken_for_a_data_yaml(tmp_path: Path, content: str) -> None:
    """Other keys, no end, no paths."""
    (tmp_path / "x.yaml").write_text(content)
    assert "x.yaml" in refusal(tmp_path / "x.yaml")
