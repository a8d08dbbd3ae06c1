"""Beijing's air: pollutants and weather of each hour at 12 stations (Chen 2019, UCI, CC BY 4.0)."""

from fedgradnorm.data.beijing.clients import INPUTS, TASKS, clients
from fedgradnorm.data.beijing.files import FILES, STATIONS

__all__ = ["FILES", "INPUTS", "STATIONS", "TASKS", "clients"]
