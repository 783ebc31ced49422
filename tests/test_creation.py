"""A store made in a loop: what comes back, and that a wrong argument is told and leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from fastdata.catalog import Keypoints
from fastdata.errors import DataError, UsageError
from fastdata.labels import CROWD, OBB, POLYGON

IMAGE = np.arange(40 * 60 * 3, dtype=np.uint32).reshape(40, 60, 3).astype(np.uint8)


@pytest.mark.parametrize("name", ["own.lmdb", "own"])
def test_what_is_added_comes_back(tmp_path: Path, name: str) -> None:
    """Pixels, boxes, classes, outlines, keypoints, crowds, names, ids and splits."""
    with fastdata.create(tmp_path / name, ["cat", "dog"], keypoints=Keypoints(count=2)) as w:
        w.add(
            IMAGE,
            boxes=[[1, 2, 11, 22], [0, 0, 60, 40]],
            classes=[1, 0],
            polygons=[[[[1, 2], [11, 2], [1, 22]]], None],
            keypoints=[[[3, 4, 2], [0, 0, 0]], [[5, 6, 1], [7, 8, 2]]],
            crowd=[False, True],
            key="a.png",
            image_id=7,
        )
        w.add(IMAGE[:, ::-1].copy(), split="val")
    with fastdata.open_store(tmp_path / name) as store:
        assert np.array_equal(store.image(0), IMAGE.transpose(2, 0, 1))
        found = store.instances(0)
        assert found.cls.tolist() == [1, 0]
        assert found.xyxy_px.tolist() == [[1, 2, 11, 22], [0, 0, 60, 40]]
        assert found.kind[0] == POLYGON
        assert found.parts(0)[0].tolist() == [[1, 2], [11, 2], [1, 22]]
        assert found.flags.tolist() == [0, CROWD]
        assert found.keypoints_px[1].tolist() == [[5, 6, 1], [7, 8, 2]]
        assert (store.key(0), int(store.catalog.entry_image_id[0])) == ("a.png", 7)
        assert dict(store.manifest.splits) == {"train": (0, 1), "val": (1, 2)}


def test_labels_follow_the_picture_through_a_resize(tmp_path: Path) -> None:
    """Twice the size, twice the box."""
    with fastdata.create(tmp_path / "o.lmdb", ["a"], imgsz=120) as w:
        w.add(IMAGE, boxes=[[1, 2, 11, 22]])
    with fastdata.open_store(tmp_path / "o.lmdb") as store:
        assert store.image(0).shape == (3, 80, 120)
        assert store.instances(0).xyxy_px.tolist() == [[2, 4, 22, 44]]


def test_gray_pictures_take_one_plane_and_oriented_boxes_keep_their_corners(tmp_path: Path) -> None:
    """(H, W) is stored as one channel; corners beyond the border stay, the box around them is clipped."""
    with pytest.warns(UserWarning, match="1 label rows were clipped"), fastdata.create(tmp_path / "o.lmdb", ["a"]) as w:
        w.add(IMAGE[..., 0].copy(), corners=[[[50, 10], [70, 10], [70, 20], [50, 20]]])
    with fastdata.open_store(tmp_path / "o.lmdb") as store:
        assert store.image(0).shape == (1, 40, 60)
        found = store.instances(0)
        assert found.kind.tolist() == [OBB]
        assert found.parts(0)[0].tolist() == [[50, 10], [70, 10], [70, 20], [50, 20]]
        assert found.xyxy_px.tolist() == [[50, 10, 60, 20]]


def test_a_fault_stops_where_that_is_asked_for(tmp_path: Path) -> None:
    """on_error="raise" names the picture, the object and the rule; nothing is left."""
    with pytest.raises(DataError, match=r"a: object 2: zero-area"), fastdata.create(tmp_path / "o", ["a"], on_error="raise") as w:
        w.add(IMAGE, boxes=[[1, 1, 5, 5], [3, 3, 3, 9]], key="a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"boxes": [[1, 2, 3]]}, "boxes must be of shape"),
        ({"boxes": [[1, 2, 9, 9]]}, "classes must be given"),
        ({"boxes": [[1, 2, 9, 9]], "classes": [2]}, r"classes must be 0\.\.1"),
        ({"boxes": [[1, 2, 9, 9]], "classes": [2**32]}, "classes must be"),
        ({"boxes": [[1, 2, 9, 9]], "classes": [1.5]}, "without loss"),
        ({"boxes": [[1, 2, 9, 9]], "classes": ["1"]}, "classes must be"),
        ({"boxes": [[1, 2, 9, 9]], "classes": [0], "crowd": ["False"]}, "crowd must be"),
        ({"boxes": [[1, 2, 9, 9]], "classes": [0, 1]}, "classes must be of shape"),
        ({"boxes": [[1, 2, 9, 9]], "classes": [0], "keypoints": [[[1, 2, 3]]]}, "keypoints must be declared"),
        ({"corners": [[1, 2, 3, 4, 5, 6, 7, 8]], "classes": [0]}, "corners must be of shape"),
        ({"polygons": [[[[1, 2], [3, 4]]]], "classes": [0]}, "at least 3 points"),
        ({"image_id": 1.7}, "image_id must be"),
        ({"image_id": 2**63}, "image_id must be"),
        ({"split": ""}, "split must be a name"),
        ({"split": 3}, "split must be a name"),
        ({"image": IMAGE.astype(np.float32)}, "image must be uint8"),
        ({"image": b"nonsense"}, "unreadable"),
    ],
)
def test_a_wrong_argument_is_told_and_leaves_no_trace(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    """The same key can be added again at once, and the store holds what was right."""
    with fastdata.create(tmp_path / "o.lmdb", ["a", "b"]) as w:
        with pytest.raises((UsageError, DataError), match=words):
            w.add(**{"image": IMAGE, "key": "k", **arguments})
        w.add(IMAGE, boxes=[[1, 2, 9, 9]], classes=[1], key="k")
    with fastdata.open_store(tmp_path / "o.lmdb") as store:
        assert len(store) == store.catalog.counts.records == 1
        assert list(store.manifest.splits) == ["train"]


@pytest.mark.parametrize(
    "arguments", [{"names": "cat"}, {"names": []}, {"names": ["a", "a"]}, {"codec": "foo"}, {"resample": "foo"}]
)
def test_settings_are_checked_before_anything_is_written(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """No staging folder stays either."""
    with pytest.raises(UsageError):
        fastdata.create(tmp_path / "o.lmdb", **{"names": ["a"], **arguments})
    assert list(tmp_path.iterdir()) == []


def test_a_publication_that_fails_gives_the_place_back(tmp_path: Path) -> None:
    """Something else came to lie there meanwhile: told, and the next try in the same process is not locked out."""
    place = tmp_path / "o.lmdb"
    writer = fastdata.create(place, ["a"])
    writer.add(IMAGE)
    place.write_text("foreign")
    with pytest.raises(UsageError, match="something else"):
        writer.__exit__(None, None, None)
    place.unlink()
    with fastdata.create(place, ["a"]) as w:
        w.add(IMAGE)
    assert [p.name for p in tmp_path.iterdir()] == ["o.lmdb"]
