"""Environment variables that slow a training, usually left over from debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fastdata.diagnosis.finding import Finding


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Rule:
    """A variable, the values that slow a training, and what they do."""

    name: str
    slows: Callable[[str], bool]
    why: str


RULES = (
    # CUDA C++ Programming Guide, "CUDA Environment Variables"
    Rule("CUDA_LAUNCH_BLOCKING", _is_on, "every kernel is waited for, so that loading, copying and computing take turns"),
    Rule("CUDA_DEVICE_MAX_CONNECTIONS", lambda v: v.strip() == "1", "all streams share one queue: copies wait for kernels"),
    Rule("CUDA_VISIBLE_DEVICES", lambda v: v.strip() in ("", "-1"), "it hides every GPU: the training runs on the CPU"),
    # cuBLAS and torch documentation
    Rule("NVIDIA_TF32_OVERRIDE", lambda v: v.strip() == "0", "matrix products in float32 go without tensor cores"),
    Rule("PYTORCH_NO_CUDA_MEMORY_CACHING", _is_on, "every tensor asks the driver for memory, and waits for the GPU to do so"),
    Rule("TORCH_DISTRIBUTED_DEBUG", lambda v: v.strip().upper() == "DETAIL", "every collective operation is checked by another"),
    # NCCL user guide, "Environment Variables"
    Rule("NCCL_P2P_DISABLE", _is_on, "GPUs exchange gradients through main memory instead of NVLink or PCIe"),
    Rule("NCCL_SHM_DISABLE", _is_on, "GPUs of one machine exchange gradients through the network stack"),
    Rule("NCCL_IB_DISABLE", _is_on, "machines exchange gradients over TCP instead of InfiniBand or RoCE"),
    Rule("NCCL_DEBUG", lambda v: v.strip().upper() == "TRACE", "every call is logged"),
    # libgomp and OpenMP 5.2, chapter 21
    Rule(
        "OMP_PROC_BIND",
        lambda v: v.strip().lower() not in ("", "false"),
        "the main thread is bound to one core, and worker processes forked from it share that core",
    ),
    Rule("GOMP_CPU_AFFINITY", lambda v: bool(v.strip()), "threads are bound to cores, and forked worker processes inherit that"),
    Rule("KMP_AFFINITY", lambda v: v.strip().lower() not in ("", "none", "disabled"), "threads are bound to cores, as above"),
    # mallopt(3)
    Rule("MALLOC_CHECK_", _is_on, "every allocation is checked"),
    Rule("MALLOC_PERTURB_", _is_on, "all memory is overwritten when it is released"),
    Rule("MALLOC_ARENA_MAX", lambda v: v.strip() == "1", "threads wait for each other at every allocation"),
    # Python documentation, "Command line and environment"
    Rule("PYTHONMALLOC", lambda v: "debug" in v, "every allocation of Python is checked"),
    Rule("PYTHONDEVMODE", _is_on, "Python checks every allocation and looks for faults as it runs"),
    Rule("PYTHONTRACEMALLOC", _is_on, "Python records where every object was made"),
)
"""In each case the fix is to unset the variable."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
"""Numbers of threads that libraries start in every process."""


def variables(environment: Mapping[str, str], cores: int, counted: int) -> Iterator[Finding]:
    """Judge environment variables.

    Args:
        environment: Name to value.
        cores: Cores that this process may use at the same time.
        counted: Cores that libraries count, which know affinity but no quota.
    """
    clean = True
    for rule in RULES:
        value = environment.get(rule.name)
        if value is not None and rule.slows(value):
            clean = False
            yield Finding(rule.name, value, "warn", rule.why, f"unset {rule.name}")
    for name in THREADS:
        value = environment.get(name, "").partition(",")[0].strip()  # OpenMP takes one number a level
        if value.isdecimal() and int(value) > cores:
            clean = False
            why = f"threads in every process, but {cores} cores: they get in each other's way"
            yield Finding(name, int(value), "warn", why, f"export {name}={cores}", "threads")
    if not environment.get("OMP_NUM_THREADS", "").strip() and cores < counted:
        clean = False
        why = f"OpenMP, and torch with it, starts {counted} threads in every process, but the quota is {cores} cores"
        yield Finding("OMP_NUM_THREADS", "unset", "warn", why, f"export OMP_NUM_THREADS={cores}")
    if clean:
        yield Finding("environment", "clean", "ok", f"none of {len(RULES) + len(THREADS)} variables slows a training")
