"""What a release holds: the package and nothing else, and a wheel that trains where it is put."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fedgradnorm

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
NAME = f"fedgradnorm-{fedgradnorm.__version__}"
BESIDE = {
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"),
    *("constraints.txt", "pyproject.toml", ".gitignore", "PKG-INFO"),
}
LARGEST = 1_250_000  # bytes of an archive; 270,000 of them are the face boxes
COMMAND = "import sys; from fedgradnorm._cli import main; sys.argv[0] = 'fedgradnorm'; main()"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, made as `make dist` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def package_files() -> set[str]:
    """The package's files as the repository has them."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "src/fedgradnorm"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    return {name.removeprefix("src/") for name in listed if name and (ROOT / name).exists()}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_licence_alone(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - about == package_files()
    assert f"{NAME}.dist-info/licenses/LICENSE" in about
    assert "fedgradnorm/py.typed" in names
    assert not {name.split("/")[0] for name in names} & {"tests", "studies", "benchmarks", "docs"}
    assert not any("test" in Path(name).stem.split("_") for name in names)
    assert {Path(name).suffix for name in names} >= {".py", ".toml", ".js", ".css", ".html"}
    assert wheel.stat().st_size < LARGEST


@pytest.mark.slow
def test_the_source_archive_holds_what_builds_the_package_alone(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.removeprefix(f"{NAME}/") for name in opened.getnames()}
    assert names == {f"src/{name}" for name in package_files()} | BESIDE
    assert archive.stat().st_size < LARGEST


@pytest.mark.slow
def test_the_wheel_trains_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """Dependencies are lent by the tests' environment, so that nothing is downloaded."""
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    (place,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(place)
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (place / "lent.pth").write_text("\n".join(lent))
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(code: str, *words: str) -> str:
        command = [python, "-c", code, *words]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("import fedgradnorm; print(fedgradnorm.__file__, fedgradnorm.__version__)")
    assert where.split() == [str(place / "fedgradnorm/__init__.py"), fedgradnorm.__version__]
    small = ["data.samples=600", "rounds=2", "output.folder=out"]
    run(COMMAND, "run", str(ROOT / "configs/radcom.toml"), *small)
    assert list((tmp_path / "out").rglob("run.json"))


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_pinned_actions_and_may_do_little(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    actions = re.findall(r"uses: (.*)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    granted = set(re.findall(r"^ +([\w-]+): (?:read|write)\b", text, flags=re.M))
    assert granted == {"contents"} | ({"id-token"} if path.stem == "release" else set())
    assert "write" not in text.replace("id-token: write", "")
    assert "secrets." not in text


def test_workflows_cover_the_promised_systems_and_versions() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert "os: [ubuntu-latest, macos-latest, windows-latest]" in text
    assert "python: [" + ", ".join(f'"{version}"' for version in promised) + "]" in text
    assert f'requires-python = ">={promised[0]}"' in PYPROJECT


def test_the_linters_of_workflows_find_nothing() -> None:
    """The commands of ``make workflows``."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = makefile.split("\nworkflows:")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == 5
    for line in lines:
        tool, *words = line.strip().removeprefix("$(BIN)/").split()
        here = shutil.which(
            tool, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        if here is None:
            pytest.skip(f"{tool} is not installed: pip install 'fedgradnorm[dev]'")
        files = [str(path) for word in words for path in sorted(ROOT.glob(word)) if "." in word]
        options = [word for word in words if not list(ROOT.glob(word))]
        done = subprocess.run([here, *options, *files], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
