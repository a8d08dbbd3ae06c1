"""Drawn faces: a synthetic stand-in for MTFL that needs no download.

40x40 grey faces with MTFL's five landmarks in the same column order (x1..x5, y1..y5, in pixels),
smile, glasses and pose, and a face-shape class in the place of gender. Made by NumPy from a seed;
for set-ups, tests and demonstrations, never for claims about real faces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._client import Client
from fedgradnorm._memory import check_draw
from fedgradnorm.data._allocation import Allocation, check_enough, task_sizes
from fedgradnorm.data.faces._drawing import SIZE, draw, project
from fedgradnorm.data.faces._face_clients import face_clients
from fedgradnorm.data.mtfl._annotations import CLASSES as MTFL_CLASSES

__all__ = ["CLASSES", "SIZE", "TASKS", "Faces", "clients", "generate"]

logger = logging.getLogger(__name__)

CLASSES: dict[str, tuple[str, ...]] = {
    "shape": ("round", "long"),
    **{name: MTFL_CLASSES[name] for name in ("smile", "glasses", "pose")},
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

Progress = Callable[[int, int], None]

ROW_BYTES = SIZE**2 + 4 * 10 + 8 * len(CLASSES)  # of memory: pixels, landmarks and labels
_BATCH = 500  # faces drawn at once: the temporary arrays stay in the processor's cache


@dataclass(frozen=True)
class Faces:
    """Drawn faces: images uint8 [n, 1, 40, 40], landmarks float32 [n, 10], labels int64 [n]."""

    images: NDArray[np.uint8]
    landmarks: NDArray[np.float32]
    shape: NDArray[np.int64]
    smile: NDArray[np.int64]
    glasses: NDArray[np.int64]
    pose: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The images, and the targets by task."""
        labels = {name: getattr(self, name) for name in CLASSES}
        return {"images": self.images, "landmark": self.landmarks, **labels}


def generate(samples: int = 10_000, seed: int = 0, progress: Progress | None = None) -> Faces:
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

    ``allocation`` is "balanced" or "imbalanced" (the paper's shares of ``samples``), or sizes by
    task or in the order of ``tasks``. ``clients_per_task`` clients (``pose-0``, ...) share a task's
    rows, or have ``rows`` of the ``samples`` each. Training rows are disjoint; test faces are drawn
    separately, and clients of a task hold the same tensors of them.

    Args:
        samples: training faces in all.
        test_samples: test faces, the same for all.
        allocation: "balanced", "imbalanced", or sizes by task or in the order of ``tasks``.
        clients_per_task: how many clients share a task.
        rows: training rows of each client; None deals out all there are.
        validation_share: part of a client's rows that is held out, from 0 to 1.
        seed: decides which rows go where; the run's own unless given.
        loss_scale: a factor on a task's loss, by the task's name.
        tasks: one client each, or clients_per_task of them.
        progress: called with (done, total) now and then; not for configs.
    """
    # Pixels become single precision numbers when they are dealt to the clients.
    counts = {"samples": samples, "test_samples": test_samples}
    check_draw("faces", counts, seed, ROW_BYTES + 4 * SIZE**2)
    sizes = task_sizes(allocation, tasks, TASKS, clients_per_task, rows, samples)
    if rows is not None:
        check_enough(sizes, clients_per_task, samples)
    total = samples + test_samples

    def step(start: int) -> Progress | None:
        return (lambda done, _: progress(start + done, total)) if progress else None

    train = _generate(samples, (seed, 0), step(0))
    test = _generate(test_samples, (seed, 1), step(samples))
    return face_clients(
        train.columns(), test.columns(), CLASSES, sizes,
        tasks=tasks, validation_share=validation_share, seed=seed, loss_scale=loss_scale,
        clients_per_task=clients_per_task,
    )  # fmt: skip


def _generate(samples: int, stream: tuple[int, int], progress: Progress | None) -> Faces:
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
    return Faces(images, landmarks, **labels)
