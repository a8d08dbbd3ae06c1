"""School and Landmine: the real files recomputed, and made ones that are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.io import loadmat

from cell_files import landmine_tables, school_tables, write_landmine, write_school
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data import landmine, school
from fedgradnorm.data._paths import find_data
from fedgradnorm.tasks._measures import auc

SETS = {
    "school": (school, "X", "Y", 139, 15_362),
    "landmine": (landmine, "feature", "label", 29, 14_820),
}


def real(name):
    try:
        return find_data(None, (SETS[name][0].FILE,), name)
    except DataError as error:
        pytest.skip(f"needs the real file: {error}")


@pytest.mark.real_data
@pytest.mark.parametrize("name", SETS)
def test_the_real_set_is_the_files_own(name):
    module, x_name, y_name, count, rows = SETS[name]
    file = loadmat(real(name))
    x, y = (list(file[key][0]) for key in (x_name, y_name))
    clients = module.clients(scaling="none", validation_share=0.1)
    assert len(clients) == count
    assert sum(c.size + len(c.validation[0]) + len(c.test[0]) for c in clients) == rows
    for client, inputs, targets in zip(clients, x, y, strict=True):
        splits = (client.train, client.validation, client.test)
        found = np.concatenate([np.c_[a.numpy(), b.numpy()] for a, b in splits])
        expected = np.c_[inputs, targets].astype(np.float32)
        assert sorted(map(tuple, found)) == sorted(map(tuple, expected))
        assert len(client.test[0]) == round(0.25 * len(inputs))


@pytest.mark.real_data
def test_the_scores_and_shares_are_those_of_the_description():
    real("school")
    real("landmine")
    scores = torch.cat([torch.cat([c.train[1], c.test[1]]) for c in school.clients()])
    assert scores.mean().item() == pytest.approx(20.6, abs=0.05)
    assert scores.std().item() == pytest.approx(12.7, abs=0.05)
    fields = landmine.clients()
    shares = [torch.cat([c.train[1], c.test[1]]).double().mean().item() for c in fields]
    assert [round(100 * share) for share in (min(shares), max(shares))] == [3, 9]


@pytest.mark.parametrize("how", ["pooled", "own"])
def test_inputs_are_scaled_by_training_rows_alone(tmp_path, how):
    file = write_landmine(tmp_path / "a.mat")
    raw = landmine.clients(source=file, scaling="none")
    made = landmine.clients(source=file, scaling=how)
    everything = np.concatenate([client.train[0].numpy() for client in raw])
    for client, before in zip(made, raw, strict=True):
        base = everything if how == "pooled" else before.train[0].numpy()
        expected = (before.test[0].numpy() - base.mean(0)) / base.std(0)
        assert np.allclose(client.test[0].numpy(), expected, atol=1e-5)
        assert torch.allclose(
            client.scaling.scale_inputs(before.test[0]), client.test[0], atol=1e-5
        )


def test_clients_have_names_tasks_and_a_split_of_their_own_by_seed(tmp_path):
    file = write_school(tmp_path / "school.mat")
    made = school.clients(source=file, test_share=0.5, seed=3)
    assert [c.name for c in made] == ["school-1", "school-2", "school-3"]
    assert {c.task_name for c in made} == {"score"}
    assert [(c.size, len(c.test[0])) for c in made] == [(4, 4), (5, 4), (5, 5)]
    assert all(c.train[0].dtype == c.train[1].dtype == torch.float32 for c in made)
    one = school.clients(source=tmp_path, schools=[2], test_share=0.5, seed=3)  # finds it there
    assert torch.equal(one[0].test[1], made[1].test[1])
    other = school.clients(source=file, test_share=0.5, seed=4)
    assert not all(torch.equal(a.test[1], b.test[1]) for a, b in zip(made, other, strict=True))
    mines = landmine.clients(source=write_landmine(tmp_path / "b.mat"))
    assert mines[0].labels == ("clutter", "mine")
    assert set(mines[0].task.metrics) == {"accuracy", "auc"}
    assert mines[0].task.kind == "classification"


def spoiled(tables, place, row, value):
    tables = [table.astype(np.float64) for table in tables]
    tables[place][row, -1] = value
    return tables


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (
            lambda x: spoiled(x, 1, 2, np.nan),
            None,
            r"X\{2\}, row 3, column 28: nan is not a finite",
        ),
        (None, lambda y: spoiled(y, 2, 0, np.inf), r"Y\{3\}, row 1, column 1: inf is not a finite"),
        (lambda x: [table[:, :27] for table in x], None, r"X\{1\}: 27 columns, not 28"),
        (None, lambda y: [y[0], y[1][:-1], y[2]], r"X\{2\}: 9 rows, and Y\{2\} has shape \(8, 1\)"),
        (None, lambda y: y[:2], "3 cells of X and 2 of Y"),
        (lambda x: [x[0][:0], *x[1:]], lambda y: [y[0][:0], *y[1:]], r"X\{1\}: 0 rows"),
    ],
)
def test_a_wrong_school_file_is_named_with_its_row(tmp_path, x, y, said):
    inputs, targets = school_tables()
    inputs, targets = (x or list)(inputs), (y or list)(targets)
    file = write_school(tmp_path / "school.mat", inputs, targets)
    with pytest.raises(DataError, match=f"school.mat[:,] .*{said}|school.mat: {said}"):
        school.clients(source=file)


def test_a_label_that_is_neither_mine_nor_clutter_is_named(tmp_path):
    x, y = landmine_tables()
    file = write_landmine(tmp_path / "a.mat", x, spoiled(y, 1, 4, 2))
    with pytest.raises(DataError, match=r"label\{2\}, row 5, column 1: 2.0 is not one of \[0, 1\]"):
        landmine.clients(source=file)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"schools": [4]}, ConfigError, "schools: 4 is none of 1 .. 3"),
        ({"schools": [0]}, ConfigError, "0 is none of"),
        ({"schools": [1.0]}, ConfigError, "1.0 is none of"),
        ({"schools": []}, ConfigError, "a list of at least one, from 1 to 3"),
        ({"schools": [1, 1]}, ConfigError, "lists one twice"),
        ({"test_share": 1.0}, ConfigError, "client 'school-1': test_share must be"),
        (
            {"test_share": 0.01},
            DataError,
            "client 'school-1': test_share 0.01 of 8 rows selects none",
        ),
        ({"test_share": 0.6, "validation_share": 0.4}, DataError, "leaves none to train on"),
        ({"scaling": "poled"}, ConfigError, "did you mean 'pooled'"),
        ({"seed": -1}, ConfigError, "seed must be"),
    ],
)
def test_settings_are_checked(tmp_path, options, error, said):
    file = write_school(tmp_path / "school.mat")
    with pytest.raises(error, match=said):
        school.clients(source=file, **options)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDGRADNORM_DATA", raising=False)
    with pytest.raises(DataError, match=r"FEDGRADNORM_DATA is not set; name school\.mat"):
        school.clients()
    with pytest.raises(DataError, match=r"nowhere\.mat: no such file; give the path of school"):
        school.clients(source=tmp_path / "nowhere.mat")
    monkeypatch.setenv("FEDGRADNORM_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"LandmineData\.mat is not there; download it first"):
        landmine.clients()
    with pytest.raises(DataError, match=r"no school\.mat in it"):
        school.clients(source=tmp_path)
    write_school(tmp_path / "mine.mat")
    assert len(school.clients(source="mine.mat")) == 3  # a relative path, in the data folder


def test_auc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    for _ in range(20):
        output = torch.from_numpy(rng.integers(0, 4, (30, 2)).astype(np.float32))
        target = torch.from_numpy(rng.integers(0, 2, 30))
        score = (output[:, 1] - output[:, 0]).numpy()
        ones, zeros = score[target == 1], score[target == 0]
        pairs = (ones[:, None] > zeros) + (ones[:, None] == zeros) / 2
        assert auc(output, target).item() == pytest.approx(pairs.mean())
    assert auc(torch.zeros(3, 2), torch.ones(3, dtype=torch.int64)).item() == 0.5
