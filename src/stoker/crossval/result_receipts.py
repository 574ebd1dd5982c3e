"""Receipts of gates, benchmarks and comparisons: a statement beside each report, whose verdict follows from its rows.

    gate.json  gate.receipt.json          result.json  result.receipt.json

A receipt names the files of the report and the model by digest, the two sides, how they ran, and for each test the
values and the limit that decide it (`measured_results`), so that verification decides again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.core.digests import digest_bytes, digest_value
from stoker.core.jsontext import as_float
from stoker.core.text import counted
from stoker.crossval.bench import BenchResult
from stoker.crossval.evidence import REAL, InferenceEvidence
from stoker.crossval.ladder import DECIDING, Parity, Step
from stoker.crossval.ladder import Outcome as StepOutcome
from stoker.crossval.measured_results import MeasuredValues, Outcome, ResultFacts, result_of, statement_of
from stoker.crossval.plugin_messages import labels_of
from stoker.crossval.report_formats import CheckReport
from stoker.crossval.trace import TraceHeader
from stoker.host.durable import write_file
from stoker.host.identity import surroundings
from stoker.store.statements import Statement, Subject
from stoker.store.trees import hash_file

ENDING = ".receipt.json"
_DIGITS = 12
"""Of changes: the last bits of a logarithm are not part of a limit."""
_MOST_KERNELS = 1000


def receipt_path(report: str) -> str:
    """Return the path of the receipt of a report or a result."""
    return f"{os.path.splitext(report)[0]}{ENDING}"


def write_receipt(statement: Statement, path: str) -> None:
    """Write a receipt durably."""
    write_file(path, statement.to_bytes())


def subjects_of(paths: Iterable[str], sides: Iterable[Mapping[str, Any]] = ()) -> list[Subject]:
    """Return files that were written, and models, files and jobs among sides, as what a receipt is about."""
    found = [Subject(name=os.path.basename(path), digest={"sha256": hash_file(path)[0]}) for path in paths]
    for side in sides:
        digest = side.get("digest")
        if isinstance(digest, Mapping) and digest:
            path = next((str(side[key]) for key in ("model", "file", "job") if side.get(key)), "candidate")
            found.append(Subject(name=os.path.basename(path), digest=dict(digest)))
    return list({(one.name, *one.digest.values()): one for one in found}.values())


# Gates.


def receipt_of_gate(
    report: CheckReport, sides: Mapping[str, Mapping[str, Any]], paths: Sequence[str], versions: Mapping[str, str]
) -> Statement:
    """Return the receipt of a gate, also of one that did not finish. `sides` are the facts of both, by their names."""
    outcomes: dict[str, Outcome] = {one.name: _OF_CHECK.get(one.outcome, "warned") for one in report.checks}
    reasons = {one.name: one.reason for one in report.checks if outcomes[one.name] == "warned"}
    if report.outcome == "error":
        outcomes["gate"], reasons["gate"] = "failed", report.reason or "it did not finish"
    facts = ResultFacts(
        configuration=tuple({"name": name, **facts} for name, facts in sides.items()),
        summary={
            "title": report.title,
            "made_at": report.made_at,
            **{name: value for name, value in report.about.items() if value is not None},
        },
        reasons=reasons,
        environment=_environment(versions),
    )
    candidate = sides.get("candidate", {})
    predicate = result_of("gate", outcomes, _measures_of_gate(report), facts)
    return statement_of(subjects_of(paths, [candidate]), predicate)


_OF_CHECK: Mapping[str, Outcome] = {"passed": "passed", "failed": "failed"}


def _measures_of_gate(report: CheckReport) -> Iterator[MeasuredValues]:
    """Return the ends of each metric's interval, and the changes of its pairs, with the boundary that decides them."""
    pairs: Any = report.details.get("pairs", [])
    for check in report.checks:
        row: Any = check.rows[0] if check.rows else {}
        if row.get("change") is None:
            continue
        bound = round(row["limit"] if row["is_exact"] else row["boundary"], _DIGITS)
        limit = {"most": bound} if row["limit"] > 0.0 else {"least": bound}
        ends = tuple(round(row[end], _DIGITS) if math.isfinite(row[end]) else row[end] for end in ("low", "high"))
        yield MeasuredValues(test=check.name, name="interval of the change", values=ends, **limit)
        changes = tuple(_change(*one[check.name]) for one in pairs if check.name in one)
        if changes:
            yield MeasuredValues(test=check.name, name="change of a pair", values=changes, take="median", **limit)


def _change(baseline: float, candidate: float) -> float:
    if baseline == candidate:
        return 0.0
    return round(candidate / baseline - 1.0, _DIGITS) if baseline and math.isfinite(candidate) else math.nan


# Benchmarks.


def receipt_of_bench(result: BenchResult, path: str) -> Statement:
    """Return the receipt of a benchmark whose result is in a file, also of one that did not finish."""
    requested = result.about.get("requested_runs")
    count = float(len(result.runs))
    outcomes: dict[str, Outcome] = {"runs": "passed" if result.outcome == "completed" else "failed"}
    measures = [MeasuredValues(test="runs", name="count", values=(count,), least=_number(requested, count))]
    reasons = {} if result.error is None else {"runs": str(result.error.get("message", result.outcome))}
    subject = result.subject
    if "fallbacks" in subject:
        found = [str(one) for one in _listed(subject["fallbacks"])]
        outcomes["path"] = "warned" if found else "passed"
        measures.append(MeasuredValues(test="path", name="not as requested", values=(float(len(found)),), most=0.0))
        reasons |= {"path": "; ".join(found)} if found else {}
    evidence = evidence_of(result)
    facts = ResultFacts(
        configuration=({"name": "subject", **{name: one for name, one in subject.items() if name != "kernels"}},),
        summary={
            "made_at": result.made_at,
            "measures": {one.name: one.to_json() for one in result.summaries()},
            "peak_bytes": result.peak_bytes,
            "energy_j": result.energy_j,
            "machine": dict(result.machine),
        },
        reasons=reasons,
        environment=_environment(result.versions),
        evidence={} if evidence is None else evidence.to_json(),
    )
    return statement_of(subjects_of([path], [subject]), result_of("bench", outcomes, measures, facts))


def evidence_of(result: BenchResult) -> InferenceEvidence | None:
    """Return what a benchmark of a model shows of its inference; None if its runtime names no kernels."""
    subject, speeds = result.subject, result.values().get("tokens_per_second", [])
    kernels = tuple(str(one) for one in _listed(subject.get("kernels")))[:_MOST_KERNELS]
    if not kernels or not speeds:
        return None
    decoded = int(_number(subject.get("decoded_tokens"), 0.0))
    requested = int(_number(result.about.get("requested_runs"), len(result.runs)))
    return InferenceEvidence(
        timestamp=result.made_at,
        compute_path=REAL,
        backend=str(subject.get("device", "")).partition(":")[0],
        # Equal inputs are set up to give equal results; that they did is what a comparison shows.
        deterministic=False,
        tokens_requested=decoded * requested,
        tokens_generated=decoded * len(result.runs),
        tokens_per_second=sorted(speeds)[len(speeds) // 2],
        kernels=kernels,
        weights=str(subject.get("weights", "")),
        environment={},
        model={"name": os.path.basename(str(subject.get("model", ""))), **_mapping(subject.get("digest"))},
    )


# Comparisons.


def receipt_of_parity(
    parity: Parity, ours: TraceHeader, theirs: TraceHeader, *, verdict: bytes, name: str
) -> Statement:
    """Return the receipt of a comparison; `verdict` are the bytes of its verdict's file, which is called `name`."""
    taken = [step for step in parity.steps if step.outcome is not StepOutcome.SKIPPED]
    outcomes: dict[str, Outcome] = {step.name: _OF_CHECK.get(str(step.outcome), "warned") for step in taken}
    reasons = {step.name: step.reason for step in taken if outcomes[step.name] != "passed" and step.reason}
    if parity.outcome is StepOutcome.UNDECIDED:
        outcomes["verdict"], reasons["verdict"] = "warned", parity.reason or "no logits were compared"
    sides = {"candidate": ours, "reference": theirs}
    facts = ResultFacts(
        configuration=(
            *({"name": side, **_side(header)} for side, header in sides.items()),
            {"name": "prompts", "digest": {"stokerPrompts": digest_value("prompts", [*ours.texts, *ours.ids])}},
        ),
        summary={
            "positions": len(ours.ids),
            "first_divergence": None if parity.first is None else parity.first.to_json(),
            "limits": parity.limits.to_json(),
            "skipped": {step.name: step.reason for step in parity.steps if step.outcome is StepOutcome.SKIPPED},
        },
        tier=parity.limits.base_tier,
        reasons=reasons,
        requested={side: _requested(header) for side, header in sides.items()},
        ran={side: {**header.ran, "device": _device(header.ran)} for side, header in sides.items()},
        is_strict=ours.is_strict,
        environment=_environment({}),
    )
    measures = [one for step in taken for one in _measures_of_step(step, parity)]
    subject = [
        Subject(name=name, digest={"sha256": digest_bytes(verdict)}),
        *(Subject(name=one, digest={"sha256": sha256}) for one, sha256 in ours.files.items()),
    ]
    return statement_of(subject, result_of("parity", outcomes, measures, facts))


def _measures_of_step(step: Step, parity: Parity) -> Iterator[MeasuredValues]:
    limits = parity.limits
    for name in DECIDING:
        values = tuple(value for row in step.positions if (value := getattr(row, name)) is not None)
        if values:
            yield MeasuredValues(test=step.name, name=name, values=values, most=getattr(limits, name))
    if step.positions:
        shares = tuple(float(row.top1) for row in step.positions)
        yield MeasuredValues(test=step.name, name="top1", values=shares, least=limits.top1, take="mean")
    if step.layers:
        name = str(step.summary.get("limit", "layer"))
        errors = tuple(row.error for row in step.layers)
        yield MeasuredValues(test=step.name, name=name, values=errors, most=getattr(limits, name))
    if not step.positions and not step.layers:
        count = 0.0 if step.outcome is StepOutcome.PASSED else 1.0
        yield MeasuredValues(test=step.name, name="differences", values=(count,), most=0.0)


def _side(header: TraceHeader) -> dict[str, Any]:
    return {
        "model": header.model,
        "digests": dict(header.files),
        "runtime": f"{header.runtime} {header.version}",
        "tokenizer": header.tokenizer_sha256,
        "seed": header.requested.get("seed"),
        "threads": header.requested.get("threads"),
        "tensors": counted(header.tensors, "tensor"),
        "traced_at": header.traced_at,
        # Without its name: receipts are verified on other machines.
        "machine": {name: fact for name, fact in header.machine.items() if name != "name"},
    }


def _requested(header: TraceHeader) -> dict[str, str]:
    precision, weights = str(header.requested.get("precision") or ""), str(header.ran.get("weights", ""))
    if not precision:
        return {"device": _device(header.requested)}
    labels = labels_of(precision)
    return {"device": _device(header.requested), "weights": weights if weights in labels else labels[0]}


def _device(facts: Mapping[str, Any]) -> str:
    return str(facts.get("device", "")).partition(":")[0]


def _environment(versions: Mapping[str, str]) -> dict[str, str]:
    # Not the host's name: receipts are verified on other machines.
    return {**{name: fact for name, fact in surroundings().items() if name != "host"}, **versions}


def _number(value: object, default: float) -> float:
    return as_float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
