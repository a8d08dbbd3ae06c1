"""Many small kernels made into few by torch.compile; where that fails, things run as they are."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("fedgradnorm")

SHAPES = 64  # that one function may be compiled for


class Fused(Generic[P, R]):
    """A function of tensors, compiled when it is first called."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._plain = function
        with _quiet():
            self._fast: Callable[P, R] | None = torch.compile(function, dynamic=False)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """What the function gives; a compiler that is missing or fails costs only speed."""
        if self._fast is None:
            return self._plain(*arguments, **named)
        try:
            with _quiet(), torch._dynamo.config.patch(recompile_limit=SHAPES):
                return self._fast(*arguments, **named)
        except torch._dynamo.exc.TorchDynamoException as error:  # not the function's own errors
            reason = str(error).strip().splitlines()[:1]
            log.warning("compile: %s runs as it is: %s", self._plain.__name__, *reason or ["?"])
            self._fast = None
            return self._plain(*arguments, **named)


@contextmanager
def _quiet() -> Iterator[None]:
    """The compiler's advice to its own authors is not the user's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
