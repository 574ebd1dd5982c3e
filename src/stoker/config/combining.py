"""A file's sweep and a command line's: the words win, path by path, and whatever is new multiplies.

An axis of the command line takes the place of the file's axis of that path, wherever it stands; beside a zipped axis
it has to have the same length. A single value takes the path out of the sweep, and so does deleting it. Axes that the
file does not have come last, so they are fastest, in the order of the words. What the file leaves out and samples is
taken of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.config.axis import Axis, Choice, Listed
from stoker.config.caret import fault_at
from stoker.config.sweep import Concat, Exclude, Product, Sample, Sweep, Zip, paths_of, size
from stoker.config.sweep_file import unequal_lengths
from stoker.model.errors import ConfigFaults
from stoker.model.faults import Fault

Words = Mapping[str, Axis | Choice | None]
"""What a command line says of a path, the last word of each: an axis, a value, or nothing if it deletes it."""


def combined(sweep: Sweep | None, words: Words) -> tuple[Sweep | None, list[Fault]]:
    """Give the sweep of a file and a command line together, or nothing if no path is swept, and every fault."""
    faults: list[Fault] = []
    made = _with_all(sweep if sweep is not None else Product(()), words, faults)
    if made is None or not paths_of(made):
        return None, faults
    try:
        if not faults and size(made) == 0:
            faults.append(Fault("sweep.exclude", "every point is left out", "exclude less, or give other values"))
    except ConfigFaults as error:
        faults += error.faults
    return made, faults


def _with_all(sweep: Sweep, words: Words, faults: list[Fault]) -> Sweep | None:
    """Put words in their places in a sweep, and multiply it with the axes that have none there."""
    match sweep:
        case Sample():
            inner = _with_all(sweep.of, words, faults)
            return Sample(of=inner, count=sweep.count, seed=sweep.seed) if inner is not None else None
        case Exclude():
            inner = _with_all(sweep.of, words, faults)
            # A single value stays as an axis if a condition asks for it.
            asked = dict.fromkeys(path for condition in sweep.conditions for path in condition)
            single = [
                Axis(path=path, choices=Listed((word,)))
                for path in asked
                if isinstance(word := words.get(path), Choice)
            ]
            whole = Product((*_parts_of(inner), *single)) if single else inner
            return Exclude(of=whole, conditions=sweep.conditions) if whole is not None else None
    here = set(paths_of(sweep))
    replaced = _replaced(sweep, words, faults)
    new = [word for path, word in words.items() if isinstance(word, Axis) and path not in here]
    if not new:
        return replaced
    return Product((*_parts_of(replaced), *new))


def _replaced(sweep: Sweep, words: Words, faults: list[Fault]) -> Sweep | None:
    """Put words in their places; nothing if no axis is left."""
    match sweep:
        case Axis():
            word = words.get(sweep.path, sweep)
            return word if isinstance(word, Axis) else None
        case Zip():
            return _replaced_zip(sweep, words, faults)
        case Concat():
            here = set(paths_of(sweep))
            own = {path: word for path, word in words.items() if path in here}
            return Concat(tuple(_with_all(part, own, faults) or Product(()) for part in sweep.parts))
        case Product():
            parts = [_replaced(part, words, faults) for part in sweep.parts]
            kept = tuple(part for part in parts if part is not None)
            return Product(kept) if kept else None
        case Exclude() | Sample():
            return _with_all(sweep, words, faults)


def _replaced_zip(sweep: Zip, words: Words, faults: list[Fault]) -> Sweep | None:
    found = [words.get(axis.path, axis) for axis in sweep.parts]
    axes = tuple(axis for axis in found if isinstance(axis, Axis))
    if axes and (unequal := unequal_lengths(axes)):
        given = next(axis for axis in axes if axis.path in words)
        hint = "these are zipped in the file: give as many values as the others have, or all of them"
        if given.origin is not None:
            faults.append(fault_at(given.origin, unequal, hint=hint))
        else:
            faults.append(Fault("sweep.zip", unequal, hint))
        return sweep
    return Zip(axes) if axes else None


def _parts_of(sweep: Sweep | None) -> tuple[Sweep, ...]:
    if sweep is None:
        return ()
    return sweep.parts if isinstance(sweep, Product) else (sweep,)
