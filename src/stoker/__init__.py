"""Stoker keeps every machine you own busy training."""

__version__ = "0.1.0"
