"""The downloads of one command: progress display or stream of JSON, signals, receipts.

One `FetchSession` covers all downloads of a command, so that Ctrl-C always ends them in the same way: downloaded data
is kept, and the same command resumes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.dispatch import Interruptions, report
from stoker.cli.grammar import Option, duration, whole
from stoker.cli.screens import Screen, open_screen
from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.display_width import cut, filled, text_width
from stoker.core.errors import Cancelled, NetworkFailed, RateLimited, StokerError, Terminated
from stoker.core.events import Event, Kinds, event_line
from stoker.core.frozen import changed, frozen
from stoker.core.job import attempt_id
from stoker.core.text import counted, format_size, outside
from stoker.host.http.exchange import HttpClientResponse, Request, Transport, joined, shown
from stoker.host.resources import free_bytes
from stoker.store.memo import Memo
from stoker.transfer.download.download_events import failure_of
from stoker.transfer.download.receipts import receipt_of
from stoker.transfer.download.types import (
    DownloadOutcome,
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    Status,
)
from stoker.transfer.hub.client import Hub
from stoker.views.text_tables import span
from stoker.views.transfer_lines import DrawStyle, Transfers, again_text, done_text, flying_text, seconds_of, short_name

# For `--verbose`. Never logs a query, a credential or a header that may hold one.

_LOGGED = ("Content-Length", "Content-Range", "Retry-After")


class LoggingTransport:
    """Logs each request of another transport, with range, status, time and redirect."""

    def __init__(self, inner: Transport, clock: Clock, log: Callable[[str], None]) -> None:
        self._inner = inner
        self._clock = clock
        self._log = log

    def send(self, request: Request) -> HttpClientResponse:
        ranged = request.headers.get("Range")
        sent = f"{request.method} {shown(request.url)}{f' ({ranged})' if ranged else ''}"
        began_s = self._clock.monotonic_s()
        try:
            reply = self._inner.send(request)
        except StokerError as error:
            self._log(f"> {sent}: {error}")
            raise
        location = reply.headers.get("Location")
        to = f" to {shown(joined(request.url, location))}" if location else ""
        texts = "".join(f", {name} {value}" for name in _LOGGED if (value := reply.headers.get(name)))
        self._log(f"> {sent}: {reply.status}{to}{texts} in {span(self._clock.monotonic_s() - began_s)}")
        return reply

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()


_FAILURES_SHOWN = 8
_JOIN_S = 0.1

T = TypeVar("T")


class FetchSession:
    """The downloads of one command. Make it with `session`."""

    def __init__(self, call: CommandContext, given: dict[str, Any], memo: Memo, *, shows_present: bool = True) -> None:
        self._call = call
        self._out = call.out
        self._clock = call.parts.clock
        self._shows_progress = not given["no_progress"]
        self._shows_present = shows_present
        self._lock = threading.Lock()
        self._seq = 0
        self._source = attempt_id(self._clock.now(), call.parts.entropy())
        self.screen = open_screen(self._out, self._clock, is_live=self._shows_progress)
        self._lines = TransferLines(
            self.screen, self._out, shows_progress=self._shows_progress, shows_present=shows_present
        )
        self.force = bool(given["force"])
        self._stop = DownloadStop()
        patience = patience_of(given)
        settings = call.parts.hub_settings(given.get("base_url") or "", offline=given["offline"])
        self._transport = call.parts.open_transport(patience.no_progress_s)
        if given["verbose"]:
            self._transport = LoggingTransport(self._transport, self._clock, self._print_aside)
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
        """Downloads from the hub and from any other server."""

    def expect(self, names: Iterable[str], total_bytes: int | None, *, within: str = "") -> None:
        """Set the expected files, for the progress display."""
        self._lines.expect(names, total_bytes, within=within)

    def say(self, event: Event) -> None:
        """Show an event, or write it as JSON. Thread-safe."""
        at_s = self._clock.wall_s()
        if self._out.is_json:
            is_shown = self._shows_present or event.fields.get("status") != Status.CACHED
            if is_shown and (event.kind != Kinds.DOWNLOAD_PROGRESS or self._shows_progress):
                with self._lock:
                    self._seq += 1
                    self._out.json_line(event_line(event, ts=at_s, seq=self._seq, source=self._source))
        elif event.kind == Kinds.WARNING:
            if not self._out.is_quiet:
                self._print_aside(f"note: {event.fields.get('message', '')}")
        else:
            self._lines.take(event, at_s)

    def show_failures(self, failed: Sequence[tuple[str, StokerError]]) -> None:
        """Print the failed files; as text only the first few."""
        shown = failed if self._out.is_json else failed[:_FAILURES_SHOWN]
        for label, error in shown:
            self.say(failure_of(label, error))
        if len(failed) > len(shown):
            self.screen.lasting(f"… and {len(failed) - len(shown):,} more failed")

    def run(self, work: Callable[[FetchSession], T]) -> T:
        """Do the work in a thread; return its result or raise its error.

        The main thread waits in short turns: otherwise a signal just before a wait for the network would be handled
        only after that wait, up to half a minute later.
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
            thread.join(_JOIN_S)
        if failed:
            raise hinted(failed[0]) if isinstance(failed[0], StokerError) else failed[0]
        return done[0]

    def close(self) -> None:
        """Write the last lines and close the display and the connections."""
        self._lines.close()
        self.screen.close()
        self._transport.close()

    def interruptions(self) -> Interruptions:
        """Return a block in which signals stop the downloads and keep downloaded data."""
        return Interruptions(self._ask, self.screen.mention, _leave, last_wait_s=0.0)

    def _ask(self, error: StokerError) -> None:
        try:
            self._stop.ask(error)
        finally:
            # Also stops requests that other threads are about to send.
            self._transport.abort()

    def _print_aside(self, line: str) -> None:
        """Write a line to standard error without disturbing the display."""
        if self._out.is_terminal and self._shows_progress and not self._out.is_quiet:
            # The terminal is being drawn on.
            self.screen.lasting(line)
        else:
            self._out.complain(line)

    def _keep(self, came: Sequence[tuple[DownloadRequest, FetchedFile]]) -> None:
        """Write receipts. A file that was present keeps its receipt."""
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
    call: CommandContext, given: dict[str, Any], *, memo: Memo, shows_present: bool = True
) -> Iterator[FetchSession]:
    """Open a session: within the block, signals stop the downloads and keep downloaded data.

    `memo` records which files were verified. Without `shows_present`, files that were already present are not printed.
    """
    call.out.goes_on_unread = call.out.is_watched = True
    one = FetchSession(call, given, memo, shows_present=shows_present)
    try:
        with one.interruptions():
            yield one
    finally:
        one.close()


def _leave() -> None:
    os._exit(Cancelled.exit_code)


# Options of all commands that download.

DEFAULT_JOBS = 8

SHARED_OPTIONS = (
    Option(
        "--retries",
        value="N",
        read=whole(1),
        help="maximum attempts in a row without new data, including the first (default: only --timeout)",
    ),
    Option("--timeout", value="S", read=duration, help="stall timeout, no data received (default: 30m)"),
    Option("--offline", help="use only files on this disk (also HF_HUB_OFFLINE=1, STOKER_OFFLINE=1)"),
    Option("--force", help="download again files that are present"),
    Option("--no-progress", help="show no progress"),
    Option("--verbose", help="log each request, redirect and retry to standard error"),
)

EXIT_CODES = (
    "Exit codes: 10 no disk space, 11 not authorized, 12 rate limited, 13 wrong digest, 14 network or not found, 16 "
    "file locked, permission denied or file exists, 130 interrupted."
)


def sha256(text: str) -> Digest:
    """Parse a digest in upper or lower case."""
    plain = text.lower().removeprefix("sha256:")
    if not is_digest(plain):
        message = f"{text!r} is not a sha256 of 64 hexadecimal digits"
        raise ValueError(message)
    return Digest(plain)


def patience_of(given: dict[str, Any]) -> DownloadTimeouts:
    """Return the timeouts of a download."""
    usual = DownloadTimeouts()
    no_progress_s = usual.no_progress_s if given["timeout"] is None else given["timeout"]
    return DownloadTimeouts(
        attempts=given["retries"],
        no_progress_s=no_progress_s,
        slow_s=min(usual.slow_s, no_progress_s),
        lock_wait_s=min(usual.lock_wait_s, no_progress_s),
    )


# Hints for download errors: the layers below know no command-line options.

_LISTS = "lists what there is"
_NO_HUB = "set HF_ENDPOINT or --base-url to another hub or a mirror; or use local files with --offline"
_NO_HUB_FOR_JOB = "set HF_ENDPOINT to another hub or a mirror; or use a local folder with {argument}=FOLDER"
_SAME = "the same command"
_AGAIN = f"{_SAME} tries again"
_NOT_REACHED = frozenset({"dns", "refused", "unreachable", "connect_timeout"})
_HINTS = {
    ("not_on_server", "offline"): "download it without --offline",
    ("hash_mismatch", "offline"): "download it again without --offline",
    ("not_on_server", "EntryNotFound"): f"--dry-run {_LISTS}",
    ("local_file", "not_ours"): "or replace it with --force",
    ("bad_answer", "web_page"): "give the URL of the file itself, or --sha256",
    ("bad_answer", "bad_names"): "skip them with --exclude, or name the files",
    ("bad_answer", "unknown_version"): "if it is correct, download again with --force",
    ("bad_answer", "needs_folder"): "name a folder with --out",
    ("bad_input", "needs_folder"): "name a folder with --out",
}


def hinted(error: StokerError) -> StokerError:
    """Add a command-line option to an error's hint, once."""
    if _is_unreached(error):
        error.hint = f"check this computer's network; {_NO_HUB}"
    is_passing = isinstance(error, NetworkFailed | RateLimited) and not error.data.get("is_lasting")
    if is_passing and _SAME not in error.hint:
        # Nothing of this file is kept, else its hint would mention it.
        error.add_hint(_AGAIN)
        return error
    more = _HINTS.get((error.code, str(error.data.get("reason"))), "")
    if more and more not in error.hint and _LISTS not in error.hint:
        error.add_hint(more)
    return error


def hinted_for_job(error: StokerError, argument: str) -> StokerError:
    """Set the hint for an unreachable hub; a job has no download options."""
    if _is_unreached(error):
        error.hint = f"check this computer's network; {_NO_HUB_FOR_JOB.format(argument=argument)}"
    return error


def _is_unreached(error: StokerError) -> bool:
    is_hub = isinstance(error, NetworkFailed) and bool(error.data.get("is_hub"))
    return is_hub and error.data.get("reason") in _NOT_REACHED


_LISTED = 8
_MANY = 40
_QUICK_MS = 1000
_LONGEST_NAME = 48
_MOST_ROWS = 8
_ROWS_BESIDE = 3
"""Lines of a screen for the summary, the last line and the input line."""
_COLUMNS_BESIDE = 5
"""Columns for the sign before a line and the `^C` after it, which must not wrap."""
_SHORTEST_NAME = 12


class TransferLines:
    """Prints the events of downloads as lines: finished files stay on the screen, running ones are redrawn.

    Files that were present are held back: few are listed at the end, many only counted; so are quick ones among very
    many. Called from several threads.
    """

    def __init__(
        self, screen: Screen, out: CliOutput, *, shows_progress: bool = True, shows_present: bool = True
    ) -> None:
        self._screen = screen
        self._shows_present = shows_present
        self._out = out
        self._signs = out.signs
        self._lock = threading.Lock()
        self._transfers = Transfers()
        self._within = ""
        self._width = 0
        self._there: list[dict[str, Any]] = []
        self._quick: list[dict[str, Any]] = []
        # Without progress only ends are shown.
        self._has_begun = not shows_progress

    def expect(self, names: Iterable[str], total_bytes: int | None, *, within: str = "") -> None:
        """Set the expected files, all of the repository `within` if given; `total_bytes` gives the remaining time."""
        with self._lock:
            known = [short_name(name, within) for name in names]
            self._within = within
            self._width = min(_LONGEST_NAME, max(map(text_width, known), default=0))
            self._transfers = Transfers(files=len(known), total_bytes=total_bytes)

    def take(self, event: Event, at_s: float) -> None:
        """Handle one event."""
        with self._lock:
            if self._transfers.take(event, at_s) is None:
                return
            begins = not self._has_begun and event.kind in _BEGIN
            self._has_begun = self._has_begun or begins
            lines = list(self._lines(event.kind, event.fields))
        if begins:
            self._screen.begin(self.running)
        for line in lines:
            self._screen.lasting(line)

    def running(self, now_s: float, at_least_s: float) -> list[str]:
        """Return the progress: a summary for plain output (`at_least_s` above 0), else also each file."""
        with self._lock:
            flying = self._transfers.in_flight()
            if not flying:
                return []
            is_drawn = at_least_s <= 0
            room = max(1, self._out.columns - _COLUMNS_BESIDE) if is_drawn and self._out.columns else 0
            how = DrawStyle(is_drawn=is_drawn, is_unicode=self._out.is_unicode, room=room)
            together = [self._transfers.together(how)] if self._transfers.files > 1 else []
            if together and not is_drawn:
                return together
            width = min(self._width, max(_SHORTEST_NAME, room // 3)) if room else self._width
            beside = changed(how, room=max(1, room - width - 2) if room else 0)
            rows = [
                f"{filled(_cut(short_name(one.file, self._within), width), width)}  {flying_text(one, beside, now_s)}"
                for one in self._transfers.worth_rows()[: self._most_rows()]
            ]
            return [*together, *rows]

    def close(self) -> None:
        """Print what was held back."""
        quick, there, self._quick, self._there = self._quick, self._there, [], []
        if quick:
            size = format_size(sum(int(texts.get("bytes") or 0) for texts in quick))
            self._screen.lasting(f"{self._out.paint(self._signs.ran, 'green')} {counted(len(quick), 'file')}, {size}")
        if len(there) > _LISTED:
            self._screen.lasting(f"{self._signs.hit} {len(there):,} files present")
            return
        for texts in there:
            self._screen.lasting(self._done(texts))

    def _most_rows(self) -> int:
        rows = self._out.rows
        return max(1, min(_MOST_ROWS, rows - _ROWS_BESIDE)) if rows else _MOST_ROWS

    def _lines(self, kind: str, texts: dict[str, Any]) -> Iterable[str]:
        name = filled(self._name(texts), self._width)
        if kind == Kinds.DOWNLOAD_DONE:
            if texts.get("status") == "cached":
                if self._shows_present:
                    self._there.append(texts)
            elif self._transfers.files > _MANY and int(texts.get("ms") or 0) < _QUICK_MS:
                self._quick.append(texts)
            else:
                yield self._done(texts)
        elif kind == Kinds.DOWNLOAD_FAILED:
            yield f"{self._out.paint(self._signs.failed, 'red')} {name}  {outside(str(texts.get('message', '')))}"
        elif kind == Kinds.DOWNLOAD_RETRY:
            wait_s = seconds_of(texts)
            # A message about a repository already names it.
            why = str(texts.get("msg", "")).removeprefix(f"{texts.get('file', '')}: ")
            again = f"; {again_text(int(texts.get('attempt') or 0), wait_s)}" if wait_s else ""
            yield f"{self._signs.again} {name}  {outside(why)}{again}"
        elif kind == Kinds.DOWNLOAD_WAITING:
            yield f"{self._signs.again} {name}  {outside(str(texts.get('msg', '')))}"

    def _done(self, texts: dict[str, Any]) -> str:
        is_new = texts.get("status") == "downloaded"
        sign = self._out.paint(self._signs.ran, "green") if is_new else self._out.paint(self._signs.hit, "dim")
        return f"{sign} {filled(self._name(texts), self._width)}  {done_text(texts)}"

    def _name(self, texts: dict[str, Any]) -> str:
        return short_name(str(texts.get("file", "")), self._within)


def _cut(name: str, width: int) -> str:
    """Return a name that fits, cut at its start."""
    return name if not width else cut(name[::-1], width)[::-1]


_BEGIN = frozenset({Kinds.DOWNLOAD_START, Kinds.DOWNLOAD_RETRY, Kinds.DOWNLOAD_WAITING})


# The result of a download: where the files are, which are missing and why, and the exit code.

_KEPT = "downloaded data is kept"
_SAME = "the same command"


@frozen
class FetchCommandResult:
    """All requested files, and the folder to show."""

    files: Sequence[DownloadOutcome]
    folder: str = ""
    last_line: str = ""
    """The last line, if it is not the place of the files."""


def fetch_with(
    call: CommandContext, given: dict[str, Any], about: str, work: Callable[[FetchSession], FetchCommandResult]
) -> int:
    """Let `work` download within a session; print the result and return the exit code."""
    haul, error = try_fetching(call, given, about, work)
    if error is not None:
        return report(error, call.out, debug=call.flags.debug, is_in_stream=True)
    call.out.line(haul.last_line or _where(haul, is_short=call.out.is_quiet))
    return 0


def try_fetching(
    call: CommandContext,
    given: dict[str, Any],
    about: str,
    work: Callable[[FetchSession], FetchCommandResult],
    *,
    shows_present: bool = True,
) -> tuple[FetchCommandResult, StokerError | None]:
    """Let `work` download within a session and print each file; return the files, and failures as one error.

    Without `shows_present`, files that were already present are not printed.
    """
    call.parts.receipts.make()
    haul = FetchCommandResult(files=())
    error: StokerError | None = None
    with session(call, given, memo=call.parts.store.memo, shows_present=shows_present) as one:
        try:
            haul = one.run(work)
        except StokerError as failure:
            error = failure
            haul = FetchCommandResult(files=(DownloadOutcome(label=about, error=failure),))
        failed = [(got.label, hinted(got.error)) for got in haul.files if got.error is not None]
        if not call.out.is_json:
            # The last line reports one file or an interruption; a stream of JSON has no last line.
            failed = [
                texts for texts in failed if len(haul.files) > 1 and not isinstance(texts[1], Cancelled | Terminated)
            ]
        one.show_failures(failed)
    return haul, error or first_failure(haul.files)


def first_failure(files: Sequence[DownloadOutcome]) -> StokerError | None:
    """Return the failures as one error: an interruption first, else the first in the order of files."""
    failed = [got.error for got in files if got.error is not None]
    if not failed:
        return None
    first = next((one for one in failed if isinstance(one, Cancelled | Terminated)), failed[0])
    if len(files) == 1 or isinstance(first, Cancelled | Terminated):
        return first
    texts = type(first)(f"{len(failed)} of {len(files)} files failed: {first}", hint=first.hint, **first.data)
    has_come = any(got.fetched is not None for got in files) or any(one.data.get("kept_bytes") for one in failed)
    if has_come and not first.data.get("kept_bytes"):
        texts.add_hint(_KEPT if _SAME in texts.hint else f"{_KEPT}: {_SAME} resumes")
    return texts


def _where(haul: FetchCommandResult, *, is_short: bool) -> str:
    there = [got.fetched for got in haul.files if got.fetched is not None]
    if len(there) == 1:
        return there[0].path
    folder = haul.folder or os.path.commonpath([os.path.dirname(one.path) for one in there])
    if is_short:
        return folder
    return f"{len(there):,} files, {format_size(sum(one.size_bytes for one in there))} in {folder}"
