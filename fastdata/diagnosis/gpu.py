"""What can train here: torch's build, the NVIDIA driver, and the GPUs. Torch is not imported (3 s); its files are read."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.diagnosis.finding import Finding, gib
from fastdata.diagnosis.software import version_of
from fastdata.host import Roots


def torch_build(roots: Roots) -> Iterator[Finding]:
    """Look at torch's version and the CUDA that it was built for."""
    version = version_of("torch")
    if version is None:
        why = "needed for training (pip install 'fastdata-yolo[train]'), not for converting and reading stores"
        yield Finding("torch", "absent", "ok", why)
        return
    yield Finding("torch", version, "ok", "not imported here")
    built, driver = built_for(), driver_version(roots)
    if built is None:
        yield Finding("torch CUDA", None, "unknown", "torch/version.py does not say what it was built for")
    elif built == "none" and driver is not None:
        why = f"torch was built without CUDA, but the machine has NVIDIA driver {driver}"
        yield Finding("torch CUDA", built, "bad", why, "install a build of torch for CUDA: this one trains on the CPU")
    elif built == "none":
        yield Finding("torch CUDA", built, "ok", "torch was built without CUDA, and no NVIDIA driver is loaded here")
    elif driver is None:
        yield Finding("torch CUDA", built, "ok", "built for it; no NVIDIA driver is loaded here, so it computes on the CPU")
    else:
        yield Finding("torch CUDA", built, "ok", f"built for it; NVIDIA driver {driver} is loaded")


def built_for() -> str | None:
    """Return the CUDA version that torch's ``version.py`` states, ``none`` for a build without, ``None`` if it does not say."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*(?:'([^']+)'|None)", text, re.MULTILINE)
    return (found[1] or "none") if found else None


def driver_version(roots: Roots) -> str | None:
    """Return the version of the NVIDIA kernel driver, ``None`` when none is loaded."""
    try:
        text = (roots.proc / "driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else "of unknown version"


def gpus(roots: Roots) -> Iterator[Finding]:
    """Look at every NVIDIA GPU that the driver shows, through NVML; CUDA_VISIBLE_DEVICES does not count there."""
    if importlib.util.find_spec("pynvml") is None:
        if driver_version(roots) is None:
            yield Finding("GPU", "none", "ok", "no NVIDIA driver is loaded")
        else:
            fix = "pip install 'fastdata-yolo[monitor]'"
            yield Finding("GPU", None, "unknown", "an NVIDIA driver is loaded, but nvidia-ml-py is not installed to ask it", fix)
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        absent = isinstance(e, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        if absent and driver_version(roots) is None:
            yield Finding("GPU", "none", "ok", "no NVIDIA driver is loaded")
        else:
            yield Finding("GPU", None, "unknown", f"NVML does not start: {e}", "run nvidia-smi: its message says what is wrong")
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        if not count:
            yield Finding("GPU", "none", "ok", "an NVIDIA driver is loaded, but shows no GPU")
        for i in range(count):
            try:
                yield _gpu(pynvml, i)
            except pynvml.NVMLError as e:
                yield Finding(f"GPU {i}", None, "unknown", f"NVML: {e}", "run nvidia-smi: its message says what is wrong")
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, i: int) -> Finding:
    handle = pynvml.nvmlDeviceGetHandleByIndex(i)
    name = pynvml.nvmlDeviceGetName(handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        width, most = (int(ask(handle)) for ask in (pynvml.nvmlDeviceGetCurrPcieLinkWidth, pynvml.nvmlDeviceGetMaxPcieLinkWidth))
    except pynvml.NVMLError:
        width = most = 0
    why = f"{gib(memory.total)}, {gib(memory.used)} of it in use" + (f"; PCIe x{width}" if width else "; PCIe link not told")
    if width < most:
        fix = "check the slot, the riser and the BIOS: streaming to the GPU is held up"
        return Finding(f"GPU {i}", name, "warn", f"{why} of x{most}", fix)
    if memory.used > memory.total / 10:
        return Finding(f"GPU {i}", name, "warn", why, "look with nvidia-smi who uses it: a measurement would be of both")
    return Finding(f"GPU {i}", name, "ok", why)
