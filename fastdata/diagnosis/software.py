"""What is installed: versions, and which library decodes JPEG. Reads package metadata; imports neither OpenCV nor torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from fastdata import __version__
from fastdata.diagnosis.finding import Finding

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
"""Distributions that put their files into the one folder cv2: only one of them may be installed."""


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages() -> Iterator[Finding]:
    """Look at Python and the packages that this one stands on."""
    system = f"{platform.python_implementation()} on {platform.system()} {platform.release()}, {platform.machine()}"
    yield Finding("python", platform.python_version(), "ok", system)
    yield Finding("fastdata", __version__, "ok", "this package")
    yield _needed("numpy", "numpy", "tables, plans, labels")
    yield opencv({name: version for name in OPENCV if (version := version_of(name))})
    yield _needed("pillow", "pillow", "decodes TIFF, GIF, AVIF and what others refuse")
    inside = libjpeg_turbo("simplejpeg")
    why = "decodes JPEG, with libjpeg-turbo " + (f"{inside} inside" if inside else "inside, whose version it does not tell")
    yield _needed("simplejpeg", "simplejpeg", why)
    yield turbojpeg(version_of("PyTurboJPEG"))


def _needed(name: str, distribution: str, why: str) -> Finding:
    version = version_of(distribution)
    if version is None:
        return Finding(name, None, "unknown", "it was not installed as a package", f"pip install {distribution}")
    return Finding(name, version, "ok", why)


def opencv(installed: dict[str, str]) -> Finding:
    """Judge the distributions of OpenCV that are installed, by name and version."""
    if not installed:
        return Finding("opencv", None, "unknown", "cv2 was not installed as a package", "pip install opencv-python-headless")
    if len(installed) > 1:
        names = " ".join(installed)
        why = "they share the folder cv2, and the last one installed wrote over the files of the others"
        fix = f"pip uninstall {names}, then pip install opencv-python-headless"
        return Finding("opencv", ", ".join(f"{name} {version}" for name, version in installed.items()), "bad", why, fix)
    name, version = next(iter(installed.items()))
    return Finding("opencv", version, "ok", f"{name}: resizes, and decodes PNG, BMP, WebP and more")


def turbojpeg(version: str | None) -> Finding:
    """Look whether PyTurboJPEG, if it is installed, finds a library that it works with."""
    if version is None:
        return Finding("PyTurboJPEG", "absent", "ok", "only --decoder turbojpeg needs it; simplejpeg decodes otherwise")
    import turbojpeg as module

    try:
        module.TurboJPEG()
    except (RuntimeError, OSError, AttributeError) as e:  # no library; not loadable; another generation of it
        fix = "apt-get install libturbojpeg0 for PyTurboJPEG 1.x (2.x needs libjpeg-turbo 3), or leave it: simplejpeg decodes"
        why = f"it finds no libturbojpeg that it works with: {str(e).partition(chr(10))[0]}"
        return Finding("PyTurboJPEG", version, "warn", why, fix)
    return Finding("PyTurboJPEG", version, "ok", "decodes JPEG with the libturbojpeg of the system, for --decoder turbojpeg")


def libjpeg_turbo(package: str) -> str | None:
    """Return the version that the libjpeg-turbo within a package's extension module carries as text."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for library in sorted(file for folder in folders or () for file in Path(folder).glob("*.so")):
        if found := re.search(rb"libjpeg-turbo version (\d[0-9.]*)", library.read_bytes()):
            return found[1].decode()
    return None
