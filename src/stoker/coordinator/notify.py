"""Delivery of events to webhooks and by mail, at least once and in order, in separate threads.

The cursor of each webhook is durable, stored after delivery: after a crash some messages are sent twice, none is lost.
A failing webhook is retried with exponential backoff; after a day it is closed, with an event.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from sqlalchemy import func, select

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import EVENTS, JOBS
from stoker.coordinator.notice_formats import TAKES_PICTURE, formatted, mail_of
from stoker.coordinator.queue.commands import CloseHook, MoveHook
from stoker.coordinator.queue.read_jobs import event_object, told_events
from stoker.coordinator.queue.reader import WebhookRow
from stoker.coordinator.queue.writer import Queue
from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, StokerError
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, frozen
from stoker.core.job import JobState
from stoker.core.jsontext import dumps, loads
from stoker.core.retry import pause_s
from stoker.core.text import first_line, one_line, safe_name
from stoker.host.background import LOG, RecurringTask
from stoker.host.command_runner import CommandRunner, ProbeFailure
from stoker.host.durable import read_regular, write_file
from stoker.host.http.client import OutwardTransport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.operator_messages import USUAL_WORDS, NotifyFormat
from stoker.views.notice_text import NoticeText, notice_text

# Events for webhooks: a bounded piece at a time.

PAGE = 500
_TOGETHER = 500
_TERMINAL = tuple(state.value for state in JobState if state.is_terminal)


@frozen
class Piece:
    """Some events, oldest first, each with its job's number."""

    events: tuple[tuple[int | None, dict[str, Any]], ...]
    until: int
    """The last event of the piece."""
    is_last: bool
    """No event followed."""


def read_piece(database: Database, after: int) -> Piece:
    """Return the events after one."""
    asked = told_events().where(EVENTS.c.id > after).order_by(EVENTS.c.id).limit(PAGE)
    with snapshot(database) as connection:
        rows = connection.execute(asked).all()
    return Piece(
        events=tuple((row.seq, event_object(row)) for row in rows),
        until=rows[-1].id if rows else after,
        is_last=len(rows) < PAGE,
    )


def have_ended(database: Database, jobs: tuple[int, ...]) -> bool:
    """Return True if all of some jobs (by number) have ended or are unknown."""
    with snapshot(database) as connection:
        for start in range(0, len(jobs), _TOGETHER):
            some = jobs[start : start + _TOGETHER]
            asked = select(func.count()).where(JOBS.c.seq.in_(some), JOBS.c.state.not_in(_TERMINAL))
            if connection.execute(asked).scalar():
                return False
    return True


# Events, messages and signatures of a webhook. Pure.

SIGNATURE_HEADER = "X-Stoker-Signature"
ID_HEADER = "X-Stoker-Event-Id"
TEST = "test"
LOST = "lost"

_ENDS = {state.value: state.value for state in JobState if state.is_terminal}
_WORDS = {
    FleetKinds.JOB_SUBMITTED: "submitted",
    FleetKinds.JOB_REQUEUED: "submitted",
    FleetKinds.JOB_STARTED: "started",
    FleetKinds.JOB_RETRYING: "retrying",
    FleetKinds.JOB_EXPIRED: "retrying",
    FleetKinds.SYMPTOM: "symptom",
    FleetKinds.SYMPTOM_OVER: "symptom",
    FleetKinds.MACHINE_JOINED: "machine",
    FleetKinds.MACHINE_CHANGED: "machine",
    FleetKinds.MACHINE_LEFT: "machine",
    FleetKinds.MACHINE_LOST: "machine",
    FleetKinds.MACHINE_FORGOTTEN: "machine",
    FleetKinds.POOL_CHANGED: "machine",
    FleetKinds.ALLOCATION_CHANGED: "machine",
    FleetKinds.TICKET_STOLEN: "trust",
    FleetKinds.INVITED: "trust",
    FleetKinds.INVITE_WITHDRAWN: "trust",
    FleetKinds.JOIN_REFUSED: "trust",
    FleetKinds.CERTIFICATE_ISSUED: "trust",
    FleetKinds.CERTIFICATE_REVOKED: "trust",
    FleetKinds.TOKEN_MADE: "trust",
    FleetKinds.TOKEN_REVOKED: "trust",
}


@frozen
class Notice:
    """One message of a webhook."""

    id: str
    """The same for each delivery: the receiver recognises a repeat by it."""
    event: Mapping[str, Any]
    body: bytes


def word_of(event: Mapping[str, Any]) -> str:
    """Return the webhook event of a fleet event; empty: not sent."""
    kind = str(event.get("kind", ""))
    if kind.startswith("job_") and (ends := _ENDS.get(str(event.get("to", "")))):
        return ends
    return _WORDS.get(kind, "")


def is_wanted(event: Mapping[str, Any], words: tuple[str, ...]) -> bool:
    """Return True if a webhook for these words gets an event."""
    word = word_of(event)
    if event.get("kind") == FleetKinds.MACHINE_LOST and LOST in words:
        return True
    return bool(word) and word in (words or USUAL_WORDS)


def notice_of(event: Mapping[str, Any]) -> Notice:
    """Return the message of an event: the event as in all streams, under its word."""
    id = f"{event.get('generation', 0)}-{event['seq']}"
    return Notice(id=id, event=event, body=dumps({"event": word_of(event), "id": id, **event}).encode())


def trial(hook: int, at_s: float) -> Notice:
    """Return a test message."""
    id = f"{TEST}-{hook}-{at_s:.3f}"
    body = {"event": TEST, "id": id, "v": 1, "ts": at_s, "kind": TEST, "message": f"test of webhook {hook}"}
    return Notice(id=id, event=body, body=dumps(body).encode())


def signed(notice: Notice, secret: str, at_s: float) -> dict[str, str]:
    """Return the headers that authenticate a message: HMAC-SHA256 over the time, a dot and the body."""
    at = str(int(at_s))
    proof = hmac.new(secret.encode(), at.encode() + b"." + notice.body, hashlib.sha256).hexdigest()
    return {SIGNATURE_HEADER: f"t={at},sha256={proof}", ID_HEADER: notice.id}


# Allowed addresses of a webhook. Pure: checks the address to connect to, not the name.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Metadata services of clouds, besides the link-local one.
_METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_allowed_address(text: str, *, is_inner: bool) -> bool:
    """Return True if a message may be sent to an address.

    Never to link-local and metadata addresses; to this computer and private networks only if `is_inner`: created by an
    admin.
    """
    try:
        address = _outermost(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    if address in _METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return is_inner if address.is_loopback or not address.is_global else not address.is_reserved


def _outermost(address: Address) -> Address:
    """Return the IPv4 address in an IPv6 one, if there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


CONNECT_S = 5.0
ANSWER_S = 10.0
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0
GIVE_UP_S = 24 * 3600.0
MOST_AT_ONCE = 50
"""Messages to one webhook before the others get theirs."""
ROUND_S = 1.0
_THREADS = 4
_IDLE_S = 30.0
_WRITE_AFTER = 5000
"""Maximum number of skipped events that are read again after a crash."""


class Notifier(RecurringTask):
    """Delivers during a with-block. Register it: `queue.on_change(notifier.changed)`."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        queue: Queue,
        settings: HttpSettings,
        *,
        clock: Clock,
        chance: Callable[[], float],
        round_s: float = ROUND_S,
        mails: MailCommands | None = None,
        picture: Callable[[str], bytes] = lambda _job: b"",
    ) -> None:
        """`picture` returns the curves of a job, by its id, as PNG; empty if there are none."""
        super().__init__("notifier", retry_s=_IDLE_S)
        self._queue = queue
        self._database = queue.reader.database
        self._clock = clock
        self._chance = chance
        self._round_s = round_s
        self.mails = mails
        """None: this coordinator sends no mail."""
        self._picture = picture
        settings = changed(settings, connect_s=CONNECT_S, head_s=ANSWER_S, read_s=ANSWER_S)
        self._outside = OutwardTransport(settings, partial(is_allowed_address, is_inner=False))
        self._anywhere = OutwardTransport(settings, partial(is_allowed_address, is_inner=True))
        self._reached: dict[int, int] = {}
        """Webhook → the last event examined for it."""
        self._round = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-hooks")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for transport in (self._outside, self._anywhere):
            transport.close()

    def changed(self, _event_id: int, _is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        """Note that there are new events."""
        self.hurry()

    def send(self, hook: WebhookRow, notice: Notice) -> str:
        """Send one message; return the error, or an empty text."""
        transport = self._anywhere if hook.is_inner else self._outside
        try:
            if hook.format == NotifyFormat.MAIL:
                return self._send_mail(hook, notice)
            if hook.format == NotifyFormat.STOKER:
                headers = signed(notice, hook.secret, self._clock.wall_s())
                status = transport.post(hook.url, notice.body, headers)
            else:
                form = NotifyFormat(hook.format)
                made = formatted(form, self._text_of(notice.event), picture=self._picture_of(form, notice.event))
                headers = {**made.headers, ID_HEADER: notice.id}
                status = transport.post(hook.url, made.body, headers, content_type=made.content_type)
        except StokerError as error:
            return error.message
        except Exception as error:  # noqa: BLE001 - it fails as any other does: others are sent, and it is closed in time
            LOG.error("webhook %d, event %s: internal error", hook.id, notice.id, exc_info=error)
            return f"internal error in the coordinator: {type(error).__name__}"
        return "" if 200 <= status < 300 else f"status {status}"

    def _send_mail(self, hook: WebhookRow, notice: Notice) -> str:
        if self.mails is None:
            return "this coordinator sends no mail"
        picture = self._picture_of(NotifyFormat.MAIL, notice.event)
        return self.mails.send(hook.url, mail_of(self._text_of(notice.event), notice.id, picture=picture))

    def _text_of(self, event: Mapping[str, Any]) -> NoticeText:
        """Return the message of an event; of a job that has ended with its label and metrics, which no event has."""
        job, shown = event.get("job"), dict(event)
        if word_of(event) in _ENDS and isinstance(job, str):
            # Deleted meanwhile: the message is sent without them.
            with suppress(StokerError):
                view = self._queue.reader.story(job).job
                shown = {"label": view.label, "metrics": view.metrics, **event}
        return notice_text(shown)

    def _picture_of(self, form: NotifyFormat, event: Mapping[str, Any]) -> bytes:
        """Return the curves of a job that has ended, where the receiver takes a picture."""
        job = event.get("job")
        is_end = word_of(event) in _ENDS
        return self._picture(job) if form in TAKES_PICTURE and is_end and isinstance(job, str) else b""

    def deliver_all(self) -> bool:
        """Deliver pending events to all webhooks; return True if there are more."""
        with self._round:
            now_s = self._clock.wall_s()
            hooks = [hook for hook in self._queue.reader.hooks(is_open=True) if hook.not_before_s <= now_s]
            return any(list(self._threads.map(self._deliver_one, hooks)))

    def _deliver_one(self, hook: WebhookRow) -> bool:
        """Deliver pending events to one webhook, up to a limit; return True if there are more."""
        try:
            return self._deliver(hook)
        except StokerError:
            # The database failed: the next round delivers the rest.
            return False

    def _deliver(self, hook: WebhookRow) -> bool:
        reached = max(hook.cursor, self._reached.get(hook.id, 0))
        piece = read_piece(self._database, reached)
        jobs, sent, trouble = frozenset(hook.jobs), 0, ""
        for seq, event in piece.events:
            if self._is_closed.is_set() or sent >= MOST_AT_ONCE:
                break
            if not (jobs and seq not in jobs) and is_wanted(event, hook.words):
                trouble = self.send(hook, notice_of(event))
                if trouble:
                    break
                sent += 1
            reached = int(event["seq"])
        if self._is_closed.is_set() and trouble:
            # Aborted by our own shutdown.
            return False
        self._reached[hook.id] = reached
        is_through = piece.is_last and reached == piece.until
        if trouble:
            self._note_failure(hook, reached, trouble)
        elif sent or hook.failures or reached - hook.cursor >= _WRITE_AFTER:
            self._queue.ask(MoveHook(id=hook.id, cursor=reached))
        if jobs and is_through and not trouble and have_ended(self._database, hook.jobs):
            self._queue.ask(CloseHook(id=hook.id, why="all its jobs have ended"))
        return not trouble and not is_through

    def _note_failure(self, hook: WebhookRow, reached: int, trouble: str) -> None:
        now_s = self._clock.wall_s()
        since_s = hook.failing_since_s if hook.failing_since_s is not None else now_s
        if now_s - since_s >= GIVE_UP_S:
            self._queue.ask(CloseHook(id=hook.id, why=f"no delivery for 24 h: {trouble}"))
            return
        wait_s = pause_s(hook.failures, self._chance(), first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._queue.ask(
            MoveHook(
                id=hook.id,
                cursor=reached,
                failures=hook.failures + 1,
                failing_since_s=since_s,
                not_before_s=now_s + wait_s,
                last_error=trouble,
            )
        )

    def close(self) -> None:
        """End the thread and abort messages under way."""
        super().close()
        for transport in (self._outside, self._anywhere):
            transport.abort()

    def act(self) -> float:
        """Deliver pending events; return the seconds until the next round: backoffs of webhooks end without events."""
        is_more = False
        try:
            is_more = self.deliver_all()
        finally:
            if not is_more:
                # New events are gathered, and a failed database is retried after a while.
                self._is_closed.wait(self._round_s)
        return 0.0 if is_more else min(_IDLE_S, max(self._round_s, FIRST_PAUSE_S))


# Commands that send mail are kept in a private file of the coordinator's own folder. The database holds only their
# names, so that who can write to it can't run a program on the coordinator's machine.

MAIL = "mail:"
"""How the address of such a webhook begins."""
_MOST_BYTES = 1 << 20
_LIMIT_S = 30.0


class MailCommands:
    """The mail commands of a coordinator."""

    def __init__(self, path: str, runner: CommandRunner) -> None:
        self._path = path
        self._runner = runner
        self._adding = threading.Lock()

    def add(self, argv: Sequence[str]) -> str:
        """Store a command, and return the address by which a webhook names it."""
        digest = hashlib.sha256("\0".join(argv).encode(errors="surrogateescape")).hexdigest()[:12]
        name = f"{safe_name(os.path.basename(argv[0]))[:40]}/{digest}"
        with self._adding:
            known = {**self._known(), name: list(argv)}
            write_file(self._path, dumps({"v": 1, "commands": known}).encode(), mode=0o600)
        return f"{MAIL}{name}"

    def send(self, address: str, message: str) -> str:
        """Run the command of an address with a message as its input; return the error, or an empty text."""
        argv = self._known().get(address.removeprefix(MAIL))
        if not argv:
            return "its mail command is not known on this machine: add it again"
        reply = self._runner.ask(argv, limit_s=_LIMIT_S, stdin=message)
        if isinstance(reply, ProbeFailure):
            return one_line(reply.why, 300)
        said = one_line(reply.err or reply.out, 200)
        return f"exit code {reply.exit_code}{f': {said}' if said else ''}" if reply.exit_code else ""

    def _known(self) -> dict[str, list[str]]:
        try:
            raw = loads(read_regular(self._path, _MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LocalFile(f"{self._path} can't be read: {first_line(error)}") from None
        found = raw.get("commands") if isinstance(raw, dict) else None
        return {
            str(name): [str(word) for word in argv]
            for name, argv in (found.items() if isinstance(found, dict) else ())
            if isinstance(argv, list) and argv
        }
