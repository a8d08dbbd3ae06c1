"""Beijing's air: pollutants and weather of each hour at 12 stations (Chen 2019, UCI, CC BY 4.0)."""

from fedgradnorm.data._source import Source
from fedgradnorm.data.beijing._stations import clients

__all__ = ["clients"]

Source("beijing", clients, "air and weather: 12 stations", ("path", "cache")).register()
