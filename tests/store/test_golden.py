"""Published bytes stay readable, and today's writer still makes them. ``tests/golden/make.py`` says how they came about."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from second_reader import SecondReader
from store_kit import BACKENDS, assert_same_instances, bytes_of, check_all, place

from fastdata.catalog import Keypoints
from fastdata.labels import MASK, Instances
from fastdata.store.read import open_store

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("backend", BACKENDS)
def test_todays_writer_makes_the_golden_bytes(backend: str, make: ModuleType, tmp_path: Path) -> None:
    """Every file of the store, byte by byte; a difference is another format and needs another version."""
    out = make.make(place(tmp_path, backend, "store-v1"))
    assert bytes_of(out) == bytes_of(place(GOLDEN, backend, "store-v1"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_todays_reader_reads_the_golden_store(backend: str, make: ModuleType) -> None:
    """Every noun of the format, against what the script says."""
    with open_store(place(GOLDEN, backend, "store-v1")) as store:
        check_all(store)
        m = store.manifest
        assert (m.backend, m.codec, m.task, m.imgsz, m.resample, m.quality) == (backend, "raw", "pose", 4, "trainer", None)
        assert (m.names, m.category_ids, m.source, m.writer) == (("cat", "dög\udce4"), (1, 18), "coco", "golden")
        assert m.keypoints == Keypoints(2, ("left", "right"), (1, 0), ((0, 1),), 3)
        assert (dict(m.decisions), dict(m.options)) == ({"label-rule": "images->labels"}, {"imgsz": 4, "codec": "raw"})
        assert (dict(m.summary), dict(m.extra)) == ({"images": {"in": 5, "stored": 5}}, {"later": [1, None]})
        assert dict(m.splits) == {"train": (0, 2), "val": (2, 2), "test": (2, 5)}
        assert len(m.files) == (1 if backend == "lmdb" else 2)
        keys = ["images/a.jpg", "images/b\udcff.jpg", "images/c – d.webp", "images/gray.png", "images/a.jpg#part"]
        assert [store.key(i) for i in range(5)] == keys
        assert_same_instances(store.instances(0), make.objects())
        assert_same_instances(store.instances(4), make.objects())
        assert_same_instances(store.instances(1), Instances.empty(2))
        assert store.instances(0).kind[3] == MASK
        assert [store.read(i).tobytes() for i in (1, 2)] == [make.JPEG, make.WEBP]
        assert np.array_equal(store.image(4), store.image(0)[:, 0:2, 1:4])
        assert store.image(3).shape == (1, 2, 3)
        assert store.catalog.entry_record.tolist() == [0, 1, 2, 3, 0]
        assert store.catalog.entry_rect.tolist()[0::4] == [[0, 0, 4, 3], [1, 0, 4, 2]]
        assert store.catalog.entry_image_id.tolist() == [1000, -1, 2, -1, 1000]
        assert store.catalog.entry_source_mtime_ns[0] == 1_600_000_000_000_000_001
        assert store.catalog.rec_encoding.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reader_written_from_the_document_reads_the_golden_store(backend: str, make: ModuleType) -> None:
    """``second_reader.py`` imports nothing of the package."""
    second = SecondReader(place(GOLDEN, backend, "store-v1"))
    assert second.records[1:3] == [make.JPEG, make.WEBP]
    assert second.text("key_offsets", "key_bytes", 1) == "images/b\udcff.jpg"
    assert second.text("label_file_offsets", "label_file_names", 1) == "labels/b\udcff.txt"
    want = make.objects()
    assert [len(second.outline(i)) for i in range(4)] == [len(want.parts(i)) for i in range(4)]
    assert np.array_equal(second.outline(2)[0], want.parts(2)[0])
    assert np.array_equal(second.sections["keypoints_px"][4:], want.keypoints_px)
    assert second.sections["problems"].tobytes() == b'{"kind": "clipped", "file": "labels/a.txt", "line": 3}\n'
    assert "fastdata" not in {name.split(".")[0] for name in vars(__import__("second_reader")) if name[0] != "_"}


def test_the_golden_stores_hold_one_catalog() -> None:
    """Both backends have the same sections but for the places of records."""
    one, two = (SecondReader(place(GOLDEN, backend, "store-v1")) for backend in BACKENDS)
    assert list(one.sections) == list(two.sections)
    different = {name for name in one.sections if one.sections[name].tobytes() != two.sections[name].tobytes()}
    assert different == {"rec_file", "rec_offset"}
    assert one.records == two.records
