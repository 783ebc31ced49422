"""A batch of a real training, drawn again from its run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ultra_kit import TINY, DetectionTrainer, dataset, store, train

from fastdata.loader import Loader
from fastdata.show_augmented import samples_of_run
from fastdata.trainers.ultralytics import accelerate


def test_every_batch_of_a_run_can_be_drawn_again(tmp_path: Path) -> None:
    """From nothing but the store and the run folder: its pictures and pixels, before and after mosaic is closed."""
    seen: list[tuple[int, np.ndarray, list[str]]] = []

    class Watched(DetectionTrainer):
        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            if self.model.training:
                seen.append((self.epoch, batch["img"].numpy().copy(), list(batch["im_file"])))
            return super().preprocess_batch(batch)

    data = dataset(tmp_path / "set", "detect")
    path = store(data, tmp_path / "x.lmdb", "detect")
    more = {"mixup": 0.5, "degrees": 10.0, "hsv_v": 0.2, "fliplr": 0.3, "scale": 0.3, "seed": 11}
    train(accelerate(Watched, path), TINY, tmp_path, data, val=False, **more)
    samples, shuffle = samples_of_run(path, tmp_path / "run")
    loader = Loader(samples, 4, shuffle=shuffle, threads=1)
    assert len(seen) == 2 * len(loader) == 4
    for number, (epoch, pixels, files) in enumerate(seen):
        ids = loader.ids(epoch, number % len(loader))
        assert [samples.im_files[i] for i in ids] == files
        assert np.array_equal(samples.draw(ids, epoch)[1], pixels)
    samples.store.close()
