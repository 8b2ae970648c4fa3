"""A cluster on one machine: network namespaces with shaped links, and an accelerator that takes time but no CPU."""

from .goodput import Goodput, measure
from .network import NeedsRoot, Testbed, TestbedError, clean_stale, needed_privileges

__all__ = ["Goodput", "NeedsRoot", "Testbed", "TestbedError", "clean_stale", "measure", "needed_privileges"]
