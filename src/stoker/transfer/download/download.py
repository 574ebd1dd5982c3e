"""The download of one file, attempt by attempt, until its bytes are verified, durable and under their final name.

`resumption` and `response_rules` decide; this module acts. In any case the final name is unchanged, or a file that
passed every check. The partial file is kept for another run, unless its bytes proved wrong.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager

from stoker.core.digests import Digest
from stoker.core.errors import (
    BadAnswer,
    HashMismatch,
    LocalFile,
    NetworkFailed,
    NoSpace,
    NotOnServer,
    StokerError,
    Unavailable,
)
from stoker.core.frozen import changed
from stoker.core.retry import NoRetry
from stoker.core.text import format_size
from stoker.host.folders import AnchoredFolder, check_name
from stoker.host.http.client import follow
from stoker.host.http.exchange import HttpClientResponse, Request, Transport, origin, shown
from stoker.host.http.http_errors import Reason
from stoker.host.resources import check_space
from stoker.transfer.download.content import (
    CheckedBytes,
    Content,
    OpenTargetFile,
    Validators,
    is_newest,
    not_ours,
    read_existing,
    read_validators,
)
from stoker.transfer.download.download_events import ConnectionSpeed, DownloadEvents, reason_of
from stoker.transfer.download.file_lock import PartialFileLock, sweep_lock
from stoker.transfer.download.partial import BytesLost
from stoker.transfer.download.response_rules import (
    DownloadComplete,
    DownloadRestart,
    ExpectedContent,
    FailedAttempts,
    FatalResponse,
    RangeResponse,
    ResponseVerdict,
    RetryableResponse,
    UnconditionalRetry,
    UsableResponse,
    decide_again,
    file_size_of,
    given_up,
    judge,
)
from stoker.transfer.download.resumption import RangeRequest, ResumeAction, ask_for, digests_match, request_for
from stoker.transfer.download.types import (
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    Status,
    TargetFile,
)

PIECE_BYTES = 4 << 20


class _Failed(Exception):
    """A failed attempt; another one may succeed."""

    def __init__(self, error: StokerError, wait_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s


class _Wrong(Exception):
    """Received bytes are not the requested ones, or too many."""

    def __init__(self, error: HashMismatch) -> None:
        super().__init__(str(error))
        self.error = error


class DownloadTransfer:
    """One running download. Used by one thread, which holds the file's lock."""

    def __init__(
        self,
        wanted: DownloadRequest,
        landing: OpenTargetFile,
        *,
        tools: DownloadTools,
        patience: DownloadTimeouts,
        stop: DownloadStop,
        teller: DownloadEvents,
    ) -> None:
        self._wanted = wanted
        self._landing = landing
        self._tools = tools
        self._patience = patience
        self._stop = stop
        self._teller = teller
        self._content = Content(wanted, landing, tools)
        self._is_pinned = wanted.sha256 is not None or bool(wanted.git_sha1)
        """True if a digest verifies the bytes in the end."""
        self._asks_plainly = False
        self._bytes_from_network = 0
        self._attempts = 0
        self._tries = FailedAttempts()
        self._highest_bytes = 0
        """The highest offset so far: only bytes beyond it are progress."""
        self._progress_s = self._came_s = tools.clock.monotonic_s()
        self._has_begun_anew = self._has_mended = False

    def run(self, *, begins_anew: bool) -> FetchedFile:
        """Download the file; the caller adds path and time.

        `begins_anew` discards what an earlier run left.
        """
        try:
            found = self._content.take_up(begins_anew=begins_anew)
            self._highest_bytes = self._content.end_bytes
            if found.move is ResumeAction.RESTART:
                self._tell_restart(found.why)
            while True:
                landed = self._round()
                if landed is not None:
                    return landed
        except BaseException as error:
            self._content.leave()
            if isinstance(error, Unavailable | HashMismatch):
                _say_kept(error, self._content.offset, self._content.total_bytes, is_forced=begins_anew)
            raise
        finally:
            self._content.close()

    def _round(self) -> FetchedFile | None:
        try:
            self._stop.check()
            if not self._content.is_whole:
                self._attempt()
            return self._conclude() if self._content.is_whole else None
        except BytesLost as lost:
            self._mend(lost.error)
        except _Wrong as wrong:
            self._begin_anew(wrong.error)
        except _Failed as failed:
            self._pause(failed.error, failed.wait_s)
        return None

    def _attempt(self) -> None:
        self._attempts += 1
        ask = ask_for(self._wanted, self._content.sidecar, self._content.offset)
        if self._asks_plainly:
            ask = RangeRequest(offset=ask.offset)
        with self._network(), self._stop.cutting(self._tools.transport.abort):
            followed = follow(self._tools.transport, request_for(self._wanted, ask))
        reply = followed.reply
        try:
            is_elsewhere = bool(followed.hops) and origin(reply.url) != origin(self._wanted.url)
            answer = RangeResponse(status=reply.status, headers=reply.headers, is_elsewhere=is_elsewhere)
            self._act(judge(ask, self._known(), answer, now_s=self._tools.clock.wall_s()), reply)
        finally:
            reply.close()

    @contextmanager
    def _network(self) -> Iterator[None]:
        """Tell errors that another attempt may fix from lasting ones and from a requested stop."""
        try:
            yield
        except (NetworkFailed, BadAnswer) as error:
            self._stop.check()
            if error.data.get("is_lasting"):
                raise
            raise _Failed(error) from error

    def _known(self) -> ExpectedContent:
        wanted, sidecar = self._wanted, self._content.sidecar
        is_same_server = sidecar is not None and sidecar.url == shown(wanted.url)
        return ExpectedContent(
            label=wanted.label,
            url=wanted.url,
            size_bytes=wanted.size_bytes,
            partial_size_bytes=None if sidecar is None else sidecar.size_bytes,
            etag=sidecar.etag if sidecar is not None and is_same_server else "",
            last_modified=sidecar.last_modified if sidecar is not None and is_same_server else "",
            is_pinned=self._is_pinned,
            longest_retry_after_s=self._patience.longest_retry_after_s,
        )

    def _act(self, verdict: ResponseVerdict, reply: HttpClientResponse) -> None:
        match verdict:
            case UsableResponse():
                self._take(verdict, reply)
            case UnconditionalRetry():
                self._asks_plainly = True
            case DownloadRestart():
                self._tell_restart(verdict.why)
                self._content.discard()
            case DownloadComplete():
                self._content.end()
            case RetryableResponse():
                raise _Failed(verdict.error, verdict.wait_s)
            case FatalResponse():
                raise verdict.error

    def _take(self, take: UsableResponse, reply: HttpClientResponse) -> None:
        content = self._content
        total = take.size_bytes
        if total is None:
            with self._stop.cutting(self._tools.transport.abort):
                total = _probe_size(self._tools.transport, self._wanted, take.etag)
        freed_bytes = 0 if take.offset else content.allocated_bytes
        folder = self._landing.folder.path
        check_space(
            self._wanted.label or self._landing.leaf,
            folder,
            coming_bytes=None if total is None else total - take.offset,
            free=self._tools.free_bytes(folder) + freed_bytes,
            hint="free some space there, or choose another folder",
        )
        if take.offset == 0 and content.offset:
            self._tell_restart(take.why)
        content.receive(take, total)
        self._teller.start(take.offset, total)
        self._stream(reply, total)

    def _stream(self, reply: HttpClientResponse, total: int | None) -> None:
        content = self._content
        try:
            self._read_body(reply, total)
        except _Failed as failed:
            if failed.error.data.get("reason") != Reason.LONG_BODY:
                content.rest(self._tools.clock.monotonic_s())
                raise
            if not self._is_pinned:
                # The stated length is wrong, so the received bytes may be incomplete: another run must not take them
                # for complete.
                content.discard()
                raise
        if total is None:
            content.end()
        elif content.end_bytes < total:
            cut = f"the response ended at byte {content.end_bytes} of {total}: {shown(self._wanted.url)}"
            raise _Failed(NetworkFailed(cut, reason="short_body"))

    def _read_body(self, reply: HttpClientResponse, total: int | None) -> None:
        content, clock = self._content, self._tools.clock
        pace = ConnectionSpeed(clock.monotonic_s(), self._patience)
        with self._network(), self._stop.cutting(reply.abort):
            while piece := reply.read(PIECE_BYTES):
                self._came_s = now_s = clock.monotonic_s()
                self._bytes_from_network += len(piece)
                if total is not None and content.end_bytes + len(piece) > total:
                    raise self._wrong(f"more than {total} bytes received")
                content.add(piece, now_s)
                pace.got(len(piece), now_s)
                self._teller.progress(content.end_bytes, total, pace, content.hashed_bytes, now_s)
                if complaint := pace.complaint:
                    raise NetworkFailed(f"{complaint}: {shown(self._wanted.url)}", reason="too_slow")

    def _conclude(self) -> FetchedFile:
        """Verify everything, then rename to the final name."""
        totals = self._content.check()
        wanted, sums = self._wanted, totals.sums
        if wanted.size_bytes not in {None, totals.size_bytes}:
            raise self._wrong(f"{totals.size_bytes} bytes received, {wanted.size_bytes} expected")
        if not digests_match(wanted, sums.sha256, sums.git_sha1):
            expected = f"git sha1 {wanted.git_sha1}" if wanted.sha256 is None else f"sha256 {wanted.sha256}"
            came = f"git sha1 {sums.git_sha1}" if wanted.sha256 is None else f"sha256 {sums.sha256}"
            raise self._wrong(f"{came} came, {expected} is expected")
        self._stop.check()
        self._content.name()
        return FetchedFile(
            path="",
            status=Status.DOWNLOADED,
            size_bytes=totals.size_bytes,
            sha256=sums.sha256,
            bytes_from_network=self._bytes_from_network,
            bytes_resumed=self._content.bytes_resumed,
            url=shown(wanted.url),
            commit=wanted.commit,
            etag=self._content.validators.etag,
            last_modified=self._content.validators.last_modified,
        )

    def _pause(self, error: StokerError, wait_s: float | None) -> None:
        """Wait before another attempt, or give up."""
        has_progress = self._content.offset > self._highest_bytes
        if has_progress:
            self._highest_bytes, self._progress_s = self._content.offset, self._came_s
        self._tries = self._tries.after(error, has_progress=has_progress)
        silent_s = self._tools.clock.monotonic_s() - self._progress_s
        jitter = self._tools.jitter()
        decision = decide_again(self._patience, self._tries, silent_s=silent_s, wait_s=wait_s, jitter=jitter)
        if isinstance(decision, NoRetry):
            raise given_up(error, decision)
        wait_s, reason = decision.delay_s, reason_of(error)
        self._teller.retry(wait_s=wait_s, msg=error.message, reason=reason, attempt=self._attempts)
        self._stop.sleep(decision.delay_s, self._tools.clock)

    def _begin_anew(self, error: HashMismatch) -> None:
        """Restart once after wrong bytes, if they came in several pieces."""
        is_pieced = self._content.is_pieced
        self._content.discard()
        if not is_pieced or self._has_begun_anew:
            raise error
        self._has_begun_anew = True
        # This happens once, so the bytes up to the old offset count as progress again.
        self._highest_bytes, self._tries = 0, FailedAttempts()
        self._tell_restart(f"bytes of several responses do not match: {error.message}")

    def _mend(self, error: StokerError) -> None:
        """Continue once from the last synced byte after a failed sync. Does not handle a full disk."""
        self._content.believe_less()
        if isinstance(error, NoSpace) or self._has_mended:
            raise error
        self._has_mended = True
        self._teller.retry(wait_s=0.0, msg=error.message, reason="sync_failed", attempt=self._attempts)

    def _tell_restart(self, why: str) -> None:
        self._teller.retry(wait_s=0.0, msg=f"starting over: {why}", reason="restart", attempt=max(1, self._attempts))

    def _wrong(self, what: str) -> _Wrong:
        name = self._wanted.label or self._landing.leaf
        hint = "the server has another file there, or a proxy changed it; the file was not kept"
        wanted = self._wanted
        data = {"expected_sha256": wanted.sha256, "expected_bytes": wanted.size_bytes, "url": shown(wanted.url)}
        return _Wrong(HashMismatch(f"not the requested file: {name}: {what}", hint=hint, **data))


def kept_bytes_of(error: StokerError) -> int:
    """Return how many bytes are on disk after a download failed with this error."""
    kept_bytes = error.data.get("kept_bytes")
    return kept_bytes if isinstance(kept_bytes, int) else 0


def _say_kept(error: StokerError, kept_bytes: int, total_bytes: int | None, *, is_forced: bool) -> None:
    """Add to an error how many bytes are kept for the next run, and how to use them."""
    error.data["kept_bytes"] = kept_bytes
    if kept_bytes:
        amount = format_size(kept_bytes) + ("" if total_bytes is None else f" of {format_size(total_bytes)}")
        how = "the same command without force resumes" if is_forced else "the same command resumes"
        error.add_hint(f"downloaded data is kept ({amount}): {how}")


# Entry point: download one file to its final name.
#
# Guarantee: if the final name exists, its bytes are those of exactly one version, of the expected size and digest if
# these are known. No reader sees a part of a file there, after a lost connection, a kill or a power cut. Disk space is
# checked first, and one writer at a time does the rest.
#
# Not guaranteed: if neither size nor digest are known beforehand and the server states neither, a body that ends too
# early looks complete.


def fetch_file(  # noqa: PLR0913 - what, where to, with what, how patiently, until when, and the two wishes of a user
    wanted: DownloadRequest,
    landing: TargetFile,
    *,
    tools: DownloadTools,
    patience: DownloadTimeouts,
    stop: DownloadStop,
    force: bool = False,
    offline: bool = False,
) -> FetchedFile:
    """Download a file to its final name: complete, verified and durable. On an error the final name is unchanged.

    An existing file is kept if it is the requested one. Another file is replaced if it is ours (`DownloadTools.owns`,
    or validators are beside it); otherwise it is refused before any request. `force` downloads again in any case.
    `offline` sends no request. Raises `NotOnServer`, `AuthRefused`, `RateLimited`, `NetworkFailed`, `BadAnswer`,
    `HashMismatch`, `NoSpace`, `LockHeld`, `LocalFile`, `NoPermission`, `BadInput` for an unsafe target name, and the
    error of a stop request.
    """
    began_s = tools.clock.monotonic_s()
    teller = DownloadEvents(tools.say, wanted, landing.name)
    below, _, leaf = check_name(landing.name).rpartition("/")
    with _open_folder(landing, below, makes=not offline) as folder:
        look = _Look(wanted, landing, folder, leaf)
        fetched = None
        if not force or offline:
            fetched = look.offline(tools) if offline else look.before(tools, stop)
        if fetched is not None:
            sweep_lock(folder, leaf)
        else:
            stop.check()
            if not force:
                look.refuse_others(tools)
            hold = PartialFileLock(
                folder, leaf, lock_path=landing.lock_path, wait_s=patience.lock_wait_s, name=wanted.label
            )
            with hold.take(clock=tools.clock, stop=stop, teller=teller):
                fetched = None if force else look.again()
                if fetched is None:
                    opened = OpenTargetFile(
                        folder=folder, leaf=leaf, names=hold.names, keeps_validators=landing.keeps_validators
                    )
                    transfer = DownloadTransfer(
                        wanted, opened, tools=tools, patience=patience, stop=stop, teller=teller
                    )
                    fetched = transfer.run(begins_anew=force)
    fetched = changed(fetched, path=landing.path, seconds=tools.clock.monotonic_s() - began_s)
    tools.keep([(wanted, fetched)])
    tools.on_step("done")
    teller.done(fetched)
    return fetched


class _Look:
    """Checks the file under the final name, and remembers which one it checked."""

    def __init__(self, wanted: DownloadRequest, landing: TargetFile, folder: AnchoredFolder, leaf: str) -> None:
        self._wanted = wanted
        self._landing = landing
        self._folder = folder
        self._leaf = leaf
        self._has_digest = wanted.sha256 is not None or bool(wanted.git_sha1)
        self._seen: tuple[int, ...] | None = None

    def offline(self, tools: DownloadTools) -> FetchedFile:
        """Return the existing file, without the network."""
        received = None if self._has_digest else tools.received(self._landing.path)
        wanted = self._wanted if received is None else changed(self._wanted, sha256=received)
        found = read_existing(self._folder, self._leaf, wanted)
        path = self._folder.path_of(self._leaf)
        if isinstance(found, str):
            raise HashMismatch(f"not the requested file: {path}: {found}", path=path, reason="offline")
        if found is None:
            raise _not_here(path)
        return self._cached(found, self._validators())

    def before(self, tools: DownloadTools, stop: DownloadStop) -> FetchedFile | None:
        """Return the existing file if it is the requested one.

        It is if its digest matches; or if the server still has its version, and it is undamaged.
        """
        self._seen = self._stamp()
        if self._seen is None:
            return None
        if self._has_digest:
            return self._if_wanted(self._validators())
        validators, received = self._validators(), tools.received(self._landing.path)
        if not validators or received is None:
            return None
        with stop.cutting(tools.transport.abort):
            is_kept = is_newest(tools.transport, self._wanted, self._seen[2], validators)
        return self._if_wanted(validators, received) if is_kept else None

    def refuse_others(self, tools: DownloadTools) -> None:
        """Raise `LocalFile` for a file of the user that is not the requested one."""
        if self._stamp() is not None and not tools.owns(self._landing.path) and not self._validators():
            raise not_ours(self._landing.path)

    def again(self) -> FetchedFile | None:
        """Check again under the lock: another process may have finished the download."""
        if not self._has_digest or self._stamp() in {None, self._seen}:
            return None
        return self._if_wanted(self._validators())

    def _if_wanted(self, validators: Validators, received: Digest | None = None) -> FetchedFile | None:
        wanted = self._wanted if received is None else changed(self._wanted, sha256=received)
        found = read_existing(self._folder, self._leaf, wanted)
        return self._cached(found, validators) if isinstance(found, CheckedBytes) else None

    def _validators(self) -> Validators:
        return read_validators(self._folder, self._leaf) if self._landing.keeps_validators else Validators()

    def _stamp(self) -> tuple[int, ...] | None:
        info = self._folder.look(self._leaf)
        if info is None or not stat.S_ISREG(info.st_mode):
            return None
        return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)

    def _cached(self, found: CheckedBytes, validators: Validators) -> FetchedFile:
        return FetchedFile(
            path=self._landing.path,
            status=Status.CACHED,
            size_bytes=found.size_bytes,
            sha256=found.sums.sha256,
            url=shown(self._wanted.url),
            commit=self._wanted.commit,
            etag=validators.etag,
            last_modified=validators.last_modified,
        )


def _open_folder(landing: TargetFile, below: str, *, makes: bool) -> AnchoredFolder:
    try:
        return AnchoredFolder.open(landing.folder, below, makes=makes)
    except LocalFile as error:
        if makes or error.data.get("errno") != "ENOENT":
            raise
        raise _not_here(landing.path) from None


def _not_here(path: str) -> NotOnServer:
    return NotOnServer(f"not on this machine, and offline: {path}", path=path, reason="offline")


def _probe_size(transport: Transport, wanted: DownloadRequest, etag: str) -> int | None:
    """Return the size of the version with this tag, by HEAD, or by its first byte; of a server without tags, of any.

    None if the server does not tell. A body that ends too early then looks complete, unless a digest is known.
    """
    by_head = Request(url=wanted.url, method="HEAD", headers=dict(wanted.headers))
    by_first_byte = Request(url=wanted.url, headers={**wanted.headers, "Range": "bytes=0-0"})
    found: int | None = None
    for request in (by_head, by_first_byte):
        try:
            # Closed unread: a server that sends the whole file is cut off.
            with closing(follow(transport, request).reply) as reply:
                size_bytes = file_size_of(reply.status, reply.headers)
                is_same = not etag or (reply.headers.get("ETag") or "") in {"", etag}
                found = size_bytes if is_same and isinstance(size_bytes, int) else None
        except (NetworkFailed, BadAnswer):
            found = None
        if found:
            break
    return found
