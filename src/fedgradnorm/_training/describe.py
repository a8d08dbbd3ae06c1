"""What run.json says of a run: its settings, weighting, clients, network and versions."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedgradnorm._round.seeding import number
from fedgradnorm._runs.blueprint import blueprints
from fedgradnorm._runs.manifest import FORMAT, client_info, describe_weighting, now
from fedgradnorm._runs.spread import ALL_ROWS
from fedgradnorm._version import __version__
from fedgradnorm.weighting import Weighting

if TYPE_CHECKING:
    from fedgradnorm._training.trainer import Trainer

_SHORT = 12  # letters of a commit


def manifest_of(trainer: Trainer, network: nn.Module, weighting: Weighting) -> dict[str, Any]:
    """What is stored with every run, so that anyone can make it again."""
    argv0 = Path(sys.argv[0]).name  # where it lies on this machine is nobody's business
    engine, device = trainer.federation.engine, trainer.device
    trained = engine.exported_all() if engine.journal is None else {}
    heads = {name: one.head for name, one in trained.items()}
    layers = [(name, type(part).__qualname__) for name, part in network.named_modules()]
    shapes = [(name, tuple(p.shape)) for name, p in network.named_parameters()]
    return {
        "format": FORMAT,
        "finished": False,
        "settings": asdict(trainer.settings),
        "weighting": describe_weighting(weighting),
        "clients": _infos(trainer),
        "rounds": trainer.rounds,
        "norm_layer": list(trainer.federation.norm_layer),
        "network": {
            "class": type(network).__qualname__,
            "parameters": sum(p.numel() for p in network.parameters()),
            "structure": f"{number(layers, shapes):016x}",
        },
        "blueprints": blueprints(network, heads, trainer.clients.values()),
        "command": ["fedgradnorm" if argv0 == "__main__.py" else argv0, *sys.argv[1:]],
        "started": now(),
        "versions": {
            "fedgradnorm": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            **({"commit": commit} if (commit := git_commit(Path.cwd())) else {}),
        },
    }


def _infos(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """What run.json says of each client; many clients hold equal parts of it in common."""
    recorded, few = trainer.recording.recorded, len(trainer.clients) <= ALL_ROWS
    seen: dict[str, Any] = {}
    infos = {}
    for name, client in trainer.clients.items():
        info = client_info(client, baseline=recorded is None or few or name in recorded)
        infos[name] = info | {
            key: seen.setdefault(repr(value), value)
            for key, value in info.items()
            if isinstance(value, (dict, list))
        }
    return infos


def git_commit(place: Path) -> str:
    """The commit that the git repository around ``place`` is at, in short; empty without one."""
    command = ["git", "-C", str(place), "rev-parse", f"--short={_SHORT}", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):  # there is no git, or no repository
        return ""
    return done.stdout.strip()[:_SHORT]
