"""What a conversion will cost, before anything is written: bytes, time and loading speed of every codec.

Sizes come from the label files where they state them (exact), else from the headers of a sample; bytes and times of the encoded
codecs from encoding a sample. A sample is spread evenly over the set, so that a set sorted by camera or size is seen whole.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.shared import in_order, shown_again
from fastdata.host import nearest, usable_cores, usable_memory_nbytes
from fastdata.images import Refused, decode_image, probe_size
from fastdata.pixels import decode_payload, encode, fitted_size, resize, to_planar
from fastdata.sources.scan import Scan

SIZE_SAMPLE = 512
"""Headers read when the labels state no sizes."""
SPEED_SAMPLE = 16
"""Pictures decoded and encoded: under two seconds for ordinary photos."""
SPEED_SAMPLE_S = 4.0
"""The sample stops early on large pictures."""
MARGIN = 1.05
"""Asked for above the estimate, since a sample is not the set."""


@dataclass(frozen=True, slots=True)
class CodecCost:
    """What one codec would cost."""

    codec: str
    nbytes: int
    """Of all payloads."""
    convert_s: float
    """Decoding, resizing and encoding with the workers asked for; a slow disk takes longer."""
    load_images_per_s: float
    """Pictures that one core gets out of the store per second, before augmentation."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a conversion would cost."""

    images: int
    rows: int
    missing: int
    """Images that are listed and not there."""
    exact_sizes: bool
    """Whether the sizes of all pictures are stated by the label files."""
    picture_nbytes: int
    """Raw bytes of the largest picture seen, at the size it is stored in."""
    costs: tuple[CodecCost, ...]
    free_nbytes: int
    """On the disk of the target."""
    memory_nbytes: int | None
    """That this process may use; ``None`` when it cannot be told."""
    workers: int

    def cost(self, codec: str) -> CodecCost:
        """Return the cost of one codec."""
        return next(c for c in self.costs if c.codec == codec)

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return asdict(self)


CODECS = ("raw", "jpeg", "webp", "original")


def estimate(scan: Scan, options: ConvertOptions, out: Path, *, codecs: tuple[str, ...] = CODECS, timed: bool = True) -> Estimate:
    """Estimate codecs at the size asked for. Reads a sample of the pictures, writes nothing.

    Args:
        scan: The dataset.
        options: How it is to be stored.
        out: Where.
        codecs: Which; ``original`` is left out where ``imgsz`` excludes it.
        timed: Whether times are wanted; bytes of raw and original are known without decoding anything.
    """
    is_there = scan.nbytes >= 0
    missing = int(np.count_nonzero(~is_there))
    is_there[list(shown_again(scan, in_order(scan)))] = False  # stored once, with the first split that lists it
    there = np.flatnonzero(is_there)
    raw_nbytes, exact = _raw_nbytes(scan, options, there)
    must_encode = tuple(codec for codec in codecs if timed or codec in ("jpeg", "webp"))
    timings = _time_sample(scan, options, there, must_encode)
    workers = options.workers or usable_cores()
    n = len(there)
    costs = []
    for codec in codecs:
        if codec == "original" and options.imgsz is not None:
            continue
        if codec == "original":
            total = float(scan.nbytes[there].sum())
        else:
            total = (
                n
                * raw_nbytes.mean
                * (timings.nbytes[codec] / timings.nbytes["raw"] if timings.nbytes["raw"] and codec != "raw" else 1.0)
            )
        costs.append(
            CodecCost(
                codec=codec,
                nbytes=int(total),
                convert_s=round(timings.convert_s[codec] * n / workers, 1),
                load_images_per_s=round(1 / timings.load_s[codec], 1) if timings.load_s[codec] > 0 else 0.0,
            )
        )
    return Estimate(
        images=len(scan),
        rows=scan.rows_in,
        missing=missing,
        exact_sizes=exact,
        picture_nbytes=int(raw_nbytes.largest),
        costs=tuple(costs),
        free_nbytes=free_nbytes(out),
        memory_nbytes=usable_memory_nbytes(),
        workers=workers,
    )


def choose_codec(estimated: Estimate, options: ConvertOptions) -> tuple[str, str]:
    """Return the codec that ``auto`` stands for, and why.

    raw where it fits the free disk and half of the memory (so that the page cache holds it), else jpeg.
    """
    if options.codec != "auto":
        return options.codec, "as asked for"
    need = estimated.cost("raw").nbytes
    if need * MARGIN > estimated.free_nbytes:
        return "jpeg", f"raw would take {gigabytes(need)}, and {gigabytes(estimated.free_nbytes)} are free on the disk"
    if estimated.memory_nbytes is None:
        return "raw", f"{gigabytes(need)} fit the free disk; how much memory there is cannot be told"
    if need > estimated.memory_nbytes / 2:
        return "jpeg", f"raw would take {gigabytes(need)}, more than half of the {gigabytes(estimated.memory_nbytes)} of memory"
    return "raw", f"{gigabytes(need)} fit the free disk and half of the memory"


def gigabytes(nbytes: float) -> str:
    """Return a size for people: 1.2 GB, 340 MB, 12 kB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{int(nbytes)} B"


def free_nbytes(out: Path) -> int:
    """Return the free bytes of the disk that ``out`` will lie on."""
    return shutil.disk_usage(nearest(out)).free


@dataclass(frozen=True, slots=True)
class _Sizes:
    mean: float
    largest: float


def _spread(there: npt.NDArray[np.int64], k: int) -> list[int]:
    if len(there) <= k:
        return [int(i) for i in there]
    return [int(there[j]) for j in np.linspace(0, len(there) - 1, k).astype(np.int64)]


def _raw_nbytes(scan: Scan, options: ConvertOptions, there: npt.NDArray[np.int64]) -> tuple[_Sizes, bool]:
    """Return the mean and the largest raw size at the stored size, and whether all sizes are known."""
    assert scan.table is not None
    declared = scan.table.declared_hw()[there]
    exact = bool(len(there)) and bool((declared > 0).all())
    if exact:
        shapes = declared.astype(np.float64)
    else:
        probed = [_probe(Path(scan.paths[i])) for i in _spread(there, SIZE_SAMPLE)]
        shapes = np.array([hw for hw in probed if hw is not None], np.float64).reshape(-1, 2)
    if not len(shapes):
        return _Sizes(0.0, 0.0), False
    if options.imgsz is not None:
        gain = options.imgsz / shapes.max(axis=1, keepdims=True)
        shapes = np.maximum(np.minimum(np.ceil(shapes * gain), options.imgsz), 1)
    pixels = shapes.prod(axis=1) * 3
    return _Sizes(float(pixels.mean()), float(pixels.max())), exact


def _probe(path: Path) -> tuple[int, int] | None:
    try:
        with open(path, "rb") as handle:
            found = probe_size(handle.read(1 << 18))
            return found if found is not None else probe_size(path.read_bytes())
    except OSError:
        return None


@dataclass(slots=True)
class _Timed:
    nbytes: dict[str, float]
    convert_s: dict[str, float]
    load_s: dict[str, float]


def _time_sample(scan: Scan, options: ConvertOptions, there: npt.NDArray[np.int64], codecs: tuple[str, ...]) -> _Timed:
    """Return mean bytes and seconds per picture and codec over a sample; nothing is read for no codec."""
    nbytes, convert_s, load_s = (dict.fromkeys(CODECS, 0.0) for _ in range(3))
    seen, began = 0, time.perf_counter()
    for i in _spread(there, SPEED_SAMPLE) if codecs else ():
        if seen and time.perf_counter() - began > SPEED_SAMPLE_S:
            break
        try:
            data = Path(scan.paths[i]).read_bytes()
        except OSError:
            continue
        picture, decode_s = _timed(decode_image, data, max_pixels=options.max_pixels, jpeg=options.decoder)
        if isinstance(picture, Refused):
            continue
        seen += 1
        rgb, resize_s = picture.rgb, 0.0
        if options.imgsz is not None:
            size_hw = fitted_size((rgb.shape[0], rgb.shape[1]), options.imgsz)
            rgb, resize_s = _timed(resize, rgb, size_hw, options.resample)
        planes, planar_s = _timed(to_planar, rgb)
        nbytes["raw"] += planes.nbytes
        convert_s["raw"] += decode_s + resize_s + planar_s
        load_s["raw"] += _timed(planes.copy)[1]
        nbytes["original"] += len(data)
        convert_s["original"] += decode_s
        load_s["original"] += decode_s
        for codec in set(codecs) & {"jpeg", "webp"}:
            payload, encode_s = _timed(encode, rgb, codec, options.quality)
            nbytes[codec] += len(payload)
            convert_s[codec] += decode_s + resize_s + encode_s
            load_s[codec] += _timed(decode_payload, payload, codec, (rgb.shape[0], rgb.shape[1]), 3)[1]
    for table in (nbytes, convert_s, load_s):
        for codec in CODECS:
            table[codec] /= max(seen, 1)
    return _Timed(nbytes, convert_s, load_s)


def _timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    return call(*args, **kwargs), time.perf_counter() - began
