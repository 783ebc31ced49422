"""Judgements on torch's build and the GPUs, with a stand-in for NVML."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from fastdata.diagnosis import gpu
from fastdata.host import Roots

DRIVER = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
GCC version:  gcc version 12.2.0
"""
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"


def machine(tmp_path: Path, driver: str | None) -> Roots:
    """A machine with or without the NVIDIA driver."""
    if driver is not None:
        (tmp_path / "driver/nvidia").mkdir(parents=True)
        (tmp_path / "driver/nvidia/version").write_text(driver)
    return Roots(proc=tmp_path)


@pytest.mark.parametrize(
    ("text", "version"), [(DRIVER, "535.129.03"), (OPEN_DRIVER, "580.95.05"), ("?", "of unknown version"), (None, None)]
)
def test_the_driver_tells_its_version(text: str | None, version: str | None, tmp_path: Path) -> None:
    """The closed and the open kernel module word it differently; no file, no driver."""
    assert gpu.driver_version(machine(tmp_path, text)) == version


@pytest.mark.parametrize(
    ("cuda", "driver", "status", "value"),
    [
        ("cuda: Optional[str] = '13.0'", DRIVER, "ok", "13.0"),
        ("cuda: Optional[str] = '13.0'", None, "ok", "13.0"),
        ("cuda: str | None = None", None, "ok", "none"),
        ("cuda: Optional[str] = None", DRIVER, "bad", "none"),
        ("cuda = '11.8'", DRIVER, "ok", "11.8"),
        ("nothing here", DRIVER, "unknown", None),
    ],
)
def test_a_build_without_cuda_beside_a_driver_is_bad(
    cuda: str, driver: str | None, status: str, value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training would run on the CPU without a word. Torch's file is read, torch is not imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('torch was imported')")
    (tmp_path / "torch/version.py").write_text(f"__version__ = '2.9'\n{cuda}\nhip: Optional[str] = None\n")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "torch/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(gpu, "version_of", lambda name: "2.9")
    found = {f.name: f for f in gpu.torch_build(machine(tmp_path, driver))}
    assert found["torch"].value == "2.9"
    assert (found["torch CUDA"].status, found["torch CUDA"].value) == (status, value)


def test_no_torch_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that converts needs none, and is told how to get it."""
    monkeypatch.setattr(gpu, "version_of", lambda name: None)
    (found,) = gpu.torch_build(Roots())
    assert (found.value, found.status) == ("absent", "ok")
    assert "fastdata-yolo[train]" in found.why


class NVMLError(Exception):
    """As in pynvml."""


class LibraryNotFound(NVMLError):
    """As in pynvml."""


class DriverNotLoaded(NVMLError):
    """As in pynvml."""


def nvml(monkeypatch: pytest.MonkeyPatch, gpus: list[dict[str, Any]], start: Exception | None = None) -> list[str]:
    """Put a stand-in for pynvml in place; return the list in which it notes that it was shut down."""
    ended: list[str] = []

    def init() -> None:
        if start is not None:
            raise start

    def ask(name: str) -> Any:
        def answer(handle: int) -> Any:
            value = gpus[handle][name]
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    module = types.SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_LibraryNotFound=LibraryNotFound,
        NVMLError_DriverNotLoaded=DriverNotLoaded,
        nvmlInit=init,
        nvmlShutdown=lambda: ended.append("shut down"),
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetName=ask("name"),
        nvmlDeviceGetMemoryInfo=ask("memory"),
        nvmlDeviceGetCurrPcieLinkWidth=ask("width"),
        nvmlDeviceGetMaxPcieLinkWidth=ask("most"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    return ended


def card(**changes: Any) -> dict[str, Any]:
    """One GPU that has nothing wrong with it, with changes."""
    memory = types.SimpleNamespace(total=80 << 30, used=1 << 30)
    return {"name": "H200", "memory": memory, "width": 16, "most": 16, **changes}


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({}, "ok", "80.0 GiB, 1.0 GiB of it in use; PCIe x16"),
        ({"name": b"Tesla V100"}, "ok", "PCIe x16"),
        ({"width": 4}, "warn", "PCIe x4 of x16"),
        ({"width": NVMLError("Not Supported")}, "ok", "PCIe link not told"),
        ({"memory": types.SimpleNamespace(total=10 << 30, used=2 << 30)}, "warn", "2.0 GiB of it in use"),
        ({"name": NVMLError("GPU is lost")}, "unknown", "GPU is lost"),
    ],
)
def test_each_gpu_is_judged(
    changes: dict[str, Any], status: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow link and a memory in use are warnings; what NVML does not tell is not judged; the other GPU is not affected."""
    ended = nvml(monkeypatch, [card(**changes), card()])
    first, second = gpu.gpus(machine(tmp_path, DRIVER))
    assert (first.name, first.status, second.name, second.status) == ("GPU 0", status, "GPU 1", "ok")
    assert says in first.why
    assert ended == ["shut down"]


@pytest.mark.parametrize(
    ("error", "driver", "value", "status"),
    [
        (LibraryNotFound("no library"), None, "none", "ok"),
        (DriverNotLoaded("no driver"), None, "none", "ok"),
        (LibraryNotFound("no library"), DRIVER, None, "unknown"),
        (NVMLError("Driver/library version mismatch"), None, None, "unknown"),
    ],
)
def test_nvml_that_does_not_start(
    error: Exception, driver: str | None, value: str | None, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a driver there is no GPU; with one, or with another fault, it cannot be told."""
    nvml(monkeypatch, [], error)
    (found,) = gpu.gpus(machine(tmp_path, driver))
    assert (found.value, found.status) == (value, status)


def test_a_driver_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may see the driver and no card."""
    nvml(monkeypatch, [])
    (found,) = gpu.gpus(machine(tmp_path, DRIVER))
    assert (found.value, found.status) == ("none", "ok")


@pytest.mark.parametrize(("driver", "status"), [(None, "ok"), (DRIVER, "unknown")])
def test_without_nvidia_ml_py(driver: str | None, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is only asked for where there is something to look at."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (found,) = gpu.gpus(machine(tmp_path, driver))
    assert found.status == status
    assert ("fastdata-yolo[monitor]" in (found.fix or "")) == (driver is not None)
