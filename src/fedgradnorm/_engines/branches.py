"""Work of several parts side by side on a GPU, where each alone leaves most of it idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")

_STREAMS: dict[torch.device, list[torch.cuda.Stream]] = {}


def in_branches(pieces: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """The results of independent pieces of work, which become branches of a captured CUDA graph.

    While a graph is captured, every piece but the first has a stream of its own, which waits for
    everything launched before and is joined at the end. Otherwise they run one after another.
    """
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if not capturing or len(pieces) < 2:
        return [piece() for piece in pieces]
    streams = _STREAMS.setdefault(device, [])
    while len(streams) < len(pieces) - 1:
        streams.append(torch.cuda.Stream(device))
    here, others = torch.cuda.current_stream(device), streams[: len(pieces) - 1]
    for stream in others:
        stream.wait_stream(here)
    found = [pieces[0]()]
    for stream, piece in zip(others, pieces[1:], strict=True):
        with torch.cuda.stream(stream):
            found.append(piece())
    for stream in others:
        here.wait_stream(stream)
    return found
