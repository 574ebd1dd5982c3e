"""Large files between this machine and the object store of a coordinator, by passes: presigned URLs, no key here.

A file is sent in parts, each under its own SHA-256, which the store checks. To resume, parts that are there are not
sent again. The coordinator gets the list of parts at the end and names the file; no byte of it passes through there.
A file is hashed whole while it is sent, unless it is one of this machine's store, which has verified it. A fetched file
is hashed whole: only then is it known that its parts are the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from hashlib import sha256

from stoker.core.clock import Clock
from stoker.core.digests import Digest, TreeEntry, digest_bytes
from stoker.core.errors import (
    AuthRefused,
    Cancelled,
    CorruptBytes,
    HashMismatch,
    NetworkFailed,
    NotFound,
    StokerError,
    Unavailable,
)
from stoker.core.frozen import frozen
from stoker.host.durable import begin_write_back, stamp_of, translated, write_all
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings, Request, Transport
from stoker.host.locks import FileLock
from stoker.protocol.client import FleetClient
from stoker.protocol.tree_messages import PassResponse, PassView
from stoker.store.objects.s3_bucket import S3Meaning, judge_fault, read_fault
from stoker.store.trees import Heed
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees.tree_sources import StopEvent, TransferBackoff

LANES = 3
"""Parts of one file that are sent at once, each in memory."""
_TRIES = 5
_STALL_S = 60.0
_RENEWED_AFTER_S = 240.0
_BLOCK_BYTES = 1 << 20
_MOST_ERROR_BYTES = 4096
_LOCK_WAIT_S = 600.0
_OK = 200


def direct_transport(client: FleetClient) -> Transport:
    """Return a transport to servers that are not of the fleet, with the proxies of a client's. Caller closes."""
    http = client.http
    return http.outside_fleet() if isinstance(http, Urllib3Transport) else Urllib3Transport(HttpSettings())


class DirectSender:
    """Sends one file. `run` may be called again after an error: it sends the parts that are missing then."""

    def __init__(
        self, client: FleetClient, transport: Transport, entry: TreeEntry, *, stop: StopEvent, heed: Heed
    ) -> None:
        self._client = client
        self._transport = transport
        self._entry = entry
        self._stop = stop
        self._heed = heed
        self._over = threading.Event()

    def run(self, descriptor: int, part_bytes: int, *, is_verified: bool) -> None:
        """Send the file and have it named. Raises `CorruptBytes` if it changed; it is not named then.

        One that `is_verified` is known to have its digest as long as its stamp stays: only its parts are hashed.
        """
        entry, whole = self._entry, None if is_verified else sha256()
        stamp = stamp_of(os.fstat(descriptor))
        lanes = ThreadPoolExecutor(LANES, thread_name_prefix="parts")
        parts: list[Future[tuple[str, int]]] = []
        try:
            for offset in range(0, entry.size_bytes, part_bytes):
                if len(parts) >= LANES:
                    # So many parts are in memory.
                    wait(parts[-LANES:], return_when=FIRST_COMPLETED)
                if any(part.done() and part.exception() for part in parts):
                    break
                data = _read(descriptor, offset, min(part_bytes, entry.size_bytes - offset), entry)
                is_whole = len(data) == entry.size_bytes
                parts.append(lanes.submit(self._send, data, entry.sha256 if is_whole else None))
                if whole is not None:
                    whole.update(data)
            sent = [part.result() for part in parts]
        finally:
            self._over.set()
            lanes.shutdown(wait=True, cancel_futures=True)
            self._over.clear()
        is_same = stamp_of(os.fstat(descriptor)) == stamp if whole is None else whole.hexdigest() == entry.sha256
        if not is_same:
            raise CorruptBytes(f"{entry.path} is not what it was")
        if self._client.name_parts(entry.sha256, sent):
            raise Unavailable(f"parts of {entry.path} are missing in the object store", hint="they are sent again")

    def _send(self, data: bytes, digest: str | None) -> tuple[str, int]:
        digest = digest or digest_bytes(data)
        backoff, failures = TransferBackoff(), 0
        while True:
            if self._stop.is_set() or self._over.is_set():
                raise Cancelled("the file was not sent completely", hint="the same command continues where it stopped")
            offered = self._client.pass_to_send(digest, len(data))
            if not offered.passes:
                break
            try:
                put(self._transport, offered.passes[0], data)
                break
            except (Unavailable, HashMismatch) as error:
                failures += 1
                if failures >= _TRIES or _is_lasting(error):
                    raise
            self._stop.wait(backoff.failed())
        self._heed(len(data))
        return digest, len(data)


def put(transport: Transport, to: PassView, data: bytes) -> None:
    """Put bytes by a pass. Bytes that are there already are fine. Raises the error that the store's one means."""
    request = Request(url=to.url, method="PUT", headers=to.headers, body=data, head_s=_STALL_S, is_repeatable=True)
    with closing(transport.send(request)) as response:
        text = response.read(_MOST_ERROR_BYTES).decode("utf-8", "replace")
        if response.status == _OK:
            return
        verdict = judge_fault(read_fault(text, status=response.status), "object store")
    if verdict.meaning is not S3Meaning.EXISTS:
        raise verdict.error


class DirectFetcher:
    """Fetches one file of several parts into a file on this machine; bytes that are there are not fetched again."""

    def __init__(
        self,
        client: FleetClient,
        transport: Transport,
        digest: Digest,
        *,
        stop: DownloadStop,
        clock: Clock,
        heed: Heed,
    ) -> None:
        self._client = client
        self._transport = transport
        self._digest = digest
        self._stop = stop
        self._clock = clock
        self._heed = heed
        self._lock = threading.Lock()
        self._offered: PassResponse | None = None
        self._offered_s = 0.0
        self._over = threading.Event()

    def run(self, offered: PassResponse, path: str) -> None:
        """Fetch the parts into a file, and hash it whole. Raises `HashMismatch`; the file is removed then."""
        self._offered, self._offered_s = offered, self._clock.monotonic_s()
        parts = [(one.digest, one.size_bytes) for one in offered.passes]
        with FileLock(f"{path}.lock", "fetch a file", wait_s=_LOCK_WAIT_S, clock=self._clock), translated(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                found = self._fetch_all(descriptor, parts)
                if found != self._digest:
                    # Parts that are there are hashed now, each by itself; those that came damaged are fetched again.
                    found = self._fetch_all(descriptor, parts)
                os.truncate(descriptor, sum(one.size_bytes for one in offered.passes))
            finally:
                os.close(descriptor)
            if found != self._digest:
                os.unlink(path)
                # The coordinator checks the parts, and removes the object if they are not what it says.
                with suppress(NotFound):
                    self._client.passes_to_fetch(self._digest, is_doubted=True)
                raise HashMismatch(
                    f"object {self._digest[:12]} came with other bytes", expected=self._digest, found=found
                )

    def _fetch_all(self, descriptor: int, parts: list[tuple[str, int]]) -> str:
        """Fetch parts, the first ones first; return the digest of the file, which is hashed as its bytes come."""
        whole = sha256()
        written_bytes = os.fstat(descriptor).st_size
        progress = [_PartProgress() for _ in parts]
        # Lanes beyond the processors slow down the hashing of the file.
        lanes = ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 2)), thread_name_prefix="parts")
        self._over.clear()
        try:
            offset = 0
            for number, (digest, size_bytes) in enumerate(parts):
                part = _Part(number=number, digest=digest, offset=offset, size_bytes=size_bytes)
                fetch = lanes.submit(self._fetch, descriptor, part, progress[number], is_there=offset < written_bytes)
                fetch.add_done_callback(progress[number].end)
                offset += size_bytes
            offset = 0
            for (_, size_bytes), came in zip(parts, progress, strict=True):
                hashed_bytes = 0
                while hashed_bytes < size_bytes:
                    ready_bytes = came.wait_beyond(hashed_bytes)
                    _hash_range(descriptor, offset + hashed_bytes, ready_bytes - hashed_bytes, whole.update)
                    hashed_bytes = ready_bytes
                offset += size_bytes
        finally:
            self._over.set()
            lanes.shutdown(wait=True, cancel_futures=True)
        return whole.hexdigest()

    def _fetch(self, descriptor: int, part: _Part, progress: _PartProgress, *, is_there: bool) -> None:
        """Fetch a part. `is_there`: the file has bytes in its place, of an earlier call or a break."""
        if is_there:
            hashed = sha256()
            _hash_range(descriptor, part.offset, part.size_bytes, hashed.update)
            if hashed.hexdigest() == part.digest:
                self._heed(part.size_bytes)
                progress.add(part.size_bytes)
                return
        backoff, failures = TransferBackoff(), 0
        while progress.came_bytes < part.size_bytes:
            self._check()
            try:
                self._get(descriptor, part, progress)
                failures = 0
            except (Unavailable, HashMismatch) as error:
                failures += 1
                if failures >= _TRIES or _is_lasting(error):
                    raise
                if isinstance(error, AuthRefused):
                    self._offered_s = -_RENEWED_AFTER_S
                self._stop.sleep(backoff.failed(), self._clock)
        begin_write_back(descriptor, part.offset, part.size_bytes)

    def _get(self, descriptor: int, part: _Part, progress: _PartProgress) -> None:
        """Fetch bytes of a part; returns also if the connection broke after some."""
        by, start = self._pass(part), progress.came_bytes
        headers = {**by.headers, **({"range": f"bytes={start}-"} if start else {})}
        with closing(self._transport.send(Request(url=by.url, headers=headers, read_s=_STALL_S))) as response:
            if response.status != (206 if start else _OK):
                text = response.read(_MOST_ERROR_BYTES).decode("utf-8", "replace")
                raise judge_fault(read_fault(text, status=response.status), "object store").error
            try:
                while (at := progress.came_bytes) < part.size_bytes:
                    piece = response.read(min(_BLOCK_BYTES, part.size_bytes - at))
                    if not piece:
                        break
                    self._check()
                    write_all(descriptor, piece, part.offset + at)
                    progress.add(len(piece))
                    self._heed(len(piece))
            except NetworkFailed:
                if progress.came_bytes == start:
                    raise
        if progress.came_bytes == start:
            raise NetworkFailed("the object store sent no bytes", hint="try again")

    def _pass(self, part: _Part) -> PassView:
        with self._lock:
            if self._offered is None or self._clock.monotonic_s() - self._offered_s > _RENEWED_AFTER_S:
                self._offered = self._client.passes_to_fetch(self._digest)
                self._offered_s = self._clock.monotonic_s()
            passes = self._offered.passes
        if len(passes) <= part.number or passes[part.number].digest != part.digest:
            raise Unavailable(f"object {self._digest[:12]} has other parts now", hint="try again", is_lasting=True)
        return passes[part.number]

    def _check(self) -> None:
        self._stop.check()
        if self._over.is_set():
            raise Cancelled("another part of the file failed")


@frozen
class _Part:
    """One part, and its place in the file."""

    number: int
    digest: str
    offset: int
    size_bytes: int


class _PartProgress:
    """How much of a part is in the file, from its start. One thread writes, another reads."""

    def __init__(self) -> None:
        self.came_bytes = 0
        self._failure: BaseException | None = None
        self._moved = threading.Condition()

    def add(self, size_bytes: int) -> None:
        with self._moved:
            self.came_bytes += size_bytes
            self._moved.notify()

    def end(self, fetch: Future[None]) -> None:
        """Note the failure of a fetch."""
        if fetch.cancelled() or (failure := fetch.exception()) is None:
            return
        with self._moved:
            self._failure = failure
            self._moved.notify()

    def wait_beyond(self, size_bytes: int) -> int:
        """Wait until more bytes are there; return how many. Raises what the fetch raised."""
        with self._moved:
            while self.came_bytes <= size_bytes:
                if self._failure is not None:
                    raise self._failure
                self._moved.wait()
            return self.came_bytes


def _is_lasting(error: StokerError) -> bool:
    """Return True if a new pass and another try can't help."""
    # A pass that has expired is refused like one that never was valid; bytes may have changed on the way.
    return bool(error.data.get("is_lasting")) and not isinstance(error, AuthRefused | HashMismatch)


def _read(descriptor: int, offset: int, size_bytes: int, entry: TreeEntry) -> bytes:
    data = os.pread(descriptor, size_bytes, offset)
    while len(data) < size_bytes:
        more = os.pread(descriptor, size_bytes - len(data), offset + len(data))
        if not more:
            raise CorruptBytes(f"{entry.path} is shorter than it was")
        data += more
    return data


def _hash_range(descriptor: int, offset: int, size_bytes: int, update: Callable[[bytes], None]) -> None:
    end = offset + size_bytes
    while offset < end and (piece := os.pread(descriptor, min(_BLOCK_BYTES, end - offset), offset)):
        update(piece)
        offset += len(piece)
