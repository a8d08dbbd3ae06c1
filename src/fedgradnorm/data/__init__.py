"""Where clients come from: public data sets, generated ones, your own arrays and files.

Each is imported when it is first used: reading faces needs other libraries than training does.
"""

from typing import TYPE_CHECKING

from fedgradnorm._lazy import on_demand
from fedgradnorm.data._source import Source, built_in

if TYPE_CHECKING:
    from fedgradnorm.data._arrays import client_from_arrays
    from fedgradnorm.data._files.archives import Arrays
    from fedgradnorm.data._files.encoding import Inputs
    from fedgradnorm.data._files.images import Images
    from fedgradnorm.data._files.splitting import Split
    from fedgradnorm.data._files.table import Table
    from fedgradnorm.data._files.target import Target
    from fedgradnorm.data._partition import partition_client
    from fedgradnorm.models._streamed import stream

__all__ = [
    "Arrays",
    "Images",
    "Inputs",
    "Source",
    "Split",
    "Table",
    "Target",
    "client_from_arrays",
    "partition_client",
    "stream",
    *built_in(),
]

_TABLE = ("Arrays", "Images", "Inputs", "Split", "Table", "Target")

__getattr__ = on_demand(
    __name__,
    {name: f"{__name__}.{name}" for name in built_in()}
    | {name: f"{__name__}._files.table.{name}" for name in _TABLE}
    | {
        "partition_client": f"{__name__}._partition.partition_client",
        "client_from_arrays": f"{__name__}._arrays.client_from_arrays",
        "stream": "fedgradnorm.models._streamed.stream",
    },
)
