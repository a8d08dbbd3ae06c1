"""All clients in one pass, and on a GPU many rounds as one graph."""

from fedgradnorm._engines.joint.joint_engine import JointEngine

__all__ = ["JointEngine"]
