"""What the GPU says of itself: who it is, and what it did between two points in time."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def _nvml() -> tuple[Any, Any] | str:
    """Return NVML and the handle of torch's GPU, or why there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            import torch

            uuid = str(torch.cuda.get_device_properties(0).uuid)
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        except Exception:  # an older torch, or a GPU that NVML knows by another name: then there is but one
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as err:
        return f"{type(err).__name__}: {err}"


def gpu_facts() -> dict[str, Any] | None:
    """Return name, driver, memory, limits and clocks of the GPU; ``None`` without one."""
    global _facts
    if _facts is None:
        found = _nvml()
        _facts = {} if isinstance(found, str) else _read_facts(*found)
    return _facts or None


_facts: dict[str, Any] | None = None


def _read_facts(nvml: Any, gpu: Any) -> dict[str, Any]:
    asked = {
        "name": lambda: nvml.nvmlDeviceGetName(gpu),
        "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "memory_gib": lambda: round(nvml.nvmlDeviceGetMemoryInfo(gpu).total / 2**30, 1),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    }
    return {name: _or_none(ask) for name, ask in asked.items()}


def _or_none(ask: Any) -> Any:
    try:
        return ask()
    except Exception:
        return None


GPM = {
    "sm_activity": "SM_UTIL",
    "sm_occupancy": "SM_OCCUPANCY",
    "tensor_activity": "ANY_TENSOR_UTIL",
    "dram_activity": "DRAM_BW_UTIL",
    "pcie_rx_mb_s": "PCIE_RX_PER_SEC",
}
"""What is asked of GPM, by its name in ``NVML_GPM_METRIC_``; shares in percent."""


class Telemetry:
    """What the GPU did between two points in time.

    A thread reads utilisation, power and clock ten times a second; SM activity and the like are GPM's means of the very interval,
    and the mean power is that of the energy counter where there is one. What the GPU does not tell is ``None``, and
    :attr:`missing` says why.
    """

    PERIOD_S = 0.1

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        found = _nvml()
        self._samples: list[tuple[float, float, float, float]] = []
        self._ended = threading.Event()
        self._gpm = False
        if isinstance(found, str):
            self.missing["gpu"] = found
            self._nvml = None
            return
        self._nvml, self._gpu = found
        try:
            self._gpm = bool(self._nvml.nvmlGpmQueryDeviceSupport(self._gpu).isSupportedDevice)
            if not self._gpm:
                self.missing["gpm"] = "the GPU has none"
        except Exception as err:
            self.missing["gpm"] = f"{type(err).__name__}: {err}"
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        nvml, gpu = self._nvml, self._gpu
        due = time.perf_counter()
        while not self._ended.is_set():
            asks = (
                lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
                lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            )
            values = [_or_none(ask) for ask in asks]
            self._samples.append((time.perf_counter(), *(math.nan if v is None else float(v) for v in values)))
            due = max(due + self.PERIOD_S, time.perf_counter())
            self._ended.wait(due - time.perf_counter())

    def mark(self) -> tuple[float, Any, Any]:
        """Return the beginning of an interval."""
        if self._nvml is None:
            return time.perf_counter(), None, None
        return time.perf_counter(), self._energy(), self._gpm_sample()

    def since(self, mark: tuple[float, Any, Any]) -> dict[str, float | None]:
        """Return what the GPU did since then."""
        start, energy, sample = mark
        now, energy_now, sample_now = self.mark()
        out: dict[str, float | None] = dict.fromkeys(("gpu_util", "power_w", "sm_clock_mhz", *GPM))
        seen = [s for s in self._samples if start <= s[0] <= now]
        for k, name in enumerate(("gpu_util", "power_w", "sm_clock_mhz"), 1):
            told = [s[k] for s in seen if not math.isnan(s[k])]
            out[name] = statistics.fmean(told) if told else None
        if energy is not None and energy_now is not None and energy_now > energy:
            out["power_w"] = (energy_now - energy) / 1000 / (now - start)
        if sample is not None and sample_now is not None:
            out |= self._gpm_between(sample, sample_now)
        for kept in (sample, sample_now):
            if kept is not None:
                self._nvml.nvmlGpmSampleFree(kept)
        return out

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _energy(self) -> int | None:
        found: int | None = _or_none(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu))
        return found

    def _gpm_sample(self) -> Any:
        if not self._gpm:
            return None
        try:
            sample = self._nvml.nvmlGpmSampleAlloc()
            self._nvml.nvmlGpmSampleGet(self._gpu, sample)
            return sample
        except Exception as err:
            self.missing["gpm"] = f"{type(err).__name__}: {err}"
            self._gpm = False
            return None

    def _gpm_between(self, first: Any, last: Any) -> dict[str, float | None]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics, asked.sample1, asked.sample2 = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM), first, last
        for k, name in enumerate(GPM.values()):
            asked.metrics[k].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        try:
            nvml.nvmlGpmMetricsGet(asked)
        except Exception as err:
            self.missing["gpm"] = f"{type(err).__name__}: {err}"
            return dict.fromkeys(GPM)
        return {
            name: float(asked.metrics[k].value) if asked.metrics[k].nvmlReturn == nvml.NVML_SUCCESS else None
            for k, name in enumerate(GPM)
        }


def mean_of(facts: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of each fact over intervals; ``None`` where one of them does not say."""
    out: dict[str, float | None] = {}
    for name in facts[0] if facts else ():
        told = [f[name] for f in facts]
        out[name] = round(statistics.fmean(v for v in told if v is not None), 2) if None not in told else None
    return out


def host_used_gb() -> float:
    """Return the memory of this machine that is in use beside the page cache, page-locked memory included, in GB."""
    fields = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    return (fields["MemTotal"] - fields["MemAvailable"]) * 1024 / 1e9
