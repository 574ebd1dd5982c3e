"""Locks between processes: a file of their own, an advisory lock on it, the owner written inside.

Never the file that is being protected: that one is replaced by rename, and two processes could then each hold a lock
on a different inode. For the same reason only the holder may delete the lock file (`removes_file`), and a new holder
checks that its file still has the name: otherwise it was deleted meanwhile, and the next file of that name is tried.
What other programs lock, too, is never deleted: they may not check. The operating system releases the lock when its
owner dies, however it dies; a forked child never holds, keeps or releases its parent's lock.
The text inside only serves messages: the operating system alone decides whether the lock is held. A link, a pipe or a
device where the lock file should be is refused, never followed or waited for; so is a file with other content: it
belongs to another program, and must not be emptied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from stoker.core import jsontext
from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import LocalFile, LockHeld, NoSpace, StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import loads
from stoker.core.text import format_duration, one_line
from stoker.host.durable import StrPath, read_regular, translated
from stoker.host.folders import names_in
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine

DEFAULT_WAIT_S = 10.0
_PAUSES_S = (0.005, 0.1)
_FIRST_WORDS = b'{"identity":'
_LONGEST_BYTES = 65536
_LONGEST_PURPOSE = 500
_RENAMED = -1
_PLAINLY = os.O_NOFOLLOW | os.O_NONBLOCK


@frozen
class LockOwner:
    """Holder, purpose and time of a lock."""

    identity: ProcessIdentity
    thread: int
    purpose: str
    since: datetime


class FileLock:
    """One try at, and then hold on, a lock file. Not reentrant: taking it twice is refused at once.

    `with FileLock(path, "prune the store"): …`, or `acquire` and `release`; forgetting the object does not release it.
    Threads that compete use a `FileLock` each. With `dir_fd` its file is the last part of `path` in that open folder.
    A new file gets `mode`, limited by the umask. `pauses_s` are the first and the longest pause while it waits.
    `is_ours`: a file of that name is a lock, whatever its content is: for folders where other users may write.
    `removes_file`: release deletes the file; for a lock in a folder that a person looks into.
    """

    def __init__(  # noqa: PLR0913 - a file, and how it is waited for
        self,
        path: StrPath,
        purpose: str,
        *,
        wait_s: float = DEFAULT_WAIT_S,
        clock: Clock | None = None,
        dir_fd: int | None = None,
        mode: int = 0o644,
        pauses_s: tuple[float, float] = _PAUSES_S,
        is_ours: bool = False,
        removes_file: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self.purpose = purpose
        self._mode = mode
        self._pauses_s = pauses_s
        self._is_ours = is_ours
        self._removes_file = removes_file
        self._wait_s = wait_s
        self._clock: Clock = clock or SystemClock()
        self._name = self.path if dir_fd is None else os.path.basename(self.path)
        self._dir_fd = dir_fd
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """True if we hold it through this object."""
        return self._fd is not None

    def acquire(self, wait_s: float | None = None, clock: Clock | None = None) -> None:
        """Take the lock, waiting at most `wait_s`. Raises `LockHeld`, which names the owner."""
        clock = clock or self._clock
        wait_s = self._wait_s if wait_s is None else wait_s
        if self._fd is not None:
            raise _held(self.path, None, "this process holds it already")
        deadline_s = clock.monotonic_s() + wait_s
        pause_s, longest_pause_s = self._pauses_s
        is_first = True
        while (fd := self._try(clock)) is None:
            left_s = deadline_s - clock.monotonic_s()
            if is_first or left_s <= 0:
                self._see_owner(clock, is_over=left_s <= 0)
            is_first = False
            clock.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, longest_pause_s)
        self._fd = fd
        _held_here.add(self)

    def release(self) -> None:
        """Release the lock. Does nothing when it is not held, as in a child forked meanwhile."""
        fd, self._fd = self._fd, None
        if fd is not None:
            _held_here.discard(self)
            # Unsigned first: the next process that finds it held must not read our name there. A disk error must not
            # keep the lock held, nor spoil what was done under it.
            with suppress(OSError):
                os.ftruncate(fd, 0)
            if self._removes_file:
                # While it is held, so that no other process can hold the file that loses its name here.
                with suppress(OSError):
                    if _is_still_named(fd, self._name, self._dir_fd):
                        os.unlink(self._name, dir_fd=self._dir_fd)
            # Unlocked explicitly, because closing leaves the lock to any other process that shares the open file.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _try(self, clock: Clock) -> int | None:
        while True:
            fd = self._open_and_lock(clock)
            if fd != _RENAMED:
                return fd

    def _open_and_lock(self, clock: Clock) -> int | None:
        """Return the descriptor of the lock; `None` if it is held; `_RENAMED` if its file lost its name meanwhile."""
        with translated(self.path):
            fd = self._open()
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "this is not a regular file", self.path)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still_named(fd, self._name, self._dir_fd):
                    if not self._is_ours and not _is_lock_file(fd):
                        message = f"in the way, and not a lock of Stoker's: {self.path}"
                        raise LocalFile(message, hint="move it away", path=self.path)
                    self._sign(fd, clock)
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            return _RENAMED

    def _see_owner(self, clock: Clock, *, is_over: bool) -> None:
        """Raise `LockHeld` if the timeout is over, or if we wait for ourselves."""
        owner = read_owner(self._name, dir_fd=self._dir_fd)
        if owner and owner.identity == mine() and owner.thread == threading.get_ident():
            raise _held(self.path, owner, "this thread holds it already")
        if is_over:
            raise _held(self.path, owner, _describe(owner, clock))

    def _open(self) -> int:
        flags = os.O_RDWR | _PLAINLY
        try:
            return os.open(self._name, flags, dir_fd=self._dir_fd)
        except FileNotFoundError:
            # Not at once: in a sticky folder Linux may refuse to "create" a file that another user has made.
            return os.open(self._name, flags | os.O_CREAT, self._mode, dir_fd=self._dir_fd)

    def _sign(self, fd: int, clock: Clock) -> None:
        owner = {
            "identity": mine().to_dict(),
            "thread": threading.get_ident(),
            "purpose": self.purpose,
            "since": clock.now().isoformat(timespec="seconds"),
        }
        line = jsontext.dumps(owner).encode() + b"\n"
        # On a full disk a lock without a name is better than none: freeing space takes one, too.
        with suppress(NoSpace), translated(self.path):
            os.pwrite(fd, line, 0)
            os.ftruncate(fd, len(line))


def is_locked(path: StrPath) -> bool:
    """Return True if a process holds the lock now, without taking it. False if there is no lock file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _PLAINLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # A file system without locks: no process can hold one.
        return False
    finally:
        os.close(fd)
    return False


def read_owner(path: StrPath, *, dir_fd: int | None = None) -> LockOwner | None:
    """Return the last holder of the lock, whether it is still held or not. `None` if it is not signed."""
    try:
        with open(os.open(path, os.O_RDONLY | _PLAINLY, dir_fd=dir_fd), "rb") as file:
            data = jsontext.loads(file.readline(_LONGEST_BYTES))
        return LockOwner(
            identity=ProcessIdentity.from_dict(data["identity"]),
            thread=int(data["thread"]),
            purpose=one_line(str(data["purpose"]), _LONGEST_PURPOSE),
            since=datetime.fromisoformat(data["since"]).astimezone(),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _is_still_named(fd: int, path: str, dir_fd: int | None) -> bool:
    """Return True if the file that we locked is the one that others will find."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _is_lock_file(fd: int) -> bool:
    """True if a file is empty or signed; a signature may be cut short, or zeroes, after a full disk or a power cut."""
    head = os.pread(fd, _LONGEST_BYTES + 1, 0)
    is_signed = head.startswith(_FIRST_WORDS) or _FIRST_WORDS.startswith(head)
    return len(head) <= _LONGEST_BYTES and (is_signed or not head.strip(b"\0"))


def _describe(owner: LockOwner | None, clock: Clock) -> str:
    if owner is None:
        return "held by a process that did not sign it"
    held_s = max(0.0, (clock.now() - owner.since).total_seconds())
    where = "" if owner.identity.host == mine().host else f" on {owner.identity.host}"
    return f"held by process {owner.identity.pid}{where} ({owner.purpose}) for {format_duration(held_s)}"


def _held(path: str, owner: LockOwner | None, why: str) -> LockHeld:
    data: dict[str, object] = {"path": path}
    if owner is not None:
        data |= {"owner": owner.identity.to_dict(), "purpose": owner.purpose, "since": owner.since.isoformat()}
    return LockHeld(f"locked: {path}: {why}", hint="wait until it is done, or stop that process", **data)


# Two processes that share an open file share its lock, so a child closes what fork gave it: else a killed owner's lock
# would live on in its children.
_held_here: set[FileLock] = set()


def _forget_in_child() -> None:
    for lock in list(_held_here):
        fd, lock._fd = lock._fd, None  # noqa: SLF001 - the class's own other half
        if fd is not None:
            os.close(fd)
    _held_here.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class BriefLocks:
    """Locks by path, held by the kernel for microseconds around a read-decide-write. One thread at a time.

    Their files are kept open once used. For anything held longer, `FileLock` names its owner. On a file system whose
    locks do nothing (some network mounts) this excludes no process; callers must only lose time by that, never
    correctness.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    @contextlib.contextmanager
    def hold(self, path: str) -> Iterator[None]:
        """Hold the lock at `path` (made if missing, never removed) for the length of a with-block."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            with translated(path):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._descriptors[path] = descriptor
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files of all locks."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


# Marks that processes leave beside what they use: it stays while one of them may live.

_LARGEST_BYTES = 1 << 20


def living_marks(folder: str, owner: Callable[[Any], Any] = lambda content: content) -> list[Any]:
    """Return the contents of the marks in a folder whose processes may still run; the other marks are removed.

    `owner` returns the process of a mark's content.
    """
    living: list[Any] = []
    # A hidden one is being written.
    for name in (name for name in names_in(folder) if not name.startswith(".")):
        path = os.path.join(folder, name)
        try:
            content = loads(read_regular(path, _LARGEST_BYTES))
            is_gone = is_alive(ProcessIdentity.from_dict(owner(content))) is Liveness.GONE
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StokerError):
            is_gone, content = True, None
        if is_gone:
            with suppress(OSError):
                os.unlink(path)
        else:
            living.append(content)
    return living
