"""Runs from config files: read one, change it, train it, and tell a tracker how it goes."""

from typing import TYPE_CHECKING

from fedgradnorm._lazy import on_demand

if TYPE_CHECKING:
    from fedgradnorm._training.trackers import open_sink
    from fedgradnorm.experiments._config.config_file import Config, load_config
    from fedgradnorm.experiments._execute import execute as run

__all__ = ["Config", "load_config", "open_sink", "run"]

__getattr__ = on_demand(
    __name__,
    {
        "Config": f"{__name__}._config.config_file.Config",
        "load_config": f"{__name__}._config.config_file.load_config",
        "run": f"{__name__}._execute.execute",
        "open_sink": "fedgradnorm._training.trackers.open_sink",
    },
)
