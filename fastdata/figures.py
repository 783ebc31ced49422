"""Invented pictures: textures with figures on them whose outlines are known exactly.

Picture ``index`` of ``seed`` is a pure function of its arguments, so any number of processes may draw any part of a dataset, and
a test may draw one picture again without the rest. Chance is allowed here: the result is data, not a sample of training.

What "exactly" means, with coordinates as pixel edges (pixel i covers [i, i + 1)): a pixel whose centre lies more than 1 px
outside every outline is the background, bit for bit; one more than 1 px inside an outline, and not inside a figure
painted later, has that figure's colours; between the two lies the blend by covered area. JPEG comes later and adds its own error.

Outlines are **full**: figures are painted in order, a later one hides what lies below it (at most a third of the smaller box of
the two), and the hidden part belongs to the outline all the same. Only the picture's border cuts an outline.

Pixels repeat on the same machine with the same library versions; labels repeat everywhere to within rounding.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from fastdata.boxes import F64, bounds, clip_polygon, polygon_area
from fastdata.errors import UsageError

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

SIZES_HW = ((480, 640), (640, 480), (427, 640), (640, 427), (375, 500), (512, 512))
"""Sizes that collections of photographs have, for a mix."""

KEYPOINTS = ("tip", "right", "right-foot", "left-foot", "left")
"""Of a star: its five tips, clockwise. Of an arrow: its tip, right barb, right and left end of the tail, left barb."""

FLIP_IDX = (0, 4, 3, 2, 1)
"""What each keypoint becomes under a left-right mirror."""

SUPERSAMPLE = 4
"""Sub-pixels per pixel and axis when an outline is filled."""

MAX_HIDDEN = 1 / 3
"""Share of the smaller box of two figures that their overlap may have."""

MIN_INSIDE = 0.4
"""Share of a figure's area that must lie inside the picture."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One object of a picture, and all that a label may say about it."""

    cls: int
    """Index into the classes that were asked for."""
    outline_px: F64
    """(v, 2) one ring, cut at the border; a hole is joined to the outside by a seam of no width."""
    xyxy_px: F64
    """(4,) the bounds of ``outline_px``."""
    corners_px: F64
    """(4, 2) the rectangle around the uncut figure that is turned with it; may leave the picture."""
    keypoints_px: F64
    """(K, 3) x, y, visibility (0 outside the picture, 1 hidden by a later figure, 2 visible); K = 0 for most shapes."""
    area_px: float
    """Area of ``outline_px``."""
    colours: U8
    """(2, 3) RGB: each pixel of the figure is a mixture of the two."""


def _regular(n: int, radius: float = 1.0, first: float = -np.pi / 2) -> F64:
    angle = first + 2 * np.pi * np.arange(n) / n
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _star() -> F64:
    return np.stack([_regular(5), _regular(5, 0.45, -0.3 * np.pi)], axis=1).reshape(-1, 2)


def _moon() -> F64:
    """Half a turn and more of a circle; the way back is a parabola that leaves 0.3 at the thickest place."""
    angle = np.linspace(0.3 * np.pi, 1.7 * np.pi, 40)
    edge = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    t = np.linspace(-1, 1, 30)[1:-1]
    back = np.stack([edge[0, 0] - (edge[0, 0] + 0.4) * (1 - t**2), t * edge[0, 1]], axis=1)
    return np.concatenate([edge, back])


def _cross(a: float) -> F64:
    arm = np.array([[-a, -1], [a, -1], [a, -a]])
    turn = np.array([[0, 1], [-1, 0]])
    return np.concatenate([arm @ np.linalg.matrix_power(turn, k) for k in range(4)])


SHAPES: dict[str, tuple[F64, ...]] = {
    "rectangle": (np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64),),
    "ellipse": (_regular(48),),
    "triangle": (np.array([[0, -1], [1, 1], [-1, 1]], np.float64),),
    "star": (_star(),),
    "ring": (_regular(48), _regular(32, 0.55)[::-1]),
    "arrow": (np.array([[0, -1], [0.8, 0], [0.35, 0], [0.35, 1], [-0.35, 1], [-0.35, 0], [-0.8, 0]], np.float64),),
    "cross": (_cross(0.35),),
    "moon": (_moon(),),
}
"""Name to outline in the figure's own frame, about [-1, 1] on both axes, y down; a second ring is a hole."""

KEYPOINT_VERTICES = {"star": (0, 2, 4, 6, 8), "arrow": (0, 1, 3, 4, 6)}
"""Which vertices of an outline are the keypoints, for the shapes that have them."""

CLASSES = tuple(SHAPES)


def make_picture(
    seed: int,
    index: int,
    size_hw: tuple[int, int],
    *,
    classes: Sequence[str] = CLASSES,
    background_share: float = 0.1,
    uncut: bool = False,
) -> tuple[U8, list[Figure]]:
    """Draw one picture.

    Args:
        seed: Chooses the dataset.
        index: Chooses the picture in it.
        size_hw: Height and width, at least 32 each.
        classes: Names out of :data:`CLASSES`; their order gives the class index.
        background_share: Probability that the picture holds no figure at all.
        uncut: Keep every figure, with its turned rectangle, inside the picture.

    Returns:
        The picture, (h, w, 3) RGB, and its figures in the order in which they were painted.

    Raises:
        UsageError: As :func:`check_picture`.
    """
    check_picture(classes, background_share, [size_hw])
    rgb = make_background(seed, index, size_hw)
    rng = _generator(seed, index, 1)
    count = 0 if rng.random() < background_share else 1 + min(int(rng.exponential(4.5)), 15)
    placed: list[tuple[int, list[F64], F64]] = []
    boxes = np.zeros((count, 4))
    for _ in range(count):
        for _attempt in range(20):
            cls = int(rng.integers(len(classes)))
            rings, corners = _place(rng, SHAPES[classes[cls]], size_hw)
            box = bounds(rings[0])
            if _fits(rings[0], box, corners, boxes[: len(placed)], size_hw, uncut):
                boxes[len(placed)] = box
                placed.append((cls, rings, corners))
                break
    figures = []
    for k, (cls, rings, corners) in enumerate(placed):
        colours = _paint(rgb, rings, rng)
        outline = clip_polygon(_one_ring(rings), size_hw)
        keypoints = _keypoints(classes[cls], rings[0], [r for _, r, _ in placed[k + 1 :]], size_hw)
        figures.append(Figure(cls, outline, bounds(outline), corners, keypoints, polygon_area(outline), colours))
    return rgb, figures


def check_picture(classes: Sequence[str], background_share: float, sizes_hw: Sequence[tuple[int, int]]) -> None:
    """Refuse arguments that no picture can be drawn from.

    Raises:
        UsageError: A class is unknown or named twice, a share is not a probability, or a picture is smaller than 32 px.
    """
    if not classes or len(set(classes)) < len(classes) or not set(classes) <= set(CLASSES):
        raise UsageError(f"classes must be different names out of {', '.join(CLASSES)}, got {', '.join(classes) or 'none'}")
    if not 0 <= background_share <= 1:
        raise UsageError(f"background_share must be from 0 to 1, got {background_share}")
    for h, w in sizes_hw:
        if min(h, w) < 32:
            raise UsageError(f"size_hw must be at least 32 x 32, got {h} x {w}")


def _generator(seed: int, index: int, stream: int) -> np.random.Generator:
    """Return the generator of one part of one picture. Philox is keyed: no two parts share a stream (Salmon et al., SC 2011)."""
    return np.random.Generator(np.random.Philox(key=((seed % 2**64) << 64) | (index << 8) | stream))


# Placing


def _place(rng: np.random.Generator, shape: tuple[F64, ...], size_hw: tuple[int, int]) -> tuple[list[F64], F64]:
    """Return a stretched, turned, moved copy of ``shape`` in pixels, and the four corners of its own frame."""
    h, w = size_hw
    half = min(h, w) * float(np.exp(rng.uniform(np.log(0.04), np.log(0.24))))
    stretch = np.array([half, half * rng.uniform(0.55, 1.0)])[:: rng.choice([1, -1])]
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    centre = rng.uniform(0, 1, 2) * [w, h]
    x0, y0, x1, y1 = bounds(shape[0])
    frame = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
    return [ring * stretch @ turn + centre for ring in shape], frame * stretch @ turn + centre


def _fits(outer: F64, box: F64, corners: F64, before: F64, size_hw: tuple[int, int], uncut: bool) -> bool:
    """Tell whether a figure may stand here: not too much of an earlier one (n, 4) hidden, enough of it in the picture."""
    common = np.minimum(box[2:], before[:, 2:]) - np.maximum(box[:2], before[:, :2])
    sizes = before[:, 2:] - before[:, :2]
    limit = MAX_HIDDEN * np.minimum(sizes[:, 0] * sizes[:, 1], (box[2] - box[0]) * (box[3] - box[1]))
    if (common.clip(0)[:, 0] * common.clip(0)[:, 1] > limit).any():
        return False
    h, w = size_hw
    x0, y0, x1, y1 = bounds(corners)
    if x0 >= 0 and y0 >= 0 and x1 <= w and y1 <= h:
        return True
    if uncut:
        return False
    left = clip_polygon(outer, size_hw)
    return len(left) >= 3 and polygon_area(left) >= MIN_INSIDE * polygon_area(outer)


def _one_ring(rings: list[F64]) -> F64:
    """Join an outline and its hole by a seam: out along it, around the hole, back."""
    if len(rings) == 1:
        return rings[0]
    outer, hole = rings
    start = int(np.argmin(((hole - outer[0]) ** 2).sum(axis=1)))
    hole = np.roll(hole, -start, axis=0)
    return np.concatenate([outer, outer[:1], hole, hole[:1]])


def _keypoints(shape: str, ring: F64, later: list[list[F64]], size_hw: tuple[int, int]) -> F64:
    """Return (K, 3) keypoints of a placed figure, given the figures painted over it."""
    h, w = size_hw
    vertices = KEYPOINT_VERTICES.get(shape, ())
    out = np.zeros((len(vertices), 3))
    for k, vertex in enumerate(vertices):
        x, y = float(ring[vertex, 0]), float(ring[vertex, 1])
        if 0 <= x < w and 0 <= y < h:
            hidden = any(sum(cv2.pointPolygonTest(r.astype(np.float32), (x, y), False) >= 0 for r in over) % 2 for over in later)
            out[k] = x, y, 1 if hidden else 2
    return out


# Painting


def coverage(rings: Sequence[F64], origin_px: tuple[int, int], size_hw: tuple[int, int]) -> F32:
    """Return (h, w) the share of each pixel that lies inside ``rings`` (even-odd), for the window at ``origin_px`` (x, y).

    OpenCV fills an outline together with the pixels that its border runs through. Painting the border again at half weight takes
    back the half sub-pixel that this adds.
    """
    h, w = size_hw
    fine: U8 = np.zeros((h * SUPERSAMPLE, w * SUPERSAMPLE), np.uint8)
    # OpenCV counts from pixel centres, here in steps of 1/256.
    points = [np.round(((ring - origin_px) * SUPERSAMPLE - 0.5) * 256).astype(np.int32) for ring in rings]
    cv2.fillPoly(fine, points, 254, lineType=cv2.LINE_8, shift=8)
    cv2.polylines(fine, points, True, 127, lineType=cv2.LINE_8, shift=8)
    return cv2.resize(fine, (w, h), interpolation=cv2.INTER_AREA).astype(np.float32) / np.float32(254)


def _paint(rgb: U8, rings: list[F64], rng: np.random.Generator) -> U8:
    """Paint a figure into ``rgb``; return its two colours, chosen to stand out from what is there."""
    x0, y0, x1, y1 = bounds(rings[0])
    left, top = max(int(x0) - 1, 0), max(int(y0) - 1, 0)
    view = rgb[top : int(y1) + 2, left : int(x1) + 2]
    size_hw = (view.shape[0], view.shape[1])
    under = np.array(cv2.mean(view)[:3])
    candidates = np.array([colorsys.hsv_to_rgb(*rng.uniform([0, 0.55, 0.55], [1, 1, 1])) for _ in range(4)]) * 255
    first = candidates[int(np.argmax(np.abs(candidates - under).sum(axis=1)))]
    second = first * rng.uniform(0.55, 0.8) if first.mean() > 90 else first + (255 - first) * rng.uniform(0.3, 0.5)
    colours = np.stack([first, second]).round().astype(np.uint8)
    pattern = _stripes(rng, size_hw, None, waves=rng.choice([0.5, 4.0]))
    fill = cv2.applyColorMap(pattern, _colour_map(colours))
    share = coverage(rings, (left, top), size_hw)
    view[:] = cv2.blendLinear(fill, view, share, 1 - share)
    return colours


def make_background(seed: int, index: int, size_hw: tuple[int, int]) -> U8:
    """Draw the (h, w, 3) RGB background of a picture: the picture of :func:`make_picture` without its figures."""
    rng = _generator(seed, index, 0)
    hue, spread = rng.random(), rng.uniform(0.03, 0.2)
    values = rng.uniform(0.15, 0.85, 4)
    stops = [colorsys.hsv_to_rgb((hue + spread * k) % 1, rng.uniform(0.05, 0.5), values[k]) for k in range(4)]
    match int(rng.integers(5)):
        case 0:
            grey = _clouds(rng, size_hw, (3, 6, 13, 29))
        case 1:
            grey = _stripes(rng, size_hw, _clouds(rng, size_hw, (3, 5)), waves=rng.uniform(2, 14))
        case 2:
            grey = _weave(rng, size_hw)
        case 3:
            grey = _blobs(rng, size_hw)
        case _:
            grey = _clouds(rng, size_hw, (2, 3))
    amount = rng.uniform(0.02, 0.25)  # grain: without it a JPEG is a fifth of what cameras write
    grain = np.frombuffer(rng.bytes(size_hw[0] * size_hw[1]), np.uint8).reshape(size_hw)
    grey = np.asarray(cv2.addWeighted(grey, 1.0, grain, amount, -127 * amount), np.uint8)
    return np.asarray(cv2.applyColorMap(grey, _colour_map(np.array(stops) * 255)), np.uint8)


def _colour_map(colours: npt.NDArray[np.float64] | U8) -> U8:
    """Return (256, 1, 3): the (n, 3) colours, evenly spaced, with linear steps between them."""
    at = np.linspace(0, 255, len(colours))
    channels = [np.interp(np.arange(256), at, colours[:, c]) for c in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)[:, None]


def _clouds(rng: np.random.Generator, size_hw: tuple[int, int], cells: Sequence[int]) -> U8:
    """Value noise: random grids of growing fineness and falling weight, stretched to the picture; 0 to 255."""
    h, w = size_hw
    total = np.zeros(((h + 1) // 2, (w + 1) // 2), np.float32)
    for octave, n in enumerate(cells):
        grid = rng.random((n, max(2, n * w // h)), np.float32) * np.float32(0.6**octave)
        total += cv2.resize(grid, (total.shape[1], total.shape[0]), interpolation=cv2.INTER_CUBIC)
    low, high = float(total.min()), float(total.max())
    grey = ((total - low) * np.float32(255 / (high - low))).astype(np.uint8)
    return np.asarray(cv2.resize(grey, (w, h), interpolation=cv2.INTER_LINEAR), np.uint8)


def _stripes(rng: np.random.Generator, size_hw: tuple[int, int], bend: U8 | None, waves: float) -> U8:
    """Triangle waves across the picture in a random direction, bent by ``bend``."""
    h, w = size_hw
    angle = rng.uniform(0, np.pi)
    step = 512 * waves / np.hypot(h, w)
    across = np.arange(w, dtype=np.float32) * np.float32(step * np.cos(angle))
    down = np.arange(h, dtype=np.float32) * np.float32(step * np.sin(angle))
    phase = (across + down[:, None] + np.float32(rng.uniform(0, 512))).astype(np.int32)
    if bend is not None:
        phase += np.int32(3) * bend
    return np.asarray(np.minimum(np.abs((phase & 511) - 255), 255), np.uint8)


def _weave(rng: np.random.Generator, size_hw: tuple[int, int]) -> U8:
    """Bands along both axes laid over each other, as in a cloth."""
    down, across = (_bands(rng, n) for n in size_hw)
    return down[:, None] + across


def _bands(rng: np.random.Generator, n: int) -> U8:
    width = int(rng.integers(4, 40))
    return np.repeat(rng.integers(0, 128, -(-n // width), np.uint8), width)[:n]


def _blobs(rng: np.random.Generator, size_hw: tuple[int, int]) -> U8:
    """Discs out of focus."""
    h, w = (size_hw[0] + 1) // 2, (size_hw[1] + 1) // 2
    small: U8 = np.full((h, w), rng.integers(256), np.uint8)
    count = int(rng.integers(15, 50))
    xs, ys = rng.integers(0, w, count), rng.integers(0, h, count)
    radii, greys = rng.integers(3, max(4, h // 4), count), rng.integers(0, 256, count)
    for x, y, radius, grey in zip(xs.tolist(), ys.tolist(), radii.tolist(), greys.tolist(), strict=True):
        cv2.circle(small, (x, y), radius, grey, -1)
    soft = cv2.blur(small, (9, 9))
    return np.asarray(cv2.resize(soft, (size_hw[1], size_hw[0]), interpolation=cv2.INTER_LINEAR), np.uint8)
