"""HAR, FDU-MTL and SARCOS: small files in their layout, and the real ones where they are."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

import fedgradnorm as fgn
from fedgradnorm.data import fdu_mtl, har, sarcos


def write_sarcos(path: Path, rows: int = 40) -> Path:
    savemat(path, {"sarcos_inv_test": np.random.default_rng(0).normal(size=(rows, 28))})
    return path


def write_har(path: Path, people: int = 3, each: int = 16) -> Path:
    count = people * each
    x = np.random.default_rng(0).normal(size=(count, 9, 128)).astype(np.float16)
    subject = np.repeat(np.arange(1, people + 1), each).astype(np.int8)
    np.savez(path, x=x, y=(np.arange(count) % 6).astype(np.int8), subject=subject)
    return path


def write_reviews(path: Path, domains: tuple[str, ...] = ("dvd", "MR")) -> Path:
    text = "1\ta good film\n0\ta bad film , really\n" * 4
    with zipfile.ZipFile(path, "w") as file:
        for name in domains:
            for split in ("train", "test"):
                file.writestr(f"fdu_mtl/{name}.task.{split}", text)
    return path


def test_joints_share_their_inputs_or_divide_them(tmp_path: Path) -> None:
    path = write_sarcos(tmp_path / "sarcos_inv_test.mat")
    clients = sarcos.clients(source=path)
    assert [client.name for client in clients] == list(sarcos.JOINTS)
    assert all(torch.equal(c.train[0], clients[0].train[0]) for c in clients)
    own = sarcos.clients(source=path, inputs="disjoint", scaling="none", validation_share=0.1)
    rows = np.concatenate([np.asarray(client.train[0]) for client in own])
    assert len(np.unique(rows, axis=0)) == len(rows) == 28
    assert sarcos.clients(source=path, joints=["joint-3"])[0].fingerprint() == (
        clients[2].fingerprint()
    )
    savemat(path, {"sarcos_inv_test": np.zeros((4, 27))})
    with pytest.raises(fgn.DataError, match="expected 28 columns"):
        sarcos.clients(source=path)


def test_a_person_is_a_client_with_few_or_all_rows(tmp_path: Path) -> None:
    path = write_har(tmp_path / "har.npz")
    clients = har.clients(source=path, rows=6)
    assert [(c.name, c.size, c.task.outputs) for c in clients] == [
        (f"person-{k}", 6, 6) for k in (1, 2, 3)
    ]
    assert clients[0].train[0].shape == (6, 9, 128)
    with pytest.raises(fgn.ConfigError, match=r"people: 4 is none of 1 \.\. 3"):
        har.clients(source=path, people=[4])
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(4), subject=np.zeros(4))
    with pytest.raises(fgn.DataError, match="not the arrays of HAR"):
        har.clients(source=path)


def test_a_review_is_a_bag_of_words_or_a_row_of_ids(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "fdu_mtl.zip")
    first, second = fdu_mtl.clients(source=path, domains=["dvd", "MR"], words=50)
    assert first.train[0].shape == second.test[0].shape == (8, 50)
    assert torch.allclose(first.train[0].square().sum(1), torch.ones(8))
    (ids,) = fdu_mtl.clients(source=path, domains=["dvd"], words=50, length=4, rows=3)
    assert ids.train[0].dtype == torch.int64
    assert ids.train[0].shape == (3, 4)
    assert int(ids.train[0].max()) <= 50
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("fdu_mtl/dvd.task.train", "1\tfine\n2\tno label\n")
    with pytest.raises(fgn.DataError, match=r"dvd\.task\.train, line 2: expected 0 or 1"):
        fdu_mtl.clients(source=path, domains=["dvd"])


def real(module: Any) -> Any:
    folder = os.environ.get("FEDGRADNORM_DATA", "")
    if not (Path(folder) / module.FILE).is_file():
        pytest.skip(f"needs the real {module.FILE}")
    return module


@pytest.mark.real_data
def test_sarcos_is_nearly_linear_in_its_own_units() -> None:
    clients = real(sarcos).clients()
    assert [(c.size, len(c.test[0])) for c in clients] == [(3559, 890)] * 7
    found = [float(np.asarray(c.train[1]).std()) for c in clients]
    assert np.allclose(found, [20.4, 14.9, 9.9, 13.8, 0.97, 1.7, 2.6], rtol=0.02)
    splits = clients[0].train, clients[0].test
    x, xt = (np.c_[np.asarray(inputs), np.ones(len(inputs))] for inputs, _ in splits)
    for client in clients:
        y, yt = np.asarray(client.train[1]), np.asarray(client.test[1])
        weights = np.linalg.lstsq(x, y, rcond=None)[0]
        assert ((xt @ weights - yt) ** 2).mean() < 0.3 * yt.var()


@pytest.mark.real_data
def test_people_learn_activities_better_together_from_few_rows() -> None:
    few, everything = real(har).clients(rows=10), har.clients()
    assert sum(c.size + len(c.test[0]) for c in everything) == 10_299
    assert {c.size + len(c.test[0]) for c in everything} >= {281, 409}

    def simple(x: Any) -> Any:
        x = np.asarray(x, dtype=np.float64)
        rough = np.abs(np.diff(x, axis=2)).mean(2)
        parts = [x.mean(2), x.std(2), rough, np.ones((len(x), 1))]
        return np.concatenate(parts, axis=1)

    def right(rows: list[Any], test: Any) -> float:
        x = np.concatenate([simple(pair[0]) for pair in rows])
        y = np.eye(6)[np.concatenate([np.asarray(pair[1]) for pair in rows])]
        weights = np.linalg.solve(x.T @ x + 0.3 * np.eye(x.shape[1]), x.T @ y)
        return float(((simple(test[0]) @ weights).argmax(1) == np.asarray(test[1])).mean())

    pooled = [client.train for client in few]
    together = np.mean([right(pooled, client.test) for client in few])
    alone = np.mean([right([client.train], client.test) for client in few])
    assert 0.6 < alone < together - 0.03
    assert together > 0.8


@pytest.mark.real_data
def test_reviews_of_all_domains_help_each() -> None:
    names = ["books", "dvd", "kitchen_housewares", "MR"]
    clients = real(fdu_mtl).clients(domains=names, rows=200)
    whole = fdu_mtl.clients(domains=["books", "MR"])
    assert [(c.size, len(c.test[0])) for c in whole] == [(1600, 400), (1600, 400)]

    def right(rows: list[Any], test: Any) -> float:
        x = np.concatenate([np.asarray(p[0]) > 0 for p in rows])
        y = np.concatenate([np.asarray(p[1]) for p in rows])
        one, zero = ((x[y == k].sum(0) + 1) / ((y == k).sum() + 2) for k in (1, 0))
        seen = np.asarray(test[0]) > 0
        score = seen @ np.log(one / zero) + ~seen @ np.log((1 - one) / (1 - zero))
        return float(((score > 0) == np.asarray(test[1])).mean())

    alone = np.mean([right([client.train], client.test) for client in clients])
    together = np.mean([right([c.train for c in clients], client.test) for client in clients])
    assert 0.58 < alone < together < 0.8
