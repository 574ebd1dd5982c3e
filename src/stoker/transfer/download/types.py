"""The types of a download: its request, its target file, its outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.events import Event
from stoker.core.frozen import fresh, frozen
from stoker.host.durable import NO_STEP
from stoker.host.http.exchange import Transport
from stoker.host.resources import has_space
from stoker.transfer.download.partial import PART, beside


@frozen
class DownloadRequest:
    """One file to download: its URL, and what is known of its bytes."""

    url: str
    """Pinned to a commit if the server has commits."""
    label: str = ""
    """Its name in messages: `org/repo: model.gguf`."""
    commit: str = ""
    size_bytes: int | None = None
    sha256: Digest | None = None
    git_sha1: str = ""
    """Digest of the git blob (header and content), if the server names a small file by it."""
    headers: Mapping[str, str] = fresh(factory=dict)
    """Including credentials: sent only to the origin of the URL."""


@frozen
class TargetFile:
    """The target of a file: a name below a folder, which may not exist yet. Nothing is written outside the folder."""

    folder: str
    name: str
    """Relative, `/`-separated, safe by the rules of `host.folders`."""
    keeps_validators: bool = False
    """True to write `.etag` and `.lastmod` beside it, for a cheap check for a newer version."""
    lock_path: str = ""
    """The path of its lock if that is not beside it: other programs may use the same one."""

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)


class Status(StrEnum):
    """How a requested file was provided."""

    DOWNLOADED = "downloaded"
    CACHED = "cached"
    """It existed, with the requested bytes."""
    LINKED = "linked"
    """Its bytes were on this machine under another name."""


@frozen
class FetchedFile:
    """A requested file that exists now, durable and verified."""

    path: str
    status: Status
    size_bytes: int
    sha256: Digest
    bytes_from_network: int = 0
    bytes_resumed: int = 0
    seconds: float = 0.0
    url: str = ""
    """Without its query: signatures are secrets."""
    commit: str = ""
    etag: str = ""
    last_modified: str = ""


# The outcome of one of many requested files.


@frozen
class DownloadOutcome:
    """One requested file: the fetched file, or the error."""

    label: str
    """Its name in messages: `org/repo: model.gguf`."""
    fetched: FetchedFile | None = None
    """Its path is the one shown to the user: in the snapshot, or in the target folder."""
    error: StokerError | None = None


# The tools of a download: all access to the outside.


def _forget(came: Sequence[tuple[DownloadRequest, FetchedFile]], /) -> None:
    """Write no receipts."""


def _ours(_path: str, /) -> bool:
    """Return True: no other program puts files there."""
    return True


ALL_OURS: Callable[[str], bool] = _ours
NO_RECEIPTS: Callable[[Sequence[tuple[DownloadRequest, FetchedFile]]], None] = _forget


@frozen
class DownloadTools:
    """Access to the outside for downloads. Shared by many downloads: every part is thread-safe."""

    transport: Transport
    clock: Clock
    free_bytes: Callable[[str], int]
    """Free space in bytes at a path."""
    jitter: Callable[[], float]
    """A random number from 0 to below 1."""
    say: Callable[[Event], None] = lambda _event: None
    keep: Callable[[Sequence[tuple[DownloadRequest, FetchedFile]]], None] = NO_RECEIPTS
    """Called once files have their names, before their `done` events: writes receipts."""
    owns: Callable[[str], bool] = ALL_OURS
    """Returns True if we put a file at a path before: any other one belongs to the user, and is replaced only on
    request."""
    received: Callable[[str], Digest | None] = lambda _path: None
    """Returns the digest of what we put at a path before; None: unknown, so a file there is not trusted."""
    on_step: Callable[[str], None] = NO_STEP
    """Called with a step's name just before the step (`content.STEPS`), so that tests can crash at each of them."""


# Timeouts of a download. The timeout of a single wait for a server is the transport's (`HttpSettings`).


@frozen
class DownloadTimeouts:
    """When to give up, and when to replace a connection that is too slow."""

    attempts: int | None = None
    """Consecutive attempts without a new byte, the first included. None: only `no_progress_s` limits an outage."""
    unusable_attempts: int = 3
    """Without `attempts`: consecutive failures that are not outages, such as unusable responses."""
    no_progress_s: float = 1800.0
    """Stall timeout: no byte received, over all attempts and pauses."""
    slow_bytes_per_s: int = 1024
    slow_s: float = 60.0
    """Reconnect after so many seconds below the minimum rate."""
    lock_wait_s: float = 10.0
    longest_pause_s: float = 30.0
    longest_retry_after_s: float = 3600.0


# Stop requests, from signal handlers to downloads.
#
# `ask` may be called from a signal handler: it takes no lock and does not block. A blocked read ends because its
# connection is closed; a pause is ended by a flag. The first error passed is the one that is raised.

_NAP_S = 0.1


class DownloadStop:
    """A stop request: stop, keep the received bytes, raise the error. May be shared by many downloads."""

    def __init__(self) -> None:
        self._error: StokerError | None = None
        self._cuts: dict[int, Callable[[], None]] = {}

    def ask(self, error: StokerError) -> None:
        """Request the stop: close open connections."""
        if self._error is None:
            self._error = error
        for cut in list(self._cuts.values()):
            with suppress(Exception):
                cut()

    def check(self) -> None:
        """Raise the error of a stop request, if there is one."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def cutting(self, cut: Callable[[], None]) -> Iterator[None]:
        """Call `cut` if a stop is requested during this block; the block does not start if one was requested before."""
        key = id(cut)
        self._cuts[key] = cut
        try:
            self.check()
            yield
        finally:
            self._cuts.pop(key, None)

    def sleep(self, seconds: float, clock: Clock) -> None:
        """Sleep in short steps, so that a stop request ends it soon."""
        deadline_s = clock.monotonic_s() + seconds
        self.check()
        while (left_s := deadline_s - clock.monotonic_s()) > 0:
            clock.sleep(min(_NAP_S, left_s))
            self.check()


# Previews: for each file what exists, what would be downloaded, and whether it fits on the disk.
#
# The downloading code makes the preview, by the same decisions. It uses names and sizes: bytes are read, and damage is
# found, when a file is downloaded. A preview changes nothing on the disk.


@frozen
class PlannedDownload:
    """One file that would be fetched."""

    label: str
    path: str
    """Its path, as shown to the user."""
    size_bytes: int | None = None
    status: Status
    """How it would be provided."""
    partial_bytes: int = 0
    """Bytes of an earlier attempt, which would be resumed."""
    is_missing: bool = False
    """True if it is not on this machine, and `offline` is set."""

    @property
    def is_there(self) -> bool:
        """True if its bytes are on this machine."""
        return self.status is not Status.DOWNLOADED

    @property
    def to_come_bytes(self) -> int | None:
        """How many bytes a server would send."""
        if self.is_there or self.is_missing:
            return 0
        return None if self.size_bytes is None else max(0, self.size_bytes - self.partial_bytes)


@frozen
class DownloadPreview:
    """All files that would be downloaded at once."""

    files: Sequence[PlannedDownload]
    folder: str
    """The path of the files, as shown to the user."""
    needed_bytes: int | None
    """Bytes that would be written, copies of existing bytes included."""
    free_bytes: int
    """Free bytes there."""

    @property
    def size_bytes(self) -> int | None:
        return known_sum(one.size_bytes for one in self.files)

    @property
    def to_come_bytes(self) -> int | None:
        return known_sum(one.to_come_bytes for one in self.files)

    @property
    def has_space(self) -> bool | None:
        return None if self.needed_bytes is None else has_space(self.needed_bytes, self.free_bytes)

    @property
    def missing(self) -> int:
        """How many files can't be downloaded."""
        return sum(one.is_missing for one in self.files)


def known_sum(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of sizes; None if one of them is unknown."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def partial_bytes(landing: TargetFile) -> int:
    """Return how many bytes of a file an earlier attempt left."""
    folder, leaf = os.path.split(landing.path)
    try:
        return os.lstat(os.path.join(folder, beside(leaf, PART))).st_size
    except OSError:
        return 0


def is_plain_file(path: str) -> bool:
    """Return True if a path is a regular file, and not a link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def seems_there(path: str, size_bytes: int | None) -> bool:
    """Return True if a path is a file of this size; of any size if none is known."""
    try:
        return os.path.isfile(path) and size_bytes in {None, os.path.getsize(path)}
    except OSError:
        return False
