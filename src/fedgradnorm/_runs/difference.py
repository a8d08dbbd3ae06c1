"""How two runs differ, in words: for those who resume one, or find another in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgradnorm._checks import shortened


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first key in which two tables differ, with both values; "" if they are the same.

    >>> difference({"lr": 0.1, "widths": [8, 8]}, {"lr": 0.1, "widths": [8, 9]})
    'widths[1] = 8 there, 9 here'
    """
    for key in {**there, **here}:
        if there.get(key) != here.get(key):
            word = key if key.isprintable() else repr(key)
            return _unlike(word, there.get(key), here.get(key))
    return ""


def _unlike(key: str, one: Any, other: Any) -> str:
    """Where two values differ, however deep in tables and lists: shown whole, both look alike."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return f"{key}.{difference(one, other)}"
    lists = isinstance(one, list | tuple) and isinstance(other, list | tuple)
    if lists and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(_unlike(f"{key}[{i}]", *both) for i, both in pairs if both[0] != both[1])
    if lists:
        return f"{key} has {len(one)} entries there, {len(other)} here"
    texts = repr(one), repr(other)
    same = next((i for i, both in enumerate(zip(*texts, strict=False)) if both[0] != both[1]), 0)
    begin = same - 20 if max(map(len, texts)) > 80 and same > 20 else 0
    shown_texts = [shortened(f"{'...' if begin else ''}{text[begin:]}", 80) for text in texts]
    return f"{key} = {shown_texts[0]} there, {shown_texts[1]} here"
