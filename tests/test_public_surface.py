"""The public interface: what users may import, and that nothing else looks public."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import fedgradnorm
from fedgradnorm.data._source import built_in

ROOT, SOURCE = Path(__file__).parents[1], Path(fedgradnorm.__file__).parent

SURFACE = {
    "fedgradnorm": """Balancer Benefit Callback Checkpoints Client ClientPrivacy Column
        Compute ConfigError DataError EarlyStopping Equal Evaluation FedGradNormError
        GradNorm History Interrupted KeepBest Local Method ModelError Needs Personalization Privacy
        Run RunFolderError Server Sharing ShowProgress Signals Static Task TrainingError Weighting
        __version__ benefit binary classification data experiments load methods models multilabel
        ordinal regression resume sequences tasks train weighting""",
    "fedgradnorm.data": f"""Arrays Images Inputs Source Split Table Target client_from_arrays
        partition_client stream {" ".join(built_in())}""",
    **{f"fedgradnorm.data.{name}": "clients" for name in built_in()},
    "fedgradnorm.experiments": "Config load_config open_sink run",
    "fedgradnorm.models": "network1 network2",
    "fedgradnorm.tasks": "Kind metric of_kind",
    "fedgradnorm.weighting": "Equal GradNorm Needs Signals Static Weighting",
}


@pytest.mark.parametrize("name", SURFACE)
def test_the_public_names_are_these(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(SURFACE[name].split())
    for public in module.__all__:
        assert getattr(module, public) is not None


def test_the_public_names_can_be_remembered() -> None:
    names = {name for names in SURFACE.values() for name in names.split()}
    assert len(names - set(built_in())) <= 71  # besides a module for each data set


def test_every_other_module_is_private_by_name() -> None:
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        dotted = ".".join(("fedgradnorm", *(part for part in parts if part != "__init__")))
        assert dotted in SURFACE or any(part.startswith("_") for part in parts), dotted


def taught() -> list[tuple[str, str]]:
    """Every import of ours in the documents and examples."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    line = re.compile(r"^\s*((?:from|import) fedgradnorm.*)$", re.MULTILINE)
    return [(p.name, found) for p in files for found in line.findall(p.read_text("utf-8"))]


@pytest.mark.parametrize(("page", "statement"), taught())
def test_documents_import_public_names_alone(page: str, statement: str) -> None:
    (node,) = ast.parse(statement).body
    if isinstance(node, ast.ImportFrom):
        assert {a.name for a in node.names} <= set(SURFACE[str(node.module)].split()), page
    else:
        assert isinstance(node, ast.Import)
        assert [a.name for a in node.names] == ["fedgradnorm"], page
