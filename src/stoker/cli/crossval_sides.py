"""The two sides of `stoker crossval`: their models, runtimes and machines, and what that means for the recipe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from stoker.cli.context import CommandContext
from stoker.core.errors import LocalFile, StokerError, Usage
from stoker.core.frozen import frozen
from stoker.crossval.plugin_lines import PluginCommand
from stoker.crossval.reference import find_reference, runtime_places, use_reference
from stoker.crossval.runtimes import (
    RUNTIMES,
    SEED,
    RuntimeChoice,
    RuntimePlaces,
    model_form,
    plugin_command,
    read_runtime,
    runtimes_for,
    whole_model,
)
from stoker.host.identity import mine
from stoker.store.environment_cache import EnvironmentCache

_URLS = ("http://", "https://")


@frozen
class ComparedSide:
    """One side as the command line describes it."""

    choice: RuntimeChoice
    runtime: str
    """As typed."""
    model: str
    """Its path, or the address of a server."""
    machine: str = ""
    """On which it runs; empty: on this one."""
    command: PluginCommand | None = None
    """How its plug-in is started on this machine; None if that can't be, and need not be."""

    @property
    def can_replay(self) -> bool:
        """Whether this machine can run single layers of it."""
        runtime = RUNTIMES.get(self.choice.name)
        is_here = not self.machine or self.choice.device == "cpu"
        return self.command is not None and is_here and runtime is not None and "replay" in runtime.can


def find_sides(call: CommandContext, given: Mapping[str, Any]) -> dict[str, ComparedSide]:
    """Return candidate and reference, in this order. Raises `LocalFile` without a model, `Usage`, `MissingExtra`."""
    settings = call.parts.settings
    typed = {side: given[side] or "" for side in ("candidate", "reference")}
    for runtime in filter(None, typed.values()):
        read_runtime(runtime)
    needs_model = not all(one.startswith(_URLS) for one in typed.values())
    model = given["model"] or (find_model(settings.folder) if needs_model else "")
    models = {"candidate": model, "reference": given["reference_model"] or model}
    places = _places(call)
    found = {}
    for side, path in models.items():
        machine = given[f"{side}_on"] or ""
        whole = path if path.startswith(_URLS) else whole_model(os.path.join(settings.folder, path))
        if not path.startswith(_URLS) and path and not os.path.exists(whole):
            raise LocalFile(f"there is no model {path!r}", hint="--model FILE or FOLDER; stoker fixtures makes one")
        runtime = typed[side] or _default(side, path)
        choice = read_runtime(runtime)
        if machine and choice.program:
            raise Usage(
                f"--{side}-on {machine}: the program {choice.label} is not sent to other machines",
                hint=f"--{side} torch, llama.cpp, onnx or a server; or copy the program there, and compare there",
            )
        command: PluginCommand | None = None
        try:
            seed = SEED if given["seed"] is None else given["seed"]
            command = plugin_command(choice, places, seed=seed, form=model_form(whole))
        except StokerError:
            # The other machine has its own interpreters.
            if not machine:
                raise
        found[side] = ComparedSide(
            choice=choice, runtime=runtime, model=choice.url or whole, machine=machine, command=command
        )
    return found


def hold_reference(call: CommandContext, sides: Mapping[str, ComparedSide], stack: ExitStack) -> None:
    """Keep the fetched reference from being pruned until `stack` closes, if a side runs in it here."""
    shelf = EnvironmentCache(call.parts.settings.envs, clock=call.parts.clock)
    found = find_reference(shelf)
    commands = [one.command.argv[0] for one in sides.values() if one.command is not None and not one.machine]
    if found is not None and found.interpreter in commands:
        stack.enter_context(use_reference(shelf, found.tag, owner=mine()))


def find_model(folder: str) -> str:
    """Return the model of a folder (C-36): the first one in `models/`, then in the folder itself."""
    for place in (os.path.join(folder, "models"), folder):
        for parent, folders, names in os.walk(place):
            folders.sort()
            found = sorted(name for name in names if name.endswith((".gguf", ".safetensors")))
            if found:
                path = os.path.join(parent, found[0] if found[0].endswith(".gguf") else "")
                return os.path.relpath(path, folder)
            if place == folder:
                break
    raise LocalFile(
        "there is no model in models/ or in this folder",
        hint="--model PATH; download one: stoker fetch; or make one: stoker fixtures --output models/tiny",
    )


def side_values(given: Mapping[str, Any], sides: Mapping[str, ComparedSide]) -> dict[str, Any]:
    """Return the arguments of the recipe that differ from its defaults."""
    values: dict[str, Any] = {}
    for side, one in sides.items():
        values[side] = one.model
        values[f"{side}_runtime"] = one.runtime
    replays = [side for side in ("reference", "candidate") if sides[side].can_replay]
    values["replay"] = replays[0] if replays else ""
    return {**values, **trace_values(given)}


def trace_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that both traces have."""
    options = {"text": "texts", "positions": "positions", "chunk": "chunk", "seed": "seed"}
    values = {key: given[name] for name, key in options.items() if given[name] not in (None, [])}
    return {
        **values,
        "layers": not given["no_layers"],
        "decode": not given["no_decode"],
        "strict": bool(given["strict"]),
    }


def _default(side: str, model: str) -> str:
    """Return the runtime of a side that was not named."""
    names = runtimes_for(model)
    if not names:
        raise Usage(f"--model {model}: its form is unknown", hint=f"name the runtimes: --{side} {', '.join(RUNTIMES)}")
    if side == "reference" and "llama.cpp" in names:
        return "llama.cpp"
    return names[0]


def _places(call: CommandContext) -> RuntimePlaces:
    settings = call.parts.settings
    return runtime_places(
        settings.envs, environment=settings.environment, folder=settings.folder, clock=call.parts.clock
    )
