"""Judgements on environment variables."""

from __future__ import annotations

import pytest

from fastdata.diagnosis.environment import RULES, THREADS, variables

SLOW = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_TF32_OVERRIDE": "0",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "TORCH_DISTRIBUTED_DEBUG": "detail",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_DEBUG": "TRACE",
    "OMP_PROC_BIND": "close",
    "GOMP_CPU_AFFINITY": "0-3",
    "KMP_AFFINITY": "granularity=fine,compact",
    "MALLOC_CHECK_": "3",
    "MALLOC_PERTURB_": "165",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONMALLOC": "pymalloc_debug",
    "PYTHONDEVMODE": "1",
    "PYTHONTRACEMALLOC": "1",
}
FINE = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NVIDIA_TF32_OVERRIDE": "1",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "NCCL_P2P_DISABLE": "0",
    "NCCL_SHM_DISABLE": "0",
    "NCCL_IB_DISABLE": "0",
    "NCCL_DEBUG": "WARN",
    "OMP_PROC_BIND": "FALSE",
    "GOMP_CPU_AFFINITY": "",
    "KMP_AFFINITY": "disabled",
    "MALLOC_CHECK_": "0",
    "MALLOC_PERTURB_": "0",
    "MALLOC_ARENA_MAX": "4",
    "PYTHONMALLOC": "malloc",
    "PYTHONDEVMODE": "",
    "PYTHONTRACEMALLOC": "0",
}


def test_every_rule_has_an_example_of_both_kinds() -> None:
    """A rule added without one is not tested."""
    assert {rule.name for rule in RULES} == SLOW.keys() == FINE.keys()
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("name", SLOW)
def test_a_variable_that_slows_a_training_is_a_warning(name: str) -> None:
    """Name, value, and the command that undoes it."""
    (found,) = variables({name: SLOW[name]}, cores=4, counted=4)
    assert (found.name, found.value, found.status, found.fix) == (name, SLOW[name], "warn", f"unset {name}")


def test_harmless_values_of_the_same_variables_are_fine() -> None:
    """Set is not the same as set so."""
    (found,) = variables(FINE, cores=4, counted=4)
    assert (found.name, found.status) == ("environment", "ok")


@pytest.mark.parametrize("name", THREADS)
@pytest.mark.parametrize(
    ("value", "warns"), [("8", True), ("5,2", True), ("4", False), ("1", False), ("", False), ("many", False)]
)
def test_more_threads_than_cores_is_a_warning(name: str, value: str, warns: bool) -> None:
    """Each process would start that many; the fix names the number of cores."""
    found = list(variables({name: value}, cores=4, counted=4))
    assert [f.status for f in found] == (["warn"] if warns else ["ok"])
    if warns:
        assert found[0].fix == f"export {name}=4"


@pytest.mark.parametrize(("value", "warns"), [(None, True), ("", True), ("2", False), ("1", False)])
def test_a_quota_that_openmp_does_not_know_is_a_warning_unless_threads_are_set(value: str | None, warns: bool) -> None:
    """OpenMP counts the cores of the affinity mask: 16 threads on a quota of 2 cores stand in each other's way."""
    environment = {} if value is None else {"OMP_NUM_THREADS": value}
    found = list(variables(environment, cores=2, counted=16))
    assert [f.status for f in found] == (["warn"] if warns else ["ok"])
    if warns:
        assert (found[0].value, found[0].fix) == ("unset", "export OMP_NUM_THREADS=2")
