"""Small tables on disk and the clients made of them, for the tests of client_from_files."""

from __future__ import annotations

from typing import Any

from fedgradnorm.data import Table


class client_from_files:
    """The client that a config's table of these keys makes, and what was left out of its files."""

    def __init__(self, name: str, **options: Any) -> None:
        seed = options.pop("seed", 0)
        self._table, self._seed = Table.from_dict(options), seed
        self.client = self._table.client(name, seed=seed)
        self.scaling, self.label_names = self.client.scaling, self.client.labels

    @property
    def dropped(self) -> dict[str, tuple[int, ...]]:
        return self._table.bad_rows(seed=self._seed)


HOUSES = """area,rooms,price,kind
50,2,100.5,flat
80,3,200.5,house
65,2,130.5,flat
120,5,400.5,house
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def prices(path, **options):
    settings = {"task": "regression", "inputs": ["area", "rooms"], "targets": "price", **options}
    return client_from_files("houses", train=path, **settings)


def kinds(path, **options):
    settings = {
        "task": "classification",
        "inputs": ["area", "rooms"],
        "targets": "kind",
        **options,
    }
    return client_from_files("houses", train=path, **settings)


def one_line(caught):
    message = str(caught.value)
    assert "\n" not in message
    return message


def labelled(tmp_path, *labels, name="a.csv"):
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    return write(tmp_path / name, "x,y\n" + rows)
