"""The frozen matrices of a base that may have adapters: their names, and the words that mean them.

Importing this module imports no library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from stoker.core.frozen import frozen
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.training_setup import ALL_LINEAR, ATTENTION, MLP

GROUPS = (ALL_LINEAR, ATTENTION, MLP)
"""Words that mean matrices of any base."""


@frozen
class AdaptedMatrix:
    """A matrix that may have an adapter."""

    name: str
    """The full name of its module, as in transformers and PEFT."""
    inputs: int
    outputs: int


@frozen
class MatrixGroup:
    """Matrices with one input, whose adapters are computed together."""

    block: int
    name: str
    matrices: tuple[AdaptedMatrix, ...]


class AdaptableShape(Protocol):
    """What adapters and their trainings need to know of a base."""

    @property
    def model(self) -> ModelShape:
        """Its sizes."""

    @property
    def positions(self) -> int:
        """The maximum sequence length."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""

    def groups(self) -> Iterable[MatrixGroup]:
        """Return all matrices that may have adapters, in their order."""


def adaptable(shape: AdaptableShape) -> Iterator[AdaptedMatrix]:
    """Return all matrices of a base that may have adapters, in their order."""
    return (matrix for group in shape.groups() for matrix in group.matrices)


def is_target(name: str, targets: Collection[str]) -> bool:
    """Return True if one of the targets is the name of a module, or its end after a dot: PEFT's rule."""
    return any(end in targets for end in _ends(name))


def _ends(name: str) -> Iterator[str]:
    """Return a name without its first parts, the shortest first, and the whole one last."""
    parts = name.split(".")
    return (".".join(parts[first:]) for first in reversed(range(len(parts))))


def meant_by(word: str, names: Iterable[str]) -> list[str]:
    """Return the modules that a word means: a group, a name or its end, or a pattern."""
    if word == ALL_LINEAR:
        return list(names)
    if word in {ATTENTION, MLP}:
        return [name for name in names if _is_of_attention(name) == (word == ATTENTION)]
    if any(letter in word for letter in "*?["):
        return [name for name in names if fnmatchcase(name, word) or fnmatchcase(name, f"*.{word}")]
    return [name for name in names if is_target(name, (word,))]


def _is_of_attention(name: str) -> bool:
    return any(sign in part for part in name.split(".") for sign in ("attn", "attention"))


def unknown_words(words: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the words that mean no matrix."""
    return [word for word in words if not meant_by(word, names)]


def short_names(chosen: Collection[str], names: Sequence[str], others: Iterable[str] = ()) -> tuple[str, ...]:
    """Return targets that mean exactly the chosen ones of some modules, each as short as possible, in their order.

    They mean none of the others.
    """
    everywhere = Counter(end for name in (*names, *others) for end in _ends(name))
    wanted = set(chosen)
    inside = Counter(end for name in names if name in wanted for end in _ends(name))
    # A name that begins with a number says less than one with the list before it.
    ends = (
        next(end for end in _ends(name) if end == name or (inside[end] == everywhere[end] and not end[0].isdigit()))
        for name in names
        if name in wanted
    )
    return tuple(dict.fromkeys(ends))


def settled_targets(words: Iterable[str], names: Sequence[str], others: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the targets that words mean among modules, as PEFT names them; none of them means another module."""
    return short_names({name for word in words for name in meant_by(word, names)}, names, others)
