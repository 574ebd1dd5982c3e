"""Which job a NAME means: one that ran here, or one of the fleet. Of two the newer is meant, and a note says so."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import client_of, find, note_if_gone
from stoker.core.errors import BadAnswer, NoCoordinator, NotFound, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import some_of

if TYPE_CHECKING:
    from stoker.jobs.job_folder import JobFolder
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import JobDetails, JobView

_SHORT = 12
_MOST_NAMED = 5


@frozen
class FleetJob:
    """A job of the fleet that was asked for by name."""

    client: FleetClient
    ref: str
    """As it was asked for; the bare name of a sweep means all its points."""
    story: JobDetails
    """Of the newest that goes by that name."""
    stage: str = ""
    """What stood behind the name: a stage of it."""

    @property
    def view(self) -> JobView:
        return self.story.job

    @property
    def is_sweep(self) -> bool:
        """Whether the name stands for several points."""
        return self.view.name.rpartition("/")[0] == self.ref

    def points(self) -> list[JobView]:
        """Return the jobs that the name stands for, in their order: of each point of a sweep the newest."""
        if not self.is_sweep:
            return [self.view]
        from stoker.cli.job_wait import points_of

        return points_of(self.client, self.ref)


def meant(call: CommandContext, target: str, at: str | None = "") -> JobFolder | FleetJob:
    """Find the job that is meant, here or on the fleet. `NotFound` if there is none, with what was probably meant."""
    name = target.partition("/")[0]
    coordinator = find(call, at)
    if coordinator is None:
        try:
            found = call.find_job(name)
        except NotFound:
            note_if_gone(call)
            raise
        _refuse_point(call, target, found)
        return found
    client = client_of(call, coordinator)
    fleet = _of_fleet(call, client, target, is_named=bool(at))
    local = _here(call, name, fleet)
    if isinstance(fleet, FleetJob) and local is not None:
        return _newer(call, local, fleet)
    if isinstance(fleet, FleetJob):
        return fleet
    if local is not None:
        if isinstance(fleet, NoCoordinator):
            _refuse_point(call, target, local)
        if isinstance(fleet, NotFound) and _is_attempt_of_point(target, local):
            raise fleet
        return local
    raise fleet


def _refuse_point(call: CommandContext, target: str, local: JobFolder) -> None:
    """Refuse `NAME/3` where only an attempt of some point lies here: which point, only the coordinator can tell."""
    if not _is_attempt_of_point(target, local):
        return
    from stoker.protocol.discovery import no_coordinator_known

    error = no_coordinator_known(call.parts.settings.state)
    raise NoCoordinator(f"{target} is a job of the fleet, and {error.message}", hint=error.hint)


def _is_attempt_of_point(target: str, local: JobFolder) -> bool:
    """Return whether `NAME/3` was asked for and what lies here is an attempt of a job of the fleet."""
    return split_ref(target)[0] != target.partition("/")[0] and "fleet" in local.spec().options


def meant_of_fleet(call: CommandContext, target: str, at: str | None = "") -> FleetJob | None:
    """Find a job of the fleet, for whoever knows other things by that name as well; nothing if none is meant."""
    if find(call, at) is None:
        return None
    try:
        found = meant(call, target, at)
    except (NotFound, NoCoordinator, BadAnswer):
        if at:
            raise
        return None
    return found if isinstance(found, FleetJob) else None


def fleet_job(call: CommandContext, target: str, at: str | None = "") -> FleetJob:
    """Find a job of the fleet, for what only a fleet's job can do."""
    found = meant(call, target, at)
    if isinstance(found, FleetJob):
        return found
    name = found.spec().name
    coordinator = find(call, at)
    if coordinator is None:
        from stoker.protocol.discovery import no_coordinator_known

        raise no_coordinator_known(call.parts.settings.state)
    raise NotFound(f"{name} is a job of this machine, not of the fleet", hint="stoker submit hands jobs to the fleet")


def _of_fleet(call: CommandContext, client: FleetClient, target: str, *, is_named: bool) -> FleetJob | StokerError:
    """Ask the coordinator. One that nobody named for this command need not answer: there are local jobs as well."""
    ref, stage = split_ref(target)
    try:
        story = client.job("last" if ref.startswith("last/") else ref)
        if ref.startswith("last/"):
            base = story.job.name.rpartition("/")[0] or story.job.name
            ref = f"{base}/{ref.partition('/')[2]}"
            story = client.job(ref)
    except NotFound as error:
        return _without_point(client, ref) or error
    except (NoCoordinator, BadAnswer) as error:
        if is_named:
            raise
        call.out.note(f"note: {error.message}")
        return error
    return FleetJob(client=client, ref=ref, story=story, stage=stage)


def _without_point(client: FleetClient, ref: str) -> NotFound | None:
    """Return how many trials a sweep has that has none of this number; nothing if `ref` is no point of a sweep."""
    from stoker.cli.job_wait import points_of

    name, _, number = ref.rpartition("/")
    count = 0
    with suppress(NoCoordinator, BadAnswer):
        count = len(points_of(client, name)) if name else 0
    if not count:
        return None
    trials = "1 trial" if count == 1 else f"{count} trials"
    return NotFound(f"the sweep {name} has {trials} and no {number}", hint=f"stoker jobs show {name} lists them")


def split_ref(target: str) -> tuple[str, str]:
    """Take `NAME/3/STAGE` apart: what the coordinator calls the job, and the stage."""
    name, _, rest = target.partition("/")
    number, _, stage = rest.partition("/")
    if number.isascii() and number.isdigit():
        return f"{name}/{number}", stage
    return name, rest


def _here(call: CommandContext, name: str, fleet: FleetJob | StokerError) -> JobFolder | None:
    """Find a job that ran here. An attempt of the very job that the fleet knows is not another one."""
    try:
        local = call.find_job(name)
    except NotFound:
        return None
    if isinstance(fleet, FleetJob) and "fleet" in local.spec().options:
        return None
    return local


def _newer(call: CommandContext, local: JobFolder, fleet: FleetJob) -> JobFolder | FleetJob:
    spec, view = local.spec(), fleet.view
    if spec.started_s > view.submitted_s:
        other = _of_fleet_by_id(fleet)
        chosen: JobFolder | FleetJob = local
    else:
        other = f"an older job of this machine has that name, too: {spec.attempt}"
        chosen = fleet
    if fleet.ref != "last":
        call.out.note(f"note: {other}")
    return chosen


def _of_fleet_by_id(fleet: FleetJob) -> str:
    """Return a text that names an older job of the fleet by its id; of a sweep each point has its own."""
    if not fleet.is_sweep:
        return f"an older job of the fleet has that name, too: {fleet.view.id[:_SHORT]}"
    older, points = "an older sweep of the fleet has that name, too", []
    # A note is no reason to fail: the command is about a job of this machine.
    with suppress(NoCoordinator, BadAnswer):
        points = fleet.points()
    if not points:
        return f"{older}; `stoker jobs --all --json` lists the ids of its points"
    listed = some_of([f"{point.id[:_SHORT]} ({point.label or point.name})" for point in points], _MOST_NAMED)
    rest = "; `stoker jobs --all --json` lists all" if len(points) > _MOST_NAMED else ""
    return f"{older}; its points by their ids: {listed}{rest}"
