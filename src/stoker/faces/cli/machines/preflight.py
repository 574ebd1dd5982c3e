"""`stoker preflight`: what this installation can use, and what is there to be used."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar
from stoker.faces.cli.machines.gpu_preflight import field_lines
from stoker.faces.view.tables import table
from stoker.hardware.probes.devices import TOOLS
from stoker.hardware.probes.evidence import program_on_path
from stoker.hardware.requiring import faked_by, preflight_fields
from stoker.model.capability import Capability, Interpreter

GRAMMAR = Grammar(
    "preflight",
    about=(
        "Say what this installation can use (the library that asks NVIDIA's driver, vendors' tools on PATH, torch in "
        "which Python) and what is there at run time, as `stoker gpu-preflight` says. Exit code 0 either way."
    ),
    examples=("stoker preflight", "stoker preflight --json"),
)


def perform(call: Call, _given: dict[str, Any]) -> int:
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


def _compiled(call: Call, capability: Capability) -> dict[str, Any]:
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


def _told(one: Interpreter) -> dict[str, Any]:
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
