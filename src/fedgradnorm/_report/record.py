"""A run as tables and curves need it: its group's label, its seed and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedgradnorm._stored.groups import Group, data_sets
from fedgradnorm._stored.summary import Judged, TaskResult, results

if TYPE_CHECKING:
    from fedgradnorm._runs.csv_table import Row


@dataclass(frozen=True)
class Record:
    """What tables and figures are made from; runs of one label are seeds of one group.

    ``data`` is the number of the set of data it was trained on: only records of one set compare.
    """

    label: str
    seed: int
    rows: list[Row]
    finished: bool = True
    data: int = 0
    judged: Mapping[str, Judged] = field(default_factory=dict)

    @property
    def clients(self) -> list[str]:
        """The clients' names, in their order."""
        return list(dict.fromkeys(row["client"] for row in self.rows))

    def results(self) -> list[TaskResult]:
        """The run in a few numbers per client."""
        return results(self.rows, self.judged)

    def series(self, client: str, split: str, column: str) -> tuple[list[float], list[float]]:
        """Epochs and values of a column, wherever the split has them."""
        points = [
            (row["epoch"], row[column])
            for row in self.rows
            if row["client"] == client and row["split"] == split and column in row
        ]
        return [epoch for epoch, _ in points], [value for _, value in points]


def records_of(groups: Sequence[Group]) -> list[Record]:
    """The runs that count of every group, in their order."""
    sets = {id(one): number for number, found in enumerate(data_sets(groups)) for one in found}
    return [
        Record(one.label, seed, run.rows, run.finished, sets[id(one)], run.judged)
        for one in groups
        for seed, run in one.seeds.items()
    ]
