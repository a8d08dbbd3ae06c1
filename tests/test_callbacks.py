"""Callbacks: when hooks are called, what they know, how they stop a run and survive a restart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from typer.testing import CliRunner

import fedgradnorm as fgn
import flat
import toys
from experiments import overfitting
from experiments.overfitting import clients as validated
from experiments.resuming import assert_equal_to_the_bit
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._training.best import Best

HOW: dict[str, Any] = {"rounds": 6, "batch_size": 8, "lr": 0.05, "device": "cpu", "eval_every": 2}


def train(*callbacks: Any, clients: Any = toys.clients, **more: Any) -> fgn.Run:
    return flat.train(toys.network(), clients(), **{**HOW, **more}, callbacks=callbacks)


class Hooks(fgn.Callback):
    """Writes down which hooks were called, and at which round."""

    def __init__(self, every: int = 1) -> None:
        self.every, self.calls = every, list[tuple[str, int]]()

    def on_start(self, state: Any) -> None:
        assert state.record is None
        self.calls.append(("start", state.round))

    def on_round(self, state: Any) -> None:
        self.calls.append(("round", state.round))

    def on_evaluation(self, state: Any) -> None:
        assert {row["round"] for row in state.evaluation} == {state.round}
        self.calls.append(("evaluation", state.round))

    def on_end(self, state: Any) -> None:
        self.calls.append(("end", state.round))


class ByRow(fgn.Weighting):
    """Weights that only a callback changes."""

    starts: ClassVar = {"wanted": 1.0}

    def weigh(self, signals: fgn.Signals) -> torch.Tensor:  # noqa: ARG002
        return self.rows["wanted"].clone()


class Prefer(fgn.Callback):
    """Triples the weight of the first client after each evaluation."""

    def on_evaluation(self, state: Any) -> None:
        assert state.evaluation[0]["client"] == state.weighting.clients[0]
        state.weighting.rows["wanted"][0] *= 3


@pytest.mark.parametrize("executor", ["loop", "vmap", "joint"])
def test_a_callback_can_steer_the_weighting_by_what_it_evaluated(executor: str) -> None:
    given = ByRow()
    run = train(Prefer(), weighting=given, executor=executor)
    weights = run.history.query("split == 'train'").pivot(index="round", columns="client")["weight"]
    names = [client.name for client in toys.clients()]
    ratios = weights[names[0]] / weights[names[1]]
    assert ratios.loc[1:4].round(6).tolist() == [3, 9]  # rounds 2 and 4 are in the history
    assert not given.rows, "the user's object is not changed"


def test_hooks_are_called_in_order() -> None:
    each, some = Hooks(), Hooks(every=4)
    train(each, some)
    middle = [("evaluation", 0), ("round", 1), ("evaluation", 2), ("round", 2), ("round", 3)]
    last = [("evaluation", 4), ("round", 4), ("round", 5), ("round", 6), ("evaluation", 6)]
    assert each.calls == [("start", 0), *middle, *last, ("end", 6)]
    assert [number for hook, number in some.calls if hook == "round"] == [4]


class Lower(fgn.Callback):
    """Stops a run once every client's loss is below a share of its first one."""

    def __init__(self, share: float) -> None:
        self.share, self.run = share, None

    def on_round(self, state: Any) -> None:
        record = state.record
        assert list(record.clients) == list(toys.NAMES)
        assert record.failed == []
        assert len(record.columns["loss"]) == len(record.clients)
        assert record["loss"].keys() == record["weight"].keys() == set(toys.NAMES)
        assert dict(record) == {column: record[column] for column in record.columns}
        assert "loss" in record
        assert "los" not in record
        with pytest.raises(fgn.ConfigError, match="column of a round 'los'; did you mean 'loss'"):
            record["los"]
        assert 0 < state.epoch <= state.rounds
        if max(record["loss_ratio"].values()) < self.share:
            self.run = state.run()
            state.stop("all losses are low")


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
@pytest.mark.parametrize("eval_every", [0, 1])
def test_a_callback_reads_the_record_and_stops_the_run(executor: str, eval_every: int) -> None:
    lower = Lower(0.8)
    how = {"executor": executor, "rounds": 300, "eval_every": eval_every}
    run = train(lower, **how)
    last = int(run.history["round"].max())
    assert 0 < last < 300
    assert run.finished
    assert run.manifest["stopped_early"] is True
    assert run.manifest["stopped"] == "all losses are low"
    evaluations = run.history[run.history.split != "batch"]
    assert not evaluations.duplicated(["round", "client", "split"]).any()
    short = train(**{**how, "rounds": last})
    assert short.table.rows == run.table.rows
    assert toys.same(dict(run.network.state_dict()), dict(short.network.state_dict()))
    assert lower.run is not None
    assert not lower.run.finished
    assert lower.run.history["round"].max() == last


def test_the_run_as_it_stands_does_not_change_any_more() -> None:
    class Snapshot(fgn.Callback):
        every = 2
        runs: list[fgn.Run] = []  # noqa: RUF012

        def on_round(self, state: Any) -> None:
            self.runs.append(state.run())

    train(snapshot := Snapshot())
    for count, run in zip((2, 4, 6), snapshot.runs, strict=True):
        short = train(rounds=count)
        assert toys.same(dict(run.network.state_dict()), dict(short.network.state_dict()))
        for name, head in run.heads.items():
            assert toys.same(dict(head.state_dict()), dict(short.heads[name].state_dict()))
        assert run.history["round"].max() == count


class Smoothed(fgn.Callback):
    """A moving average of the losses."""

    def __init__(self) -> None:
        self.mean, self.seen = torch.zeros(3, dtype=torch.float64), 0

    def on_round(self, state: Any) -> None:
        self.seen += 1
        new = torch.tensor(list(state.record["loss"].values()))
        self.mean = 0.5 * self.mean + 0.5 * new

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.seen = state["mean"], state["seen"]


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt, fgn.Interrupted), (RuntimeError, fgn.TrainingError)]
)
def test_the_state_of_a_callback_survives_a_restart(
    tmp_path: Path, error: Any, raised: Any
) -> None:
    def stop(event: Any) -> None:
        if event.round == 3:
            raise error

    how = {"checkpoint_every": 1}
    whole, before, after = Smoothed(), Smoothed(), Smoothed()
    train(whole, folder=tmp_path / "whole", **how)
    with pytest.raises(raised):
        train(before, folder=tmp_path / "part", progress=stop, **how)
    train(after, folder=tmp_path / "part", resume=True, **how)
    assert after.seen == whole.seen == 6
    assert torch.equal(after.mean, whole.mean)
    assert_equal_to_the_bit(tmp_path / "part", tmp_path / "whole")


def test_a_state_that_no_checkpoint_can_hold_names_the_callback(tmp_path: Path) -> None:
    class Odd(fgn.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": {1, 2}}

    with pytest.raises(fgn.TrainingError, match=r"callback Odd: a checkpoint holds .* \{1, 2\}"):
        train(Odd(), folder=tmp_path / "run")


def test_a_stopped_run_that_is_resumed_stays_stopped(tmp_path: Path) -> None:
    class Stop(fgn.Callback):
        def on_round(self, state: Any) -> None:
            if state.round == 3:
                state.stop("enough")

    def fail(event: Any) -> None:
        if event.ended:
            raise KeyboardInterrupt

    train(Stop(), folder=tmp_path / "whole")
    with pytest.raises(fgn.Interrupted):
        train(Stop(), folder=tmp_path / "part", progress=fail)
    run = train(folder=tmp_path / "part", resume=True)
    assert run.finished
    assert run.manifest["stopped"] == "enough"
    assert run.history["round"].max() == 3
    assert_equal_to_the_bit(tmp_path / "part", tmp_path / "whole")


@pytest.mark.parametrize("watch", ["loss", "accuracy", "calibration_error"])
def test_early_stopping_ends_a_run_that_no_longer_improves(watch: str) -> None:
    """The run ends with its last round: nobody asked for the best one."""
    clients = [_with_metrics(client) for client in validated()[:2]]
    how = {"clients": lambda: clients, "rounds": 60, "eval_every": 1, "head_init": "random"}
    run = train(fgn.EarlyStopping(3, watch, min_rounds=5), **how)
    rounds = run.history[run.history.split == "validation"]
    mean = rounds.groupby("round")[watch].mean()
    if watch == "loss":
        first = rounds[rounds["round"] == 0].set_index("client").loss
        each = rounds.pivot(index="round", columns="client", values="loss")
        mean = -((first - each) / each.clip(lower=first, axis=1)).mean(axis=1)
    best = int((mean if watch != "accuracy" else -mean).idxmin())
    last = int(run.history["round"].max())
    assert run.manifest["stopped_early"] is True
    assert last == best + 5
    assert f"no better {watch}" in run.manifest["stopped"]
    assert f"best at round {best}" in run.manifest["stopped"]
    assert "kept" not in run.manifest
    short = train(**{**how, "rounds": last})
    assert toys.same(dict(run.network.state_dict()), dict(short.network.state_dict()))


@pytest.mark.parametrize("watch", ["accuracy", "calibration_error"])
def test_the_best_round_is_that_of_the_metric_that_is_watched(watch: str) -> None:
    clients = [_with_metrics(client) for client in validated()[:2]]
    how = {"clients": lambda: clients, "rounds": 30, "eval_every": 1, "head_init": "random"}
    run = train(fgn.EarlyStopping(20, watch), fgn.KeepBest(), **how)
    rounds = run.history[(run.history.split == "validation") & (run.history["round"] < 30)]
    mean = rounds.groupby("round")[watch].mean()
    best = mean.idxmax() if watch == "accuracy" else mean.idxmin()
    assert run.manifest["kept"]["round"] == best
    short = train(**{**how, "rounds": int(best)}) if best else None
    if short is not None:
        assert toys.same(dict(run.network.state_dict()), dict(short.network.state_dict()))


def test_clients_alone_stop_one_by_one_and_end_with_their_last_round() -> None:
    how = {"clients": validated, "share": "none", "rounds": 60, "eval_every": 1}
    run = train(fgn.EarlyStopping(2), **how)
    last = run.history[run.history.split == "batch"].groupby("client")["round"].max()
    assert last.nunique() > 1
    for name, number in last.items():
        short = train(**{**how, "rounds": int(number)})
        one, other = (dict(r.networks[name].state_dict()) for r in (run, short))
        assert toys.same(one, other)


def test_early_stopping_survives_a_restart(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event.round == 9:
            raise KeyboardInterrupt

    how = {"clients": validated, "rounds": 60, "eval_every": 1, "head_init": "random"}
    options = fgn.EarlyStopping(3, "loss"), fgn.KeepBest(), fgn.Checkpoints(every=1)
    train(*options, folder=tmp_path / "whole", **how)
    with pytest.raises(fgn.Interrupted):
        train(*options, folder=tmp_path / "part", progress=stop, **how)
    run = fgn.resume(tmp_path / "part", toys.network(), validated(), callbacks=options)
    assert run.manifest["stopped_early"] is True
    assert_equal_to_the_bit(tmp_path / "part", tmp_path / "whole")
    with pytest.raises(fgn.ConfigError, match=r"early_stopping.patience is 3 in the run .*, not 4"):
        fgn.resume(tmp_path / "part", toys.network(), validated(), callbacks=[fgn.EarlyStopping(4)])


def _with_metrics(client: fgn.Client) -> fgn.Client:
    task = fgn.classification(client.task.outputs, metrics=["accuracy", "calibration_error"])
    return fgn.Client(client.name, task, client.train, validation=client.validation)


def test_early_stopping_beside_the_best_round_ends_with_the_best_one() -> None:
    run = overfitting.train(callbacks=[fgn.KeepBest(), fgn.EarlyStopping(2, min_rounds=2)])
    kept = run.manifest["kept"]["round"]
    assert 0 < kept < overfitting.ROUNDS
    assert run.history["round"].max() == kept + 2 * overfitting.EVERY
    assert overfitting.losses(run) == overfitting.losses(overfitting.train(rounds=kept))


def test_patience_of_small_clients_waits_for_fifty_rounds() -> None:
    """Their epoch is one round, so by default they are evaluated after each one."""
    how = {"clients": validated, "batch_size": None, "keep": "best", "rounds": 200}
    run = train(**how, patience=2, eval_every=None)
    kept = run.manifest["kept"]
    assert run.manifest["stopped_early"] is True
    assert kept["last_round"] == kept["round"] + 50
    run = train(**how, patience=2, eval_every=1)
    assert run.manifest["kept"]["last_round"] == run.manifest["kept"]["round"] + 2


@pytest.mark.parametrize(
    ("callback", "how", "words"),
    [
        (fgn.EarlyStopping(2), {}, "early_stopping needs validation examples"),
        (fgn.EarlyStopping(2, "auc"), {"clients": validated}, "watches 'auc'"),
        (fgn.EarlyStopping(2), {"eval_clients": 2}, "leave evaluation.clients out"),
    ],
)
def test_early_stopping_that_cannot_work_is_refused(callback: Any, how: Any, words: str) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        train(callback, **how)


class Broken(fgn.Callback):
    """Fails in one hook, at one round."""

    def __init__(self, hook: str, at: int) -> None:
        def fail(state: Any) -> None:
            if state.round == at:
                raise ValueError("no such thing")

        setattr(self, hook, fail)


@pytest.mark.parametrize(
    ("hook", "at"), [("on_start", 0), ("on_round", 3), ("on_evaluation", 4), ("on_end", 6)]
)
def test_a_failing_callback_is_named_and_nothing_is_lost(
    tmp_path: Path, hook: str, at: int
) -> None:
    train(folder=tmp_path / "whole")
    words = rf"callback Broken: {hook} failed at round {at}: ValueError: no such thing"
    with pytest.raises(fgn.TrainingError, match=words) as error:
        train(Broken(hook, at), folder=tmp_path / "run")
    assert isinstance(error.value.__cause__, ValueError)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    counted = Hooks()
    train(counted, folder=tmp_path / "run", resume=True)
    assert [n for hook, n in counted.calls if hook == "round"] == list(range(at + 1, 7))
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


def test_a_failing_function_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    def faulty(event: Any) -> None:
        if event.round == 3:
            raise ValueError("no such thing")

    train(folder=tmp_path / "whole")
    with pytest.raises(fgn.TrainingError, match="faulty failed at round 3: ValueError: no"):
        train(faulty, folder=tmp_path / "run")
    train(folder=tmp_path / "run", resume=True)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Hooks(), "callbacks must be a list"),
        ([Hooks], r"is the class Hooks; give an instance, Hooks\(...\)"),
        ([3], r"callbacks\[0\] must be an fgn.Callback"),
        (fgn.KeepBest(), "callbacks must be a list"),
        ([fgn.KeepBest], r"is the class KeepBest; give an instance"),
        ([fgn.History(every=2), fgn.History(every=3)], r"two of fgn.History; give one"),
        ([Hooks(every=0)], r"callbacks\[0\].every must be a whole number >= 1"),
    ],
)
def test_what_is_no_callback_is_refused(given: Any, words: str) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        fgn.train(toys.network(), toys.clients(), rounds=1, callbacks=given)


def exploding(**more: Any) -> fgn.Run:
    """One client whose steps are far too long, next to one that trains well."""
    fine = toys.client("corner")
    x, y = toys.rows("place", 24)
    wild = fgn.Client("wild", fgn.regression(2, loss_scale=1e6), train=(x, y))
    optimizers = {"head_optimizer": "sgd", "server_optimizer": "sgd"}
    how = {"rounds": 4, "lr": 0.5, "share": "none", "eval_every": 0, **optimizers, **more}
    return flat.train(toys.network(), [fine, wild], **how)


def test_a_run_that_ends_in_divergence_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = exploding(folder=tmp_path / "run")
    assert run.finished
    assert run.diverged == ["wild"] == read_manifest(tmp_path / "run")["diverged"]
    assert fgn.load(tmp_path / "run").diverged == ["wild"]
    assert "client 'wild' has diverged" in caplog.records[-1].getMessage()
    assert "'wild' has diverged" in (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]
    assert train().diverged == []


def test_the_command_says_that_a_run_has_diverged(tmp_path: Path) -> None:
    optimizers = ["local.head_optimizer=sgd", "server.server_optimizer=sgd"]
    words = [*optimizers, "lr=1e3", "rounds=1", f"output.folder={tmp_path}"]
    result = CliRunner().invoke(app, ["run", str(small_config(tmp_path)), *words])
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1].startswith("error:")
    assert "diverged" in result.stderr.splitlines()[-1]
    assert "run folder:" in result.stdout
    (folder,) = (one for one in tmp_path.iterdir() if one.is_dir() and "seed" in one.name)
    assert CliRunner().invoke(app, ["resume", str(folder)]).exit_code == 3


@pytest.mark.parametrize("command", [["compare", "--methods", "fedrep,local"], ["benefit"]])
def test_a_comparison_with_a_diverged_run_is_no_success(command: list[str], tmp_path: Path) -> None:
    optimizers = ["local.head_optimizer=sgd", "server.server_optimizer=sgd"]
    words = [*optimizers, "lr=1e3", "rounds=1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, str(small_config(tmp_path)), *words])
    assert result.exit_code == 3, result.output
    assert "2 of 2 runs have diverged" in result.stderr.splitlines()[-1]
    assert (tmp_path / "out" / "report.html").exists()
    assert "diverged, and what was trained" in (tmp_path / "out" / "report.html").read_text()


def test_early_stopping_leaves_undefined_metrics_out() -> None:
    """r2 of a client with constant targets is NaN; the others' still improves."""
    best = Best(dict, lambda _: None, Settings(patience=2, watch="r2", min_rounds=0))
    for number, r2 in enumerate((-0.1, 0.2, 0.5)):
        best.judge(number, {"one": {"r2": r2}, "constant": {"r2": math.nan}, "label": {}})
        assert (best.round, best.value) == (number, r2)
    best.judge(3, {"constant": {"r2": math.nan}})
    assert (best.round, best.last_value, best.waited) == (2, -math.inf, 1)


def test_a_hook_that_training_never_calls_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    class Keras(fgn.Callback):
        def on_epoch_end(self, state: Any) -> None:
            raise AssertionError(state)

    train(Hooks(), Keras(), rounds=1)
    (told,) = [record.getMessage() for record in caplog.records if "callback" in record.msg]
    assert told.endswith(
        "training never calls Keras.on_epoch_end; the hooks of a callback are "
        "on_start, on_round, on_evaluation, on_end"
    )


def test_an_interrupted_training_without_a_folder_tells_where_its_run_is() -> None:
    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted, match="the attribute run of this exception") as caught:
        train(progress=stop)
    assert not caught.value.run.finished
    assert caught.value.run.history["round"].max() == 3
