"""`stoker doctor`: everything that matters about this machine in one screen, each line with a verdict and a hint."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.grammar import Grammar, Option, whole
from stoker.core.capability import Capability, MachineInterpreter
from stoker.core.errors import Usage
from stoker.core.jsontext import dumps
from stoker.devices.checkup import (
    WORDS,
    Check,
    check_devices,
    check_machine,
    check_recipes,
    check_required,
    check_smoke,
    check_surroundings,
    check_torch,
    faked_by,
    missing,
    preflight_fields,
    read_words,
)
from stoker.devices.probes.inventory import TOOLS
from stoker.devices.probes.readers import program_on_path
from stoker.views.device_lines import check_lines, summary

if TYPE_CHECKING:
    from stoker.gang.gang_check import GangSelfTest


_FORMAT = 1


def _read_ranks(text: str) -> int:
    """Read how many ranks are meant; 0 for as many as fit."""
    return 0 if text == "auto" else whole(1)(text)


GRAMMAR = Grammar(
    "doctor",
    about=(
        "Look at this machine and say what matters: processors, memory, disks, each accelerator with three separate "
        "answers (installed, visible to programs, usable), torch, containment, clock, ports. ✓ is well, ! is worth "
        "knowing, ✗ stops work; a hint says what to do. Nothing is changed. Exit code 1 only if something that "
        "--require names is not there, or if --smoke computes wrongly; --gang has codes of its own (54: a rank failed, "
        "55: a rank was silent, 29: torch is missing)."
    ),
    options=(
        Option(
            "--require",
            value="WORDS",
            read=read_words,
            is_many=True,
            help=f"fail unless these can be used: {', '.join(WORDS)}",
        ),
        Option("--deep", help="ask torch as well, in a child, even if nothing speaks for a device"),
        Option("--smoke", help="compute something small on the CPU and on each device, and compare"),
        Option(
            "--gang",
            value="N",
            read=_read_ranks,
            help="bring N ranks up together and have them add something up; auto: one for each GPU, at least 2",
        ),
    ),
    examples=(
        "stoker doctor",
        "stoker doctor --require cuda",
        "stoker doctor --smoke --json",
        "stoker doctor --gang 2",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Look, judge, show."""
    parts = call.parts
    required = tuple(dict.fromkeys(word for words in given["require"] for word in words))
    capability = parts.detect(asks_torch=True, deep=given["deep"])
    lacking = missing(capability, required)
    smoked = parts.smoke(capability) if given["smoke"] else ()
    rehearsal = None if given["gang"] is None else parts.rehearse(given["gang"], capability)
    checks = [
        *check_machine(capability),
        *check_surroundings(parts.survey),
        *check_devices(capability),
        *check_torch(capability),
        check_recipes(len(capability.recipes), parts.recipes[1]),
        *check_smoke(smoked),
        *_check_gang(rehearsal),
        *check_required(lacking),
    ]
    _show(call, capability, checks)
    call.out.object(
        {
            "format": _FORMAT,
            "stoker_version": parts.version,
            "is_ready": not lacking,
            "required": list(required),
            "missing": [one.word for one in lacking],
            "is_fake": capability.is_fake,
            "label": faked_by(capability),
            "checks": [check.to_dict() for check in checks],
            "smoke": [one.to_dict() for one in smoked],
            "gang": None if rehearsal is None else rehearsal.to_dict(),
            "capability": capability.to_dict(),
        }
    )
    if lacking and not call.out.is_terminal:
        # On a terminal the check's own line says it.
        for one in lacking:
            call.out.complain(f"stoker: {one.message}\nhint: {one.hint}")
    if rehearsal is not None and rehearsal.error is not None:
        return rehearsal.error.exit_code
    return 1 if lacking or any(one.is_wrong for one in smoked) else 0


def _check_gang(rehearsal: GangSelfTest | None) -> tuple[Check, ...]:
    if rehearsal is None:
        return ()
    from stoker.views.device_lines import check_gang

    return check_gang(rehearsal)


def _show(call: CommandContext, capability: Capability, checks: list[Check]) -> None:
    out = call.out
    label = f" ({faked})" if (faked := faked_by(capability)) else ""
    out.line(
        f"{capability.hostname}: Stoker {call.parts.version}, {capability.os} {capability.arch}, "
        f"Python {capability.python_version}{label}"
    )
    signs = out.signs
    out.lines(check_lines(checks, signs=signs, columns=out.columns, paint=out.paint))
    out.line(summary(checks))


# `stoker preflight`: what this installation can use, and what is there to be used.

# `stoker gpu-preflight`: which accelerators work here, as fields for scripts; `--require` fails without one.

_YES = {True: "yes", False: "no"}

GPU_PREFLIGHT_GRAMMAR = Grammar(
    "gpu-preflight",
    about=(
        "Say which accelerators programs can use here: cuda and rocm with their versions, metal, wgpu (implied by any "
        "other), and whether there is any. Exit code 0; with --require, 1 if there is none."
    ),
    options=(
        Option("--require", help="fail with exit code 1 if there is none"),
        Option("--format", value="HOW", help="`text` (the default) or `json`, which is what --json writes"),
    ),
    examples=("stoker gpu-preflight", "stoker gpu-preflight --require --format json"),
)


def perform_gpu_preflight(call: CommandContext, given: dict[str, Any]) -> int:
    """Look and answer."""
    out = call.out
    how = given["format"] or ("json" if out.is_json else "text")
    if how not in ("text", "json") or (out.is_json and how == "text"):
        what = "--json and --format text contradict each other" if how == "text" else f"there is no format {how!r}"
        raise Usage(what, hint="--format text, --format json, or --json")
    capability = call.parts.capability
    fields = preflight_fields(capability)
    _answer(out, fields, faked_by(capability), is_text=how == "text")
    if given["require"] and not fields["any_available"]:
        out.complain("stoker: no accelerator can be used here")
        out.complain("hint: stoker doctor says what is installed, visible and usable, and what to do")
        return 1
    return 0


def _answer(out: CliOutput, fields: dict[str, Any], label: str, *, is_text: bool) -> None:
    if out.is_json:
        out.object(fields)
    elif not is_text:
        out.line(dumps(fields))
    else:
        out.lines(field_lines(fields, label))


def field_lines(fields: dict[str, Any], label: str) -> list[str]:
    """Return the fields as a person reads them, one a line."""
    lines = []
    for name, value in fields.items():
        # The version is unknown of something that is there.
        unsaid = "unknown" if fields.get(name.removesuffix("_version")) else "none"
        lines.append(f"{name}: {unsaid if value is None else value if isinstance(value, str) else _YES[value]}")
    return [*lines, label] if label else lines


PREFLIGHT_GRAMMAR = Grammar(
    "preflight",
    about=(
        "Say what this installation can use (the library that asks NVIDIA's driver, vendors' tools on PATH, torch in "
        "which Python) and what is there at run time, as `stoker gpu-preflight` says. Exit code 0 either way."
    ),
    examples=("stoker preflight", "stoker preflight --json"),
)


def perform_preflight(call: CommandContext, _given: dict[str, Any]) -> int:
    """Look at both."""
    out = call.out
    capability = call.parts.capability
    compiled = _compiled(call, capability)
    runtime = preflight_fields(capability)
    out.object({"compiled": compiled, "runtime": runtime, "label": faked_by(capability)})
    out.line("this installation can use")
    out.table(_rows(compiled), indent="  ")
    out.line("\nhere and now")
    for line in field_lines(runtime, faked_by(capability)):
        out.line(f"  {line}")
    return 0


def _compiled(call: CommandContext, capability: Capability) -> dict[str, Any]:
    return {
        "nvidia_ml_py": _installed("nvidia-ml-py"),
        "tools": {name: program_on_path(name, call.parts.settings.environment) or None for name in TOOLS},
        "torch": [_told(one) for one in capability.interpreters],
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _told(one: MachineInterpreter) -> dict[str, Any]:
    return {
        "python": one.path,
        "python_version": one.version,
        "torch": one.torch or None,
        "torch_cuda": one.torch_cuda or None,
    }


def _rows(compiled: dict[str, Any]) -> list[list[str]]:
    library = compiled["nvidia_ml_py"]
    rows = [["NVML", f"nvidia-ml-py {library}" if library else "nvidia-ml-py is not installed"]]
    rows += [[name, path] for name, path in compiled["tools"].items() if path]
    if not any(compiled["tools"].values()):
        rows.append(["tools", f"none on PATH of {', '.join(TOOLS)}"])
    for one in compiled["torch"]:
        built = f" for {one['torch_cuda']}" if one["torch_cuda"] else ""
        said = f"{one['torch']}{built}" if one["torch"] else "none"
        rows.append(["torch", f"{said} in {one['python']}"])
    return rows
