"""Small tables on disk and the clients made of them, for the tests of client_from_files."""

from __future__ import annotations

from fedgradnorm.data._files.client_files import client_from_files

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
