"""The content of a file during its download: in memory if it is small, otherwise in a partial file, with its digest."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from contextlib import closing

from stoker.core.digests import Digest
from stoker.core.errors import BadAnswer, LocalFile, LockHeld, NetworkFailed
from stoker.core.frozen import changed, frozen
from stoker.host.durable import translated
from stoker.host.folders import AnchoredFolder
from stoker.host.http.client import follow
from stoker.host.http.exchange import Request, Transport, shown
from stoker.host.identity import mine
from stoker.transfer.download.partial import (
    ETAG,
    LAST_MODIFIED,
    OnStep,
    PartialFile,
    Sidecar,
    beside,
    is_plain,
    read_beside,
    set_strangers_aside,
    strong_etag,
)
from stoker.transfer.download.response_rules import UsableResponse, length_of
from stoker.transfer.download.resumption import ResumeAction, Resumption, decide_partial, digests_match
from stoker.transfer.download.types import DownloadRequest, DownloadTools

# The digests of a body while it arrives, computed in a thread, so that hashing does not delay the network.
#
# Pieces go through a short queue. If an earlier run left bytes, the thread first reads them back from the file while
# new ones arrive. It uses the queue once it has caught up, so the connection never waits for old bytes to be hashed.

QUEUE_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20


@frozen
class Sums:
    """The digests of some bytes; `git_sha1`, of the git blob, only if requested."""

    sha256: Digest
    git_sha1: str = ""


class SumsBuilder:
    """Computes digests of bytes added in order; that of the git blob only if its size, `git_size_bytes`, is given."""

    def __init__(self, git_size_bytes: int | None = None) -> None:
        self._sha256 = hashlib.sha256()
        self._git_sha1 = None
        if git_size_bytes is not None:
            self._git_sha1 = hashlib.sha1(b"blob %d\0" % git_size_bytes, usedforsecurity=False)

    def add(self, data: bytes | bytearray) -> None:
        self._sha256.update(data)
        if self._git_sha1 is not None:
            self._git_sha1.update(data)

    def sums(self) -> Sums:
        git_sha1 = "" if self._git_sha1 is None else self._git_sha1.hexdigest()
        return Sums(sha256=Digest(self._sha256.hexdigest()), git_sha1=git_sha1)


def sum_file(descriptor: int, size_bytes: int, *, with_git: bool) -> Sums:
    """Return the digests of an open file. Raises `OSError`."""
    summing = SumsBuilder(size_bytes if with_git else None)
    _add_from_file(summing, descriptor, 0, size_bytes)
    return summing.sums()


class BodyHash:
    """The digests of a growing file. Call `wrote` after each piece, and `close` in any case.

    A file that is restarted needs a new instance: hashed bytes can't be removed.
    """

    def __init__(self, descriptor: int, *, prefix_bytes: int = 0, git_size_bytes: int | None = None) -> None:
        self._descriptor = descriptor
        self._summing = SumsBuilder(git_size_bytes)
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._written_bytes = prefix_bytes
        self._hashed_bytes = 0
        self._is_following = prefix_bytes > 0
        """True while the file is read back; the queue is not used then."""
        self._is_ended = False
        self._failure: OSError | None = None
        # A daemon thread: an exiting process does not wait for it.
        self._thread = threading.Thread(target=self._run, name="stoker-hash", daemon=True)
        self._thread.start()

    @property
    def hashed_bytes(self) -> int:
        """Number of hashed bytes, from the start of the file."""
        return self._hashed_bytes

    @property
    def is_following(self) -> bool:
        """True if it reads back from the file: written bytes must be readable at once."""
        return self._is_following

    def wrote(self, piece: bytes) -> None:
        """Add the piece that was written next. Blocks while the queue is full. Raises `OSError`."""
        with self._changed:
            self._written_bytes += len(piece)
            if not self._is_following:
                while self._queued_bytes > QUEUE_BYTES and self._failure is None:
                    self._changed.wait()
                self._queue.append(piece)
                self._queued_bytes += len(piece)
                self._changed.notify_all()
            if self._failure is not None:
                raise self._failure

    def finish(self) -> Sums:
        """Wait until all written bytes are hashed, and return the digests. Raises `OSError`."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._summing.sums()

    def close(self) -> None:
        """Stop the thread; pending work is dropped."""
        with self._changed:
            self._is_ended = True
            self._is_following = False
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._catch_up()
            while (piece := self._next_piece()) is not None:
                self._summing.add(piece)
                self._hashed_bytes += len(piece)
        except OSError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _catch_up(self) -> None:
        while True:
            with self._changed:
                goal = self._written_bytes
                if self._hashed_bytes == goal or not self._is_following:
                    self._is_following = False
                    return
            goal = min(goal, self._hashed_bytes + _PIECE_BYTES)
            _add_from_file(self._summing, self._descriptor, self._hashed_bytes, goal)
            self._hashed_bytes = goal

    def _next_piece(self) -> bytes | None:
        with self._changed:
            while not self._queue:
                if self._is_ended:
                    return None
                self._changed.wait()
            piece = self._queue.popleft()
            self._queued_bytes -= len(piece)
            self._changed.notify_all()
            return piece


def _add_from_file(summing: SumsBuilder, descriptor: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(descriptor, min(_PIECE_BYTES, end - start), start)
        if not data:
            raise OSError(f"the file ends at byte {start}, {end} were written")
        summing.add(data)
        start += len(data)


# Checks of an existing file under the final name: is it the requested one?
#
# With a digest, its bytes are read and no network is needed. Without one, the server compares the validators stored
# beside the file. A link under the final name counts as no file: it is replaced.

_LONGEST_VALIDATOR_BYTES = 8192


@frozen
class CheckedBytes:
    """The digests and the size of a complete file."""

    sums: Sums
    size_bytes: int


@frozen
class Validators:
    """The validators of a file's version, as the server states them; empty if it states none."""

    etag: str = ""
    last_modified: str = ""

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)


def read_existing(folder: AnchoredFolder, leaf: str, wanted: DownloadRequest) -> CheckedBytes | str | None:
    """Read the file under the final name; None if there is none, a text with the reason if it is another file."""
    descriptor = folder.open_file(leaf)
    if descriptor is None:
        return None
    try:
        with translated(folder.path_of(leaf)):
            size_bytes = os.fstat(descriptor).st_size
            if wanted.size_bytes not in {None, size_bytes}:
                return f"it has {size_bytes} bytes, {wanted.size_bytes} are expected"
            sums = sum_file(descriptor, size_bytes, with_git=bool(wanted.git_sha1))
    finally:
        os.close(descriptor)
    if not digests_match(wanted, sums.sha256, sums.git_sha1):
        return f"its sha256 is {sums.sha256}" + ("" if wanted.sha256 is None else f", {wanted.sha256} is expected")
    return CheckedBytes(size_bytes=size_bytes, sums=sums)


def not_ours(path: str) -> LocalFile:
    """Return the error for an existing file that belongs to the user."""
    message = f"file exists and was not downloaded by Stoker: {path}"
    return LocalFile(message, hint="move it away", path=path, reason="not_ours")


def read_validators(folder: AnchoredFolder, leaf: str) -> Validators:
    """Read the validators stored beside a file."""
    etag, last_modified = (
        (folder.read_file(beside(leaf, suffix), _LONGEST_VALIDATOR_BYTES) or b"").decode("latin-1").strip()
        for suffix in (ETAG, LAST_MODIFIED)
    )
    return Validators(
        etag=etag if is_plain(etag) else "", last_modified=last_modified if is_plain(last_modified) else ""
    )


def write_validators(folder: AnchoredFolder, leaf: str, validators: Validators) -> None:
    """Store validators beside a file that has its final name."""
    for suffix, text in ((ETAG, validators.etag), (LAST_MODIFIED, validators.last_modified)):
        if text:
            folder.write_file(beside(leaf, suffix), f"{text}\n".encode("latin-1", errors="replace"))
    folder.sync()


def remove_validators(folder: AnchoredFolder, leaf: str) -> None:
    """Delete validators before another file gets the name: they would be taken for those of that file."""
    for suffix in (ETAG, LAST_MODIFIED):
        folder.remove(beside(leaf, suffix))


def is_newest(transport: Transport, wanted: DownloadRequest, size_bytes: int, validators: Validators) -> bool:
    """Return True if the server still has the version of these validators.

    Any other response, or a failure, returns False: the download that follows finds the cause.
    """
    headers = dict(wanted.headers)
    if validators.etag:
        headers["If-None-Match"] = validators.etag
    if validators.last_modified:
        headers["If-Modified-Since"] = validators.last_modified
    try:
        request = Request(url=wanted.url, method="HEAD", headers=headers)
        with closing(follow(transport, request).reply) as reply:
            if reply.status == 304:
                return True
            is_same = bool(strong_etag(validators.etag)) and reply.headers.get("ETag") == validators.etag
            return reply.status == 200 and is_same and length_of(reply.headers) == size_bytes
    except (NetworkFailed, BadAnswer):
        return False


# The last steps: write the bytes to disk, rename to the final name, then store the validators beside it.
#
# A crash between two steps leaves the final name unchanged, or a verified file without validators, which costs one
# request. Old validators are deleted before the name changes, because they belong to the old file.

STEPS = ("sidecar", "write", "sync", "check", "rename", "sync_dir", "validators", "done")
"""Every step passed to `on_step`, in the order of a download; `write` is called once for each piece."""


@frozen
class OpenTargetFile:
    """An open target: its folder, the final name in it, and the names of the partial file and the sidecar."""

    folder: AnchoredFolder
    leaf: str
    names: tuple[str, str]
    keeps_validators: bool

    @property
    def part_path(self) -> str:
        return self.folder.path_of(self.names[0])


def name_partial(landing: OpenTargetFile, partial: PartialFile, validators: Validators, on_step: OnStep) -> None:
    """Rename a verified partial file to its final name, durably. Raises what `Content.name` raises."""
    on_step("sync")
    partial.sync()
    on_step("check")
    if not partial.is_ours() or partial.size_bytes != partial.end_bytes:
        path = landing.part_path
        if not landing.folder.is_in_place():
            folder = landing.folder.path
            raise LocalFile(f"folder removed during the download: {folder}", hint="start again", path=folder)
        raise LockHeld(
            f"another process took over the download: {path}", hint="wait for that process, then try again", path=path
        )
    _forget_validators(landing)
    on_step("rename")
    partial.name_it(landing.leaf)
    _seal(landing, validators, on_step)


def name_small(landing: OpenTargetFile, body: bytes, validators: Validators, on_step: OnStep) -> None:
    """Write a verified body directly to its final name; an old partial file is deleted."""
    _forget_validators(landing)
    landing.folder.write_file(landing.leaf, body, on_step=on_step)
    for name in landing.names:
        landing.folder.remove(name)
    _seal(landing, validators, on_step)


def _forget_validators(landing: OpenTargetFile) -> None:
    if landing.keeps_validators:
        remove_validators(landing.folder, landing.leaf)


def _seal(landing: OpenTargetFile, validators: Validators, on_step: OnStep) -> None:
    on_step("sync_dir")
    landing.folder.sync()
    if not landing.folder.is_in_place():
        path = landing.folder.path_of(landing.leaf)
        message = f"folder moved or replaced during the download: {path}"
        raise LocalFile(message, hint="the complete file is in the folder that was moved", path=path)
    if landing.keeps_validators and validators:
        on_step("validators")
        write_validators(landing.folder, landing.leaf, validators)


SMALL_BYTES = 1 << 20
"""A body up to this size stays in memory until it is verified: no partial file, no thread. If the connection breaks, it
is fetched again."""
DIRECT_BYTES = 64 << 20
"""If more than this is missing, the page cache is bypassed."""


class Content:
    """The bytes of one version, growing. Call `close`, after `leave` or `discard` if it was not named."""

    def __init__(self, wanted: DownloadRequest, landing: OpenTargetFile, tools: DownloadTools) -> None:
        self._wanted = wanted
        self._landing = landing
        self._tools = tools
        self._partial: PartialFile | None = None
        self._hash: BodyHash | None = None
        self._small: bytearray | None = None
        self._is_ended = False
        self._connections = 0
        self.total_bytes = wanted.size_bytes
        self.validators = Validators()
        self.bytes_resumed = 0
        """Number of bytes from an earlier run."""

    @property
    def offset(self) -> int:
        """Offset of the first missing byte. Bytes in memory are lost with their connection."""
        return 0 if self._partial is None else self._partial.end_bytes

    @property
    def end_bytes(self) -> int:
        return self.offset if self._small is None else len(self._small)

    @property
    def sidecar(self) -> Sidecar | None:
        """The recorded version, if any."""
        return None if self._partial is None else self._partial.sidecar

    @property
    def hashed_bytes(self) -> int:
        return self.end_bytes if self._hash is None else self._hash.hashed_bytes

    @property
    def allocated_bytes(self) -> int:
        """Disk space that `discard` would free."""
        return 0 if self._partial is None else self._partial.allocated_bytes

    @property
    def is_whole(self) -> bool:
        has_begun = self._partial is not None or self._small is not None
        return has_begun and (self._is_ended or self.end_bytes == self.total_bytes)

    @property
    def is_pieced(self) -> bool:
        """True if several connections, or an earlier run, sent its bytes."""
        return self.bytes_resumed > 0 or self._connections > 1

    def take_up(self, *, begins_anew: bool) -> Resumption:
        """Resume from what an earlier run left, as far as it is usable; return the decision."""
        folder, names = self._landing.folder, self._landing.names
        strangers = set_strangers_aside(folder, names, self._tools.received)
        if strangers:
            return Resumption(move=ResumeAction.RESTART, why=strangers)
        sidecar, here = read_beside(folder, names[1]), folder.look(names[0])
        length = None if here is None or begins_anew else here.st_size
        found = decide_partial(self._wanted, length, sidecar, boot_id=mine().boot_id)
        if found.move in {ResumeAction.RESUME, ResumeAction.FINISH} and isinstance(sidecar, Sidecar):
            now_s = self._tools.clock.monotonic_s()
            sidecar = changed(sidecar, **_pinned(self._wanted))
            self._partial = PartialFile.resume(folder, names, sidecar, offset=found.offset, now_s=now_s)
            if self._partial is not None:
                self.bytes_resumed = found.offset
                self.total_bytes = sidecar.size_bytes if self.total_bytes is None else self.total_bytes
                self.validators = Validators(etag=sidecar.etag, last_modified=sidecar.last_modified)
                self._ready_hash()
                return found
            found = Resumption(move=ResumeAction.RESTART, why="the partial file is a link or not a regular file")
        for name in names:
            folder.remove(name)
        return found

    def receive(self, take: UsableResponse, total_bytes: int | None) -> None:
        """Prepare for the body of a response: the whole (existing bytes are discarded), or the rest."""
        if take.offset == 0:
            self.discard()
        self.total_bytes = total_bytes
        self.validators = Validators(etag=take.etag, last_modified=take.last_modified)
        self._connections += 1
        if take.offset == 0 and total_bytes is not None and total_bytes <= SMALL_BYTES:
            self._small = bytearray()
            return
        if self._partial is None:
            self._create(take)
        else:
            self._partial.describe(**_stated_facts(self._wanted, take))
        self._ready_hash()

    def add(self, piece: bytes, now_s: float) -> None:
        """Add the next bytes. Raises what `PartialFile.write` raises."""
        if self._small is not None:
            self._small += piece
        elif self._partial is not None:
            summing = self._ready_hash()
            self._tools.on_step("write")
            if not summing.is_following and self._is_much_to_come():
                self._partial.write_direct(piece, now_s)
            else:
                self._partial.write(piece, now_s)
            with translated(self._landing.part_path):
                summing.wrote(piece)

    def rest(self, now_s: float) -> None:
        """Write everything to disk before a pause of unknown length. Raises what `add` raises."""
        if self._partial is not None:
            self._partial.settle()
            self._partial.mark(now_s)

    def end(self) -> None:
        """Record that a body of unknown length ended."""
        self._is_ended = True

    def check(self) -> CheckedBytes:
        """Return the digests and the size of the complete content."""
        with_git = bool(self._wanted.git_sha1)
        if self._small is not None:
            summing = SumsBuilder(len(self._small) if with_git else None)
            summing.add(self._small)
            return CheckedBytes(sums=summing.sums(), size_bytes=len(self._small))
        self._open_partial.settle()
        with translated(self._landing.part_path):
            sums = self._ready_hash().finish()
            if with_git and not sums.git_sha1:
                sums = sum_file(self._open_partial.descriptor, self.offset, with_git=True)
        return CheckedBytes(sums=sums, size_bytes=self.offset)

    def name(self) -> None:
        """Rename the checked file to its final name, durably.

        Raises `BytesLost`, `LockHeld` if another process took it over, `LocalFile` if its folder was moved.
        """
        on_step = self._tools.on_step
        if self._small is not None:
            name_small(self._landing, bytes(self._small), self.validators, on_step)
        else:
            name_partial(self._landing, self._open_partial, self.validators, on_step)

    def believe_less(self) -> None:
        """Forget hashed bytes beyond the end of a truncated partial file."""
        self._close_hash()
        self._is_ended = False

    def discard(self) -> None:
        """Discard all bytes."""
        self._close_hash()
        if self._partial is not None:
            self._partial.discard()
            self._partial.close()
            self._partial = None
        self._small = None
        self._is_ended = False
        self._connections = self.bytes_resumed = 0
        self.total_bytes = self._wanted.size_bytes

    def leave(self) -> None:
        """Keep the bytes on disk for another run."""
        if self._partial is not None:
            self._partial.leave()

    def close(self) -> None:
        self._close_hash()
        if self._partial is not None:
            self._partial.close()

    @property
    def _open_partial(self) -> PartialFile:
        assert self._partial is not None, "there is no partial file"  # noqa: S101 - only asked where there is one
        return self._partial

    def _is_much_to_come(self) -> bool:
        return self.total_bytes is not None and self.total_bytes - self.offset > DIRECT_BYTES

    def _create(self, take: UsableResponse) -> None:
        sidecar = Sidecar(
            url=shown(self._wanted.url),
            commit=self._wanted.commit,
            size_bytes=self.total_bytes,
        )
        sidecar = changed(sidecar, **_pinned(self._wanted), **_stated_facts(self._wanted, take))
        now_s, on_step = self._tools.clock.monotonic_s(), self._tools.on_step
        self._partial = PartialFile.create(
            self._landing.folder, self._landing.names, sidecar, now_s=now_s, on_step=on_step
        )

    def _ready_hash(self) -> BodyHash:
        if self._hash is None:
            partial = self._open_partial
            # The hash of a git blob starts with its size: without the size, it is computed after the last byte.
            git_size_bytes = self.total_bytes if self._wanted.git_sha1 else None
            self._hash = BodyHash(partial.descriptor, prefix_bytes=partial.end_bytes, git_size_bytes=git_size_bytes)
        return self._hash

    def _close_hash(self) -> None:
        if self._hash is not None:
            self._hash.close()
            self._hash = None


def _stated_facts(wanted: DownloadRequest, take: UsableResponse) -> dict[str, str]:
    etag = take.etag if is_plain(take.etag) else ""
    last_modified = take.last_modified if take.is_date_exact and is_plain(take.last_modified) else ""
    return {"url": shown(wanted.url), "etag": etag, "last_modified": last_modified}


def _pinned(wanted: DownloadRequest) -> dict[str, str]:
    """Return the digests that verify the complete content; bytes of unknown versions may be added if there is one."""
    pins = {"sha256": (wanted.sha256 or "").lower(), "git_sha1": wanted.git_sha1.lower()}
    return {name: digest for name, digest in pins.items() if digest}
