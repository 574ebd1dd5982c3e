"""`stoker run --dry-run`: for every stage hit or miss with the reason, and the estimated time. Runs nothing.

What a run would refuse, or fail on, comes last, and sets the run's exit code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.dispatch import report
from stoker.core.digests import Digest
from stoker.core.errors import StageInputError, StokerError
from stoker.core.text import counted
from stoker.devices.admission import memory_here, shared_bytes
from stoker.devices.ledger.reservations import CandidateDevice
from stoker.engine.execution.dispatch import impossible_here
from stoker.engine.preview import ForecastVerdict, NodeForecast, PlanPreview, preview
from stoker.engine.result_cache import changes_as_json
from stoker.jobs.adapter_jobs import SharedProcessCapacity, SharedProcessEstimate, estimate_shared_processes
from stoker.jobs.builder import JobBuild
from stoker.jobs.trials import is_sweep
from stoker.views.text_tables import ASCII, UNICODE, span, table
from stoker.views.trial_lines import forecast_lines


def show_forecast(
    call: CommandContext,
    build: JobBuild,
    kept: Mapping[str, Digest],
    rerun: frozenset[str],
    *,
    is_solo: bool = False,
) -> int:
    """Print what a run would do; return the exit code of a certain error, else 0."""
    parts, out = call.parts, call.out
    seen = preview(build.plan, cache=parts.cache, history=parts.history, rerun=rerun, kept=kept)
    if is_sweep(build.trials):
        _show_trials(call, build, seen, kept)
    else:
        _show_stages(call, seen)
    if not is_solo and seen.count(ForecastVerdict.HIT) < len(seen.forecasts):
        for estimate in shared_processes_here(call, build, seen):
            out.object({"company": estimate.to_json()})
            for line in forecast_lines(estimate, UNICODE if out.is_unicode else ASCII):
                out.line(line)
    codes = []
    for found in _foreseen(call, build, seen):
        if isinstance(found, StokerError):
            codes.append(report(found, out, debug=call.flags.debug))
        else:
            out.object({"note": found})
            out.note(f"note: {found}")
    return codes[0] if codes else 0


def _foreseen(call: CommandContext, build: JobBuild, seen: PlanPreview) -> Iterator[StokerError | str]:
    """Yield the error that a run would have before its start; else errors and notes of the stages' input checks."""
    refused = impossible_here(call.parts.tools.engine, build.plan.nodes)
    if refused is not None:
        yield refused
        return
    labels = {name: one.spec.label for one in build.trials for name in one.nodes.nodes if is_sweep(build.trials)}
    missed = {forecast.node for forecast in seen.forecasts if forecast.verdict is ForecastVerdict.MISS}
    for node in build.plan.nodes:
        if node.id in missed and node.stage.foresee is not None:
            whose = labels.get(node.id, node.id)
            try:
                warning = node.stage.foresee(node.stage.args.make(node.args))
            except StageInputError as error:
                yield type(error)(f"{whose}: {error}", hint=error.hint, **error.data)
            else:
                if warning:
                    yield f"{whose}: {warning}"


def _show_stages(call: CommandContext, seen: PlanPreview) -> None:
    out = call.out
    rows = []
    for forecast in seen.forecasts:
        out.object(forecast_as_json(forecast))
        rows.append([forecast.node, str(forecast.verdict), _cost(forecast), forecast.why])
    for line in table(rows, header=("stage", "", "cost", "why"), columns=out.columns):
        out.line(line)
    out.line(f"\n{_headline(seen)}; nothing was run")


def _show_trials(call: CommandContext, build: JobBuild, seen: PlanPreview, kept: Mapping[str, Digest]) -> None:
    """List every trial with its verdict and estimated time."""
    by_node = {forecast.node: forecast for forecast in seen.forecasts}
    rows = []
    for trial in build.trials:
        forecasts = [by_node[node] for node in trial.nodes.nodes]
        known = sum(forecast.verdict is ForecastVerdict.HIT for forecast in forecasts)
        costs = [forecast.estimate_s for forecast in forecasts if forecast.estimate_s is not None]
        verdict = _verdict(forecasts, is_kept=trial.nodes.final in kept)
        call.out.object(
            {
                "trial": trial.spec.number,
                "label": trial.spec.label,
                "point": dict(trial.spec.point),
                "verdict": verdict,
                "stages": len(forecasts),
                "known": known,
                "estimate_s": sum(costs) if costs else None,
            }
        )
        if len(forecasts) > 1 and known < len(forecasts):
            verdict = f"{verdict}: {len(forecasts) - known} of {len(forecasts)} stages"
        rows.append([str(trial.spec.number), trial.spec.label, verdict, f"~{span(sum(costs))}" if costs else ""])
    for line in table(rows, header=("", "trial", "", "cost"), columns=call.out.columns):
        call.out.line(line)
    count = len(build.trials)
    shared = "" if len(by_node) == sum(len(trial.nodes.nodes) for trial in build.trials) else ", shared stages once"
    trials = counted(count, "trial")
    call.out.line(f"\n{trials}{shared}; {_headline(seen)}; nothing was run")


def _verdict(forecasts: list[NodeForecast], *, is_kept: bool) -> str:
    """Return the verdict of a trial."""
    verdicts = {forecast.verdict for forecast in forecasts}
    if verdicts == {ForecastVerdict.HIT}:
        return "kept" if is_kept else "known"
    return "would run" if ForecastVerdict.MISS in verdicts else "may run"


def forecast_as_json(forecast: NodeForecast) -> dict[str, Any]:
    """Return a forecast as plain data."""
    return {
        "node": forecast.node,
        "stage": forecast.stage,
        "verdict": str(forecast.verdict),
        "why": forecast.why,
        "changes": changes_as_json(forecast.changes),
        "key": forecast.key,
        "estimate_s": forecast.estimate_s,
    }


def _cost(forecast: NodeForecast) -> str:
    if forecast.verdict is ForecastVerdict.HIT:
        return ""
    return f"~{span(forecast.estimate_s)}" if forecast.estimate_s is not None else "?"


def _headline(seen: PlanPreview) -> str:
    misses, unknown = seen.count(ForecastVerdict.MISS), seen.count(ForecastVerdict.UNKNOWN)
    total = len(seen.forecasts)
    if not misses and not unknown:
        return "the only stage is cached" if total == 1 else f"all {total} stages are cached"
    parts = [f"{seen.count(ForecastVerdict.HIT)} of {total} stages are cached", f"{misses} would run"]
    if unknown:
        parts.append(f"{unknown} may run")
    if seen.estimate_s is not None:
        parts.append(f"about {span(seen.estimate_s)} of work, by history")
    return ", ".join(parts)


def shared_processes_here(call: CommandContext, build: JobBuild, seen: PlanPreview) -> list[SharedProcessEstimate]:
    """Estimate the shared processes of trials that would run; none if every stage has a process of its own."""
    known = {forecast.node for forecast in seen.forecasts if forecast.verdict is ForecastVerdict.HIT}
    together = [node for node in build.plan.nodes if node.stage.together and node.id not in known]
    trials = [trial for trial in build.trials if trial.nodes.final not in known]
    shared_runner = call.parts.tools.engine.shared_runner()
    if not together or not trials or shared_runner is None:
        return []
    builder = call.builder()
    recipe = builder.catalogue.load(build.spec.recipe)
    rooms = _rooms(call) if any(node.needs.gpu for node in together) else []
    room = SharedProcessCapacity(
        device_bytes=rooms[0] if rooms else None,
        memory_bytes=memory_here().room_bytes,
        elsewhere_bytes=tuple(rooms[1:]),
        has_process=shared_runner.has_process(),
    )
    return estimate_shared_processes(together, trials, lambda trial: builder.shared_by(recipe, trial.spec.args), room)


def _rooms(call: CommandContext) -> list[int]:
    """Return the free memory of each device for shared work, the largest first: measured, and not reserved."""
    devices = [device for device in call.parts.devices if device.total_bytes is not None]
    candidates = [one for one in map(CandidateDevice.of, devices) if one is not None]
    states = call.parts.ledger.state(candidates).devices if candidates else ()
    left = {one.device.uuid: one.room_bytes for one in states}
    rooms = [
        min(
            shared_bytes(device.total_bytes or 0, device.memory_type, device.free_bytes),
            left.get(device.uuid, device.total_bytes or 0),
        )
        for device in devices
    ]
    return sorted(rooms, reverse=True)
