"""What a release holds: the package and nothing else, and a wheel that trains where it is put."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fedgradnorm

ROOT = Path(__file__).parents[1]
NAME = f"fedgradnorm-{fedgradnorm.__version__}"
BESIDE = {
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"),
    *("constraints.txt", "pyproject.toml", ".gitignore", "PKG-INFO"),
}
LARGEST = 2_000_000  # bytes of an archive
COMMAND = "import sys; from fedgradnorm._cli import main; sys.argv[0] = 'fedgradnorm'; main()"

pytestmark = pytest.mark.slow


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


def test_the_wheel_holds_the_package_and_its_licence_alone(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - about == package_files()
    assert f"{NAME}.dist-info/licenses/LICENSE" in about
    assert {Path(name).suffix for name in names} >= {".py", ".toml", ".js", ".css", ".html"}
    assert wheel.stat().st_size < LARGEST


def test_the_source_archive_holds_what_builds_the_package_alone(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.removeprefix(f"{NAME}/") for name in opened.getnames()}
    assert names == {f"src/{name}" for name in package_files()} | BESIDE
    assert archive.stat().st_size < LARGEST


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
