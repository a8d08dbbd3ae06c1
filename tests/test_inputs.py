"""Inputs that are not one tensor of numbers: the same training, in every engine that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm.models._input_rows import Sequences

HOW: dict[str, Any] = {"rounds": 4, "batch_size": 8, "lr": 0.02, "device": "cpu", "seed": 3}
WORDS = 12


class Columns(nn.Module):
    """A network of two inputs, as keyword arguments or as the columns of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 5), nn.Linear(toys.FEATURES - 2, 5)
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor | None = None, left: Any = None, right: Any = None) -> Tensor:
        if x is not None:
            left, right = x[:, :2], x[:, 2:]
        return self.last(torch.tanh(self.left(left) + self.right(right)))


class Bag(nn.Module):
    """The mean of embeddings over the steps that are real."""

    def __init__(self, masked: bool = True) -> None:
        super().__init__()
        self.words, self.last, self.masked = nn.Embedding(WORDS, 6), nn.Linear(6, 4), masked

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        steps = torch.ones_like(x) if mask is None else mask
        weight = steps.to(self.last.weight.dtype)[..., None]
        return self.last((self.words(x) * weight).sum(1) / weight.sum(1))


def named(client: fgn.Client) -> fgn.Client:
    """The client with its columns as two named inputs."""
    splits = {
        split: ({"left": x[:, :2], "right": x[:, 2:]}, y)
        for split in ("train", "test")
        for x, y in [getattr(client, split)]
    }
    return fgn.Client(client.name, client.task, **splits)


def texts(name: str, sizes: list[int], **options: Any) -> fgn.Client:
    rng = np.random.default_rng(len(name))
    rows = [rng.integers(0, WORDS, size=size) for size in sizes]
    y = np.array([int(row[0]) % 2 for row in rows])
    return fgn.Client(name, fgn.classification(2), (fgn.sequences(rows), y), **options)


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_named_inputs_train_as_the_columns_of_one_tensor(executor: str) -> None:
    network, rows = toys.seeded(Columns), toys.rows("side", 9)[0]
    whole = flat.train(network, toys.clients(), executor="loop", **HOW)
    parts = flat.train(network, list(map(named, toys.clients())), executor=executor, **HOW)
    numbers = [run.history.select_dtypes("number").to_numpy(float) for run in (whole, parts)]
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-10)
    given = {"left": rows[:, :2], "right": rows[:, 2:]}
    one, other = whole.predict("side", rows, kind="output"), parts.predict("side", given)
    assert other.tolist() == one.argmax(1).tolist()
    tensors = parts.predict("side", {key: torch.from_numpy(part) for key, part in given.items()})
    assert isinstance(tensors, Tensor)


def test_sequences_of_one_length_train_as_a_tensor_of_token_numbers() -> None:
    network = toys.seeded(Bag)
    client = texts("same", [5] * 24)
    x, y = client.train
    plain = fgn.Client("same", fgn.classification(2), (torch.stack(x.rows), y))
    padded = torch.nn.functional.pad(torch.stack(x.rows), (0, 3), value=7)
    cut = fgn.Client("same", fgn.classification(2), (fgn.sequences(padded, [5] * 24), y))
    assert cut.fingerprint() == client.fingerprint() != plain.fingerprint()
    runs = [flat.train(network, [one], executor="loop", **HOW) for one in (client, plain, cut)]
    for other in runs[1:]:
        assert torch.equal(toys.parameters(runs[0].network), toys.parameters(other.network))


def test_what_is_padded_does_not_count() -> None:
    """A long row next to a short one changes nothing of it: the mask says what is real."""
    run = flat.train(toys.seeded(Bag), [texts("words", [1, 7, 3, 2] * 6)], **HOW)
    together = run.predict("words", [[3, 1], [5, 2, 8, 8, 1, 0]], kind="output")
    apart = [run.predict("words", [row], kind="output") for row in ([3, 1], [5, 2, 8, 8, 1, 0])]
    np.testing.assert_allclose(together, np.concatenate(apart), rtol=1e-12)


def test_a_first_part_of_a_clients_own_is_a_private_first_layer() -> None:
    """With the same start values, and with clients whose rows have other shapes next to them."""
    stems = {name: toys.seeded(lambda: nn.Linear(toys.FEATURES, 3)) for name in toys.NAMES}
    behind = toys.seeded(lambda: nn.Sequential(nn.Tanh(), nn.Linear(3, 4)))
    clients = [
        fgn.Client(c.name, c.task, c.train, c.test, stem=stems[c.name]) for c in toys.clients()
    ]
    network = nn.Sequential(stems["corner"], behind)
    own = flat.train(behind, clients, **HOW)
    private = flat.train(network, toys.clients(), shared="1", **HOW)
    for name in toys.NAMES:
        left, right = own.clients[name].stem.weight, private.networks[name][0].weight
        assert torch.equal(left, right)
        assert not torch.equal(left, stems[name].weight)
    assert torch.equal(own.network[1].weight, private.network[1][1].weight)


class Wider(nn.Module):
    """Makes of words what the network takes: a first part that is a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.wide = Bag(), nn.Linear(4, toys.FEATURES)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.wide(self.bag(x, mask))


def test_rows_of_three_forms_are_saved_loaded_resumed_and_predicted(tmp_path: Path) -> None:
    def clients() -> list[fgn.Client]:
        flat, x = toys.client("side", 30), np.random.default_rng(1).normal(size=(24, 2, 3))
        images = fgn.Client("images", fgn.regression(1), (x, x[:, 0, 0]), stem=nn.Flatten())
        words = texts("words", [2, 5, 3] * 8, stem=toys.seeded(Wider, torch.float32))
        return [flat, images, words]

    def train(**options: Any) -> fgn.Run:
        how = {"personalize": {"steps": 2}, **HOW, **options}
        return flat.train(toys.network(torch.float32), clients(), **how)

    rows = {"side": toys.rows("side", 5)[0], "images": np.ones((5, 2, 3)), "words": [[1, 2], [3]]}
    whole = train(folder=tmp_path / "whole")
    toys.interrupted(train, at=2, folder=tmp_path / "cut", checkpoint_every=1)
    again = train(folder=tmp_path / "cut", resume=True, checkpoint_every=1)
    loaded = fgn.load(tmp_path / "whole", stems={"words": Wider()})
    started = train(start=loaded, rounds=1, lr=1e-12, personalize=None)
    later = loaded.personalize(clients()[2], steps=1, lr=1e-12)
    for name, x in rows.items():
        expected = whole.predict(name, x, kind="output")
        for run in (again, loaded):
            np.testing.assert_array_equal(run.predict(name, x, kind="output"), expected)
        for run in (started, later):
            np.testing.assert_allclose(run.predict(name, x, kind="output"), expected, atol=1e-5)
    assert torch.export.load(whole.export("images", tmp_path / "images.pt2"))
    with pytest.raises(fgn.ConfigError, match="its rows are named inputs or sequences"):
        whole.export("words", tmp_path / "words.pt2")
    with pytest.raises(fgn.ModelError, match=r"stem of client 'words'.*load\(path, stems="):
        fgn.load(tmp_path / "whole")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({}, "names of x must be those of keyword arguments"),
        ({"a b": np.ones((4, 1))}, "names of x must be those of keyword arguments"),
        ({"a": np.ones((4, 1)), "b": np.ones((3, 1))}, "one number of rows each.*'b': 3"),
        ({"a": np.ones((4, 1)), "b": np.float64(1)}, "one number of rows each"),
        ({"a": np.array([[1.0], [np.nan], [0], [0]])}, r"x\['a'\]\[1, 0\] is nan"),
        ({"a": np.array(["u", "v", "w", "x"])}, r"x\['a'\] must hold numbers"),
        ([[1, 2], [3]], r"differ in shape; for rows of different lengths give fgn.sequences\(x\)"),
    ],
)
def test_inputs_that_cannot_be_meant_are_refused_by_name(x: Any, words: str) -> None:
    with pytest.raises(fgn.DataError, match=f"client 'a', train data: .*{words}"):
        fgn.Client("a", fgn.classification(2), (x, [0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("rows", "lengths", "words"),
    [
        ([[1, 2], []], None, "at least one step"),
        ([np.ones((2, 3)), np.ones((2, 4))], None, "steps have different shapes"),
        ([[1, 2], [3, 4]], [2], "2 rows but 1 lengths"),
        ([["a"]], None, "no array of numbers"),
        (3, None, "no array of numbers"),
    ],
)
def test_sequences_that_cannot_be_meant_are_refused(rows: Any, lengths: Any, words: str) -> None:
    with pytest.raises(fgn.DataError, match=words):
        fgn.sequences(rows, lengths)


def test_what_does_not_fit_the_network_is_our_error() -> None:
    client = texts("words", [2, 3] * 6)
    with pytest.raises(fgn.ModelError, match=r"cannot take inputs of shape.*step.*mask"):
        flat.train(nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten()), [client], **HOW)
    with pytest.raises(fgn.ModelError, match="its stem must be a"):
        flat.train(toys.network(), [texts("words", [2] * 6, stem=3)], **HOW)
    run = flat.train(toys.seeded(Bag), [client], **HOW)
    with pytest.raises(fgn.DataError, match=r"a row of x is .*, a training row"):
        run.predict("words", {"x": [[1]]})
    with pytest.raises(fgn.DataError, match="client 'words': sequences: every row needs"):
        run.predict("words", [[1], []])
    assert isinstance(client.train[0], Sequences)
    with pytest.raises(fgn.ConfigError, match="cannot run this: sequences are padded"):
        flat.train(toys.seeded(Bag), [client], executor="joint", **HOW)


def test_other_inputs_are_held_out_partitioned_and_targets_scaled() -> None:
    x, y = toys.rows("place", 30)
    parts = {"left": x[:, :2], "right": x[:, 2:]}
    loaded = fgn.data.client_from_arrays(
        "a", fgn.regression(2), (parts, 100 * y), test_share=0.2, standardize="targets"
    )
    assert (loaded.size, len(loaded.test[0])) == (24, 6)
    run = flat.train(toys.seeded(Columns), [loaded], **HOW)
    assert np.abs(run.predict("a", parts)).mean() > 100  # in the targets' own units
    with pytest.raises(fgn.ConfigError, match="named inputs and sequences are not standardized"):
        fgn.data.client_from_arrays("a", fgn.regression(2), (parts, y), standardize=True)
    some = fgn.data.partition_client(texts("words", [1, 3, 2] * 8), "iid", parts=2)
    assert [client.size for client in some] == [12, 12]


def test_truth_values_and_gaps_among_numbers_are_numbers() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5], "b": [True, False, True]})
    for given in (frame, frame.convert_dtypes(), frame.to_numpy()):
        client = fgn.Client("c", fgn.regression(1), train=(given, [1.0, 2.0, 3.0]))
        expected = torch.tensor([[1.5, 1], [2.5, 0], [3.5, 1]], dtype=torch.float64)
        torch.testing.assert_close(client.train[0].double(), expected)
    gap = frame.assign(b=[True, None, False])
    with pytest.raises(fgn.DataError, match=r"x\[1, 1\] is nan"):
        fgn.Client("c", fgn.regression(1), train=(gap, [1.0, 2.0, 3.0]))
    texts = frame.assign(b=pd.Series(["1", "2", "3"], dtype=object))
    with pytest.raises(fgn.DataError, match="x must hold numbers"):
        fgn.Client("c", fgn.regression(1), train=(texts, [1.0, 2.0, 3.0]))
