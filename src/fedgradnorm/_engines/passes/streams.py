"""Work that does not wait for each other: side by side inside a captured GPU graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
ABREAST = 4


class Streams:
    """Streams for what may run beside the main line; outside a capture everything is in line.

    Tensors of the main line that a branch reads must live until :meth:`join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._open: dict[int, torch.cuda.Stream] = {}

    @contextmanager
    def branch(self, number: int, *, when: bool = True) -> Iterator[None]:
        """What is launched inside goes to branch ``number``, after all that the main line did."""
        on_gpu = when and self._device.type == "cuda"
        if not on_gpu or not torch.cuda.is_current_stream_capturing():
            yield
            return
        if number not in self._streams:
            self._streams[number] = torch.cuda.Stream(self._device)
        stream = self._open[number] = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """The main line waits for all branches."""
        for stream in self._open.values():
            torch.cuda.current_stream(self._device).wait_stream(stream)
        self._open.clear()

    def side_by_side(self, items: Sequence[T]) -> Iterator[T]:
        """The items one by one; what is done with each may run beside the others."""
        for number, item in enumerate(items):
            with self.branch(number % ABREAST):
                yield item
        self.join()
