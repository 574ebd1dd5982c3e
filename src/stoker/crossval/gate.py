"""Gates over two sides that can be run: measure them in turn, pair by pair, decide by the rule, and report.

A report has all that was measured until an error or Ctrl-C. Sides that were measured earlier are decided by
`stored_sides`, documents by `scored_documents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from stoker.core.errors import (
    GateUndecided,
    Regression,
    StokerError,
    Usage,
    WorkFailed,
)
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import counted
from stoker.crossval.bench import BenchSubject, error_facts, outcome_of_error
from stoker.crossval.gate_rule import (
    GateOutcome,
    GateRule,
    MetricVerdict,
    decide_metrics,
    outcome_of,
    quantile_of,
    weigh_pairs,
    weigh_quantile,
)
from stoker.crossval.measures import LimitRequest, in_one_number, limits_for, lost_measure, notes_on, source_of
from stoker.crossval.report_formats import CheckReport, Outcome, ReportedCheck

FIRST_LOOK = 3
"""Pairs after which values that repeat exactly are decided."""


@frozen
class GateResult:
    """What a gate decided, and from what."""

    verdicts: tuple[MetricVerdict, ...]
    pairs: tuple[Mapping[str, tuple[float, float]], ...] = ()
    """Baseline and candidate of each measure, pair by pair."""
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> GateOutcome:
        return outcome_of(self.verdicts)

    @property
    def reason(self) -> str:
        """The metrics that decide the outcome, in one line."""
        decisive = [one for one in self.verdicts if one.outcome == self.outcome]
        if self.outcome == "passed":
            return f"{counted(len(decisive), 'metric')} within the limits"
        return "; ".join(f"{one.limit.metric} {one.reason}" for one in decisive)


class PairedGate:
    """Two sides that can be run, measured in turn: in one pair the baseline first, in the next the candidate."""

    def __init__(
        self,
        baseline: BenchSubject,
        candidate: BenchSubject,
        requests: Sequence[LimitRequest],
        rule: GateRule,
        known: Sequence[MetricVerdict] = (),
    ) -> None:
        """`known` are metrics that were weighed before any pair; they are decided together with the others."""
        self._sides = (baseline, candidate)
        self._requests = tuple(requests)
        self._rule = rule
        self._known = tuple(known)
        self._pairs: list[Mapping[str, tuple[float, float]]] = []
        self._unpaired: list[str] = []
        """Measures of the baseline alone, none of which has a limit."""
        self._verdicts: dict[str, MetricVerdict] = {}

    def steps(self, *, warmup: int = 1) -> Iterator[int]:
        """Measure pair by pair until every metric is decided, one has become worse, or there are enough.

        Yields the number of pairs after each.
        """
        rule = self._rule
        if self._known and any(one.outcome == "failed" for one in self._decide().values()):
            self._verdicts = self._decide()
            return
        for _ in range(warmup):
            for side in self._sides:
                side.measure()
        while len(self._pairs) < rule.most_pairs:
            self._pairs.append(self._measure_pair(len(self._pairs)))
            count = len(self._pairs)
            yield count
            if count == FIRST_LOOK or count % rule.batch == 0 or count == rule.most_pairs:
                self._verdicts = self._decide()
                if outcome_of(list(self._verdicts.values())) != "undecided":
                    return

    def result(self) -> GateResult:
        """Return what is decided by now."""
        if self._pairs and not self._verdicts:
            # What can't be decided has raised its error already.
            with suppress(StokerError):
                self._verdicts = self._decide()
        limits = [one.limit for one in self._verdicts.values()]
        return GateResult(verdicts=tuple(self._verdicts.values()), pairs=tuple(self._pairs), notes=notes_on(limits))

    def _measure_pair(self, number: int) -> Mapping[str, tuple[float, float]]:
        order = (0, 1) if number % 2 == 0 else (1, 0)
        measured: dict[int, Mapping[str, float]] = {}
        for place in order:
            measured[place] = in_one_number(self._sides[place].measure().measures)
        names = [name for name in measured[0] if name in measured[1]]
        if not self._pairs:
            if lost_name := lost_measure(list(measured[0]), measured[1], self._requests):
                hint = f"print it on both sides, or: --limit {lost_name}=off"
                raise WorkFailed(f"the candidate has no {lost_name}, which the baseline has", hint=hint)
            self._unpaired = [name for name in measured[0] if name not in measured[1]]
        if self._pairs and (lost := [name for name in self._pairs[0] if name not in names]):
            raise WorkFailed(
                f"{lost[0]} was not measured in pair {number + 1}", hint="both sides have to print it in every run"
            )
        return {name: (measured[0][name], measured[1][name]) for name in names}

    def _decide(self) -> dict[str, MetricVerdict]:
        names = list(self._pairs[0]) if self._pairs else []
        known = {one.limit.metric: one for one in self._known}
        limits = [*(one.limit for one in self._known), *limits_for(names, self._requests, [*known, *self._unpaired])]
        if not limits:
            raise Usage("no metric has a limit", hint=f"--limit {names[0]}=5%" if names else "--limit NAME=5%")
        weighed = {name: one.weighed for name, one in known.items() if one.weighed is not None}
        middles = {name: (one.baseline, one.candidate) for name, one in known.items()}
        for limit in limits[len(known) :]:
            pairs = [pair[source_of(limit)] for pair in self._pairs]
            weigh = weigh_pairs if limit.quantile is None else weigh_quantile
            weighed[limit.metric] = weigh(limit, pairs, self._rule)
            quantile = 0.5 if limit.quantile is None else limit.quantile
            middles[limit.metric] = (
                quantile_of([one for one, _ in pairs], quantile),
                quantile_of([other for _, other in pairs], quantile),
            )
        decided = decide_metrics(weighed, limits, self._rule)
        return {
            name: changed(one, baseline=middles[name][0], candidate=middles[name][1]) for name, one in decided.items()
        }


# The report, and how a gate ends.


@frozen
class GateFacts:
    """What a report says beside the verdicts."""

    baseline: str
    candidate: str
    rule: GateRule
    made_at: str = ""
    seconds: float | None = None
    machine: Mapping[str, object] = fresh(factory=dict)
    versions: Mapping[str, str] = fresh(factory=dict)


def report_of_gate(result: GateResult, facts: GateFacts, error: BaseException | None = None) -> CheckReport:
    """Return the report; with an error, that of a gate that did not finish."""
    outcome: Outcome = "error" if error is not None else result.outcome
    reason = result.reason if error is None else str(error_facts(error)["message"])
    if error is not None and outcome_of_error(error) == "interrupted":
        reason = f"interrupted after {counted(len(result.pairs), 'pair')}"
    rule = facts.rule
    return CheckReport(
        kind="gate",
        title=f"gate: {facts.candidate} against {facts.baseline}",
        outcome=outcome,
        reason=reason,
        checks=tuple(
            ReportedCheck(
                name=one.limit.metric,
                # What an interrupted gate has not decided is no verdict about the candidate.
                outcome=one.outcome if error is None or one.outcome == "failed" else "undecided",
                reason=one.reason,
                rows=(one.to_row(),),
            )
            for one in result.verdicts
        ),
        about={
            "baseline": facts.baseline,
            "candidate": facts.candidate,
            "pairs": len(result.pairs),
            "confidence": rule.confidence,
            "batch": rule.batch,
            "most pairs": rule.most_pairs,
            **{f"machine {name}": value for name, value in facts.machine.items() if value},
            **{f"version of {name}": value for name, value in facts.versions.items()},
            **({"notes": "; ".join(result.notes)} if result.notes else {}),
        },
        made_at=facts.made_at,
        seconds=facts.seconds,
        details={
            "pairs": [{name: list(pair) for name, pair in one.items()} for one in result.pairs],
            **({"error": error_facts(error)} if error is not None else {}),
        },
    )


def raise_verdict(result: GateResult, report_paths: Sequence[str] = ()) -> None:
    """Raise `Regression` or `GateUndecided`; return if the gate passed."""
    at = f"report: {report_paths[0]}" if report_paths else ""
    if result.outcome == "failed":
        metrics = [one.limit.metric for one in result.verdicts if one.outcome == "failed"]
        raise Regression(f"regression: {result.reason}", hint=at, metrics=metrics)
    if result.outcome == "undecided":
        needed = {one.limit.metric: one.pairs_needed for one in result.verdicts if one.outcome == "undecided"}
        raise GateUndecided(f"undecided: {result.reason}", hint=at, pairs_needed=needed)
