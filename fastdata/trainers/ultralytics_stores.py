"""Which store a trainer reads: the one it is given, one that its data.yaml names, or one made from it.

The split of a store that is read is the one called as the trainer calls it (``train``, and what its ``split`` says: ``val`` by
default), unless the user says otherwise. A store of one split, named for one of them alone, is that one whatever it is called.

Only facts of the trainer's data dictionary are used: ``path``, ``train``, ``val``, ``test``, ``names``, ``kpt_shape``,
``flip_idx``, ``channels``, ``yaml_file``, and the key ``store``, which the trainer itself does not know.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import UsageError
from fastdata.sources.yolo_yaml import read_yaml
from fastdata.store.read import Store, open_store
from fastdata.store.target import look_at
from fastdata.trainers.cache import YAML_KEYS, Wanted, cache_folder, cached_store

Given = str | Mapping[str, str] | None
"""A store for all splits, or one for each split by name."""

GRID = 32
"""Stride of the trainers' usual models: pictures are stored at a multiple of it, as the trainer rounds ``imgsz``."""


@dataclass(frozen=True, slots=True)
class Place:
    """A split of a store."""

    path: str
    split: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user said about stores; plain values, so that it travels with the trainer's class to other processes."""

    store: Given = None
    splits: Mapping[str, str] | None = None
    """The split of the store for each split of the trainer, where the names differ."""
    cache: str | None = None
    """Folder of the stores that are made from ``data=``."""


def given_store(store: Any) -> Given:
    """Return ``store`` of the user as absolute paths.

    Raises:
        UsageError: It is no path, and no mapping of splits to paths, or nothing is there.
    """
    if store is None:
        return None
    if isinstance(store, Mapping):
        if not store:
            raise UsageError("store must name a store for each split, got none")
        return {str(split): _absolute(path) for split, path in store.items()}
    return _absolute(store)


def _absolute(store: Any) -> str:
    path = getattr(store, "path", store) if isinstance(store, Store) else store
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"store must be the path of a store, or a mapping such as {{'train': path, 'val': path}}, got {store!r}")
    absolute = os.path.abspath(path)
    if not is_store(absolute):
        raise UsageError(f"store must be a fastdata store, got {absolute}; make one with: fastdata convert DATASET {path}")
    return absolute


def is_store(path: str | os.PathLike[str]) -> bool:
    """Tell whether a store lies at a path, by its magic number."""
    return look_at(Path(path)) in ("lmdb", "shards")


def find_places(
    data: Mapping[str, Any], splits: Sequence[str], choice: Choice, *, task: str, imgsz: int, single_cls: bool, quiet: bool
) -> dict[str, Place]:
    """Find the store of each split, make it where there is none, and check it against what the trainer believes.

    Args:
        data: The trainer's data dictionary, paths absolute.
        splits: The splits that are needed.
        choice: What the user said.
        task: Of the trainer.
        imgsz: Of the trainer.
        single_cls: Whether class names do not matter.
        quiet: Say nothing of stores that are there.

    Raises:
        UsageError: A store does not fit the trainer's data; the message says what to change.
    """
    if data.get("channels", 3) != 3:
        raise UsageError(f"channels must be 3 in {_title(data)}, got {data['channels']}; pictures are stored as RGB")
    named = {split: _named_for(data, split, choice) for split in splits}
    missing = [split for split, path in named.items() if path is None]
    if missing and len(missing) < len(splits):
        have = next(split for split in splits if split not in missing)
        raise UsageError(
            f"{_title(data)}: all splits must come from stores or none, got {named[have]} for {have} and pictures for "
            f"{missing[0]}; convert both, or give store="
        )
    places: dict[str, Place] = {}
    for split, path in named.items():
        if path is None:
            wanted = wanted_of(data, split, task=task, imgsz=imgsz, single_cls=single_cls)
            path = str(cached_store(wanted, cache_folder(choice.cache), quiet=quiet))
            places[split] = Place(path, split)
        else:
            places[split] = Place(path, _split_in(path, split, choice, _is_alone(path, split, data, choice)))
    for place in places.values():
        with open_store(place.path) as store:
            check_store(store, data, task=task, single_cls=single_cls)
    return places


def _named_for(data: Mapping[str, Any], split: str, choice: Choice) -> str | None:
    """Return the store that is named for a split: by the user, by the key ``store``, or as the split's own entry."""
    if choice.store is not None:
        if isinstance(choice.store, str):
            return choice.store
        if split not in choice.store:
            raise UsageError(f"store must name one for {split}, got stores for {', '.join(choice.store)}")
        return choice.store[split]
    title = _title(data)
    if (stated := data.get("store")) is not None:
        if not isinstance(stated, str):
            raise UsageError(f"{title}: store must be the path of a store, got {stated!r}")
        bases = [data.get("path") or "", os.path.dirname(str(data.get("yaml_file", "")))]
        tried = [os.path.abspath(os.path.join(base, stated)) for base in bases]
        found = next((path for path in tried if is_store(path)), None)
        if found is None:
            raise UsageError(f"{title}: store must be a fastdata store, got {stated!r}, which is not at {' or '.join(tried)}")
        return found
    entries = _entries(data, split)
    stores = [path for path in entries if is_store(path)]
    if stores and len(entries) > 1:
        raise UsageError(f"{title}: {split} must be one store, got {len(entries)} entries; convert them together")
    return stores[0] if stores else None


def _entries(data: Mapping[str, Any], split: str) -> list[str]:
    entries = data.get(split)
    if not entries:
        raise UsageError(f"{_title(data)}: {split} must be named, got none; add {split}: to it")
    return [str(e) for e in entries] if isinstance(entries, (list, tuple)) else [str(entries)]


def _is_alone(path: str, split: str, data: Mapping[str, Any], choice: Choice) -> bool:
    """Tell whether a store is named for this split and no other."""
    if choice.store is None and data.get("store") is None:
        named = {s: _entries(data, s) for s in ("train", "val", "test") if data.get(s)}
    elif isinstance(choice.store, Mapping):
        named = {s: [p] for s, p in choice.store.items()}
    else:
        return False
    return all(path not in paths for s, paths in named.items() if s != split)


def _split_in(path: str, split: str, choice: Choice, alone: bool) -> str:
    """Return which split of a store is meant."""
    with open_store(path) as store:
        there = list(store.manifest.splits)
    wanted = (choice.splits or {}).get(split, split)
    if wanted in there:
        return wanted
    if len(there) == 1 and alone and split not in (choice.splits or {}):
        return there[0]
    listed = ", ".join(map(repr, there)) or "none"
    fix = f"say which with splits={{{split!r}: {there[0]!r}}}, or convert with a split of that name" if there else "convert again"
    raise UsageError(f"{path}: the split for {split} must be one of {listed}, got {wanted!r}; {fix}")


def wanted_of(data: Mapping[str, Any], split: str, *, task: str, imgsz: int, single_cls: bool) -> Wanted:
    """Return what must be converted for a split: the trainer's data dictionary in the form that ``cache`` takes."""
    yaml_file = str(data.get("yaml_file", ""))
    names = _names(data)
    if single_cls and yaml_file:  # the trainer has put one name in the place of all
        names = list(read_yaml(Path(yaml_file)).names or names)
    return Wanted(
        title=_title(data),
        root=os.path.abspath(str(data.get("path") or os.path.dirname(yaml_file))),
        split=split,
        places=tuple(_entries(data, split)),
        names=tuple(names),
        said={key: data[key] for key in YAML_KEYS if data.get(key)},
        task=task,  # type: ignore[arg-type]
        imgsz=-(-int(imgsz) // GRID) * GRID,
    )


def check_store(store: Store, data: Mapping[str, Any], *, task: str, single_cls: bool) -> None:
    """Refuse a store whose classes or keypoints are not those of the trainer's data.

    Raises:
        UsageError: The message says what to change.
    """
    title, names, theirs = _title(data), store.names, _names(data)
    if not single_cls:
        if len(names) > len(theirs):
            raise UsageError(
                f"{title}: names must hold every class of the store, got {len(theirs)} for the {len(names)} of {store.path}; "
                f"name these: {_listed(names)}"
            )
        for i, (ours, other) in enumerate(zip(names, theirs, strict=False)):
            # Names that were made up, by the trainer or at conversion, say nothing.
            if ours != other and not re.fullmatch(r"class[_ ]\d+", other) and ours != f"class {i}":
                raise UsageError(
                    f"{title}: names must be those of the store in its order, got {other!r} for class {i}, which is {ours!r} in "
                    f"{store.path}; name these: {_listed(names)}"
                )
    if task == "pose":
        shape, points = data.get("kpt_shape"), store.manifest.keypoints
        if points is None:
            raise UsageError(f"{store.path}: a store for pose must have keypoints, got none; convert a pose dataset")
        if list(shape or []) != [points.count, points.dims]:
            raise UsageError(
                f"{title}: kpt_shape must be [{points.count}, {points.dims}], as in {store.path}, got {shape}; change it there"
            )
        flip_idx = list(data.get("flip_idx") or [])
        if flip_idx and points.flip_idx and flip_idx != list(points.flip_idx):
            raise UsageError(
                f"{title}: flip_idx must be {list(points.flip_idx)}, as in {store.path}, got {flip_idx}; convert again if it is "
                "the store that is wrong"
            )


def yaml_of_store(path: str | os.PathLike[str], choice: Choice) -> Path:
    """Write the data.yaml of a store that was given as ``data=``, for the trainer to read; in the cache folder.

    Raises:
        UsageError: The store has no split to train on.
    """
    absolute = os.path.abspath(path)
    with open_store(absolute) as store:
        manifest = store.manifest
    content: dict[str, Any] = {"path": os.path.dirname(absolute), "names": list(manifest.names)}
    content |= dict.fromkeys(("train", "val", "test"), absolute)
    if manifest.keypoints is not None:
        content["kpt_shape"] = [manifest.keypoints.count, manifest.keypoints.dims]
        if manifest.keypoints.flip_idx:
            content["flip_idx"] = list(manifest.keypoints.flip_idx)
    text = json.dumps(content, indent=1)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    out = cache_folder(choice.cache) / f"{Path(absolute).stem}-{digest}" / "data.yaml"
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        part = out.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        os.replace(part, out)
    return out


def _title(data: Mapping[str, Any]) -> str:
    return Path(str(data.get("yaml_file", ""))).name or "data"


def _names(data: Mapping[str, Any]) -> list[str]:
    names = data["names"]
    return [str(names[i]) for i in sorted(names)] if isinstance(names, Mapping) else [str(n) for n in names]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
