"""Beijing's air: pollutants and weather of each hour at 12 stations (Chen 2019, UCI, CC BY 4.0)."""

from fedgradnorm.data._source import Source
from fedgradnorm.data.beijing._station_files import FILES, STATIONS
from fedgradnorm.data.beijing._stations import INPUTS, TASKS, clients

__all__ = ["FILES", "INPUTS", "STATIONS", "TASKS", "clients"]

Source("beijing", clients, "air and weather: 12 stations", ("path", "cache")).register()
