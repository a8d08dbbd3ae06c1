"""The methods by name, in Python and in config files alike: one entry each.

A method of this package is an entry in one of these modules, which import nothing else:
``paper`` (FedGradNorm and the paper's baselines), ``losses``, ``products`` (of gradients),
``gradients`` and ``personal``.
"""

from fedgradnorm._methods.method import DEFAULT, LOCAL, METHODS, Method, find_method, methods

__all__ = ["DEFAULT", "LOCAL", "METHODS", "Method", "find_method", "methods"]
