"""A whole gate: its sides measured or read, decided, and a report written, whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from stoker.core.clock import Clock
from stoker.core.errors import StokerError, Usage, WorkFailed
from stoker.core.frozen import changed, fresh, frozen
from stoker.crossval.bench import BenchSubject, ProgramSubject
from stoker.crossval.gate import GateFacts, GateResult, PairedGate, report_of_gate
from stoker.crossval.gate_rule import GateRule, MetricVerdict
from stoker.crossval.gate_sides import GateSide, ModelSide, ProgramSide, shown_machine
from stoker.crossval.measures import LimitRequest, limits_for
from stoker.crossval.model_subject import ModelSubject, read_texts, require_same_tokens
from stoker.crossval.repeated_results import can_run_again, run_again
from stoker.crossval.report_formats import CheckReport, write_report
from stoker.crossval.result_receipts import receipt_of_gate, receipt_path, write_receipt
from stoker.crossval.scored_documents import PERPLEXITY, decide_documents
from stoker.crossval.stored_sides import StoredSide, decide_stored
from stoker.crossval.timed_run import TimedProgram
from stoker.store.trees import hash_file, scan_tree

_NAMES = ("baseline", "candidate")

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
    """Paths of the report, each in the format of its name. The receipt is written beside the first."""
    is_rerun: bool = False
    """Run the programs or models of two benchmark results again, instead of comparing their numbers."""


OpenModel = Callable[[ModelSide, str], ModelSubject]
"""Opens a model as the `baseline` or as the `candidate`."""


def _no_models(side: ModelSide, _name: str) -> ModelSubject:
    raise Usage(f"{side.path}: a model can't be loaded here", hint="stoker gate --baseline OLD --candidate NEW")


def digest_of(path: str) -> str:
    """Return the digest of a file or a folder; every byte is read."""
    return f"sha256:{hash_file(path)[0]}" if os.path.isfile(path) else f"tree:{scan_tree(path).digest()}"


@frozen
class GatePlace:
    """Where a gate runs."""

    clock: Clock
    environment: Mapping[str, str]
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    open_model: OpenModel = _no_models
    digest_of: Callable[[str], str] = digest_of
    """Returns `sha256:…` of a file and `tree:…` of a folder."""


def run_gate(
    request: GateRequest, read_sides: ReadSides, place: GatePlace, follow: Follow = lambda steps: steps
) -> tuple[GateResult, CheckReport]:
    """Run a gate and write its reports, also if it raises or is interrupted.

    `follow` is given the pairs as they are measured, and yields them: to show progress, or to stop.
    """
    began_s = place.clock.monotonic_s()
    gate: PairedGate | None = None
    known: dict[str, Callable[[], Mapping[str, object]]] = {}

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
        if request.reports:
            sides = {name: _facts(facts_of) for name, facts_of in known.items()}
            receipt = receipt_of_gate(made, sides, request.reports, place.versions)
            write_receipt(receipt, receipt_path(request.reports[0]))
        return made

    # A process that is killed leaves this, and not the report of an earlier gate.
    report(GateResult(verdicts=()), WorkFailed("the gate did not finish", hint="run it again"))
    with ExitStack() as opened:
        try:
            sides, notes = _sides(request, read_sides(), place)
            if request.timeout_s is not None and not any(isinstance(one, ProgramSide) for one in sides):
                raise Usage("a time limit is of programs, and no side is one", hint="leave out --timeout (timeout_s)")
            known |= {name: partial(dict, one.facts) for name, one in _stored(sides).items()}
            if len(known) == len(_NAMES):
                baseline, candidate = _stored(sides).values()
                result = decide_stored(baseline, candidate, request.limits, request.rule)
            else:
                subjects = _subjects(request, sides, place, opened)
                known |= {name: one.facts for name, one in zip(_NAMES, subjects, strict=True)}
                gate = PairedGate(*subjects, request.limits, request.rule, _perplexities(request, subjects))
                for _ in follow(gate.steps(warmup=request.warmup)):
                    pass
                result = gate.result()
            result = changed(result, notes=(*notes, *result.notes))
        except BaseException as error:
            report(GateResult(verdicts=()) if gate is None else gate.result(), error)
            raise
        return result, report(result)


def _sides(
    request: GateRequest, sides: Sequence[GateSide], place: GatePlace
) -> tuple[Sequence[GateSide], tuple[str, ...]]:
    """Return the sides, with a result beside something that can be run replaced by what it measured; and notes."""
    here = shown_machine(place.machine)
    stored = _stored(sides)
    if len(stored) == len(sides) and not request.is_rerun:
        if all(can_run_again(one, here, place.digest_of) for one in stored.values()):
            return sides, ("both can be run again, in turn: --rerun",)
        return sides, ()
    again = [run_again(one, here, place.digest_of) if isinstance(one, StoredSide) else one for one in sides]
    return again, tuple(f"{one.shown} is run again" for one in stored.values())


def _stored(sides: Sequence[GateSide]) -> dict[str, StoredSide]:
    return {name: one for name, one in zip(_NAMES, sides, strict=True) if isinstance(one, StoredSide)}


def _facts(facts_of: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
    # A plug-in that did not start has none.
    with suppress(StokerError):
        return facts_of()
    return {}


def _subjects(
    request: GateRequest, sides: Sequence[GateSide], place: GatePlace, opened: ExitStack
) -> tuple[BenchSubject, BenchSubject]:
    def subject(side: GateSide, name: str) -> BenchSubject:
        made: BenchSubject
        if isinstance(side, ProgramSide):
            program = TimedProgram(
                argv=side.argv, folder=side.folder, environment=place.environment, timeout_s=request.timeout_s
            )
            made = ProgramSubject(program, place.clock, names=[one.name for one in request.limits])
        elif isinstance(side, ModelSide):
            made = place.open_model(side, name)
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
