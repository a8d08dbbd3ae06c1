"""What the documentation shows is run: every Python block and every command."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

import page_blocks
from data.test_radcom_file import original, write
from fedgradnorm.experiments import load_config
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._named_metrics import METRICS

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
IN_ORDER = [
    f"docs/{name}.md"
    for name in (
        "balancer",
        "start", "choose", "datasets", "experiments", "methods", "networks",
        "privacy", "results/provenance", "tasks", "training", "benefit", "your-data",
    )
]  # fmt: skip
"""Pages whose blocks, of whatever language, build on each other."""
REAL = ["docs/reproduce.md"]
"""Pages whose blocks need the files that they describe."""
ELSEWHERE = {
    "README.md": ("test_docs.py",),
    "CONTRIBUTING.md": ("test_contributing.py",),
    "docs/deploy.md": ("test_deploy_page.py",),
    "docs/differential-privacy.md": ("privacy/test_page.py",),
    "docs/theory.md": ("studies/test_theory_command.py",),
    "docs/cookbook.md": ("test_cookbook.py",),
    "docs/tutorials/faces.md": ("site/conftest.py",),
    "docs/tutorials/federation.md": ("site/conftest.py",),
    "docs/tutorials/csv-files.md": ("site/conftest.py",),
}
FEW = "data.samples=3000 epochs=1"
SHORTER = {
    "docs/datasets.md": {"20_000": "2_000", "10_000": "1_000"},
    "docs/experiments.md": {
        "seeds = 5": "seeds = 1",
        "[0.5, 0.9, 1.5]": "[0.5, 0.9]",
        "--jobs 4": "--jobs 1",
        "--seeds 3": "--seeds 1 epochs=5",
    },
    "docs/privacy.md": {"rounds=20": "rounds=2 data.samples=3000"},
    "docs/training.md": {"pumps.toml --seeds 3": "pumps.toml --seeds 1 epochs=5"},
    "docs/reproduce.md": {
        "reproduce table2": "reproduce table2 --seeds 1 rounds=2 evaluation.every=0",
        "reproduce fig2": "reproduce fig2 --seeds 1 rounds=2 evaluation.every=0",
        "epochs=55": "--seeds 1 rounds=2 data.samples=600 data.cache=false",
    },
}  # fmt: skip
"""All that is changed in what a page says: fewer rows, rounds and seeds, for the same way to go."""
FILES = ("school.mat", "LandmineData.mat", "PRSA_Data_20130301-20170228.zip", "MTFL.zip")
OF_REAL_DATA = (
    "import beijing", "data show school", "data show beijing", "run landmine",
)  # fmt: skip
"""In commands and programs that need such files, on pages that mostly do not."""
NOTICE = "far from the size of 1"
"""Said of unscaled targets, and never of our own examples."""
NOT_HERE = {
    "make test": "is the command this test is run by",
    "pip install": "is what `make test` sets up with",
    "uv pip install": "is the same with uv",
    "fedgradnorm watch": "ends with Ctrl-C alone: report/test_watch.py runs it",
    "export FEDGRADNORM_DATA": "is where the files are on the reader's machine",
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


@pytest.mark.slow
def test_the_readmes_program_runs(tmp_path):
    program = "\n".join(blocks("README.md", "python"))
    assert program
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert NOTICE not in done.stderr


@pytest.mark.slow
def test_the_readmes_commands_run(tmp_path):
    """In order, in a folder that has the repository's configs: `make`, then ours in one process."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    wanted = [c for c in commands("README.md") if not any(c.startswith(n) for n in NOT_HERE)]
    made = [shlex.split(c) for c in wanted if c.startswith("make ")]
    ours = [shlex.split(c) for c in wanted if not c.startswith("make ")]
    assert made
    assert ours
    program = "\n".join(["import page_blocks", *(f"page_blocks.call({words!r})" for words in ours)])
    for words in (
        *(["make", "-C", str(ROOT), *rest, f"ARGS=--out {tmp_path} {FEW}"] for _, *rest in made),
        [sys.executable, "-c", program],
    ):
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=600,
            env=environment(tmp_path / "cache"),
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        assert NOTICE not in done.stdout + done.stderr, words


@pytest.mark.slow
@pytest.mark.parametrize("page", IN_ORDER)
def test_blocks_run_from_the_first_to_the_last(page, tmp_path):
    run_page(page, tmp_path, () if not missing() else OF_REAL_DATA)


def test_the_benefit_on_its_page_is_that_of_trainings_that_were_not_cut_short():
    """An epoch of its small clients is one round: patience once ended both after 42 of 200."""
    page = "docs/benefit.md"
    names = {}
    exec(blocks(page, "python")[0], names)  # our own page
    found = names["found"]
    for run in (found.joined, found.alone):
        assert not run.manifest["stopped_early"]
    (mean,) = found.means
    assert set(found.table.verdict) == {"gains"}
    assert f"falls by {mean.gain:.0f} % on average" in (ROOT / page).read_text()


@pytest.mark.slow
@pytest.mark.real_data
def test_pages_of_real_data_run(tmp_path):
    if missing():
        pytest.skip(f"needs {', '.join(missing())} in the folder named by FEDGRADNORM_DATA")
    for page in REAL:
        run_page(page, tmp_path)


def missing():
    folder = os.environ.get("FEDGRADNORM_DATA")
    return [name for name in FILES if not folder or not (Path(folder) / name).exists()]


def environment(cache):
    """What a reader has who works in this checkout."""
    return {
        **os.environ,
        "FEDGRADNORM_CACHE": str(cache),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}",
        "BROWSER": "true",  # what opens a page
    }


def run_page(page, folder, skipped=()):
    """In one process, which loads PyTorch once, in a folder with configs."""
    here = folder / Path(page).stem
    (here / "docs").mkdir(parents=True)
    for name in ("configs", "docs/results", "benchmarks"):
        (here / name).symlink_to(ROOT / name)
    if page == "docs/datasets.md":
        write(here / "RadComDynamic.hdf5", original(per_cell=2))
    program = page_blocks.program(page, SHORTER.get(page, {}), (*NOT_HERE, *skipped))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=here, capture_output=True, text=True, timeout=600, env=environment(folder / "cache"),
    )  # fmt: skip
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"
    assert NOTICE not in done.stdout + done.stderr, page


def test_no_block_is_left_out():
    """Every block says what it is in, and every page has a test that runs its blocks."""
    for page in page_blocks.PAGES:
        languages = {language for language, _ in page_blocks.fences(page)} - {"text"}
        if languages:
            assert "" not in languages, f"{page}: a block without a language"
            assert page in {*IN_ORDER, *REAL, *ELSEWHERE}, f"{page}: nobody runs its blocks"
            for name in ELSEWHERE.get(page, ()):
                assert (ROOT / "tests" / name).exists(), name


def test_readme_opens_with_a_picture_and_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert text.index("<picture>") < text.index("make demo") < text.index("make test")
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert len(pictures) == 2
    assert all((ROOT / link).exists() for link in [*pictures, *links])


def test_the_overview_is_drawn_by_its_script():
    names = runpy.run_path(str(ROOT / "tools" / "diagram.py"))
    for shape, draw in names["SHAPES"].items():
        for theme in names["THEMES"]:
            path = ROOT / "docs" / "images" / f"{shape}-{theme}.svg"
            assert path.read_text(encoding="utf-8") == draw(theme)


def test_the_recording_of_the_demo_shows_its_methods_and_ends_with_its_finding():
    text = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    assert "docs/images/demo.svg" in (ROOT / "README.md").read_text()
    assert len(text) < 100_000
    picture = ElementTree.fromstring(text)
    assert float(picture.get("font-size")) * 0.75 >= 8  # points, at the width it is shown
    assert set(re.findall(r"https?://[^\s\"<]+", text)) == {"http://www.w3.org/2000/svg"}
    end = " ".join(picture[-1].itertext())
    assert picture[-1].get("class") == "end"
    table, finding = end.split("One seed cannot tell methods apart")
    methods = load_config("demo").compare.methods
    assert set(methods) <= set(table.split())
    assert {methods[0], methods[-1]} <= set(finding.split())


def test_the_start_page_names_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = table_after("docs/start.md", "| extra | for |")
    named = {re.findall(r"\[(\w+)\]", row[0])[0] for row in rows}
    assert named == set(extras["optional-dependencies"]) - {"dev", "rivals"}


def table_after(page: str, header: str) -> list[list[str]]:
    """The rows of the table with this header."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = text[text.index(header) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_the_table_of_metrics_has_every_name():
    header = "| task | always there | by name |"
    (one, _, numbers) = (
        set(re.findall(r"`(\w+)`", row[2])) for row in table_after("docs/tasks.md", header)
    )
    known = {
        kind: {name for name, metric in METRICS.items() if metric.fits(form)}
        for kind, form in KINDS.items()
    }
    assert known["classification"] == known["binary"] == known["ordinal"] == one
    assert known["multilabel"] == one
    assert known["regression"] == numbers
