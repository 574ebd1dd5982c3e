"""`stoker doctor`: check this machine; each line has a verdict and a hint."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.grammar import Grammar, Option, whole
from stoker.cli.screens import busy
from stoker.core.capability import Capability, MachineInterpreter
from stoker.core.errors import StokerError, Usage
from stoker.core.jsontext import dumps
from stoker.devices.checkup import (
    WORDS,
    Check,
    CheckStatus,
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
_CONNECT_S = 2.0
_S3_REQUEST_S = 5.0


def _read_ranks(text: str) -> int:
    """Parse a number of ranks; `auto` is 0."""
    return 0 if text == "auto" else whole(1)(text)


GRAMMAR = Grammar(
    "doctor",
    about=(
        "Check this machine: processors, memory, disks, each accelerator (installed, visible to programs, usable), "
        "torch, containment, clock, ports, and the pools of the coordinator if it is known. If the coordinator of "
        "this home stores objects in S3, two small ones are written there and deleted. ✓ is good, ! is a warning, ✗ "
        "prevents work; hints name the fix. Nothing else is changed. Exit code 1 only if something that "
        "--require names is missing, or if --smoke computes a wrong result; --gang has its own codes (54: a rank "
        "failed, 55: a rank timed out, 29: torch is missing)."
    ),
    options=(
        Option(
            "--require",
            value="WORDS",
            read=read_words,
            is_many=True,
            help=f"fail if one of these is not usable: {', '.join(WORDS)}",
            completes=tuple(WORDS),
        ),
        Option("--deep", help="also query torch in a child process, even without signs of a device"),
        Option("--smoke", help="run a small computation on the CPU and on each device, and compare the results"),
        Option(
            "--gang",
            value="N",
            read=_read_ranks,
            help="start N ranks that compute a sum together; auto: one for each GPU, at least 2",
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
    """Check this machine and print the result."""
    parts = call.parts
    required = tuple(dict.fromkeys(word for words in given["require"] for word in words))
    with busy(call, "checking this machine"):
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
            *_check_objects(call),
            *_check_pools(call),
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
        # On a terminal the check's line shows it.
        for one in lacking:
            call.out.complain(f"stoker: {one.message}\nhint: {one.hint}")
    if rehearsal is not None and rehearsal.error is not None:
        return rehearsal.error.exit_code
    return 1 if lacking or any(one.is_wrong for one in smoked) else 0


def _check_objects(call: CommandContext) -> list[Check]:
    """Return whether the bucket of this home's coordinator is reached and may be written; none if it has none."""
    from stoker.coordinator.storage.object_place import check_site, read_place
    from stoker.store.objects.s3_passes import read_site

    settings, name = call.parts.settings, "objects"
    try:
        place = read_place(settings.fleet)
        if not place.url:
            return []
        name = f"objects {place.url}"
        site = read_site(place.url, settings.environment)
        tried = check_site(site, settings.environment, clock=call.parts.clock, request_s=_S3_REQUEST_S)
    except StokerError as error:
        return [Check(name, CheckStatus.BAD, error.message, error.hint)]
    reached = f"reached at {site.endpoint}, may write"
    if lacking := [one.name for one in tried if not one.is_good]:
        message = f"{reached}; all bytes go through the coordinator, without {', '.join(lacking)}"
        return [Check(name, CheckStatus.WARN, message, "stoker admin objects check")]
    if not place.is_direct:
        message = f"{reached}; all bytes go through the coordinator, by an earlier check"
        return [Check(name, CheckStatus.WARN, message, "move to disk and back: stoker admin objects move --to disk")]
    return [Check(name, CheckStatus.OK, f"{reached}; machines transfer bytes directly")]


def _check_pools(call: CommandContext) -> list[Check]:
    """Return the pools of the coordinator that this home knows; none if it does not answer at once."""
    from stoker.api.job_lookup import open_client
    from stoker.views.pool_lines import PoolView, check_pool

    try:
        found = call.lookup.coordinator()
        if found is None:
            return []
        client, transport = open_client(call.parts, found, connect_s=_CONNECT_S, retry_s=0.0)
        with closing(transport):
            view = client.launch_view()
    except (StokerError, ModuleNotFoundError):
        # Commands of the fleet tell more of it.
        return []
    return [check_pool(PoolView.of(state, view)) for state in view.pools]


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


# `stoker gpu-preflight`: the usable accelerators as fields for scripts; `--require` fails without one.

_YES = {True: "yes", False: "no"}

GPU_PREFLIGHT_GRAMMAR = Grammar(
    "gpu-preflight",
    about=(
        "Show which accelerators programs can use here: cuda and rocm with versions, metal, wgpu (implied by any "
        "other), and whether there is any. Exit code 0; with --require, 1 if there is none."
    ),
    options=(
        Option("--require", help="fail with exit code 1 if there is none"),
        Option(
            "--format",
            value="HOW",
            help="text or json; json is the same as --json (default: text)",
            completes=("text", "json"),
        ),
    ),
    examples=("stoker gpu-preflight", "stoker gpu-preflight --require --format json"),
)


def perform_gpu_preflight(call: CommandContext, given: dict[str, Any]) -> int:
    """Print the usable accelerators."""
    out = call.out
    how = given["format"] or ("json" if out.is_json else "text")
    if how not in ("text", "json") or (out.is_json and how == "text"):
        what = "--json and --format text contradict each other" if how == "text" else f"unknown format {how!r}"
        raise Usage(what, hint="--format text, --format json, or --json")
    capability = call.parts.capability
    fields = preflight_fields(capability)
    _print_fields(out, fields, faked_by(capability), is_text=how == "text")
    if given["require"] and not fields["any_available"]:
        out.complain("stoker: no usable accelerator on this machine")
        out.complain("hint: stoker doctor")
        return 1
    return 0


def _print_fields(out: CliOutput, fields: dict[str, Any], label: str, *, is_text: bool) -> None:
    if out.is_json:
        out.object(fields)
    elif not is_text:
        out.line(dumps(fields))
    else:
        out.lines(field_lines(fields, label))


def field_lines(fields: dict[str, Any], label: str) -> list[str]:
    """Return the fields as text, one per line."""
    lines = []
    for name, value in fields.items():
        # A present accelerator may have an unknown version.
        missing_text = "unknown" if fields.get(name.removesuffix("_version")) else "none"
        lines.append(f"{name}: {missing_text if value is None else value if isinstance(value, str) else _YES[value]}")
    return [*lines, label] if label else lines


PREFLIGHT_GRAMMAR = Grammar(
    "preflight",
    about=(
        "Show what this installation can use (NVIDIA's management library, vendor tools on PATH, torch and its "
        "Python) and the accelerators found, as in `stoker gpu-preflight`. Exit code 0 in both cases."
    ),
    examples=("stoker preflight", "stoker preflight --json"),
)


def perform_preflight(call: CommandContext, _given: dict[str, Any]) -> int:
    """Print installation and accelerators."""
    out = call.out
    capability = call.parts.capability
    compiled = _compiled(call, capability)
    runtime = preflight_fields(capability)
    out.object({"compiled": compiled, "runtime": runtime, "label": faked_by(capability)})
    out.line("this installation can use")
    out.table(_rows(compiled), indent="  ")
    out.line("\nfound on this machine")
    for line in field_lines(runtime, faked_by(capability)):
        out.line(f"  {line}")
    return 0


def _compiled(call: CommandContext, capability: Capability) -> dict[str, Any]:
    return {
        "nvidia_ml_py": _installed("nvidia-ml-py"),
        "tools": {name: program_on_path(name, call.parts.settings.environment) or None for name in TOOLS},
        "torch": [_interpreter_as_json(one) for one in capability.interpreters],
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _interpreter_as_json(one: MachineInterpreter) -> dict[str, Any]:
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
        installed = f"{one['torch']}{built}" if one["torch"] else "none"
        rows.append(["torch", f"{installed} in {one['python']}"])
    return rows
