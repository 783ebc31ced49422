"""A training over two processes, as the trainer starts it: the class travels by value, and each process reads the store itself.

On the processor with gloo; the trainer itself would ask for two GPUs and take NCCL, and differs in nothing else.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from numba import cloudpickle
from ultra_kit import TINY, DetectionTrainer, dataset, settings, store

from fastdata.trainers.ultralytics import accelerate

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import json, pickle, sys
from functools import partial
import torch, ultra_kit
from fastdata.samples import Samples

drawn, draw = [], Samples.draw

def listen(self, ids, epoch=0, *more, **named):
    drawn.append((self.augment, epoch, [int(i) for i in ids]))
    return draw(self, ids, epoch, *more, **named)

if __name__ == "__main__":
    Samples.draw = listen
    whole = torch.nn.parallel.DistributedDataParallel
    torch.nn.parallel.DistributedDataParallel = lambda model, device_ids, **more: whole(model, **more)
    with open(sys.argv[1], "rb") as file:
        made, overrides = pickle.load(file)
    trainer = made(overrides=overrides)
    trainer.train()
    seen = [trainer.validator.seen, len(trainer.train_loader), len(trainer.test_loader), sorted(trainer.metrics or {})]
    print("RESULT", json.dumps([drawn, seen]))
    torch.distributed.destroy_process_group()
"""


def free_port() -> str:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def two_processes(made: Any, overrides: dict[str, Any], folder: Path) -> list[tuple[list[Any], list[Any]]]:
    """Run a training in two processes; returns what each drew, in order, and what it saw of its loaders."""
    (folder / "state.pkl").write_bytes(cloudpickle.dumps((made, overrides)))
    (folder / "child.py").write_text(CHILD)
    port, path = free_port(), f"{ROOT}:{Path(__file__).parent}"
    runs = []
    for rank in ("0", "1"):
        env = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": path}
        command = [sys.executable, str(folder / "child.py"), str(folder / "state.pkl")]
        runs.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [run.communicate(timeout=280) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    return [json.loads(next(line for line in out.splitlines() if line.startswith("RESULT"))[7:]) for out, _ in said]


@pytest.mark.slow
def test_two_processes_share_each_epoch_and_each_validation(tmp_path: Path) -> None:
    """Training: each picture once, but for one that does not divide. Validation: each exactly once, with two batches of a size
    that one would do for."""
    data = dataset(tmp_path / "set", "detect", 14, splits={"train": 0.65, "val": 0.35})

    class OnCpu(DetectionTrainer):
        """Believes in two devices."""

        def __init__(self, cfg: Any = None, overrides: Any = None, _callbacks: Any = None) -> None:
            super().__init__(**({"cfg": cfg} if cfg else {}), overrides=overrides, _callbacks=_callbacks)
            self.world_size = 2

        def _setup_ddp(self) -> None:
            import torch

            torch.distributed.init_process_group("gloo")

        def final_eval(self) -> None:
            """Asks for a GPU as soon as there are several processes."""

    made = accelerate(OnCpu, store(data, tmp_path / "x.lmdb", "detect"))
    ranks = two_processes(made, settings(tmp_path, data, model=str(TINY), batch=8, epochs=2), tmp_path)
    for epoch in (0, 1):
        batches = [[ids for augment, e, ids in drawn if augment and e == epoch] for drawn, _ in ranks]
        assert [len(b) for b in batches] == [1, 1]
        assert [len(ids) for b in batches for ids in b] == [4, 4]
        assert len({i for b in batches for ids in b for i in ids}) == 8  # of 9
    orders = [[ids for augment, e, ids in ranks[0][0] if augment and e == epoch] for epoch in (0, 1)]
    assert orders[0] != orders[1]
    validated = [Counter(i for augment, _, ids in drawn if not augment for i in ids) for drawn, _ in ranks]
    assert not validated[0].keys() & validated[1].keys()
    assert validated[0].keys() | validated[1].keys() == set(range(5))
    assert len({*validated[0].values(), *validated[1].values()}) == 1  # each as often as there were validations
    assert [seen[:3] for _, seen in ranks] == [[5, 1, 1], [ranks[1][1][0], 1, 2]]
    assert "metrics/mAP50(B)" in ranks[0][1][3]
