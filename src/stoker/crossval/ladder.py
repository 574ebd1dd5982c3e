"""The ladder of a comparison: from files to weights, tokens, layers, head and logits. Pure: measures in, verdict out.

Each step decides for itself, and all measures of a step decide together. The first step that fails names the
difference. Layers are compared by replay: each gets the same input on both sides, so that the error of one does not
become that of the next. Where neither side can replay, the layers that both show are compared as they are.

    files → weights → tokens → embedding → layers → head → logits → decode

A step that a pair of sides can't take is skipped with its reason. If no logits could be compared, the comparison is
undecided, which is not a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from stoker.core.frozen import fields_of, fresh, frozen
from stoker.crossval.limits import Limits
from stoker.crossval.metrics import PositionRow

STEPS = ("files", "weights", "tokens", "embedding", "layers", "head", "logits", "decode")
LayerLimit = Literal["layer", "head", "nmse"]
DECIDING = ("nmse", "max_abs_sd", "kl")
"""Measures of a position that have a limit each; `top1` has one over all positions."""


class Outcome(StrEnum):
    """How a step, or a whole comparison, ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNDECIDED = "undecided"


@frozen
class Divergence:
    """Where two sides differ first."""

    step: str
    text: str
    pos: int | None = None
    layer: int | None = None
    tensor: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in fields_of(self).items() if value is not None}


@frozen
class LayerRow:
    """One layer that got the candidate's input on both sides."""

    layer: int
    name: str
    error: float

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)


@frozen
class Step:
    """One step of the ladder."""

    name: str
    outcome: Outcome
    reason: str = ""
    divergence: Divergence | None = None
    positions: tuple[PositionRow, ...] = ()
    layers: tuple[LayerRow, ...] = ()
    summary: Mapping[str, Any] = fresh(factory=dict)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Step:
        """Read what `to_json` returned."""
        return cls(
            name=str(raw["step"]),
            outcome=Outcome(raw["outcome"]),
            reason=str(raw["reason"]),
            divergence=Divergence(**raw["divergence"]) if "divergence" in raw else None,
            positions=tuple(map(PositionRow.from_json, raw.get("positions", ()))),
            layers=tuple(LayerRow(**one) for one in raw.get("layers", ())),
            summary=dict(raw.get("summary", {})),
        )

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"step": self.name, "outcome": str(self.outcome), "reason": self.reason}
        if self.divergence is not None:
            body["divergence"] = self.divergence.to_json()
        if self.summary:
            body["summary"] = dict(self.summary)
        if self.positions:
            body["positions"] = [row.to_json() for row in self.positions]
        if self.layers:
            body["layers"] = [row.to_json() for row in self.layers]
        return body


@frozen
class Parity:
    """The verdict over all steps."""

    outcome: Outcome
    steps: tuple[Step, ...]
    limits: Limits
    first: Divergence | None = None

    @property
    def reason(self) -> str:
        return next((step.reason for step in self.steps if step.outcome is self.outcome and step.reason), "")

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Parity:
        """Read what `to_json` returned. Raises `KeyError`, `TypeError` or `ValueError` on anything else."""
        steps = tuple(Step.from_json(one) for one in raw["steps"])
        first = Divergence(**raw["first_divergence"]) if raw["first_divergence"] else None
        return cls(outcome=Outcome(raw["outcome"]), steps=steps, limits=Limits.from_json(raw["limits"]), first=first)

    def to_json(self) -> dict[str, Any]:
        return {
            "outcome": str(self.outcome),
            "reason": self.reason,
            "first_divergence": None if self.first is None else self.first.to_json(),
            "limits": self.limits.to_json(),
            "steps": [step.to_json() for step in self.steps],
        }


def skipped(name: str, reason: str) -> Step:
    """Return a step that this pair of sides can't take."""
    return Step(name=name, outcome=Outcome.SKIPPED, reason=reason)


def failed(name: str, text: str, *, tensor: str | None = None, pos: int | None = None) -> Step:
    """Return a step whose sides differ, at a tensor or a position."""
    where = Divergence(step=name, text=text, tensor=tensor, pos=pos)
    return Step(name=name, outcome=Outcome.FAILED, reason=text, divergence=where)


def passed(name: str, reason: str = "", **summary: Any) -> Step:
    """Return a step without a difference."""
    return Step(name=name, outcome=Outcome.PASSED, reason=reason, summary=summary)


def judge_tokens(texts: Sequence[str], reference: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]]) -> Step:
    """Compare what two tokenizers make of the same texts."""
    for text, ours, theirs in zip(texts, reference, candidate, strict=True):
        if list(ours) != list(theirs):
            at = next(
                (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
            )
            pair = [str(ids[at]) if at < len(ids) else "the end" for ids in (ours, theirs)]
            words = f"tokenizers disagree at token {at} of {text[:40]!r}: reference {pair[0]}, candidate {pair[1]}"
            return failed("tokens", words, pos=at)
    return passed("tokens", texts=len(texts), tokens=sum(len(ids) for ids in reference))


def judge_positions(name: str, rows: Iterable[PositionRow], limits: Limits) -> Step:
    """Decide a step of logits. The first position over a limit is where the sides diverge."""
    kept = tuple(rows)
    if not kept:
        return Step(name=name, outcome=Outcome.UNDECIDED, reason="no position was compared")
    summary = summary_of(kept)
    for row in kept:
        over = _over(row, limits)
        if over:
            text = f"position {row.pos}: {', '.join(over)}"
            return _diverged(name, text, Divergence(step=name, text=text, pos=row.pos), positions=kept, summary=summary)
    share = summary["top1"]
    if share < limits.top1:
        first = next(row.pos for row in kept if not row.top1)
        text = f"the first token is the same at {share:.0%} of {len(kept)} positions; the limit is {limits.top1:.0%}"
        return _diverged(name, text, Divergence(step=name, text=text, pos=first), positions=kept, summary=summary)
    if all(row.kl is None for row in kept):
        return Step(name=name, outcome=Outcome.UNDECIDED, reason="no measure is known", positions=kept)
    return Step(name=name, outcome=Outcome.PASSED, positions=kept, summary=summary)


def judge_embedding(errors: Iterable[float], limit: float) -> Step:
    """Decide the step of the first layer's input. The first position over the limit is the location."""
    kept = tuple(errors)
    summary = {"positions": len(kept), "worst_error": max(kept, default=0.0)}
    for pos, error in enumerate(kept):
        if not error <= limit:
            text = f"position {pos}: the input of the first layer differs: {error:.1e}, the limit is {limit:g}"
            return _diverged("embedding", text, Divergence(step="embedding", text=text, pos=pos), summary=summary)
    return Step(name="embedding", outcome=Outcome.PASSED, summary=summary)


def judge_layers(name: str, rows: Iterable[LayerRow], limits: Limits, *, by: LayerLimit = "layer") -> Step:
    """Decide a step of layers, by the limit of that name. The first one over it is the location.

    `nmse` is for layers that had the inputs of their own side, so that errors of earlier ones are in them.
    """
    kept = tuple(rows)
    if not kept:
        return skipped(name, "no layer was compared")
    limit: float = getattr(limits, by)
    worst = max(row.error for row in kept)
    summary = {"layers": len(kept), "worst_error": worst, "limit": by}
    how = "" if by == "nmse" else " with equal input"
    for row in kept:
        if not row.error <= limit:
            text = f"{row.name} (layer {row.layer}) differs{how}: {row.error:.1e}, the limit is {limit:g}"
            where = Divergence(step=name, text=text, layer=row.layer)
            return _diverged(name, text, where, layers=kept, summary=summary)
    return Step(name=name, outcome=Outcome.PASSED, layers=kept, summary=summary)


def judge(steps: Sequence[Step], limits: Limits) -> Parity:
    """Return the verdict: the first step that failed decides; without logits nothing is decided."""
    for step in steps:
        if step.outcome is Outcome.FAILED:
            first = _located(step, steps)
            return Parity(outcome=Outcome.FAILED, steps=tuple(steps), limits=limits, first=first)
    has_logits = any(step.name in ("logits", "decode") and step.outcome is Outcome.PASSED for step in steps)
    is_open = any(step.outcome is Outcome.UNDECIDED for step in steps)
    outcome = Outcome.PASSED if has_logits and not is_open else Outcome.UNDECIDED
    return Parity(outcome=outcome, steps=tuple(steps), limits=limits)


def summary_of(rows: Sequence[PositionRow]) -> dict[str, Any]:
    """Return the means and worst values over positions; a mean only of a measure that every row has."""
    found: dict[str, Any] = {"positions": len(rows), "top1": sum(row.top1 for row in rows) / len(rows)}
    for name in ("nmse", "max_abs", "max_abs_sd", "kl", "top5", "cosine"):
        values = [getattr(row, name) for row in rows]
        if all(value is not None for value in values):
            found[f"mean_{name}"] = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf
            found[f"worst_{name}"] = min(values) if name in ("top5", "cosine") else max(values)
    return found


def _located(step: Step, steps: Sequence[Step]) -> Divergence | None:
    """Return where the sides differ: the place of the failed step, and where it first shows in the logits."""
    where = step.divergence
    if where is None or where.pos is not None or step.name not in ("weights", "layers", "head"):
        return where
    shown = next((one.divergence for one in steps if one.name == "logits" and one.divergence is not None), None)
    if shown is None or shown.pos is None:
        return where
    text = f"{where.text}; first seen in the logits of position {shown.pos}"
    return Divergence(step=where.step, text=text, pos=shown.pos, layer=where.layer, tensor=where.tensor)


def _over(row: PositionRow, limits: Limits) -> list[str]:
    """Return the measures of a row that are over their limits, in words. NaN is over every limit."""
    found = []
    for name in DECIDING:
        value, limit = getattr(row, name), getattr(limits, name)
        if value is not None and not value <= limit:
            found.append("a logit is not finite" if math.isinf(value) else f"{name} {value:.1e} is over {limit:g}")
    return list(dict.fromkeys(found))


def _diverged(name: str, text: str, where: Divergence, **more: Any) -> Step:
    return Step(name=name, outcome=Outcome.FAILED, reason=text, divergence=where, **more)
