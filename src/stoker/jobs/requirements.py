"""What a job asks of its machine: as the manifest says, else as its recipe's stages need it.

Pure. A number that a person wrote always wins over one that a recipe declares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stoker.config.manifest_file import JobEntry
from stoker.core.device import GIB, Backend, Needs
from stoker.core.digests import digest_value
from stoker.core.errors import Diagnostic, InvalidInput
from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference, Requirements
from stoker.core.text import parse_size
from stoker.engine.code_identity import CodeIdentity
from stoker.engine.plan import Plan
from stoker.engine.recipe import Recipe
from stoker.engine.stage import SharedBase
from stoker.jobs.builder import JobBuilder

_MOST_CORES = 65_536
ABOUT_DEVICES = frozenset({"require_cuda", "prefer_cuda", "min_vram_gib", "gpus", "shares", "base"})
_WISHES = frozenset({"require_cuda", "prefer_cuda", "gpus"})
_MOST_ON_CPU_BYTES = 8 * GIB
"""A job that needs more RAM than this on a CPU requires a device (default)."""
_PROCESS_RAM_BYTES = 4 * GIB
_MEMBER_RAM_BYTES = GIB // 4
"""What the process takes of RAM that works on a device for all jobs of one base, and what each of them takes beside."""


def required_of_entry(
    entry: JobEntry, said: Collection[str], needs: Needs, shared: SharedBase | None = None, gpus: int | None = None
) -> Requirements:
    """Return what a manifest's job requires; `said` are the keys that it has, `needs` those of its stages.

    Of one that `shared` a base, `gpus` is what its arguments say of devices.
    """
    wanted = entry.wanted().requirements
    if shared is not None:
        wanted = _sharing(wanted, said, shared, gpus)
    elif ABOUT_DEVICES.isdisjoint(said) and needs.gpu:
        wanted = _on_device(wanted, needs)
    if "gpu_backend" in said:
        wanted = changed(wanted, backend=entry.gpu_backend)
    if "min_ram_gib" not in said and needs.memory_bytes and shared is None:
        wanted = changed(wanted, ram_bytes=needs.memory_bytes)
    if "min_cores" not in said and needs.cpu > 1:
        wanted = changed(wanted, cores=needs.cpu)
    return wanted


def required_of_needs(needs: Needs, shared: SharedBase | None = None, gpus: int | None = None) -> Requirements:
    """Return the requirements of a recipe's job: nothing declared is nothing required."""
    wanted = Requirements(ram_bytes=needs.memory_bytes, cores=needs.cpu if needs.cpu > 1 else 0)
    if shared is not None:
        return _sharing(wanted, (), shared, gpus)
    return _on_device(wanted, needs) if needs.gpu else wanted


def required_of_program(args: Mapping[str, Any]) -> Requirements:
    """Return what a program requires by its settings: gpus=, gpu_backend=, ranks=, vram=, shares=, memory=, cpus=.

    Without a word about devices it gets one if one fits, as `stoker run` gives it one if there are any.
    """
    gpus, vram, backend = args.get("gpus"), args.get("vram") or "", args.get("gpu_backend")
    wish = DevicePreference.REQUIRE if gpus or vram or backend else DevicePreference.PREFER
    if gpus == 0:
        wish = DevicePreference.NEVER
    memory = args.get("memory") or ""
    return Requirements(
        wish=wish,
        backend=Backend(backend) if backend else Backend.CUDA,
        device_count=gpus or args.get("ranks") or 1,
        vram_bytes=parse_size(vram) if vram else 0,
        ram_bytes=parse_size(memory) if memory else 0,
        cores=min(args.get("cpus") or 0, _MOST_CORES),
        may_share=bool(args.get("shares")) and gpus != 0,
    )


def _sharing(wanted: Requirements, said: Collection[str], shared: SharedBase, gpus: int | None) -> Requirements:
    """Return what a job requires that shares a base. What the submitting machine has of devices is no part of it."""
    on_cpu_bytes = shared.base_ram_bytes + shared.member_ram_bytes
    wish = wanted.wish if not _WISHES.isdisjoint(said) else _wish(gpus, on_cpu_bytes)
    base_ram, own_ram = shared.base_ram_bytes, shared.member_ram_bytes
    if wish is DevicePreference.REQUIRE:
        base_ram, own_ram = _PROCESS_RAM_BYTES, _MEMBER_RAM_BYTES
    found: dict[str, Any] = {"wish": wish}
    ram_bytes = wanted.ram_bytes if "min_ram_gib" in said else base_ram + own_ram
    found |= {"ram_bytes": ram_bytes, "base_ram_bytes": min(base_ram, ram_bytes)}
    if "base" not in said:
        found["base"] = shared.share_key
    if "gpus" not in said and gpus:
        found["device_count"] = gpus
    if wish is not DevicePreference.NEVER:
        if "min_vram_gib" not in said:
            found["vram_bytes"] = shared.base_bytes + shared.member_bytes
        if "shares" not in said:
            found["may_share"] = True
        if "base_gib" not in said:
            found["base_bytes"] = shared.base_bytes
    return changed(wanted, **found)


def _wish(gpus: int | None, on_cpu_bytes: int) -> DevicePreference:
    if gpus is None:
        return DevicePreference.PREFER if on_cpu_bytes <= _MOST_ON_CPU_BYTES else DevicePreference.REQUIRE
    return DevicePreference.REQUIRE if gpus else DevicePreference.NEVER


def _on_device(wanted: Requirements, needs: Needs) -> Requirements:
    return changed(
        wanted,
        wish=DevicePreference.REQUIRE,
        backend=Backend(needs.gpu_backend) if needs.gpu_backend else wanted.backend,
        device_count=needs.gpu,
        vram_bytes=needs.vram_bytes,
        may_share=needs.shares,
    )


COUNTED = frozenset({"cpus", "gpus", "ranks"})
"""Arguments whose number says what a job takes, in every recipe that has them."""


@frozen
class PlanShape:
    """What jobs of one shape have in common."""

    needs: Needs = Needs(cpu=0)
    """The most that any of its stages takes."""
    files: frozenset[str] = frozenset()
    """The user's files that its stages read."""
    code: str = ""
    """A digest of the code of all its stages."""
    faults: tuple[Diagnostic, ...] = ()
    """Why it can't be compiled."""


class PlanShapes:
    """Compiles plans, one for each shape.

    A plan is compiled once for each shape of arguments, not for each job: jobs that differ in numbers alone have the
    same stages, files and needs, but for numbers that are needs by their name (`COUNTED`). So a number that a recipe
    refuses only when it compiles may be found by the worker alone.
    """

    def __init__(self, builder: JobBuilder, code: CodeIdentity) -> None:
        # It runs elsewhere: what this machine has of devices and memory is nothing to it.
        elsewhere = changed(builder.surroundings, rooms=dict, memory=lambda: None)
        self._builder = changed(builder, count_gpus=lambda: 0, surroundings=elsewhere)
        self._code = code
        self._known: dict[Any, PlanShape] = {}
        self._digests: dict[frozenset[str], str] = {}

    def of(
        self,
        recipe: Recipe,
        values: Mapping[str, Any],
        said: tuple[str, ...],
        stand_ins: frozenset[str] = frozenset(),
    ) -> PlanShape:
        """Return the shape of a job whose values are defaults but for those said; nothing is judged by `stand_ins`."""
        outlines = [(name, values[name] if name in COUNTED else _outline(values[name])) for name in said]
        key = (recipe.name, stand_ins, *outlines)
        shape = self._known.get(key)
        if shape is None:
            shape = self._compiled(recipe, values, stand_ins)
            if not shape.faults:
                # What is wrong may be a number of this job's alone.
                self._known[key] = shape
        return shape

    def _compiled(self, recipe: Recipe, values: Mapping[str, Any], stand_ins: frozenset[str]) -> PlanShape:
        builder = changed(self._builder, surroundings=changed(self._builder.surroundings, stand_ins=stand_ins))
        try:
            plan = builder.compile(recipe, values)
        except InvalidInput as error:
            prefix = f"{recipe.name}."
            return PlanShape(
                faults=tuple(
                    Diagnostic(fault.where.removeprefix(prefix), fault.message, fault.hint) for fault in error.faults
                )
            )
        needs = [node.needs for node in plan.nodes]
        on_device = [one for one in needs if one.gpu]
        return PlanShape(
            needs=Needs(
                cpu=max(one.cpu for one in needs),
                gpu=max(one.gpu for one in needs),
                memory_gib=max(one.memory_gib for one in needs),
                vram_gib=max(one.vram_gib for one in needs),
                gpu_backend=max(one.gpu_backend for one in needs),
                shares=bool(on_device) and all(one.shares for one in on_device),
            ),
            files=frozenset(path for node in plan.nodes for path in node.stage.args.paths_in(node.args)),
            code=self._code_of(plan),
        )

    def _code_of(self, plan: Plan) -> str:
        modules = frozenset(node.stage.module for node in plan.nodes)
        if modules not in self._digests:
            made_of = {module: self._code.modules_of(module) for module in modules}
            self._digests[modules] = digest_value("job-code", made_of)
        return self._digests[modules]


def _outline(value: Any) -> Any:
    """Return what of a value may change a plan: text, words and structure, but no numbers."""
    kind = type(value)
    if kind is float or kind is int:
        return kind
    if kind is dict:
        return tuple((key, _outline(item)) for key, item in value.items())
    if kind is list or kind is tuple:
        return tuple(map(_outline, value))
    return value
