"""Decode by Pillow: strict, restricted to the format that the header showed, and without a trace in Pillow's global settings."""

from __future__ import annotations

import threading
import warnings
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.headers.header import Header, Unusable

_FORMATS = {
    "jpeg": ("JPEG",),
    "png": ("PNG",),
    "gif": ("GIF",),
    "bmp": ("BMP",),
    "webp": ("WEBP",),
    "tiff": ("TIFF",),
    "avif": ("AVIF",),
    "jp2": ("JPEG2000",),
    "pnm": ("PPM",),
    "other": ("QOI", "SGI", "SUN"),
}  # never EPS, WMF and the like, which start other programs
_PACKAGES = {"heic": ("HEIC", "pillow-heif"), "jxl": ("JPEG XL", "pillow-jxl-plugin")}
_EARLY_END = ("truncated", "unexpected end", "not enough image data")

# Pillow warns through Python's warnings, and its limit is a module variable: both belong to the whole process
_lock = threading.Lock()


def by_pillow(data: bytes, header: Header, *, max_pixels: int, allow_truncated: bool) -> tuple[npt.NDArray[np.uint8], str]:
    """Decode the first picture of a file.

    Samples of 16 bits keep their high byte, alpha is dropped and hidden colours stay, palettes are looked up, CMYK is converted.

    Args:
        data: The file.
        header: What its header says.
        max_pixels: Refuse more, also where only Pillow knows the size.
        allow_truncated: Keep what could be decoded; the rest is black.

    Returns:
        (H, W, 3) RGB, and why the picture is incomplete ("" when it is complete). As stored, but upright for TIFF, HEIC and
        JPEG XL, whose decoders turn by themselves.

    Raises:
        Unusable: Pillow refuses it, or its samples have no meaning as 8-bit RGB.
    """
    from PIL import Image

    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        incomplete = ""
        limit_before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, (max_pixels + 1) // 2  # it refuses at twice that number
        try:
            image = _open(data, header)
            if image.width * image.height > max_pixels:
                raise Unusable("too-large", f"{image.width} x {image.height} pixels, the limit is {max_pixels}")
            try:
                image.load()
            except (OSError, SyntaxError, ValueError) as err:
                if not allow_truncated:
                    raise
                incomplete = str(err)
                image.tile = []  # nothing left to do: what is decoded by now is what there is
                image.load()
            return _rgb(image, header), incomplete
        except (Unusable, MemoryError):
            raise
        except Image.DecompressionBombError as err:
            raise Unusable("too-large", f"Pillow: {err}") from None
        except Exception as err:  # its plugins raise whatever damaged bytes lead to: KeyError, struct.error, EOFError, ...
            text = str(err) or type(err).__name__
            early = any(word in text.lower() for word in _EARLY_END)
            raise Unusable("truncated" if early else "unreadable", f"Pillow: {text}") from None
        finally:
            Image.MAX_IMAGE_PIXELS = limit_before


def _open(data: bytes, header: Header) -> Any:
    from PIL import Image

    if header.format not in _PACKAGES:
        return Image.open(BytesIO(data), formats=_FORMATS[header.format])
    name, package = _PACKAGES[header.format]
    try:
        if header.format == "heic":
            return import_module("pillow_heif").open_heif(BytesIO(data)).to_pillow()
        import_module("pillow_jxl")  # tells Pillow of itself
        return Image.open(BytesIO(data), formats=("JXL",))
    except ImportError:
        raise Unusable("unsupported", f"{name} needs {package}; install it with: pip install {package}") from None


def _rgb(image: Any, header: Header) -> npt.NDArray[np.uint8]:
    mode: str = image.mode
    if mode in ("F", "I") and not (mode == "I" and header.format == "pnm"):
        raise Unusable("unsupported", f"Pillow reads it as mode {mode}: more than 16 bits or floating point")
    if mode == "I" or mode.startswith("I;16"):
        shift = header.bits - 8 if 8 < header.bits <= 16 else 8  # an anymap with a scale of its own comes scaled to 16 bits
        gray = (np.asarray(image) >> shift).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if mode in ("RGBA", "RGBX"):
        return np.ascontiguousarray(np.asarray(image, np.uint8)[:, :, :3])
    return np.array(image if mode == "RGB" else image.convert("RGB"), np.uint8, order="C")
