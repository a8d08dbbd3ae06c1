"""Keys, files and what must be agreed before anything is started."""

from __future__ import annotations

import ssl
import stat

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

from cryptography import x509
from typer.testing import CliRunner

import fedgradnorm as fgn
from engines.flower.machines import NAMES, Machines
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._flower.agreement import agree
from fedgradnorm._flower.federation_file import TaskTerms, read_client, read_federation
from fedgradnorm._flower.serving import check_config, run_folder, serve
from fedgradnorm._flower.setup import init_federation
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.trying import tasks_of
from fedgradnorm.experiments._config.config_file import clients_of, load_config

COMMANDS = ("try", "key", "roster", "revoke", "approve", "audit", "status")


def cli(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_init_makes_keys_that_only_their_owner_reads(tmp_path):
    folder = tmp_path / "fed"
    code, out = cli("federation", "init", folder, "--clients", "a, b", "--host", "fed.org,10.0.0.7")
    assert code == 0, out
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert sorted(p.name for p in (folder / "clients" / "a").iterdir()) == ["ca.pem", "client.toml"]
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    ssl.create_default_context(cafile=str(folder / "ca.pem"))
    terms = read_federation(folder)
    assert (terms.clients, terms.address, terms.minimum) == (["a", "b"], "fed.org:9092", 1)
    assert read_client(folder / "clients" / "a" / "client.toml").server == "fed.org:9092"
    code, out = cli("federation", "init", folder, "--clients", "a")
    assert code == 2
    assert "already holds a federation" in " ".join(out.split())


@pytest.mark.parametrize("clients", ["", "a,a", "../a", "a b"])
def test_init_refuses_bad_names(clients, tmp_path):
    assert cli("federation", "init", tmp_path / "fed", "--clients", clients)[0] == 2
    assert not (tmp_path / "fed").exists()


def test_both_sides_of_one_config_agree(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    server = agree(load_config(machines.config))
    assert server.scalars == ("loss_ratio", "grad_norm")
    for name in NAMES:
        given = read_client(machines.homes[name] / "client.toml")
        config = given.run_config()
        assert agree(config).digest == server.digest
        assert given.load(config).name == name


@pytest.mark.parametrize(
    "change", ["seed=1", "lr=0.1", "weighting.gamma=0.5", "network.widths=[7]"]
)
def test_any_other_setting_is_another_agreement(change, tmp_path):
    config = Machines(tmp_path, rounds=3).config
    assert agree(load_config(config, [change])).digest != agree(load_config(config)).digest


def test_where_it_runs_is_each_sides_own_business(tmp_path):
    config = Machines(tmp_path, rounds=3).config
    own = ["compute.device='auto'", "history.every=5", "output.folder='elsewhere'"]
    assert agree(load_config(config, own)).digest == agree(load_config(config)).digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("sharing.share='none'", "cannot be run over the network"),
        ("server.privacy={epsilon=8.0,delta=1e-3}", "cannot be run over the network"),
        ("sharing.weight_per='task'", "cannot be run over the network"),
        ("personalization.final_head_steps=3", "cannot be run over the network"),
        ("personalization.ditto=0.1", "cannot be run over the network"),
        ("compute.precision='bf16'", "cannot be run over the network; leave it at 'float32'"),
        ("rounds='none'", "give rounds"),
    ],
)
def test_what_needs_the_clients_data_is_refused(change, words, tmp_path):
    config = Machines(tmp_path, rounds=3).config
    with pytest.raises(fgn.ConfigError, match=words):
        agree(load_config(config, [change]))


def test_a_head_in_common_cannot_start_at_anybodys_targets(tmp_path):
    config = Machines(tmp_path, rounds=3).config
    start = "sharing.head_init='targets'"
    agree(load_config(config, [start]))
    with pytest.raises(fgn.ConfigError, match="knows nobody's targets"):
        agree(load_config(config, [start, "sharing.heads='task'"]))
    agree(load_config(config, ["sharing.heads='task'"]))  # by default it begins at random
    own = ["sharing.heads='task'", "sharing.head_own='bias'"]  # a client makes its bias itself
    assert agree(load_config(config, [start, *own])).sent[-1] == "head without bias"
    with pytest.raises(fgn.ConfigError, match="knows nobody's targets"):
        agree(load_config(config, [start, own[0], "sharing.head_own='weight'"]))


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        ("keep_best=true", ()),
        ("personalization.personalize.steps=3", ()),
        ("sharing.heads='task'", ("head",)),
    ],
)
def test_what_clients_can_do_by_themselves_or_agree_to_send_is_run(change, sent, tmp_path):
    config = Machines(tmp_path, rounds=3).config
    agreed, plain = agree(load_config(config, [change])), agree(load_config(config))
    assert agreed.sent == (*plain.sent, *sent)
    assert agreed.digest != plain.digest


def test_a_server_must_be_told_the_networks_size(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    machines.config.write_text(machines.config.read_text().replace("inputs = 3\n", ""))
    with pytest.raises(fgn.ConfigError, match="has no data to take the network's size from"):
        check_config(load_config(machines.config), machines.federation)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("minimum = 9", "more than there are clients"),
        ("deadline = 0", "deadline must be > 0"),
        ("deadlin = 5", "did you mean 'deadline'"),
        ("port = 'x'", "must be a whole number"),
        ("tasks = 3", "tasks must be a table"),
        ("tasks.t = 3", "must be a table with outputs"),
        ("tasks.t.outputs = 3", "needs the option 'clients'"),
        ("tasks.t = {outputs = 0, clients = ['a']}", "outputs must be >= 1"),
        ("tasks.t = {outputs = 'x', clients = ['a']}", "must be a whole number"),
        ("tasks.t = {outputs = 1, clients = ['b']}", "client in tasks.t"),
        ("tasks.'' = {outputs = 1, clients = ['a']}", "name has 1 to 200 letters, not 0"),
        (
            "tasks.t = {outputs = 1, clients = ['a']}\ntasks.u = {outputs = 1, clients = ['a']}",
            "'a' is in tasks 't' and 'u'",
        ),
    ],
)
def test_a_wrong_federation_file_is_named(line, words, tmp_path):
    (tmp_path / "federation.toml").write_text(f'clients = ["a"]\nhost = "h"\n{line}\n')
    with pytest.raises(fgn.ConfigError, match=words):
        read_federation(tmp_path)


def test_a_federation_that_is_tried_knows_who_shares_a_head(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    config = load_config(machines.config, ["sharing.heads='task'"])
    folder = tmp_path / "tried"
    init_federation(folder, NAMES, ("localhost",), tasks=tasks_of(config, clients_of(config)))
    assert read_federation(folder).tasks == {
        "sorting": TaskTerms(2, ["class", "side"]),
        "regression with 1 output": TaskTerms(1, ["value"]),
    }
    assert tasks_of(load_config(machines.config), []) == {}


def test_a_server_that_is_not_told_who_shares_a_head_starts_nothing(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    config = load_config(machines.config, ["sharing.heads='task'"])
    with pytest.raises(fgn.ConfigError, match=r"say in federation.toml, under \[tasks\]"):
        serve(config, machines.federation, machines.run)
    assert not machines.run.exists()


def test_a_clients_file_must_name_data_of_its_own(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    path = machines.homes["class"] / "client.toml"
    path.write_text(path.read_text().replace('name = "class"', 'name = "clas"', 1))
    given = read_client(path)
    with pytest.raises(fgn.ConfigError, match="did you mean 'class'"):
        given.load(given.run_config())
    code, out = cli("join", tmp_path / "nowhere.toml")
    assert (code, "no such file" in " ".join(out.split())) == (2, True)


def test_nothing_to_resume_is_said(tmp_path):
    config = load_config(Machines(tmp_path, rounds=3).config)
    with pytest.raises(fgn.RunFolderError, match="nothing to resume"):
        run_folder(config, resume=True)


def test_two_slots_hold_the_last_two_states(tmp_path):
    slots, initial = Slots(tmp_path / "s"), {"rounds": 0}
    assert slots.at(0, initial) is initial
    for rounds in (1, 2, 3):
        slots.save({"rounds": rounds}, keep=rounds - 1)
        assert slots.at(rounds, initial)["rounds"] == rounds
        assert slots.at(rounds - 1, initial)["rounds"] == rounds - 1
    for lost in (0, 1, 4):
        with pytest.raises(StateLost, match="here is that after 2, 3"):
            slots.at(lost, initial)
    slots.save({"rounds": 3, "again": True}, keep=2)
    assert slots.at(3, initial)["again"]
    assert slots.at(2, initial)["rounds"] == 2


def test_a_damaged_slot_is_passed_over(tmp_path):
    slots = Slots(tmp_path / "s")
    slots.save({"rounds": 1}, keep=0)
    slots.save({"rounds": 2}, keep=1)
    slots.paths[1].write_bytes(b"half a fi")
    assert list(slots.held()) == [1]
    slots.save({"rounds": 2}, keep=1)
    assert sorted(slots.held()) == [1, 2]


def test_without_flower_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code, out = cli("federation", "init", tmp_path / "fed", "--clients", "a")
    assert code == 2
    assert "pip install 'fedgradnorm[flower]'" in " ".join(out.split())


def test_help():
    for words in (
        ["serve"],
        ["join"],
        ["federation"],
        ["federation", "init"],
        *(["federation", word] for word in COMMANDS),
    ):
        code, out = cli(*words, "--help")
        assert code == 0
        assert "Usage" in out


def test_a_server_without_data_knows_where_the_norm_layer_is(tmp_path):
    from fedgradnorm._flower.serving import _norm_layer
    from fedgradnorm.experiments._config.config_file import build
    from fedgradnorm.models._flat import FlatNetwork

    config = load_config(Machines(tmp_path, rounds=3).config)
    network = build(config, [])[0]
    norm_layer = _norm_layer(network, config)
    last = [FlatNetwork(network).slices[name] for name in ("3.weight", "3.bias")]
    assert norm_layer.tolist() == [i for part in last for i in range(part.start, part.stop)]
    delta = load_config(tmp_path / "machines.toml", ["local.sends='delta'"])
    assert _norm_layer(network, delta) is None


def test_early_stopping_cannot_end_the_run_of_a_server(tmp_path):
    words = ["rounds=3", "early_stopping.patience=2"]
    config = load_config(small_config(tmp_path), words)
    with pytest.raises(fgn.ConfigError, match="cannot be run over the network; leave it out"):
        agree(config)
