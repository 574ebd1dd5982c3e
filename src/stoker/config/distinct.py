"""Points that mean the same are run once: the first stays, later ones are merged into it and told.

Only digests are remembered, so memory is that of the fingerprints, not of the points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from stoker.model.digests import Digest
from stoker.model.frozen import frozen

P = TypeVar("P")

_MOST_TOLD = 20
# 128 bits: no two of any number of points that can be walked share them by accident.
_KEPT_DIGITS = 32


@frozen
class Merged:
    """A point that was left out because an earlier one means the same. Numbers count all points, from 1."""

    number: int
    label: str
    same_as: int


class Distinct(Generic[P]):
    """An iterator over the points whose fingerprint was not seen before, each with its fingerprint."""

    def __init__(
        self, points: Iterable[P], fingerprint_of: Callable[[P], Digest], *, label_of: Callable[[P], str]
    ) -> None:
        self._points = enumerate(points, start=1)
        self._fingerprint_of = fingerprint_of
        self._label_of = label_of
        self._seen: dict[bytes, int] = {}
        self.merged_count = 0
        self.merged: list[Merged] = []
        """The first of those that were merged; `merged_count` has all."""

    def __iter__(self) -> Iterator[tuple[P, Digest]]:
        return self

    def __next__(self) -> tuple[P, Digest]:
        for number, point in self._points:
            fingerprint = self._fingerprint_of(point)
            first = self._seen.setdefault(bytes.fromhex(fingerprint[:_KEPT_DIGITS]), number)
            if first == number:
                return point, fingerprint
            self.merged_count += 1
            if len(self.merged) < _MOST_TOLD:
                self.merged.append(Merged(number=number, label=self._label_of(point), same_as=first))
        raise StopIteration
