"""Clients from tables: which columns are read, and how they are scaled."""

from __future__ import annotations

import pytest
import torch

from data.small_tables import HOUSES, client_from_files, kinds, prices, write


def test_a_table_gives_the_named_columns(houses):
    client = prices(houses).client
    assert client.train[0].tolist() == [[50, 2], [80, 3], [65, 2], [120, 5]]
    assert client.train[1].tolist() == [[100.5], [200.5], [130.5], [400.5]]
    assert client.train[0].dtype == client.train[1].dtype == torch.float32


def test_inputs_are_all_other_columns_by_default(tmp_path):
    path = write(tmp_path / "a.csv", "b,y,a\n1,2,3\n4,5,6\n")
    test = write(tmp_path / "t.csv", "a,b,y\n30,10,20\n")
    client = client_from_files("a", task="regression", train=path, test=test, targets="y").client
    assert client.train[0].tolist() == [[1, 3], [4, 6]]
    assert client.test[0].tolist() == [[10, 30]]


def test_several_targets_and_order_of_columns(houses):
    loaded = prices(houses, inputs=["rooms"], targets=["price", "area"])
    assert loaded.client.task.outputs == 2
    assert loaded.client.train[1][0].tolist() == [100.5, 50]


def test_clients_of_files_may_have_a_task_in_common(houses):
    assert prices(houses).client.task_name == "houses"
    assert prices(houses, task_name="prices").client.task_name == "prices"
    assert kinds(houses, task_name="kinds").client.task_name == "kinds"


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_delimiters_bom_and_windows_lines(tmp_path, mark):
    text = "\ufeff" + HOUSES.replace(",", mark).replace("\n", "\r\n")
    (tmp_path / "houses.csv").write_bytes(text.encode("utf-8"))
    assert prices(tmp_path / "houses.csv").client.size == 4


def test_parquet_gives_what_csv_gives(houses, tmp_path):
    import pandas as pd

    pd.read_csv(houses).to_parquet(tmp_path / "houses.parquet")
    for make in (prices, kinds):
        a, b = make(houses), make(tmp_path / "houses.parquet")
        assert a.label_names == b.label_names
        assert all(torch.equal(u, v) for u, v in zip(a.client.train, b.client.train, strict=True))


def test_raw_values_go_in_and_come_out(houses):
    loaded = prices(houses, standardize=True, test_share=0.25)
    assert loaded.client.size == 3
    assert loaded.client.scaling is loaded.scaling
    assert torch.allclose(loaded.client.train[0].mean(dim=0), torch.zeros(2), atol=1e-6)
    restored = loaded.scaling.restore_targets(loaded.client.train[1])
    assert set(restored[:, 0].tolist()) < {100.5, 200.5, 130.5, 400.5}


def test_standardisation_happens_before_rounding_to_single(tmp_path):
    path = write(tmp_path / "a.csv", "t,y\n1700000000,0\n1700000001,1\n1700000002,2\n")
    loaded = client_from_files("a", task="regression", train=path, targets="y", standardize=True)
    assert torch.allclose(loaded.client.train[0][:, 0], torch.tensor([-1.2247449, 0, 1.2247449]))
