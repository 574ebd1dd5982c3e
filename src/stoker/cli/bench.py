"""`stoker bench`: measure a program run by run, and write one result file that gates can read."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, duration, whole
from stoker.cli.screens import busy_between
from stoker.core.errors import NoPermission, ProgramNotFound, StageTimeout, Usage, WorkFailed
from stoker.core.text import counted, format_size
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.crossval.bench import BenchResult, MeasureSummary

_RUNS = 20

GRAMMAR = Grammar(
    "bench",
    about=(
        "Run a program again and again and report its time, its memory, and the measures that it prints, with their "
        "percentiles: throughputs, latencies and perplexities in lines such as `tokens_per_second=812` or "
        '`{"latency_ms": [3.1, 3.0]}`. Energy is measured where a device reports it. The result file has every run; '
        "it is written on failure and Ctrl-C, too. `stoker gate` compares results."
    ),
    options=(
        Option("--runs", value="N", read=whole(1), help=f"measured runs (default: {_RUNS})"),
        Option("--warmup", value="N", read=whole(0), help="runs before them that are not measured (default: 1)"),
        Option("--timeout", value="TIME", read=duration, help="time limit of one run: 90s, 15m"),
        Option("--measure", value="NAME", help="also read this measure from the output; repeat it", is_many=True),
        Option("-o", "--out", value="FILE", help="the result file (default: stoker-out/bench/result.json)"),
    ),
    takes_program=True,
    examples=(
        "stoker bench -- python serve_once.py",
        "stoker bench --runs 50 -o base.bench.json -- ./infer --model model.gguf",
    ),
    errors=(WorkFailed, StageTimeout, ProgramNotFound, NoPermission),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run the benchmark and write its result."""
    from stoker.crossval.bench import Bench, EnergyMeter, ProgramSubject, write_result
    from stoker.crossval.timed_run import TimedProgram

    if not given["program"]:
        raise Usage("PROGRAM is missing", hint="stoker bench -- python serve_once.py")
    parts, settings = call.parts, call.parts.settings
    path = call.path(given["out"] or "stoker-out/bench/result.json")
    program = TimedProgram(
        argv=tuple(given["program"]),
        folder=settings.folder,
        environment=settings.environment,
        timeout_s=given["timeout"],
    )
    energy = EnergyMeter(parts.devices, settings.environment)
    subject = ProgramSubject(program, parts.clock, names=given["measure"], energy=energy)
    bench = Bench(subject, parts.clock, machine=machine_here(call), versions=versions_here(call))
    warmup = 1 if given["warmup"] is None else given["warmup"]
    try:
        for _ in busy_between(call, "run {number}", bench.steps(given["runs"] or _RUNS, warmup=warmup)):
            pass
    except BaseException as error:
        write_result(bench.result(error), path)
        call.out.note(f"note: the runs until then: {near_path(path, settings.folder)}")
        raise
    finally:
        subject.close()
        energy.close()
    result = bench.result()
    write_result(result, path)
    _show(call, result, path)
    return 0


def _show(call: CommandContext, result: BenchResult, path: str) -> None:
    out = call.out
    body = result.to_json()
    out.object({**{name: value for name, value in body.items() if name != "runs"}, "file": path})
    out.table([_row(one) for one in result.summaries()], header=("measure", "median", "p95", "p99", "min", "max"))
    facts = [counted(len(result.runs), "run")]
    if result.peak_bytes is not None:
        facts.append(f"memory {format_size(result.peak_bytes)}")
    if result.energy_j is not None:
        facts.append(f"energy {result.energy_j:.4g} J a run")
    out.line(f"{', '.join(facts)}; result: {near_path(path, call.parts.settings.folder)}")


def _row(one: MeasureSummary) -> list[str]:
    values = (one.median, one.percentiles[95], one.percentiles[99], one.low, one.high)
    return [one.name, *(f"{value:.5g}" for value in values)]


def machine_here(call: CommandContext) -> dict[str, object]:
    """Return what identifies this machine in results."""
    from stoker.crossval.bench import machine_facts
    from stoker.devices.this_machine import host_name
    from stoker.host.resources import usable_cores

    devices: list[Mapping[str, object]] = [{"name": one.name, "uuid": one.uuid} for one in call.parts.devices]
    return machine_facts(host_name(call.parts.settings.environment)[0], devices, usable_cores())


def versions_here(call: CommandContext) -> dict[str, str]:
    """Return the versions that results record."""
    return {"stoker": call.parts.version, "python": platform.python_version()}
