"""What the arguments of a function mean, read from the ``Args:`` of its documentation.

A config's keys are arguments somewhere: of ``train``, of a data source, of a weighting. Their
meaning is written once, there, and whoever lists them reads it from there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """The meaning of each argument that the documentation names, on one line.

    Two names before one colon mean the same thing.

    >>> def move(far, near):
    ...     '''Go.
    ...
    ...     Args:
    ...         far, near: how long a step is,
    ...             in meters.
    ...     '''
    >>> meanings(move)
    {'far': 'how long a step is, in meters.', 'near': 'how long a step is, in meters.'}
    """
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2]
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
    found: dict[str, str] = {}
    for entry in re.findall(r"^ {4}(\w+(?:, \w+)*: .*(?:\n {5,}.*)*)", section, re.MULTILINE):
        names, _, meaning = entry.partition(": ")
        found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found
