"""A client that joins a finished run: the same numbers as a start by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._runs.manifest import describe_weighting, stored_weighting


class Own(fgn.Weighting):
    needs = fgn.Needs.LOSS

    def weigh(self, signals):
        return 1 / signals.loss


def test_training_goes_on_with_all_by_the_settings_of_the_run(tmp_path) -> None:
    *before, late = toys.clients()
    how = {"lr": 0.01, "batch_size": 8, "weighting": fgn.GradNorm(gamma=0.3, rule="direct")}
    run = flat.train(toys.network(), before, rounds=3, **how)
    loaded = fgn.load(run.save(tmp_path / "run"))
    by_hand = flat.train(run.network, [*before, late], start=run, rounds=2, **how)
    for one in (run, loaded):
        joined = one.add(late, before, rounds=2)
        assert list(joined.clients) == [client.name for client in (*before, late)]
        assert toys.same(joined.network.state_dict(), by_hand.network.state_dict())
        assert joined.table.rows == by_hand.table.rows
        assert joined.manifest["weighting"] == run.manifest["weighting"]
        assert joined.manifest["settings"]["lr"] == 0.01
    assert run.add(late, before).manifest["rounds"] == 3
    kept = run.add(late, before, rounds=1, folder=tmp_path / "joined")
    assert fgn.load(tmp_path / "joined").manifest["start"] == kept.manifest["start"]


NO_OPTIONS = sorted(set(fgn.methods()) - {"static", "fedgradnorm-static"})  # these need weights


@pytest.mark.parametrize("method", NO_OPTIONS)
def test_every_methods_weighting_is_made_again_from_what_a_run_stores(method: str) -> None:
    weighting = fgn.methods()[method].build()
    stored = json.loads(json.dumps({"weighting": describe_weighting(weighting)}))
    made = stored_weighting(stored, "")
    assert type(made) is type(weighting)
    assert describe_weighting(made) == stored["weighting"]


def test_a_run_by_name_goes_on_in_another_process(tmp_path) -> None:
    fgn.train(toys.network(), toys.clients(), method="uw", rounds=1, folder=tmp_path / "run")
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]; import fedgradnorm as fgn, toys; "
        "print(fgn.resume(sys.argv[1], toys.network(), toys.clients()))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run"), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "1 of 1 rounds" in done.stdout, done.stderr


def test_what_cannot_be_added_is_named() -> None:
    *before, late = toys.clients()
    run = fgn.train(toys.network(), before, rounds=1, weighting=Own())
    with pytest.raises(fgn.ConfigError, match=r"'Own', which cannot be made again.*weighting="):
        run.add(late, before)
    assert run.add(late, before, weighting=fgn.Equal(), rounds=1).manifest["weighting"]["name"]
    with pytest.raises(fgn.ConfigError, match=f"client '{before[0].name}' of this one is not amon"):
        run.add(late, before[1:])
    with pytest.raises(fgn.DataError, match=r"client must be an fgn\.Client, not 3"):
        run.add(3, before)
    with pytest.raises(fgn.DataError, match="two clients are named"):
        run.add(before[0], before, weighting=fgn.Equal())
    alone = flat.train(toys.network(), before, rounds=1, share="none")
    with pytest.raises(fgn.ConfigError, match="nothing was shared"):
        alone.add(late, before)
