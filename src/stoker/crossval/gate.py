"""Gates: measure a baseline and a candidate, decide by the rule, and report, whatever happens.

Two sides that can be run are run in turn, pair by pair. Of sides that were measured earlier only the numbers are there:
what carries no noise is decided, a time hardly ever is. A report has all that was measured until an error or Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from stoker.core.errors import (
    BadInput,
    GateUndecided,
    LocalFile,
    NotVerified,
    Regression,
    StokerError,
    Usage,
    WorkFailed,
)
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.jsontext import loads
from stoker.core.text import counted, first_line
from stoker.crossval.bench import BenchSubject, error_facts, outcome_of_error
from stoker.crossval.gate_rule import (
    Document,
    GateLimit,
    GateOutcome,
    GateRule,
    MetricVerdict,
    Weighed,
    decide_metrics,
    outcome_of,
    quantile_of,
    stored_verdict,
    weigh_documents,
    weigh_exact,
    weigh_pairs,
    weigh_quantile,
)
from stoker.crossval.measures import FINEST_TIME, LimitRequest, in_one_number, limits_for, source_of
from stoker.crossval.report_formats import Check, CheckReport, Outcome
from stoker.host.durable import read_regular

FIRST_LOOK = 3
"""Pairs after which values that repeat exactly are decided."""
PERPLEXITY = "perplexity"
_MOST_BYTES = 256 << 20


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
        if self._pairs and (lost := [name for name in self._pairs[0] if name not in names]):
            raise WorkFailed(
                f"{lost[0]} was not measured in pair {number + 1}", hint="both sides have to print it in every run"
            )
        return {name: (measured[0][name], measured[1][name]) for name in names}

    def _decide(self) -> dict[str, MetricVerdict]:
        names = list(self._pairs[0]) if self._pairs else []
        known = {one.limit.metric: one for one in self._known}
        limits = [*(one.limit for one in self._known), *limits_for(names, self._requests, known)]
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


def notes_on(limits: Sequence[GateLimit]) -> tuple[str, ...]:
    """Return what a reader of the verdicts should know about their limits."""
    fine = [one.metric for one in limits if one.share < 1.0 and one.change < FINEST_TIME]
    if not fine:
        return ()
    return (f"limit of {', '.join(fine)} below {FINEST_TIME:.0%}: two copies of one program differ by up to a percent",)


# Sides that were measured earlier.


@frozen
class StoredSide:
    """What is known of a side without running it."""

    shown: str
    machine: str = ""
    samples: tuple[Mapping[str, float], ...] = ()
    """The measures of each run or trial."""
    labels: tuple[str, ...] = ()
    """Of the samples, if they can be paired with those of another side by them."""
    documents: tuple[DocumentScore, ...] = ()

    def values(self, name: str) -> list[float]:
        return [one[name] for one in self.samples if name in one]

    def by_label(self, name: str) -> dict[str, float]:
        return {label: one[name] for label, one in zip(self.labels, self.samples, strict=False) if name in one}


@frozen
class DocumentScore:
    """The negative log-likelihood of one document under a model, in nats, summed over its predicted tokens."""

    name: str
    tokens: int
    nll: float


def decide_stored(
    baseline: StoredSide, candidate: StoredSide, requests: Sequence[LimitRequest], rule: GateRule
) -> GateResult:
    """Decide from numbers alone. Raises `Usage` if the sides have nothing in common."""
    if baseline.documents and candidate.documents:
        limits = limits_for([PERPLEXITY], requests)
        verdicts = decide_documents(baseline.documents, candidate.documents, limits[0], rule) if limits else ()
        return GateResult(verdicts=tuple(verdicts))
    ours = {name for one in candidate.samples for name in one}
    names = list(dict.fromkeys(name for one in baseline.samples for name in one if name in ours))
    limits = limits_for(names, requests)
    if not limits:
        raise Usage(
            f"{baseline.shown} and {candidate.shown} have no metric in common that has a limit",
            hint=f"measured on both: {', '.join(names)}; --limit NAME=5%" if names else "measure the same on both",
        )
    trouble = ""
    if not baseline.machine or baseline.machine != candidate.machine:
        trouble = f"measured on {baseline.machine or 'an unknown machine'} and {candidate.machine or 'an unknown one'}"
    weighed: dict[str, Weighed] = {}
    decided: dict[str, MetricVerdict] = {}
    for limit in limits:
        values = baseline.values(source_of(limit)), candidate.values(source_of(limit))
        if limit.share < 1.0:
            decided[limit.metric] = stored_verdict(limit, *values, rule, trouble=trouble)
            continue
        found = _weigh_labelled(limit, baseline, candidate, rule)
        if found is None:
            decided[limit.metric] = _unpaired(limit, *values)
        else:
            weighed[limit.metric] = found
    for name, one in decide_metrics(weighed, limits, rule).items():
        values = baseline.values(name), candidate.values(name)
        decided[name] = changed(one, baseline=quantile_of(values[0], 0.5), candidate=quantile_of(values[1], 0.5))
    return GateResult(verdicts=tuple(decided[limit.metric] for limit in limits), notes=notes_on(limits))


def _weigh_labelled(limit: GateLimit, baseline: StoredSide, candidate: StoredSide, rule: GateRule) -> Weighed | None:
    """Weigh values that repeat exactly, or that are paired by their labels; None if they are neither."""
    one, other = set(baseline.values(limit.metric)), set(candidate.values(limit.metric))
    if len(one) == len(other) == 1:
        return weigh_exact(limit, one.pop(), other.pop())
    ours, theirs = baseline.by_label(limit.metric), candidate.by_label(limit.metric)
    if not ours or set(ours) != set(theirs):
        return None
    return weigh_pairs(limit, [(ours[label], theirs[label]) for label in ours], rule)


def _unpaired(limit: GateLimit, baseline: Sequence[float], candidate: Sequence[float]) -> MetricVerdict:
    counts = f"{counted(len(baseline), 'value')} and {counted(len(candidate), 'value')} that do not belong together"
    return MetricVerdict(
        limit=limit,
        outcome="undecided",
        reason=f"{counts}; repeat both sides with the same seeds, as a sweep of the same values",
        baseline=quantile_of(baseline, 0.5),
        candidate=quantile_of(candidate, 0.5),
    )


def decide_documents(
    baseline: Sequence[DocumentScore], candidate: Sequence[DocumentScore], limit: GateLimit, rule: GateRule
) -> list[MetricVerdict]:
    """Decide a perplexity over the same documents. Raises `NotVerified` if the sides do not count the same tokens."""
    theirs = {one.name: one for one in candidate}
    ours = {one.name: one for one in baseline}
    if len(ours) != len(baseline) or len(theirs) != len(candidate):
        raise BadInput("two documents have the same name", hint="names of documents have to differ")
    if missing := sorted(set(ours) ^ set(theirs)):
        raise BadInput(
            f"document {missing[0]!r} is on one side only ({counted(len(missing), 'document')} in all)",
            hint="score the same documents on both sides",
        )
    documents = [
        Document(name=name, tokens=one.tokens, baseline_nll=one.nll, candidate_nll=theirs[name].nll)
        for name, one in ours.items()
    ]
    if other := [name for name, one in ours.items() if one.tokens != theirs[name].tokens]:
        raise NotVerified(
            f"document {other[0]!r} has {ours[other[0]].tokens} tokens on one side and {theirs[other[0]].tokens} on "
            "the other: the tokenizers disagree",
            hint="perplexities per token can't be compared then",
        )
    one = weigh_documents(limit, documents, rule)
    verdict = decide_metrics({limit.metric: one}, [limit], rule)[limit.metric]
    tokens = sum(document.tokens for document in documents)
    return [
        changed(
            verdict,
            baseline=_perplexity(sum(document.baseline_nll for document in documents) / tokens),
            candidate=_perplexity(sum(document.candidate_nll for document in documents) / tokens),
        )
    ]


def _perplexity(loss: float) -> float:
    from math import exp, inf

    return exp(loss) if loss < 700.0 else inf


def read_documents(path: str) -> tuple[DocumentScore, ...]:
    """Read scored documents: a line `{"document": NAME, "tokens": N, "nll": SUM}` for each. Raises `LocalFile`."""
    found = []
    for number, line in enumerate(read_regular(path, _MOST_BYTES).decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            body = loads(line)
            one = DocumentScore(name=str(body["document"]), tokens=int(body["tokens"]), nll=float(body["nll"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LocalFile(
                f"{path}, line {number}: not a scored document: {first_line(error)}",
                hint='{"document": "a.txt", "tokens": 120, "nll": 310.5}',
            ) from error
        if one.tokens < 1:
            raise LocalFile(f"{path}, line {number}: a document without tokens", hint="leave it out")
        found.append(one)
    if not found:
        raise LocalFile(f"{path}: no documents", hint="one line of JSON for each document")
    return tuple(found)


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
            Check(
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
