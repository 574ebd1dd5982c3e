"""The first steps of a comparison: are both models whole, and do they have the same weights?

Tensors of the same type must have the same bytes. Of other types, the difference may be as large as rounding to the
coarser one makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stoker.core.errors import BadInput, Damaged
from stoker.core.text import counted
from stoker.crossval.ladder import Divergence, Outcome, Step, failed, passed, skipped
from stoker.crossval.model_files import ModelFiles, compare_settings, coverage_faults, open_model
from stoker.crossval.tensor_files import compare_models, find_not_finite
from stoker.crossval.trace import TraceHeader

ROUNDING = {"F16": 2e-7, "BF16": 1e-5, "Q8_0": 3e-4, "Q8_1": 3e-4, "Q6_K": 1e-3, "Q5": 1.5e-2, "Q4": 5e-2}
"""By the beginning of a type's name: the largest relative squared difference that rounding to it makes.

About three times what was measured on tensors of normal and of heavy-tailed values (Student's t with three degrees of
freedom): F16 4e-8, BF16 3e-6, Q8_0 7e-5, Q5_0 4e-3, Q4_0 2e-2.
"""
_COARSEST = 0.1


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
    """Compare all tensors; the first one that differs by more than rounding is the location."""
    count, same, worst = 0, 0, 0.0
    for one in compare_models(candidate, reference):
        count += 1
        same += one.is_same
        if one.is_same:
            continue
        types = {model.tensors[name].entry.dtype.upper() for model, name in _named(candidate, reference, one)}
        limit = max(map(_rounding, types)) if len(types) > 1 else 0.0
        if one.outcome == "different" and one.nmse <= limit:
            worst = max(worst, one.nmse)
            continue
        if one.outcome == "unreadable" and len(types) > 1:
            return skipped("weights", f"{one.name}: {one.text}")
        change = f"{counted(one.different, 'value differs', 'values differ')}, nmse {one.nmse:.1e}"
        text = f"{one.name}: {one.text or change}"
        where = Divergence(step="weights", text=text, tensor=one.name)
        return Step(name="weights", outcome=Outcome.FAILED, reason=text, divergence=where)
    reason = "" if same == count else f"{count - same} of {count} tensors differ by rounding, nmse at most {worst:.1e}"
    return passed("weights", reason, tensors=count, same=same, worst_nmse=worst)


def _rounding(dtype: str) -> float:
    if dtype in ("F32", "F64"):
        return 0.0
    return next((limit for start, limit in ROUNDING.items() if dtype.startswith(start)), _COARSEST)


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
