"""How far tests look: the same examples every time in `make test`, new ones in `make soak`."""

from __future__ import annotations

from hypothesis import settings

# What random examples find is for whoever went looking, not for whoever changes something else that day.
settings.register_profile("steady", derandomize=True)
settings.register_profile("seeking")
settings.load_profile("steady")
