"""Clients spread over the ranks of torch.distributed, for a cluster that trusts itself."""

from fedgradnorm._engines.distributed.distributed_engine import DistributedEngine
from fedgradnorm._engines.distributed.elsewhere import Elsewhere, own_part, with_others
from fedgradnorm._engines.distributed.ranks_journal import RanksJournal

__all__ = ["DistributedEngine", "Elsewhere", "RanksJournal", "own_part", "with_others"]
