"""Routes about the whole fleet: status, health, events as they happen, figures for Prometheus, reload."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.database.tables import EVENTS_DROPPED_TO
from stoker.coordinator.service.answers import HEADERS, answer, raw
from stoker.coordinator.service.event_feed import BEAT_S, EventFeed
from stoker.coordinator.service.figures import CONTENT_TYPE
from stoker.coordinator.service.fleet_figures import FleetFigures, machine_counts
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.speech import json_bytes
from stoker.coordinator.service.who import Still, Who, recorded
from stoker.model.errors import BadInput, NotFound
from stoker.wire.asking import DoneView
from stoker.wire.protocol import VERSION
from stoker.wire.views import FleetStatus, ScheduleView

_LAST_ID = 2**63 - 1
After = Annotated[int | None, Query(ge=0, le=_LAST_ID)]


class FleetRoutes:
    """Answers them."""

    def __init__(self, office: Office, figures: FleetFigures) -> None:
        self._office = office
        self._figures = figures
        self.router = APIRouter(tags=["fleet"])
        add = self.router.add_api_route
        add("/v1/status", self.status, response_model=FleetStatus)
        add("/v1/schedule", self.schedule, response_model=ScheduleView)
        add("/v1/health", self.health)
        add("/v1/events", self.events, response_class=StreamingResponse)
        add("/metrics", self.metrics, response_class=Response)
        add("/v1/reload", self.reload, methods=["POST"], response_model=DoneView)

    async def status(self) -> Response:
        """Give the whole fleet in one look."""
        office = self._office
        return answer(await office.read(fleet_status, office))

    async def schedule(self) -> Response:
        """Return the state of the scheduler: machines, leases, ready jobs, users. A simulation may begin with it."""
        # Of ten thousand machines it is megabytes: they are put into words in that thread, too.
        return await self._office.foresee(lambda: answer(self._office.views.schedule()))

    async def health(self) -> Response:
        """Say whether the database answers, and takes what is written."""
        office = self._office
        if (trouble := office.queue.trouble()) is not None:
            raise trouble
        meta = await office.read(office.reader.meta)
        body = {"status": "ok", "version": office.about.version, "protocol": VERSION}
        return raw(json_bytes({**body, "generation": int(meta.get("generation", 0))}), "application/json")

    async def events(
        self, still: Still, after: After = None, last_event_id: Annotated[str | None, Header(max_length=40)] = None
    ) -> Response:
        """Send events as they happen. `Last-Event-ID`, or `after`, goes on behind one; without, it begins now.

        Not found, if some of those that would follow are no longer kept. Behind 0 it begins with the oldest that are.
        """
        office = self._office
        if last_event_id:
            if not (last_event_id.isascii() and last_event_id.isdigit()) or int(last_event_id) > _LAST_ID:
                raise BadInput(f"Last-Event-ID is a whole number, not {last_event_id!r}")
            after = int(last_event_id)
        if after:
            refuse_dropped(after, await office.read(office.reader.meta))
        place = after if after is not None else await office.read(office.reader.newest_event)
        office.feed.check_room()
        return StreamingResponse(_stream(office.feed, place, still), headers=HEADERS, media_type="text/event-stream")

    async def metrics(self) -> Response:
        """Give figures as Prometheus reads them."""
        return raw(await self._office.read(self._figures.text), CONTENT_TYPE)

    async def reload(self, who: Who, *, dry_run: Annotated[bool, Query()] = False) -> Response:
        """Read the cluster file and the manifest again, and say what changed."""
        return answer(await self._office.reload(dry_run=dry_run, by=recorded(who, "")))


def refuse_dropped(after: int, meta: Mapping[str, str]) -> None:
    """Refuse to go on behind an event where some that followed it were dropped: nobody is to miss them unknowingly."""
    dropped_to = int(meta.get(EVENTS_DROPPED_TO, "0"))
    if after < dropped_to:
        raise NotFound(
            f"not all events behind {after:,} are kept: old ones up to {dropped_to:,} were dropped",
            hint=f"look how things stand, then go on behind {dropped_to}, or without a number from now on",
            dropped_to=dropped_to,
        )


async def _stream(feed: EventFeed, place: int, may_still: Callable[[], bool]) -> AsyncIterator[bytes]:
    with feed.listening():
        # No event yet, but where the stream stands: whoever is cut off before the first one goes on behind it.
        yield b"id: %d\n\n" % place
        while (found := await feed.after(place, BEAT_S)) is not None and may_still():
            place, text = found
            yield text or b": still here\n\n"


def fleet_status(office: Office) -> FleetStatus:
    """Give the whole fleet in one look."""
    pace, about = office.queue.pace(), office.about
    return FleetStatus(
        version=about.version,
        protocol=VERSION,
        generation=int(office.reader.meta().get("generation", 0)),
        started_s=about.started_s,
        server_s=office.clock.wall_s(),
        database=about.database,
        jobs=office.reader.counts(),
        machines=machine_counts(office),
        lease_s=pace.lease_s,
        heartbeat_s=pace.heartbeat_s,
        settling_s=pace.settling_s,
        symptoms=office.reader.symptoms(),
    )
