"""Soft shapes over the pixels of many pictures at once, and the arithmetic to paint with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """``picture`` with one grey level per picture laid over it where the mask says."""
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
