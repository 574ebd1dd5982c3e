"""Routes about the whole fleet: status, health, events as they happen, figures for Prometheus, reload."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated

from fastapi import Header, Path, Query, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.database.database_check import judge
from stoker.coordinator.database.tables import EVENTS_DROPPED_TO
from stoker.coordinator.http.access import LOCAL_ADMIN, Still, Who, recorded
from stoker.coordinator.http.app_state import CONTENT_TYPE, ServiceContext
from stoker.coordinator.http.http_messages import HEADERS, MachineName, RouteTable, answer, done, json_bytes, raw
from stoker.coordinator.http.long_poll import BEAT_S, EventFeed
from stoker.coordinator.http.worker_routes import own
from stoker.coordinator.notice_formats import format_of_url
from stoker.coordinator.notify import Notifier, is_allowed_address, trial
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
from stoker.coordinator.storage.tree_storage import stored_sizes
from stoker.core.errors import BadInput, Forbidden, NotFound
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.core.leases import Principal, Role
from stoker.core.text import did_you_mean
from stoker.host.http.exchange import is_literal, is_this_computer, read_address, shown
from stoker.protocol.codec import VERSION
from stoker.protocol.operator_messages import (
    ALL_WORDS,
    PERSON_WORDS,
    HistoryCheck,
    MachineReport,
    NotifyFormat,
    WebhookList,
    WebhookRequest,
    WebhookResponse,
    WebhookTestResult,
    WebhookView,
)
from stoker.protocol.view_messages import DoneView, FleetStatus, MachineList, MachineRequest, MachineView, ScheduleView

_NOTHING_SAID = MachineRequest()
MOST_MACHINES = 1000
MachineAfter = Annotated[str, Query(max_length=200, description="`next` of the page before")]
MachineLimit = Annotated[int, Query(ge=0, le=MOST_MACHINES, description="0: all of them")]


class MachineRoutes:
    """Routes for people about machines: list, close, open and forget them."""

    def __init__(self, context: ServiceContext, *, on_forgotten: Callable[[str], Awaitable[None]]) -> None:
        """Answer them; `on_forgotten` hears of a machine that no longer belongs to the fleet."""
        self._context = context
        self._on_forgotten = on_forgotten
        self.router = RouteTable("machines")
        add = self.router.add
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

    async def all(self, after: MachineAfter = "", limit: MachineLimit = 0, *, brief: bool = False) -> Response:
        """List machines by name: all of them, or a page. `brief` leaves out what never changes while a machine runs."""
        # For hundreds of machines it is megabytes: encoded in that thread, too.
        return await self._context.read(lambda: answer(self._page(after, limit, is_brief=brief)))

    def _page(self, after: str, limit: int, *, is_brief: bool) -> MachineList:
        context = self._context
        names = context.reader.machine_names(after, limit + 1 if limit else None)
        shown = names[:limit] if limit else names
        return MachineList(
            machines=context.views.machines(among=shown, is_brief=is_brief) if shown else (),
            next=shown[-1] if len(shown) < len(names) else "",
        )

    async def one(self, name: MachineName) -> Response:
        """Return one machine."""
        context = self._context
        found = await context.read(context.views.machines, name)
        if not found:
            known = [machine.name for machine in await context.read(context.views.machines, "")]
            hint = did_you_mean(name, known) or "`stoker machines` lists them"
            raise NotFound(f"there is no machine {name!r}", hint=hint)
        return answer(found[0])

    async def drain(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Drain a machine: no new jobs; running ones finish."""
        return await self._close(name, MachineCloseMode.DRAIN, asked, who)

    async def cordon(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Cordon a machine, or some of its devices: no new jobs until it is opened."""
        return await self._close(name, MachineCloseMode.CORDON, asked, who)

    async def pause(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Pause a machine for its owner: running jobs return to the queue."""
        return await self._close(name, MachineCloseMode.PAUSE, asked, who)

    async def open(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Open a machine, or some of its devices, again."""
        return done(
            await self._context.ask(OpenMachine(machine=name, devices=asked.devices, by=recorded(who, asked.by)))
        )

    async def forget(self, name: MachineName, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Remove a machine. One that joined with a code is refused from now on, and its leases end at once."""
        command = ForgetMachine(machine=name, is_forced=asked.is_forced, by=recorded(who, asked.by))
        forgotten = await self._context.ask(command)
        await self._on_forgotten(name)
        return done(forgotten)

    async def _close(self, name: str, how: MachineCloseMode, asked: MachineRequest, who: Principal) -> Response:
        command = CloseMachine(
            machine=name, how=how, devices=asked.devices, why=asked.why, for_s=asked.for_s, by=recorded(who, asked.by)
        )
        did = await self._context.ask(command)
        return done(changed(did, notes=(*did.notes, *await self._unknown_devices(name, asked.devices))))

    async def _unknown_devices(self, machine: str, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Return notes about devices that the machine does not report now: failed or misspelt ones."""
        if not devices:
            return ()
        context = self._context
        there = [
            str(one.get("uuid", ""))
            for view in await context.read(context.views.machines, machine)
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
    """Routes about the whole fleet."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self.router = RouteTable("fleet")
        add = self.router.add
        add("/v1/status", self.status, response_model=FleetStatus)
        add("/v1/schedule", self.schedule, response_model=ScheduleView)
        add("/v1/health", self.health)
        add("/v1/events", self.events, response_class=StreamingResponse)
        add("/metrics", self.metrics, response_class=Response)
        add("/v1/reload", self.reload, methods=["POST"], response_model=DoneView)

    async def status(self) -> Response:
        """Return the state of the whole fleet."""
        context = self._context
        return answer(await context.read(fleet_status, context))

    async def schedule(self) -> Response:
        """Return the state of the scheduler: machines, leases, ready jobs, users. A simulation may begin with it."""
        # For ten thousand machines it is megabytes: encoded in that thread, too.
        return await self._context.run_forecast(lambda: answer(self._context.views.schedule()))

    async def health(self) -> Response:
        """Return ok if the database can be read and written."""
        context = self._context
        if (trouble := context.queue.trouble()) is not None:
            raise trouble
        meta = await context.read(context.reader.meta)
        body = {"status": "ok", "version": context.about.version, "protocol": VERSION}
        return raw(json_bytes({**body, "generation": int(meta.get("generation", 0))}), "application/json")

    async def events(
        self, still: Still, after: After = None, last_event_id: Annotated[str | None, Header(max_length=40)] = None
    ) -> Response:
        """Send events as they happen. `Last-Event-ID`, or `after`, continues behind one; without, it begins now.

        Not found, if some of the following ones are no longer stored. Behind 0 it begins with the oldest stored one.
        """
        context = self._context
        if last_event_id:
            if not (last_event_id.isascii() and last_event_id.isdigit()) or int(last_event_id) > _LAST_ID:
                raise BadInput(f"Last-Event-ID: {last_event_id!r} is not a whole number")
            after = int(last_event_id)
        if after:
            refuse_dropped(after, await context.read(context.reader.meta))
        place = after if after is not None else await context.read(context.reader.newest_event)
        context.feed.check_room()
        return StreamingResponse(_stream(context.feed, place, still), headers=HEADERS, media_type="text/event-stream")

    async def metrics(self) -> Response:
        """Return metrics in Prometheus format."""
        return raw(await self._context.read(self._context.figures), CONTENT_TYPE)

    async def reload(self, who: Who, *, dry_run: Annotated[bool, Query()] = False) -> Response:
        """Reload the cluster file and the manifest, and return what changed."""
        return answer(await self._context.reload(dry_run=dry_run, by=recorded(who, "")))


def refuse_dropped(after: int, meta: Mapping[str, str]) -> None:
    """Raise `NotFound` if events behind this one were deleted, so that no client misses them unknowingly."""
    dropped_to = int(meta.get(EVENTS_DROPPED_TO, "0"))
    if after < dropped_to:
        raise NotFound(
            f"not all events behind {after:,} are stored: old ones up to {dropped_to:,} were deleted",
            hint=f"read the present state, then continue behind {dropped_to}, or without a number from now on",
            dropped_to=dropped_to,
        )


async def _stream(feed: EventFeed, place: int, may_still: Callable[[], bool]) -> AsyncIterator[bytes]:
    with feed.listening():
        # The position before the first event: a client that is disconnected before it resumes here.
        yield b"id: %d\n\n" % place
        while (found := await feed.after(place, BEAT_S)) is not None and may_still():
            place, text = found
            yield text or b": still here\n\n"


def fleet_status(context: ServiceContext) -> FleetStatus:
    """Return the state of the whole fleet."""
    pace, about = context.queue.pace(), context.about
    return FleetStatus(
        version=about.version,
        protocol=VERSION,
        generation=int(context.reader.meta().get("generation", 0)),
        started_s=about.started_s,
        server_s=context.clock.wall_s(),
        database=about.database,
        jobs=context.reader.counts(),
        machines=context.machine_counts(),
        lease_s=pace.lease_s,
        heartbeat_s=pace.heartbeat_s,
        settling_s=pace.settling_s,
        symptoms=context.reader.symptoms(),
    )


MOST_JOBS = 100_000


class HealthRoutes:
    """Routes about the fleet's health: reports of workers, and the history check."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        # A check reads much: one at a time.
        self._judging = asyncio.Lock()
        self.router = RouteTable("health")
        add = self.router.add
        add("/v1/machines/{name}/report", self.report, methods=["POST"], response_model=DoneView)
        add("/v1/history/verdict", self.verdict, response_model=HistoryCheck)

    async def report(self, name: MachineName, said: MachineReport, who: Who) -> Response:
        """Store a worker's report about its machine, of any version."""
        said = own(said, who)
        if said.worker != name:
            raise BadInput(f"the report is of {said.worker}, not of {name}")
        now_s = self._context.clock.wall_s()
        report = {
            "at_s": now_s,
            "offset_s": round(said.wall_s - now_s, 3),
            **said.model_dump(mode="json", exclude={"worker", "wall_s"}),
        }
        return done(await self._context.ask(NoteReport(machine=name, report=dumps(report))))

    async def verdict(self, jobs: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 20_000) -> Response:
        """Run the history checker over the newest jobs, and return its result."""
        context = self._context
        async with self._judging:
            began_s = context.clock.monotonic_s()
            found = await context.read(
                judge,
                context.reader.database,
                most=jobs,
                budgets=context.queue.budgets,
                has_object=stored_sizes(context.keeping, context.reader.database),
            )
        return answer(
            HistoryCheck(
                jobs=found.jobs,
                is_whole=found.is_whole,
                seconds=context.clock.monotonic_s() - began_s,
                rules=found.broken,
                violations=tuple(one.to_dict() for one in found.violations),
            )
        )


HookId = Annotated[int, Path(description="A hook's number", ge=1, le=(1 << 31) - 1)]
_SECRET_BYTES = 32


class WebhookRoutes:
    """Routes about webhooks. Admins see and make all; a submitter makes one for single jobs."""

    def __init__(self, context: ServiceContext, notifier: Notifier | None) -> None:
        self._context = context
        self._notifier = notifier
        self.router = RouteTable("hooks")
        add = self.router.add
        add("/v1/hooks", self.all, response_model=WebhookList)
        add("/v1/hooks", self.make, methods=["POST"], response_model=WebhookResponse)
        add("/v1/hooks/{id}", self.close, methods=["DELETE"], response_model=DoneView)
        add("/v1/hooks/{id}/test", self.test, methods=["POST"], response_model=WebhookTestResult)

    async def all(self) -> Response:
        """List the webhooks, without their secrets."""
        hooks = await self._context.read(self._context.reader.hooks)
        return answer(WebhookList(hooks=tuple(_view(hook) for hook in hooks)))

    async def make(self, asked: WebhookRequest, who: Who) -> Response:
        """Create a webhook. Its secret is in this response, and in no other."""
        is_admin = who.may(Role.ADMIN)
        if not asked.jobs and not is_admin:
            raise Forbidden(
                "a webhook for all events needs the role admin", hint="name the jobs: `stoker submit --notify URL`"
            )
        if asked.mail:
            url, form = await self._mail_address(asked, who), NotifyFormat.MAIL
        else:
            check_url(asked.url, is_inner=is_admin)
            url, form = asked.url, asked.format or format_of_url(asked.url)
        unknown = [word for word in asked.on if word not in ALL_WORDS]
        if unknown:
            raise BadInput(f"unknown event {unknown[0][:40]!r}", hint=f"there are {', '.join(ALL_WORDS)}")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        command = AddHook(
            url=url,
            secret=secret,
            kinds=asked.on or (() if form is NotifyFormat.STOKER else PERSON_WORDS),
            jobs=asked.jobs,
            is_inner=is_admin,
            by=recorded(who, asked.by),
            format=form,
        )
        made = await self._context.ask(command)
        return answer(WebhookResponse(hook=_view(await self._find(made.data["id"])), secret=secret))

    async def _mail_address(self, asked: WebhookRequest, who: Principal) -> str:
        """Store the mail command of a request, and return its address."""
        if who != LOCAL_ADMIN:
            raise Forbidden(
                "a mail command is added only on the coordinator's machine, by its user",
                hint="run this command there, without --at and without a token",
            )
        if asked.url or asked.format not in (None, NotifyFormat.MAIL) or not asked.mail[0].strip():
            raise BadInput("a mail command has no URL and no other format", hint="stoker admin notify add --mail CMD")
        if self._notifier is None or self._notifier.mails is None:
            raise BadInput("this coordinator sends no mail")
        return await self._context.keep(self._notifier.mails.add, asked.mail)

    async def close(self, id: HookId, who: Who) -> Response:
        """Close a webhook."""
        by = recorded(who, "")
        return done(await self._context.ask(CloseHook(id=id, why=f"closed by {by or 'an admin'}", by=by)))

    async def test(self, id: HookId) -> Response:
        """Send a test message once, and return its result."""
        hook = await self._find(id)
        if hook.closed_s is not None:
            raise BadInput(f"webhook {id} is closed", hint="add a new one: `stoker admin notify add URL`")
        if self._notifier is None:
            raise BadInput("this coordinator sends no webhooks")
        trouble = await self._context.keep(self._notifier.send, hook, trial(id, self._context.clock.wall_s()))
        return answer(WebhookTestResult(is_delivered=not trouble, message=trouble))

    async def _find(self, id: int) -> WebhookRow:
        for hook in await self._context.read(self._context.reader.hooks):
            if hook.id == id:
                return hook
        raise NotFound(f"there is no webhook {id}", hint="`stoker admin notify` lists them")


def check_url(url: str, *, is_inner: bool) -> None:
    """Refuse an invalid webhook URL; the address of a name is checked when it is connected to."""
    address = read_address(url)
    host = address.origin.host
    if address.authorization:
        raise BadInput("a webhook URL may not contain a password", hint="its messages are signed: check the signature")
    if is_this_computer(host):
        if not is_inner:
            raise Forbidden(
                "a webhook to the coordinator's own machine needs the role admin", hint="name a public address"
            )
    elif is_literal(host) and not is_allowed_address(host, is_inner=is_inner):
        raise Forbidden(
            f"a webhook to {host} is not allowed", hint="private addresses need the role admin, some are never allowed"
        )


def _shown_url(hook: WebhookRow) -> str:
    """Return the address of a webhook; of chat services without its path, which is the secret of the channel."""
    address = shown(hook.url)
    if hook.format in (NotifyFormat.STOKER, NotifyFormat.MAIL, NotifyFormat.NTFY):
        return address
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/…"


def _view(hook: WebhookRow) -> WebhookView:
    return WebhookView(
        id=hook.id,
        url=_shown_url(hook),
        format=hook.format,
        on=hook.words,
        jobs=len(hook.jobs),
        cursor=hook.cursor,
        failures=hook.failures,
        last_error=hook.last_error,
        made_s=hook.made_s,
        closed_s=hook.closed_s,
        by=hook.by,
    )
