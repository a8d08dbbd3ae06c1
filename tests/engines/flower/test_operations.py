"""Keys, approval, audit logs and status: what the people who run a federation have in hand."""

from __future__ import annotations

import json
import ssl
import stat
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import httpx

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together
from engines.flower.machines import Machines
from engines.flower.test_setup import cli
from fedgradnorm._flower import join
from fedgradnorm._flower.approval import Approvals, ApprovedClient
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.federation_file import read_client, read_federation
from fedgradnorm._flower.private.private_terms import read_terms
from fedgradnorm._flower.serving import _Serving, check_registered, run_folder
from fedgradnorm._flower.setup import init_federation, make_keys, register, registered, revoke
from fedgradnorm._flower.status import read_status, write_status
from fedgradnorm._flower.wire.messages import Refused, encode
from fedgradnorm._flower.wire.reasons import why
from fedgradnorm._flower.wire.transport import Lost
from fedgradnorm.experiments._config.config_file import load_config

CLIENTS = ("a", "b", "c")
BROKEN = ("-----BEGIN", "-----BEGAN")


def made(folder: Path, private: bool = False) -> Path:
    """A federation whose clients have made their keys, each in its own folder."""
    for home in init_federation(folder, CLIENTS, ("localhost",), private=private, keys=False):
        code, out = cli("federation", "key", home.name, "--folder", home)
        assert code == 0, out
        assert "fingerprint" in out
    return folder


def public(folder: Path, name: str) -> Path:
    return folder / "clients" / name / f"{name}.public.toml"


@pytest.mark.parametrize("private", [False, True])
def test_keys_are_made_by_clients_and_registered_by_the_server(private, tmp_path):
    folder = made(tmp_path / "fed", private)
    home = folder / "clients" / "a"
    for key in ("client.key", "signing.key"):
        assert stat.S_IMODE((home / key).stat().st_mode) == 0o600
    assert "PRIVATE" not in public(folder, "a").read_text()
    with pytest.raises(fgn.ConfigError, match="no public key of a, b, c; on each client run"):
        check_registered(folder, read_federation(folder))
    code, out = cli("federation", "roster", *(public(folder, n) for n in CLIENTS), "-f", folder)
    assert code == 0, out
    assert ("roster.toml" in out) == private
    assert all(one.fingerprint in out for one in registered(folder).values())
    check_registered(folder, read_federation(folder))


def test_the_fingerprint_of_a_roster_covers_what_is_agreed_beside_the_keys(tmp_path):
    """Else a server could hand out a roster that trusts more of the clients."""
    folder = made(tmp_path / "fed", private=True)
    public_files = [public(folder, name) for name in CLIENTS]
    first = cli("federation", "roster", *public_files, "-f", folder)[1]
    path = folder / "roster.toml"
    path.write_text(path.read_text().replace("colluders = 1", "colluders = 0"))
    second = cli("federation", "roster", *public_files, "-f", folder)[1]
    assert read_terms(path).colluders == 0  # a new key leaves it as it was agreed
    shown = [" ".join(out.split()).split("as join prints it: ")[1] for out in (first, second)]
    assert shown[0] != shown[1]


def test_a_key_is_not_overwritten_and_can_be_renewed(tmp_path):
    first = make_keys(tmp_path, "a")
    with pytest.raises(fgn.ConfigError, match="--renew replaces"):
        make_keys(tmp_path, "a")
    assert make_keys(tmp_path, "a", renew=True).fingerprint != first.fingerprint
    assert (tmp_path / "client.key.old").exists()


def test_one_key_under_two_names_is_refused(tmp_path):
    folder = made(tmp_path / "fed")
    text = public(folder, "a").read_text().replace('"a"', '"b"')
    (tmp_path / "b.public.toml").write_text(text)
    code, out = cli(
        "federation", "roster", public(folder, "a"), tmp_path / "b.public.toml", "-f", folder
    )
    assert code == 2
    assert "have the same key" in " ".join(out.split())
    assert not registered(folder)


def test_a_revoked_key_never_comes_back_and_a_new_one_may(tmp_path):
    folder = tmp_path / "fed"
    homes = init_federation(folder, CLIENTS, ("localhost",))
    old = revoke(folder, "b")
    assert sorted(registered(folder)) == ["a", "c"]
    check_registered(folder, read_federation(folder))  # the others may go on
    with pytest.raises(fgn.ConfigError, match="was revoked or replaced"):
        register(folder, [old])
    register(folder, [make_keys(homes[1], "b", renew=True)])
    assert sorted(registered(folder)) == list(CLIENTS)
    events = [(line["event"], line.get("client")) for line in Audit(folder).lines()]
    assert events[-2:] == [("revoked", "b"), ("registered", "b")]


def test_a_key_that_was_replaced_never_comes_back(tmp_path):
    folder = tmp_path / "fed"
    homes = init_federation(folder, CLIENTS, ("localhost",))
    old = registered(folder)["b"]
    register(folder, [make_keys(homes[1], "b", renew=True)])
    with pytest.raises(fgn.ConfigError, match="was revoked or replaced"):
        register(folder, [old])


def test_a_signing_key_that_was_revoked_comes_back_with_no_new_key(tmp_path):
    folder = tmp_path / "fed"
    homes = init_federation(folder, CLIENTS, ("localhost",))
    old = revoke(folder, "b")
    new = make_keys(homes[1], "b", renew=True)
    with pytest.raises(fgn.ConfigError, match="was revoked or replaced"):
        register(folder, [replace(new, signing=old.signing)])
    register(folder, [new])
    last = make_keys(homes[1], "b", renew=True)
    for half in (replace(new, signing=last.signing), replace(new, key=last.key)):
        with pytest.raises(fgn.ConfigError, match="only one of its two keys is new"):
            register(folder, [half])


def test_an_audit_log_shows_every_change(tmp_path):
    log = Audit(tmp_path)
    for number in range(4):
        Audit(tmp_path).add("round", number=number)
    whole = log.path.read_bytes()
    assert [line["number"] for line in log.lines()] == [0, 1, 2, 3]
    log.path.write_bytes(whole + b'{"half a li')  # a kill: the next event replaces it
    log.add("round", number=4)
    assert [line["number"] for line in log.lines()] == [0, 1, 2, 3, 4]
    lines = whole.splitlines(keepends=True)
    for changed in (
        [*lines[:1], *lines[2:]],
        [lines[1], *lines[1:]],
        [lines[0], lines[1].replace(b'"number": 1', b'"number": 9'), *lines[2:]],
        [lines[0], lines[0], *lines[1:]],
    ):
        log.path.write_bytes(b"".join(changed))
        with pytest.raises(fgn.RunFolderError, match="does not continue the log"):
            log.lines()
    assert cli("federation", "audit", tmp_path)[0] != 0


def session(together: Together, folder: Path, how: str) -> ApprovedClient:
    """The side client of a federation as its transport sees it, with its owner's policy."""
    text = f'name = "side"\nserver = "localhost:9"\nconfig = "run.toml"\napprove = "{how}"\n'
    (folder / "client.toml").write_text(text)
    path = folder / "client.toml"
    participant = together.exchange.participants["side"]
    return ApprovedClient(read_client(path), participant, path)


@pytest.mark.parametrize("how", ["first", "ask", "all"])
def test_only_approved_runs_are_answered(how, tmp_path, caplog):
    one, other = (Together(tmp_path / name) for name in ("one", "other"))
    order = one.server._order("train", "side").encoded()
    again = other.server._order("train", "side").encoded()
    client = session(one, tmp_path, how)
    state, path = tmp_path / "state", tmp_path / "client.toml"
    if how == "ask":
        with pytest.raises(Refused, match="not approved"):
            client.respond(order)
        assert "6 rounds, sends update, loss_ratio, grad_norm, no privacy budget" in caplog.text
        assert cli("federation", "approve", path, one.server.run)[0] == 0
    assert client.respond(order)
    if how == "all":
        assert client.respond(again)
        return
    for _ in range(2):
        with pytest.raises(Refused, match="not approved"):
            client.respond(again)
    assert caplog.text.count("asks for this client's data") == (2 if how == "ask" else 1)
    assert other.server.run in cli("federation", "approve", path)[1]
    assert cli("federation", "approve", path, "another")[0] == 2
    assert cli("federation", "approve", path, other.server.run)[0] == 0
    assert client.respond(again)
    assert client.respond(order)
    assert not Approvals(state).waiting()
    events = [line["event"] for line in Audit(state).lines()]
    assert events.count("answered") == 3
    assert events.count("approved") == 2


LONG = {"text": "x" * 100_000, "list": ["x" * 100_000], "number": 10**4000, "table": {"a": [[1]]}}


@pytest.mark.parametrize("said", LONG.values(), ids=LONG)
def test_a_server_does_not_fill_the_audit_log_with_its_own_words(said, tmp_path):
    together = Together(tmp_path / "one")
    client = session(together, tmp_path, "all")
    facts = {"kind": said, "run": together.server.run, "digest": "agreed", "round": said}
    with pytest.raises(Refused):
        client.respond(encode(facts, {"shared": together.server.server.shared.data}))
    line = Audit(tmp_path / "state").lines()[-1]
    assert line["event"] == "refused"
    assert len(json.dumps(line)) < 1000


def test_a_clients_result_has_its_own_history_and_true_weight(tmp_path):
    together = Together(tmp_path, patience=Patience(minimum=1))
    together.exchange.tamper = lambda name, order, content: (
        "late" if name == "side" and order.round == 2 else content
    )
    together.run()
    table = {(r["client"], r["round"]): r for r in together.server.history.rows if r["active"]}
    for name, run in together.results().items():
        rows = [row for row in run.table.rows if row["split"] == "batch"]
        assert [row["round"] for row in rows] == [k for n, k in sorted(table) if n == name]
        for row in rows:
            assert row["weight"] == table[name, row["round"]]["weight"]
            assert row["loss_ratio"] == table[name, row["round"]]["loss_ratio"]
        summary = run.summary().loc[name]
        assert summary["first_loss"] != summary["last_loss"]
        assert summary["weight"] == together.server.weights()[name] != 1.0


def test_status_is_read_while_the_run_is_served(tmp_path):
    together = Together(tmp_path)
    with pytest.raises(fgn.ConfigError, match="no run has been served"):
        read_status(tmp_path)
    together.run(2)
    together.server.attendance.revoked = frozenset({"place"})
    write_status(tmp_path, tmp_path, together.server, ["side"], "training")
    code, out = cli("federation", "status", tmp_path, "--json")
    assert code == 0
    found = json.loads(" ".join(out.split("\n")))
    assert (found["round"], found["rounds"]) == (2, 6)
    page = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in (*found, *found["clients"][0]))
    side, place = ({c["client"]: c for c in found["clients"]}[n] for n in ("side", "place"))
    assert (side["connected"], place["connected"], place["state"]) == (True, False, "revoked")
    assert side["weight"] == together.server.weights()["side"]
    assert side["bytes"] > 0 < side["seconds"]
    code, out = cli("federation", "status", tmp_path)
    assert (code, "round 2 of 6" in out) == (0, True)
    for damaged in ({}, {**found, "round": "two"}, {**found, "clients": [{}]}):
        (tmp_path / "status.json").write_text(json.dumps(damaged))
        with pytest.raises(fgn.ConfigError, match=r"status.json is damaged \(.*: "):
            read_status(tmp_path)


def test_too_few_clients_end_a_run_with_one_line_at_its_deadline(tmp_path):
    folder, told = tmp_path / "fed", []
    init_federation(folder, toys.NAMES, ("localhost",), wait=0.3, minimum=2)
    server = SimpleNamespace(connected=lambda: ["side"])
    about = (read_federation(folder), Together(tmp_path / "run").server, server, Audit(folder))
    one = _Serving(folder, tmp_path, *about)
    words = "1 of 3 clients connected in 0 s .* 2 are needed; missing: corner, place; start them"
    with pytest.raises(fgn.TrainingError, match=words):
        one.meet(lambda *missing: told.append(missing))
    assert [names for names, _ in told] == [["corner", "place"]]
    assert 0 < told[0][1] <= 0.3
    assert read_status(folder)["stage"] == "waiting"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (
            "federation.toml",
            ('clients = ["class", "value", "side"]', "clients = 5"),
            "a list of names",
        ),
        ("federation.toml", ("port = ", "port = 7"), "port must be from 1 to 65535"),
        ("federation.toml", ("wait = 3600.0", "wait = -1.0"), "wait must be > 0"),
        ("client.toml", ("localhost:", "localhost:x"), "a host and a port"),
        ("client.toml", ("localhost:", ""), "a host and a port"),
        ("ca.pem", BROKEN, "no certificate can be read from it"),
        ("client.key", BROKEN, "no private key can be read from it"),
        ("server.pem", BROKEN, "server.key is missing or damaged"),
        ("server.key", BROKEN, "server.key is missing or damaged"),
        ("state/audit.jsonl", ("{}", "{"), "line 1 does not continue the log"),
    ],
)
def test_a_wrong_file_is_one_line(file, change, words, tmp_path):
    machines = Machines(tmp_path, rounds=3)
    home = machines.homes["class"]
    on_server = file.startswith(("federation", "server"))
    path = (machines.federation if on_server else home) / file
    if not path.exists():
        path.parent.mkdir()
        path.write_text("{}\n")
    path.write_text(path.read_text().replace(*change))
    if on_server:
        code, out = cli("serve", machines.config, "--federation", machines.federation)
    else:
        code, out = cli("join", home / "client.toml", "--once")
    assert (code, words in " ".join(out.split())) == (2, True), out
    assert "Traceback" not in out
    assert not machines.run.exists()


def test_init_after_a_kill_and_with_any_host(tmp_path):
    folder = tmp_path / "fed"
    (tmp_path / ".fed.partial").mkdir()
    (tmp_path / ".fed.partial" / "ca.key").write_text("half")
    init_federation(folder, CLIENTS, ("ä.org",))
    assert read_federation(folder).host == "xn--4ca.org"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fed"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "ca.key").write_text("half")  # of an earlier version
    for place, host, words in (
        ("old", "h", "is not empty: remove it"),
        ("new", "ä" * 80, "is not a host name"),
    ):
        code, out = cli("federation", "init", tmp_path / place, "--clients", "a", "--host", host)
        assert (code, words in " ".join(out.split())) == (2, True), out


def test_resume_of_seed_1_is_not_that_of_seed_10(tmp_path):
    config = load_config(Machines(tmp_path, rounds=3).config, ["seed=1"])
    for name, started in (("seed1", "2026-01-01"), ("seed1-2", "2026-01-02"), ("seed10", "2027")):
        folder = tmp_path / "runs" / f"machines-fedgradnorm-{name}"
        folder.mkdir(parents=True)
        table = {
            "format": 1,
            "finished": False,
            "started": started,
            "settings": {"seed": 1},
            "clients": {},
        }
        (folder / "run.json").write_text(json.dumps({**table, "weighting": {"name": "x"}}))
    assert run_folder(config, resume=True).name == "machines-fedgradnorm-seed1-2"


def test_an_empty_node_file_is_that_of_no_node(tmp_path):
    path = tmp_path / "node"
    for text in ("", "\n", "x"):
        path.write_text(text)
        assert join.node_of(path) is None
    path.write_text("17")
    assert join.node_of(path) == 17


def test_a_clock_that_steps_does_not_end_join(monkeypatch, caplog):
    """The server refuses this machine's signatures; join waits until somebody sets a clock."""
    steps = iter([30.0, -400.0])

    def check_let_in() -> None:
        for ahead in steps:
            stamp = format_datetime(datetime.now(UTC) - timedelta(seconds=ahead))
            response = httpx.Response(401, headers={"date": stamp}, text="not signed")
            refused = httpx.HTTPStatusError(
                "", request=httpx.Request("POST", "/"), response=response
            )
            raise why("here:9092", refused)

    monkeypatch.setattr(join.time, "sleep", lambda _: None)
    join._until_let_in(check_let_in)
    assert "s ahead of the clock of here:9092" in caplog.text
    assert "s behind the clock of here:9092" in caplog.text


def test_join_ends_where_the_result_of_a_finished_run_cannot_be_saved(tmp_path, monkeypatch):
    """A node's process that ends with anything but 0 or 2 is followed by another, for ever."""
    (path := tmp_path / "client.toml").touch()
    program = (
        "from fedgradnorm._cli.output import Commands; import typer\n"
        "from fedgradnorm._flower.join import check_saved\n"
        "app = typer.Typer(cls=Commands)\n"
        "app.command()(lambda: check_saved('a', None))\n"
        "app.callback()(lambda: None)\n"
        "app(['<lambda>'])"
    )
    monkeypatch.setattr(join, "join_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(join.time, "sleep", lambda _: pytest.fail("another node is started"))
    with pytest.raises(SystemExit) as ended:
        join.join(path)
    assert ended.value.code == 2


@pytest.mark.parametrize(("code", "kind"), [(10, Lost), (9, Lost), (62, fgn.ConfigError)])
def test_a_certificate_that_is_out_of_date_may_be_a_clock_that_is_not_set_yet(code, kind):
    cause = ssl.SSLCertVerificationError("refused")
    cause.verify_code, cause.verify_message = code, "certificate is not yet valid"
    error = httpx.ConnectError("refused")
    error.__cause__ = cause
    assert type(why("here:9092", error)) is kind
    assert "nothing was sent" in str(why("here:9092", error))


def test_a_server_that_dies_during_the_handshake_does_not_end_join():
    error = httpx.ConnectError("EOF occurred in violation of protocol")
    error.__cause__ = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    assert type(why("here:9092", error)) is Lost
