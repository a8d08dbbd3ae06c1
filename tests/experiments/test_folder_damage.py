"""Damage to a saved run is found, named, and costs no memory."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedgradnorm as fgn
from experiments.spoiling import toy_run
from fedgradnorm._runs import blueprint, checkpoint
from fedgradnorm._runs.history import averaged_weights
from fedgradnorm._runs.manifest import read_manifest

FLIPS = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    toy_run(folder)
    return folder


@pytest.fixture
def spoiled(whole: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be spoiled."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize(
    "name", ["checkpoint.safetensors", "network.safetensors", "heads.safetensors"]
)
def test_no_flipped_bit_gives_other_content(spoiled: Path, name: str) -> None:
    path, chance = spoiled / name, random.Random(0)
    right, content = path.read_bytes(), checkpoint.read_tensors(spoiled / name)
    for _ in range(FLIPS):
        data = bytearray(right)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            tensors, note = checkpoint.read_tensors(path)
        except fgn.RunFolderError as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        assert note == content[1]
        assert all(torch.equal(tensors[key], t) for key, t in content[0].items())


def test_a_flipped_tensor_is_named_with_a_way_out(spoiled: Path) -> None:
    path = spoiled / "network.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(fgn.RunFolderError, match=r"network\.safetensors is damaged.*from a copy"):
        fgn.load(spoiled)


def test_one_content_is_one_file(tmp_path: Path) -> None:
    state = {"b": torch.ones(3), "a": torch.zeros(2, 2), "plain": [1, "x", None]}
    checkpoint.save(state, tmp_path / "one")
    checkpoint.save(dict(state), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_without_a_checksum_is_refused(spoiled: Path) -> None:
    path = spoiled / "network.safetensors"
    save_file(checkpoint.read_tensors(path)[0], path)
    with pytest.raises(fgn.RunFolderError, match="does not match its checksum"):
        fgn.load(spoiled)


def test_a_run_without_a_checkpoint_starts_over_if_it_never_had_one(tmp_path: Path) -> None:
    def fail(event: Any) -> None:
        if event.round == 2:
            raise SystemExit  # as a kill: nothing is saved

    how = {"checkpoint_every": 3}
    toy_run(tmp_path / "whole", **how)
    with pytest.raises(SystemExit):
        toy_run(tmp_path / "run", progress=fail, **how)
    assert ",batch," in (tmp_path / "run" / "metrics.csv").read_text()
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert toy_run(tmp_path / "run", resume=True, **how).finished
    for name in ("metrics.csv", "checkpoint.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


MANIFEST = {
    "settings": (lambda a: a.pop("settings"), "it has no settings"),
    "heads.side": (lambda a: a["blueprints"]["heads"].pop("side"), "no blueprints.heads.side"),
    "network": (lambda a: a["blueprints"].pop("network"), "no blueprints.network"),
    "options": (lambda a: a["blueprints"]["heads"]["side"].pop("options"), "no table of options"),
    "parts": (lambda a: a["blueprints"]["network"].update(parts=[1]), "no table of parts"),
    "unknown option": (
        lambda a: a["blueprints"]["heads"]["side"]["options"].update(colour="red"),
        "unknown option 'colour'",
    ),
    "kind": (lambda a: a["clients"]["side"].update(kind=3), "clients.side.kind must be"),
    "labels": (lambda a: a["clients"]["side"].update(labels="red"), "clients.side.labels must be"),
    "client": (lambda a: a["clients"].update(side=7), "clients.side must be a table"),
    "rounds": (lambda a: a.update(rounds=10**400), "rounds must be a whole number"),
    "seconds": (lambda a: a.update(seconds="long"), "seconds must be a number"),
    "added": (lambda a: a.update(added=7), "added must be a list"),
    "half a letter": (lambda a: a.update(started="\ud800"), "is damaged"),
}


@pytest.mark.parametrize("key", MANIFEST)
def test_the_key_of_run_json_that_is_wrong_is_named(spoiled: Path, key: str) -> None:
    change, message = MANIFEST[key]
    manifest = json.loads((spoiled / "run.json").read_text())
    del manifest["checksum"]  # only its shape is checked then
    change(manifest)
    (spoiled / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(fgn.RunFolderError, match=message) as error:
        fgn.load(spoiled)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400 + len(str(spoiled))


def test_a_value_of_run_json_that_was_changed_is_noticed(spoiled: Path) -> None:
    path = spoiled / "run.json"
    path.write_text(path.read_text().replace('"rounds": 3', '"rounds": 2'))
    with pytest.raises(fgn.RunFolderError, match="does not match its checksum") as error:
        fgn.load(spoiled)
    assert "remove its key 'checksum'" in str(error.value)


def test_run_json_nested_without_end_is_damaged(spoiled: Path) -> None:
    (spoiled / "run.json").write_text("[" * 10**6)
    with pytest.raises(fgn.RunFolderError, match="is damaged"):
        read_manifest(spoiled)


HUGE = {"layer": "Linear", "options": {"in_features": 30_000, "out_features": 30_000}}


@pytest.mark.parametrize("where", ["network", "heads"])
def test_a_huge_blueprint_takes_no_memory(spoiled: Path, where: str) -> None:
    manifest = json.loads((spoiled / "run.json").read_text())
    del manifest["checksum"]  # only its shape is checked then
    manifest["blueprints"] |= {"network": HUGE} if where == "network" else {"heads": {"side": HUGE}}
    manifest["blueprints"]["heads"] = {"place": HUGE, **manifest["blueprints"]["heads"]}
    (spoiled / "run.json").write_text(json.dumps(manifest))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(fgn.RunFolderError, match="does not fit"):
        fgn.load(spoiled)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000  # KiB; the layer would take 3.6 GB


@pytest.mark.parametrize(
    "plan",
    [
        {"layer": "Transformer", "options": {"num_encoder_layers": 10**9}},
        {"layer": "LSTM", "options": {"input_size": 1, "hidden_size": 1, "num_layers": 10**9}},
        {"layer": "TransformerEncoder", "options": {"encoder_layer": None, "num_layers": 10**9}},
        {"layer": "Linear", "options": {"in_features": "x", "out_features": 2}},
        {"layer": "Conv1d", "options": {"in_channels": 1, "out_channels": 1, "kernel_size": 1,
                                        "groups": 0}},
        {"layer": "LazyLinear", "options": {"out_features": 2}},
        {"layer": "ModuleList", "options": {"modules": [1]}},
        {"layer": "Linear.__init__", "options": {}},
        {"layer": "Sequential", "parts": {"a.b": {"layer": "ReLU", "options": {}}}},
        {"layer": ["Linear"], "options": {}},
        [],
        None,
    ],
    ids=str,
)  # fmt: skip
def test_a_layer_that_was_never_written_down_is_refused(plan: Any) -> None:
    for build in (blueprint.rebuild, blueprint.sketch):
        with pytest.raises(fgn.RunFolderError):
            build(plan)


def test_a_sketch_has_names_and_shapes_and_no_numbers() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.PReLU()))
    drawn = blueprint.sketch(blueprint.describe(network))
    shapes = {name: t.shape for name, t in drawn.state_dict().items()}
    assert shapes == {name: t.shape for name, t in network.state_dict().items()}
    assert {t.device.type for t in drawn.state_dict().values()} == {"meta"}


PLACES: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "name",
    ["run.json", "metrics.csv", "network.safetensors", "heads.safetensors"],
)
def test_what_is_no_file_is_refused_at_once(spoiled: Path, name: str, place: str) -> None:
    (spoiled / name).unlink()
    PLACES[place](spoiled / name)
    with pytest.raises(fgn.RunFolderError, match=Path(name).name.replace(".", r"\.")):
        fgn.load(spoiled)


@pytest.mark.parametrize(
    ("before", "after"), [(",side,batch,", ",nobody,batch,"), ("split", "spilt"), ("round", "")]
)
def test_a_table_of_another_run_is_refused(spoiled: Path, before: str, after: str) -> None:
    path = spoiled / "metrics.csv"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(fgn.RunFolderError, match=r"metrics\.csv"):
        averaged_weights(spoiled)
