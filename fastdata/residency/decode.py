"""A store of JPEGs, decoded on the GPU in batches: torchvision calls nvJPEG.

What nvJPEG decodes as libjpeg-turbo does goes to the GPU: Huffman-coded in one pass, 8 bits, gray or YCbCr, shown at the size in
which it is stored. All else is decoded by the processor (``fastdata.render.tiles``) and copied: other codecs, tiles that are
resized, progressive files (nvJPEG takes them one at a time, on one core), RGB or CMYK in a JPEG (nvJPEG might take it for YCbCr),
and whatever nvJPEG refuses. So a picture is that of the other residencies, or within :data:`FULL_CHROMA` or :data:`HALF_CHROMA`.

The decoder writes when it is called, whatever the caller's stream has queued before (pytorch/vision#9606, and
meta-pytorch/torchcodec#1634 for nvJPEG's hardware itself: only waiting on the host helps). So its results must never lie in
memory that a kernel in a queue still reads. They are therefore allocated on a stream of their own, on which nothing else is ever
queued, and every stream that reads a picture is recorded with its memory: PyTorch's own allocator hands such memory out again
only after it has seen on the host that those streams are done.

torchvision has one decoder a process, behind a lock, for one GPU: another GPU's call builds a new one and leaks the old (source:
``decode_jpegs_cuda.cpp`` up to 0.29). A process should decode on one GPU.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.errors import StoreError
from fastdata.headers.header import Unusable
from fastdata.headers.read import read_header
from fastdata.pixels import decode_payload
from fastdata.render.tiles import load_tiles
from fastdata.render.tolerance import Tolerance
from fastdata.residency import Fetched
from fastdata.residency.window_cache import WindowCache
from fastdata.samples import Samples
from fastdata.store.format import ENCODINGS

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Key = tuple[int, ...]
"""Record, x0, y0, x1, y1 of it, height and width that this is brought to: a picture as it lies in memory."""

JPEG = ENCODINGS.index("jpeg")
BATCHES_AHEAD = 4
"""Batches that are taken to be in the making at once unless it is said."""

FULL_CHROMA = Tolerance(8, 1.0, "nvJPEG's inverse DCT and its colours round otherwise than libjpeg-turbo's")
"""Of 4:4:4 and gray. Y, Cb and Cr are off by 2 at most, twice what IEEE 1180 allows an inverse DCT: blue, Y + 1.772 Cb, is off by
5.5, and two roundings."""
HALF_CHROMA = Tolerance(206, 1.5, "nvJPEG repeats the colours of 4:2:0 where libjpeg-turbo blends neighbours")
"""Of 4:2:0 and 4:2:2. libjpeg-turbo takes 9/16 of the nearest sample and 7/16 of three others: up to 7/16 * 255 * 1.772 = 198
levels of blue between pure colours, beside the 8 above. The mean is that of a batch of photographs. Measured between
libjpeg-turbo's own two ways (``fastupsample``), which differ in this alone, on 128 photographs: at most 83 levels, mean 0.68,
3.1 in the worst of them."""

LOOKED_AT, PROVED = 32, 16
"""Samples whose pictures are looked at before this is used, and pictures that are decoded in both ways and compared."""
LEAST_SHARE = 0.5
"""Of the pictures looked at that the GPU must be able to decode: below it the processor does most of the work, and streaming,
which copies only what is seen, does that better."""
WRONG_MEAN = 3.0
"""Levels on average from which on a picture is a wrong one: another picture, or none, is off by tens. Compared with the nearer of
libjpeg-turbo's two ways with colour, so that the worst of one's own is a few tenths."""

_NO_MEMORY = re.compile(r"out of memory|Failed to [^:]*: 5\b")  # 5: NVJPEG_STATUS_ALLOCATOR_FAILURE


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture in GPU memory."""

    pixels: Tensor
    """(1 or 3, h, w)"""
    where: tuple[int, int, int]
    """Address of its first pixel, bytes from channel to channel, bytes from row to row."""
    ready: Any
    """The event after which it is there; ``None`` in ordinary memory."""
    nbytes: int


class Decode:
    """Source of pictures that are decoded on the GPU when a batch wants them.

    With ``partners="window:W"`` a picture is kept until W others, and those ahead, have been made after it, so a sample costs
    about one decode. (With several ranks each decodes partners that are in another's share: up to four a sample.) Otherwise it is
    kept for its batch alone.

    Args:
        samples: Whose recipes are fetched.
        device: Where to; of the processor: ordinary memory, decoded by torchvision there.
        ahead: Samples that may be in the making at once, over all threads; ``None``: :data:`BATCHES_AHEAD` batches.
        limit_nbytes: GPU memory that may be kept; ``None``: what the largest pictures take, as many as are kept.
    """

    name = "decode"

    def __init__(self, samples: Samples, device: Device, *, ahead: int | None = None, limit_nbytes: int | None = None) -> None:
        import torch

        self._store = samples.store
        self._stream: Any = None
        if device.type == "cuda":
            # With its number: torchvision takes "cuda" and "cuda:0" for two GPUs.
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            # Of another priority than all others here. PyTorch has 32 streams of each and hands them out in turn: the 33rd is the
            # first again, and might be one that draws.
            self._stream = _cuda().Stream(device, priority=-1)
        self._device = device
        window = samples.policy.window if samples.augment and not samples.rect else None
        ahead = BATCHES_AHEAD * samples.batch_size if ahead is None else ahead
        count = 0 if window is None else min(window + ahead, len(samples.pool))
        self.limit_nbytes = _largest_nbytes(samples, count) if limit_nbytes is None else limit_nbytes
        """GPU memory that is kept at most, beside what batches in the making hold."""
        self._cache: WindowCache[Key, Picture] = WindowCache(count, self.limit_nbytes)
        # Planes that the GPU decodes each record to: 1 or 3; 0: the processor decodes it; -1: not looked at yet.
        self._planes = np.where(self._store.catalog.rec_encoding[:] == JPEG, -1, 0).astype(np.int8)
        self._lock = threading.Lock()
        self.decoded = 0
        """Pictures that were decoded, wherever."""
        self.by_processor = 0
        """Of those, by the processor."""
        self.nbytes_device, self.nbytes_host = 0, 0

    def fetch(self, recipe: Recipe) -> Fetched:
        """Decode what a recipe shows and is not there, each picture once.

        On a GPU: call it with the stream that draws as the current one, which waits here for the pictures.

        Raises:
            BadRecord: A record is damaged; the message begins with the key of its entry.
        """
        seen, keys, inner = self._shown(recipe)
        tile_of = dict(zip(keys, seen.tolist(), strict=True))
        pictures = self._cache.get(tile_of, partial(self._made, recipe, tile_of))
        self.nbytes_device = self._cache.nbytes
        self._wait_for(pictures.values())
        row = {key: i for i, key in enumerate(pictures)}
        rows = np.array([picture.where for picture in pictures.values()], np.int64).reshape(-1, 3)
        shown = rows[np.fromiter((row[key] for key in keys), np.int64, len(keys))]
        shown[:, 0] += inner[:, 1] * shown[:, 2] + inner[:, 0]
        where = np.zeros((len(recipe.record), 3), np.int64)
        where[seen] = shown
        return Fetched(where, hold=tuple(pictures.values()))

    def close(self) -> None:
        """Let the kept pictures go; what is fetched from now on is kept for its batch alone."""
        self._cache.clear()
        self.nbytes_device = 0

    def _shown(self, recipe: Recipe) -> tuple[I64, list[Key], I64]:
        """Return the (k,) tiles that can be seen, the picture of each, and (k, 2) x, y of the tile in that."""
        x0, y0, x1, y1 = recipe.visible_xyxy.T
        seen = np.flatnonzero((x0 < x1) & (y0 < y1))
        record, source, size_hw = recipe.record[seen], recipe.source_xyxy[seen].astype(np.int64), recipe.size_hw[seen]
        # A part of a JPEG at the stored size is a place in the whole picture, which cannot be decoded in parts anyway.
        stored_hw = self._store.catalog.rec_hw[record].astype(np.int64)
        is_inner = (self._store.catalog.rec_encoding[record] == JPEG) & (source[:, 3:1:-1] - source[:, 1::-1] == size_hw).all(1)
        whole = np.concatenate([np.zeros_like(stored_hw), stored_hw[:, ::-1], stored_hw], axis=1)
        form = np.where(is_inner[:, None], whole, np.concatenate([source, size_hw], axis=1))
        keys = list(map(tuple, np.column_stack([record, form]).tolist()))
        return seen, keys, np.where(is_inner[:, None], source[:, :2], 0)

    def _made(self, recipe: Recipe, tile_of: Mapping[Key, int], keys: list[Key]) -> dict[Key, Picture]:
        """Decode pictures, in their order in the store."""
        by_planes: dict[int, list[tuple[Key, U8]]] = {0: [], 1: [], 3: []}
        for key in sorted(keys):
            payload, planes = self._looked_up(key)
            by_planes[planes].append((key, payload))
        made: dict[Key, Picture] = {}
        for planes in (1, 3):
            made.update(self._by_gpu(by_planes[planes], planes))
        made.update(self._by_processor(recipe, tile_of, [key for key in sorted(keys) if key not in made]))
        return made

    def _looked_up(self, key: Key) -> tuple[U8, int]:
        """Return the bytes of a record, compared with their checksum, and the planes that the GPU decodes them to, or 0.

        The bytes of a damaged record are none: the processor names it.
        """
        record = key[0]
        nothing: U8 = np.zeros(0, np.uint8)
        stored_hw = tuple(self._store.catalog.rec_hw[record].tolist())
        if self._planes[record] == 0 or key[1:] != (0, 0, stored_hw[1], stored_hw[0], *stored_hw):
            return nothing, 0
        try:
            payload = self._store.read_record(record)
        except StoreError:
            return nothing, 0
        if self._planes[record] < 0:
            self._planes[record] = planes_on_gpu(payload, stored_hw, int(self._store.catalog.rec_channels[record]))
        return payload, int(self._planes[record])

    def _by_gpu(self, group: Sequence[tuple[Key, U8]], planes: int) -> dict[Key, Picture]:
        """Decode whole records, but for those that the decoder refuses or brings to another shape; these it gets no more."""
        if not group:
            return {}
        import torch

        # Copied: torch has no read-only tensors, and a page that must be read first is waited for outside torchvision's lock.
        payloads = [torch.from_numpy(np.array(payload)) for _, payload in group]
        with torch.cuda.stream(self._stream):
            decoded = _attempted(payloads, planes, self._device)
            ready = self._event()
        made = {}
        for (key, _), pixels in zip(group, decoded, strict=True):
            if pixels is None or tuple(pixels.shape) != (planes, *key[5:]) or not pixels.is_contiguous():
                self._planes[key[0]] = 0
            else:
                made[key] = _picture(pixels, ready)
        self._count(len(made), 0)
        return made

    def _by_processor(self, recipe: Recipe, tile_of: Mapping[Key, int], keys: list[Key]) -> dict[Key, Picture]:
        """Load tiles as the other residencies do, and copy them."""
        if not keys:
            return {}
        import torch

        tiles = [tile_of[key] for key in keys]
        form = np.array(keys, np.int32)
        part = replace(
            recipe,
            tile_entry=recipe.tile_entry[tiles],
            record=recipe.record[tiles],
            source_xyxy=form[:, 1:5],
            size_hw=form[:, 5:],
            visible_xyxy=np.tile(np.array([0, 0, 1, 1], np.int32), (len(keys), 1)),
        )
        pixels = []
        for tile in load_tiles(self._store, part):
            host = torch.empty(tile.shape, dtype=torch.uint8, device="cpu", pin_memory=self._device.type == "cuda")
            host.numpy()[...] = tile
            # On the stream that draws: memory of the decoder's stream must have nothing queued on it.
            pixels.append(host.to(self._device, non_blocking=True))
        ready = self._event()
        self._count(len(keys), len(keys))
        return {key: _picture(one, ready) for key, one in zip(keys, pixels, strict=True)}

    def _event(self) -> Any:
        """Return an event on the current stream; ``None`` in ordinary memory."""
        if self._device.type != "cuda":
            return None
        event = _cuda().Event()
        event.record(_cuda().current_stream(self._device))
        return event

    def _wait_for(self, pictures: Iterable[Picture]) -> None:
        """Have the current stream wait for pictures that any stream made, and have their memory wait for it."""
        if self._device.type != "cuda":
            return
        stream = _cuda().current_stream(self._device)
        waited = set()
        for picture in pictures:
            if id(picture.ready) not in waited:
                waited.add(id(picture.ready))
                stream.wait_event(picture.ready)
            picture.pixels.record_stream(stream)

    def _count(self, decoded: int, by_processor: int) -> None:
        with self._lock:
            self.decoded += decoded
            self.by_processor += by_processor


def decode_jpegs(payloads: list[Tensor], planes: int, device: Device) -> list[Tensor]:
    """Decode JPEGs by torchvision, as ``torchvision.io.decode_jpeg`` does.

    Its operators are called by name because that function warns with every call since 0.29 that it moves to TorchCodec.

    Args:
        payloads: The files, (n,) uint8 in ordinary memory.
        planes: 1: gray, 3: RGB.
        device: Where they are decoded.

    Returns:
        (planes, h, w) of each, contiguous; on the current stream of the device.

    Raises:
        RuntimeError: One of them cannot be decoded, or something else went wrong: then nothing is returned.
    """
    import torch
    import torchvision.io

    modes = torchvision.io.ImageReadMode
    mode = (modes.GRAY if planes == 1 else modes.RGB).value
    if device.type == "cuda":
        decoded: list[Tensor] = torch.ops.image.decode_jpegs_cuda(payloads, mode, device)
        return decoded
    return [torch.ops.image.decode_jpeg(payload, mode, False).contiguous() for payload in payloads]


def planes_on_gpu(payload: U8, stored_hw: tuple[int, ...], channels: int) -> int:
    """Return how many planes a JPEG is decoded to on the GPU, 1 or 3; 0: the processor decodes it, or says what is wrong with it.

    Args:
        payload: The file.
        stored_hw: What its record states.
        channels: What its record states; a gray file may also stand for three equal planes.
    """
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(payload)
        layout = read_header(payload.tobytes(), body=False).jpeg
    except (ValueError, Unusable):
        return 0
    if layout is None or layout.precision != 8 or not layout.one_pass:
        return 0
    if (height, width) != stored_hw:  # before anything is allocated for it: a few bytes can claim 65,535 x 65,535
        return 0
    return 1 if colours == "Gray" else 3 if colours == "YCbCr" and channels == 3 else 0


def unavailable(device: Device, samples: Samples) -> str | None:
    """Return why the pictures of samples cannot be decoded on a device, or would not be worth it; ``None`` if they can.

    Some of them are decoded, in one batch, and compared with libjpeg-turbo's: there are decoders that report success and leave a
    picture black, or get all right but the first (MrNeRF/LichtFeld-Studio#1924, meta-pytorch/torchcodec#1689).
    """
    try:
        import torch
        import torchvision.io  # noqa: F401
    except (ImportError, OSError, RuntimeError) as err:  # the latter two: built for another torch
        return f"torchvision cannot be imported: {_first_line(err)}"
    if device.type == "cuda" and not torch.cuda.is_available():
        return "there is no GPU that PyTorch can use"
    if device.type == "cuda" and torch.cuda.get_allocator_backend() != "native":
        return "PyTorch's allocator must be its own for it (backend:native in PYTORCH_CUDA_ALLOC_CONF)"
    if not (samples.store.catalog.rec_encoding[:] == JPEG).any():
        return f"the store must hold JPEGs for it, got {samples.store.manifest.codec}"
    source = Decode(samples, device)
    keys: set[Key] = set()
    for i in np.unique(np.linspace(0, len(samples) - 1, LOOKED_AT).astype(np.int64)).tolist():
        keys.update(source._shown(samples.recipe([i]))[1])
    found = [(key, payload, planes) for key in sorted(keys) for payload, planes in [source._looked_up(key)] if planes]
    if len(found) < LEAST_SHARE * len(keys):
        return (
            f"{len(found)} of {len(keys)} pictures looked at are JPEGs that a GPU decodes, of the size in which they are shown; "
            f"at least {LEAST_SHARE:.0%} must be"
        )
    try:
        wrong = _wrong(samples, source, found[:: max(len(found) // PROVED, 1)][:PROVED])
    except (RuntimeError, AttributeError, TypeError) as err:  # the latter two: torchvision has other operators
        return f"torchvision cannot decode on {device}: {_first_line(err)}"
    return wrong


def _wrong(samples: Samples, source: Decode, found: Sequence[tuple[Key, U8, int]]) -> str | None:
    """Return what is wrong with pictures that the device decodes."""
    import simplejpeg
    import torch

    for planes in (1, 3):
        group = [(key, payload) for key, payload, own in found if own == planes]
        if not group:
            continue
        with torch.cuda.stream(source._stream):
            tensors = [torch.from_numpy(np.array(payload)) for _, payload in group]
            decoded = [pixels.cpu().numpy() for pixels in decode_jpegs(tensors, planes, source._device)]
        for (key, payload), pixels in zip(group, decoded, strict=True):
            blended = decode_payload(payload, "jpeg", (key[5], key[6]), planes)
            repeated = np.moveaxis(simplejpeg.decode_jpeg(payload, "GRAY" if planes == 1 else "RGB", fastupsample=True), 2, 0)
            if pixels.shape == blended.shape:
                off = min(float(np.abs(pixels.astype(np.int16) - right).mean()) for right in (blended, repeated))
                if off <= WRONG_MEAN:
                    continue
            return f"the JPEG decoder of {source._device} makes another picture of record {key[0]} of {samples.store.path}"
    return None


def _attempted(payloads: list[Tensor], planes: int, device: Device) -> list[Tensor | None]:
    """Decode a batch, one by one where it fails as a whole; ``None`` for those that are refused.

    Raises:
        RuntimeError: Not a picture is at fault but the device; out of memory is PyTorch's own type.
    """
    import torch

    try:
        return list(decode_jpegs(payloads, planes, device))
    except RuntimeError as err:
        if _NO_MEMORY.search(str(err)):
            raise torch.cuda.OutOfMemoryError(f"while JPEGs were decoded: {_first_line(err)}") from err
        if "CUDA error" in str(err):
            raise
    if len(payloads) == 1:
        return [None]
    return [_attempted([payload], planes, device)[0] for payload in payloads]


def _picture(pixels: Tensor, ready: Any) -> Picture:
    planes, height, width = pixels.shape
    plane = 0 if planes == 1 else height * width
    return Picture(pixels, (pixels.data_ptr(), plane, width), ready, planes * height * width)


def _largest_nbytes(samples: Samples, count: int) -> int:
    """Return the bytes of the ``count`` largest pictures, as stored."""
    if not count:
        return 0
    catalog = samples.store.catalog
    record = np.asarray(catalog.entry_record[np.asarray(samples.pool)], np.int64)
    nbytes = catalog.rec_hw[record].astype(np.int64).prod(axis=1) * catalog.rec_channels[record]
    return int(np.partition(nbytes, len(nbytes) - count)[-count:].sum())


def _cuda() -> Any:
    """Return ``torch.cuda``, whose streams and events have no types."""
    import torch

    return torch.cuda


def _first_line(err: Exception) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0]
