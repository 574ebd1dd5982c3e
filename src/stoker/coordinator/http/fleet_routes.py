"""Routes about the whole fleet: status, health, events as they happen, figures for Prometheus, reload."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.database.database_check import judge
from stoker.coordinator.database.tables import EVENTS_DROPPED_TO
from stoker.coordinator.http.access import Still, Who, recorded
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.feeds import BEAT_S, CONTENT_TYPE, EventFeed
from stoker.coordinator.http.http_messages import HEADERS, MachineName, answer, done, json_bytes, raw
from stoker.coordinator.http.worker_routes import own
from stoker.coordinator.notify import Notifier, may_be_told, trial
from stoker.coordinator.queue.commands import (
    AddHook,
    CloseHook,
    CloseMachine,
    ForgetMachine,
    MachineCloseMode,
    NoteReport,
    OpenMachine,
)
from stoker.coordinator.queue.reader import WebhookRow
from stoker.core.errors import BadInput, Forbidden, NotFound
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.core.leases import Principal, Role
from stoker.core.text import did_you_mean
from stoker.host.http.addresses import is_literal, is_this_computer, read_address, shown
from stoker.protocol.codec import VERSION
from stoker.protocol.operator_messages import (
    ALL_WORDS,
    HistoryCheck,
    MachineReport,
    WebhookList,
    WebhookRequest,
    WebhookResponse,
    WebhookTestResult,
    WebhookView,
)
from stoker.protocol.view_messages import DoneView, FleetStatus, MachineList, MachineRequest, MachineView, ScheduleView

# Routes for people about machines: list them, close them to work, open them again, forget them.

_NOTHING_SAID = MachineRequest()


class MachineRoutes:
    """Answers them."""

    def __init__(self, office: ServiceContext, *, on_forgotten: Callable[[str], None]) -> None:
        """Answer them; `on_forgotten` hears of a machine that no longer belongs to the fleet."""
        self._office = office
        self._on_forgotten = on_forgotten
        self.router = APIRouter(tags=["machines"])
        add = self.router.add_api_route
        add("/v1/machines", self.all, response_model=MachineList)
        add("/v1/machines/{name}", self.one, response_model=MachineView)
        for verb, act in (
            ("drain", self.drain),
            ("cordon", self.cordon),
            ("pause", self.pause),
            ("open", self.open),
            ("forget", self.forget),
        ):
            add(f"/v1/machines/{{name}}/{verb}", act, methods=["POST"], response_model=DoneView)

    async def all(self) -> Response:
        """List the machines."""
        return answer(MachineList(machines=await self._office.read(self._office.views.machines, "")))

    async def one(self, name: MachineName) -> Response:
        """Return one machine."""
        office = self._office
        found = await office.read(office.views.machines, name)
        if not found:
            known = [machine.name for machine in await office.read(office.views.machines, "")]
            hint = did_you_mean(name, known) or "`stoker machines` lists them"
            raise NotFound(f"there is no machine {name!r}", hint=hint)
        return answer(found[0])

    async def drain(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Return a machine no more work; what runs there finishes."""
        return await self._close(name, MachineCloseMode.DRAIN, asked, who)

    async def cordon(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Return a machine, or some of its devices, no more work: it is mistrusted."""
        return await self._close(name, MachineCloseMode.CORDON, asked, who)

    async def pause(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Give a machine back to its owner: what runs there goes back to the queue."""
        return await self._close(name, MachineCloseMode.PAUSE, asked, who)

    async def open(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Let a machine, or some of its devices, have work again."""
        return done(
            await self._office.ask(OpenMachine(machine=name, devices=asked.devices, by=recorded(who, asked.by)))
        )

    async def forget(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Remove a machine. One that joined with a code is refused from now on, and what it holds is lost at once."""
        command = ForgetMachine(machine=name, is_forced=asked.is_forced, by=recorded(who, asked.by))
        forgotten = await self._office.ask(command)
        self._on_forgotten(name)
        return done(forgotten)

    async def _close(self, name: str, how: MachineCloseMode, asked: MachineRequest, who: Principal) -> Response:
        command = CloseMachine(
            machine=name, how=how, devices=asked.devices, why=asked.why, for_s=asked.for_s, by=recorded(who, asked.by)
        )
        did = await self._office.ask(command)
        return done(changed(did, notes=(*did.notes, *await self._unknown_devices(name, asked.devices))))

    async def _unknown_devices(self, machine: str, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Return which devices the machine does not report now: one that fell off the bus, or one that was misspelt."""
        if not devices:
            return ()
        office = self._office
        there = [
            str(one.get("uuid", ""))
            for view in await office.read(office.views.machines, machine)
            for one in view.devices
        ]
        return tuple(
            f"{machine} has no device {uuid} now; {did_you_mean(uuid, there) or '`stoker machines show` lists them'}"
            for uuid in devices
            if uuid not in there
        )


_LAST_ID = 2**63 - 1
After = Annotated[int | None, Query(ge=0, le=_LAST_ID)]


class FleetRoutes:
    """Answers them."""

    def __init__(self, office: ServiceContext) -> None:
        self._office = office
        self.router = APIRouter(tags=["fleet"])
        add = self.router.add_api_route
        add("/v1/status", self.status, response_model=FleetStatus)
        add("/v1/schedule", self.schedule, response_model=ScheduleView)
        add("/v1/health", self.health)
        add("/v1/events", self.events, response_class=StreamingResponse)
        add("/metrics", self.metrics, response_class=Response)
        add("/v1/reload", self.reload, methods=["POST"], response_model=DoneView)

    async def status(self) -> Response:
        """Return the whole fleet in one look."""
        office = self._office
        return answer(await office.read(fleet_status, office))

    async def schedule(self) -> Response:
        """Return the state of the scheduler: machines, leases, ready jobs, users. A simulation may begin with it."""
        # Of ten thousand machines it is megabytes: they are put into words in that thread, too.
        return await self._office.foresee(lambda: answer(self._office.views.schedule()))

    async def health(self) -> Response:
        """Return whether the database answers, and takes what is written."""
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
        """Return figures as Prometheus reads them."""
        return raw(await self._office.read(self._office.figures), CONTENT_TYPE)

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


def fleet_status(office: ServiceContext) -> FleetStatus:
    """Return the whole fleet in one look."""
    pace, about = office.queue.pace(), office.about
    return FleetStatus(
        version=about.version,
        protocol=VERSION,
        generation=int(office.reader.meta().get("generation", 0)),
        started_s=about.started_s,
        server_s=office.clock.wall_s(),
        database=about.database,
        jobs=office.reader.counts(),
        machines=office.machine_counts(),
        lease_s=pace.lease_s,
        heartbeat_s=pace.heartbeat_s,
        settling_s=pace.settling_s,
        symptoms=office.reader.symptoms(),
    )


# Routes about the fleet's health: what workers found out about their machines, and the history checker's verdict.

MOST_JOBS = 100_000


class HealthRoutes:
    """Answers them."""

    def __init__(self, office: ServiceContext) -> None:
        self._office = office
        # A verdict reads much: one at a time, whoever asks.
        self._judging = asyncio.Lock()
        self.router = APIRouter(tags=["health"])
        add = self.router.add_api_route
        add("/v1/machines/{name}/report", self.report, methods=["POST"], response_model=DoneView)
        add("/v1/history/verdict", self.verdict, response_model=HistoryCheck)

    async def report(self, name: MachineName, said: MachineReport, who: Who) -> Response:
        """Take what a worker found out about its machine, whatever version it is."""
        said = own(said, who)
        if said.worker != name:
            raise BadInput(f"the report is {said.worker}'s, not {name}'s")
        now_s = self._office.clock.wall_s()
        told = {
            "at_s": now_s,
            "offset_s": round(said.wall_s - now_s, 3),
            **said.model_dump(mode="json", exclude={"worker", "wall_s"}),
        }
        return done(await self._office.ask(NoteReport(machine=name, report=dumps(told))))

    async def verdict(self, jobs: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 20_000) -> Response:
        """Run the history checker over the newest jobs, and say what it found."""
        office = self._office
        async with self._judging:
            began_s = office.clock.monotonic_s()
            found = await office.read(
                judge,
                office.reader.database,
                most=jobs,
                budgets=office.queue.budgets,
                has_object=office.keeping.has_archive,
            )
        return answer(
            HistoryCheck(
                jobs=found.jobs,
                is_whole=found.is_whole,
                seconds=office.clock.monotonic_s() - began_s,
                rules=found.broken,
                violations=tuple(one.to_dict() for one in found.violations),
            )
        )


# Routes about hooks: who is told of events elsewhere. Admins see and make all; a submitter one for jobs alone.

HookId = Annotated[int, Path(description="A hook's number", ge=1, le=(1 << 31) - 1)]
_SECRET_BYTES = 32


class WebhookRoutes:
    """Answers them."""

    def __init__(self, office: ServiceContext, notifier: Notifier | None) -> None:
        self._office = office
        self._notifier = notifier
        self.router = APIRouter(tags=["hooks"])
        add = self.router.add_api_route
        add("/v1/hooks", self.all, response_model=WebhookList)
        add("/v1/hooks", self.make, methods=["POST"], response_model=WebhookResponse)
        add("/v1/hooks/{id}", self.close, methods=["DELETE"], response_model=DoneView)
        add("/v1/hooks/{id}/test", self.test, methods=["POST"], response_model=WebhookTestResult)

    async def all(self) -> Response:
        """List the hooks, without what signs their messages."""
        hooks = await self._office.read(self._office.reader.hooks)
        return answer(WebhookList(hooks=tuple(_view(hook) for hook in hooks)))

    async def make(self, asked: WebhookRequest, who: Who) -> Response:
        """Begin to tell somebody of events. What signs the messages is in the answer, and never again."""
        is_admin = who.may(Role.ADMIN)
        if not asked.jobs and not is_admin:
            raise Forbidden("only an admin is told of everything", hint="name the jobs: `stoker submit --notify URL`")
        check_url(asked.url, is_inner=is_admin)
        unknown = [word for word in asked.on if word not in ALL_WORDS]
        if unknown:
            raise BadInput(f"nothing is called {unknown[0][:40]!r}", hint=f"there are {', '.join(ALL_WORDS)}")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        command = AddHook(
            url=asked.url, secret=secret, kinds=asked.on, jobs=asked.jobs, is_inner=is_admin, by=recorded(who, asked.by)
        )
        made = await self._office.ask(command)
        return answer(WebhookResponse(hook=_view(await self._find(made.data["id"])), secret=secret))

    async def close(self, id: HookId, who: Who) -> Response:
        """Tell a hook nothing more."""
        by = recorded(who, "")
        return done(await self._office.ask(CloseHook(id=id, why=f"closed by {by or 'an admin'}", by=by)))

    async def test(self, id: HookId) -> Response:
        """Send a message that says nothing, once, and say what became of it."""
        hook = await self._find(id)
        if hook.closed_s is not None:
            raise BadInput(f"hook {id} is closed", hint="`stoker admin notify add URL` makes a new one")
        if self._notifier is None:
            raise BadInput("this coordinator tells nobody of events")
        trouble = await self._office.keep(self._notifier.send, hook, trial(id, self._office.clock.wall_s()))
        return answer(WebhookTestResult(is_delivered=not trouble, message=trouble))

    async def _find(self, id: int) -> WebhookRow:
        for hook in await self._office.read(self._office.reader.hooks):
            if hook.id == id:
                return hook
        raise NotFound(f"there is no hook {id}", hint="`stoker admin notify` lists them")


def check_url(url: str, *, is_inner: bool) -> None:
    """Refuse what can't be told anything; a name's address is looked at when it is connected to."""
    address = read_address(url)
    host = address.origin.host
    if address.authorization:
        raise BadInput("no password stands in a hook's address", hint="its messages are signed: check the signature")
    if is_this_computer(host):
        if not is_inner:
            raise Forbidden("only an admin's hook leads to the coordinator's own machine", hint="name a public address")
    elif is_literal(host) and not may_be_told(host, is_inner=is_inner):
        raise Forbidden(f"a hook may not lead to {host}", hint="private addresses need an admin, some are never told")


def _view(hook: WebhookRow) -> WebhookView:
    return WebhookView(
        id=hook.id,
        url=shown(hook.url),
        on=hook.words,
        jobs=len(hook.jobs),
        cursor=hook.cursor,
        failures=hook.failures,
        last_error=hook.last_error,
        made_s=hook.made_s,
        closed_s=hook.closed_s,
        by=hook.by,
    )
