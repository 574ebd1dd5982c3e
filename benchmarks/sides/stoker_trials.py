"""Stoker: a sweep of so many trials, from words to values, fingerprint and label of each, duplicates merged.

The configuration has thirty declared leaves in five branches; four of them are swept. Composing is inside the time.
"""

from __future__ import annotations

import time
from operator import itemgetter
from typing import Any

import speak

from stoker.config.compose import compose
from stoker.config.overrides import read_overrides
from stoker.config.points import DistinctPoints
from stoker.config.sweep import points, size
from stoker.config.values import DeclaredLeaf, Schema


def main() -> None:
    asked = speak.read_arguments()
    words = ["a.p0=log:1e-5:1e-1:10", "b.p1=range:10", "c.p2=lin:0:1:10", f"seed=range:{asked.count // 1000}"]
    started = time.perf_counter()
    composed = compose([], read_overrides(words)[0], _schema(), {}, ".")
    if composed.sweep is None or size(composed.sweep) != asked.count:
        raise SystemExit("that is not the sweep that was asked for")
    distinct = DistinctPoints(composed.trials(points(composed.sweep)), itemgetter(2), label_of=lambda one: one[0].label)
    executed, longest = 0, 0
    for (point, _, _), _ in distinct:
        executed += 1
        longest = max(longest, len(point.label))
    seconds = time.perf_counter() - started
    if not longest or distinct.merged_count:
        raise SystemExit("trials have no names, or share them")
    speak.tell(asked, seconds=seconds, total=None, executed=executed)


def _schema() -> Schema:
    leaves = {f"{branch}.p{number}": 0.5 for branch in "abcde" for number in range(6)}
    return Schema(
        leaves={
            path: DeclaredLeaf(path=path, read=float, check=_number, says="float", default=default)
            for path, default in {**leaves, "seed": 0.0}.items()
        }
    )


def _number(value: Any) -> float:
    return float(value)


main()
