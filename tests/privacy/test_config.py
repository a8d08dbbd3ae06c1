"""``[privacy]`` in a config: for all clients, for some, and for a client of custom files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedgradnorm as fgn
from fedgradnorm._runs.reader import read_run
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments._config.config_file import clients_of
from fedgradnorm.experiments._execute import execute
from fedgradnorm.experiments._groups import facts_of

RUN = """
rounds = 2

[data]
source = "files"
[[data.clients]]
name = "left"
task = "regression"
train = "rows.npz"
[[data.clients]]
name = "right"
task = "regression"
train = "rows.npz"
{own}
[network]
name = "mlp"
widths = [3]
[local]
batch_size = 4

{privacy}
"""
TERMS = '[privacy]\nepsilon = 4.0\ndelta = 1e-4\nnoise_multiplier = 3.0\nledger = "spent"\n'


def config_in(folder: Path, privacy: str = "", own: str = "") -> Path:
    x = np.random.default_rng(0).normal(size=(12, 3))
    np.savez(folder / "rows.npz", x=x, y=x[:, 0])
    (folder / "run.toml").write_text(RUN.format(privacy=privacy, own=own))
    return folder / "run.toml"


def test_all_clients_some_of_them_or_one_with_its_own_terms(tmp_path: Path) -> None:
    given = fgn.Privacy(4.0, 1e-4, noise_multiplier=3.0, ledger=str(tmp_path / "spent"))
    left, right = clients_of(load_config(config_in(tmp_path, TERMS)))
    assert (left.privacy, right.privacy) == (given, given)
    left, right = clients_of(load_config(config_in(tmp_path, TERMS + 'clients = ["left"]\n')))
    assert (left.privacy, right.privacy) == (given, None)
    own = "privacy = { epsilon = 1.0, delta = 1e-6 }"
    left, right = clients_of(load_config(config_in(tmp_path, TERMS, own)))
    assert (left.privacy, right.privacy) == (given, fgn.Privacy(1.0, 1e-6))
    left, right = clients_of(load_config(config_in(tmp_path)))
    assert (left.privacy, right.privacy) == (None, None)
    assert "privacy" not in load_config(config_in(tmp_path)).text()


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ("[privacy]\nepsilon = 3.0\n", "needs delta"),
        ("[privacy]\nepsilon = 3.0\ndelta = 1e-5\nsigma = 1.0\n", "sigma"),
        ("[privacy]\nepsilon = 3.0\ndelta = 1e-5\nclients = 'left'\n", "list of names"),
        ("[privacy]\nepsilon = -3.0\ndelta = 1e-5\n", "epsilon"),
    ],
)
def test_a_table_that_promises_nothing_is_refused_at_once(
    tmp_path: Path, privacy: str, words: str
) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        load_config(config_in(tmp_path, privacy))


def test_an_unknown_client_is_named(tmp_path: Path) -> None:
    config = load_config(config_in(tmp_path, TERMS + 'clients = ["lefft"]\n'))
    with pytest.raises(fgn.ConfigError, match="lefft"):
        clients_of(config)


def test_a_run_from_a_config_keeps_what_was_promised_and_is_an_arm_of_its_own(
    tmp_path: Path,
) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    config = load_config(config_in(tmp_path, TERMS))
    done = execute(config, tmp_path / "one")
    assert done.history["epsilon"].max() > 0
    facts = facts_of(read_run(tmp_path / "one"))
    assert facts["privacy.epsilon"] == 4.0
    assert not any("ledger" in key for key in facts)
    text = (tmp_path / "one" / "run.json").read_text()
    assert str(tmp_path / "spent") not in text
    assert {p.name for p in (tmp_path / "spent").glob("*.jsonl")} == {"left.jsonl", "right.jsonl"}
