"""Slurm: workers as steps of batch jobs, by `sbatch`, `squeue` and `scancel`, here or on a login node over SSH.

The script goes to `sbatch` on its standard input. Slurm keeps it and shows it to everybody, so the tickets are files of
mode 0600 in a folder that the login node and the compute nodes share. Allocations that are requested together are one
array. The label is the comment, `stoker:FLEET:ID,…`, in the order of the array.

The worker is a step of `srun`: at a preemption Slurm signals steps at once, but the batch process only when GraceTime
is over. A job is never requeued by Slurm: its ticket would be used, and the queue decides what runs again.

One `squeue` shows all jobs of this user, those that ended as well until Slurm forgets them (MinJobAge, 5 min by
default). Its text has had the same form in all versions, and `--me` limits it to the user's jobs; `--json` changes from
version to version and ignores such a limit.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from stoker.core.errors import InternalError, LaunchDoubtful, LaunchRefused, NoBackend, StokerError
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, require_valid
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from stoker.launch.commands import HostCommands
from stoker.launch.hosts import OWN_FOLDER
from stoker.launch.kit import Kits, check_python, check_way_back, is_kit_used, read_versions
from stoker.launch.launchers import (
    FLEET_FOLDERS,
    MOST_TOGETHER,
    AllocationStatus,
    Log,
    Rendered,
    fill,
    ids_of,
    label_of,
    ticket_hole,
    worker_command,
)

SUBMIT_LIMIT_S = 90.0
"""A busy slurmctld makes `sbatch` wait and try again; a site's MessageTimeout may be a minute."""
_EPOCH = ("env", "SLURM_TIME_FORMAT=%s")
_SQUEUE = (*_EPOCH, "squeue", "--me", "--array", "--states=all", "--format=%i|%T|%S|%e|%r|%j|%k")
_HEADING = "JOBID|STATE|"
"""Begins the first line that `squeue` prints. An answer without it is not Slurm's."""
_PENDING = ("squeue", "--me", "--noheader", "--array", "--states=PENDING", "--format=%i")
_SACCT = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State,ExitCode")
_SHOW_JOB = ("scontrol", "--oneliner", "show", "job")
_FAR_FOLDER = "~/.local/state/stoker/slurm"
"""On the host of the commands, for pools that name none: compute nodes usually share home directories with it."""
_LOG_BYTES = 4096
_EXIT_CODE = re.compile(r"\bExitCode=([0-9]+:[0-9]+)")
_MOST_EXIT_CODES = 1000
_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_PARSABLE = re.compile(r"([0-9]{1,20})(;\S+)?")

_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
"""Its processes have ended, or are being ended. The cause is shown when the nodes are free again."""
# Of each other state the job still has its nodes.
_CAUSES = {
    "COMPLETED": AllocationCause.FINISHED,
    "FAILED": AllocationCause.FAILED,
    "OUT_OF_MEMORY": AllocationCause.OUT_OF_MEMORY,
    "CANCELLED": AllocationCause.CANCELLED_THERE,
    **dict.fromkeys(
        ("BOOT_FAIL", "DEADLINE", "LAUNCH_FAILED", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT"),
        AllocationCause.PREEMPTED,
    ),
}

# By the exit status of a job that Slurm calls FAILED: a worker that was drained, or that left when Slurm preempted it
# and signalled SIGTERM. A worker that exits in time is not called PREEMPTED.
_EXIT_CAUSES = {
    "75:0": AllocationCause.FINISHED,
    "143:0": AllocationCause.PREEMPTED,
    "0:15": AllocationCause.PREEMPTED,
}

# The answer was lost on its way: Slurm may have the job.
_DOUBTFUL = re.compile(r"[Tt]imed out|Zero Bytes|Transport endpoint|Message (send|receive) failure|reset by peer")
_NOT_REACHED = re.compile(r"Unable to contact|Unable to resolve|Could not establish a configuration|Connection refused")
# In the backend's text, in lower case.
_HINTS = (
    ("configuration source", "set SLURM_CONF, or via: the host that has Slurm's commands"),
    ("unable to contact", "scontrol ping shows whether Slurm's controller runs"),
    ("partition", "options.partition: sinfo -o %P lists those that exist"),
    ("account", "options.account: sacctmgr show associations user=$USER lists yours"),
    ("association", "options.account: sacctmgr show associations user=$USER lists yours"),
    ("qos", "options.qos: sacctmgr show qos lists those that exist"),
    ("node configuration", "each: sinfo -N -o '%N %c %m %G' lists what the nodes have"),
    ("gres", "each.gpus: sinfo -N -o '%N %G' lists what the nodes have"),
    ("memory", "each.ram_mb: sinfo -N -o '%N %m' lists what the nodes have"),
    ("time limit", "wall: sinfo -o '%P %l' lists the limits"),
)


class SlurmLauncher:
    """Starts workers through Slurm."""

    def __init__(self, commands: HostCommands, *, folder: str, python: str, kits: Kits | None = None) -> None:
        """`folder` is shared with the compute nodes, for pools of this machine that name none.

        `python` has Stoker there.

        Without `kits` the compute nodes have that interpreter, or the pool names one.
        """
        self._commands = commands
        self._kits = kits
        self._folder = folder
        self._python = python
        self._exit_codes: dict[tuple[str, str], str] = {}
        """Of failed jobs that the queue still shows, by host and id."""

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        return self._kits.prepare(pool, log, is_dry=is_dry) if self._kits is not None else pool

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        require_valid(pool)
        if not 0 < len(allocations) <= MOST_TOGETHER:
            raise InternalError(f"{len(allocations)} allocations in one request")
        ids = tuple(allocation.id for allocation in allocations)
        folder = f"{self._base(pool)}/{fleet}"
        is_array = len(ids) > 1
        log = "%A_%a" if is_array else "%j"
        # Slurm expands no `~`: a relative path begins where `sbatch` runs, which over SSH is the user's home.
        output = f"{folder.removeprefix('~/')}/{log}.log"
        shape = [f"--time={math.ceil(pool.wall_s / 60)}", "--ntasks=1", f"--cpus-per-task={pool.each.cpu_cores}"]
        if pool.each.ram_mb is not None:
            shape.append(f"--mem={pool.each.ram_mb}M")
        if gpus := Counter(gpu.type for gpu in pool.each.gpus):
            shape.append("--gres=" + ",".join(f"gpu:{kind}:{count}" for kind, count in gpus.items()))
        options = [
            [f"--job-name={allocations[0].name}", f"--comment={label_of(fleet, ids)}", "--no-requeue"],
            [*([f"--array=0-{len(ids) - 1}"] if is_array else []), f"--output={output}"],
            shape,
            [f"--{name}={value}" if value else f"--{name}" for name, value in pool.options.items()],
        ]
        lines = ["#!/bin/bash", *(f"#SBATCH {' '.join(words)}" for words in options if words), *pool.setup]
        ticket = _quoted(f"{folder}/{ids[0]}.ticket")
        if is_array:
            lines.append(f"ids=({' '.join(ids)})")
            ticket = _quoted(f"{folder}/") + '"${ids[$SLURM_ARRAY_TASK_ID]}.ticket"'
        worker = worker_command(pool, ticket, python=self._python, spent="SECONDS")
        lines.append(f"exec srun --ntasks=1 --cpus-per-task={pool.each.cpu_cores} {worker}")
        return Rendered(
            where=pool.via,
            argv=("sbatch", "--parsable"),
            stdin="\n".join([*lines, ""]),
            files={f"{folder}/{one.id}.ticket": ticket_hole(one) for one in allocations},
            ids=ids,
        )

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        self._write(rendered, tickets)
        reply = self._commands.run(rendered.where, rendered.argv, stdin=rendered.stdin, limit_s=SUBMIT_LIMIT_S)
        if isinstance(reply, ProbeFailure):
            raise LaunchDoubtful(f"sbatch: {reply.why}", host=rendered.where)
        if reply.exit_code:
            raise _refusal(reply, rendered.where)
        printed = [found for line in reply.out.splitlines() if (found := _PARSABLE.fullmatch(line.strip()))]
        if not printed:
            raise LaunchDoubtful(f"sbatch printed no id: {one_line(reply.out, 200)!r}", host=rendered.where)
        job = printed[-1][1]
        if len(rendered.ids) == 1:
            return {rendered.ids[0]: job}
        return {id: f"{job}_{number}" for number, id in enumerate(rendered.ids)}

    def forecast(self, rendered: Rendered) -> str:
        reply = self._commands.read(rendered.where, (*rendered.argv, "--test-only"), stdin=rendered.stdin)
        return one_line((reply.err or reply.out).replace("sbatch: ", ""), 300)

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        reply = self._commands.read(pool.via, _SQUEUE)
        if reply.exit_code:
            raise _no_queue(reply, pool)
        seen = read_queue(reply.out, pool, fleet=fleet)
        found = {one.backend_id: self._with_exit(pool, one) for one in seen}
        missing = [one for one in known if one.backend_id not in found]
        return (*found.values(), *(self._recorded(pool, missing) if missing else ()))

    def cancel(self, pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        if not backend_ids:
            return
        ids = [_checked_id(id) for id in backend_ids]
        if not is_gentle:
            self._scancel(pool, ids)
            return
        # By their ids alone: `--state=PENDING` with one member of an array cancels all that wait (Slurm 22.05).
        reply = self._commands.read(pool.via, _PENDING)
        if reply.exit_code:
            raise _no_queue(reply, pool)
        if waiting := set(reply.out.split()) & set(ids):
            self._scancel(pool, sorted(waiting))
        # Without a signal Slurm kills after KillWait (30 s by default), whatever the worker still has to save. Last:
        # after an error all of it is repeated, and a worker that is signalled twice saves nothing more.
        self._scancel(pool, ["--state=RUNNING", "--signal=TERM", *ids])

    def _scancel(self, pool: Pool, words: Sequence[str]) -> None:
        reply = self._commands.read(pool.via, ("scancel", *words))
        errors = [line for line in reply.err.splitlines() if "error" in line and "Invalid job id" not in line]
        if reply.exit_code and (errors := [line for line in errors if "already complet" not in line]):
            raise NoBackend(f"scancel: {one_line(errors[0], 300)}", host=pool.via)

    def log(self, pool: Pool, allocation: Allocation) -> str:
        if not _ID.fullmatch(allocation.backend_id):
            return ""
        path = f"{_quoted(self._base(pool))}/*/{allocation.backend_id}.log"
        return self._shell(pool, f"tail -q -c {_LOG_BYTES} {path} 2>/dev/null").out

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        names = [f"*/{one.id}.ticket" for one in allocations]
        # A pool may have had another backend before.
        names += [f"*/{one.backend_id}.log" for one in allocations if _ID.fullmatch(one.backend_id)]
        base = _quoted(self._base(pool))
        self._shell(pool, f"cd {base} 2>/dev/null && {{ rm -f {' '.join(names)}; rmdir {FLEET_FOLDERS} 2>/dev/null; }}")

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        rendered = self.render(pool, [Allocation(id="000000", pool=pool.name)], fleet="check")
        try:
            version = self._commands.read(pool.via, ("sbatch", "--version"))
            answer = self._commands.read(pool.via, (*rendered.argv, "--test-only"), stdin=rendered.stdin)
            limits = self._commands.read(pool.via, ("sinfo", "--all", "--noheader", "--format=%P|%l"))
            python = pool.python or self._python
            if self._kits is not None and is_kit_used(pool):
                pythons = self._kits.check(pool, url)
            else:
                found = check_python(read_versions(self._commands, pool, python), pool, python)
                # Without an interpreter there is nothing to connect with.
                is_there = found.verdict is CheckStatus.OK
                way_back = check_way_back(self._commands, pool, python, url) if is_there else ()
                pythons = (found, *way_back)
            trial = f"{_quoted(self._base(pool))}/.check$$"
            probe = self._shell(
                pool,
                f"{OWN_FOLDER}umask 077\nmkdir -p {trial} && cd {trial} && own_folder && echo writable\n"
                f"rmdir {trial} 2>/dev/null",
            )
        except StokerError as error:
            return (Check("reached", CheckStatus.BAD, error.message, error.hint),)
        return (
            _check_version(version, pool),
            *self._commands.check_host_key(pool.via),
            _check_answer(answer),
            _check_limit(limits, pool),
            *pythons,
            Check("folder", CheckStatus.OK, f"{self._base(pool)} is writable")
            if "writable" in probe.out
            else Check("folder", CheckStatus.BAD, f"{self._base(pool)}: {one_line(probe.err, 200)}", "set folder"),
        )

    def _base(self, pool: Pool) -> str:
        """Return the folder of all fleets' folders."""
        return pool.folder or (_FAR_FOLDER if pool.via else self._folder)

    def _shell(self, pool: Pool, script: str) -> ProbeOutput:
        return self._commands.read(pool.via, ("sh", "-s"), stdin=f"main() {{\n{script}\n}}\nmain\n")

    def _write(self, rendered: Rendered, tickets: Mapping[str, str]) -> None:
        """Write the files, of mode 0600 from the first byte; the text goes through standard input."""
        lines = [OWN_FOLDER + "main() {", "umask 077"]
        (folder,) = {os.path.dirname(path) for path in rendered.files}
        # By relative names: the path may lead to another folder a moment later.
        lines.append(f"mkdir -p {_quoted(folder)} && cd {_quoted(folder)} && own_folder || exit 73")
        for path, text in rendered.files.items():
            name = _quoted(os.path.basename(path))
            lines += [f"cat > {name}.new <<'END' && mv {name}.new {name} || exit 73"]
            lines += [fill(text, tickets).rstrip("\n"), "END"]
        reply = self._commands.read(rendered.where, ("sh", "-s"), stdin="\n".join([*lines, "}", "main", ""]))
        if reply.exit_code:
            raise LaunchRefused(
                f"tickets can't be written on {rendered.where or 'this machine'}: {one_line(reply.err, 300)}",
                hint="check disk and permissions of the pool's folder; only you may write there",
                host=rendered.where,
            )

    def _with_exit(self, pool: Pool, status: AllocationStatus) -> AllocationStatus:
        """Return a failed allocation with the cause that its exit status shows; `squeue` does not print that."""
        if status.cause is not AllocationCause.FAILED:
            return status
        key = (pool.via, status.backend_id)
        if key not in self._exit_codes:
            reply = self._commands.read(pool.via, (*_SHOW_JOB, status.backend_id))
            shown = _EXIT_CODE.search(reply.out)
            while len(self._exit_codes) >= _MOST_EXIT_CODES:
                self._exit_codes.pop(next(iter(self._exit_codes)))
            self._exit_codes[key] = shown[1] if shown else ""
        code = self._exit_codes[key]
        reason = f"{status.reason} {code}".strip()
        return changed(status, cause=_EXIT_CAUSES.get(code, AllocationCause.FAILED), reason=reason)

    def _recorded(self, pool: Pool, missing: Sequence[Allocation]) -> list[AllocationStatus]:
        """Return how allocations ended that Slurm's controller has forgotten, by its accounting if there is one."""
        ids = ",".join(one.backend_id for one in missing if _ID.fullmatch(one.backend_id))
        rows: dict[str, Sequence[str]] = {}
        if ids:
            try:
                reply = self._commands.read(pool.via, (*_SACCT, f"--jobs={ids}"))
            except NoBackend:
                # A site may have no such command; what the controller does not know is over either way.
                reply = ProbeOutput(out="", exit_code=1)
            if not reply.exit_code:
                rows = {words[0]: words for line in reply.out.splitlines() if len(words := line.split("|")) == 3}
        return [_recorded_status(one, rows.get(one.backend_id)) for one in missing]


def _recorded_status(allocation: Allocation, row: Sequence[str] | None) -> AllocationStatus:
    """Return what a row of the accounting shows; without one the allocation is lost."""
    if row is None:
        return AllocationStatus(
            id=allocation.id,
            backend_id=allocation.backend_id,
            state=AllocationState.ENDED,
            reason="unknown to Slurm",
            is_lost=True,
        )
    # `CANCELLED by 1000`
    word = row[1].partition(" ")[0]
    return AllocationStatus(
        id=allocation.id,
        backend_id=allocation.backend_id,
        state=_state(word),
        reason=row[1],
        cause=_EXIT_CAUSES.get(row[2], AllocationCause.FAILED) if word == "FAILED" else _CAUSES.get(word),
    )


def read_queue(text: str, pool: Pool, *, fleet: str) -> list[AllocationStatus]:
    """Read the output of `squeue`: our jobs of one pool. Raises `NoBackend` if it is something else.

    Lines before the heading are a shell's greetings. A comment of another job may have several lines.
    """
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines, 1) if line.startswith(_HEADING)), None)
    if first is None:
        printed = one_line(text, 200)
        raise NoBackend(f"squeue printed no list of jobs: {printed!r}", hint="squeue --me", host=pool.via)
    found = []
    for line in lines[first:]:
        words = line.split("|", 6)
        if len(words) != 7:
            continue
        backend_id, word, start, end, reason, name, label = words
        ids = ids_of(label, fleet=fleet)
        number = int(backend_id.rpartition("_")[2]) if "_" in backend_id and _ID.fullmatch(backend_id) else 0
        if number >= len(ids) or name != Allocation(id=ids[0], pool=pool.name).name or not _ID.fullmatch(backend_id):
            continue
        state = _state(word)
        is_waiting, is_over = state is AllocationState.WAITING, state is AllocationState.ENDED
        reason = "" if reason == "None" else reason
        found.append(
            AllocationStatus(
                id=ids[number],
                backend_id=backend_id,
                state=state,
                reason=reason if is_waiting else " ".join(filter(None, (word if word != "RUNNING" else "", reason))),
                cause=_CAUSES.get(word),
                may_start_s=_time(start) if is_waiting else None,
                ends_s=None if is_waiting or is_over else _time(end),
            )
        )
    return found


def _state(word: str) -> AllocationState:
    """Return what a state of Slurm means. An unknown one counts as started: its worker reports for itself."""
    if word in _CAUSES:
        return AllocationState.ENDED
    if word in _ENDING:
        return AllocationState.DRAINING
    return AllocationState.WAITING if word in _WAITING else AllocationState.STARTED


def _quoted(path: str) -> str:
    """Return a path as a word of a shell; one below the user's home begins with `~/`."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _time(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None


def _checked_id(id: str) -> str:
    if not _ID.fullmatch(id):
        raise InternalError(f"not an id of Slurm: {id[:80]!r}")
    return id


def _no_queue(reply: ProbeOutput, pool: Pool) -> NoBackend:
    text = one_line(reply.err or f"exit {reply.exit_code}, and no message", 300)
    return NoBackend(f"squeue: {text}", hint="run it yourself: squeue --me", host=pool.via)


def _refusal(reply: ProbeOutput, where: str) -> StokerError:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in reply.err.splitlines() if line.strip()]
    text = one_line("; ".join(lines) or f"exit {reply.exit_code}", 400)
    if _DOUBTFUL.search(text):
        return LaunchDoubtful(f"sbatch: {text}", hint="the next look shows whether Slurm has it", host=where)
    if _NOT_REACHED.search(text):
        return NoBackend(f"sbatch: {text}", hint="scontrol ping", host=where)
    return LaunchRefused(f"sbatch: {text}", hint=_hint(text), host=where)


def _hint(text: str) -> str:
    return next((hint for words, hint in _HINTS if words in text.lower()), "change the pool's options")


def _check_version(reply: ProbeOutput, pool: Pool) -> Check:
    where = pool.via or "this machine"
    if reply.exit_code or not reply.out.strip():
        text = one_line(reply.err, 300)
        return Check("reached", CheckStatus.BAD, f"{where}: sbatch: {text or 'no output'}", _hint(text))
    return Check("reached", CheckStatus.OK, f"{where}: {one_line(reply.out, 80)}")


def _check_answer(reply: ProbeOutput) -> Check:
    text = one_line((reply.err or reply.out).replace("sbatch: ", ""), 300)
    if reply.exit_code:
        text = text or f"sbatch: exit {reply.exit_code}, and no message"
        return Check("backend", CheckStatus.BAD, text, _hint(text))
    return Check("backend", CheckStatus.OK, text)


def _check_limit(reply: ProbeOutput, pool: Pool) -> Check:
    """Compare the time limit with the partition's: Slurm accepts more than that, and never starts it."""
    limits = dict(line.split("|", 1) for line in reply.out.splitlines() if "|" in line)
    default = next((name for name in limits if name.endswith("*")), "")
    names = pool.options.get("partition", default.rstrip("*")).split(",")
    if not limits:
        text = one_line(reply.err, 300)
        return Check("limits", CheckStatus.BAD, f"sinfo lists no partition{f': {text}' if text else ''}", _hint(text))
    found = {name: limits.get(name, limits.get(f"{name}*", "")) for name in names}
    if missing := [name for name, limit in found.items() if not limit]:
        what = f"no partition {', '.join(missing)}" if missing != [""] else "no default partition"
        listed = ", ".join(name.rstrip("*") for name in limits)
        return Check("limits", CheckStatus.BAD, f"{what}: sinfo lists {listed}", "set options.partition")
    over = {name: limit for name, limit in found.items() if (s := limit_s(limit)) is not None and s < pool.wall_s}
    if over and len(over) == len(found):
        listed = ", ".join(f"{name} {limit}" for name, limit in over.items())
        message = f"wall is {math.ceil(pool.wall_s / 60)} min, above the limit of partition {listed}"
        return Check("limits", CheckStatus.BAD, message, "Slurm would accept it and never start it: lower wall")
    listed = ", ".join(f"{name} {limit}" for name, limit in found.items())
    return Check("limits", CheckStatus.OK, f"partition {listed}")


def limit_s(text: str) -> float | None:
    """Return a time limit of Slurm, `D-HH:MM:SS`, in seconds; nothing if it is none."""
    found = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", text.strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(group or 0) for group in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
