"""Downloads on their way, as a user meets them: a screen or a stream of JSON, signals, receipts, and the tools for it.

One `Session` stands around everything that one command fetches, from the first question to a server to the last byte,
so that Ctrl-C always ends it in the same way: what came is kept, and the same command resumes from there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Option, duration, whole
from stoker.cli.interrupts import Interruptions
from stoker.cli.live import TransferLines
from stoker.cli.screens import open_screen
from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import Cancelled, NetworkFailed, RateLimited, StokerError
from stoker.core.events import Event, Kinds, event_line
from stoker.core.job import attempt_id
from stoker.host.http.addresses import joined, shown
from stoker.host.http.exchange import HttpClientResponse, Request, Transport
from stoker.host.resources import free_bytes
from stoker.store.memo import Memo
from stoker.transfer.download.download_events import failure_of
from stoker.transfer.download.receipts import receipt_of
from stoker.transfer.download.types import (
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    Status,
)
from stoker.transfer.hub.client import Hub
from stoker.views.text_tables import span

# A transport that tells what it does: each request with its range, each answer with its status, time and redirect.
#
# For `--verbose`. Never a query, a credential or a header that may hold one.

_TOLD = ("Content-Length", "Content-Range", "Retry-After")


class LoggingTransport:
    """A transport that logs each request of another one."""

    def __init__(self, inner: Transport, clock: Clock, tell: Callable[[str], None]) -> None:
        self._inner = inner
        self._clock = clock
        self._tell = tell

    def send(self, request: Request) -> HttpClientResponse:
        ranged = request.headers.get("Range")
        asked = f"{request.method} {shown(request.url)}{f' ({ranged})' if ranged else ''}"
        began_s = self._clock.monotonic_s()
        try:
            reply = self._inner.send(request)
        except StokerError as error:
            self._tell(f"> {asked}: {error}")
            raise
        location = reply.headers.get("Location")
        to = f" to {shown(joined(request.url, location))}" if location else ""
        texts = "".join(f", {name} {value}" for name in _TOLD if (value := reply.headers.get(name)))
        self._tell(f"> {asked}: {reply.status}{to}{texts} in {span(self._clock.monotonic_s() - began_s)}")
        return reply

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()


_FAILURES_SHOWN = 8
_HEARING_S = 0.1

T = TypeVar("T")


class FetchSession:
    """What one command fetches, from the outside. Make it with `session`."""

    def __init__(self, call: CommandContext, given: dict[str, Any], memo: Memo, *, tells_there: bool = True) -> None:
        self._call = call
        self._out = call.out
        self._clock = call.parts.clock
        self._shows_progress = not given["no_progress"]
        self._tells_there = tells_there
        self._lock = threading.Lock()
        self._seq = 0
        self._source = attempt_id(self._clock.now(), call.parts.entropy())
        self.screen = open_screen(self._out, self._clock, is_live=self._shows_progress)
        self._lines = TransferLines(
            self.screen, self._out, shows_progress=self._shows_progress, tells_there=tells_there
        )
        self.force = bool(given["force"])
        self._stop = DownloadStop()
        patience = patience_of(given)
        settings = call.parts.hub_settings(given.get("base_url") or "", offline=given["offline"])
        self._transport = call.parts.open_transport(patience.no_progress_s)
        if given["verbose"]:
            self._transport = LoggingTransport(self._transport, self._clock, self._tell_aside)
        tools = DownloadTools(
            transport=self._transport,
            clock=self._clock,
            free_bytes=free_bytes,
            jitter=lambda: call.parts.entropy() / 2**32,
            say=self.say,
            keep=self._keep,
            owns=call.parts.receipts.has_any,
            received=call.parts.receipts.sha256_at,
        )
        self.hub = Hub(settings, tools=tools, patience=patience, stop=self._stop, memo=memo)
        """Whom to ask and to fetch from, any other server included."""

    def expect(self, names: Iterable[str], total_bytes: int | None, *, within: str = "") -> None:
        """Say what is going to be fetched, so that the display knows when all of it is there."""
        self._lines.expect(names, total_bytes, within=within)

    def say(self, event: Event) -> None:
        """Show an event, or write it as JSON. Thread-safe."""
        at_s = self._clock.wall_s()
        if self._out.is_json:
            is_told = self._tells_there or event.fields.get("status") != Status.CACHED
            if is_told and (event.kind != Kinds.DOWNLOAD_PROGRESS or self._shows_progress):
                with self._lock:
                    self._seq += 1
                    self._out.json_line(event_line(event, ts=at_s, seq=self._seq, source=self._source))
        elif event.kind == Kinds.WARNING:
            if not self._out.is_quiet:
                self._tell_aside(f"note: {event.fields.get('message', '')}")
        else:
            self._lines.take(event, at_s)

    def tell_failures(self, failed: Sequence[tuple[str, StokerError]]) -> None:
        """Report which files will not come; outside JSON only the first by name."""
        shown = failed if self._out.is_json else failed[:_FAILURES_SHOWN]
        for label, error in shown:
            self.say(failure_of(label, error))
        if len(failed) > len(shown):
            self.screen.lasting(f"… and {len(failed) - len(shown):,} more that did not come")

    def run(self, work: Callable[[FetchSession], T]) -> T:
        """Do the work in a thread of its own; give what it gives, or raise what it raises.

        The main thread only waits, in short turns: a signal that comes just before a wait for a network begins is heard
        when that wait is over, and that may take half a minute.
        """
        done: list[T] = []
        failed: list[BaseException] = []

        def act() -> None:
            try:
                done.append(work(self))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                failed.append(error)

        thread = threading.Thread(target=act, name="stoker-fetch", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_HEARING_S)
        if failed:
            raise hinted(failed[0]) if isinstance(failed[0], StokerError) else failed[0]
        return done[0]

    def close(self) -> None:
        """Write what is left to say, and let go of the screen and of connections."""
        self._lines.close()
        self.screen.close()
        self._transport.close()

    def interruptions(self) -> Interruptions:
        """Return the block in which signals end the downloads and keep what came."""
        return Interruptions(self._ask, self.screen.mention, _leave, last_wait_s=0.0)

    def _ask(self, error: StokerError) -> None:
        try:
            self._stop.ask(error)
        finally:
            # Also what other threads are about to send.
            self._transport.abort()

    def _tell_aside(self, line: str) -> None:
        """Tell something on standard error, without spoiling what is drawn."""
        if self._out.is_terminal and self._shows_progress and not self._out.is_quiet:
            # The terminal is being drawn on.
            self.screen.lasting(line)
        else:
            self._out.complain(line)

    def _keep(self, came: Sequence[tuple[DownloadRequest, FetchedFile]]) -> None:
        """Leave receipts. What was there before keeps the one it has, which says how it came."""
        receipts, version = self._call.parts.receipts, self._call.parts.version
        ended_s = self._clock.wall_s()
        receipts.keep(
            [
                receipt_of(fetched, label=wanted.label, ended_s=ended_s, version=version)
                for wanted, fetched in came
                if fetched.status != Status.CACHED or not receipts.has(fetched.path, fetched.sha256)
            ]
        )


@contextmanager
def session(
    call: CommandContext, given: dict[str, Any], *, memo: Memo, tells_there: bool = True
) -> Iterator[FetchSession]:
    """Open a session: within the block, signals end the downloads and keep what came.

    `memo` is where it is remembered which bytes on this disk were checked. Unless it `tells_there`, people hear nothing
    of files that were there already.
    """
    call.out.goes_on_unread = call.out.is_watched = True
    one = FetchSession(call, given, memo, tells_there=tells_there)
    try:
        with one.interruptions():
            yield one
    finally:
        one.close()


def _leave() -> None:
    os._exit(Cancelled.exit_code)


# Options that all commands share which fetch something, and how they are read.

DEFAULT_JOBS = 8

SHARED_OPTIONS = (
    Option(
        "--retries",
        value="N",
        read=whole(1),
        help="also give up after N attempts in a row without a new byte, the first included (default: --timeout alone)",
    ),
    Option("--timeout", value="S", read=duration, help="give up after this long without a new byte (default: 30m)"),
    Option("--offline", help="ask no server: only what is on this disk (also HF_HUB_OFFLINE=1, STOKER_OFFLINE=1)"),
    Option("--force", help="fetch again what is there already"),
    Option("--no-progress", help="no progress, only results"),
    Option("--verbose", help="tell every request, redirect and retry, on standard error"),
)

EXIT_CODES = (
    "Exit codes: 10 no space, 11 not allowed, 12 too many requests, 13 wrong bytes, 14 network or no such file, 16 a "
    "lock, a permission or a file in the way, 130 interrupted."
)


def sha256(text: str) -> Digest:
    """Read a digest, in capitals or not."""
    plain = text.lower().removeprefix("sha256:")
    if not is_digest(plain):
        message = f"{text!r} is not a sha256: that is 64 hexadecimal digits"
        raise ValueError(message)
    return Digest(plain)


def patience_of(given: dict[str, Any]) -> DownloadTimeouts:
    """Return how patient the options want a download to be."""
    usual = DownloadTimeouts()
    no_progress_s = usual.no_progress_s if given["timeout"] is None else given["timeout"]
    return DownloadTimeouts(
        attempts=given["retries"],
        no_progress_s=no_progress_s,
        slow_s=min(usual.slow_s, no_progress_s),
        lock_wait_s=min(usual.lock_wait_s, no_progress_s),
    )


# What to do about an error of a download, in the words of the command line: the floors below know no options.

_LISTS = "lists what there is"
_NO_HUB = "HF_ENDPOINT or --base-url names another hub or a mirror; --offline takes what is on this machine"
_NO_HUB_FOR_JOB = "HF_ENDPOINT names another hub or a mirror; {argument}=FOLDER takes what is on this machine"
_SAME = "the same command"
_AGAIN = f"{_SAME} tries again"
_NOT_REACHED = frozenset({"dns", "refused", "unreachable", "connect_timeout"})
_HINTS = {
    ("not_on_server", "offline"): "without --offline it is fetched",
    ("hash_mismatch", "offline"): "without --offline it is fetched anew",
    ("not_on_server", "EntryNotFound"): f"--dry-run {_LISTS}",
    ("local_file", "not_ours"): "or replace it with --force",
    ("bad_answer", "web_page"): "give the address of the file itself, or --sha256",
    ("bad_answer", "bad_names"): "leave them out with --exclude, or choose files by name",
    ("bad_answer", "unknown_version"): "if it is right, start anew with --force",
    ("bad_answer", "needs_folder"): "name a folder with --out",
    ("bad_input", "needs_folder"): "name a folder with --out",
}


def hinted(error: StokerError) -> StokerError:
    """Add to an error's hint what the command line offers about it, once."""
    if _is_unreached(error):
        error.hint = f"check this computer's network; {_NO_HUB}"
    is_passing = isinstance(error, NetworkFailed | RateLimited) and not error.data.get("is_lasting")
    if is_passing and _SAME not in error.hint:
        # Nothing of this file is kept, or its hint would say so.
        error.add_hint(_AGAIN)
        return error
    more = _HINTS.get((error.code, str(error.data.get("reason"))), "")
    if more and more not in error.hint and _LISTS not in error.hint:
        error.add_hint(more)
    return error


def hinted_for_job(error: StokerError, argument: str) -> StokerError:
    """Return of a job, which has none of a download's options, what to do if the hub is not reached for an argument."""
    if _is_unreached(error):
        error.hint = f"check this computer's network; {_NO_HUB_FOR_JOB.format(argument=argument)}"
    return error


def _is_unreached(error: StokerError) -> bool:
    is_hub = isinstance(error, NetworkFailed) and bool(error.data.get("is_hub"))
    return is_hub and error.data.get("reason") in _NOT_REACHED
