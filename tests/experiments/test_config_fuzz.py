"""Whatever is in a config: parts of a run, or our own error in one line.

``FEDGRADNORM_FUZZ=10000`` makes it a campaign; ``FEDGRADNORM_FUZZ_FROM`` is the first seed.
"""

from __future__ import annotations

import collections
import os
import random
import resource
import signal
import warnings

import pytest
from typer.testing import CliRunner

import toys
from experiments.config_mutants import BASES, mutant, words
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._errors import ConfigError, FedGradNormError
from fedgradnorm.experiments._config.config_file import build, load_config

CASES = int(os.environ.get("FEDGRADNORM_FUZZ", "300"))
FIRST = int(os.environ.get("FEDGRADNORM_FUZZ_FROM", "0"))
SECONDS, MEGABYTES = 120, 500


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own, to which nothing may be added; a case that hangs is an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDGRADNORM_DATA", raising=False)
    before = signal.signal(signal.SIGALRM, _too_long)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _too_long(*_):
    raise AssertionError(f"not done in {SECONDS} s")


def seen(folder):
    """Every folder, and every file with its size and time.

    A folder's own time is no trace: a run folder is claimed, and removed, inside another one.
    """
    return {
        p: None if p.is_dir() else (p.lstat().st_size, p.lstat().st_mtime_ns)
        for p in folder.rglob("*")
    }


def peak():
    """Megabytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one_line(error):
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) < 2000


def outcome(path, said, clients):
    """Whether the config is built or refused; anything else is the case's failure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            build(load_config(path, said), clients)
        return "built"
    except FedGradNormError as error:
        one_line(error)
        return "refused"


def test_any_config_is_built_or_refused_in_one_line(here):
    small = small_config(here).read_text()
    clients, path = toys.clients(), here / "mutant.toml"
    build(load_config(here / "small.toml"))
    counts, failures, began = collections.Counter(), [], peak()
    for seed in range(FIRST, FIRST + CASES):
        rng = random.Random(seed)
        path.write_bytes(mutant(rng.choice((small, small, *BASES)), rng))
        before, said = seen(here), words(rng)
        signal.alarm(SECONDS)
        try:
            counts[outcome(path, said, clients)] += 1
            assert seen(here) == before, "left something behind"
        except Exception as error:
            failures.append(f"seed {seed}, words {said}: {error!r}")
    print(f"\n{dict(counts)}, {len(failures)} failures, {peak() - began:.0f} MB more at the peak")
    assert not failures
    assert min(counts["built"], counts["refused"]) > CASES // 20
    assert peak() - began < MEGABYTES


def is_quick(config, here):
    """Whether a run that is accepted is over soon, and stays in this folder."""
    how = config.settings
    work = how.total_rounds([30]) * (how.head_steps + how.shared_steps) + how.final_head_steps
    work += how.personalize["steps"] if how.personalize else 0
    inside = (here / config.output.folder).resolve().is_relative_to(here)
    return work <= 200 and inside and config.output.tracking == "none"


def ran(path, said, here):
    """The exit code of ``run``: 2 is one line and nothing else; 0 and 1 are runs."""
    try:
        if not is_quick(load_config(path, said), here):
            return "not quick"
    except ConfigError:
        pass
    before = seen(here)
    result = CliRunner().invoke(app, ["run", str(path), *said])
    assert result.exit_code in (0, 1, 2), repr(result.exception)
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    if result.exit_code == 2:
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        assert seen(here) == before, f"left something behind: {line}"
    return result.exit_code


def test_any_config_is_run_or_refused_without_a_trace(here):
    small = small_config(here).read_text()
    path = here / "mutant.toml"
    counts, failures, began = collections.Counter(), [], peak()
    for seed in range(FIRST, FIRST + CASES // 10):
        rng = random.Random(-seed - 1)
        path.write_bytes(mutant(small, rng))
        said = words(rng)
        signal.alarm(SECONDS)
        try:
            counts[ran(path, said, here)] += 1
        except Exception as error:
            failures.append(f"seed {seed}, words {said}: {error!r}")
    print(f"\n{dict(counts)}, {len(failures)} failures, {peak() - began:.0f} MB more at the peak")
    assert not failures
    assert peak() - began < MEGABYTES
