"""A whole gate: its sides measured or read, decided, and a report written, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from stoker.core.clock import Clock
from stoker.core.errors import Usage
from stoker.core.frozen import fresh, frozen
from stoker.crossval.bench import BenchSubject, ProgramSubject
from stoker.crossval.gate import GateFacts, GateResult, PairedGate, report_of_gate
from stoker.crossval.gate_rule import GateRule, MetricVerdict
from stoker.crossval.gate_sides import GateSide, ModelSide, ProgramSide
from stoker.crossval.measures import LimitRequest, limits_for
from stoker.crossval.model_subject import ModelSubject, read_texts, require_same_tokens
from stoker.crossval.report_formats import CheckReport, write_report
from stoker.crossval.scored_documents import PERPLEXITY, decide_documents
from stoker.crossval.stored_sides import StoredSide, decide_stored
from stoker.crossval.timed_run import TimedProgram

ReadSides = Callable[[], Sequence[GateSide]]
Follow = Callable[[Iterator[int]], Iterator[int]]


@frozen
class GateRequest:
    """What a gate was asked for."""

    baseline: str
    """As reports call it."""
    candidate: str
    limits: tuple[LimitRequest, ...] = ()
    rule: GateRule = fresh(factory=GateRule)
    warmup: int = 1
    timeout_s: float | None = None
    texts: str = ""
    """Path of the documents on which models are scored; empty: they are gated by speed alone."""
    reports: tuple[str, ...] = ()
    """Paths of the report, each in the format of its name."""


OpenModel = Callable[[str, str], ModelSubject]
"""Opens a model by its path, as the `baseline` or as the `candidate`."""


def no_models(path: str, _side: str) -> ModelSubject:
    """Refuse a model: where there is no runtime for it."""
    raise Usage(f"{path}: a model can't be loaded here", hint="stoker gate --baseline OLD --candidate NEW")


@frozen
class GatePlace:
    """Where a gate runs."""

    clock: Clock
    environment: Mapping[str, str]
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    open_model: OpenModel = no_models


def run_gate(
    request: GateRequest, read_sides: ReadSides, place: GatePlace, follow: Follow = lambda steps: steps
) -> tuple[GateResult, CheckReport]:
    """Run a gate and write its reports, also if it raises or is interrupted.

    `follow` is given the pairs as they are measured, and yields them: to show progress, or to stop.
    """
    began_s = place.clock.monotonic_s()
    gate: PairedGate | None = None

    def report(result: GateResult, error: BaseException | None = None) -> CheckReport:
        facts = GateFacts(
            baseline=request.baseline,
            candidate=request.candidate,
            rule=request.rule,
            made_at=place.clock.now().isoformat(timespec="seconds"),
            seconds=place.clock.monotonic_s() - began_s,
            machine=place.machine,
            versions=place.versions,
        )
        made = report_of_gate(result, facts, error)
        for path in request.reports:
            write_report(made, path)
        return made

    with ExitStack() as opened:
        try:
            sides = read_sides()
            if all(isinstance(one, StoredSide) for one in sides):
                baseline, candidate = (one for one in sides if isinstance(one, StoredSide))
                result = decide_stored(baseline, candidate, request.limits, request.rule)
            else:
                subjects = _subjects(request, sides, place, opened)
                gate = PairedGate(*subjects, request.limits, request.rule, _perplexities(request, subjects))
                for _ in follow(gate.steps(warmup=request.warmup)):
                    pass
                result = gate.result()
        except BaseException as error:
            report(GateResult(verdicts=()) if gate is None else gate.result(), error)
            raise
    return result, report(result)


def _subjects(
    request: GateRequest, sides: Sequence[GateSide], place: GatePlace, opened: ExitStack
) -> tuple[BenchSubject, BenchSubject]:
    if any(isinstance(one, StoredSide) for one in sides):
        raise Usage(
            "one side can be run and the other one only has numbers",
            hint="name a program or a model on both sides, so that they run in turn; or measure this one: stoker bench",
        )

    def subject(side: GateSide, name: str) -> BenchSubject:
        made: BenchSubject
        if isinstance(side, ProgramSide):
            program = TimedProgram(
                argv=side.argv, folder=side.folder, environment=place.environment, timeout_s=request.timeout_s
            )
            made = ProgramSubject(program, place.clock, names=[one.name for one in request.limits])
        elif isinstance(side, ModelSide):
            made = place.open_model(side.path, name)
        else:
            raise TypeError(side)
        opened.callback(made.close)
        return made

    return subject(sides[0], "baseline"), subject(sides[1], "candidate")


def _perplexities(request: GateRequest, subjects: Sequence[BenchSubject]) -> list[MetricVerdict]:
    """Weigh the perplexities of two models on the documents of the request, if there are any."""
    if not request.texts:
        return []
    models = [one for one in subjects if isinstance(one, ModelSubject)]
    if len(models) < len(subjects):
        raise Usage("texts are for models", hint="a program prints its own perplexity=…")
    limits = limits_for([PERPLEXITY], [one for one in request.limits if one.name == PERPLEXITY])
    if not limits:
        return []
    texts = read_texts(request.texts)
    baseline, candidate = ([*one.score(texts)] for one in models)
    require_same_tokens(*models)
    return decide_documents(baseline, candidate, limits[0], request.rule)
