"""``fedgradnorm watch``: what it sends of runs that are being trained, and whom it answers."""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgradnorm import ConfigError
from fedgradnorm._cli import app
from fedgradnorm._cli.watch_command import PAGES, Handler, Server, server
from fedgradnorm._report.live import Live
from fedgradnorm._runs.folder import FolderLock
from fedgradnorm._runs.reader import LINES, line_name
from fedgradnorm._runs.spread import MANY
from report.run_folders import write_run
from report.test_many_clients import KINDS
from report.test_many_clients import write as write_crowd

BOARD = {
    "time": "2026-01-01T10:00:00+00:00", "seconds_since_1970": 1.0, "stage": "training",
    "run": "ab", "round": 3, "rounds": 9,
    "clients": [{
        "client": "north", "connected": True, "seen": 1.0, "seconds": 0.25, "rounds": 3,
        "weight": None, "bytes": 10, "left_out": 0,
        "refused": 1, "bounded": 0, "state": "suspended",
    }],
}  # fmt: skip


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Server]:
    with server(folder, port) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def answer(
    found: Server, path: str = "/", method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", found.server_address[1], timeout=60)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return connection.getresponse()


def events(found: Server, query: str = "") -> Iterator[tuple[str, Any]]:
    with closing(answer(found, f"/events{query}")) as stream:
        name = ""
        while line := stream.readline().decode().rstrip("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))
                stream.readline()
            elif line.startswith(("retry", ":")):
                stream.readline()


def curves(live: Live) -> dict[tuple[str, str], list[list[float]]]:
    """The curves that the next call sends, by client and quantity."""
    sent = [content for name, content in live.news() if name == "points"]
    return {(c, q): [x, y] for one in sent for c, q, x, y in one["curves"]}


def listing(live: Live) -> list[dict[str, Any]]:
    found = {name: content for name, content in live.news() if name == "runs"}
    return found["runs"]["runs"] if found else []


# ---- whom it answers -----------------------------------------------------------------------------


def test_the_page_asks_for_nothing_elsewhere_and_nobody_may_frame_it(tmp_path: Path) -> None:
    with serving(tmp_path) as found:
        for path in PAGES:
            got = answer(found, path)
            assert got.status == 200
            policy = got.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            text = got.read().decode()
            assert "http:" not in text
            assert "https:" not in text
            assert "innerHTML" not in text


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:80", "[::1]:8000"])
def test_local_names_are_answered_whatever_their_port(tmp_path: Path, host: str) -> None:
    with serving(tmp_path) as found:  # a tunnel may have another port at its near end
        assert answer(found, Host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:80"},
        {"Host": ""},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_pages_from_elsewhere_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    write_run(tmp_path, "fedrep")
    with serving(tmp_path) as found:
        for path in ("/", "/events"):
            got = answer(found, path, **headers)
            assert got.status == 403
            assert b"fedrep" not in got.read()


def test_nothing_can_be_written_and_no_other_file_is_served(tmp_path: Path) -> None:
    with serving(tmp_path) as found:
        for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            assert answer(found, "/", method).status == 501
        for path in ("/run.json", "/../watch.html", "/templates/page.html", "//etc/passwd"):
            assert answer(found, path).status == 404


def test_it_listens_on_this_machine_alone_and_names_a_port_that_is_taken(tmp_path: Path) -> None:
    with serving(tmp_path) as found:
        assert found.server_address[0] == "127.0.0.1"
        port = found.server_address[1]
        with pytest.raises(ConfigError, match=f"--port {port}: cannot be used"):
            server(tmp_path, port)


def test_no_name_is_looked_up_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda *_: pytest.fail("asks for a name"))
    with serving(tmp_path) as found:
        assert answer(found).status == 200


def test_a_connection_that_says_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Handler.timeout is not None
    monkeypatch.setattr(Handler, "timeout", 0.1)
    with serving(tmp_path) as found:
        for begun in (b"", b"GET / HT"):
            with socket.create_connection(found.server_address, timeout=60) as client:
                client.sendall(begun)
                assert client.recv(1) == b""
    assert capsys.readouterr().err == ""


def test_an_address_that_is_none_is_not_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path) as found, socket.create_connection(found.server_address) as client:
        client.sendall(b"GET http://[/ HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 404"
    assert capsys.readouterr().err == ""


def test_a_page_that_was_closed_ends_its_thread_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgradnorm._cli.watch_command.ALIVE", 0.0)
    monkeypatch.setattr("fedgradnorm._cli.watch_command.POLL", 0.01)
    with serving(tmp_path) as found:
        before = threading.active_count()
        for _ in range(20):
            with socket.create_connection(found.server_address) as client:
                client.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
                assert client.recv(15).startswith(b"HTTP/1.0 200")
        until = time.monotonic() + 60
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() == before
    assert capsys.readouterr().err == ""


def test_ctrl_c_ends_the_command_and_its_streams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedgradnorm", "watch", str(tmp_path / "later")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "later (not there yet): http://127.0.0.1:" in line
        port = int(line.rstrip("/\n").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/events")
        stream = connection.getresponse()
        assert stream.readline() == b"retry: 1000\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stdout.read().endswith("no longer watching\n")
        stream.read()  # which has an end


def test_it_needs_no_extra(tmp_path: Path) -> None:
    extras = ("jinja2", "matplotlib", "plotly", "scipy", "pyarrow", "h5py", "flwr", "cryptography")
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({extras!r}))\n"
        "from fedgradnorm._report.live import Live\n"
        "from pathlib import Path\n"
        f"print(*(name for name, _ in Live(Path({str(tmp_path)!r})).news()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "runs boards\n", done.stderr


def test_report_no_longer_watches() -> None:
    assert CliRunner().invoke(app, ["report", "runs", "--watch"]).exit_code == 2


# ---- what it sends -------------------------------------------------------------------------------


def test_points_come_as_they_are_written_and_only_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "fedrep", rounds=12, planned=20)
    live = Live(tmp_path, [folder.name])
    (run,) = listing(Live(tmp_path))
    assert (run["round"], run["rounds"], run["method"], run["seed"]) == (12, 20, "fedrep", 0)
    first = curves(live)
    assert {client for client, _ in first} == {"gender", "landmark"}
    assert {q for _, q in first} >= {"train", "held test", "score test", "weight", "loss"}
    assert curves(live) == {}
    with (folder / "metrics.csv").open("a") as file:
        columns = (folder / "metrics.csv").read_text().partition("\n")[0].split(",")
        row = {"round": 13, "epoch": 1.5, "client": "gender", "split": "batch", "loss": 0.5}
        line = ",".join(str(row.get(name, "")) for name in columns)
        file.write(line[:7])  # a line that is being written
        file.flush()
        assert curves(live) == {}
        file.write(f"{line[7:]}\n")
    assert curves(live) == {("gender", "loss"): [[13], [0.5]]}
    (run,) = listing(Live(tmp_path))
    assert run["round"] == 13


def test_what_a_resumed_run_has_cut_off_is_sent_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "fedrep", rounds=12, planned=20)
    live = Live(tmp_path, [folder.name])
    before = curves(live)
    path = folder / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    (message,) = [content for name, content in live.news() if name == "points"]
    assert message["reset"]
    assert message["clients"]
    after = {(c, q): [x, y] for c, q, x, y in message["curves"]}
    assert all(x == before[key][0][: len(x)] for key, (x, _) in after.items())


def test_scores_have_their_metric_and_baseline_and_losses_no_scale(tmp_path: Path) -> None:
    clients = {
        "gender": {"kind": "classification", "metric": "accuracy", "baseline": {"accuracy": 0.5}},
        "landmark": {"kind": "regression", "loss_scale": 4.0},
    }
    plain = write_run(tmp_path / "plain", "fedrep")
    scaled = write_run(tmp_path / "scaled", "fedrep", manifest={"clients": clients})
    one, other = curves(Live(plain, ["."])), Live(scaled, ["."])
    (message,) = [content for name, content in other.news() if name == "points"]
    found = {(c, q): y for c, q, _, y in message["curves"]}
    assert found["landmark", "held test"] == pytest.approx(
        [y / 4 for y in one["landmark", "held test"][1]], rel=1e-5
    )
    assert message["clients"]["gender"] == {"metric": "accuracy", "higher": True, "constant": 0.5}
    assert message["clients"]["landmark"] == {"metric": "mae", "higher": False, "constant": None}


def test_a_long_history_is_sent_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgradnorm._report.live.CHUNK", 10_000)
    folder = write_run(tmp_path, "fedrep", rounds=2, planned=90_000)
    columns = (folder / "metrics.csv").read_text().partition("\n")[0]
    with (folder / "metrics.csv").open("w") as file:
        file.write(f"{columns}\n")
        for n in range(1, 6001):
            loss = math.nan if n == 500 else n / 2
            file.write(f"{n},1.0,gender,batch,{loss},1.0{',' * (columns.count(',') - 5)}\n")
    live = Live(tmp_path, [folder.name])
    parts = [content for name, content in live.news() if name == "points"]
    assert len(parts) > 5
    assert not any(part["reset"] for part in parts)
    found = [c for part in parts for c in part["curves"] if c[:2] == ["gender", "loss"]]
    assert [x for _, _, xs, _ in found for x in xs] == list(range(1, 6001))
    ys = [y for *_, ys in found for y in ys]
    assert ys == [None if n == 500 else n / 2 for n in range(1, 6001)]


def test_of_many_clients_quantiles_are_sent(tmp_path: Path) -> None:
    folder = write_crowd(tmp_path, "fedrep", 0, 0.0, 60)
    found = curves(Live(tmp_path, [folder.name]))
    assert {client for client, _ in found} == {line_name(t, line) for t in KINDS for line in LINES}
    assert found["smile (median)", "score test"][0] == [0, 10, 20]
    (folder / "spread.csv").unlink()  # a run that was told to keep the rows of all clients
    names = {f"gender {n}": "accuracy" for n in range(60)}
    folder = write_run(tmp_path / "all", "fedrep", tasks=names)
    assert len({client for client, _ in curves(Live(folder, ["."]))}) == MANY


def test_comparisons_are_listed_next_to_single_runs_and_two_of_a_name_by_their_folder(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "fedrep")
    for comparison in ("one-compare", "two-compare"):
        write_run(tmp_path / comparison, "local")
    found = {run["id"]: run["name"] for run in listing(Live(tmp_path))}
    assert found == {
        "fedrep-seed0": "fedrep-seed0",
        "one-compare/local-seed0": "one-compare/local-seed0",
        "two-compare/local-seed0": "two-compare/local-seed0",
    }


def test_a_folder_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "fedrep")
    for n in range(8):  # before and after it, whatever the order
        (tmp_path / f"other {n}").mkdir()
    is_file = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name.startswith("other"):
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert [run["id"] for run in listing(Live(tmp_path))] == ["fedrep-seed0"]


def test_folders_come_and_go(tmp_path: Path) -> None:
    live = Live(tmp_path / "runs", ["fedrep-seed0"])
    (name, content), *_ = live.news()
    assert (name, content["runs"]) == ("runs", [])
    folder = tmp_path / "runs" / "fedrep-seed0"
    folder.mkdir(parents=True)
    assert listing(live) == []
    write_run(tmp_path / "made", "fedrep", planned=20)
    made = tmp_path / "made" / "fedrep-seed0"
    (folder / "run.json").write_bytes((made / "run.json").read_bytes())
    assert [run["id"] for run in listing(live)] == ["fedrep-seed0"]
    (folder / "metrics.csv").write_bytes((made / "metrics.csv").read_bytes())
    assert curves(live)
    for file in folder.iterdir():
        file.unlink()
    assert listing(live) == []


def test_a_run_that_was_killed_has_stopped_and_one_that_is_slow_has_not(tmp_path: Path) -> None:
    killed, slow = (write_run(tmp_path, name, planned=20) for name in ("fedrep", "fedprox"))
    done = write_run(tmp_path, "local")
    for folder in (killed, slow, done):
        for file in folder.iterdir():
            os.utime(file, (1.8e9, time.time() - 60))
    with FolderLock(slow):
        states = {run["name"]: run["state"] for run in listing(Live(tmp_path))}
    expected = {"fedrep-seed0": "stopped", "local-seed0": "finished"}
    if Path("/proc/locks").exists():
        expected["fedprox-seed0"] = "running"
    assert states.items() >= expected.items()


def test_damage_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "fedrep", planned=20)
    with (folder / "metrics.csv").open("a") as file:
        file.write("not,a,number\n")
    live = Live(tmp_path, [folder.name])
    assert curves(live)
    (run,) = listing(live)
    assert "metrics.csv, line" in run["problem"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder, other = write_run(tmp_path / "runs", "fedrep"), write_run(tmp_path / "other", "local")
    (folder / "metrics.csv").unlink()
    (folder / "metrics.csv").symlink_to(other / "metrics.csv")
    assert curves(Live(tmp_path / "runs", [folder.name])) == {}


def test_a_federation_shows_what_its_server_wrote_down_and_the_run_it_serves(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "runs", "fedrep", planned=20)
    (tmp_path / "fed").mkdir()
    live = Live(tmp_path / "fed")
    assert dict(live.news())["boards"]["boards"] == []
    (tmp_path / "fed" / "status.json").write_text(json.dumps({**BOARD, "folder": str(folder)}))
    found = dict(live.news())
    (board,) = found["boards"]["boards"]
    assert board["clients"] == BOARD["clients"]
    assert [run["id"] for run in found["runs"]["runs"]] == [str(folder)]
    (inside := folder / "federation").mkdir()  # as `federation try` has it
    (inside / "status.json").write_bytes((tmp_path / "fed" / "status.json").read_bytes())
    assert [run["id"] for run in listing(Live(tmp_path / "runs"))] == [folder.name]
    for damaged in ("{", "{}", "[]", "[" * 100_000, json.dumps({**BOARD, "folder": 3}),
                    json.dumps({**BOARD, "folder": "", "round": 0.5})):  # fmt: skip
        (tmp_path / "fed" / "status.json").write_text(damaged)
        assert dict(Live(tmp_path / "fed").news())["boards"]["boards"] == []


def test_messages_reach_a_page_as_events(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\n"
    folder = write_run(tmp_path, "fedrep", tasks={hostile: "accuracy", "b": "mae"})
    with serving(tmp_path) as found:
        seen = {}
        for name, content in events(found, f"?run={folder.name}&run=../../etc"):
            seen[name] = content
            if name == "points":
                break
    assert seen["runs"]["runs"][0]["name"] == folder.name
    assert hostile in seen["points"]["clients"]
