"""`stoker get` of jobs of the fleet: their results as plain files, verified, or as the archive that lies there."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob
from stoker.faces.cli.left_out import Left, tell_left
from stoker.faces.cli.under_way import under_way
from stoker.host.durable import move_into
from stoker.model.errors import NotFound, Refused, Usage
from stoker.model.lifecycle import JobState
from stoker.model.units import format_size
from stoker.worker.shipping.fetching import FleetResult, fetch_result, folder_name
from stoker.worker.shipping.line import Passage
from stoker.worker.shipping.receiving import receive

if TYPE_CHECKING:
    from stoker.wire.views import JobView


def get_fleet_job(call: Call, job: FleetJob, given: dict[str, Any]) -> int:
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
    left = [Left(name=one.name, label=one.label, state=one.state) for one in everyone if one.id not in copied]
    tell_left(call, job.ref, left, len(everyone))
    return 0


def _get_metrics(call: Call, job: FleetJob, path: str) -> int:
    """Write what a job, or every point of a sweep, measured: also of one that runs or failed."""
    from stoker.faces.cli.fleet.comparing import gathered_points, gathering_of
    from stoker.faces.cli.metrics_writing import write_metrics

    gathered = gathered_points(call, job)[1] if job.is_sweep else gathering_of(call, job).trials()
    return write_metrics(call, job.ref, gathered, os.path.join(call.parts.settings.folder, path))


def _get(call: Call, job: FleetJob, point: JobView, target: str, *, is_forced: bool) -> int:
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


def _get_archive(call: Call, job: FleetJob, points: list[JobView], given: dict[str, Any]) -> int:
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


def _passage(call: Call, job: FleetJob) -> Passage:
    return Passage(line=job.client, stop=threading.Event(), clock=call.parts.clock)


def _spool(call: Call) -> str:
    return os.path.join(call.parts.settings.state, "arriving")
