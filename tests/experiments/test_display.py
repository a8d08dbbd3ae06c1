"""The live display: in place in a terminal, plain lines elsewhere."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from experiments.small_config import small_config
from fedgradnorm._training import display
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.display import live_display
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute


def event(number, losses=None):
    return Progress(number, 4, number / 2, losses or {"a[b]": 1.5}, {"a[b]": 0.25})


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_round_epoch_loss_weight_and_time_left(terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, color_system=None)
    with live_display(0, "title", console) as show:
        for number in range(1, 5):
            show(event(number))
    shown = text.getvalue()
    for part in ("title", "round 4/4", "epoch 2.0", "0:00:00 left", "a[b]", "1.5", "0.25"):
        assert part in shown


def test_plain_lines_come_now_and_then(monkeypatch):
    now = iter(range(0, 1000, 2))
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(now)))
    text = io.StringIO()
    with live_display(None, console=Console(file=text, width=200)) as show:
        for number in range(1, 4):
            show(event(number))
    assert 0 < text.getvalue().count("\n") < 3


def test_a_client_that_sits_out_keeps_its_last_loss():
    text = io.StringIO()
    with live_display(0, console=Console(file=text, width=200)) as show:
        show(event(3, {"here": 1.0, "away": 7.5}))
        show(event(4, {"here": 0.5}))
    assert "away 7.5" in text.getvalue()


def test_says_what_it_shows_where_that_is_not_the_loss():
    text = io.StringIO()
    with live_display(0, console=Console(file=text, width=200)) as show:
        show(replace(event(4), shown="loss ratio"))
    assert "loss ratio (x weight): a[b] 1.5" in text.getvalue()


def test_train_uses_it(tmp_path, capsys):
    execute(load_config(small_config(tmp_path)), tmp_path / "out", progress=True)
    assert "round 6/6" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_of_many_clients_none_is_named(terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    with live_display(0, console=console) as show:
        show(event(4, {f"school-{k}": float(k) for k in range(139)}))
    shown = text.getvalue()
    for part in ("139 clients: 10 %", "median", "90 %", "largest", "138"):
        assert part in shown
    assert "school" not in shown


def test_a_terminal_shows_the_trend_of_losses_and_the_held_out_score():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system=None)
    rows = [
        {"client": "a[b]", "split": "validation", "loss": 2.0, "accuracy": 0.5},
        {"client": "a[b]", "split": "test", "loss": 2.0, "accuracy": 0.625},
        {"client": "age", "split": "test", "loss": 3.0},
    ]
    with live_display(0, console=console) as show:
        for number, loss in enumerate((4.0, float("nan"), 2.0, 1.0), start=1):
            show(replace(event(number, {"a[b]": loss, "age": loss}), rows=rows))
    shown = text.getvalue()
    assert "█ ▃▁" in shown
    assert "62.5%" in shown
    assert "loss 3" in shown


def test_the_trend_of_a_run_spans_its_rounds_and_keeps_as_many_losses():
    view = display._View("long", 0, Console(file=io.StringIO()))
    for number in range(1, 2501):
        view.show(Progress(number, 5000, 1.0, {"a": 1.0 / number}, {"a": 1.0}))
    assert len(view.trends["a"]) == display.TREND / 2
    assert display.sparkline(view.trends["a"]) == "█▄▂▂▁▁      "
