"""Files of a published dataset: which images lie below a folder, how large and how new they are, and what they hash to.

Invariant: the order of a listing depends on names alone, so that two runs over the same tree give the same dataset. Paths are
text as :func:`os.fsdecode` makes it (surrogateescape), so a name in any encoding goes in and comes out unchanged.

Nothing here opens an image or writes anything.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".dng", ".heic", ".heif", ".jp2", ".jpeg", ".jpg", ".jxl", ".mpo", ".png", ".tif", ".tiff", ".webp")
)
"""Endings that make a file an image when a folder is listed, in lower case; names are compared without regard to case. It is the
set that the trainers list, and JPEG XL. What a file really holds is decided by its content when it is decoded."""

DIGEST_NBYTES = 16
"""Length of a :func:`digest`: BLAKE2b cut to 128 bits (RFC 7693)."""


def is_image_name(name: str) -> bool:
    """Tell whether the name ends like an image; only what follows the last dot counts."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def list_images(folder: str | Path) -> list[str]:
    """List the images below a folder, in all sub-folders.

    Links to folders are followed (not in circles). Names that begin with a dot are passed over, files and folders alike, as the
    trainers' listing does: they are previews and resource forks. A link that leads nowhere is listed, so that the image is
    reported as not found and not lost.

    Args:
        folder: The folder; it must exist.

    Returns:
        Paths relative to the folder, '/' as separator, sorted as text.
    """
    return list_files(folder, IMAGE_SUFFIXES)


def list_files(folder: str | Path, suffixes: Iterable[str]) -> list[str]:
    """List the files below a folder whose ending is one of ``suffixes`` (lower case), by the rules of :func:`list_images`."""
    wanted = frozenset(suffixes)
    found: list[str] = []
    top = os.fspath(folder)
    head = os.stat(top)
    pending = [(top, "", frozenset({(head.st_dev, head.st_ino)}))]
    while pending:
        path, prefix, above = pending.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    continue
                if _is_folder(entry):
                    info = entry.stat()
                    mark = (info.st_dev, info.st_ino)
                    if mark not in above:
                        pending.append((entry.path, f"{prefix}{name}/", above | {mark}))
                elif os.path.splitext(name)[1].lower() in wanted and (entry.is_symlink() or entry.is_file()):
                    found.append(prefix + name)
    found.sort()
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as err:
        if err.errno != errno.ELOOP:  # a link to itself: no folder
            raise
        return False


def stat_image(path: str | Path) -> tuple[int, int]:
    """Return (size in bytes, modification time in ns) of a file, (-1, 0) where there is no such file.

    Raises:
        OSError: The file may be there and cannot be looked at (permission, input/output error).
    """
    try:
        info = os.stat(path)
    except OSError as err:
        if err.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return -1, 0
    if not stat.S_ISREG(info.st_mode):
        return -1, 0
    return info.st_size, info.st_mtime_ns


def digest(path: str | Path) -> bytes:
    """Return the 16-byte BLAKE2b of a whole file."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_NBYTES)).digest()


def digest_bytes(data: bytes) -> bytes:
    """Return what :func:`digest` returns for a file with this content."""
    return hashlib.blake2b(data, digest_size=DIGEST_NBYTES).digest()


def open_regular(path: str | Path) -> int:
    """Open a file for reading and return its descriptor.

    A pipe, a socket or a device under the name of a picture or a label would be waited for without end, so it is refused.

    Raises:
        OSError: It is not there, may not be read, or is no regular file (``EINVAL``; a folder is one of those: ``EISDIR``).
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as err:
        if err.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path)) from None
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
