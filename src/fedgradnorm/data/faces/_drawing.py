"""How a drawn face looks: a turned head, its features, and the light on it.

Head coordinates: the head's centre is the origin, half its width is 1, y points down. Everything is
an array with a face per row, and every shape is a soft mask over the pixels of all faces at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgradnorm.data.faces._shapes import (
    Array,
    blotches,
    ellipse,
    normal,
    paint,
    ramp,
    segment,
    uniform,
    wide,
)

Labels = Mapping[str, NDArray[np.int64]]

SIZE = 40

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
    """Every pixel's centre in head coordinates [n, 40, 40], and the width of an edge there."""

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
        """The centre of every pixel in head coordinates: two arrays [n, 40, 40]."""
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
    """Two rims and a bridge: the mask (empty where there are none) and its grey level."""
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
    """A slope of grey with soft blotches."""
    line = np.linspace(-0.5, 0.5, SIZE, dtype=np.float32)
    across, down = uniform(rng, count, -0.5, 0.5), uniform(rng, count, -0.5, 0.5)
    slope = wide(across) * line[None, None, :] + wide(down) * line[None, :, None]
    level = wide(uniform(rng, count, 0.1, 0.9))
    grey: Array = np.clip(level + slope + blotches(rng, count, SIZE, 0.15), 0, 1)
    return grey


def _lit(picture: Array, canvas: _Canvas, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Light from one side, contrast, brightness and sensor noise; as grey levels."""
    count = len(picture)
    angle, strength = uniform(rng, count, 0, 2 * np.pi), uniform(rng, count, 0, 0.32)
    light = wide(strength * np.cos(angle)) * canvas.x + wide(strength * np.sin(angle)) * canvas.y
    gain, offset = uniform(rng, count, 0.65, 1.1), uniform(rng, count, -0.04, 0.14)
    noise = normal(rng, picture.shape, 0, 1) * wide(uniform(rng, count, 0.01, 0.06))
    grey = picture * np.clip(1 + light, 0.3, 1.5) * wide(gain) + wide(offset) + noise
    levels: NDArray[np.uint8] = (np.clip(grey, 0, 1) * 255 + np.float32(0.5)).astype(np.uint8)
    return levels
