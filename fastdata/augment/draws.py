"""All chance of a batch: which pictures, laid out how, moved how.

A sample is made of **scenes**. A scene is one canvas with one, four or nine tiles and the transform that looks at it. Every
sample has a BASE scene, whose first tile is the requested picture. MixUp and CutMix bring a second and a third scene, each from a
picture of its own; Copy-Paste of the mode ``mixup`` brings one more for each of these. Nothing here looks at a label or a size.

Every number has a fixed place in a stream of ``fastdata.rng``, so that a policy value changes what it governs and nothing else:

===========  ==========================================================================================================
stream       numbers
===========  ==========================================================================================================
sample       :data:`SAMPLE`
layout       :data:`LAYOUT` of role r from ``LAYOUT_PITCH * r`` on
partner      tiles 1 to 8 of role r from ``8 * r`` on
mixup        fires, which picture, 63 for the weight
cutmix       fires, which picture, which region, then for each of three regions: share, centre x, centre y
copy_paste   fires for the roles BASE, MIXUP, CUTMIX, then which picture for each
substitute   attempt a at tile t of role r: ``PICKS * a + 9 * r + t``
===========  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata import rng
from fastdata.augment.partners import Pool, picked, without_bad
from fastdata.augment.policy import Policy
from fastdata.augment.ragged import offsets_of, owners
from fastdata.errors import UsageError

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
BASE, BASE_PASTE, MIXUP, MIXUP_PASTE, CUTMIX, CUTMIX_PASTE = range(6)
"""Roles of a scene. An odd one lends objects to the scene of the role before it."""
ROLES = 6

SAMPLE = ("hsv_h", "hsv_s", "hsv_v", "flipud", "fliplr", "bgr")
LAYOUT = (
    "mosaic", "mosaic9", "centre_y", "centre_x", "perspective_x", "perspective_y", "degrees", "scale", "shear_x", "shear_y",
    "translate_x", "translate_y",
)  # fmt: skip
LAYOUT_PITCH = 16
TILES = 9
"""Of the largest scene."""
PICKS = ROLES * TILES
REGIONS = 3
"""That CutMix tries."""
_MIXUP_ORDER = 32
"""Beta(32, 32) is the 32nd smallest of 63 uniform numbers."""


@dataclass(frozen=True, slots=True)
class Draws:
    """B samples, S scenes, T tiles.

    Scenes of a sample are in the order of their roles; tiles are in the order of the layout. :func:`plain` makes one in which
    nothing happens, for setting fields by hand.
    """

    # samples
    entry: I64
    """(B,) entry that each sample is about: its first tile."""
    hsv: F64
    """(B, 3) gains of hue (share of a full turn), saturation and value; 0 changes nothing."""
    flip_ud: Bool
    """(B,)"""
    flip_lr: Bool
    """(B,)"""
    bgr: Bool
    """(B,)"""
    mixup_weight: F64
    """(B,) share of the first picture; of use only with a MIXUP scene."""
    cutmix_xyxy_px: I64
    """(B, 3, 4) regions of the output that CutMix may replace, before flips."""
    cutmix_choice: F64
    """(B,) in [0, 1): which of the regions that touch no object."""
    scene_offsets: I64
    """(B + 1,)"""

    # scenes
    role: U8
    """(S,) BASE, BASE_PASTE, ..."""
    centre_yx: I64
    """(S, 2) where the four tiles of a mosaic meet, on the canvas; unused otherwise."""
    perspective: F64
    """(S, 2) in x and y, per pixel."""
    degrees: F64
    """(S,) counter-clockwise on the screen."""
    scale: F64
    """(S,)"""
    shear_deg: F64
    """(S, 2) in x and y."""
    translate: F64
    """(S, 2) where the centre of the canvas comes to lie, as shares of the output's width and height."""
    tile_offsets: I64
    """(S + 1,) of 1, 4 or 9 tiles."""

    # tiles
    tile_entry: I64
    """(T,)"""

    def __len__(self) -> int:
        return len(self.entry)

    @property
    def scene_slot(self) -> I64:
        """(S,) sample that each scene belongs to."""
        return owners(self.scene_offsets)

    @property
    def tile_scene(self) -> I64:
        """(T,) scene that each tile lies in."""
        return owners(self.tile_offsets)


def plain(entries: npt.ArrayLike) -> Draws:
    """Return the draws in which each sample is one picture, centred and unchanged."""
    entry = np.atleast_1d(np.asarray(entries, np.int64))
    n = len(entry)
    return Draws(
        entry=entry,
        hsv=np.zeros((n, 3)),
        flip_ud=np.zeros(n, np.bool_),
        flip_lr=np.zeros(n, np.bool_),
        bgr=np.zeros(n, np.bool_),
        mixup_weight=np.ones(n),
        cutmix_xyxy_px=np.zeros((n, REGIONS, 4), np.int64),
        cutmix_choice=np.zeros(n),
        scene_offsets=np.arange(n + 1),
        role=np.full(n, BASE, np.uint8),
        centre_yx=np.zeros((n, 2), np.int64),
        perspective=np.zeros((n, 2)),
        degrees=np.zeros(n),
        scale=np.ones(n),
        shear_deg=np.zeros((n, 2)),
        translate=np.full((n, 2), 0.5),
        tile_offsets=np.arange(n + 1),
        tile_entry=entry,
    )


def draw(
    entries: npt.ArrayLike,
    policy: Policy,
    *,
    seed: int,
    epoch: int,
    imgsz: int,
    out_hw: tuple[int, int],
    pool: Pool,
    draws: npt.ArrayLike = 0,
    bad: Collection[int] | I64 = (),
) -> Draws:
    """Draw everything about a batch.

    Args:
        entries: (B,) entry numbers.
        policy: Probabilities and ranges of this very epoch; nothing is closed here.
        seed: Any integer.
        epoch: From 0.
        imgsz: Long side of a tile.
        out_hw: Size of the output.
        pool: Entries that the other pictures come from.
        draws: (B,) or one integer: how often the entry has been used in this epoch before.
        bad: Entries that must not be used. Each pick of one is drawn again from the whole pool, so a sample that picks none of
            them is the same whether they are bad or not.

    Raises:
        UsageError: The pool is empty or all bad, or a window is asked for and an entry is not in the pool.
    """
    entry = np.atleast_1d(np.asarray(entries, np.int64))
    n = len(entry)
    times = np.asarray(draws, np.int64)
    if len(pool) == 0:
        raise UsageError("pool must have at least one entry, got none")

    uses = {
        "sample": True,
        "layout": True,
        "partner": policy.mosaic > 0,
        "mixup": policy.mixup > 0,
        "cutmix": policy.cutmix > 0,
        "copy_paste": policy.copy_paste > 0 and policy.copy_paste_mode == "mixup",
        "substitute": len(bad) > 0,
    }
    streams = [stream for stream, is_wanted in uses.items() if is_wanted]
    keys = dict(zip(streams, rng.keys_of_streams(seed, epoch, streams, entry, times), strict=True))
    sample = rng.uniforms(keys["sample"], len(SAMPLE))
    mixup, cutmix, paste = (
        rng.uniforms(keys[stream], count) if stream in keys else None
        for stream, count in (("mixup", 2 + 2 * _MIXUP_ORDER - 1), ("cutmix", 3 + 3 * REGIONS), ("copy_paste", ROLES))
    )
    slot, role, own = np.arange(n), np.zeros(n, np.int64), np.zeros((n, ROLES))
    if mixup is not None or cutmix is not None or paste is not None:
        exists = np.zeros((n, ROLES), np.bool_)
        exists[:, BASE] = True
        if mixup is not None:
            exists[:, MIXUP] = mixup[:, 0] < policy.mixup
            own[:, MIXUP] = mixup[:, 1]
        if cutmix is not None:
            exists[:, CUTMIX] = cutmix[:, 0] < policy.cutmix
            own[:, CUTMIX] = cutmix[:, 1]
        if paste is not None:
            exists[:, BASE_PASTE::2] = exists[:, BASE::2] & (paste[:, :3] < policy.copy_paste)
            own[:, BASE_PASTE::2] = paste[:, 3:]
        slot, role = np.nonzero(exists)

    layout = rng.uniforms(keys["layout"][slot], len(LAYOUT), LAYOUT_PITCH * role)
    at = {name: layout[:, i] for i, name in enumerate(LAYOUT)}
    signed = 2 * layout - 1
    count = np.where(at["mosaic"] < policy.mosaic, np.where(at["mosaic9"] < policy.mosaic9, 9, 4), 1)
    tile_offsets = offsets_of(count)
    scene = owners(tile_offsets)
    place = np.arange(len(scene)) - tile_offsets[scene]
    tile_slot, tile_role = slot[scene], role[scene]
    tile_entry = entry[tile_slot]
    picks, others = np.flatnonzero(place + tile_role), np.flatnonzero(place)
    if len(picks):
        u = own[slot, role][scene]
        if len(others):
            number = (TILES - 1) * tile_role[others] + place[others] - 1
            u[others] = rng.uniforms(keys["partner"][tile_slot[others]], 1, number)[:, 0]
        tile_entry[picks] = picked(u[picks], entry, tile_slot[picks], policy.window, seed, epoch, pool)
    if len(bad):
        tile_entry = without_bad(bad, tile_entry, TILES * tile_role + place, PICKS, keys["substitute"][tile_slot], pool)

    return Draws(
        entry=tile_entry[(tile_role == BASE) & (place == 0)] if len(bad) else entry,
        hsv=(2 * sample[:, :3] - 1) * (policy.hsv_h, policy.hsv_s, policy.hsv_v),
        flip_ud=sample[:, 3] < policy.flipud,
        flip_lr=sample[:, 4] < policy.fliplr,
        bgr=sample[:, 5] < policy.bgr,
        mixup_weight=np.ones(n) if mixup is None else np.sort(mixup[:, 2:], axis=1)[:, _MIXUP_ORDER - 1],
        cutmix_xyxy_px=_regions(cutmix[:, 3:], out_hw) if cutmix is not None else np.zeros((n, REGIONS, 4), np.int64),
        cutmix_choice=cutmix[:, 2] if cutmix is not None else np.zeros(n),
        scene_offsets=offsets_of(np.bincount(slot, minlength=n)),
        role=role.astype(np.uint8),
        centre_yx=np.floor(imgsz / 2 + imgsz * layout[:, 2:4]).astype(np.int64),
        perspective=signed[:, 4:6] * policy.perspective,
        degrees=signed[:, 6] * policy.degrees,
        scale=_zoom(at["scale"], policy),
        shear_deg=signed[:, 8:10] * policy.shear,
        translate=0.5 + signed[:, 10:12] * policy.translate,
        tile_offsets=tile_offsets,
        tile_entry=tile_entry,
    )


def _zoom(u: F64, policy: Policy) -> F64:
    if isinstance(policy.scale, tuple):
        low, high = policy.scale
        return low + (high - low) * u
    return 1 + (2 * u - 1) * policy.scale


def _regions(u: F64, out_hw: tuple[int, int]) -> I64:
    """Return (B, 3, 4) regions: a share 1 - lambda of the picture around any pixel, cut at the frame. Beta(1, 1) is uniform."""
    wh = np.array(out_hw[::-1], np.int64)
    tries = u.reshape(-1, REGIONS, 3)
    side = np.sqrt(1 - tries[..., :1])
    half = (wh * side).astype(np.int64) // 2
    centre = rng.integers(tries[..., 1:], wh)
    return np.concatenate([np.clip(centre - half, 0, wh), np.clip(centre + half, 0, wh)], axis=-1)
