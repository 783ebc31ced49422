"""Whether a store still says what its source says.

Label files are compared by their digests. A picture of another size has changed; one of the same size and time has not; one that
is only newer (a copy of the dataset, say) is converted once more, and has changed if that gives other bytes than the store holds.
With another version of a decoder it may give other bytes without a change: such a picture is listed, since nothing can tell.

What the conversion left out is not "added", as long as it is still there. The source is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastdata.checksum import crc32c
from fastdata.conversion.report import kept_in
from fastdata.errors import DataError, UsageError
from fastdata.images import Refused, decode_image
from fastdata.pixels import encode, fitted_size, is_original_jpeg, resize
from fastdata.sources.detect import KINDS, read
from fastdata.sources.scan import Scan, SourceOptions
from fastdata.store.read import Store

LABEL_SECTIONS = ("label_file_offsets", "label_file_names", "label_file_digests")
PICTURE_COLUMNS = ("key_offsets", "key_bytes", "entry_source_nbytes", "entry_source_mtime_ns", "entry_record", "rec_crc")


class Mapper(Protocol):
    """``map`` that may use threads."""

    def __call__(self, work: Callable[[int], bool], items: Iterable[int]) -> Iterator[bool]:
        """Yield the results in order."""


@dataclass(slots=True)
class Changes:
    """Label files and pictures of a source, relative to its root, sorted."""

    changed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def read_again(store: Store, source: Path, options: SourceOptions | None) -> Scan:
    """Read the source as the conversion did: the same kind, and the same splits where they are not what is read by default.

    Raises:
        UsageError: The store was not converted from a dataset.
        DataError: The source is no such dataset.
    """
    manifest = store.manifest
    if manifest.source not in KINDS:
        raise UsageError(
            f"source must be what the store was converted from, and {store.path} was made by {manifest.source or 'hand'}"
        )
    if options is not None:
        return read(source, options, manifest.source)
    splits = tuple(manifest.splits)
    single_cls = bool(manifest.options.get("single_cls"))
    try:
        scan = read(source, SourceOptions(on_error="skip", single_cls=single_cls), manifest.source)
        if scan.splits == splits:
            return scan
    except DataError:
        pass  # by a split that was not converted, perhaps
    return read(source, SourceOptions(splits=splits, on_error="skip", single_cls=single_cls), manifest.source)


def compare(store: Store, scan: Scan, damaged: frozenset[str], mapper: Mapper) -> Changes:
    """Compare a store with its source.

    Args:
        store: Opened.
        scan: The source as it is now.
        damaged: Sections of the store that cannot be used.
        mapper: How pictures are converted once more.
    """
    out = Changes()
    if damaged.isdisjoint(LABEL_SECTIONS):
        _compare_labels(store, scan, out)
    if damaged.isdisjoint(PICTURE_COLUMNS):
        left_out = set() if "problems" in damaged else _left_out(store)
        _compare_pictures(store, scan, left_out, mapper, out)
    return Changes(*(sorted(set(found)) for found in (out.changed, out.added, out.removed)))


def _compare_labels(store: Store, scan: Scan, out: Changes) -> None:
    offsets, names, digests = (store.catalog.column(name) for name in LABEL_SECTIONS)
    text = names.tobytes()
    before = {
        text[a:b].decode("utf-8", "surrogateescape"): digests[k].tobytes()
        for k, (a, b) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    }
    now = {file.path: file.digest for file in scan.label_files}
    out.changed += [path for path, digest in before.items() if now.get(path, digest) != digest]
    out.added += [path for path in now if path not in before]
    out.removed += [path for path in before if path not in now]


def _left_out(store: Store) -> set[str]:
    """Return the keys of the pictures that the conversion did not store."""
    return {row["file"] for kind, row in kept_in(store.catalog) if kind == "skip"}


def _compare_pictures(store: Store, scan: Scan, left_out: set[str], mapper: Mapper, out: Changes) -> None:
    catalog = store.catalog
    numbers = {name: k for k, name in enumerate(scan.splits)}
    now = {(int(split), scan.keys[i]): i for i, split in enumerate(scan.split)}
    newer: list[tuple[int, int]] = []  # entry, place in the scan
    for name, (start, stop) in catalog.splits.items():
        for e in range(start, stop):
            key = catalog.key(e)
            i = now.pop((numbers.get(name, -1), key), None)
            if i is None or scan.nbytes[i] < 0:
                out.removed.append(key)
            elif scan.nbytes[i] != catalog.entry_source_nbytes[e]:
                out.changed.append(key)
            elif scan.mtime_ns[i] != catalog.entry_source_mtime_ns[e]:
                newer.append((e, i))
    out.added += [key for (_, key), i in now.items() if key not in left_out and scan.nbytes[i] >= 0]
    again = mapper(lambda k: _gives_the_same(store, newer[k][0], Path(scan.paths[newer[k][1]])), range(len(newer)))
    out.changed += [catalog.key(e) for (e, _), same in zip(newer, again, strict=True) if not same]


def _gives_the_same(store: Store, e: int, path: Path) -> bool:
    """Tell whether converting a picture again gives the bytes of its record, by their checksum."""
    options = store.manifest.options
    want = int(store.catalog.rec_crc[int(store.catalog.entry_record[e])])
    try:
        data = path.read_bytes()
    except OSError:
        return False
    codec, quality = options.get("codec"), int(options.get("quality", 95))
    if codec == "original":
        if is_original_jpeg(data):
            return crc32c(data) == want
        codec = "jpeg"
    limits = {name: options[name] for name in ("max_pixels", "allow_truncated") if name in options}
    picture = decode_image(data, jpeg=options.get("decoder", "simplejpeg"), **limits)
    if isinstance(picture, Refused):
        return False
    rgb: npt.NDArray[np.uint8] = picture.rgb
    imgsz: Any = options.get("imgsz")
    if imgsz is not None:
        rgb = resize(rgb, fitted_size((rgb.shape[0], rgb.shape[1]), imgsz), options.get("resample", "trainer"))
    return crc32c(encode(rgb, codec, quality)) == want  # type: ignore[arg-type]
