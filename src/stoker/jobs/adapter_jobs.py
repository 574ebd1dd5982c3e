"""Jobs of adapters files: each adapter is a trial, with its own label and checkpoints; trials that share a process.

The recipe that trains one adapter checks the values. Its faults, also those found when its plan is compiled (a missing
base, a rank that is too large), are reported with line and key of the file, all in one error, together with the faults
of the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.config.adapters_file import (
    WHOSE_TURN,
    AdapterEntry,
    AdaptersContext,
    ParsedAdapter,
    ParsedAdaptersFile,
    argument_of,
    read_adapters_into,
)
from stoker.config.fields import FileDiagnostics
from stoker.config.positions import ConfigLayer
from stoker.config.values import Schema, found, same, with_value
from stoker.core.device import GIB, Needs
from stoker.core.digests import encode
from stoker.core.errors import (
    Damaged,
    Diagnostic,
    InvalidAdapters,
    InvalidArgs,
    InvalidInput,
    MissingRepoFiles,
    StokerError,
)
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JobSpec
from stoker.core.text import is_job_name
from stoker.engine.plan import Plan, PlanNode
from stoker.engine.recipe import Recipe
from stoker.engine.stage import SharedBase
from stoker.jobs.request import JobRequest, compose_request, given_twice, swept_lists
from stoker.jobs.trials import Trial

if TYPE_CHECKING:
    from stoker.devices.estimate.shared_base import MultiAdapterNeeds

LORA = "language/lora"
"""Trains one adapter."""
BUNDLED_DATA = ("sums", "chats", "lines", "preferences")
"""Data that the recipe contains."""
_NAME = "adapters"
_TYPED = (ConfigLayer.ENVIRONMENT, ConfigLayer.OVERRIDE)
_NOT_COMPARED = frozenset({"label", "checkpoints", "adapter_index"})


@frozen
class _Typed:
    """The values of the command line."""

    values: Mapping[str, Any]
    """By argument."""
    notes: tuple[str, ...]


def read_adapters(
    request: JobRequest,
    recipe: Recipe,
    compile_plan: Callable[[Recipe, Mapping[str, Any]], Plan],
    *,
    folder: str,
    environment: Mapping[str, str],
    fetches: Callable[[], bool],
) -> AdapterSpecs:
    """Read an adapters file. The request's overrides are defaults for all of its adapters.

    Raises `InvalidAdapters` with all faults of the file and of the overrides. If `fetches` returns True, a base that
    the hub may have is not a fault beside others.
    """
    schema = recipe.args.declared()
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(request.target)))
    wrong: InvalidInput | None = None
    typed = _Typed(values={}, notes=())
    try:
        typed = _typed(request, schema, folder, environment)
    except InvalidInput as error:
        wrong = error
        # The overrides may have set the base: the file alone can't be blamed for missing it.
        typed = _Typed(values={"base": None}, notes=())
    base = JobSpec(
        id="",
        name=request.name or name_of(path),
        recipe=recipe.name,
        schema_version=recipe.version,
        folder=folder,
    )
    adapters = AdapterSpecs(recipe, compile_plan, typed, base=base, fetches=fetches, is_whole=wrong is None)
    try:
        read_adapters_into(adapters.make, request.target, path, around_here(schema, typed.values))
    except InvalidAdapters as error:
        error.lacks = adapters.lacks
        raise _joined(wrong, error) if wrong is not None else error from None
    if wrong is not None:
        raise wrong
    return adapters


def around_here(schema: Schema, given: Mapping[str, Any] | None = None) -> AdaptersContext:
    """Return what the reader of an adapters file needs beside the file; `schema` is the recipe's."""
    from stoker.transfer.hub.listing import may_be_data_set  # noqa: PLC0415 - only adapters files need it

    return AdaptersContext(schema=schema, data=BUNDLED_DATA, may_be_elsewhere=may_be_data_set, given=given)


def around_board() -> AdaptersContext:
    """Return the same for a list of adapters: missing data does not matter there."""
    from stoker.transfer.hub.listing import may_be_data_set  # noqa: PLC0415 - only adapters files need it

    return AdaptersContext(data=BUNDLED_DATA, may_be_elsewhere=may_be_data_set, checks_data=False)


def name_of(path: str) -> str:
    """Return the default name of a file's job."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return stem if is_job_name(stem) else _NAME


@frozen
class _Refused:
    """An adapter that can't be trained; its faults are noted."""

    lacks: tuple[MissingRepoFiles, ...]
    """The files that have to be fetched, if nothing else is wrong with it."""


class AdapterSpecs:
    """The adapters of one file as checked jobs, each with its plan."""

    def __init__(
        self,
        recipe: Recipe,
        compile_plan: Callable[[Recipe, Mapping[str, Any]], Plan],
        typed: _Typed,
        *,
        base: JobSpec,
        fetches: Callable[[], bool],
        is_whole: bool,
    ) -> None:
        self.specs: list[JobSpec] = []
        self.plans: list[Plan] = []
        self.notes: list[str] = [*typed.notes]
        self.lacks: tuple[MissingRepoFiles, ...] = ()
        """The files that have to be fetched, if nothing else is wrong."""
        self._lacking = 0
        """The number of faults so far that fetching may remove."""
        self._recipe = recipe
        self._compile = compile_plan
        self._typed = typed
        self._base = base
        self._fetches = fetches
        self._is_whole = is_whole
        """False if the command line has faults: then the values of an adapter are not known."""

    def make(self, whole: ParsedAdaptersFile, reading: FileDiagnostics) -> None:
        # A file with faults is read twice.
        self.specs, self.plans, self.notes, self.lacks = [], [], [*self._typed.notes], ()
        if not self._is_whole:
            return
        lacks: dict[MissingRepoFiles, None] = {}
        self._lacking = 0
        shared = self._shared(whole)
        noted: set[str] = set()
        first: dict[bytes, str] = {}
        for one in whole.adapters:
            if one.entry is None:
                continue
            before = reading.count
            checked = self._checked(one, one.entry, shared, whole, reading, noted)
            if isinstance(checked, _Refused):
                lacks |= dict.fromkeys(checked.lacks)
                self._lacking += reading.count - before if checked.lacks else 0
                continue
            args, plan = checked
            identity = encode(self._recipe.args.identity(args, str))
            if (same_as := first.setdefault(identity, one.entry.label)) != one.entry.label:
                message = f"{one.entry.label} is the same as {same_as}: same data, same values"
                one.note("label", message, "leave out one, or give it another seed", reading)
                continue
            self.plans.append(plan)
            self.specs.append(changed(self._base, number=one.entry.number, label=one.entry.label, args=args))
        points = _points([spec.args for spec in self.specs])
        self.specs = [changed(spec, point=point) for spec, point in zip(self.specs, points, strict=True)]
        self._note_overridden(whole)
        if reading.count and not self.plans:
            self._check_base(shared, whole, reading, noted)
        self.lacks = tuple(lacks) if self._lacking == reading.count else ()

    def _shared(self, whole: ParsedAdaptersFile) -> dict[str, Any]:
        """Return the values for all adapters: the top of the file, and the command line over it."""
        shared = dict(whole.file.shared)
        base = shared.get("base")
        if type(base) is str:
            folder = os.path.join(os.path.dirname(whole.file.path), os.path.expanduser(base))
            shared["base"] = os.path.normpath(folder) if os.path.exists(folder) else base
        if "rank" in self._typed.values and "alpha" not in self._typed.values:
            shared.pop("alpha", None)
        return {**shared, **self._typed.values}

    def _checked(
        self,
        one: ParsedAdapter,
        entry: AdapterEntry,
        shared: Mapping[str, Any],
        whole: ParsedAdaptersFile,
        reading: FileDiagnostics,
        noted: set[str],
    ) -> tuple[dict[str, Any], Plan] | _Refused:
        """Return an adapter's checked arguments and its plan, or note its faults."""
        own = {"data": entry.data, "checkpoints": entry.checkpoint, "label": entry.label}
        values: dict[str, Any] = {}
        for path, value in {**shared, **entry.values, **own, "adapter_index": entry.number - 1}.items():
            values = with_value(values, path.split("."), value)
        args, faults = self._recipe.args.check(values, owner=self._recipe.name)
        lacks: tuple[MissingRepoFiles, ...] = ()
        if not faults:
            try:
                return args, self._compile(self._recipe, args)
            except InvalidArgs as error:
                faults, lacks = list(error.faults), error.lacks
            except Damaged as error:
                faults = [Diagnostic(str(error.data.get("where", "")), str(error.data.get("why", error)), error.hint)]
        if lacks and reading.count > self._lacking and self._fetches():
            # It is fetched once the other faults are gone.
            return _Refused(lacks=lacks)
        for fault in faults:
            self._note(fault, one, whole, reading, noted)
        return _Refused(lacks=lacks)

    def _note(
        self,
        fault: Diagnostic,
        one: ParsedAdapter,
        whole: ParsedAdaptersFile,
        reading: FileDiagnostics,
        noted: set[str],
    ) -> None:
        """Note a fault at its value: in the adapter, at the top of the file, or on the command line."""
        argument = fault.where.removeprefix(f"{self._recipe.name}.")
        if one.has(argument):
            one.note(argument, fault.message, fault.hint, reading)
        elif argument in whole.top.words or argument in self._typed.values:
            self._note_of_all(argument, fault, whole, reading, noted)
        else:
            reading.refuse(one.given.node, one.given.key, f"{argument}: {fault.message}", fault.hint)
        noted.add(str(fault))

    def _note_of_all(
        self, argument: str, fault: Diagnostic, whole: ParsedAdaptersFile, reading: FileDiagnostics, noted: set[str]
    ) -> None:
        """Note a fault of a value for all adapters, once: at the top of the file or on the command line."""
        if str(fault) in noted:
            return
        if argument in self._typed.values:
            reading.add([Diagnostic(f"{argument}=", fault.message, fault.hint)])
        else:
            whole.top.note(argument, fault.message, fault.hint, reading)

    def _check_base(
        self, shared: Mapping[str, Any], whole: ParsedAdaptersFile, reading: FileDiagnostics, noted: set[str]
    ) -> None:
        """Note the faults of the base if no adapter was checked far enough to find them."""
        args, wrong = self._recipe.args.check({"base": shared.get("base")}, owner=self._recipe.name)
        if wrong:
            return
        try:
            self._compile(self._recipe, args)
        except InvalidArgs as error:
            if error.lacks and self._fetches():
                return
            for fault in error.faults:
                if fault.where == f"{self._recipe.name}.base":
                    self._note_of_all("base", fault, whole, reading, noted)
        except StokerError:
            return

    def _note_overridden(self, whole: ParsedAdaptersFile) -> None:
        """Note which values of the command line are overridden by adapters."""
        for argument, value in self._typed.values.items():
            others = [one.label for one in whole.file.adapters if not same(one.values.get(argument, value), value)]
            if others:
                listed = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
                verb = "overrides" if len(others) == 1 else "override"
                self.notes.append(f"{argument} is a default for all adapters: {listed} {verb} it")


def _typed(request: JobRequest, schema: Schema, folder: str, environment: Mapping[str, str]) -> _Typed:
    """Return the values of the command line. Raises `InvalidArgs` if they are a sweep."""
    composed, overrides = compose_request(
        JobRequest(overrides=tuple(_renamed(word) for word in request.overrides)),
        schema=_with_turns(schema),
        environment=environment,
        folder=folder,
        owner=LORA,
    )
    if composed.sweep is not None:
        hint = "; ".join(swept_lists(overrides, schema)) or (
            "one [[adapter]] for each; or without a file: stoker run language/lora with the same values"
        )
        fault = Diagnostic("", "the adapters of a file are not swept", hint)
        raise InvalidArgs(str(fault), faults=(fault,))
    paths = [path for path, stack in composed.origins.items() if stack[-1].origin.layer in _TYPED]
    of_one = [path for path in paths if path in ("data", *_NOT_COMPARED)]
    if of_one:
        faults = tuple(
            Diagnostic(path, "each adapter of the file has its own", "set it in the file") for path in of_one
        )
        raise InvalidArgs(str(faults[0]), faults=faults)
    return _Typed(
        values={path: found(composed.values, path.split(".")) for path in paths},
        notes=tuple(given_twice(overrides, schema)),
    )


def _with_turns(schema: Schema) -> Schema:
    """Return the schema with an error of `schedule` that also names the adapters' own schedules."""
    declared = schema.leaves["schedule"]

    def read(text: str) -> Any:
        try:
            return declared.read(text)
        except ValueError as error:
            message = f"{error}; {WHOSE_TURN}"
            raise ValueError(message) from None

    return changed(schema, leaves={**schema.leaves, "schedule": changed(declared, read=read)})


def _renamed(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{argument_of(key, value)}{equals}{value}"


def _joined(typed: InvalidInput, file: InvalidInput) -> InvalidInput:
    found_all = (*typed.faults, *file.faults)
    return InvalidAdapters(
        f"{typed.count + file.count:,} errors in the arguments and in the file",
        faults=found_all,
        hint=file.hint,
        count=typed.count + file.count,
    )


def _points(args_of: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the arguments that vary, for each adapter."""
    if not args_of:
        return []
    names = [
        name
        for name in args_of[0]
        if name not in _NOT_COMPARED and any(not same(one[name], args_of[0][name]) for one in args_of)
    ]
    return [{name: _without_folders(one[name]) if name == "data" else one[name] for name in names} for one in args_of]


def _without_folders(data: Any) -> Any:
    """Return data as in the file, as far as that tells sources apart: the last names of paths."""
    if type(data) is str:
        return os.path.basename(data) if os.path.isabs(data) else data
    if type(data) is dict:
        return {**data, "path": _without_folders(data["path"])}
    return [_without_folders(one) for one in data]


# What becomes of a job's trials that may work together: how many share a process, what that takes, what is free.
#
# Pure: what trials share is asked of their recipe, what the machine has is handed in. The run decides again, member by
# member, by what is free then. Only whether passes have all members is decided here, before the run: it changes what
# each member reserves.


@frozen
class SharedProcessCapacity:
    """What the machine has for work on one device, or on none."""

    device_bytes: int | None = None
    """Free on the device that has the most of it."""
    memory_bytes: int | None = None
    """Free of the machine's own."""
    elsewhere_bytes: tuple[int, ...] = ()
    """Free on each of the other devices."""
    has_process: bool = False
    """A shared process runs already. Its base may be theirs, so it is not known what all of them would take."""


@frozen
class SharedProcessEstimate:
    """The expected memory of one shared process."""

    members: int
    at_once: int
    """How many of them have room together; the rest comes after them."""
    base_bytes: int
    """Held once."""
    predicted_bytes: int
    """Of those that have room together, the base included."""
    free_bytes: int | None
    is_on_device: bool
    about: str = ""
    """Description of the base."""
    in_pass: int = 0
    """Maximum number of members in one pass; 0: all that run at once, as JSON says."""
    needs: Mapping[str, Needs] = fresh(factory=dict)
    """What nodes reserve instead of what their plan says, by their names: if a pass has some of the members only."""

    def to_json(self) -> dict[str, Any]:
        return {
            "members": self.members,
            "at_once": self.at_once,
            "in_pass": self.in_pass or self.at_once,
            "base_bytes": self.base_bytes,
            "predicted_bytes": self.predicted_bytes,
            "free_bytes": self.free_bytes,
            "is_on_device": self.is_on_device,
            "about": self.about,
        }


def estimate_shared_processes(
    nodes: Sequence[PlanNode],
    trials: Sequence[Trial],
    shared: Callable[[Trial], SharedBase | None],
    room: SharedProcessCapacity,
) -> list[SharedProcessEstimate]:
    """Estimate the shared processes that trials with some nodes become, in the order of their first members.

    What works alone makes none, and neither does a trial that has none of these nodes.
    """
    together = {node.id: node.needs for node in nodes if node.stage.together}
    groups: dict[str, list[str]] = {}
    about: dict[str, str] = {}
    for trial in trials:
        name = next((one for one in trial.nodes.nodes if one in together), None)
        base = shared(trial) if name is not None else None
        if name is not None and base is not None and base.share_key:
            groups.setdefault(base.share_key, []).append(name)
            about.setdefault(base.share_key, base.about)
    return [_forecast(names, together, room, about[word]) for word, names in groups.items()]


def with_needs_of(plan: Plan, estimates: Sequence[SharedProcessEstimate]) -> Plan:
    """Return a plan whose nodes reserve what these estimates say."""
    instead = {name: needs for one in estimates for name, needs in one.needs.items()}
    if not instead:
        return plan
    return changed(plan, nodes=tuple(changed(one, asks=instead.get(one.id, one.asks)) for one in plan.nodes))


def _forecast(
    names: Sequence[str], needs_of: Mapping[str, Needs], room: SharedProcessCapacity, about: str
) -> SharedProcessEstimate:
    # 7 ms that only shared processes need.
    from stoker.devices.estimate.fitting_adapters import members_fit, spare_of  # noqa: PLC0415

    members = [needs_of[name] for name in names]
    is_on_device = members[0].gpu > 0
    free_bytes = room.device_bytes if is_on_device else room.memory_bytes
    wanted = [_member_needs(one) for one in members]
    base_bytes = max(one.base_bytes for one in wanted)
    may = wanted[: min((one.most for one in members if one.most), default=len(members))]
    elsewhere_bytes = room.elsewhere_bytes if is_on_device else ()
    spare_bytes = spare_of(free_bytes or 0)
    fit = members_fit(free_bytes, may, elsewhere_bytes, divides=not room.has_process, spare_bytes=spare_bytes)
    # One begins whatever is free at the moment: it waits until there is room.
    at_once, divided = max(1, fit.at_once), fit.divided
    return SharedProcessEstimate(
        members=len(members),
        at_once=at_once,
        base_bytes=base_bytes,
        predicted_bytes=divided.base_bytes + at_once * divided.member_bytes
        if divided
        else base_bytes + sum(one.member_bytes for one in may[:at_once]),
        free_bytes=free_bytes,
        is_on_device=is_on_device,
        about=about,
        in_pass=fit.in_pass,
        needs={name: _reserving(needs_of[name], divided, fit.in_pass) for name in names} if divided else {},
    )


def _member_needs(needs: Needs) -> MultiAdapterNeeds:
    """Return what a member needs where it computes: of a device, or of the machine's memory."""
    from stoker.devices.estimate.shared_base import MultiAdapterNeeds  # noqa: PLC0415 - as above

    total_bytes, base_bytes = (
        (needs.vram_bytes, needs.base_bytes) if needs.gpu else (needs.memory_bytes, needs.base_memory_bytes)
    )
    return MultiAdapterNeeds(
        base_bytes=base_bytes,
        member_bytes=max(0, total_bytes - base_bytes),
        state_bytes=needs.state_bytes,
        pass_bytes=needs.pass_bytes,
    )


def _reserving(needs: Needs, divided: MultiAdapterNeeds, in_pass: int) -> Needs:
    """Return needs of a member of passes with so many members.

    What such a process takes says nothing of the estimate: it fills what is reserved. So it is not remembered.
    """
    total_gib, base_gib = divided.total_bytes / GIB, divided.base_bytes / GIB
    if needs.gpu:
        return changed(needs, vram_gib=total_gib, base_gib=base_gib, in_pass=in_pass, peaks=())
    return changed(needs, memory_gib=total_gib, base_memory_gib=base_gib, in_pass=in_pass, peaks=())
