"""What the engines that run clients together share: joined data, grouped heads, plans."""

from fedgradnorm.engines.batched.engine import BatchedEngine
from fedgradnorm.engines.batched.plan import Part, Plan

__all__ = ["BatchedEngine", "Part", "Plan"]
