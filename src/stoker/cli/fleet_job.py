"""`stoker logs` of a job of the fleet: what its attempts printed, then or while they run, wherever that is.

It goes on by offset: across attempts on other machines, and across restarts of the coordinator.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.job_names import FleetJob
from stoker.cli.local_job import JobLogReader
from stoker.cli.screens import under_way
from stoker.cli.submit_exclusions import UnfinishedTrial, tell_left
from stoker.cli.watch import FirstLines
from stoker.config.sweep import read_label
from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadAnswer, InvalidTransition, NotFound, NotVerified, Refused, Usage
from stoker.core.frozen import changed, frozen
from stoker.core.job import JobState
from stoker.core.text import format_size, one_line
from stoker.engine.plan import TrialNodes
from stoker.host.durable import move_into, open_regular, remove_tree, translated
from stoker.host.folders import name_fault, shown_name
from stoker.jobs.comparison import JobFacts, TrialFacts
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.log_tail import GrowingLines
from stoker.jobs.submitter import who_asks
from stoker.jobs.trials import Trial, TrialEnd
from stoker.protocol.client import FleetClient
from stoker.store.archives.unpack import unpack
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.put import put_key
from stoker.store.records import Record
from stoker.store.refs import PUT
from stoker.store.results import MaterialisedResult, ResultPart, lay_out
from stoker.store.trees import Heed
from stoker.transfer.trees.tree_download import receive
from stoker.transfer.trees.tree_sources import TransferConnection
from stoker.views.text_tables import span

if TYPE_CHECKING:
    from stoker.protocol.view_messages import AttemptView, JobDetails, JobView


# An attempt's folder, brought here from where the coordinator mirrors it, so that everything that reads one can.
#
# Files only grow; what is here already is not brought again. The folder is a temporary one and goes when it is
# closed.

_PIECE_BYTES = 4 * 1024 * 1024
# What an honest coordinator keeps of one attempt, and more.
_MOST_BYTES = 8 << 30
_MOST_FILES = 20_000
_FIRST = "job.json"
_ASK = "ask whoever runs it"


def story_files(path: str) -> bool:
    """Return whether a file tells how the job went: all but logs and metrics."""
    return not path.startswith(("logs/", "metrics/", "code/"))


def log_files(path: str) -> bool:
    """Return whether a file is needed to show what was printed."""
    return not path.startswith(("metrics/", "code/"))


class SyncedAttempt:
    """One attempt of a fleet's job, here."""

    def __init__(self, client: FleetClient, job: str, attempt: int, *, wants: Callable[[str], bool]) -> None:
        self._client = client
        self._job = job
        self.attempt = attempt
        self._wants = wants
        self._top = tempfile.mkdtemp(prefix="stoker-fleet-")
        self.folder = JobFolder(os.path.join(self._top, f"{job[:12]}-{attempt}"))
        self._sizes: dict[str, int] = {}
        self._came_bytes = 0
        self._newest = ""
        self._has_looked = False
        self.is_over = False
        """The attempt has ended and everything of it is here."""
        with translated(self.folder.path):
            os.makedirs(self.folder.log_folder)

    def pull(self, wait_s: float = 0.0) -> bool:
        """Bring what is new, waiting for it if there is nothing; say whether anything came."""
        has_come = False
        if wait_s and self._has_looked and not self.is_over:
            # Whatever grew last is the likeliest to grow next.
            has_come = self._take(self._newest or _FIRST, wait_s=wait_s) > 0
        listed = self._client.files(self._job, attempt=self.attempt)
        self._has_looked = True
        if len(listed.files) > _MOST_FILES:
            raise BadAnswer(f"the coordinator lists {len(listed.files):,} files of one attempt", hint=_ASK)
        for file in listed.files:
            while self._wants(file.path) and self._sizes.get(file.path, 0) < file.size_bytes:
                if not self._take(file.path):
                    break
                has_come = True
        self.is_over = listed.is_over
        return has_come

    def has(self, path: str) -> bool:
        """Return whether anything of a file is here."""
        return path in self._sizes

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._top, ignore_errors=True)

    def _take(self, path: str, wait_s: float = 0.0) -> int:
        at = self._sizes.get(path, 0)
        piece = self._client.read_file(
            self._job, path, attempt=self.attempt, offset=at, limit=_PIECE_BYTES, wait_s=wait_s
        )
        if piece.data:
            self._came_bytes += len(piece.data)
            if self._came_bytes > _MOST_BYTES:
                raise BadAnswer(f"the coordinator sends more than {format_size(_MOST_BYTES)} of one attempt", hint=_ASK)
            self._append(path, piece.data)
            self._sizes[path] = at + len(piece.data)
            self._newest = path
        return len(piece.data)

    def _append(self, path: str, data: bytes) -> None:
        parts = path.split("/")
        if path.startswith("/") or any(part in ("", ".", "..") or "\0" in part for part in parts):
            # A coordinator has no business anywhere else on this computer.
            raise BadAnswer(f"the coordinator lists a file that leads elsewhere: {one_line(path, 200)!r}")
        target = os.path.join(self.folder.path, *parts)
        with translated(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "ab") as file:
                file.write(data)


_WAIT_S = 2.0
_LOOK_AGAIN_S = 0.5
_BETWEEN_S = 0.05
_PREPARING = "preparing"
PREPARING = f"{_PREPARING}.log"
_OUTPUT = "output"
"""What a worker of system A sent: its attempts have no job folder, and so no stages."""


def show_fleet_logs(call: CommandContext, job: FleetJob, *, stage: str, attempt: int | None, follows: bool) -> int:
    """Show what a job of the fleet printed; with `follows` until it ends."""
    if job.is_sweep:
        points = job.points()
        if len(points) > 1:
            first = points[0].name
            raise Usage(f"{job.ref} has {len(points):,} points, each with logs of its own", hint=f"stoker logs {first}")
    call.out.is_watched = follows
    following = _Following(call, job, stage or job.stage)
    try:
        if attempt is not None:
            return following.show(_numbered(job.story, attempt), follows=follows)
        return following.show_all(follows=follows)
    finally:
        following.close()


def _numbered(story: JobDetails, number: int) -> AttemptView:
    for attempt in story.attempts:
        if attempt.number == number:
            return attempt
    had = f"it had {len(story.attempts)}" if story.attempts else "it had none yet"
    raise NotFound(f"{story.job.name} had no attempt {number}; {had}", hint=f"stoker jobs show {story.job.name}")


class _Following:
    """The attempts of one job, one after the other."""

    def __init__(self, call: CommandContext, job: FleetJob, stage: str) -> None:
        self._call = call
        self._job = job
        # A coordinator may start again while its jobs are followed; what was shown is not shown twice.
        self._client = job.client.more_patient()
        self._stage = stage
        self._said = ""
        self._mirror: SyncedAttempt | None = None
        self._shown_last = ""

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def show_all(self, *, follows: bool) -> int:
        """Show the last attempt that printed; with `follows` every one that comes after it, until the job ends."""
        story = self._job.story
        if not follows:
            if not story.attempts:
                raise NotFound(f"nothing has run of {story.job.name} yet", hint=f"stoker explain {story.job.name}")
            return self.show(story.attempts[-1], follows=False)
        shown = 0
        while True:
            fresh = [attempt for attempt in story.attempts if attempt.number > shown]
            # Of what ran before anybody followed, the last try is what matters.
            for attempt in fresh[-1:] if not shown else fresh:
                self.show(attempt, follows=True)
                shown = attempt.number
            story = self._client.job(self._job.view.id)
            if any(attempt.number > shown for attempt in story.attempts):
                continue
            state = JobState(story.job.state)
            if state.is_terminal:
                self._tell_end(story)
                return 0
            self._tell_wait(story)
            self._call.parts.clock.sleep(_LOOK_AGAIN_S)

    def show(self, attempt: AttemptView, *, follows: bool) -> int:
        """Show one attempt."""
        self.close()
        mirror = self._mirror = SyncedAttempt(self._client, self._job.view.id, attempt.number, wants=log_files)
        self._shown_last = ""
        if attempt.number > 1:
            self._call.out.note(f"attempt {attempt.number}, on {attempt.machine}")
        reading: JobLogReader | None = None
        beside = {
            name: GrowingLines(os.path.join(mirror.folder.log_folder, f"{name}.log"))
            for name in (_PREPARING, _OUTPUT)
            if self._stage in ("", name)
        }
        while True:
            has_come = mirror.pull(wait_s=_WAIT_S if follows else 0.0)
            if reading is None and mirror.has("job.json"):
                beside.pop(_OUTPUT, None)
                reading = JobLogReader(self._call, mirror.folder, self._stage)
            self._show_beside(mirror, beside)
            if reading is not None:
                reading.read_on()
            if not follows or (mirror.is_over and not has_come):
                break
            if not has_come:
                self._call.parts.clock.sleep(_BETWEEN_S)
        if reading is not None:
            reading.finish()
        elif not follows and not self._shown_last:
            self._call.out.note(f"note: nothing of attempt {attempt.number} has arrived yet")
        return 0

    def _show_beside(self, mirror: SyncedAttempt, logs: Mapping[str, GrowingLines]) -> None:
        """Show new lines of logs that no stage wrote, each under its name."""
        out = self._call.out
        for name, log in logs.items():
            for line in log.fresh() if mirror.has(f"logs/{name}.log") else ():
                if self._shown_last != name:
                    self._shown_last = name
                    out.line(f"==> {name} <==")
                text = line.decode(errors="backslashreplace")
                out.object({"node": name, "line": text})
                out.line(text)

    def _tell_end(self, story: JobDetails) -> None:
        view = story.job
        why = f": {view.why}" if view.why else ""
        self._call.out.note(f"{view.name} {view.state}{why}")

    def _tell_wait(self, story: JobDetails) -> None:
        said = f"{story.job.name} {story.job.why or 'waits'}"
        if said != self._said:
            self._said = said
            self._call.out.note(said)


# A fleet job's result, brought here: plain files in a folder, as `stoker get` lays out a local one.
#
# The archive comes in ranges and is gone on with after a break; its digest and its tree's are verified, and nothing of
# it is unpacked that could lead out of the folder. It goes through this machine's store, so a second `get` fetches
# nothing, and files that somebody edited in the folder are kept beside the new ones.


@frozen
class FleetResult:
    """A result that lies with a coordinator, as a job's story tells of it."""

    name: str
    """The job's."""
    job: str
    """Its id."""
    tree: str
    archive_sha256: str
    size_bytes: int
    """Of the archive."""
    recipe: str = ""
    machine: str = ""

    @classmethod
    def of(cls, name: str, job: str, bundle: dict[str, Any], *, recipe: str = "", machine: str = "") -> FleetResult:
        """Read `JobDetails.bundle`. `NotFound` if the job has no result, or its bytes were pruned."""
        if not bundle:
            raise NotFound(f"job {name} has no result", hint=f"stoker jobs show {name}")
        if bundle.get("pruned_s") is not None:
            raise NotFound(f"the result of {name} was pruned", hint=f"stoker jobs requeue {name} makes it again")
        tree, archive = str(bundle.get("tree", "")), str(bundle.get("archive_sha256", ""))
        if not (is_digest(tree) and is_digest(archive)):
            raise BadAnswer(f"the coordinator tells no digest of the result of {name}", hint="ask whoever runs it")
        size_bytes = int(bundle.get("size_bytes", 0))
        return cls(
            name=name,
            job=job,
            tree=tree,
            archive_sha256=archive,
            size_bytes=size_bytes,
            recipe=recipe,
            machine=machine,
        )


def folder_name(name: str) -> str:
    """Give a name for a folder back. A coordinator has no business anywhere but below the folder that was asked for."""
    fault = name_fault(name)
    if fault:
        raise BadAnswer(
            f"the coordinator has a job that no folder can be called by: {shown_name(name)}: {fault}",
            hint="ask whoever runs it",
        )
    return name


def fetch_result(
    passage: TransferConnection,
    wanted: FleetResult,
    into: str,
    *,
    store: LocalStore,
    spool: str,
    heed: Heed = lambda _: None,
) -> MaterialisedResult:
    """Bring a result into a folder, verified; `heed` is told of every byte that comes.

    `InvalidArchive` names everything that must not be unpacked, `NotVerified` says that the tree is another one than
    the coordinator tells. `Cancelled` if somebody said stop; the same call goes on from there.
    """
    key = put_key(Digest(wanted.tree))
    # While something lies in staging, those who prune know that somebody is at work.
    staging = store.new_staging(f"get.{wanted.tree[:12]}")
    try:
        found = store.lookup(key)
        if isinstance(found, RecordHit) and found.has_bytes:
            return lay_out(store, [_part(found.record, wanted)], into)
        path = receive(passage, wanted.archive_sha256, wanted.size_bytes, spool, heed=heed)
        try:
            record = _take_in(store, wanted, path, staging, clock=passage.clock)
        finally:
            remove_tree(path)
        return lay_out(store, [_part(record, wanted)], into)
    finally:
        remove_tree(staging)


def _take_in(store: LocalStore, wanted: FleetResult, path: str, staging: str, *, clock: Clock) -> Record:
    with translated(path), open_regular(path) as archive:
        unpacked = unpack(archive, os.path.join(staging, "tree"))
    if unpacked.tree.digest() != wanted.tree:
        raise NotVerified(
            f"the archive of {wanted.name} holds another tree than the coordinator tells",
            hint="ask whoever runs the coordinator",
            expected=wanted.tree,
            found=unpacked.tree.digest(),
        )
    tree, inline = store.keep(unpacked.found, unpacked.small)
    body = {"stage": PUT, "kind": "", "made_at": clock.wall_s()}
    return store.publish(Record.of(key=put_key(Digest(wanted.tree)), tree=tree, inline=inline, body=body)).record


def _part(record: Record, wanted: FleetResult) -> ResultPart:
    sidecar = {
        "node": wanted.name,
        "kind": "",
        "version": None,
        "digest": record.digest,
        "stage": wanted.recipe,
        "key": record.key,
        "made_at": record.body.get("made_at"),
        "job": wanted.job,
        "machine": wanted.machine,
    }
    return ResultPart(record=record, folder="", sidecar=sidecar)


# `stoker get` of jobs of the fleet: their results as plain files, verified, or as the archive that lies there.


def get_fleet_job(call: CommandContext, job: FleetJob, given: dict[str, Any]) -> int:
    """Copy the result of a job, or those of all completed points of a sweep, each into a folder of its own.

    Points without a result are listed, and the command ends with 1.
    """
    if given["stage"]:
        hint = f"stoker get {job.ref} brings its result; stages' own results stay on the machine that made them"
        raise Usage(f"{job.ref} is a job of the fleet: only its result lies with the coordinator", hint=hint)
    if given["metrics"] is not None:
        return _get_metrics(call, job, given["metrics"])
    everyone = job.points()
    points = [point for point in everyone if not job.is_sweep or point.state == JobState.COMPLETED]
    if not points:
        raise Refused(f"no point of {job.ref} has completed", hint=f"stoker jobs show {job.ref}")
    if given["bundle"] is not None:
        if len(everyone) > 1:
            hint = f"one archive for each: stoker get {points[0].name} --bundle FILE"
            raise Usage(f"{job.ref} is a sweep of {len(everyone)} points", hint=hint)
        return _get_archive(call, job, points, given)
    folder = os.path.join(call.parts.settings.folder, given["dir"] or folder_name(job.ref).replace("/", os.sep))
    is_any_empty = False
    for point in points:
        own = folder_name(point.label or point.name.rpartition("/")[2])
        target = os.path.join(folder, own) if job.is_sweep else folder
        is_any_empty |= not _get(call, job, point, target, is_forced=given["force"])
    if is_any_empty:
        call.out.note("note: what a program writes into $STOKER_OUT comes back, and what `outputs` names")
    copied = {point.id for point in points}
    left = [
        UnfinishedTrial(name=one.name, label=one.label, state=one.state) for one in everyone if one.id not in copied
    ]
    tell_left(call, job.ref, left, len(everyone))
    return 0


def _get_metrics(call: CommandContext, job: FleetJob, path: str) -> int:
    """Write what a job, or every point of a sweep, measured: also of one that runs or failed."""
    from stoker.cli.metrics_export import write_metrics

    gathered = gathered_points(call, job)[1] if job.is_sweep else gathering_of(call, job).trials()
    return write_metrics(call, job.ref, gathered, os.path.join(call.parts.settings.folder, path))


def _get(call: CommandContext, job: FleetJob, point: JobView, target: str, *, is_forced: bool) -> int:
    """Bring one result; say how many files came."""
    if os.path.lexists(target) and not os.path.isdir(target):
        raise Refused(f"{target} is there and no folder", hint=f"say which one: stoker get {point.name} DIR")
    if not is_forced and os.path.isdir(target) and os.listdir(target):
        raise Refused(f"{target} is not empty", hint="choose another folder, or say --force")
    wanted, out = _wanted(job, point), call.out
    with under_way(call, f"fetching {point.name}", wanted.size_bytes) as amount:
        laid_out = fetch_result(
            _passage(call, job), wanted, target, store=call.parts.store, spool=_spool(call), heed=amount.heed
        )
    out.object(
        {
            "name": point.name,
            "job": point.id,
            "state": point.state,
            "tree": wanted.tree,
            "folder": laid_out.folder,
            "files": list(laid_out.files),
            "kept_edits": list(laid_out.kept_edits),
        }
    )
    count = len(laid_out.files)
    out.line(
        f"{point.name}: {count} file{'' if count == 1 else 's'} in {laid_out.folder}"
        if count
        else f"{point.name} left no files"
    )
    for kept in laid_out.kept_edits:
        out.note(f"note: you had edited it, so it was kept: {kept}")
    return count


def _get_archive(call: CommandContext, job: FleetJob, points: list[JobView], given: dict[str, Any]) -> int:
    path = os.path.join(call.parts.settings.folder, given["bundle"])
    if given["dir"]:
        raise Usage("a folder or an archive, not both", hint=f"stoker get {job.ref} --bundle {given['bundle']}")
    if os.path.lexists(path) and not given["force"]:
        raise Refused(f"{path} is there already", hint="choose another name, or say --force")
    wanted = _wanted(job, points[0])
    with under_way(call, f"fetching {wanted.name}", wanted.size_bytes) as amount:
        came = receive(
            _passage(call, job), wanted.archive_sha256, wanted.size_bytes, os.path.dirname(path), heed=amount.heed
        )
    move_into(came, path, mode=0o644)
    told = {"name": wanted.name, "bundle": path, "digest": wanted.tree, "archive_sha256": wanted.archive_sha256}
    call.out.object({**told, "archive_bytes": wanted.size_bytes})
    call.out.line(f"{path}: {format_size(wanted.size_bytes)}, tree {wanted.tree[:12]}")
    call.out.line(f"sha256 {wanted.archive_sha256}")
    return 0


def _wanted(job: FleetJob, point: JobView) -> FleetResult:
    if point.state != JobState.COMPLETED:
        where = f" on {point.machine}" if point.machine and not JobState(point.state).is_terminal else ""
        done = JobState(point.state).is_terminal
        hint = (
            f"stoker jobs show {point.name}" if done else f"stoker jobs wait {point.name}; stoker explain {point.name}"
        )
        raise NotFound(
            f"{point.name} is {point.state}{where}: there is no result {'of it' if done else 'yet'}", hint=hint
        )
    story = job.story if point.id == job.view.id else job.client.job(point.id)
    return FleetResult.of(point.name, point.id, story.bundle, recipe=point.recipe, machine=point.machine)


def _passage(call: CommandContext, job: FleetJob) -> TransferConnection:
    return TransferConnection(line=job.client, stop=threading.Event(), clock=call.parts.clock)


def _spool(call: CommandContext) -> str:
    return os.path.join(call.parts.settings.state, "arriving")


# `stoker cancel` of jobs of the fleet: a wish that is written down, and a word when nothing of them runs any more.


def cancel_fleet_job(call: CommandContext, job: FleetJob, *, waits: bool) -> int:
    """Cancel a job of the fleet: one point of a sweep, or every point that has not ended."""
    out, clock = call.out, call.parts.clock
    points = [point for point in job.points() if not job.stage or point.label == job.stage]
    if not points:
        raise NotFound(f"job {job.ref} has no trial {job.stage!r}", hint=f"stoker jobs show {job.ref} lists them")
    live = [point for point in points if not JobState(point.state).is_terminal]
    if not live:
        state = points[0].state if len(points) == 1 else "all its points have ended"
        raise InvalidTransition(f"{job.ref} is not running: {state}", hint=f"stoker jobs show {job.ref}", state=state)
    started_s = clock.monotonic_s()
    job.client.cancel_jobs([point.id for point in live], by=who_asks(call.parts.settings.environment))
    running = [point for point in live if point.state != JobState.PENDING]
    if waits and running:
        names = running[0].name if len(running) == 1 else f"{len(running)} jobs"
        out.note(f"stopping {names}; Ctrl-C stops waiting, the cancel request remains")
    lines = FirstLines(call)
    if not waits:
        for point in live:
            out.object({"name": point.name, "job": point.id, "state": point.state, "is_cancelling": True})
            lines.say(f"cancelling {_called(point)}")
        lines.end()
        out.note(f"hint: stoker jobs wait {job.ref} says when nothing of it runs any more")
        return 0
    from stoker.cli.job_wait import wait_for

    lost: list[JobView] = []

    def ended(view: JobView) -> None:
        took = clock.monotonic_s() - started_s
        out.object({"name": view.name, "job": view.id, "state": view.state, "seconds": round(took, 6)})
        if view.state == JobState.CANCELLED:
            lines.say(f"cancelled {_called(view)}{f' on {view.machine}' if view.machine else ''} ({span(took)})")
        else:
            lost.append(view)
            lines.say(f"{_called(view)} had {view.state} before it could be cancelled")

    wait_for(job.client, live, clock=clock, ended=ended)
    lines.end()
    return 0 if len(lost) < len(live) else 1


def _called(view: JobView) -> str:
    return f"{view.name}  {view.label}" if view.label else view.name


# Jobs of the fleet for `stoker compare`: their mirrored folders, read like those of this machine.

_MANY_POINTS = 500
"""Each is fetched with all its curves: for more of them it is said what takes so long."""


def gathering_of(call: CommandContext, job: FleetJob, point: JobView | None = None) -> JobFacts:
    """Fetch what is known of a job's last attempt. It goes with the command."""
    view = point or job.view
    if not view.attempt:
        raise NotFound(f"nothing has run of {view.name} yet", hint=f"stoker explain {view.name}")
    mirror = SyncedAttempt(
        job.client, view.id, view.attempt, wants=lambda path: not path.startswith(("logs/", "code/"))
    )
    call.keep_open(mirror)
    mirror.pull()
    if not mirror.has("job.json"):
        raise NotFound(f"nothing of {view.name} has arrived at the coordinator yet", hint="try again in a moment")
    return JobFacts(mirror.folder, call.parts.store)


def gathered_points(call: CommandContext, job: FleetJob) -> tuple[JobFacts, list[TrialFacts]]:
    """Return what is known of every point of a sweep: of one that has not run, its state.

    The first one that has run speaks for all; `NotFound` if none has.
    """
    points = job.points()
    if len(points) > _MANY_POINTS:
        call.out.note(f"fetching what {len(points):,} points measured, with their curves…")
    speaker: JobFacts | None = None
    found: dict[str, list[TrialFacts]] = {}
    for point in points:
        if not point.attempt:
            continue
        with suppress(NotFound):
            gathering = gathering_of(call, job, point)
            speaker = speaker or gathering
            found[point.id] = [_as_point(one, point) for one in gathering.trials()]
    if speaker is None:
        raise NotFound(f"no point of {job.ref} has run yet", hint=f"stoker explain {job.ref}")
    known = [one.end.trial for trials in found.values() for one in trials]
    return speaker, [one for point in points for one in found.get(point.id) or [_without_attempt(point, known)]]


def _without_attempt(point: JobView, known: Sequence[Trial]) -> TrialFacts:
    """Return a point that has not run, from its label and state: to ask for each would take a request for each.

    All but what is swept is taken from those that are known.
    """
    values = read_label(point.label)
    trial = Trial(
        number=_number(point),
        label=point.label,
        point={name: values.get(name) for name in dict.fromkeys(name for one in known for name in one.point)},
        args=known[0].args if known else {},
        job_id=Digest(point.id),
        nodes=TrialNodes(final="", keep=(), nodes=()),
    )
    return TrialFacts(end=TrialEnd(trial=trial, state=point.state, message=point.why), curve_files=())


def _number(point: JobView) -> int:
    return int(point.name.rpartition("/")[2])


def _as_point(one: TrialFacts, point: JobView) -> TrialFacts:
    """Return a job's only trial under the sweep's number and label, in the state that the coordinator has for it."""
    number = _number(point)
    trial = one.end.trial
    # Each machine has places of its own for data. What all points have in common does not tell them apart.
    own = {name: trial.point[name] for name in trial.measured_on if name in trial.point}
    measured_on = {name: trial.measured_on[name] if value is None else value for name, value in own.items()}
    trial = changed(trial, number=number, label=point.label, measured_on=measured_on)
    is_failed = point.state in (JobState.FAILED, JobState.CANCELLED)
    message = one.end.message or (point.why if is_failed else "")
    # An attempt may have ended though its job waits for the next one, and what a lost worker wrote says that it runs.
    return changed(one, end=changed(one.end, trial=trial, state=point.state, message=message))
