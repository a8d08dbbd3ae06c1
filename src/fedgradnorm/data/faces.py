"""Drawn faces: a synthetic stand-in for MTFL that needs no download.

40x40 gray faces with MTFL's five landmarks in the same column order (x1..x5, y1..y5, in pixels),
smile, glasses and pose, and a face-shape class in the place of gender. Made by NumPy from a seed;
for set-ups, tests and demonstrations, never for claims about real faces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._client import Client
from fedgradnorm._memory import check_draw
from fedgradnorm.data._face_clients import (
    Allocation,
    FaceSet,
    Progress,
    face_clients,
    task_sizes,
)
from fedgradnorm.data._source import Source

__all__ = ["clients"]

logger = logging.getLogger(__name__)

CLASSES: dict[str, tuple[str, ...]] = {
    "shape": ("round", "long"),
    "smile": ("smiling", "not smiling"),
    "glasses": ("glasses", "no glasses"),
    "pose": ("left profile", "left", "frontal", "right", "right profile"),
}
"""The label columns and what each class means."""

TASKS = ("landmark", *CLASSES)
"""The five tasks, in the order of the clients."""

SHARES: dict[str, tuple[float, ...]] = {
    "shape": (0.5, 0.5),
    "smile": (0.55, 0.45),
    "glasses": (0.25, 0.75),
    "pose": (0.06, 0.16, 0.56, 0.16, 0.06),
}
"""Class shares: uneven like MTFL's, but milder, so that small samples hold every class."""

SIZE = 40

ROW_BYTES = SIZE**2 + 4 * 10 + 8 * len(CLASSES)  # of memory: pixels, landmarks and labels
_BATCH = 500  # faces drawn at once: the temporary arrays stay in the processor's cache


def generate(samples: int = 10_000, seed: int = 0, progress: Progress | None = None) -> FaceSet:
    """Draw ``samples`` faces; the same seed gives the same faces, and more samples only add some.

    >>> generate(samples=3, seed=1).images.shape
    (3, 1, 40, 40)
    """
    return _generate(samples, (seed, 0), progress)


def clients(
    *,
    samples: int = 10_000,
    test_samples: int = 2_000,
    allocation: Allocation = "balanced",
    clients_per_task: int = 1,
    rows: int | None = None,
    validation_share: float = 0.0,
    seed: int = 0,
    loss_scale: Mapping[str, float] | None = None,
    tasks: Sequence[str] = TASKS,
    progress: Progress | None = None,
) -> list[Client]:
    """Five clients like MTFL's: landmark, shape, smile, glasses and pose, on drawn faces.

    Training rows are disjoint; test faces are drawn separately, and clients of a task hold the same
    tensors of them.

    Args:
        samples: the total number of training faces.
        test_samples: the number of test faces, the same for all clients.
        allocation: "balanced" or "imbalanced" (the paper's shares of ``samples``), or sizes by task
            or in the order of ``tasks``.
        clients_per_task: how many clients (``pose-0``, ``pose-1``, ...) share a task.
        rows: training examples per client; by default all are divided among them.
        validation_share: the share of a client's examples to hold out, from 0 to 1.
        seed: draws splits and shares of examples; by default the seed of the run.
        loss_scale: a factor on a task's loss, by the task's name.
        tasks: the tasks; each has one client, or ``clients_per_task`` of them.
        progress: called with (done, total) now and then; not for configs.
    """
    # Pixels become single precision numbers when they are dealt to the clients.
    counts = {"samples": samples, "test_samples": test_samples}
    check_draw("faces", counts, seed, ROW_BYTES + 4 * SIZE**2)
    sizes = task_sizes(allocation, tasks, TASKS, clients_per_task, rows, samples)
    total = samples + test_samples

    def step(start: int) -> Progress | None:
        return (lambda done, _: progress(start + done, total)) if progress else None

    train = _generate(samples, (seed, 0), step(0))
    test = _generate(test_samples, (seed, 1), step(samples))
    return face_clients(
        train, test, CLASSES, sizes, exact=rows is not None,
        tasks=tasks, validation_share=validation_share, seed=seed, loss_scale=loss_scale,
        clients_per_task=clients_per_task,
    )  # fmt: skip


def _generate(samples: int, stream: tuple[int, int], progress: Progress | None) -> FaceSet:
    check_draw("faces", {"samples": samples}, stream[0], ROW_BYTES)
    logger.info("drawing %d synthetic faces (seed %d); these are not real data", samples, stream[0])
    images = np.empty((samples, 1, SIZE, SIZE), np.uint8)
    landmarks = np.empty((samples, 10), np.float32)
    labels = {name: np.empty(samples, np.int64) for name in CLASSES}
    for start in range(0, samples, _BATCH):
        # Whole batches are drawn, so that a longer set begins with the shorter one.
        rng = np.random.default_rng([*stream, start // _BATCH])
        chosen = {name: rng.choice(len(p), size=_BATCH, p=p) for name, p in SHARES.items()}
        points, look = project(chosen, rng)
        drawn = draw(points, look, chosen, rng)
        part = slice(start, min(start + _BATCH, samples))
        count = part.stop - start
        images[part, 0] = drawn[:count]
        landmarks[part] = look.in_pixels(points)[:count]
        for name, values in chosen.items():
            labels[name][part] = values[:count]
        if progress:
            progress(part.stop, samples)
    return FaceSet(images, landmarks, labels)


# How a face looks: a turned head, its features, and the light on it. In head coordinates the head's
# center is the origin, half its width is 1, and y points down. Everything is an array with a face
# per row, and every shape is a soft mask over the pixels of all faces at once.

Array = NDArray[Any]
"""Always float32; typed loosely because NumPy's types lose that in mixed arithmetic."""


def wide(values: Array) -> Array:
    """One value per picture, ready to meet its pixels."""
    return values[:, None, None]


def ramp(distance: Array) -> Array:
    """A mask from a distance to the edge, in edge widths: 0 outside, 1 inside, half at the edge."""
    mask: Array = np.clip(distance + np.float32(0.5), 0, 1)
    return mask


def paint(picture: Array, mask: Array, grey: Array) -> Array:
    """``picture`` with one gray level per picture laid over it where the mask says."""
    painted: Array = picture + mask * (wide(grey) - picture)
    return painted


def ellipse(
    x: Array, y: Array, at_x: Array, at_y: Array, half_x: Array, half_y: Array, soft: Array
) -> Array:
    """A filled ellipse around (at_x, at_y); ``soft`` is the width of its edge."""
    across, along = (x - wide(at_x)) / wide(half_x), (y - wide(at_y)) / wide(half_y)
    least = wide(np.minimum(half_x, half_y))
    return ramp((1 - np.sqrt(across * across + along * along)) * least / soft)


def segment(x: Array, y: Array, start: Array, end: Array, half: float, soft: Array) -> Array:
    """A straight stroke between two points [n, 2], ``half`` wide on either side."""
    dx, dy = wide(end[:, 0] - start[:, 0]), wide(end[:, 1] - start[:, 1])
    px, py = x - wide(start[:, 0]), y - wide(start[:, 1])
    t = np.clip((px * dx + py * dy) / (dx * dx + dy * dy + np.float32(1e-6)), 0, 1)
    return ramp((half - np.hypot(px - t * dx, py - t * dy)) / soft)


def normal(
    rng: np.random.Generator, shape: int | tuple[int, ...], mean: float, spread: float
) -> Array:
    """Normal numbers as float32."""
    return np.float32(mean) + np.float32(spread) * rng.standard_normal(shape, dtype=np.float32)


def uniform(rng: np.random.Generator, count: int, low: float, high: float) -> Array:
    """Uniform numbers as float32."""
    return np.float32(low) + np.float32(high - low) * rng.random(count, dtype=np.float32)


def blotches(rng: np.random.Generator, count: int, size: int, spread: float) -> Array:
    """Smooth noise: a 5x5 grid of normal numbers, interpolated to ``size`` x ``size``."""
    place = np.linspace(0, 4, size, dtype=np.float32)
    mix = np.clip(1 - np.abs(place[:, None] - np.arange(5, dtype=np.float32)), 0, 1)
    return np.asarray(mix @ normal(rng, (count, 5, 5), 0, spread) @ mix.T)


Labels = Mapping[str, NDArray[np.int64]]

_POINTS = np.array(
    [
        [-0.40, -0.22, 0.72],
        [0.40, -0.22, 0.72],
        [0, 0.14, 1.05],
        [-0.30, 0.52, 0.76],
        [0.30, 0.52, 0.76],
    ],
    np.float32,
)
"""Eyes, nose and mouth corners of a frontal head: x, y and depth, which shifts them as it turns."""
_YAW = np.deg2rad(np.array([-46, -23, 0, 23, 46], np.float32))  # left profile .. right profile
_ROUND, _SMILE, _GLASSES = 0, 0, 0  # the class each of these labels counts as zero
_EDGE = np.float32(0.75)  # edges as wide as three quarters of a pixel: smooth, not blurred


@dataclass(frozen=True)
class _Canvas:
    """Every pixel's center in head coordinates [n, 40, 40], and the width of an edge there."""

    x: Array
    y: Array
    soft: Array


@dataclass(frozen=True)
class Look:
    """Where each head is, in pixels, and how it is turned; all [n]."""

    centre_x: Array
    centre_y: Array
    scale: Array
    roll: Array
    yaw: Array
    tall: Array

    def in_pixels(self, points: Array) -> Array:
        """Head coordinates [n, 5, 2] as rows x1..x5, y1..y5 in pixels of the picture."""
        cos, sin = np.cos(self.roll)[:, None], np.sin(self.roll)[:, None]
        x, y = points[..., 0], points[..., 1]
        scale = self.scale[:, None]
        pixel_x = self.centre_x[:, None] + scale * (cos * x - sin * y)
        pixel_y = self.centre_y[:, None] + scale * (sin * x + cos * y)
        return np.concatenate([pixel_x, pixel_y], axis=1)

    def head_grid(self) -> tuple[Array, Array]:
        """The center of every pixel in head coordinates: two arrays [n, 40, 40]."""
        line = np.arange(SIZE, dtype=np.float32) + np.float32(0.5)
        x = (line[None, None, :] - wide(self.centre_x)) / wide(self.scale)
        y = (line[None, :, None] - wide(self.centre_y)) / wide(self.scale)
        cos, sin = wide(np.cos(self.roll)), wide(np.sin(self.roll))
        return cos * x + sin * y, cos * y - sin * x


def project(labels: Labels, rng: np.random.Generator) -> tuple[Array, Look]:
    """Landmarks in head coordinates [n, 5, 2], and the look, for the labels of each face."""
    count = len(labels["pose"])
    long = labels["shape"] != _ROUND
    look = Look(
        centre_x=np.clip(normal(rng, count, 20, 2.2), 15, 25),
        centre_y=np.clip(normal(rng, count, 20.5, 2.0), 16, 25),
        scale=np.clip(normal(rng, count, 13.2, 1.1), 10.5, 15.5),
        roll=np.clip(normal(rng, count, 0, 0.13), -0.35, 0.35),
        yaw=_YAW[labels["pose"]] + np.clip(normal(rng, count, 0, 0.075), -0.16, 0.16),
        tall=np.where(long, 1.36, 1.12).astype(np.float32) + normal(rng, count, 0, 0.055),
    )
    solid = _POINTS[None] + normal(rng, (count, 5, 3), 0, 0.02)
    smile = (labels["smile"] == _SMILE).astype(np.float32)
    open_by = np.float32(0.07) * smile - np.float32(0.03) + normal(rng, count, 0, 0.025)
    solid[:, 3, 0] -= open_by  # a smile pulls the corners apart, and up a little
    solid[:, 4, 0] += open_by
    solid[:, 3:, 1] -= np.float32(0.05) * smile[:, None]
    solid[..., 1] *= (look.tall / np.float32(1.2))[:, None]
    cos, sin = np.cos(look.yaw)[:, None], np.sin(look.yaw)[:, None]
    x = solid[..., 0] * cos + solid[..., 2] * sin * np.float32(0.62)
    return np.stack([x, solid[..., 1]], axis=-1), look


def draw(points: Array, look: Look, labels: Labels, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The pictures [n, 40, 40], drawn back to front."""
    count = len(points)
    canvas = _Canvas(*look.head_grid(), wide(_EDGE / look.scale))
    skin = uniform(rng, count, 0.38, 0.88)
    hair = np.clip(skin * uniform(rng, count, 0.1, 1.0), 0.03, 0.8)
    dark = skin * uniform(rng, count, 0.15, 0.5)
    picture = paint(_background(rng, count), _hair(canvas, look, rng), hair)
    face = np.repeat(np.repeat(wide(skin), SIZE, axis=1), SIZE, axis=2)
    face = _eyes(face, canvas, points, dark, look, rng)
    face = _nose(face, canvas, points, skin, dark)
    face = _mouth(face, canvas, points, skin, dark, labels, rng)
    hairline = wide(look.tall * uniform(rng, count, 0.55, 0.85))
    face = paint(face, ramp((-hairline - canvas.y) / canvas.soft), hair)
    picture += _head(canvas, look, labels) * (face - picture)
    picture = paint(picture, *_glasses(canvas, points, labels, look, rng))
    return _lit(picture, canvas, rng)


def _eyes(
    face: Array, canvas: _Canvas, points: Array, dark: Array, look: Look, rng: np.random.Generator
) -> Array:
    """Eyes and brows, narrower the further the head turns."""
    x, y, soft = canvas.x, canvas.y, canvas.soft
    narrow = np.cos(look.yaw)
    lid, brow = uniform(rng, len(points), 0.06, 0.11), uniform(rng, len(points), 0.17, 0.25)
    thin = np.full_like(lid, 0.035)
    for eye in (0, 1):
        at_x, at_y = points[:, eye, 0], points[:, eye, 1]
        face = paint(face, ellipse(x, y, at_x, at_y, 0.17 * narrow, lid, soft), dark)
        face = paint(face, ellipse(x, y, at_x, at_y - brow, 0.22 * narrow, thin, soft), dark)
    return face


def _nose(face: Array, canvas: _Canvas, points: Array, skin: Array, dark: Array) -> Array:
    """A light ridge from between the eyes to the tip, and the shadow below it."""
    x, y, soft = canvas.x, canvas.y, canvas.soft
    tip = points[:, 2]
    ridge = segment(x, y, points[:, :2].mean(axis=1), tip, 0.04, soft)
    face = paint(face, np.float32(0.5) * ridge, np.minimum(skin * 1.25, 1))
    size = np.full_like(skin, 0.12)
    shadow = ellipse(x, y, tip[:, 0], tip[:, 1] + 0.03, size, size * 0.4, soft)
    return paint(face, np.float32(0.7) * shadow, dark)


def _mouth(
    face: Array, canvas: _Canvas, points: Array, skin: Array, dark: Array, labels: Labels,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """A curve from corner to corner: smiles bend it down in the middle and may show teeth."""
    count = len(points)
    smile = (labels["smile"] == _SMILE).astype(np.float32)
    middle, half = (points[:, 4] + points[:, 3]) / 2, (points[:, 4] - points[:, 3]) / 2
    reach = np.maximum(half[:, 0], 0.08)
    t = (canvas.x - wide(middle[:, 0])) / wide(reach)
    arch = np.clip(1 - t * t, 0, 1)
    bend = np.float32(0.13) * smile + normal(rng, count, 0, 0.04)
    off = np.abs(canvas.y - wide(middle[:, 1]) - t * wide(half[:, 1]) - wide(bend) * arch)
    within = ramp((1 - np.abs(t)) * wide(reach) / canvas.soft)
    thick = wide(uniform(rng, count, 0.03, 0.06))
    face = paint(face, within * ramp((thick - off) / canvas.soft), dark)
    shown = smile * (rng.random(count) < 0.6)
    gap = wide(uniform(rng, count, 0.05, 0.12)) * arch
    teeth = within * ramp((gap - off) / canvas.soft) * wide(shown.astype(np.float32))
    return paint(face, teeth, np.minimum(skin * 1.35, 0.97))


def _glasses(
    canvas: _Canvas, points: Array, labels: Labels, look: Look, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Two rims and a bridge: the mask (empty where there are none) and its gray level."""
    count = len(points)
    worn = (labels["glasses"] == _GLASSES).astype(np.float32) * uniform(rng, count, 0.55, 1)
    radius, rim = uniform(rng, count, 0.25, 0.32), uniform(rng, count, 0.025, 0.06)
    narrow = np.cos(look.yaw)
    start, end = points[:, 0].copy(), points[:, 1].copy()
    start[:, 0] += radius * narrow
    end[:, 0] -= radius * narrow
    mask = segment(canvas.x, canvas.y, start, end, 0.03, canvas.soft)
    for eye in (0, 1):
        across = (canvas.x - wide(points[:, eye, 0])) / wide(narrow)
        off = np.abs(np.hypot(across, canvas.y - wide(points[:, eye, 1])) - wide(radius))
        mask = np.maximum(mask, ramp((wide(rim) - off) / canvas.soft))
    grey = np.where(rng.random(count) < 0.8, uniform(rng, count, 0.02, 0.25), np.float32(0.9))
    return mask * wide(worn), grey


def _head(canvas: _Canvas, look: Look, labels: Labels) -> Array:
    """The outline: nearly a circle for round faces, taller with a narrower jaw for long ones."""
    long = (labels["shape"] != _ROUND).astype(np.float32)
    taper = wide(0.05 + 0.13 * long) * np.clip(canvas.y, 0, None)
    across, down = canvas.x / np.clip(1 - taper, 0.5, None), canvas.y / wide(look.tall)
    return ramp((1 - np.hypot(across, down)) / canvas.soft)


def _hair(canvas: _Canvas, look: Look, rng: np.random.Generator) -> Array:
    """Behind the head, shifted to its back when it turns; some long, some hardly any."""
    count = len(canvas.x)
    size, down = uniform(rng, count, 0.98, 1.22), uniform(rng, count, -0.25, 0.35)
    across = (canvas.x + wide(np.float32(0.22) * np.sin(look.yaw))) / wide(size)
    along = (canvas.y - wide(down)) / wide(look.tall * size)
    return ramp((1 - np.hypot(across, along)) / canvas.soft)


def _background(rng: np.random.Generator, count: int) -> Array:
    """A slope of gray with soft blotches."""
    line = np.linspace(-0.5, 0.5, SIZE, dtype=np.float32)
    across, down = uniform(rng, count, -0.5, 0.5), uniform(rng, count, -0.5, 0.5)
    slope = wide(across) * line[None, None, :] + wide(down) * line[None, :, None]
    level = wide(uniform(rng, count, 0.1, 0.9))
    grey: Array = np.clip(level + slope + blotches(rng, count, SIZE, 0.15), 0, 1)
    return grey


def _lit(picture: Array, canvas: _Canvas, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Light from one side, contrast, brightness and sensor noise; as gray levels."""
    count = len(picture)
    angle, strength = uniform(rng, count, 0, 2 * np.pi), uniform(rng, count, 0, 0.32)
    light = wide(strength * np.cos(angle)) * canvas.x + wide(strength * np.sin(angle)) * canvas.y
    gain, offset = uniform(rng, count, 0.65, 1.1), uniform(rng, count, -0.04, 0.14)
    noise = normal(rng, picture.shape, 0, 1) * wide(uniform(rng, count, 0.01, 0.06))
    grey = picture * np.clip(1 + light, 0.3, 1.5) * wide(gain) + wide(offset) + noise
    levels: NDArray[np.uint8] = (np.clip(grey, 0, 1) * 255 + np.float32(0.5)).astype(np.uint8)
    return levels


Source("faces", clients, "drawn faces, a stand-in for MTFL").register()
