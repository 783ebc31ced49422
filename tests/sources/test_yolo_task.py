"""What a YOLO dataset is for, where nobody says it: the task that its store is read for by default."""

from __future__ import annotations

from pathlib import Path

import pytest
from yolo_kit import read, tree

BOX = "0 .5 .5 .2 .2\n"
OUTLINE = "0 .1 .1 .5 .2 .6 .6 .3 .7 .1 .5\n"
CORNERS = "0 .1 .1 .5 .1 .5 .6 .1 .6\n"


@pytest.mark.parametrize(
    ("yaml", "rows", "task"),
    [
        ("", [BOX, BOX], "detect"),
        ("", [OUTLINE, OUTLINE], "segment"),
        ("", [OUTLINE + CORNERS, ""], "segment"),
        ("", [OUTLINE, BOX], "detect"),  # the trainers drop the outlines of a mixed set
        ("", [CORNERS, CORNERS], "detect"),  # outlines or oriented boxes: nobody knows
        ("", ["", ""], "detect"),
        ("task: detect\n", [OUTLINE, OUTLINE], "detect"),
        ("task: obb\n", [CORNERS, CORNERS], "obb"),
    ],
)
def test_a_set_of_outlines_alone_is_for_segmentation(tmp_path: Path, yaml: str, rows: list[str], task: str) -> None:
    """Unless its data.yaml says otherwise; and the manifest says why."""
    files = {"data.yaml": f"train: images\nnames: [cat]\n{yaml}", "images/0.jpg": "", "images/1.jpg": ""}
    tree(tmp_path, files | {f"labels/{i}.txt": text for i, text in enumerate(rows)})
    scan = read(tmp_path, on_error="skip")
    assert scan.task == task
    assert ("task" in scan.decisions) == (task == "segment")


def test_the_user_s_word_on_the_task_comes_first(tmp_path: Path) -> None:
    """A set of outlines may be meant for its boxes."""
    tree(tmp_path, {"data.yaml": "train: images\nnames: [cat]\n", "images/0.jpg": "", "labels/0.txt": OUTLINE})
    assert read(tmp_path, task="detect").task == "detect"
