"""Results of tests as receipts state them: what was measured, against which limits, and what follows from that.

    predicate = result_of("parity", outcomes, measures, …)     what a comparison, a gate or a benchmark states
    faults_of(predicate)                                         what does not follow from its own rows

A receipt is evidence, not a claim: each test that passed has the values it was decided from and their limit, so that
anybody can decide again. All measures of a test decide together. A value that is not finite is over every limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal

from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import as_float
from stoker.store.statements import TEST_RESULT, Statement, Subject

Outcome = Literal["passed", "warned", "failed"]
"""`warned`: an answer that is no pass and no failure, such as one that could not be decided, or an expected failure."""
Take = Literal["each", "mean", "median"]
Kind = Literal["parity", "gate", "bench"]

KINDS: tuple[Kind, ...] = ("parity", "gate", "bench")
MOST_VALUES = 200_000
_LISTS: Mapping[Outcome, str] = {"passed": "passedTests", "warned": "warnedTests", "failed": "failedTests"}
_TAKES: tuple[Take, ...] = ("each", "mean", "median")


@frozen
class MeasuredValues:
    """The values of one measure of a test, and their limit."""

    test: str
    name: str
    values: tuple[float, ...]
    most: float | None = None
    """The largest value that passes."""
    least: float | None = None
    """The smallest value that passes."""
    take: Take = "each"
    """What has to be within the limit: each value, their mean, or their median."""

    @property
    def decided(self) -> tuple[float, ...]:
        """The numbers that are compared with the limit."""
        if self.take == "each":
            return self.values
        if not all(map(math.isfinite, self.values)):
            return (math.nan,)
        try:
            return (fmean(self.values) if self.take == "mean" else median(self.values),)
        except OverflowError:
            return (math.inf,)

    @property
    def worst(self) -> float | None:
        """The first number that is not within the limit; None if all are."""
        return next((value for value in self.decided if not self._holds(value)), None)

    def _holds(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def to_json(self) -> dict[str, Any]:
        limits = {"most": self.most, "least": self.least}
        return {
            "test": self.test,
            "measure": self.name,
            "take": self.take,
            **{name: limit for name, limit in limits.items() if limit is not None},
            "values": list(self.values),
        }

    @classmethod
    def from_json(cls, raw: object) -> MeasuredValues:
        """Read what `to_json` gave. Raises `ValueError` on anything else."""
        if not isinstance(raw, dict) or not raw.keys() <= {"test", "measure", "take", "most", "least", "values"}:
            message = "a measure is not an object with the known keys"
            raise ValueError(message)
        take, values = raw.get("take", "each"), raw.get("values")
        if take not in _TAKES or not isinstance(values, list) or not 0 < len(values) <= MOST_VALUES:
            message = f"a measure has no values, or decides by {str(take)[:40]!r}"
            raise ValueError(message)
        if not ("most" in raw or "least" in raw):
            message = "a measure has no limit"
            raise ValueError(message)
        limits = {name: _number(raw[name]) for name in ("most", "least") if name in raw}
        if not all(map(math.isfinite, limits.values())):
            message = "a limit is not finite"
            raise ValueError(message)
        return cls(
            test=_text(raw.get("test")),
            name=_text(raw.get("measure")),
            values=tuple(_number(value) for value in values),
            take=take,
            **limits,
        )


@frozen
class ResultFacts:
    """What a receipt states beside outcomes and measures."""

    configuration: tuple[Mapping[str, Any], ...] = ()
    """What was used: models, tokenizers, prompts, reports, each with its name and digest."""
    summary: Mapping[str, Any] = fresh(factory=dict)
    tier: str = ""
    """Whose limits these are, if they are those of a precision."""
    reasons: Mapping[str, str] = fresh(factory=dict)
    """By test: why it warned, or failed without a value over its limit."""
    requested: Mapping[str, Mapping[str, Any]] = fresh(factory=dict)
    """By side: how it was to run (device, weights, kernels)."""
    ran: Mapping[str, Mapping[str, Any]] = fresh(factory=dict)
    """By side: how it ran."""
    is_strict: bool = False
    """A side that ran otherwise than requested is a failure."""
    environment: Mapping[str, Any] = fresh(factory=dict)
    """Host, system, versions, variables that make it deterministic, seeds."""
    evidence: Mapping[str, Any] = fresh(factory=dict)
    """Of an inference: `evidence.InferenceEvidence`, as plain data."""


def result_of(
    kind: Kind, outcomes: Mapping[str, Outcome], measures: Iterable[MeasuredValues], facts: ResultFacts
) -> dict[str, Any]:
    """Return the predicate of a receipt about tests."""
    named = {key: [name for name, outcome in outcomes.items() if outcome == given] for given, key in _LISTS.items()}
    more = {
        "stoker_summary": dict(facts.summary),
        "stoker_tier": facts.tier,
        "stoker_reasons": dict(facts.reasons),
        "stoker_requested": {side: dict(fields) for side, fields in facts.requested.items()},
        "stoker_ran": {side: dict(fields) for side, fields in facts.ran.items()},
        "stoker_strict": facts.is_strict,
        "stoker_environment": dict(facts.environment),
        "stoker_evidence": dict(facts.evidence),
    }
    return {
        "result": _result(outcomes.values()),
        "configuration": [dict(one) for one in facts.configuration],
        **named,
        "stoker_kind": kind,
        "stoker_measures": [one.to_json() for one in measures],
        **{name: value for name, value in more.items() if value},
    }


def statement_of(subject: Sequence[Subject], predicate: Mapping[str, Any]) -> Statement:
    """Return the receipt of a comparison, a gate or a benchmark of these subjects."""
    return Statement(subject=tuple(subject), predicate_type=TEST_RESULT, predicate=predicate)


def _result(outcomes: Iterable[Outcome]) -> str:
    found = set(outcomes)
    if "failed" in found:
        return "FAILED"
    return "WARNED" if "warned" in found or not found else "PASSED"


# Deciding again.


def faults_of(predicate: Mapping[str, Any], *, tiers: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
    """Return what of a predicate does not follow from its own rows and limits; empty if all does.

    `tiers` are the known limits by tier and measure: a receipt may have stricter ones, not looser ones.
    """
    try:
        outcomes, measures = _outcomes(predicate), _measures(predicate)
    except ValueError as error:
        return [str(error)]
    faults = list(_against_rows(outcomes, measures, _mapping(predicate.get("stoker_reasons"))))
    decided = _result(outcomes.values())
    if predicate.get("result") != decided:
        faults.append(f"states {str(predicate.get('result'))[:40]}, its tests say {decided}")
    tier = predicate.get("stoker_tier", "")
    if tiers is not None and (tier or predicate.get("stoker_kind") == "parity"):
        faults += _against_tier(str(tier), measures, tiers)
    if predicate.get("stoker_strict"):
        faults += fallbacks_of(predicate)
    return faults


def fallbacks_of(predicate: Mapping[str, Any]) -> list[str]:
    """Return where a side ran otherwise than it was requested to."""
    ran = _mapping(predicate.get("stoker_ran"))
    return [
        f"{side}: {name} {wanted!r} was requested, it ran with {_mapping(ran.get(side)).get(name)!r}"
        for side, fields in _mapping(predicate.get("stoker_requested")).items()
        for name, wanted in _mapping(fields).items()
        if _mapping(ran.get(side)).get(name) != wanted
    ]


def _outcomes(predicate: Mapping[str, Any]) -> dict[str, Outcome]:
    if predicate.get("stoker_kind") not in KINDS:
        message = f"has an unknown kind of test: {str(predicate.get('stoker_kind'))[:40]!r}"
        raise ValueError(message)
    found: dict[str, Outcome] = {}
    for outcome, key in _LISTS.items():
        listed = predicate.get(key)
        if not isinstance(listed, list):
            message = f"has no list {key}"
            raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
        for name in listed:
            if _text(name) in found:
                message = f"lists the test {name!r} twice"
                raise ValueError(message)
            found[name] = outcome
    return found


def _measures(predicate: Mapping[str, Any]) -> list[MeasuredValues]:
    listed = predicate.get("stoker_measures")
    if not isinstance(listed, list):
        message = "has no measures"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
    return [MeasuredValues.from_json(one) for one in listed]


def _against_rows(
    outcomes: Mapping[str, Outcome], measures: Sequence[MeasuredValues], reasons: Mapping[str, Any]
) -> Iterator[str]:
    over: set[str] = set()
    measured = {one.test for one in measures}
    for one in measures:
        if one.test not in outcomes:
            yield f"measures {one.test}, which is none of its tests"
        elif one.worst is not None:
            over.add(one.test)
            if outcomes[one.test] == "passed":
                yield f"{one.test}: {one.name} {one.worst:.3g} is not within {_limits(one)}, yet the test passed"
    for test, outcome in outcomes.items():
        if outcome == "passed" and test not in measured:
            yield f"{test}: passed without a measure: a claim, not evidence"
        elif outcome == "warned" and not reasons.get(test):
            yield f"{test}: warned without a reason"
        elif outcome == "failed" and test not in over and not reasons.get(test):
            yield f"{test}: failed, but every value is within its limit, and no reason is given"


def _against_tier(
    tier: str, measures: Sequence[MeasuredValues], tiers: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    limits = tiers.get(tier)
    if limits is None:
        yield f"names unknown limits: {tier[:40]!r}"
        return
    for one in measures:
        known = limits.get(one.name)
        if not isinstance(known, int | float) or isinstance(known, bool):
            continue
        is_looser = (one.most is not None and one.most > known) or (one.least is not None and one.least < known)
        if is_looser:
            yield f"{one.test}: {one.name} has the limit {_limits(one)}, looser than {known:g} of {tier}"


def _limits(one: MeasuredValues) -> str:
    limits = {"at most": one.most, "at least": one.least}
    return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        message = f"{str(value)[:40]!r} is not a number"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
    return as_float(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        message = f"{str(value)[:40]!r} is not a name"
        raise ValueError(message)
    return value
