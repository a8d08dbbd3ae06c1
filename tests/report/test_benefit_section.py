"""The benefit on the page: from stored runs, from what the command wrote, and folded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedgradnorm import RunFolderError
from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._benefit.client_gain import ClientGain
from fedgradnorm._report.benefit import read_benefit, variant_benefits, write_benefit
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.page import make_page
from report.run_folders import write_run

NASTY = '<img src=x onerror=alert(1)>"'


def local(parent: Path, seed: int, **more: object) -> Path:
    settings = {"seed": seed, "share": "none", "lr": 0.1}
    return write_run(parent, "local", seed, manifest={"settings": settings}, **more)


def section(html: str) -> str:
    found = re.search(r'<section id="benefit">.*?</section>', html, re.DOTALL)
    return found[0] if found else ""


def test_no_section_without_a_run_alone_on_the_same_data_and_seeds(tmp_path: Path) -> None:
    write_run(tmp_path, "fedrep", 0)
    write_run(tmp_path, "fedgradnorm", 0)
    assert not section(make_page([tmp_path]).html)
    local(tmp_path, 1)  # another seed
    assert not section(make_page([tmp_path]).html)
    local(tmp_path, 0)
    assert section(make_page([tmp_path]).html)


def test_another_set_of_data_is_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0, tasks={"other": "accuracy"})
    assert not section(make_page([tmp_path]).html)


def test_gains_are_taken_seed_by_seed(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "fedrep", seed, shift=-0.05)
        local(tmp_path, seed)
    (one,) = variant_benefits(read_report([tmp_path]), {})
    assert (one.variant, one.base, one.by_examples) == ("fedrep", "local", False)
    by = {c.client: c for c in one.clients}
    assert by["gender"].metric == "accuracy"
    assert by["gender"].gain == pytest.approx(2.5)  # points: accuracy is 1 - fall / 2
    assert by["landmark"].unit == "%"
    falls = [2.718281828459045 ** (-1.5) + 0.01 * seed for seed in range(3)]
    assert by["landmark"].gain == pytest.approx(sum(5 / fall for fall in falls) / 3)
    verdicts = ("gains", "no significant difference", "loses")
    assert tuple(map(one.count, verdicts)) == (2, 0, 0)
    text = section(make_page([tmp_path]).html)
    assert "over seeds (Student" in text
    assert "Client by client" in text


def test_one_seed_is_counted_by_sign_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "fedrep", 0, shift=0.05)
    local(tmp_path, 0)
    (one,) = variant_benefits(read_report([tmp_path]), {})
    assert not one.told
    assert one.count("loses") == 2
    assert "counted by the sign of their gain" in section(make_page([tmp_path]).html)


def test_an_unfinished_run_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0, rounds=5, planned=12)
    assert not section(make_page([tmp_path]).html)


def test_many_clients_are_folded_to_a_line_per_method(tmp_path: Path) -> None:
    tasks = {f"school-{i}": "accuracy" for i in range(60)}
    write_run(tmp_path, "fedrep", 0, tasks=tasks, rounds=4, shift=-0.05)
    local(tmp_path, 0, tasks=tasks, rounds=4)
    text = section(make_page([tmp_path]).html)
    assert text.count("<tr") == 2  # the heading and the method
    assert text.count("<circle") == 60
    assert "Client by client" not in text


def gains(*names: str) -> Benefit:
    return Benefit(
        tuple(
            ClientGain(name, "t", "squared error", "%", 20, 4.0, 3.0, 25.0 - i, 20.5 - i, 30.25)
            for i, name in enumerate(names)
        )
    )


def test_what_the_command_measured_comes_back_and_has_the_last_word(tmp_path: Path) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0)
    path = tmp_path / "benefit.csv"
    write_benefit(gains("gender", "landmark"), path, "fedrep", 1)
    method, seeds, rows = read_benefit(path)
    assert (method, seeds, tuple(rows)) == ("fedrep", 1, gains("gender", "landmark").gains)
    text = section(make_page([tmp_path]).html)
    assert "by bootstrap over held-out examples" in text
    assert "+20.5 to +30.2" in text


@pytest.mark.parametrize(
    ("names", "method", "seeds"),
    [
        (("gender",), "fedrep", 1),
        (("gender", "landmark"), "fedgradnorm", 1),
        (("gender", "landmark"), "fedrep", 2),
    ],
)
def test_what_was_measured_of_other_runs_is_not_shown(
    tmp_path: Path, names: tuple[str, ...], method: str, seeds: int
) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0)
    write_benefit(gains(*names), tmp_path / "benefit.csv", method, seeds)
    assert "by bootstrap" not in section(make_page([tmp_path]).html)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "client,method,seeds\nx,fedrep,one\n", "\0\n"])
def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, text: str) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0)
    (tmp_path / "benefit.csv").write_text(text)
    with pytest.raises(RunFolderError, match="damaged"):
        read_benefit(tmp_path / "benefit.csv")
    page = make_page([tmp_path])
    assert any("benefit.csv is damaged" in note for note in page.report.notes)
    assert section(page.html)


def test_names_are_text(tmp_path: Path) -> None:
    tasks = {NASTY: "accuracy"}
    folder = write_run(tmp_path, "fedrep", 0, tasks=tasks)
    (folder / "config.toml").write_text(f"name = 'x'\nmethod = {json.dumps(NASTY)}\nseed = 0\n")
    local(tmp_path, 0, tasks=tasks)
    text = section(make_page([tmp_path]).html)
    assert text
    assert "<img" not in text
