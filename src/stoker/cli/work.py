"""`stoker work`: run the worker of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, duration, whole
from stoker.cli.services import INSTALL, UNINSTALL, YES, refuse_both
from stoker.core.errors import (
    BadInput,
    Conflict,
    Forbidden,
    LockHeld,
    NetworkFailed,
    NoCoordinator,
    TicketRefused,
    Usage,
    VersionSkew,
)
from stoker.core.events import Event, event_line
from stoker.core.frozen import changed
from stoker.core.leases import MOST_LEFT_S
from stoker.core.text import counted, format_duration
from stoker.host.durable import read_regular, read_secret, translated
from stoker.protocol.discovery import CoordinatorEndpoint, MembershipKind, read_joined
from stoker.worker.worker_options import WorkOptions, read_accepted, read_declared

if TYPE_CHECKING:
    from stoker.protocol.enrolment_messages import Ticket


_LARGEST_LIST_BYTES = 1 << 20
_CLOCK = re.compile(r"\d(\d)?:\d{2}(?::\d{2})?", re.ASCII)


def _some_time(text: str) -> float:
    seconds = duration(text)
    if not 0 < seconds <= MOST_LEFT_S:
        message = f"{text!r} is not a duration above 0 and of at most {MOST_LEFT_S / 86400:,.0f} days"
        raise ValueError(message)
    return seconds


GRAMMAR = Grammar(
    "work",
    about=(
        "Run the worker: it reports this machine's devices to a coordinator, claims jobs, runs each in its own "
        "process, and reports results. Ctrl-C or SIGTERM releases all jobs first and keeps their checkpoints; a "
        "second one stops immediately. A killed worker takes up its jobs again when it is started under the same "
        "name. If no coordinator runs yet, the worker waits for one."
    ),
    options=(
        Option(
            "--join",
            value="URL",
            help="the coordinator (default: STOKER_COORDINATOR, the one of this home, or the one joined)",
        ),
        Option(
            "--ticket",
            value="FILE",
            help="join the fleet with the ticket in FILE, under its name, and remove FILE. Without STOKER_HOME the "
            "worker's files are in a new folder below TMPDIR (default: /tmp), which is removed when it ends",
        ),
        Option("--name", value="NAME", help="name of the worker (default: the machine's name, or the ticket's)"),
        Option(
            "--slots",
            value="N",
            read=whole(1),
            help="maximum number of parallel jobs (default: one for each GPU, at least 1)",
        ),
        Option(
            "--declare",
            value="k=v",
            help="limit the offered resources: cores=2,ram=4G,gpus=0; the smaller of declared and detected counts",
            is_many=True,
        ),
        Option(
            "--grace",
            value="TIME",
            read=duration,
            help="grace period in which a stopped job can save a checkpoint (default: 10s)",
        ),
        Option(
            "--run-as",
            value="USERS",
            help="run programs of jobs as other users, one for each slot: anna,bert or 60000-60003; needs root",
        ),
        Option(
            "--accept-code",
            value="TREE",
            help="run only programs of this code tree (`code` in stoker submit --json); comma-separated, or @FILE with "
            "one per line; may be repeated",
            is_many=True,
        ),
        Option("--keep-workspace", help="keep the folders in which programs ran (default: removed)"),
        Option("--once", help="run one job, then exit"),
        Option("--until-idle", help="exit when there are no more jobs for this machine"),
        Option(
            "--until",
            value="TIME",
            help="exit at this time: 18:00, 2026-11-17T08:00 (default zone: local). Jobs that are expected to take "
            "longer are not started; jobs still running then are released with their checkpoints",
        ),
        Option("--for", value="TIME", read=_some_time, help="like --until, as a duration: 90m, 3h"),
        Option(
            "--drain",
            value="TIME",
            read=_some_time,
            help="with --until or --for: stop this long before, so that jobs save and send their checkpoints; longer "
            "if the last checkpoints took longer, at most a quarter of the time (default: 0s)",
        ),
        Option("--idle", value="TIME", read=_some_time, help="exit after this time without a job: 5m"),
        INSTALL,
        UNINSTALL,
        YES,
    ),
    examples=(
        "stoker work --join http://127.0.0.1:7717",
        "stoker work --name small --slots 2 --declare cores=2,ram=4G,gpus=0",
        "stoker work --until-idle --json",
        "stoker work --until 18:00",
        "stoker work --for 3h",
        "stoker work --ticket 7f3a2c.ticket --idle 5m --for 4h --drain 2m",
        "stoker work --slots 2 --run-as 60000-60001",
        "stoker work --accept-code @trees.txt",
        "stoker work --install",
    ),
    errors=(Usage, NetworkFailed, LockHeld, Forbidden, NoCoordinator, VersionSkew, TicketRefused),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run the worker, or install its service."""
    declared = read_declared(given["declare"])
    refuse_both(given)
    if given["install"] or given["uninstall"]:
        from stoker.cli.services import install_work, uninstall_work

        return install_work(call, given) if given["install"] else uninstall_work(call, given)
    for_s = _time_left_s(given, call.parts.clock.wall_s())
    options = WorkOptions(
        name=given["name"] or "",
        slots=given["slots"],
        declared=declared,
        is_once=given["once"],
        until_idle=given["until_idle"],
        ends_s=None if for_s is None else call.parts.clock.boottime_s() + for_s,
        drain=_drain(given["drain"], for_s),
        idle_s=given["idle"],
        stop_grace_s=given["grace"],
        run_as=given["run_as"] or "",
        accepts=read_accepted(given["accept_code"], lambda path: _lines_of(call, path)),
        keeps_workspaces=given["keep_workspace"],
    )
    if given["ticket"]:
        return _work_with_ticket(call, given, options, for_s)
    found = _find(call, given["join"] or "", options.name, for_s)
    return _work(call, changed(options, url=found.url, identity=found.identity, name=found.name or options.name))


def _work(call: CommandContext, options: WorkOptions) -> int:
    out = call.out
    out.goes_on_unread = out.is_watched = True
    count = 0

    def log(kind: str, fields: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if out.is_json:
            out.json_line(event_line(Event(kind, fields), ts=call.parts.clock.wall_s(), seq=count, source="worker"))
        elif not out.is_quiet:
            now = call.parts.clock.now().astimezone()
            out.line(f"{now:%H:%M:%S} {worker_line(kind, fields)}")

    return call.parts.work(options, log)


def _work_with_ticket(call: CommandContext, given: dict[str, Any], options: WorkOptions, for_s: float | None) -> int:
    """Join with a ticket, remove its file, and work under its name in a home of its own."""
    from stoker.host.http.exchange import FleetIdentity
    from stoker.protocol.enrolment_messages import LARGEST_TICKET_BYTES, read_ticket
    from stoker.worker.enrolment import join_with_ticket

    path = call.path(given["ticket"])
    with translated(path):
        ticket = read_ticket(read_secret(path, LARGEST_TICKET_BYTES))
    if given["join"]:
        raise Usage("--ticket and --join exclude each other", hint="omit --join: the ticket names the coordinator")
    if options.name not in ("", ticket.name):
        raise Usage(f"the ticket is for {ticket.name}, not for {options.name}", hint="omit --name")
    with _home_of(call, ticket.name):
        state = call.parts.settings.state
        _refuse_other_membership(state, ticket)
        if ticket.socket:
            # The kernel tells the coordinator that this is a worker of its own user: no certificate is needed.
            identity = FleetIdentity(sockets=(ticket.socket,))
        else:
            joined = join_with_ticket(ticket, call.parts, state=state, limit_s=for_s, note=call.out.note)
            identity = joined.identity
        with suppress(FileNotFoundError), translated(path):
            os.unlink(path)
        found = {"url": ticket.url, "identity": identity, "name": ticket.name}
        return _work(call, changed(options, **found, renews_certificate=False))


@contextmanager
def _home_of(call: CommandContext, name: str) -> Iterator[None]:
    """Use the home that the environment names, else a new one on a disk of this machine, within the block."""
    settings = call.parts.settings
    if settings.environment.get("STOKER_HOME"):
        yield
        return
    from stoker.worker.daemon import private_home

    with private_home(name, settings.environment, call.parts.clock) as home, call.at_home(home):
        yield


def _refuse_other_membership(state: str, ticket: Ticket) -> None:
    """Raise `Conflict` if a home belongs to another machine of a fleet, whose certificate would be replaced."""
    before = read_joined(state, MembershipKind.WORKER)
    if before is not None and (before.url, before.name) != (ticket.url, ticket.name):
        hint = "unset STOKER_HOME: a worker with a ticket then has a home of its own"
        raise Conflict(f"this home has joined {before.url} as {before.name}", hint=hint)


def _time_left_s(given: dict[str, Any], now_s: float) -> float | None:
    """Return the duration of `--for` or `--until`; None without either."""
    if given["until"] and given["for"]:
        raise Usage("--until and --for exclude each other", hint="omit one of them")
    if not given["until"]:
        for_s: float | None = given["for"]
        return for_s
    try:
        return seconds_until(given["until"], now_s)
    except ValueError as error:
        raise Usage(f"--until: {error}", hint="give a time such as 18:00, or a date and a time") from None


def _drain(drain_s: float | None, for_s: float | None) -> tuple[float, float]:
    """Return how long before its end a worker stops, at least and at most."""
    if drain_s is None:
        return 0.0, 0.0
    if for_s is None:
        raise Usage("--drain needs --for or --until", hint="omit --drain, or say when the worker ends")
    if drain_s >= for_s:
        raise Usage("--drain is not shorter than the time of the worker", hint="give it more time, or omit --drain")
    return drain_s, max(drain_s, for_s / 4)


def seconds_until(text: str, now_s: float) -> float:
    """Return the seconds until a local clock time, today or tomorrow, or until a time in ISO format.

    Raises `ValueError` for other texts, and for a time in the past or too far away.
    """
    now = datetime.fromtimestamp(now_s)  # noqa: DTZ006 - local, as people read a clock
    clock = _CLOCK.fullmatch(text)
    try:
        if clock:
            until = datetime.combine(now.date(), time.fromisoformat(text if clock[1] else f"0{text}"))
            until += timedelta(days=until <= now)
        else:
            until = datetime.fromisoformat(text)
        left_s = until.timestamp() - now_s
    except (ValueError, OverflowError, OSError):
        message = f"{text!r} is not a time; write for example 18:00 or 2026-11-17T08:00"
        raise ValueError(message) from None
    if not 0 < left_s <= MOST_LEFT_S:
        message = f"{text!r} is {'in the past' if left_s <= 0 else 'too far away'}"
        raise ValueError(message)
    return left_s


def _lines_of(call: CommandContext, path: str) -> list[str]:
    whole = call.path(path)
    with translated(whole):
        return read_regular(whole, _LARGEST_LIST_BYTES).decode(errors="replace").splitlines()


def _find(call: CommandContext, join: str, name: str, for_s: float | None) -> CoordinatorEndpoint:
    """Return the coordinator and the identity to use: a joined machine has the name of its certificate."""

    def wait() -> CoordinatorEndpoint:
        hint = "; --join URL names another one"
        return call.lookup.wait_for_coordinator(join, MembershipKind.WORKER, limit_s=for_s, hint=hint)

    found = wait()
    has_ended = _has_ended(call, found)
    if has_ended and not found.is_here:
        hint = f"run `stoker machines invite --name {found.name}` there, then here: stoker join CODE@HOST --again"
        raise Forbidden(f"the certificate of {found.name} has expired: the machine was offline for too long", hint=hint)
    is_stranger = found.identity is None or not found.identity.certificate_file
    if has_ended or (found.is_here and found.is_secure and is_stranger):
        from stoker.cli.join import join_here

        joined = join_here(call, found.url, name or found.name)
        call.out.note(f"joined {joined.url} as {joined.name}")
        found = wait()
    if found.name and name and name != found.name:
        hint = f"omit --name, or join under that name: stoker machines invite --name {name}, then stoker join … --again"
        raise BadInput(f"this machine has joined {found.url} as {found.name}, not as {name}", hint=hint)
    return found


def _has_ended(call: CommandContext, found: CoordinatorEndpoint) -> bool:
    """Return True if this machine's certificate has expired."""
    if found.identity is None or not found.identity.certificate_file:
        return False
    from stoker.worker.certificate_renewal import read_term

    return read_term(found.identity.certificate_file).ends_s <= call.parts.clock.wall_s()


# Worker events as log lines.


Fields = Mapping[str, Any]
_SHORTEST_S = 0.05
"""Shorter times are not shown."""


def worker_line(kind: str, fields: Fields) -> str:
    """Return a worker event as a line."""
    text = _LINES.get(kind)
    return text(fields) if text is not None else f"{kind} {_because(fields)}".strip()


def _because(fields: Fields) -> str:
    return f": {fields['why']}" if fields.get("why") else ""


def _hint(fields: Fields) -> str:
    return f" (hint: {fields['hint']})" if fields.get("hint") else ""


def _away(fields: Fields) -> str:
    running = ", jobs continue" if fields.get("held") else ""
    return f"coordinator not reachable{running}{_because(fields)}{_hint(fields)}"


def _joined(fields: Fields) -> str:
    slots = fields["slots"]
    at_once = f"{counted(slots, 'job')} at once"
    drift = "".join(f"; {one}" for one in fields["drift"])
    return f"joined as {fields['worker']}: {at_once}, lease {format_duration(fields['lease_s'])}{drift}"


def _ended(fields: Fields) -> str:
    took = f" after {format_duration(fields['seconds'])}" if fields.get("seconds", 0.0) >= _SHORTEST_S else ""
    return f"{fields['job']} {fields['state']}{took}{_because(fields)}"


def _settled(fields: Fields) -> str:
    shown = {
        "finish": "result recorded",
        "fail": "failure recorded",
        "release": "released",
        "cancelled": "cancelled, no processes left",
        "decline": "declined",
    }.get(fields["word"], fields["word"])
    return f"{fields['job']} {shown}"


def _closed(fields: Fields) -> str:
    return f"takes no jobs{_because(fields)}"


_LINES: dict[str, Callable[[Fields], str]] = {
    "joined": _joined,
    "granted": lambda fields: f"{fields['job']} granted (attempt {fields['attempt']})",
    "started": lambda fields: f"{fields['job']} started in {fields['run']}",
    "declined": lambda fields: f"{fields['job']} declined ({fields['reason']}){_because(fields)}",
    "ended": _ended,
    "settled": _settled,
    "stopping": lambda fields: f"{fields['job']} stopping{_because(fields)}",
    "stopped": lambda fields: f"{fields['job']} stopped",
    "dropped": lambda fields: f"{fields['job']} lease lost, result discarded{_because(fields)}",
    "lease_over": lambda fields: f"{fields['job']}: lease expired{_because(fields)}",
    "adopted": lambda fields: f"{fields['job']} adopted, running as process {fields['pid']}",
    "exec": lambda fields: f"{fields['job']}: exec session of an operator: {fields['program']}",
    "left_behind": lambda fields: f"{fields['job']} was left by an earlier worker; stopping it",
    "checkpoint": lambda fields: f"{fields['job']} resumes from a checkpoint{_because(fields)}",
    "checkpoint_missing": lambda fields: (
        f"{fields['job']} restarts from step 0: checkpoint not available{_because(fields)}"
    ),
    "not_shipped": lambda fields: f"{fields['job']}: upload to the coordinator incomplete{_because(fields)}",
    "away": _away,
    "back": lambda _fields: "coordinator reachable again",
    "refused": lambda fields: f"exiting{_because(fields)}{_hint(fields)}",
    "closed": _closed,
    "devices_gone": lambda fields: f"devices not found any more, not offered: {', '.join(fields['devices'])}",
    "devices_back": lambda fields: f"devices offered again: {', '.join(fields['devices'])}",
    "closed_python": lambda fields: f"warning: jobs that start this machine's python are declined{_because(fields)}",
    "certificate_renewed": lambda fields: f"certificate of {fields['worker']} renewed",
    "certificate_not_renewed": lambda fields: f"certificate not renewed yet{_because(fields)}{_hint(fields)}",
    "open": lambda fields: f"takes jobs again ({fields['by']})",
    "idle": lambda _fields: "no more jobs for this machine",
    "leaving": lambda fields: f"leaving, releasing {counted(fields['held'], 'job')}{_because(fields)}",
    "leaving_now": lambda _fields: "leaving now",
}
