"""What a configuration may hold: the declared leaves, handed in by whoever owns them.

A recipe's arguments become leaves by their dotted path (`lr`, `model.depth`). Reading text and checking values are the
declaration's business; this room only calls them and says where a refused value stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stoker.core.frozen import frozen


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
"""The default of a leaf that has none, and so has to be given."""


@frozen
class DeclaredLeaf:
    """One leaf that may be set."""

    path: str
    """Dotted."""
    read: Callable[[str], Any]
    """Turns what a person typed into a value; `ValueError` says what would be right."""
    check: Callable[[Any], Any]
    """Gives the normal form of a value from a file; `ValueError` says what is wrong with it."""
    says: str
    """The type, named for people."""
    default: Any = NOTHING
    is_runtime: bool = False
    """Not part of what is wanted: threads, verbosity."""
    is_list: bool = False
    """One value of it is a list."""

    @property
    def is_required(self) -> bool:
        return self.default is NOTHING


@frozen
class Schema:
    """Everything that may be set."""

    leaves: Mapping[str, DeclaredLeaf]
    is_open: bool = False
    """Keys that nobody declared are free: the parameters of somebody's program."""
