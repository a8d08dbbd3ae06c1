"""The fenced blocks of the documentation, and a page as one program of all its blocks."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

from fedgradnorm._cli import app
from fedgradnorm.experiments import load_config

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "tutorials").glob("*.md"),
        *(ROOT / "docs" / "results").glob("*.md"),
    ]
)
"""Those that people write; the reference and the tables of results are made by programs."""
DIRECTIVE = re.compile(r"\{(include|toctree|glossary|image)\}")


def fences(page: str) -> list[tuple[str, str]]:
    """Language and text of every block of a page; parts of the site's machinery are none."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(.*)\n((?:.*\n)*?)```$", text, flags=re.M)
    return [(first(info), body) for info, body in found if not DIRECTIVE.match(info)]


def first(info: str) -> str:
    """The language: ``{code-cell} python`` is a notebook's."""
    return (info.split() or [""])[0]


def program(page: str, shorter: dict[str, str], skipped: Iterable[str]) -> str:
    """All blocks of a page in their order; ``shorter`` is all that is changed in them.

    Commands and programs with a text of ``skipped`` in them are left out.
    """
    lines = ["import page_blocks"]
    found = [(language, body) for language, body in fences(page) if language != "text"]
    for long in shorter:
        assert any(long in body for _, body in found), f"{page} says {long} nowhere"
    for language, body in found:
        for long, short in shorter.items():
            body = body.replace(long, short)
        if language == "python" and (named := re.match(r"# (\w+\.py)\n", body)):
            lines.append(f"page_blocks.Path({named[1]!r}).write_text({body!r})")
        elif language == "python":
            lines += [] if any(part in body for part in skipped) else [body]
        elif language == "toml":
            lines.append(f"page_blocks.take({body!r})")
        else:
            assert language in ("bash", "sh"), f"{page}: a block in {language or 'no language'}"
            said = body.replace("\\\n", " ").splitlines()
            kept = [line for line in said if not any(part in line for part in skipped)]
            commands = [shlex.split(line, comments=True) for line in kept]
            lines += [f"page_blocks.call({words!r})" for words in commands if words]
    return "\n".join(lines)


def call(words: list[str]) -> None:
    """A command, in this process where it is ours; it must end well."""
    if words[0] == "fedgradnorm":
        assert not app(words[1:], standalone_mode=False), words
    else:
        assert words[0] in ("tar", "python"), words
        subprocess.run(words, check=True)


def take(text: str) -> None:
    """A config: ``# NAME`` in its first line is a file, which may grow; else a part, to be read.

    What a page leaves to the reader, "after [data] and [network]", is a small one.
    """
    named = re.match(r"# (\w+\.toml)(, after \[)?", text)
    if named:
        path = Path(named[1])
        before = path.read_text() if path.exists() else SMALL if named[2] else ""
        path.write_text(f"{before}\n{text}")
        load_config(path)
        return
    tables = tomllib.loads(text)
    own_clients = "clients" in tables.get("data", {})
    start = OF_FILES if own_clients else SMALL
    Path("part.toml").write_text(f"{start}\n{text}")
    load_config(Path("part.toml"))


NETWORK = """
[network]
name = "mlp"
widths = [8]
"""
OF_FILES = f"""{NETWORK}
[data]
source = "files"
"""
SMALL = f"""rounds = 2
{NETWORK}
[data]
source = "radcom"
samples = 400
"""
