"""A whole gate: its sides measured or read, decided, and a report written, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from stoker.core.clock import Clock
from stoker.core.errors import Usage
from stoker.core.frozen import fresh, frozen
from stoker.crossval.bench import ProgramSubject
from stoker.crossval.gate import GateFacts, GateResult, PairedGate, StoredSide, decide_stored, report_of_gate
from stoker.crossval.gate_rule import GateRule
from stoker.crossval.gate_sides import GateSide, ProgramSide
from stoker.crossval.measures import LimitRequest
from stoker.crossval.report_formats import CheckReport, write_report
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
    reports: tuple[str, ...] = ()
    """Paths of the report, each in the format of its name."""


@frozen
class GatePlace:
    """Where a gate runs."""

    clock: Clock
    environment: Mapping[str, str]
    machine: Mapping[str, object]
    versions: Mapping[str, str]


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

    try:
        baseline, candidate = read_sides()
        if isinstance(baseline, StoredSide) and isinstance(candidate, StoredSide):
            result = decide_stored(baseline, candidate, request.limits, request.rule)
        else:
            gate = _paired(request, baseline, candidate, place)
            for _ in follow(gate.steps(warmup=request.warmup)):
                pass
            result = gate.result()
    except BaseException as error:
        report(GateResult(verdicts=()) if gate is None else gate.result(), error)
        raise
    return result, report(result)


def _paired(request: GateRequest, baseline: GateSide, candidate: GateSide, place: GatePlace) -> PairedGate:
    if not isinstance(baseline, ProgramSide) or not isinstance(candidate, ProgramSide):
        raise Usage(
            "one side can be run and the other one only has numbers",
            hint="name a program on both sides, so that they run in turn; or measure this one with stoker bench",
        )

    def subject(side: ProgramSide) -> ProgramSubject:
        program = TimedProgram(
            argv=side.argv, folder=side.folder, environment=place.environment, timeout_s=request.timeout_s
        )
        return ProgramSubject(program, place.clock, names=[one.name for one in request.limits])

    return PairedGate(subject(baseline), subject(candidate), request.limits, request.rule)
