"""What the engines that run clients together share: joined data, grouped heads, plans."""

from fedgradnorm._engines.batched.assembly import Assembly
from fedgradnorm._engines.batched.batched_engine import BatchedEngine
from fedgradnorm._engines.batched.plan import Part, Plan

__all__ = ["Assembly", "BatchedEngine", "Part", "Plan"]
