"""Feed YOLO training: convert a detection dataset once, then never wait for data again.

Importing this package loads NumPy and nothing heavier; each public name is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdata.augment.order import epoch_order as epoch_order
    from fastdata.augment.plan import plan as plan
    from fastdata.augment.policy import Policy as Policy
    from fastdata.catalog import Catalog as Catalog
    from fastdata.conversion.run import convert as convert
    from fastdata.creation import create as create
    from fastdata.dataset import YoloDataset as YoloDataset
    from fastdata.errors import DataError as DataError
    from fastdata.errors import FastdataError as FastdataError
    from fastdata.errors import MissingExtra as MissingExtra
    from fastdata.errors import StoreError as StoreError
    from fastdata.errors import UsageError as UsageError
    from fastdata.loader import Loader as Loader
    from fastdata.store.read import Store as Store
    from fastdata.store.read import open_store as open_store
    from fastdata.trainers import ultralytics as ultralytics
    from fastdata.verification import verify as verify

__version__ = "0.1.0"

_HOME = {
    "Catalog": "fastdata.catalog",
    "DataError": "fastdata.errors",
    "FastdataError": "fastdata.errors",
    "Loader": "fastdata.loader",
    "MissingExtra": "fastdata.errors",
    "Policy": "fastdata.augment.policy",
    "Store": "fastdata.store.read",
    "StoreError": "fastdata.errors",
    "UsageError": "fastdata.errors",
    "YoloDataset": "fastdata.dataset",
    "convert": "fastdata.conversion.run",
    "create": "fastdata.creation",
    "epoch_order": "fastdata.augment.order",
    "open_store": "fastdata.store.read",
    "plan": "fastdata.augment.plan",
    "verify": "fastdata.verification",
}

_MODULES = {"ultralytics": "fastdata.trainers.ultralytics"}
"""Modules that have a name of their own here: each holds what one trainer needs."""

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'fastdata' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
