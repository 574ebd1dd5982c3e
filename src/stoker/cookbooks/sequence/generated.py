"""The series that are made, not read, by the names a user types: something to begin with when there is no file."""

from __future__ import annotations

from typing import Final, Literal, get_args

GeneratedName = Literal["waves", "regimes"]

GENERATED: Final[tuple[str, ...]] = get_args(GeneratedName)
