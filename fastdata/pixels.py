"""What happens to upright RGB on its way into a store, and what comes back out: resize, planes, payloads.

Invariants: ``decode_payload(encode(x, "raw", ...)) == to_planar(x)`` bit for bit, and for every codec the result is (C, H, W)
uint8 with the H, W and C that the record states, or an error. ``to_interleaved(to_planar(x)) == x``.

Planes lie one after the other, R G B: a renderer resizes and writes each plane on its own, and the output of a batch is planar
anyway. Arrays that callers hand in are written to only where they are called ``out``.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastdata.errors import StoreError, UsageError
from fastdata.headers.header import Unusable
from fastdata.headers.jpeg_layout import HUFFMAN_DCT
from fastdata.headers.read import read_header

Codec = Literal["raw", "jpeg", "webp"]
Resample = Literal["trainer", "area"]
Buffer = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

FULL_CHROMA_QUALITY = 90
"""From this JPEG quality on colour keeps its full resolution (4:4:4), below it is halved both ways (4:2:0).

Measured on photographs shrunk to 320 pixels: 4:4:4 at quality 95 is smaller and closer to the source than 4:2:0 at 98 (0.231
against 0.242 of raw, 39.8 against 38.2 dB, 11 against 27 levels off for one sample in a thousand), so at high quality the bytes
belong to colour. Below 90 both reach the same distance for the same bytes, and 4:2:0 decodes in three quarters of the time.
"""

_LARGEST_SIDE = {"jpeg": 65_535, "webp": 16_383}


def fitted_size(size_hw: tuple[int, int], imgsz: int) -> tuple[int, int]:
    """Return the (h, w) of a picture whose long side is brought to ``imgsz``, up or down, as the trainers round it.

    ``r = imgsz / max(h, w)``; each side is ``min(ceil(side * r), imgsz)``; nothing changes for ``r == 1``.
    """
    if imgsz < 1:
        raise UsageError(f"imgsz must be at least 1, got {imgsz}")
    h, w = size_hw
    r = imgsz / max(h, w)  # a float64 product below, as in the trainers: exact integers would round some sizes differently
    if r == 1:
        return h, w
    return max(min(math.ceil(h * r), imgsz), 1), max(min(math.ceil(w * r), imgsz), 1)


def resize(rgb: npt.NDArray[np.uint8], size_hw: tuple[int, int], resample: Resample) -> npt.NDArray[np.uint8]:
    """Resize an interleaved picture.

    Args:
        rgb: (H, W, C) or (H, W).
        size_hw: What it becomes.
        resample: ``trainer`` is the trainers' own bilinear, which reads 2 x 2 pixels however much it shrinks; ``area`` averages
            all pixels that an output pixel covers when both sides shrink, and is bilinear otherwise.

    Returns:
        A new array of (*size_hw, C) or ``size_hw``; ``rgb`` itself when the size is the same.
    """
    import cv2

    h, w = rgb.shape[:2]
    if (h, w) == size_hw:
        return rgb
    shrinks = size_hw[0] <= h and size_hw[1] <= w
    how = cv2.INTER_AREA if resample == "area" and shrinks else cv2.INTER_LINEAR
    resized = cv2.resize(rgb, (size_hw[1], size_hw[0]), interpolation=how)
    return np.asarray(resized, np.uint8).reshape(*size_hw, *rgb.shape[2:])


def to_planar(rgb: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
    """Split an interleaved picture into planes.

    Args:
        rgb: (H, W, 3), (H, W, 1) or (H, W).
        out: Flat, of exactly H · W · C bytes and contiguous: the planes are written straight into it, for example into a slot of
            shared memory.

    Returns:
        (C, H, W), contiguous: a view of ``out`` where it is given.

    Raises:
        UsageError: ``out`` does not fit.
    """
    h, w = rgb.shape[:2]
    channels = 1 if rgb.ndim == 2 else rgb.shape[2]
    if out is None:
        out = np.empty(rgb.size, np.uint8)
    elif out.dtype != np.uint8 or out.shape != (rgb.size,) or not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError(
            f"out must be {rgb.size} flat, contiguous, writable bytes, got {out.dtype} {out.shape} with strides {out.strides}"
        )
    planes = out.reshape(channels, h, w)
    if channels == 3 and rgb.flags.c_contiguous:
        import cv2

        # 0.12 ms for 480 x 640 on one core; np.copyto of the transposed view takes 0.29, cv2.extractChannel thrice 0.30
        cv2.split(rgb, [planes[0], planes[1], planes[2]])
    else:
        np.copyto(planes, np.atleast_3d(rgb).transpose(2, 0, 1))
    return planes


def to_interleaved(planar: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Bring (C, H, W) planes to a new, contiguous (H, W, C)."""
    if planar.shape[0] == 3:
        import cv2

        return np.asarray(cv2.merge([np.ascontiguousarray(plane) for plane in planar]), np.uint8)
    return np.ascontiguousarray(planar.transpose(1, 2, 0))


def encode(
    rgb: npt.NDArray[np.uint8], codec: Codec, quality: int, out: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """Encode an interleaved picture as the payload of a record.

    Args:
        rgb: (H, W, 3), or for raw and jpeg also one channel, (H, W, 1) or (H, W).
        codec: ``raw`` is the planes as they are.
        quality: 1 to 100, of jpeg and webp.
        out: Flat bytes to write the payload to; at least as long as the payload.

    Returns:
        The payload, flat uint8: the beginning of ``out`` where it is given.

    Raises:
        UsageError: An argument breaks its rule, or the picture is larger than the codec allows.
    """
    channels = 1 if rgb.ndim == 2 else rgb.shape[2]
    if channels not in (1, 3) or (channels == 1 and codec == "webp"):
        raise UsageError(f"a {codec} picture must have {'3 channels' if codec == 'webp' else '1 or 3 channels'}, got {channels}")
    if codec == "raw":
        if out is not None and out.size < rgb.size:
            raise UsageError(f"out must hold {rgb.size} bytes, got {out.size}")
        return to_planar(rgb, None if out is None else out[: rgb.size]).reshape(-1)
    if not 1 <= quality <= 100:
        raise UsageError(f"quality must be 1 to 100, got {quality}")
    if max(rgb.shape[:2]) > _LARGEST_SIDE[codec]:
        raise UsageError(
            f"a side of a {codec} picture must be at most {_LARGEST_SIDE[codec]} pixels, got {rgb.shape[1]} x {rgb.shape[0]}; "
            f"use the codec raw, or give a size"
        )
    payload = _jpeg(rgb, channels, quality) if codec == "jpeg" else _webp(rgb, quality)
    if out is None:
        return payload
    if out.size < payload.size:
        raise UsageError(f"out must hold {payload.size} bytes, got {out.size}")
    out[: payload.size] = payload
    return out[: payload.size]


def _jpeg(rgb: npt.NDArray[np.uint8], channels: int, quality: int) -> npt.NDArray[np.uint8]:
    import simplejpeg

    picture = np.ascontiguousarray(np.atleast_3d(rgb))
    if channels == 1:
        coded = simplejpeg.encode_jpeg(picture, quality, "GRAY", "Gray")
    else:
        coded = simplejpeg.encode_jpeg(picture, quality, "RGB", "444" if quality >= FULL_CHROMA_QUALITY else "420")
    return np.frombuffer(coded, np.uint8)


def _webp(rgb: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    import cv2

    done, coded = cv2.imencode(
        ".webp", cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2BGR), [cv2.IMWRITE_WEBP_QUALITY, quality]
    )
    assert done
    return np.asarray(coded, np.uint8).reshape(-1)


def decode_payload(payload: Buffer, encoding: Codec, size_hw: tuple[int, int], channels: int) -> npt.NDArray[np.uint8]:
    """Decode the payload of a record.

    Args:
        payload: Its bytes.
        encoding: What they are.
        size_hw: What the record states.
        channels: What the record states, 1 or 3. A gray JPEG also serves as three equal planes.

    Returns:
        (C, H, W). ``raw``: a view of ``payload``, read-only where that is. Else a new array.

    Raises:
        StoreError: The payload is damaged, or is not of the stated size.
    """
    h, w = size_hw
    flat = np.frombuffer(payload, np.uint8)
    if encoding == "raw":
        if flat.size != h * w * channels:
            raise StoreError(f"a raw payload of {channels} x {h} x {w} must have {h * w * channels} bytes, got {flat.size}")
        return flat.reshape(channels, h, w)
    picture = _decoded_jpeg(flat, channels, size_hw) if encoding == "jpeg" else _decoded_webp(flat, channels, size_hw)
    if picture.shape != (h, w, channels):
        found = " x ".join(str(n) for n in (picture.shape[2], *picture.shape[:2]))
        raise StoreError(f"a {encoding} payload must be {channels} x {h} x {w} as its record states, got {found}")
    return to_planar(picture)


def _check_header(encoding: str, stated_hw: tuple[int, int], size_hw: tuple[int, int]) -> None:
    """Refuse a payload of another size before anything is allocated for it: a few bytes can claim 65,535 x 65,535."""
    if stated_hw != size_hw:
        said, must = (" x ".join(map(str, hw)) for hw in (stated_hw, size_hw))
        raise StoreError(f"a {encoding} payload must be {must} as its record states, got {said} in its header")


def _decoded_jpeg(flat: npt.NDArray[np.uint8], channels: int, size_hw: tuple[int, int]) -> npt.NDArray[np.uint8]:
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(flat)
        _check_header("jpeg", (height, width), size_hw)
        if channels == 1 and colours != "Gray":
            raise StoreError(f"a jpeg payload of one channel must be gray, got {colours}")
        return np.asarray(simplejpeg.decode_jpeg(flat, "GRAY" if channels == 1 else "RGB"), np.uint8)
    except ValueError as err:
        if isinstance(err, StoreError):
            raise
        raise StoreError(f"a jpeg payload must decode without complaint, got: {err}") from None


def _decoded_webp(flat: npt.NDArray[np.uint8], channels: int, size_hw: tuple[int, int]) -> npt.NDArray[np.uint8]:
    import cv2

    try:
        header = read_header(flat.tobytes(), body=False)
    except Unusable as err:
        raise StoreError(f"a webp payload must decode to 3 channels, got: {err.detail}") from None
    if header.format != "webp" or header.size_hw is None:
        raise StoreError(f"a webp payload must be a WebP file, got {header.format}")
    _check_header("webp", header.size_hw, size_hw)
    picture = cv2.imdecode(flat, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION) if flat.size else None
    if picture is None or channels != 3:
        raise StoreError("a webp payload must decode to 3 channels")
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)


def is_original_jpeg(data: bytes | memoryview) -> bool:
    """Tell whether published bytes can be a payload as they are.

    They can if the file is a baseline, extended or progressive Huffman-coded JPEG of 8 bits, gray or with three components,
    upright by every tag that :mod:`fastdata.orientation` heeds, and decodes by libjpeg-turbo without complaint. Bytes after its
    end mark do no harm.
    """
    import simplejpeg

    whole = data if isinstance(data, bytes) else bytes(data)
    try:
        header = read_header(whole)
    except Unusable:
        return False
    layout = header.jpeg
    if layout is None or layout.frame not in HUFFMAN_DCT or layout.precision != 8 or layout.components not in (1, 3):
        return False
    if header.orientation != 1 or header.ends_early:
        return False
    try:
        simplejpeg.decode_jpeg(whole, "GRAY" if layout.components == 1 else "RGB")
    except ValueError:
        return False
    return True
