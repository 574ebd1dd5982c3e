"""Which coordinator and which job a command means: one that ran here, or one of the fleet.

Of two jobs with one name the newer is meant, and a note says so. A coordinator is `--at URL`, STOKER_COORDINATOR, this
home's own, or the one that was joined.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.api.local_job import LocalJob
from stoker.core.errors import Ambiguous, BadAnswer, MissingExtra, NoCoordinator, NotFound, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import counted, some_of
from stoker.host.install import missing_extra
from stoker.jobs.job_folder import find_job, find_running
from stoker.protocol.discovery import (
    CoordinatorEndpoint,
    MembershipKind,
    coordinator_gone,
    find_coordinator,
    is_starting,
    no_coordinator_known,
)

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.api.fleet_job import FleetJob
    from stoker.host.http.exchange import Transport
    from stoker.protocol.client import FleetClient
    from stoker.store.records import Record

_ANSWER_S = 30.0
_RETRY_S = 1.0
_STARTS_S = 30.0
"""Maximum wait for a coordinator whose process is starting."""
_LOOK_EVERY_S = 0.1
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
    from stoker.host.http.exchange import asked_directly
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
        self._unseen: StokerError | None = None
        """Why jobs of the fleet can't be seen, though a coordinator is known."""

    def close(self) -> None:
        """Close every connection, and delete what was copied to read it."""
        for opened in self._opened:
            opened.close()

    def coordinator(
        self, at: str | None = "", side: MembershipKind = MembershipKind.OPERATOR
    ) -> CoordinatorEndpoint | None:
        """Return which coordinator is meant, if any."""
        settings = self._parts.settings
        return find_coordinator(at or "", environment=settings.environment, state=settings.state, side=side)

    def wait_for_coordinator(
        self,
        at: str | None = "",
        side: MembershipKind = MembershipKind.OPERATOR,
        *,
        limit_s: float | None = None,
        hint: str = "",
    ) -> CoordinatorEndpoint:
        """Return the coordinator that is meant; wait if none is known yet, and say so once.

        After `limit_s` (default: no limit), or after 30 s if one is starting in this home, raise `NoCoordinator`.
        """
        clock, state = self._parts.clock, self._parts.settings.state
        began_s = clock.monotonic_s()
        is_noted = False
        while (found := self.coordinator(at, side)) is None:
            waited_s = clock.monotonic_s() - began_s
            if limit_s is not None and waited_s >= (max(limit_s, _STARTS_S) if is_starting(state) else limit_s):
                raise no_coordinator_known(state)
            if not is_noted:
                self._note(f"waiting for a coordinator: `stoker serve` starts one in this home{hint}")
                is_noted = True
            clock.sleep(_LOOK_EVERY_S)
        return found

    def client(self, at: str | None = "") -> FleetClient:
        """Return a client of the coordinator that is meant; `NoCoordinator` if none is known. No request is sent."""
        found = self.coordinator(at)
        if found is None:
            raise no_coordinator_known(self._parts.settings.state)
        return self.client_of(found)

    def client_of(self, found: CoordinatorEndpoint, *, connect_s: float | None = None) -> FleetClient:
        """Return a client of a coordinator. Raises `MissingExtra` if its libraries are not installed."""
        try:
            client, transport = open_client(self._parts, found, connect_s=connect_s)
        except ModuleNotFoundError as error:
            if (lacking := missing_extra(error)) is None:
                raise
            raise MissingExtra(f"commands to the fleet need more: {lacking.message}", hint=lacking.hint) from None
        self._opened.append(transport)
        return client

    def note_if_gone(self) -> None:
        """Say so if this home has a coordinator that is down: jobs that seem to be missing wait for it."""
        if (url := coordinator_gone(self._parts.settings.state)) is not None:
            self._note(f"note: the coordinator of this home ({url}) is not running; `stoker serve` starts it again")

    def local_job(self, target: str, *, with_attempts: bool = True) -> LocalJob:
        """Find a job of this machine by its name, `last`, or the beginning of an id; a stage or trial may follow.

        With `with_attempts`, attempts that this machine made for a fleet are found, too.
        """
        name, _, stage = target.partition("/")
        folder = find_job(self._parts.settings.runs, name, with_attempts=with_attempts)
        return LocalJob(folder, self._parts, stage)

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
        """Find the job that is meant, here or on the fleet.

        Raises `NotFound`, with the nearest name, if there is none; `NoCoordinator` if there is none here and the
        coordinator does not answer.
        """
        fleet = self._of_fleet(target, at)
        if fleet is not None and not isinstance(fleet, StokerError):
            # Attempts of jobs that the fleet shows are not other jobs.
            with suppress(NotFound):
                return self._newer(self.local_job(target, with_attempts=False), fleet, target)
            return fleet
        try:
            local = self.local_job(target)
        except NotFound as missing:
            raise fleet or self._gone(target, missing) or missing from None
        if _is_attempt_of_point(target, local):
            # Which point it was, only the coordinator knows.
            if not isinstance(fleet, NoCoordinator | None):
                raise fleet
            error = no_coordinator_known(self._parts.settings.state)
            raise NoCoordinator(f"{target} is a job of the fleet, and {error.message}", hint=error.hint)
        return local

    def _gone(self, target: str, missing: NotFound) -> NoCoordinator | None:
        """Return the error of a job that is not here, if this home's coordinator is down; None if there is none."""
        state, name = self._parts.settings.state, target.partition("/")[0]
        if coordinator_gone(state) is None:
            return None
        error = no_coordinator_known(state)
        message = f"there is no job {name!r} on this machine; jobs of the fleet can't be seen: {error.message}"
        hint = f"{missing.hint}; {error.hint}" if missing.hint.startswith(_MEANT) else error.hint
        return NoCoordinator(message, hint=hint)

    def fleet_job_if_meant(self, target: str, at: str | None = "") -> FleetJob | None:
        """Return the job of the fleet that is meant; None if another thing is, which may have the same name."""
        if self.coordinator(at) is None:
            return None
        try:
            found = self.job(target, at)
        except (NotFound, NoCoordinator, BadAnswer, MissingExtra):
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
                unseen = self._unseen or self._gone(target, error)
                if unseen is not None:
                    raise unseen from None
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

    def _of_fleet(self, target: str, at: str | None) -> FleetJob | StokerError | None:
        """Ask the coordinator; return None if none is known.

        One that was not named for this command need not answer: there are local jobs, too.
        """
        if (coordinator := self.coordinator(at)) is None:
            return None
        try:
            return self._ask(self.client_of(coordinator), *split_ref(target))
        except (NoCoordinator, BadAnswer, MissingExtra) as error:
            if at:
                raise
            self._note(f"note: {error.message}")
            self._unseen = error
            return error

    def _ask(self, client: FleetClient, ref: str, stage: str) -> FleetJob | NotFound:
        from stoker.api.fleet_job import FleetJob, no_trial

        try:
            story = client.job("last" if ref.startswith("last/") else ref)
            if ref.partition("/")[0] == "last":
                # The newest job, of a sweep all its points, as on this machine.
                number = ref.removeprefix("last")
                ref = f"{story.job.name.partition('/')[0]}{number}"
                story = client.job(ref) if number else story
        except NotFound as error:
            return _without_point(client, ref) or error
        found = FleetJob(client, ref, story, self._parts, stage=stage, note=self._note)
        if found.is_sweep and stage:
            number, dot, inner = stage.partition(".")
            if dot and number.isascii() and number.isdigit():
                # As `logs` and `explain` name the stages of a sweep's trials.
                return self._ask(client, f"{ref}/{number}", inner)
            labelled = [one for one in found.points() if one.label]
            point = next((one for one in labelled if f"{stage}/".startswith(f"{one.label}/")), None)
            if point is None:
                return no_trial(ref, stage)
            stage = stage[len(point.label) + 1 :]
            found = FleetJob(client, point.name, client.job(point.id), self._parts, stage=stage, note=self._note)
        self._opened.append(found)
        return found

    def _newer(self, local: LocalJob, fleet: FleetJob, target: str) -> LocalJob | FleetJob:
        is_local = local.attempt.started_s > fleet.view.submitted_s
        if target.partition("/")[0] != "last":
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
