"""All clients in one pass, and on a GPU many rounds as one graph."""

from fedgradnorm.engines.joint.engine import JointEngine

__all__ = ["JointEngine"]
