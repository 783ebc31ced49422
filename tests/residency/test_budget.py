"""Where pictures are kept is a function of numbers, and the line that says why has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_kit import needs_cuda

from fastdata.host import Roots
from fastdata.residency.budget import DoesNotFit, GpuMemory, capped, choose, gpu_memory, gpu_room, host_available, reserve_of

GB = 10**9
MB = 10**6


def card(total: float, training: float, others: float = 0.5, share: float = 0.7) -> GpuMemory:
    """A card after an epoch; PyTorch has ``share`` of its peak now."""
    size, peak, used = (round(gb * GB) for gb in (total, training, others))
    reserved = round(peak * share)
    return GpuMemory(size, size - used - reserved, reserved, peak)


CARDS = {8: 4.5, 16: 9, 24: 14, 80: 45, 141: 70}
"""GB, and what a training takes of it."""

TABLE = {
    (8, 1): "device", (8, 6): "pinned", (8, 19): "pinned", (8, 100): "stream",
    (16, 1): "device", (16, 6): "pinned", (16, 19): "pinned", (16, 100): "stream",
    (24, 1): "device", (24, 6): "device", (24, 19): "pinned", (24, 100): "stream",
    (80, 1): "device", (80, 6): "device", (80, 19): "device", (80, 100): "stream",
    (141, 1): "device", (141, 6): "device", (141, 19): "device", (141, 100): "stream",
}  # fmt: skip
"""Card and split in GB (19: COCO at 640 px), with 64 GB of main memory available."""


@pytest.mark.parametrize(("total", "split"), TABLE)
def test_what_fits_beside_the_training_is_chosen(total: int, split: int) -> None:
    """GPU memory, else main memory, else neither."""
    gpu = card(total, CARDS[total])
    name, why = choose(split * GB, gpu, 64 * GB, "raw")
    assert name == TABLE[total, split]
    fits = name == "device"
    assert f"{split}.0 GB of pictures {'fit' if fits else 'do not fit'} in GPU memory" in why
    assert "\n" not in why


def test_main_memory_must_hold_pictures_as_they_lie_there() -> None:
    """Their rows are padded for the GPU that reads them."""
    gpu = card(24, 14)
    assert choose(19 * GB, gpu, 40 * GB, "raw", locked_nbytes=20 * GB)[0] == "pinned"
    name, why = choose(19 * GB, gpu, 40 * GB, "raw", locked_nbytes=21 * GB)
    assert name == "stream"
    assert "for which 42.0 GB must be" in why


def test_the_reason_has_the_numbers_and_what_would_change_them() -> None:
    """They add up: 24 - 14 - 0.5 - 2.4 = 7.1 GB."""
    sums = "7.1 GB are left, 24.0 GB less 14.0 GB of training at its peak, 0.5 GB of others and 2.4 GB in reserve"
    assert choose(6 * GB, card(24, 14), 64 * GB, "raw")[1] == f"the 6.0 GB of pictures fit in GPU memory: {sums}"
    short = f"the 19.0 GB of pictures do not fit in GPU memory: {sums}"
    change = "to keep them there free 11.9 GB: a smaller batch, imgsz or reserve_gb"
    held = "they fit in half of the 64.0 GB of main memory that are available"
    assert choose(19 * GB, card(24, 14), 64 * GB, "raw")[1] == f"{short}; {held}; {change}"
    not_held = "nor in half of the 32.0 GB of main memory that are available, for which 38.0 GB must be"
    assert choose(19 * GB, card(24, 14), 32 * GB, "raw") == ("stream", f"{short}; {not_held}; {change}")


@pytest.mark.parametrize(
    ("codec", "decoder", "name"),
    [("raw", True, "stream"), ("webp", True, "stream"), ("jpeg", True, "decode"), ("jpeg", False, "stream")],
)
def test_what_fits_nowhere_is_decoded_by_the_gpu_or_streamed(codec: str, decoder: bool, name: str) -> None:
    """Only JPEGs, and only where the GPU decodes them."""
    assert choose(100 * GB, card(24, 14), 64 * GB, codec, decoder=decoder)[0] == name
    assert choose(1 * GB, card(24, 14), 64 * GB, codec, decoder=decoder)[0] == "device"


def test_main_memory_of_unknown_size_is_not_locked() -> None:
    """Nothing is guessed."""
    name, why = choose(19 * GB, card(24, 14), None, "raw")
    assert name == "stream"
    assert "how much main memory is available cannot be told" in why


def test_a_byte_decides() -> None:
    """At both borders."""
    gpu = card(24, 14)
    room = gpu_room(gpu, reserve_of(gpu.total))
    assert choose(room, gpu, 0, "raw")[0] == "device"
    assert choose(room + 1, gpu, 0, "raw")[0] == "stream"
    assert choose(room + 1, gpu, 2 * room + 2, "raw")[0] == "pinned"
    assert choose(room + 1, gpu, 2 * room + 1, "raw")[0] == "stream"


def test_the_peak_counts_and_not_what_pytorch_has_now() -> None:
    """Whether it has given memory back or keeps it: the training will want it again."""
    rooms = {gpu_room(card(24, 14, share=share), GB) for share in (0.0, 0.5, 1.0)}
    assert rooms == {8_500 * MB}


def test_other_programs_take_from_the_room() -> None:
    """Byte for byte, and a card that is full leaves nothing."""
    assert gpu_room(card(24, 14, others=4), GB) == 5 * GB
    full = card(8, 7.9, others=0.1)
    assert gpu_room(full, GB) < 0
    assert "0.0 GB are left" in choose(1 * GB, full, 64 * GB, "raw")[1]


def test_the_reserve_is_a_tenth_and_at_least_a_gib_unless_it_is_said() -> None:
    """None at all, if that is what was said."""
    assert [reserve_of(total * GB) for total in (4, 8, 24, 141)] == [1 << 30, 1 << 30, 2_400 * MB, 14_100 * MB]
    gpu = card(24, 14)
    assert choose(8 * GB, gpu, 0, "raw")[0] == "stream"
    name, why = choose(8 * GB, gpu, 0, "raw", reserve=0)
    assert name == "device"
    assert "0.0 GB in reserve" in why


def test_a_share_of_a_card_is_a_smaller_card() -> None:
    """What PyTorch may not give out is not free, whoever uses the rest."""
    whole = GpuMemory(100 * GB, 60 * GB, 10 * GB, 12 * GB)
    assert capped(whole, 1.0) == whole
    assert capped(whole, 0.24) == GpuMemory(24 * GB, 14 * GB, 10 * GB, 12 * GB)
    assert capped(whole, 0.9).free == 60 * GB
    assert capped(whole, 0.05).free == 0
    assert gpu_room(capped(whole, 0.24), 2 * GB) == 10 * GB


def test_an_error_of_memory_is_one() -> None:
    """For a caller that knows nothing of this package."""
    assert issubclass(DoesNotFit, MemoryError)


V2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 25 0:30 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"


def machine(folder: Path, available_kb: int | None, mountinfo: str, files: dict[str, str]) -> Roots:
    """Make up the kernel's files."""
    meminfo = "" if available_kb is None else f"MemTotal: {2 * available_kb} kB\nMemAvailable: {available_kb} kB\n"
    for name, text in {"proc/meminfo": meminfo, "proc/self/mountinfo": mountinfo, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Roots(folder / "proc", folder / "sys")


def test_available_memory_is_the_machines_without_a_control_group(tmp_path: Path) -> None:
    """Or not known."""
    assert host_available(machine(tmp_path / "a", 1000, "", {})) == 1000 * 1024
    assert host_available(machine(tmp_path / "b", None, "", {})) is None


@pytest.mark.parametrize("limit", ["50000000", "max"])
def test_a_control_groups_limit_counts_less_what_is_in_use_but_not_the_page_cache(limit: str, tmp_path: Path) -> None:
    """Version 2, with the group around it, which is the tighter one."""
    files = {
        "proc/self/cgroup": "0::/job/rank\n",
        "sys/fs/cgroup/job/memory.max": limit,
        "sys/fs/cgroup/job/memory.current": "30000000",
        "sys/fs/cgroup/job/memory.stat": "anon 9000000\nfile 21000000\nactive_file 8000000\ninactive_file 12000000\n",
        "sys/fs/cgroup/job/rank/memory.max": "90000000",
        "sys/fs/cgroup/job/rank/memory.current": "10000000",
        "sys/fs/cgroup/job/rank/memory.stat": "",
    }
    left = 40_000_000 if limit != "max" else 80_000_000
    assert host_available(machine(tmp_path / "much", 1_000_000, V2, files)) == left
    assert host_available(machine(tmp_path / "little", 1000, V2, files)) == 1_024_000
    files["sys/fs/cgroup/job/rank/memory.current"] = "95000000"  # a limit that was lowered below the use
    assert host_available(machine(tmp_path / "over", 1_000_000, V2, files)) == 0


def test_a_control_group_of_version_1(tmp_path: Path) -> None:
    """Its statistics of the whole tree are the ones named total."""
    files = {
        "proc/self/cgroup": "5:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "50000000",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "30000000",
        "sys/fs/cgroup/memory/job/memory.stat": "active_file 1\ntotal_active_file 8000000\ntotal_inactive_file 7000000\n",
    }
    assert host_available(machine(tmp_path, 1_000_000, V1, files)) == 35_000_000


def test_this_machine_says() -> None:
    """Not more than it has."""
    import psutil

    available = host_available()
    assert available is None or 0 < available <= psutil.virtual_memory().total


@pytest.mark.gpu
def test_the_numbers_of_a_gpu_are_pytorchs_and_the_drivers() -> None:
    """A tensor counts at once, and stays in the peak."""
    import torch

    device = needs_cuda()
    torch.cuda.empty_cache()
    before = gpu_memory(device)
    tensor = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    during = gpu_memory(device)
    assert during.total == before.total
    assert during.reserved == before.reserved + (256 << 20)
    assert during.free <= before.free - (200 << 20)
    del tensor
    torch.cuda.empty_cache()
    after = gpu_memory(device)
    assert after.reserved == before.reserved
    assert after.peak >= during.reserved
