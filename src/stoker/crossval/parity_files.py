"""The first steps of a comparison: are both models whole, and do they have the same weights?

Tensors of the same type must have the same bytes. Of other types, the difference of all values, and that of each single
value, may be as large as rounding to the coarser one makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stoker.core.errors import BadInput, Damaged
from stoker.core.frozen import frozen
from stoker.core.text import counted, some_of
from stoker.crossval.ladder import Divergence, Outcome, Step, failed, passed, skipped
from stoker.crossval.model_files import ModelFiles, compare_settings, coverage_faults, open_model
from stoker.crossval.tensor_files import TensorComparison, compare_models, find_not_finite
from stoker.crossval.trace import TraceHeader


@frozen
class Rounding:
    """The largest differences that rounding to a type makes."""

    nmse: float
    """Of all values: squares of the differences, divided by those of the values."""
    step: float
    """Of one value, divided by the largest one of its tensor."""


ROUNDING = {
    "F16": Rounding(nmse=2e-7, step=6e-4),
    "BF16": Rounding(nmse=1e-5, step=4e-3),
    "Q8_0": Rounding(nmse=3e-4, step=6e-3),
    "Q8_1": Rounding(nmse=3e-4, step=6e-3),
    "Q6_K": Rounding(nmse=1e-3, step=0.08),
    "Q5": Rounding(nmse=1.5e-2, step=0.15),
    "Q4": Rounding(nmse=5e-2, step=0.25),
}
"""By the beginning of a type's name.

`nmse` is about three times what was measured on tensors of normal and of heavy-tailed values (Student's t with three
degrees of freedom): F16 4e-8, BF16 3e-6, Q8_0 7e-5, Q5_0 4e-3, Q4_0 2e-2. `step` is above the largest that was measured
on these and on uniform values: F16 3.9e-4, BF16 3.1e-3, Q8_0 4.4e-3, Q5_0 0.063, Q4_0 0.125. Types whose names end in K
were not measured.
"""
_EXACT, _COARSEST = Rounding(nmse=0.0, step=0.0), Rounding(nmse=0.1, step=1.0)
_SHOWN = 5


def compare_files(
    candidate: str | None, reference: str | None, ours: TraceHeader, theirs: TraceHeader
) -> tuple[Step, ...]:
    """Return the steps of files and weights. A server has no files."""
    opened: list[ModelFiles] = []
    for side, path, header in (("candidate", candidate, ours), ("reference", reference, theirs)):
        # Values of the same files are read once.
        found = _open(path, header, reads_values=not (opened and candidate == reference))
        if isinstance(found, Step):
            reason = f"{side}: {found.reason}"
            first = failed("files", reason) if found.outcome is Outcome.FAILED else skipped("files", reason)
            return first, skipped("weights", reason)
        opened.append(found)
    files = passed("files", tensors=len(opened[0].tensors))
    if settings := compare_settings(*opened):
        one = settings[0]
        text = f"{one.name} is {one.candidate:g} in the candidate, {one.reference:g} in the reference"
        files = failed("files", text, tensor=one.name)
    if candidate == reference:
        return files, passed("weights", "both sides have the same files")
    return files, compare_weights(*opened)


def _open(path: str | None, header: TraceHeader, *, reads_values: bool) -> ModelFiles | Step:
    """Return the files of a model; a failed or skipped step if they are damaged, or can't be read here."""
    if path is None:
        return skipped("files", "a server has no files")
    try:
        model = open_model(Path(path))
    except Damaged as error:
        return failed("files", str(error))
    except BadInput:
        return skipped("files", "this format is not read here")
    fault = next(_faults(model, header, reads_values=reads_values), None)
    return model if fault is None else failed("files", fault)


def compare_weights(candidate: ModelFiles, reference: ModelFiles) -> Step:
    """Compare all tensors; the first one that differs by more than rounding is the location.

    Tensors of types that can't be compared are left out and named. The step is skipped for them if nothing differs.
    """
    count, same, worst = 0, 0, 0.0
    unreadable: list[TensorComparison] = []
    for one in compare_models(candidate, reference):
        count += 1
        same += one.is_same
        types = [model.tensors[name].entry.dtype.upper() for model, name in _named(candidate, reference, one)]
        if one.is_same:
            continue
        if one.outcome == "unreadable" and len(set(types)) > 1:
            unreadable.append(one)
            continue
        fault = _fault(one, _rounding(*types) if len(set(types)) > 1 else _EXACT)
        if not fault:
            worst = max(worst, one.nmse)
            continue
        text = f"{one.name}: {fault}"
        where = Divergence(step="weights", text=text, tensor=one.name)
        return Step(name="weights", outcome=Outcome.FAILED, reason=text, divergence=where)
    rounded = count - same - len(unreadable)
    reason = f"{rounded} of {count} tensors differ by rounding, nmse at most {worst:.1e}" if rounded else ""
    if unreadable:
        names = some_of([one.name for one in unreadable], _SHOWN)
        others = reason or f"the other {count - len(unreadable)} are the same"
        text = f"{unreadable[0].text}: {counted(len(unreadable), 'tensor')} not compared ({names}); {others}"
        return skipped("weights", text)
    return passed("weights", reason, tensors=count, same=same, worst_nmse=worst)


def _fault(one: TensorComparison, rounding: Rounding) -> str:
    """Return how a tensor differs by more than rounding; empty if it does not."""
    if one.outcome != "different" or rounding is _EXACT:
        return one.text
    if not one.nmse <= rounding.nmse:
        return f"{one.text}; nmse {one.nmse:.1e}, rounding makes at most {rounding.nmse:g}"
    limit = rounding.step * one.largest
    if not one.max_abs <= limit:
        return f"a value differs by {one.max_abs:.2g}, rounding makes at most {limit:.2g}"
    return ""


def _rounding(*dtypes: str) -> Rounding:
    """Return what rounding between types may make: that to the coarsest one."""
    found = [
        _EXACT
        if dtype in ("F32", "F64")
        else next((one for start, one in ROUNDING.items() if dtype.startswith(start)), _COARSEST)
        for dtype in dtypes
    ]
    return Rounding(nmse=max(one.nmse for one in found), step=max(one.step for one in found))


def _named(candidate: ModelFiles, reference: ModelFiles, one: object) -> Iterator[tuple[ModelFiles, str]]:
    name, other = getattr(one, "name", ""), getattr(one, "reference_name", "")
    if name in candidate.tensors:
        yield candidate, name
    if other in reference.tensors:
        yield reference, other


def _faults(model: ModelFiles, header: TraceHeader, *, reads_values: bool) -> Iterator[str]:
    yield from coverage_faults(model)
    for one in find_not_finite(model) if reads_values else ():
        yield f"{one.name} has {counted(one.count, 'value')} that are not finite, the first at {list(one.first)}"
    if 0 < header.used < header.tensors:
        yield f"{header.runtime} used {header.used} of {counted(header.tensors, 'tensor')}"
