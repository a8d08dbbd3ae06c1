"""A run of another config in the place of a new one: the message names the value that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments._compare import compare

CLIENT = """
[[data.clients]]
name = "{name}"
train = "rows.csv"
targets = "y"
task = "regression"
test_share = {share}
"""


def test_the_difference_is_shown_however_deep(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i % 7},{i % 5}" for i in range(40))
    (tmp_path / "rows.csv").write_text(f"a,b,y\n{rows}\n")
    path = tmp_path / "some.toml"

    def config(share: float) -> Any:
        clients = [CLIENT.format(name=f"client{k}", share=0.2) for k in range(5)]
        clients.append(CLIENT.format(name="last", share=share))
        head = 'rounds = 2\n[data]\nsource = "files"\n'
        tail = f'[network]\nname = "mlp"\nwidths = [4]\n[output]\nfolder = "{tmp_path / "runs"}"\n'
        path.write_text("".join([head, *clients, tail]))
        return load_config(path)

    compare(config(0.2), ["fedrep"], seeds=1)
    words = r"another config \(data\.clients\[5\]\.test_share = 0\.2 there, 0\.3 here\)"
    with pytest.raises(fgn.RunFolderError, match=words):
        compare(config(0.3), ["fedrep"], seeds=1)
