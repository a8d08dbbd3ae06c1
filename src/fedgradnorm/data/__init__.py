"""Where clients come from: public data sets, generated ones, your own arrays and files.

Each is imported when it is first used: reading faces needs other libraries than training does.
"""

from typing import TYPE_CHECKING

from fedgradnorm._lazy import on_demand
from fedgradnorm.data._source import Source, built_in

if TYPE_CHECKING:
    from fedgradnorm.data._arrays import client_from_arrays
    from fedgradnorm.data._files.client_files import client_from_files
    from fedgradnorm.data._partition.by_label import Dirichlet, Pathological
    from fedgradnorm.data._partition.partitioner_base import Partitioner
    from fedgradnorm.data._partition.partitioners import Iid, Linear, Size, partition_client
    from fedgradnorm.models._streamed.given import stream

__all__ = [
    "Dirichlet",
    "Iid",
    "Linear",
    "Partitioner",
    "Pathological",
    "Size",
    "Source",
    "client_from_arrays",
    "client_from_files",
    "partition_client",
    "stream",
    *built_in(),
]

__getattr__ = on_demand(
    __name__,
    {name: f"{__name__}.{name}" for name in built_in()}
    | {
        "client_from_arrays": f"{__name__}._arrays.client_from_arrays",
        "client_from_files": f"{__name__}._files.client_files.client_from_files",
        "Dirichlet": f"{__name__}._partition.by_label.Dirichlet",
        "Pathological": f"{__name__}._partition.by_label.Pathological",
        "Partitioner": f"{__name__}._partition.partitioner_base.Partitioner",
        "Iid": f"{__name__}._partition.partitioners.Iid",
        "Linear": f"{__name__}._partition.partitioners.Linear",
        "Size": f"{__name__}._partition.partitioners.Size",
        "partition_client": f"{__name__}._partition.partitioners.partition_client",
        "stream": "fedgradnorm.models._streamed.given.stream",
    },
)
