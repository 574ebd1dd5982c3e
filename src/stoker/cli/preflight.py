"""`stoker preflight`: what this installation can use, and what is there to be used."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option
from stoker.cli.output import CliOutput
from stoker.core.capability import Capability, MachineInterpreter
from stoker.core.errors import Usage
from stoker.core.jsontext import dumps
from stoker.devices.checkup import faked_by, preflight_fields
from stoker.devices.probes.inventory import TOOLS
from stoker.devices.probes.readers import program_on_path
from stoker.views.text_tables import table

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
        for line in field_lines(fields, label):
            out.line(line)


def field_lines(fields: dict[str, Any], label: str) -> list[str]:
    """Return the fields as a person reads them, one a line."""
    lines = []
    for name, value in fields.items():
        # A version that nobody says of something that is there.
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
    for line in table(_rows(compiled), columns=out.columns, indent="  "):
        out.line(line)
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
