"""`stoker bench`: measure a model or a program run by run, and write one result file that gates can read."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration, whole
from stoker.cli.screens import busy_between
from stoker.core.device import Backend
from stoker.core.errors import NoPermission, ProgramNotFound, StageTimeout, Usage, WorkFailed
from stoker.core.frozen import fields_of
from stoker.core.text import counted, format_size
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.crossval.bench import BenchResult, BenchSubject, MeasureSummary, ReadEnergy
    from stoker.crossval.device_speeds import MeasuredSpeed
    from stoker.crossval.model_subject import ModelSubject

_RUNS = 20
_ONLY_OF = {"model": ("runtime", "strict", "prompt", "decode"), "program": ("timeout", "measure")}
"""Options that mean nothing for the other kind of subject."""

GRAMMAR = Grammar(
    "bench",
    about=(
        "Run a model or a program again and again. Of a model: tokens per second of a prompt, and the time of each "
        "token after it, one at a time. Of a program: its time, its memory, and the measures that it prints: "
        "throughputs, latencies and perplexities in lines such as `tokens_per_second=812` or "
        '`{"latency_ms": [3.1, 3.0]}`. All with their percentiles. Energy is measured where a device reports it. The '
        "result file has every run; it is written on failure and Ctrl-C, too. `stoker gate` compares results."
    ),
    positionals=(
        Positional("MODEL", help="a GGUF, safetensors or ONNX model, or a server's address", is_required=False),
    ),
    options=(
        Option("--runtime", value="RUNTIME", help="of a model: torch, llama.cpp, onnx (default: by its form)"),
        Option("--strict", help="of a model: fail if it did not run as requested: device, precision, all tensors used"),
        Option("--prompt", value="N", read=whole(1), help="of a model: tokens of the prompt (default: 128)"),
        Option("--decode", value="N", read=whole(1), help="of a model: tokens after it, one at a time (default: 32)"),
        Option("--runs", value="N", read=whole(1), help=f"measured runs (default: {_RUNS})"),
        Option("--warmup", value="N", read=whole(0), help="runs before them that are not measured (default: 1)"),
        Option("--timeout", value="TIME", read=duration, help="of a program: time limit of one run: 90s, 15m"),
        Option(
            "--on",
            value="MACHINE",
            help="measure on this machine of the fleet; it gets the model, but must have a program",
        ),
        AT,
        Option(
            "--against",
            value="FILE",
            help="result of the same benchmark on another device: print the speed of this one for the cluster file",
        ),
        Option("--measure", value="NAME", help="of a program: also read this measure from its output", is_many=True),
        Option("-o", "--out", value="FILE", help="the result file here (default: stoker-out/bench/result.json)"),
    ),
    takes_program=True,
    examples=(
        "stoker bench models/tiny/model-f32.gguf",
        "stoker bench my-model --runtime torch,device=cuda,precision=bf16 --decode 128",
        "stoker bench -- python serve_once.py",
        "stoker bench my-model.gguf --on lab1",
        "stoker bench --runs 50 -o base.bench.json -- ./infer --model model.gguf",
    ),
    errors=(WorkFailed, StageTimeout, ProgramNotFound, NoPermission),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run the benchmark and write its result."""
    from stoker.crossval.bench import Bench, EnergyMeter, read_result, require_completed
    from stoker.crossval.device_speeds import measured_speed

    if bool(given["program"]) == bool(given["model"]):
        raise Usage(
            "either MODEL or a PROGRAM after --", hint="stoker bench model.gguf, or stoker bench -- python serve.py"
        )
    other = "model" if given["program"] else "program"
    if odd := [one.names[-1] for one in GRAMMAR.options if one.key in _ONLY_OF[other] and one.is_in(given)]:
        raise Usage(f"{', '.join(odd)}: only of a {other}", hint="stoker help bench")
    if given["on"] and given["out"]:
        raise Usage("--on and --out exclude each other", hint="the job has the result: stoker get last")
    if given["on"] and given["against"]:
        raise Usage("--on and --against exclude each other", hint="run the benchmark on that machine")
    if given["on"]:
        return _submit(call, given)
    parts, settings = call.parts, call.parts.settings
    base = read_result(call.path(given["against"])) if given["against"] else None
    if base is not None:
        require_completed(base, given["against"])
    path = call.path(given["out"] or "stoker-out/bench/result.json")
    cuda = [one.uuid for one in parts.devices if one.backend is Backend.CUDA and not one.is_fake]
    energy = EnergyMeter(cuda, settings.environment)
    subject = _subject(call, given, energy)
    bench = Bench(subject, parts.clock, machine=machine_here(call), versions=versions_here(call))
    warmup = 1 if given["warmup"] is None else given["warmup"]
    try:
        # A process that is killed leaves this, and not an earlier result.
        _write(bench.result(WorkFailed("the benchmark did not finish", hint="run it again")), path)
        for _ in busy_between(call, "run {number}", bench.steps(given["runs"] or _RUNS, warmup=warmup)):
            pass
    except BaseException as error:
        _write(bench.result(error), path)
        call.out.note(f"note: the runs until then: {near_path(path, settings.folder)}")
        raise
    finally:
        subject.close()
        energy.close()
    result = bench.result()
    _write(result, path)
    _show(call, result, path)
    if base is not None:
        _show_speed(call, measured_speed(result, base, shown=given["against"]))
    return 0


def _write(result: BenchResult, path: str) -> None:
    """Write a result and its receipt."""
    from stoker.crossval.bench import write_result
    from stoker.crossval.result_receipts import receipt_of_bench, receipt_path, write_receipt

    write_result(result, path)
    write_receipt(receipt_of_bench(result, path), receipt_path(path))


def _submit(call: CommandContext, given: dict[str, Any]) -> int:
    """Submit the benchmark as a job for one machine, and follow it; `stoker get` copies its result."""
    from stoker.cli.submit import GRAMMAR as SUBMIT
    from stoker.cli.submit import perform as submit
    from stoker.config.values import text_of

    runtime = given["runtime"] or ""
    is_server = "://" in (given["model"] or "")
    values = {
        "program": shlex.join(given["program"]) if given["program"] else None,
        "model": (given["model"] or None) if not is_server else None,
        "runtime": given["model"] if is_server else runtime or None,
        "prompt": given["prompt"],
        "decode": given["decode"],
        "strict": given["strict"] or None,
        "gpus": 1 if "device=cuda" in runtime else None,
        "runs": given["runs"],
        "warmup": given["warmup"],
        "timeout_s": given["timeout"],
        "measures": given["measure"] or None,
    }
    words = [f"{name}={text_of(value)}" for name, value in values.items() if value is not None]
    at = ["--at", given["at"]] if given["at"] else []
    return submit(call, SUBMIT.parse(["crossval/bench", *words, "--host", given["on"], *at, "--watch", "--yes"]))


def _subject(call: CommandContext, given: dict[str, Any], energy: ReadEnergy) -> BenchSubject:
    from stoker.crossval.bench import ProgramSubject
    from stoker.crossval.timed_run import TimedProgram

    if given["model"]:
        load = {"prompt_tokens": given["prompt"], "decoded_tokens": given["decode"]}
        chosen = {name: count for name, count in load.items() if count is not None}
        runtime = given["runtime"] or ""
        return open_model(call, given["model"], runtime, energy=energy, is_strict=bool(given["strict"]), **chosen)
    program = TimedProgram(
        argv=tuple(given["program"]),
        folder=call.parts.settings.folder,
        environment=call.parts.settings.environment,
        timeout_s=given["timeout"],
    )
    return ProgramSubject(program, call.parts.clock, names=given["measure"], energy=energy)


def open_model(
    call: CommandContext, model: str, runtime: str, *, energy: ReadEnergy = dict, is_strict: bool = False, **load: int
) -> ModelSubject:
    """Start the runtime of a model on this machine: the given one, or that of its form. Caller closes."""
    from stoker.crossval.model_subject import ModelLoad
    from stoker.crossval.model_subject import open_model as opened
    from stoker.crossval.reference import runtime_places
    from stoker.crossval.runtimes import model_form
    from stoker.store.memo import digest_path

    parts, settings = call.parts, call.parts.settings
    places = runtime_places(settings.envs, environment=settings.environment, folder=settings.folder, clock=parts.clock)
    return opened(
        model if model_form(model) == "server" else call.path(model),
        runtime,
        places,
        parts.clock,
        digest_of=partial(digest_path, memo=parts.store.memo, clock=parts.clock),
        energy=energy,
        load=ModelLoad(**load),
        is_strict=is_strict,
    )


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


def _show_speed(call: CommandContext, found: MeasuredSpeed) -> None:
    call.out.object(fields_of(found))
    call.out.line(
        f"speed {found.speed:.3g}: {found.measure} is {found.ratio:.3g} × that of {found.base} ({found.base_speed:g}); "
        f"declare `speed: {found.speed:.3g}` for {found.device} in the cluster file"
    )


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
