"""The roof: the only place that reads the environment and builds and joins everything."""

from stoker.assembly.house import Assembly

__all__ = ["Assembly"]
