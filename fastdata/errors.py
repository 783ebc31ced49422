"""What can go wrong, as types.

::

    FastdataError
    ├── UsageError    (ValueError)   an argument or option breaks its rule
    ├── DataError     (ValueError)   a published dataset breaks its format; starts with ``file:line``
    ├── StoreError    (ValueError)   a store is damaged, unfinished, foreign or too new; starts with ``file:offset``
    └── MissingExtra  (ImportError)  an optional package is not installed; names the pip line

Each one also inherits the built-in type that a caller would reach for without knowing this package. Messages read
``<what> must be <rule>, got <value>`` and end with the fix where there is one. Errors of the operating system (no space, no
permission) stay ``OSError``.
"""


class FastdataError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(FastdataError, ValueError):
    """An argument or option breaks its rule."""


class DataError(FastdataError, ValueError):
    """A published dataset breaks its format, or a file in it cannot be used."""


class StoreError(FastdataError, ValueError):
    """A store is damaged, unfinished, of another kind, or from a newer version."""


class MissingExtra(FastdataError, ImportError):
    """An optional package is needed and not installed.

    Args:
        package: The import name that failed.
        extra: The extra of this distribution that brings it.
        why: What it is needed for, as the end of "is needed to ...".
    """

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(f"{package} is needed to {why}; install it with: pip install 'fastdata-yolo[{extra}]'")
