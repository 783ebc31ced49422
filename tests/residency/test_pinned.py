"""Every picture in main memory: what a renderer loads, one copy a machine where ranks can share, locked where there is a GPU."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import residency_kit as kit
import torch
import training_kit
from gpu_kit import needs_cuda

from fastdata.augment.recipe import Recipe
from fastdata.errors import UsageError
from fastdata.render.tiles import BadRecord
from fastdata.residency import Fetched
from fastdata.residency import pinned as module
from fastdata.residency.budget import DoesNotFit
from fastdata.residency.host_memory import HostMemory, read_at
from fastdata.residency.pinned import Pinned


@pytest.mark.parametrize("imgsz", kit.IMGSZ)
@pytest.mark.parametrize("kind", kit.KINDS)
def test_every_tile_is_what_a_renderer_loads(kind: str, imgsz: int, tmp_path: Path) -> None:
    """Of training and validation."""
    path = kit.stored(tmp_path, kind)
    for samples in kit.trained(path, imgsz), kit.validated(path, imgsz):
        source = Pinned(samples, kit.CPU, progress=False, threads=3)
        assert kit.agree(source, samples) >= len(samples)
        assert (source.nbytes_device, source.nbytes_host > 0) == (0, True)
        source.close()


def test_damage_is_named_or_left_out(tmp_path: Path) -> None:
    """As by every residency."""
    path = kit.stored(tmp_path)
    training_kit.damage(path, 5)
    with pytest.raises(BadRecord, match=r"^005-0\.png: entry 5, record 5 .*CRC32C"):
        Pinned(kit.trained(path), kit.CPU, progress=False)
    samples = kit.trained(path, on_bad="replan")
    source = Pinned(samples, kit.CPU, progress=False)
    assert samples.bad == {5}
    assert kit.agree(source, samples)


def test_closing_lets_the_memory_go_when_no_batch_needs_it(tmp_path: Path) -> None:
    """Twice does no harm, and afterwards nothing is fetched."""
    samples = kit.trained(kit.stored(tmp_path))
    source = Pinned(samples, kit.CPU, progress=False)
    fetched = source.fetch(samples.recipe([0]))
    memory = weakref.ref(fetched.hold[0])
    source.close()
    source.close()
    assert source.nbytes_host == 0
    assert memory() is not None
    del fetched
    gc.collect()
    assert memory() is None
    with pytest.raises(UsageError, match=r"^the source must be open"):
        source.fetch(samples.recipe([0]))


def test_memory_that_the_system_refuses_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in the words of a residency."""

    def refused(*args: Any, **options: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(DoesNotFit, match=r"^19\.0 GB of pictures must fit in main memory, got: .*Cannot allocate memory"):
        HostMemory(19 * 10**9)


def test_a_fork_does_not_copy_the_memory() -> None:
    """The kernel copies what a device has locked when a process forks, unless the mapping is marked (wf in its flags)."""
    memory = HostMemory(1 << 20)
    flags = ""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef" and "-" in line.split()[0]:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            here = first <= memory.address < last
        elif here and line.startswith("VmFlags:"):
            flags = line
    assert " wf" in flags


FOLDERS = [str(Path(kit.__file__).parents[1] / room) for room in ("", "residency", "render")]
"""Where kits are, for programs that tests start."""

# One copy for all ranks

RANK = """
    import sys
    import torch.distributed as dist
    import residency_kit as kit
    from pathlib import Path
    from fastdata.residency import pinned
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=size)
    filled = []
    right = pinned.fill
    pinned.fill = lambda *a, **o: filled.append(1) or right(*a, **o)
    samples = kit.trained(folder / "mixed.lmdb", %(imgsz)s, on_bad=%(on_bad)r)
    %(before)s
    try:
        source = pinned.Pinned(samples, kit.CPU, shared=True, progress=False, threads=1)
    except Exception as err:
        print("error", type(err).__name__, err)
    else:
        seen = kit.agree(source, samples, kit.CPU, whole=False)
        inode = next((line.split()[4] for line in open("/proc/self/maps") if "memfd:fastdata" in line), "none")
        source.close()
        print("made", len(filled), inode, seen, sorted(samples.bad))
    dist.barrier()
    dist.destroy_process_group()
"""


def ranks(folder: Path, size: int = 3, *, imgsz: str = "96", on_bad: str = "raise", before: str = "") -> list[tuple[str, str]]:
    """Run processes that make a shared copy; return what each printed, and what it said to people."""
    code = textwrap.dedent(RANK) % {"imgsz": imgsz, "on_bad": on_bad, "before": before}
    setting = f"import sys; sys.path[:0] = {FOLDERS!r}\n"
    command = [sys.executable, "-c", setting + code]
    running = [
        subprocess.Popen([*command, str(rank), str(size), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    out = []
    for one in running:
        told, said = one.communicate(timeout=240)
        assert one.returncode == 0, said
        out.append((told.strip(), said))
    return out


def test_ranks_of_a_machine_share_one_copy(tmp_path: Path) -> None:
    """The first fills it; all read the same, from the same memory, and know of the same damage."""
    training_kit.damage(kit.stored(tmp_path, "mixed"), 4)
    words = [told.split(maxsplit=4) for told, _ in ranks(tmp_path, on_bad="replan")]
    assert [word[:2] for word in words] == [["made", "1"], ["made", "0"], ["made", "0"]]
    assert len({word[2] for word in words}) == 1
    assert words[0][2] != "none"
    assert len({word[3] for word in words}) == 1
    assert [word[4] for word in words] == ["[4]"] * 3


def test_ranks_with_other_pictures_have_a_copy_for_themselves(tmp_path: Path) -> None:
    """Here of another size."""
    kit.stored(tmp_path, "mixed")
    words = [told.split() for told, _ in ranks(tmp_path, imgsz="(96, 96, 64)[rank]")]
    assert [word[1] for word in words] == ["1", "0", "1"]
    assert words[0][2] == words[1][2] != words[2][2]


def test_an_error_of_the_rank_that_fills_is_that_of_all(tmp_path: Path) -> None:
    """Nobody waits, and nobody trains with what is not there."""
    training_kit.damage(kit.stored(tmp_path, "mixed"), 4)
    for told, _ in ranks(tmp_path):
        assert told.startswith("error BadRecord 004-0.png: entry 4, record 4 of ")


def test_a_rank_that_cannot_share_makes_a_copy_of_its_own_and_says_so(tmp_path: Path) -> None:
    """Once; the others share all the same."""
    kit.stored(tmp_path, "mixed")
    before = """
    import os
    right_open = os.open
    def refused(path, *a, **o):
        if rank == 1 and str(path).startswith("/proc/") and "/fd/" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return right_open(path, *a, **o)
    os.open = refused
    """
    found = ranks(tmp_path, before=textwrap.dedent(before))
    words = [told.split() for told, _ in found]
    assert [word[1] for word in words] == ["1", "1", "0"]
    assert words[0][2] == words[2][2] != words[1][2] == "none"
    assert [said.count("a copy of the pictures for this process alone") for _, said in found] == [0, 1, 0]
    assert "Permission denied" in found[1][1]


def test_without_torch_distributed_a_copy_of_its_own_is_made(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once; if all ranks of this machine can have one."""
    samples = kit.trained(kit.stored(tmp_path))
    source = Pinned(samples, kit.CPU, shared=True, progress=False)
    assert kit.agree(source, samples)
    assert capsys.readouterr().err.count("torch.distributed is not initialised") == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    nbytes = source.nbytes_host
    monkeypatch.setattr(module, "host_available", lambda: 16 * nbytes)
    Pinned(samples, kit.CPU, shared=True, progress=False)
    monkeypatch.setattr(module, "host_available", lambda: 16 * nbytes - 1)
    with pytest.raises(DoesNotFit, match=r"^8 copies of 0\.0 GB must fit in half of the main memory"):
        Pinned(samples, kit.CPU, shared=True, progress=False)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kind", kit.KINDS)
def test_a_kernel_reads_from_main_memory_what_a_renderer_loads(kind: str, tmp_path: Path) -> None:
    """At the processor's address, and rows of any length; and what is pulled of it is the same."""
    device = needs_cuda()
    path = kit.stored(tmp_path, kind, images=20)
    for samples in kit.trained(path, 96), kit.validated(path):
        source = Pinned(samples, device, progress=False)
        assert kit.agree(source, samples, device, fetch=lambda recipe, source=source: in_place(source, recipe)) >= len(samples)
        assert kit.agree(source, samples, device, whole=False) >= len(samples)
        source.close()


def in_place(source: Pinned, recipe: Recipe) -> Fetched:
    """Where the tiles lie in main memory."""
    assert source._resident is not None
    return Fetched(source._resident[0].where(recipe), hold=source._resident[1:])


@pytest.mark.gpu
def test_memory_is_unlocked_when_the_last_batch_lets_it_go(tmp_path: Path) -> None:
    """And then memory can be locked again. What a GPU makes of an address that is not locked is no business of a test's."""
    device = needs_cuda()
    samples = kit.trained(kit.stored(tmp_path))
    source = Pinned(samples, torch.device("cuda"), progress=False)
    fetched = source.fetch(samples.recipe([0]))
    memory = fetched.hold[0]
    address, want = memory.address, memory.array[:64].copy()
    source.close()
    assert np.array_equal(read_at(address, 64, device), want)
    torch.cuda.synchronize(device)
    del fetched, memory
    gc.collect()
    for _ in range(3):
        again = Pinned(samples, device, progress=False)
        assert kit.agree(again, samples, device, whole=False)
        again.close()


@pytest.mark.gpu
def test_memory_that_cannot_be_locked_does_not_fit_and_the_next_kernel_knows_nothing_of_it() -> None:
    """Here because it is locked already."""
    device = needs_cuda()
    memory = HostMemory(1 << 20)
    memory.lock(device)
    with pytest.raises(DoesNotFit, match=r"^0\.0 GB of main memory must be locked for cuda:0, got: .*already"):
        memory.lock(device)
    assert int(torch.ones(1000, device=device).sum()) == 1000
    torch.cuda.synchronize(device)


@pytest.mark.gpu
def test_shared_memory_is_locked_by_each_rank(tmp_path: Path) -> None:
    """As memory of one's own; what ranks of one GPU do here, ranks of several do."""
    needs_cuda()
    kit.stored(tmp_path, "mixed")
    words = [told.split() for told, _ in ranks(tmp_path, 2, before="import torch; kit.CPU = torch.device('cuda', 0)")]
    assert [word[:2] for word in words] == [["made", "1"], ["made", "0"]]


@pytest.mark.gpu
def test_a_program_ends_with_its_memory_locked(tmp_path: Path) -> None:
    """Without closing anything: no error, no message."""
    needs_cuda()
    path = kit.stored(tmp_path)
    code = (
        f"import sys; sys.path[:0] = {FOLDERS!r}\n"
        "import residency_kit as kit, torch\n"
        "from pathlib import Path\n"
        "from fastdata.residency.pinned import Pinned\n"
        f"kept = Pinned(kit.trained(Path({str(path)!r})), torch.device('cuda'), progress=False)\n"
        "print(kept.nbytes_host)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0
