"""Programs of clients that have a first part, and what has no program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn

pytestmark = pytest.mark.slow


class Both(nn.Module):
    """Numbers along with words, of rows or of steps."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 3), nn.Linear(width + 3, 5)

    def forward(
        self, sensors: Tensor, words: Tensor, words_mask: Tensor | None = None, **_: Tensor
    ) -> Tensor:
        vectors = self.words(words)
        if words_mask is not None:
            real = words_mask[..., None].to(vectors.dtype)
            vectors = (vectors * real).sum(dim=1) / real.sum(dim=1)
            sensors = sensors.sum(dim=1) if sensors.ndim > 2 else sensors
        return self.last(torch.cat([sensors, vectors.flatten(1)], dim=1))


def trained(network: nn.Module, client: fgn.Client) -> fgn.Run:
    return fgn.train(network, [client], rounds=2)


def test_named_arrays_and_sequences_are_refused_with_a_way_out(tmp_path: Path) -> None:
    x = {"sensors": torch.randn(20, 3), "words": torch.arange(20)[:, None] % 9}
    named = trained(Both(), fgn.Client("a", fgn.regression(1), (x, np.arange(20.0))))
    words = fgn.sequences([torch.arange(k % 3 + 1) for k in range(20)])
    both = {"sensors": x["sensors"], "words": words}
    steps = trained(Both(), fgn.Client("a", fgn.regression(1), (both, np.arange(20.0))))
    for run, rows in ((named, x), (named, None), (steps, None)):
        with pytest.raises(fgn.ConfigError, match=r"named inputs or sequences.*use run.predict"):
            run.export("a", tmp_path / "a.pt2", x=rows)
    assert not list(tmp_path.iterdir())


def test_a_first_part_is_part_of_the_program(tmp_path: Path) -> None:
    x = torch.randn(20, 9)
    client = fgn.Client("a", fgn.regression(1), (x, x[:, 0]), stem=nn.Linear(9, 4))
    run = trained(nn.Linear(4, 3), client)
    program = torch.export.load(run.export("a", tmp_path / "a.pt2")).module()
    torch.testing.assert_close(program(x[:3]), run.predict("a", x[:3], outputs=True))
