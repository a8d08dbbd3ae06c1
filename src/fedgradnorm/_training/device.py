"""The device that a run is trained on."""

from __future__ import annotations

import torch

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import require_gpu


def usable_device(settings: Settings) -> torch.device:
    """Where a run is trained; a ConfigError unless device and precision can be used here."""
    device = _device(settings.device)
    if settings.precision == "bf16":
        require_gpu(device)
    return device


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device
