"""Judgements on what is installed."""

from __future__ import annotations

import sys
import types
from importlib.metadata import version
from pathlib import Path

import pytest

from fastdata.diagnosis import software


def test_versions_are_those_of_the_metadata() -> None:
    """Nothing is imported for it, and each finding has a value."""
    found = {f.name: f for f in software.packages()}
    assert found["numpy"].value == version("numpy")
    assert found["pillow"].value == version("pillow")
    assert found["simplejpeg"].value == version("simplejpeg")
    assert found["opencv"].value == version("opencv-python-headless")


def test_two_packages_of_opencv_are_bad() -> None:
    """They overwrite each other; one is fine; none cannot be told."""
    two = software.opencv({"opencv-python": "4.10", "opencv-python-headless": "5.0"})
    assert two.status == "bad"
    assert two.fix == "pip uninstall opencv-python opencv-python-headless, then pip install opencv-python-headless"
    assert software.opencv({"opencv-contrib-python": "4.10"}).status == "ok"
    assert software.opencv({}).status == "unknown"


def test_a_package_that_is_not_there_is_unknown_with_the_command_that_brings_it() -> None:
    """No version is invented."""
    found = software._needed("nothing", "no-such-distribution-at-all", "why")
    assert (found.value, found.status, found.fix) == (None, "unknown", "pip install no-such-distribution-at-all")


def test_the_libjpeg_turbo_inside_simplejpeg_is_found() -> None:
    """Its version is a text in the module."""
    found = software.libjpeg_turbo("simplejpeg")
    assert found is not None
    assert found[0].isdecimal()
    assert "." in found


def test_a_package_without_libjpeg_turbo_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has one that does not exist."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/__init__.py").touch()
    (tmp_path / "bare/x.so").write_bytes(b"libjpeg-turbo, of no version")
    monkeypatch.syspath_prepend(tmp_path)
    assert software.libjpeg_turbo("bare") is None
    assert software.libjpeg_turbo("no_such_package_at_all") is None
    (tmp_path / "bare/y.so").write_bytes(b"\0libjpeg-turbo version 9.8.7 (build 1)\0")
    assert software.libjpeg_turbo("bare") == "9.8.7"


@pytest.mark.parametrize("error", [RuntimeError("Unable to locate\nmore"), OSError("cannot open"), AttributeError("tj3Init")])
def test_pyturbojpeg_without_a_library_that_it_works_with_is_a_warning(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which its constructor fails; only the first line of the message is shown."""

    def fail() -> None:
        raise error

    monkeypatch.setitem(sys.modules, "turbojpeg", types.SimpleNamespace(TurboJPEG=fail))
    found = software.turbojpeg("2.6.1")
    assert (found.value, found.status) == ("2.6.1", "warn")
    assert found.why.endswith(str(error).split("\n")[0])


def test_pyturbojpeg_that_works_or_is_absent_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    monkeypatch.setitem(sys.modules, "turbojpeg", types.SimpleNamespace(TurboJPEG=lambda: None))
    assert software.turbojpeg("1.8.3").status == "ok"
    assert software.turbojpeg(None).status == "ok"
