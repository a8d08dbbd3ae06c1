"""FDU-MTL: is a review positive? Sixteen domains, from books to films.

``fdu_mtl.zip`` has two files per domain, ``NAME.task.train`` and ``NAME.task.test``, with lines
``label<TAB>tokens`` (Liu, Qiu, Huang, *Adversarial Multi-task Learning for Text Classification*,
ACL 2017; for research use). SHA-256 begins with 555877f8f8c4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import whole
from fedgradnorm._client import Client
from fedgradnorm._errors import DataError
from fedgradnorm.data._arrays import chosen, client_of, held_out
from fedgradnorm.data._files.tables import opened
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._source import Source
from fedgradnorm.tasks._making import classification

__all__ = ["clients"]

FILE = "fdu_mtl.zip"
"""What the file is called."""
DOMAINS = (
    "apparel", "baby", "books", "camera_photo", "dvd", "electronics", "health_personal_care",
    "imdb", "kitchen_housewares", "magazines", "MR", "music", "software", "sports_outdoors",
    "toys_games", "video",
)  # fmt: skip
"""The sixteen domains, by the names of their files."""
LABELS = ("negative", "positive")

Text = tuple[int, list[str]]


def clients(
    *,
    source: str | Path | None = None,
    domains: Sequence[str] = DOMAINS,
    words: int = 2000,
    length: int = 0,
    rows: int | None = None,
    validation_share: float = 0.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Client]:
    """A client a domain, with its official test texts: negative or positive.

    A hash puts each token into one of ``words`` buckets, so clients need no common vocabulary. A
    text is a row of ``words`` numbers, 1 where a token of the bucket occurs, scaled to length 1.
    With a ``length`` it is a row of so many ids instead, for an ``nn.Embedding``: 1 .. ``words`` of
    its first tokens, then 0.

    Args:
        source: the archive ``fdu_mtl.zip``. In a config: path.
        domains: the domains to load, by name; all by default.
        words: the number of buckets that words are hashed to.
        length: the number of word ids per example; 0 for a bag of words.
        rows: how many training texts to draw for each domain; all by default.
        validation_share: the share of training texts to hold out, from 0 to 1.
        seed: draws splits and shares of examples; by default the seed of the run.
        progress: called with (done, total) now and then; not for configs.
    """
    path = find_data(source, (FILE,), "fdu_mtl")
    words, length = whole("words", words, 2), whole("length", length, 0)
    names = chosen("domains", domains, DOMAINS)
    task, made = classification(2, name="sentiment"), list[Client]()
    for name in names:
        texts = {split: _read(path, f"{name}.task.{split}") for split in ("train", "test")}
        drawn = held_out(name, len(texts["train"]), {"validation": validation_share}, (), seed)
        train = drawn.get("train", np.arange(len(texts["train"])))
        if rows is not None:
            order = np.random.default_rng([seed, *name.encode()]).permutation(train)
            train = np.sort(order[: whole("rows", rows, 1)])
        splits = {"train": [texts["train"][i] for i in train], "test": texts["test"]}
        if drawn:
            splits["validation"] = [texts["train"][i] for i in drawn["validation"]]
        pairs = {
            split: (_rows((tokens for _, tokens in part), len(part), words, length),
                    np.array([label for label, _ in part]))
            for split, part in splits.items()
        }  # fmt: skip
        made.append(client_of(name, task, pairs, labels=LABELS))
        if progress:
            progress(len(made), len(names))
    return made


def _read(path: Path, name: str) -> list[Text]:
    """The texts of one file; a DataError names the line that is none."""
    texts = []
    with opened(path / "fdu_mtl" / name) as file:
        for number, line in enumerate(file.read().decode("utf-8", "replace").split("\n"), start=1):
            label, mark, text = line.rstrip("\r").partition("\t")
            if line.strip() and (label not in ("0", "1") or not mark):
                raise DataError(f"{path}, {name}, line {number}: expected 0 or 1, a tab and a text")
            if line.strip():
                texts.append((int(label), text.split()))
    if not texts:
        raise DataError(f"{path}, {name}: no texts; download the archive again")
    return texts


def _rows(texts: Iterable[list[str]], count: int, words: int, length: int) -> NDArray[np.generic]:
    """Ids [texts, length], or bags of words [texts, words] of length 1."""
    if length:
        ids = np.zeros((count, length), dtype=np.int64)
        for row, tokens in enumerate(texts):
            own = [1 + _bucket(token, words) for token in tokens[:length]]
            ids[row, : len(own)] = own
        return ids
    bags = np.zeros((count, words), dtype=np.float32)
    for row, tokens in enumerate(texts):
        bags[row, [_bucket(token, words) for token in set(tokens)]] = 1
    bags /= np.sqrt(bags.sum(axis=1, keepdims=True).clip(1))
    return bags


@lru_cache(maxsize=1 << 18)
def _bucket(token: str, words: int) -> int:
    """The same on every machine, which Python's own hash is not."""
    digest = hashlib.blake2b(token.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % words


Source("fdu_mtl", clients, "sentiment of reviews: 16 domains", ("path",)).register()
