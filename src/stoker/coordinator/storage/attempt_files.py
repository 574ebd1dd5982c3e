"""Mirrors of attempts' folders: what workers ship, byte for byte where it was, in the layout of a job's folder.

    attempts/7f/7f3a…/2/status.jsonl, logs/NODE.log, metrics/…, end.json

Files only grow. A piece that is sent again changes nothing; other bytes in the place of known ones are a `Conflict`; a
gap is refused with the offset where the file continues, so a worker needs no state of its own. Logs are not synced
piece by piece: the worker that sent them still has them, and continues from what a power cut left. `end.json` is the
attempt's final file: it is written whole, and everything is durable before it has its name.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from stoker.core.digests import is_digest
from stoker.core.errors import BadInput, Conflict, LocalFile, NotFound, Refused, StokerError, TooLarge
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.host.durable import NO_STEP, read_regular, remove_tree, sync_descriptor, translated, write_all, write_file
from stoker.host.folders import AnchoredFolder, name_fault, shown_name
from stoker.host.resources import folder_bytes
from stoker.protocol.mirror_pieces import MirrorPiece, piece_outcome

LONGEST_PATH = 400
MOST_LEVELS = 6
END = "end.json"
"""How an attempt ended: the last of its files to arrive; durable with all the others once it is there."""
_ALLOWED = frozenset("-_.[]=,+")


def check_path(path: str) -> str:
    """Return the path if a mirrored file may have it. Raises `BadInput` with the reason otherwise.

    A name comes from a worker, so it is untrusted: relative, short, of characters without a meaning to any system, and
    never hidden (names that begin with a dot belong to the coordinator).
    """
    fault = path_fault(path)
    if fault:
        shown = shown_name(path)
        raise BadInput(f"invalid name of a mirrored file: {shown}: {fault}", hint="nothing was written", name=shown)
    return path


def path_fault(path: str) -> str:
    """Return why a path is not allowed for a mirrored file; empty if it is allowed."""
    if len(path) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} characters"
    fault = name_fault(path)
    if fault:
        return fault
    parts = path.split("/")
    if len(parts) > MOST_LEVELS:
        return f"it is more than {MOST_LEVELS} levels deep"
    if any(part.startswith(".") for part in parts):
        return "a part begins with a dot"
    odd = next((char for char in path if not (char.isalnum() or char in _ALLOWED or char == "/")), "")
    return f"it has a character {odd!a}" if odd else ""


def attempt_place(job: str, attempt: int) -> str:
    """Return an attempt's folder below that of all attempts. Raises `BadInput` for an invalid job or attempt."""
    if not is_digest(job):
        raise BadInput(f"not the id of a job: {job[:80]!r}", hint="it is written as 64 lower-case hex digits")
    if attempt < 1:
        raise BadInput(f"invalid attempt number: {attempt}", hint="attempts are numbered from 1")
    return f"{job[:2]}/{job}/{attempt}"


_BLOCK_BYTES = 64 * 1024


def drop_zeroes(path: str) -> int:
    """Cut off the zeroes that a power cut may leave at the end of a file; return its size then.

    Some file systems extend a file before its bytes are on disk. So in a file that was last written in an earlier boot,
    zeroes at its end are dropped. If they were real, its worker has them and sends them again.
    """
    with translated(path):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size_bytes = os.fstat(descriptor).st_size
            end = _end_of_content(descriptor, size_bytes)
            if end < size_bytes:
                os.ftruncate(descriptor, end)
        finally:
            os.close(descriptor)
    return end


def _end_of_content(descriptor: int, size_bytes: int) -> int:
    end = size_bytes
    while end:
        start = max(0, end - _BLOCK_BYTES)
        content = os.pread(descriptor, end - start, start).rstrip(b"\0")
        if content:
            return start + len(content)
        end = start
    return 0


# How much one attempt may store at the coordinator, and how much may be sent at once.

LEAST_UPLOAD_BYTES = 1 << 20
UPLOAD_OPTION = "stoker serve --upload-limit"


@frozen
class CoordinatorStorageLimits:
    """Limits of what is stored. A sender of more gets an error; nothing is truncated silently."""

    attempt_files: int = 5_000
    """Mirrored files of one attempt."""
    attempt_bytes: int = 4 << 30
    """Their bytes, all together."""
    chunk_bytes: int = 8 << 20
    """In one piece of a file."""
    archive_bytes: int = 1 << 40
    """One result, one checkpoint, or one file of a tree."""
    tree_bytes: int = 1 << 40
    """Code or data of a job, all files of one tree together."""
    tree_files: int = 500_000
    free_floor_bytes: int = 2 << 30
    """Uploads that would leave less free disk space are refused: the queue's database needs some."""


def limits_for(upload_bytes: int | None) -> CoordinatorStorageLimits:
    """Return the limits of a coordinator that accepts no upload larger than this; None: the defaults.

    Raises `BadInput` if it is too small for any project's code.
    """
    usual = CoordinatorStorageLimits()
    if upload_bytes is None:
        return usual
    if upload_bytes < LEAST_UPLOAD_BYTES:
        least = format_size(LEAST_UPLOAD_BYTES)
        raise BadInput(f"a limit of {format_size(upload_bytes)} lets no job's code come", hint=f"at least {least}")
    return changed(usual, archive_bytes=upload_bytes, tree_bytes=upload_bytes)


_STRIPES = 64
_REMEMBERED = 64
"""Attempts whose sizes one stripe remembers; another one's are read again."""
_READ_BLOCK_BYTES = 1 << 20

Growth = Callable[[str, int, str], None]
"""Called with the job, attempt and path of a file that grew."""


@frozen
class StoredAttemptFile:
    """One mirrored file."""

    path: str
    size_bytes: int
    changed_s: float


class AttemptFiles:
    """The mirrors below one folder. Thread-safe; one process at a time writes."""

    def __init__(
        self,
        folder: str,
        *,
        limits: CoordinatorStorageLimits | None = None,
        booted_s: float = 0.0,
        on_step: Callable[[str], None] = NO_STEP,
    ) -> None:
        """Store mirrors below a folder. A file last written before `booted_s` may have lost its last bytes."""
        self.folder = folder
        self._booted_s = booted_s
        self._limits = limits or CoordinatorStorageLimits()
        self._on_step = on_step
        self._stripes = tuple(_Stripe() for _ in range(_STRIPES))
        self._durable_shards: set[str] = set()
        self._listeners: list[Growth] = []

    def on_growth(self, listener: Growth) -> None:
        """Register a listener, called for every file that grew, in the thread that wrote to it."""
        self._listeners.append(listener)

    def folder_of(self, job: str, attempt: int) -> str:
        """Return the path of an attempt's mirror, for readers of a job's folder; it may not exist."""
        return os.path.join(self.folder, attempt_place(job, attempt))

    def append(self, job: str, attempt: int, path: str, offset: int, data: bytes) -> int:
        """Append a piece to a file; return its size. A failure leaves no part of the piece.

        Raises `Conflict` if other bytes are there, `Refused` if bytes before these are missing, both with the right
        `offset` in their data; `TooLarge` beyond the limits, `NoSpace` if the disk is full.
        """
        with self._opened(job, attempt) as books:
            size_bytes = self._append(books, attempt, path, offset, data)
        self._tell(job, attempt, path)
        return size_bytes

    def append_all(self, job: str, attempt: int, pieces: Sequence[MirrorPiece]) -> list[int | StokerError]:
        """Append pieces to several files, in order; return the size of each file, or the error that refused the piece.

        `end.json` is refused if another piece was. Raises `NoSpace` and `LocalFile`; pieces before that stay.
        """
        outcomes: list[int | StokerError] = []
        with self._opened(job, attempt) as books:
            for one in pieces:
                if one.path == END and any(isinstance(outcome, StokerError) for outcome in outcomes):
                    outcomes.append(Refused(f"{END} comes after all other files", offset=0))
                    continue
                append = partial(self._append, books, attempt, one.path, one.offset, one.data)
                outcomes.append(piece_outcome(append))
        for one, outcome in zip(pieces, outcomes, strict=True):
            if not isinstance(outcome, StokerError):
                self._tell(job, attempt, one.path)
        return outcomes

    def _append(self, books: _Books, attempt: int, path: str, offset: int, data: bytes | memoryview) -> int:
        self._check_piece(path, offset, data)
        size_bytes = books.sizes.get(path, 0)
        if offset > size_bytes:
            raise Refused(
                f"{path} of attempt {attempt} continues at byte {size_bytes}, not at {offset}",
                hint="send from there",
                offset=size_bytes,
            )
        self._check_room(books, path, max(size_bytes, offset + len(data)))
        if path == END and path not in books.sizes:
            return self._write_end(books, bytes(data))
        return self._add(books, path, offset, data)

    def size(self, job: str, attempt: int, path: str) -> int | None:
        """Return the size of a file; None if there is no such file."""
        full = os.path.join(self.folder_of(job, attempt), check_path(path))
        try:
            return os.lstat(full).st_size
        except OSError:
            return None

    def read(self, job: str, attempt: int, path: str, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of a file from an offset; empty beyond its end. Raises `NotFound`."""
        check_path(path)
        if offset < 0 or limit < 0:
            raise BadInput(f"invalid range: offset {offset}, {limit} bytes")
        folder, name = os.path.split(f"{attempt_place(job, attempt)}/{path}")
        descriptor = None
        try:
            with AnchoredFolder.open(self.folder, folder, makes=False) as below:
                descriptor = below.open_file(name)
        except LocalFile:
            pass
        if descriptor is None:
            raise NotFound(f"attempt {attempt} of job {job[:12]} has no file {path}", path=path)
        with translated(path):
            try:
                return os.pread(descriptor, limit, offset)
            finally:
                os.close(descriptor)

    def files(self, job: str, attempt: int) -> tuple[StoredAttemptFile, ...]:
        """Return the mirrored files of an attempt, sorted by path."""
        return tuple(_files(self.folder_of(job, attempt)))

    def attempts(self, job: str) -> tuple[int, ...]:
        """Return the attempts of a job that have a mirror."""
        names = _names(os.path.dirname(self.folder_of(job, 1)))
        return tuple(sorted(int(name) for name in names if name.isdecimal() and name[0] != "0"))

    def jobs(self) -> Iterator[str]:
        """Return the jobs that have a mirror."""
        for shard in _names(self.folder):
            for name in _names(os.path.join(self.folder, shard)):
                if is_digest(name):
                    yield name

    def remove(self, job: str, attempt: int) -> int:
        """Delete an attempt's mirror; return the bytes freed."""
        folder = self.folder_of(job, attempt)
        stripe = self._stripe(job, attempt)
        with stripe.lock:
            stripe.books.pop((job, attempt), None)
            freed_bytes = folder_bytes(folder)
            if not remove_tree(folder):
                return 0
        # Another attempt of the job may be there, or be created now.
        with suppress(OSError):
            os.rmdir(os.path.dirname(folder))
        return freed_bytes

    def _check_piece(self, path: str, offset: int, data: bytes | memoryview) -> None:
        check_path(path)
        if offset < 0:
            raise BadInput(f"invalid offset {offset} of {path}")
        most = self._limits.chunk_bytes
        if len(data) > most:
            raise TooLarge(f"a piece of {format_size(len(data))}: {format_size(most)} are the most", most_bytes=most)

    def _check_room(self, books: _Books, path: str, size_bytes: int) -> None:
        limits = self._limits
        if path not in books.sizes and len(books.sizes) >= limits.attempt_files:
            raise TooLarge(
                f"this attempt has {len(books.sizes)} files: no more are mirrored",
                hint="they are all on the worker; print less, or raise the limit of `stoker serve`",
                most_files=limits.attempt_files,
            )
        if books.total_bytes - books.sizes.get(path, 0) + size_bytes > limits.attempt_bytes:
            most = format_size(limits.attempt_bytes)
            raise TooLarge(
                f"{path} would take this attempt's files beyond {most}: the rest of it is not mirrored",
                hint="it is whole on the worker; print less, or raise the limit of `stoker serve`",
                most_bytes=limits.attempt_bytes,
            )

    def _add(self, books: _Books, path: str, offset: int, data: bytes | memoryview) -> int:
        folder, name = os.path.split(path)
        with books.reach(folder) as below, translated(below.path_of(name)):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=below.descriptor)
            try:
                size_bytes = os.fstat(descriptor).st_size
                known = max(0, min(size_bytes - offset, len(data)))
                if not _has(descriptor, offset, memoryview(data)[:known]):
                    raise Conflict(
                        f"{path} has other bytes from {offset} on than the piece that was sent",
                        hint="it was written over on the worker; the first bytes stay",
                        offset=size_bytes,
                    )
                if known < len(data):
                    self._on_step("append")
                    _write_or_undo(descriptor, memoryview(data)[known:], size_bytes)
                    size_bytes += len(data) - known
            finally:
                os.close(descriptor)
        books.note(path, size_bytes)
        return size_bytes

    def _write_end(self, books: _Books, data: bytes) -> int:
        self._on_step("sync_files")
        books.sync_files()
        with books.reach("") as top:
            top.write_file(END, data, 0o600, on_step=self._on_step)
            self._on_step("sync_folders")
            books.sync_folders(top, self._durable_shards)
        books.note(END, len(data))
        return len(data)

    def _opened(self, job: str, attempt: int) -> _Opened:
        place = attempt_place(job, attempt)
        return _Opened(self._stripe(job, attempt), (job, attempt), lambda: _Books(self.folder, place, self._booted_s))

    def _stripe(self, job: str, attempt: int) -> _Stripe:
        return self._stripes[hash((job, attempt)) % _STRIPES]

    def _tell(self, job: str, attempt: int, path: str) -> None:
        for listener in self._listeners:
            listener(job, attempt, path)


class _Stripe:
    """One lock for some of the attempts, and what is remembered of the last of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.books: OrderedDict[tuple[str, int], _Books] = OrderedDict()


class _Opened:
    """One attempt, held alone."""

    def __init__(self, stripe: _Stripe, key: tuple[str, int], read: Callable[[], _Books]) -> None:
        self._stripe = stripe
        self._key = key
        self._read = read

    def __enter__(self) -> _Books:
        stripe = self._stripe
        stripe.lock.acquire()
        try:
            books = stripe.books.get(self._key)
            if books is None:
                books = stripe.books[self._key] = self._read()
                if len(stripe.books) > _REMEMBERED:
                    stripe.books.popitem(last=False)
            stripe.books.move_to_end(self._key)
        except BaseException:
            stripe.lock.release()
            raise
        return books

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is not None and not issubclass(kind, Refused | BadInput):
            # The disk failed during a write: the known sizes may be wrong.
            self._stripe.books.pop(self._key, None)
        self._stripe.lock.release()


class _Books:
    """The known state of one attempt's mirror: the sizes of its files, and its folders."""

    def __init__(self, root: str, place: str, booted_s: float) -> None:
        self._root = root
        self._place = place
        self._made: set[str] = set()
        top = os.path.join(root, place)
        found = list(_files(top))
        self.sizes = {file.path: file.size_bytes for file in found}
        if END not in self.sizes:
            for file in found:
                if file.changed_s < booted_s:
                    self.sizes[file.path] = drop_zeroes(os.path.join(top, file.path))
        self.total_bytes = sum(self.sizes.values())

    def note(self, path: str, size_bytes: int) -> None:
        self.total_bytes += size_bytes - self.sizes.get(path, 0)
        self.sizes[path] = size_bytes

    def reach(self, folder: str) -> AnchoredFolder:
        """Open a folder of the mirror; create it if it is missing."""
        below = f"{self._place}/{folder}" if folder else self._place
        if below not in self._made:
            full = os.path.join(self._root, below)
            with translated(full):
                # Not durable one by one: an attempt that ended makes all of its folders so. Twice, because a job's
                # folder goes when the last of its attempts is forgotten.
                with suppress(FileNotFoundError):
                    os.makedirs(full, mode=0o700, exist_ok=True)
                os.makedirs(full, mode=0o700, exist_ok=True)
            self._made.add(below)
        return AnchoredFolder.open(self._root, below, makes=False)

    def sync_files(self) -> None:
        """Make every file, and every name below the top, durable."""
        folders = {os.path.dirname(path) for path in self.sizes}
        for path in self.sizes:
            folder, name = os.path.split(path)
            with self.reach(folder) as below:
                descriptor = below.open_file(name)
                if descriptor is not None:
                    with translated(below.path_of(name)):
                        try:
                            sync_descriptor(descriptor)
                        finally:
                            os.close(descriptor)
        for above in sorted({above for folder in folders for above in _above(folder)}, reverse=True):
            with self.reach(above) as below:
                below.sync()

    def sync_folders(self, top: AnchoredFolder, durable_shards: set[str]) -> None:
        """Make the attempt's own name, and those of the folders above it, durable."""
        top.sync()
        shard, job, _ = self._place.split("/")
        # All jobs of a shard have its name in common.
        others = [] if shard in durable_shards else [""]
        for folder in (f"{shard}/{job}", shard, *others):
            with AnchoredFolder.open(self._root, folder, makes=False) as above:
                above.sync()
        durable_shards.add(shard)


def _above(folder: str) -> list[str]:
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _has(descriptor: int, offset: int, data: memoryview) -> bool:
    """Return True if a file has these bytes there."""
    at = 0
    while at < len(data):
        block = os.pread(descriptor, min(_READ_BLOCK_BYTES, len(data) - at), offset + at)
        if not block or block != data[at : at + len(block)]:
            return False
        at += len(block)
    return True


def _write_or_undo(descriptor: int, data: memoryview, size_bytes: int) -> None:
    try:
        write_all(descriptor, data, size_bytes)
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise


def _files(top: str, below: str = "") -> Iterator[StoredAttemptFile]:
    """Return the files of a mirror, sorted by path; skip anything else."""
    try:
        with os.scandir(os.path.join(top, below)) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        path = f"{below}/{entry.name}" if below else entry.name
        if path_fault(path):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(top, path)
        elif entry.is_file(follow_symlinks=False):
            info = entry.stat(follow_symlinks=False)
            yield StoredAttemptFile(path=path, size_bytes=info.st_size, changed_s=info.st_mtime)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


_NAME = "generation"
_LARGEST_BYTES = 100


def forget_lost_past(
    files: AttemptFiles, folder: str, generation: int, known_attempts: Callable[[str], int]
) -> tuple[tuple[str, int], ...]:
    """Delete mirrors of attempts that the queue does not know, once after its generation rose; return the deleted ones.

    `known_attempts` returns how many attempts a job has had, 0 for a job that the queue does not know.

    Bytes of the old attempt must never precede bytes of the new one, so they are deleted before a number is assigned
    again.
    """
    path = os.path.join(folder, _NAME)
    before = _read(path)
    if before == generation:
        return ()
    lost: list[tuple[str, int]] = []
    if before is not None:
        for job in tuple(files.jobs()):
            known = known_attempts(job)
            for attempt in files.attempts(job):
                if attempt > known:
                    files.remove(job, attempt)
                    lost.append((job, attempt))
    write_file(path, f"{generation}\n".encode(), mode=0o600)
    return tuple(lost)


def _read(path: str) -> int | None:
    try:
        return int(read_regular(path, _LARGEST_BYTES))
    except (OSError, ValueError):
        return None
