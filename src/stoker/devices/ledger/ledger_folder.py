"""The folder of the ledger: sticky, shared by all users of the machine, and its content is untrusted.

    lock          one brief advisory lock around every decision; made once, never deleted
    leases/       a file for each reservation, of its owner's user
    line/         a file for each place in line

Each record is a file of its own, written beside its name and then named in one step: it is whole or absent at any
crash. The folders are sticky, so only root, the folder's owner and a record's own user can change or remove it. Nothing
is meaningful after a reboot, so nothing is synced. A link, a pipe or another program's folder in its place is refused,
and everything else that can't be used is an error: no memory is promised without the ledger.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from stoker.core import jsontext
from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, NoPermission, Unavailable
from stoker.core.frozen import frozen
from stoker.devices.ledger.reservations import LONGEST_BYTES, QueueTicket, Reservation
from stoker.host.durable import NO_STEP, remove_tree, temp_name, translate, write_all
from stoker.host.locks import FileLock
from stoker.host.resources import NETWORK_FILE_SYSTEMS, file_system_of

# The bytes of one record and the name of its file.
#
# A record is a line with a format number and a check of what follows, then JSON. The name contains its process: should
# the bytes be damaged, it is still known which process to check. That of a queued request also contains its number, so
# that the first need not read the others.

LAST_NUMBER = 10**18 - 1
"""The highest number in a name; later requests share it."""
_MARK = b"stoker-ledger 1 "
_NAME = re.compile(r"(?:([0-9]{1,18})\.)?([1-9][0-9]{0,9})-([0-9]{1,20})-([0-9a-f]{16})")


@frozen
class Name:
    """The owner of a record."""

    pid: int
    start_ticks: int
    id: str
    number: int | None = None
    """Number in the queue; `None` for a reservation."""

    def __str__(self) -> str:
        number = "" if self.number is None else f"{self.number}."
        return f"{number}{self.pid}-{self.start_ticks}-{self.id}"


def name_of(record: Reservation | QueueTicket) -> Name:
    """Return the name of a record."""
    number = record.number if isinstance(record, QueueTicket) else None
    return Name(pid=record.owner.pid, start_ticks=record.owner.start_ticks, id=record.id, number=number)


def read_name(text: str) -> Name | None:
    """Read a name; `None` if it is not one of ours."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    number = None if match[1] is None else int(match[1])
    return Name(pid=int(match[2]), start_ticks=int(match[3]), id=match[4], number=number)


def pack(body: dict[str, object]) -> bytes:
    """Return the bytes of a record."""
    text = jsontext.dumps(body).encode()
    return b"%s%08x\n%s" % (_MARK, crc32(text), text)


def unpack(data: bytes) -> object:
    """Read the bytes of a record. Raises `ValueError` on anything that `pack` did not write."""
    head, _, text = data.partition(b"\n")
    if not head.startswith(_MARK) or head != b"%s%08x" % (_MARK, crc32(text)):
        message = "damaged"
        raise ValueError(message)
    return jsontext.loads(text)


LEASES, LINE = "leases", "line"
_LOCK = "lock"
_LOCK_WAIT_S = 10.0
_PAUSES_S = (0.0002, 0.004)
_FOR_ALL = 0o1777
_MOST_FILES = 4096
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_RECORD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMP_PREFIX = ".stoker-tmp-"
_HINT = "all users that share these devices must be able to write there; STOKER_LEDGER names another folder"


@frozen
class LedgerFile:
    """One file among the records."""

    name: Name
    user: int
    data: bytes | None
    """`None`: it can't be read."""
    modified_s: float


class LedgerFolder:
    """The folder of the records. Opened for every use, so that nothing is kept across forks or replaced folders."""

    def __init__(self, path: str, clock: Clock, on_step: Callable[[str], None] = NO_STEP) -> None:
        self.path = path
        self._clock = clock
        self._on_step = on_step
        self._is_local = False

    @contextmanager
    def opened(self) -> Iterator[OpenFolder]:
        """Open it, made and checked. Raises `NoPermission`, `LocalFile` or another `StokerError`."""
        with explained(self.path):
            self._check_file_system()
            root = self._open_root()
            fds = {"": root}
            try:
                self._establish(root)
                for name in (LEASES, LINE):
                    fds[name] = self._open_shared(name, root)
                yield OpenFolder(self.path, fds, self._on_step)
            finally:
                for fd in fds.values():
                    os.close(fd)

    def lock(self, folder: OpenFolder, purpose: str) -> FileLock:
        """Return the lock around a decision, not yet taken."""
        return FileLock(
            f"{self.path}/{_LOCK}",
            purpose,
            wait_s=_LOCK_WAIT_S,
            clock=self._clock,
            dir_fd=folder.root,
            mode=0o666,
            pauses_s=_PAUSES_S,
            is_ours=True,
        )

    def _check_file_system(self) -> None:
        if not self._is_local:
            kind = file_system_of(self.path).type
            if kind in NETWORK_FILE_SYSTEMS:
                message = f"the ledger's folder is on a network ({kind}): {self.path}"
                raise LocalFile(message, hint="STOKER_LEDGER names a folder on a disk of this machine", path=self.path)
            self._is_local = True

    def _open_root(self) -> int:
        try:
            return os.open(self.path, _OPEN_FOLDER)
        except FileNotFoundError:
            self._make()
            return os.open(self.path, _OPEN_FOLDER)

    def _make(self) -> None:
        """Make it elsewhere and then rename it: another user who comes at the same moment finds it complete."""
        parent = os.path.dirname(self.path) or "."
        os.makedirs(parent, exist_ok=True)
        made = temp_name(parent)
        os.mkdir(made, 0o700)
        try:
            root = os.open(made, _OPEN_FOLDER)
            try:
                self._establish(root)
            finally:
                os.close(root)
            os.rename(made, self.path)
        except BaseException as error:
            remove_tree(made)
            # Another process was first.
            if not isinstance(error, OSError) or not os.path.lexists(self.path):
                raise

    def _establish(self, root: int) -> None:
        """Take a new or empty folder into use; the lock file comes last and shows that all is in place."""
        lock_bytes = _size_of(_LOCK, root)
        if lock_bytes is not None and all(_is_folder(name, root) for name in (LEASES, LINE)):
            _check_sticky(root, self.path)
            return
        # The content of a ledger's lock may be emptied; elsewhere it belongs to another program.
        ours = (LEASES, LINE) if lock_bytes else (_LOCK, LEASES, LINE)
        foreign = [name for name in os.listdir(root) if name not in ours]
        if foreign:
            message = f"not a ledger of Stoker's, and not empty: {self.path}"
            raise LocalFile(message, hint="STOKER_LEDGER names a folder of its own", path=self.path)
        if os.fstat(root).st_uid == os.geteuid():
            os.fchmod(root, _FOR_ALL)
        for name in (LEASES, LINE):
            os.close(self._open_shared(name, root))
        with suppress(FileExistsError):
            fd = os.open(_LOCK, _CREATE, 0o666, dir_fd=root)
            try:
                os.fchmod(fd, 0o666)
            finally:
                os.close(fd)

    def _open_shared(self, name: str, root: int) -> int:
        try:
            fd = os.open(name, _OPEN_FOLDER, dir_fd=root)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=root)
            fd = os.open(name, _OPEN_FOLDER, dir_fd=root)
        try:
            status = os.fstat(fd)
            # As open as the folder around it: users that may enter that one may write records here.
            wanted = stat.S_IMODE(os.fstat(root).st_mode) | stat.S_ISVTX
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != wanted:
                os.fchmod(fd, wanted)
            _check_sticky(fd, f"{self.path}/{name}")
        except BaseException:
            os.close(fd)
            raise
        return fd


class OpenFolder:
    """The open folder. Used under its lock: a list of names that others change may miss one of them."""

    def __init__(self, path: str, fds: dict[str, int], on_step: Callable[[str], None]) -> None:
        self._path = path
        self._fds = fds
        self._on_step = on_step
        self._unfinished: list[tuple[str, str]] = []

    @property
    def root(self) -> int:
        return self._fds[""]

    def names(self, kind: str) -> list[Name]:
        """List the records of a kind, queued ones in order; files with other names are ignored."""
        listed = os.listdir(self._fds[kind])
        if len(listed) > _MOST_FILES:
            message = f"more than {_MOST_FILES} files: {self._path}/{kind}"
            raise Unavailable(message, hint="too many records; the folder's owner may empty it")
        self._unfinished += [(kind, name) for name in listed if name.startswith(_TEMP_PREFIX)]
        named = [
            name for name in map(read_name, listed) if name is not None and (name.number is None) == (kind == LEASES)
        ]
        return sorted(named, key=lambda name: (name.number or 0, name.id))

    def read(self, kind: str, names: Iterable[Name]) -> Iterator[LedgerFile]:
        """Read records one by one. One that disappeared meanwhile was released, and is left out."""
        for name in names:
            found = self._read_one(kind, name)
            if found is not None:
                yield found

    def publish(self, kind: str, name: Name, data: bytes) -> None:
        """Give a record its name, replacing the old one."""
        folder = self._fds[kind]
        temp = os.path.basename(temp_name(""))
        self._on_step(f"{kind}:write")
        try:
            fd = os.open(temp, _CREATE, 0o644, dir_fd=folder)
            try:
                # Whatever the umask: a process that can't read the others' reservations can't decide anything.
                os.fchmod(fd, 0o644)
                write_all(fd, data, 0)
            finally:
                os.close(fd)
            self._on_step(f"{kind}:name")
            os.rename(temp, str(name), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temp, dir_fd=folder)
            raise
        self._on_step(f"{kind}:named")

    def remove(self, kind: str, name: Name) -> bool:
        """Remove a record; False if it is missing, or not ours to remove, or a folder."""
        self._on_step(f"{kind}:remove")
        try:
            os.unlink(str(name), dir_fd=self._fds[kind])
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            return False
        return True

    def set_aside(self, kind: str, name: Name) -> bool:
        """Rename what can't be read; False if that is not ours to do, or the name exists."""
        folder = self._fds[kind]
        try:
            os.rename(str(name), f"damaged-{name}", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            return False
        return True

    def sweep(self) -> None:
        """Remove the temporary files of processes that are gone: no other process writes while the lock is ours."""
        while self._unfinished:
            kind, name = self._unfinished.pop()
            with suppress(FileNotFoundError, PermissionError, IsADirectoryError):
                os.unlink(name, dir_fd=self._fds[kind])

    def _read_one(self, kind: str, name: Name) -> LedgerFile | None:
        data: bytes | None = None
        try:
            fd = os.open(str(name), _OPEN_RECORD, dir_fd=self._fds[kind])
        except FileNotFoundError:
            return None
        except OSError as error:
            # Its user made it unreadable for others, it is a link, or its user prevents opening it (EAGAIN: by a file
            # system lease): its owner is still in its name.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.EAGAIN):
                raise
            return self._unread(kind, name)
        try:
            status = os.fstat(fd)
            user, modified_s = status.st_uid, status.st_mtime
            if stat.S_ISREG(status.st_mode) and status.st_size <= LONGEST_BYTES:
                data = os.read(fd, LONGEST_BYTES + 1)
        finally:
            os.close(fd)
        return LedgerFile(name=name, user=user, data=data, modified_s=modified_s)

    def _unread(self, kind: str, name: Name) -> LedgerFile | None:
        try:
            status = os.stat(str(name), dir_fd=self._fds[kind], follow_symlinks=False)
        except FileNotFoundError:
            return None
        return LedgerFile(name=name, user=status.st_uid, data=None, modified_s=status.st_mtime)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Translate an error of the operating system, with what to do about this folder."""
    try:
        yield
    except OSError as error:
        ours = translate(error, path)
        raise unusable(ours) if isinstance(ours, NoPermission) else ours from error


def unusable(error: NoPermission) -> NoPermission:
    """Return a missing permission as what it means here."""
    return NoPermission(f"the ledger of device memory can't be used: {error.message}", hint=_HINT, **error.data)


def _check_sticky(fd: int, path: str) -> None:
    """Refuse a folder in which any user could remove other users' records."""
    status = os.fstat(fd)
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        if status.st_uid != os.geteuid():
            raise unusable(NoPermission(f"any user may remove other users' records: {path}", path=path))
        os.fchmod(fd, stat.S_IMODE(status.st_mode) | stat.S_ISVTX)


def _size_of(name: str, root: int) -> int | None:
    """Return the size of a plain file; `None` if there is none of that name."""
    try:
        status = os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _is_folder(name: str, root: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
