"""What groups of runs are called: the method, what is its own, and what tells it from its like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedgradnorm._stored.identity import (
    CLIENTS,
    STRUCTURE,
    differing,
    digest,
    facts_of,
    fingerprint,
)
from fedgradnorm._stored.reader import StoredRun
from fedgradnorm.experiments._entries import own_name
from fedgradnorm.experiments._sweep import point_name

Variants = Sequence[Sequence[StoredRun]]
_SHOWN = 3  # settings named in a label


def named(method: str, variants: Variants) -> list[tuple[str, str]]:
    """(line, label) of each variant of a method; a label is its line and its point of a sweep.

    No two labels are the same: variants that own settings and point do not tell apart are called by
    the settings, the network or the data in which they differ.
    """
    firsts = [members[0] for members in variants]
    lines = [" ".join(filter(None, (method, own_name(run.part("own"))))) for run in firsts]
    points = [point_name(run.part("point")) for run in firsts]
    whole = [" ".join(filter(None, pair)) for pair in zip(lines, points, strict=True)]
    told = [""] * len(firsts)
    for label in {label for label, count in Counter(whole).items() if count > 1}:
        alike = [i for i, other in enumerate(whole) if other == label]
        for i, text in zip(alike, _apart([firsts[i] for i in alike]), strict=True):
            told[i] = text
    lines = [" ".join(filter(None, pair)) for pair in zip(lines, told, strict=True)]
    return [(line, f"{line} {point}".strip()) for line, point in zip(lines, points, strict=True)]


def in_order(
    variants: list[list[StoredRun]],
) -> list[list[StoredRun]]:
    """Variants that differ in numbers, such as the points of a sweep, by size."""
    tables = [facts_of(members[0]) for members in variants]
    numbers = [k for k, values in differing(tables).items() if all(map(_is_number, values))]
    order = sorted(range(len(variants)), key=lambda i: [tables[i][key] for key in numbers])
    return [variants[i] for i in order]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _apart(runs: Sequence[StoredRun]) -> list[str]:
    """What tells each of these runs from the others, in a few words."""
    tables = [facts_of(run) for run in runs]
    found = differing(tables)
    plain = [key for key in found if key != STRUCTURE and not key.startswith(CLIENTS)]
    if plain:
        shown = plain[:_SHOWN]
        more = " ..." if len(plain) > _SHOWN else ""
        texts = [point_name({k: t.get(k, "unknown") for k in shown}) + more for t in tables]
    else:
        texts = [""] * len(runs)
    for tell in (_network, _clients, _rows):
        if len(set(texts)) < len(texts):
            added = [tell(run) for run in runs]
            if len(set(added)) > 1:
                texts = [f"{text} {word}".strip() for text, word in zip(texts, added, strict=True)]
    seen: Counter[str] = Counter()
    for i, text in enumerate(texts):
        seen[text] += 1
        texts[i] = text if seen[text] == 1 else f"{text} #{seen[text]}".strip()
    return texts


def _network(run: StoredRun) -> str:
    about = run.manifest.get("network")
    if isinstance(about, dict) and "parameters" in about:
        return f"network={about.get('class')}/{about['parameters']}"
    return f"network={digest(run.part('blueprints'))[:4]}"


def _clients(run: StoredRun) -> str:
    return f"clients={digest(run.clients)[:4]}"


def _rows(run: StoredRun) -> str:
    return f"data={fingerprint(run)[:4] or 'unknown'}"
