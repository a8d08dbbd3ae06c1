"""A run in one row per client: its weight, its score next to the baseline, and its losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import metric_columns
from fedgradnorm._runs.manifest import kept_round
from fedgradnorm.tasks._named_metrics import MAIN_METRICS

if TYPE_CHECKING:
    from fedgradnorm._runs.run import Run


def summary_of(run: Run) -> pd.DataFrame:
    """See :meth:`fedgradnorm.Run.summary`; the history is read once, however many clients."""
    infos = run.manifest.get("clients", {})
    reported = {row["client"]: row["weight"] for row in run.table.rows if "weight" in row}
    # The server of a federation has no clients, only what they reported.
    weights = run.weights or reported
    evaluated: dict[str, list[Row]] = {name: [] for name in (run.clients or infos or reported)}
    for row in run.table.rows:
        if row["split"] != "batch" and row["client"] in evaluated:
            evaluated[row["client"]].append(row)
    known = metric_columns(run.table.rows)
    metrics = [column for column in run.table.columns if column in known]
    found = []
    for name, rows in evaluated.items():
        one = {"client": name, "weight": weights.get(name, math.nan)}
        one |= _ends(rows, metrics, infos.get(name, {}))
        if (kept := kept_round(run.manifest, name)) is not None:
            one["kept_round"] = kept
        found.append(one)
    frame = pd.DataFrame(found) if found else pd.DataFrame(columns=["client", "weight"])
    return cast("pd.DataFrame", WholeFrame(frame.set_index("client")))


def _ends(rows: list[Row], metrics: list[str], info: Mapping[str, Any]) -> Row:
    """Training loss first and last, and the metrics of the last evaluation's last split."""
    train = [row for row in rows if row["split"] == "train"]
    if not train:
        return {}
    last = rows[-1]
    values = {name: last[name] for name in metrics if not math.isnan(last.get(name, math.nan))}
    order = (info.get("metric"), *MAIN_METRICS)
    shown = next((name for name in order if name in values), None)
    found = info.get("baseline", {}).get(shown)
    score = {
        "metric": shown,
        "score": math.nan if shown is None else values[shown],
        "baseline": found if isinstance(found, float) else None,
        "split": last["split"],
    }
    losses = {"first_loss": train[0].get("loss"), "last_loss": train[-1].get("loss")}
    return {**score, **losses, **values}


def _text(frame: Any) -> str:
    """No row or column left out; wide tables continue below."""
    with pd.option_context("display.max_rows", None, "display.max_columns", None):
        return str(pd.DataFrame.__repr__(frame))


# pandas says nothing of its types, and a class statement would need them.
WholeFrame: Any = type("WholeFrame", (pd.DataFrame,), {"__repr__": _text, "__module__": __name__})
