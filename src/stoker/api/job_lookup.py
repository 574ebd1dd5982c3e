"""Which coordinator and which job a command means: one that ran here, or one of the fleet.

Of two jobs with one name the newer is meant, and a note says so. A coordinator is `--at URL`, STOKER_COORDINATOR, this
home's own, or the one that was joined.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.api.local_job import LocalJob
from stoker.core.errors import Ambiguous, BadAnswer, NoCoordinator, NotFound, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import counted, some_of
from stoker.jobs.job_folder import find_job, find_running
from stoker.protocol.discovery import CoordinatorEndpoint, coordinator_gone, find_coordinator, no_coordinator_known

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.api.fleet_job import FleetJob
    from stoker.host.http.exchange import Transport
    from stoker.protocol.client import FleetClient
    from stoker.store.records import Record

_ANSWER_S = 30.0
_RETRY_S = 1.0
_SHORT = 12
_MOST_NAMED = 5
_MEANT = "did you mean"


def open_client(
    parts: AppParts,
    found: CoordinatorEndpoint,
    *,
    token: str | None = None,
    connect_s: float | None = None,
    retry_s: float = _RETRY_S,
) -> tuple[FleetClient, Transport]:
    """Return a client of a coordinator, and its connections, which the caller closes. No request is sent yet."""
    from stoker.host.http.addresses import asked_directly
    from stoker.protocol.client import FleetClient
    from stoker.protocol.transport import RequestTimeouts

    direct = asked_directly(found.url)
    transport = parts.open_transport(_ANSWER_S, direct=direct, fleet=found.identity, connect_s=connect_s)
    patience = RequestTimeouts(answer_s=_ANSWER_S, silence_s=_ANSWER_S, retry_s=retry_s)
    token = found.token if token is None else token
    return FleetClient(transport, found.url, clock=parts.clock, token=token, patience=patience), transport


@frozen
class StoredItem:
    """Something in the store that is not a job's: its name, and every record that holds it."""

    name: str
    records: tuple[Record, ...]


class JobLookup:
    """Finds coordinators and jobs for one command; `note` gets what a person should know. Caller closes."""

    def __init__(self, parts: AppParts, note: Callable[[str], None]) -> None:
        self._parts = parts
        self._note = note
        self._opened: list[Transport | FleetJob] = []

    def close(self) -> None:
        """Close every connection, and delete what was copied to read it."""
        for opened in self._opened:
            opened.close()

    def coordinator(self, at: str | None = "") -> CoordinatorEndpoint | None:
        """Return which coordinator is meant, if any."""
        settings = self._parts.settings
        return find_coordinator(at or "", environment=settings.environment, state=settings.state)

    def client(self, at: str | None = "") -> FleetClient:
        """Return a client of the coordinator that is meant; `NoCoordinator` if none is known. No request is sent."""
        found = self.coordinator(at)
        if found is None:
            raise no_coordinator_known(self._parts.settings.state)
        return self.client_of(found)

    def client_of(self, found: CoordinatorEndpoint, *, connect_s: float | None = None) -> FleetClient:
        """Return a client of a coordinator."""
        client, transport = open_client(self._parts, found, connect_s=connect_s)
        self._opened.append(transport)
        return client

    def note_if_gone(self) -> None:
        """Say so if this home has a coordinator that is down: jobs that seem to be missing wait for it."""
        if (url := coordinator_gone(self._parts.settings.state)) is not None:
            self._note(f"note: the coordinator of this home ({url}) is not running; `stoker serve` starts it again")

    def local_job(self, target: str) -> LocalJob:
        """Find a job of this machine by its name, `last`, or the beginning of an id; a stage or trial may follow."""
        name, _, stage = target.partition("/")
        return LocalJob(find_job(self._parts.settings.runs, name), self._parts, stage)

    def live_job(self, target: str, at: str | None = "") -> LocalJob | FleetJob:
        """Find the job that is meant, or if it has ended, the newest job of this machine of its name that runs."""
        found = self.job(target, at)
        name, _, stage = target.partition("/")
        running = None
        if isinstance(found, LocalJob) or not at:
            running = find_running(self._parts.settings.runs, name)
        if running is None or found.may_run():
            return found
        self._note(f"note: the newest job of that name has ended; {running.attempt} is still running")
        return LocalJob(running, self._parts, stage)

    def job(self, target: str, at: str | None = "") -> LocalJob | FleetJob:
        """Find the job that is meant, here or on the fleet. `NotFound` if there is none, with the nearest name."""
        coordinator = self.coordinator(at)
        if coordinator is None:
            try:
                found = self.local_job(target)
            except NotFound:
                self.note_if_gone()
                raise
            self._refuse_point(target, found)
            return found
        fleet = self._of_fleet(self.client_of(coordinator), target, is_named=bool(at))
        local: LocalJob | None = None
        with suppress(NotFound):
            local = self.local_job(target)
        if not isinstance(fleet, StokerError):
            # An attempt of the very job that the fleet knows is not another one.
            return fleet if local is None or local.is_attempt else self._newer(local, fleet)
        if local is None:
            raise fleet
        if isinstance(fleet, NoCoordinator):
            self._refuse_point(target, local)
        if isinstance(fleet, NotFound) and _is_attempt_of_point(target, local):
            raise fleet
        return local

    def fleet_job_if_meant(self, target: str, at: str | None = "") -> FleetJob | None:
        """Return the job of the fleet that is meant; None if another thing is, which may have the same name."""
        if self.coordinator(at) is None:
            return None
        try:
            found = self.job(target, at)
        except (NotFound, NoCoordinator, BadAnswer):
            if at:
                raise
            return None
        return None if isinstance(found, LocalJob) else found

    def fleet_job(self, target: str, at: str | None = "") -> FleetJob:
        """Find a job of the fleet, for what only a fleet's job can do."""
        found = self.job(target, at)
        if not isinstance(found, LocalJob):
            return found
        if self.coordinator(at) is None:
            raise no_coordinator_known(self._parts.settings.state)
        hint = "stoker submit hands jobs to the fleet"
        raise NotFound(f"{found.spec.name} is a job of this machine, not of the fleet", hint=hint)

    def job_or_stored(self, target: str) -> LocalJob | StoredItem:
        """Find a job of this machine, or what was put under a name or has a digest. A job wins, with a note."""
        from stoker.store.prune import resolve
        from stoker.store.refs import find_ref

        store, word = self._parts.store, target.partition("/")[0]
        ref = find_ref(store.places, word)
        try:
            job = self.local_job(target)
        except NotFound as error:
            try:
                records = resolve(store, word)
            except NotFound as other:
                if word == "last":
                    raise error from None
                hint = error.hint if error.hint.startswith(_MEANT) else other.hint
                raise NotFound(f"there is no job {word!r}, and nothing was put under that name", hint=hint) from None
            return StoredItem(name=ref.name if ref else records[0].digest[:_SHORT], records=tuple(records))
        except Ambiguous:
            if ref is None:
                raise
            return StoredItem(name=ref.name, records=tuple(resolve(store, word)))
        if ref is not None:
            digest = ref.digest[:_SHORT]
            self._note(f"note: {word} is a job; the stored tree {word}: use its digest, {digest}")
        return job

    def _refuse_point(self, target: str, local: LocalJob) -> None:
        """Refuse `NAME/3` where only an attempt of some point is here: which point, only the coordinator knows."""
        if _is_attempt_of_point(target, local):
            error = no_coordinator_known(self._parts.settings.state)
            raise NoCoordinator(f"{target} is a job of the fleet, and {error.message}", hint=error.hint)

    def _of_fleet(self, client: FleetClient, target: str, *, is_named: bool) -> FleetJob | StokerError:
        """Ask the coordinator. One that was not named for this command need not answer: there are local jobs, too."""
        from stoker.api.fleet_job import FleetJob, no_trial

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
            self._note(f"note: {error.message}")
            return error
        found = FleetJob(client, ref, story, self._parts, stage=stage, note=self._note)
        if found.is_sweep and stage:
            labelled = [one for one in found.points() if one.label]
            point = next((one for one in labelled if f"{stage}/".startswith(f"{one.label}/")), None)
            if point is None:
                return no_trial(ref, stage)
            stage = stage[len(point.label) + 1 :]
            found = FleetJob(client, point.name, client.job(point.id), self._parts, stage=stage, note=self._note)
        self._opened.append(found)
        return found

    def _newer(self, local: LocalJob, fleet: FleetJob) -> LocalJob | FleetJob:
        is_local = local.attempt.started_s > fleet.view.submitted_s
        if fleet.ref != "last":
            older = f"an older job of this machine has that name, too: {local.attempt.id}"
            self._note(f"note: {_by_id(fleet) if is_local else older}")
        return local if is_local else fleet


def split_ref(target: str) -> tuple[str, str]:
    """Take `NAME/3/STAGE` apart: what the coordinator calls the job, and the stage."""
    name, _, rest = target.partition("/")
    number, _, stage = rest.partition("/")
    if number.isascii() and number.isdigit():
        return f"{name}/{number}", stage
    return name, rest


def _is_attempt_of_point(target: str, local: LocalJob) -> bool:
    """Return True if `NAME/3` was asked for and what is here is an attempt of a job of the fleet."""
    return split_ref(target)[0] != target.partition("/")[0] and local.is_attempt


def _without_point(client: FleetClient, ref: str) -> NotFound | None:
    """Return how many trials a sweep has that has none of this number; None if `ref` is no point of a sweep."""
    from stoker.api.fleet_job import points_of

    name, _, number = ref.rpartition("/")
    count = 0
    with suppress(NoCoordinator, BadAnswer):
        count = len(points_of(client, name)) if name else 0
    if not count:
        return None
    trials = counted(count, "trial")
    return NotFound(f"the sweep {name} has {trials} and no {number}", hint=f"list them: stoker jobs show {name}")


def _by_id(fleet: FleetJob) -> str:
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
