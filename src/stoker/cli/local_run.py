"""Run a job on this machine: progress, interruptions, and the report at the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.dispatch import Interruptions, report, say_aside
from stoker.cli.run_report import ProgressLines, failure_lines, show_outcome
from stoker.cli.screens import PlainScreen, Screen
from stoker.core.device import Capacity, Device, Needs
from stoker.core.errors import Cancelled, InvalidFile, InvalidInput, MissingRepoFiles, NoPermission, StokerError
from stoker.core.events import Event, event_line
from stoker.core.frozen import changed
from stoker.core.text import counted, did_you_mean, format_size
from stoker.devices.admission import Admission, MachineMemory, admit, memory_here, shares
from stoker.engine.plan import MISSING, PlanNode
from stoker.engine.types import MAX_IN_FLIGHT, NodeEnding, NodeResult, RunOptions
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import Continuation, Execution, JobResult, abandon
from stoker.jobs.trials import is_sweep
from stoker.views.text_tables import ASCII, UNICODE
from stoker.views.trial_lines import SharedProcessRunView, forecast_lines, titles_of

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.jobs.adapter_jobs import SharedProcessEstimate


# Trainings whose results were known, so that their checkpoint folders were not written.

_COOKBOOK = "language"
_NAMED = 5
# Beyond it a comparison of names takes seconds.
_COMPARED = 2_000


def unwritten_text(build: JobBuild, nodes: Mapping[str, NodeResult]) -> str:
    """Name the cached trainings of a run without checkpoints in their folders; "" if there are none."""
    wanting = [node for node in build.plan.nodes if _is_unwritten(node, nodes)]
    if not wanting:
        return ""
    titles = {one: trial.spec.label for trial in build.trials for one in trial.nodes.nodes}
    missing = list(dict.fromkeys(titles.get(node.id) or build.spec.name for node in wanting))
    those = ", ".join(missing[:_NAMED]) + (" …" if len(missing) > _NAMED else "")
    known = "has a cached result and" if len(missing) == 1 else "have cached results and"
    stage = wanting[0].stage.name.rpartition("/")[2]
    return f"{those} {known} no checkpoints in the requested folder; train again with --rerun {stage}"


def _is_unwritten(node: PlanNode, nodes: Mapping[str, NodeResult]) -> bool:
    folder, result = node.args.get("checkpoints"), nodes.get(node.id)
    is_known = result is not None and result.ending is NodeEnding.HIT
    if not folder or not is_known or not node.stage.name.startswith(f"{_COOKBOOK}/"):
        return False
    from pathlib import Path

    from stoker.cookbooks.language.schemas import best_folder

    try:
        return not best_folder(Path(folder)).is_dir()
    except OSError:
        # An unreadable folder has no checkpoints of ours.
        return True


def run_build(
    call: CommandContext, build: JobBuild, going_on: Continuation, given: dict[str, Any], rerun: frozenset[str]
) -> int:
    """Run a job to its end; return the exit code."""
    call.out.goes_on_unread = call.out.is_watched = True
    tools = call.parts.tools
    if given["contain"] is not None:
        call.parts.contain_by(given["contain"])
    if not given["no_out"]:
        _check_out(_out_folder(call, given["out"]))
    options = _options(build, given, rerun, going_on)
    name = build.spec.name
    attempt = call.builder().new_attempt(build.spec, _options_as_json(options))
    if build.program is not None:
        _introduce(call, build, options)
    index = None
    if going_on.index is not None:
        index = changed(going_on.index, attempt=attempt.id)
        index.begin()
    tracking = None
    if given["wandb"] is not None:
        from stoker.cli.wandb import tracking_of

        tracking = tracking_of(call, build, attempt, given["wandb"])
    estimates = [] if options.solo else _estimated_shared_processes(call, build, going_on, rerun)
    if estimates:
        from stoker.jobs.adapter_jobs import with_needs_of

        build = changed(build, plan=with_needs_of(build.plan, estimates))
    signs = UNICODE if call.out.is_unicode else ASCII
    lines = tuple(line for one in estimates for line in forecast_lines(one, signs))
    shared = SharedProcessRunView(lines=lines, is_solo=options.solo)
    screen, listener, say = _listen(call, build, attempt.id, shared)
    execution = Execution(
        build=build,
        attempt=attempt,
        tools=tools,
        out=None if given["no_out"] else os.path.join(_out_folder(call, given["out"]), name),
        options=options,
        listeners=(listener,),
        index=index,
        ran_code=going_on.ran_code,
        gives_up=not given["keep_going"],
        followers=() if tracking is None else (tracking,),
        foreseen={"companies": [one.to_json() for one in estimates]} if estimates else {},
    )

    def leave() -> None:
        abandon(tools, attempt, Cancelled("interrupted twice"))
        os._exit(Cancelled.exit_code)

    try:
        with Interruptions(execution.cancel, say, leave):
            job = execution.run()
    finally:
        screen.close()
    for end in tracking.ends if tracking is not None else ():
        if end.where:
            call.out.note(f"wandb: {end.where}; send offline runs: wandb sync")
    return _tell(call, build, job, shared)


def _options(build: JobBuild, given: dict[str, Any], rerun: frozenset[str], going_on: Continuation) -> RunOptions:
    return RunOptions(
        max_in_flight=given["jobs"] or (1 if build.program is not None else MAX_IN_FLIGHT),
        keep_going=is_sweep(build.trials) or given["keep_going"] or given["max_failures"] is not None,
        max_failures=given["max_failures"],
        rerun=rerun,
        kept=going_on.kept,
        deadline_s=given["timeout"],
        solo=given["solo"],
    )


def _introduce(call: CommandContext, build: JobBuild, options: RunOptions) -> None:
    """Print the machine line of a program run."""
    warning = call.parts.containment.warning
    if warning:
        # Also with --quiet: the machine may freeze.
        call.out.complain(f"warning: {warning}")
    if not call.out.is_quiet:
        call.out.line(machine_line(call.parts, build, options))


def _tell(call: CommandContext, build: JobBuild, job: JobResult, shared: SharedProcessRunView) -> int:
    name = build.spec.name
    if is_sweep(build.trials):
        from stoker.cli.run_report import show_sweep_outcome

        show_sweep_outcome(call, build, job, shared)
    elif not call.flags.quiet:
        show_outcome(call, build, job)
    elif job.laid_out is not None:
        call.out.line(job.laid_out.folder)
    unwritten = unwritten_text(build, job.result.nodes) if job.result is not None else ""
    if unwritten:
        call.out.note(f"note: {unwritten}")
    for part in (call.parts.store.memo.trouble, call.parts.history.trouble):
        if part:
            call.out.note(f"note: an index is damaged; this only costs time: {part}")
    if job.error is None:
        return 0
    code = report(job.error, call.out, debug=call.flags.debug, is_in_stream=True)
    for line in () if is_sweep(build.trials) else failure_lines(job, name):
        call.out.complain(line)
    return code


def _listen(
    call: CommandContext, build: JobBuild, attempt: str, shared: SharedProcessRunView
) -> tuple[Screen, Callable[[Event, float, int], None], Callable[[str], None]]:
    """Return the screen to close, the journal's listener, and a printer for signal handlers."""
    out = call.out
    if out.is_json:

        def write(event: Event, at_s: float, seq: int) -> None:
            out.json_line(event_line(event, ts=at_s, seq=seq, source=attempt))

        return Screen(), write, say_aside
    titles = titles_of(build.plan, build.trials, job=build.spec.name, is_solo=shared.is_solo)
    near = call.parts.settings.folder
    if not out.is_quiet and out.is_terminal:
        from stoker.cli.screens import LiveScreen

        live = LiveScreen(out, call.parts.clock)
        # Not directly to the terminal, which is being drawn on.
        return live, ProgressLines(live, out, titles, near=near, shared=shared).take, live.mention
    screen = Screen() if out.is_quiet else PlainScreen(out, call.parts.clock)
    return screen, ProgressLines(screen, out, titles, near=near, shared=shared).take, say_aside


def _out_folder(call: CommandContext, given: str | None) -> str:
    settings = call.parts.settings
    return os.path.join(settings.folder, given) if given else settings.out


def _estimated_shared_processes(
    call: CommandContext, build: JobBuild, going_on: Continuation, rerun: frozenset[str]
) -> list[SharedProcessEstimate]:
    """Return the estimates of trials that will share a process."""
    if not any(node.stage.together for node in build.plan.nodes):
        return []
    from stoker.cli.dry_run import shared_processes_here
    from stoker.engine.preview import preview

    parts, kept = call.parts, going_on.kept
    seen = preview(build.plan, cache=parts.cache, history=parts.history, rerun=rerun, kept=kept)
    return shared_processes_here(call, build, seen)


def _check_out(folder: str) -> None:
    """Check before the run that the result folder is writable."""
    try:
        os.makedirs(folder, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise NoPermission(
            f"can't write results to {folder}", hint="choose another folder with --out DIR, or none with --no-out"
        )


def _options_as_json(options: RunOptions) -> dict[str, Any]:
    recorded = {
        "jobs": options.max_in_flight,
        "keep_going": options.keep_going,
        "max_failures": options.max_failures,
        "rerun": sorted(options.rerun),
        "timeout_s": options.deadline_s,
        "solo": options.solo,
    }
    return {name: value for name, value in recorded.items() if value not in (None, [], False)}


def _nearest_names(error: InvalidFile) -> str:
    """Return a hint with the names nearest to those of missing files.

    Only a command line gets it: the names of a worker's files are not the submitter's to know.
    """
    missing = [fault.message.partition(MISSING)[0] for fault in error.faults if MISSING in fault.message]
    hints: dict[str, None] = {}
    for path in missing:
        folder, name = os.path.split(os.path.normpath(path))
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        near = did_you_mean(name, names[:_COMPARED]) if name not in names else ""
        if near:
            hints[near if len(missing) == 1 else f"{name}: {near}"] = None
    return "; ".join(hints)


class CommandInputFetcher:
    """Downloads the missing hub files of one command before it runs, each once, and verifies them.

    A recipe names its missing files (`InvalidInput.lacks`), small ones first, so that their errors come before the
    large downloads.
    """

    def __init__(self, call: CommandContext, *, is_dry: bool) -> None:
        self._call = call
        self._is_dry = is_dry
        self._came: Counter[str] = Counter()
        """Downloaded bytes by repository as typed."""

    def build(self, make: Callable[[], JobBuild]) -> JobBuild | None:
        """Build a job; while only hub files are missing, download them and build again.

        In a dry run, print what would be downloaded and return None. Raises what `make` raises if offline or if the
        download did not help, and errors of the download.
        """
        fetched: set[MissingRepoFiles] = set()
        while True:
            try:
                return make()
            except InvalidFile as error:
                error.hint = error.hint or _nearest_names(error)
                raise
            except InvalidInput as error:
                if not error.lacks or fetched >= set(error.lacks) or self._call.parts.hub_settings("").offline:
                    raise
                fetched |= set(error.lacks)
                self._bring(error)
            if self._is_dry:
                return None

    def verify(self, build: JobBuild) -> None:
        """Verify the hub files that a job reads, and report downloads.

        Damaged files are set aside and downloaded again. Raises `StokerError` if that fails.
        """
        words = self._words_of(build)
        paths = {path for node in build.plan.nodes for path in node.stage.args.paths_in(node.args)}
        words |= self._data_sets_of(paths)
        if not words:
            return
        from stoker.cli.job_downloads import verify

        for text, argument in words.items():
            verify(self._call, text, argument, paths, came_bytes=self._came[text])

    def _bring(self, error: InvalidInput) -> None:
        from stoker.cli.job_downloads import fetch, preview

        for lack in error.lacks:
            if self._is_dry:
                preview(self._call, lack, error)
            else:
                self._came[lack.repo] += fetch(self._call, lack, error)

    def _data_sets_of(self, paths: Collection[str]) -> dict[str, str]:
        """Return the data sets in the hub's cache that are read, each at its commit, with the argument's name."""
        found = {}
        for path in paths:
            if f"{os.sep}datasets--" in path:
                from stoker.transfer.hub.hub_cache import HubCache

                named = HubCache(self._call.parts.hub_settings("").cache).named(path)
                if named:
                    typed = next((one for one in self._came if named.startswith(one)), "")
                    self._came[named] = self._came.pop(typed, self._came[named])
                    found[named] = "data"
        return found

    def _words_of(self, build: JobBuild) -> dict[str, str]:
        """Return the arguments of a job's trials that may name repositories, each with the argument's name."""
        if not build.trials or build.program is not None:
            return {}
        brings = self._call.parts.catalogue.load(build.spec.recipe).brings
        texts = ((trial.spec.args.get(name), name) for trial in build.trials for name in brings)
        named = {text: name for text, name in texts if isinstance(text, str) and "/" in text}
        return {text: name for text, name in named.items() if not os.path.exists(text)}


# One line about the machine that a program runs on.


def machine_line(parts: AppParts, build: JobBuild, options: RunOptions) -> str:
    """Return devices, memory limit, interpreter, and the number of parallel trials as one line."""
    needs = build.plan.node(build.plan.final).needs
    devices = [device for device in parts.devices if needs.may_use(device)]
    facts = [
        *_devices(devices, needs),
        ", ".join(
            [counted(parts.capacity.cpu, "core"), *_memory(memory_here(), needs, str(parts.containment.mechanism))]
        ),
        *_interpreter(parts, build),
    ]
    line = f"{os.uname().nodename.partition('.')[0]}: {'; '.join(facts)}"
    count = len(build.trials)
    if not is_sweep(build.trials):
        return line
    trials = counted(count, "trial")
    pace = _pace(at_once(needs, parts.capacity, devices, options.max_in_flight))
    return f"{line}. {trials}, {pace}{_part(devices, needs)}"


def at_once(needs: Needs, capacity: Capacity, devices: Sequence[Device], most: int) -> int:
    """Return how many programs with these needs run at once here, if no other process uses the devices."""
    room = [most, capacity.cpu // needs.cpu if needs.cpu else most]
    if needs.gpu:
        room.append(sum(_places_on(device, needs) for device in devices) // needs.gpu)
    if needs.memory_bytes:
        room.append(capacity.memory_bytes // needs.memory_bytes)
    return max(1, min(room))


def _places_on(device: Device, needs: Needs) -> int:
    """Return how many programs with these needs fit on a device; without sharing, one."""
    return (device.usable_bytes or 0) // needs.vram_bytes if _is_shared(device, needs) else 1


def _is_shared(device: Device, needs: Needs) -> bool:
    return shares(needs.vram_bytes, device.usable_bytes or 0, is_allowed=needs.shares)


def _pace(count: int) -> str:
    return "one at a time" if count == 1 else f"{count} at a time"


def _part(devices: Sequence[Device], needs: Needs) -> str:
    """Return the part of a device that each program gets."""
    if not needs.gpu:
        return ""
    if any(_is_shared(device, needs) for device in devices):
        return f", each with {format_size(needs.vram_bytes)} of a GPU"
    return ", each with a whole GPU" if needs.gpu == 1 else f", each with {needs.gpu} whole GPUs"


def _devices(devices: Sequence[Device], needs: Needs) -> list[str]:
    if not devices:
        return []
    if not needs.gpu:
        return [f"{counted(len(devices), 'GPU')}, not used"]
    from stoker.views.device_lines import devices_text

    return [devices_text(devices)]


def _memory(memory: MachineMemory, needs: Needs, mechanism: str) -> list[str]:
    if memory.total_bytes is None:
        return [f"memory unknown ({mechanism})"]
    admitted = admit(needs.memory_bytes or None, memory, is_work_running=True)
    cap_bytes = admitted.cap_bytes if isinstance(admitted, Admission) else None
    # The declared limit is the first one: after an out-of-memory kill the retry gets more.
    may_be_more = needs.memory_bytes and cap_bytes != memory.most_bytes
    cap = "no limit" if cap_bytes is None else f"limit {'from ' if may_be_more else ''}{format_size(cap_bytes)}"
    return [f"{format_size(memory.total_bytes)} RAM", f"{cap} ({mechanism})"]


def _interpreter(parts: AppParts, build: JobBuild) -> list[str]:
    """Return the interpreter that runs the program and why; nothing if it is unknown or differs between trials."""
    from stoker.engine.runners.program.program_runner import ProgramRunner

    nodes = {
        (trial.spec.args["argv"][0], trial.spec.args.get("python", "")): build.plan.node(trial.nodes.final)
        for trial in build.trials
    }
    runner = parts.tools.engine.runner_for(build.plan.node(build.plan.final).stage)
    if not isinstance(runner, ProgramRunner):
        return []
    try:
        launches = runner.launches({node.id: (node.stage, node.args) for node in nodes.values()})
    except StokerError:
        # The run reports it, unless the result is cached.
        return []
    found = {(launch.folder, launch.python, launch.python_found_by) for launch in launches}
    if len(found) != 1:
        return []
    ((folder, path, why),) = found
    if not path:
        return []
    near = os.path.relpath(path, folder)
    shown = path if near.startswith("..") else f"./{near}"
    return [f"python = {shown} ({why})" if why else f"python = {shown}"]
