"""Folders: of a home by name; held by descriptor, walked, synced; names checked; many files made durable together."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Self

from stoker.core.clock import Closable
from stoker.core.errors import BadInput, StokerError
from stoker.core.text import one_line
from stoker.host.durable import NO_STEP, begin_write_back, sync_descriptor, temp_name, translated, write_all


class HomeFolder(StrEnum):
    """One folder of a home, by its name on disk."""

    STORE = "store"
    """Results, stored trees, code and data, each under its digest."""
    RUNS = "runs"
    """A folder for each job that ran here: spec, journal, logs, end."""
    STATE = "state"
    """Indexes, histories, receipts, credentials, what was measured."""
    SCRATCH = "scratch"
    """Checkpoints of work that has not succeeded yet."""
    WORKSPACES = "workspaces"
    """A worker's: a folder for each attempt, and data of jobs as plain folders."""
    ENVS = "envs"
    """Python environments that jobs run in."""
    KERNELS = "kernels"
    """What was compiled for devices, kept from one run to the next."""
    FLEET = "fleet"
    """A coordinator's: database, results, logs."""

    def below(self, home: str) -> str:
        return os.path.join(home, self)


def make_home(home: str) -> None:
    """Create a home if there is none, closed to other users whatever the umask is. One that exists stays as it is."""
    with translated(home):
        _make_closed(home, 0o700)


def make_state(state: str) -> None:
    """Create the folder `state` of a home, and the home, on the terms of `make_home`."""
    with translated(state):
        _make_closed(os.path.dirname(state), 0o700)
        _make_closed(state, 0o700)


def _make_closed(folder: str, mode: int) -> None:
    if os.path.isdir(folder):
        return
    if (parent := os.path.dirname(folder)) != folder:
        _make_closed(parent, 0o755)
    with suppress(FileExistsError):
        os.mkdir(folder, mode)


def close_home(home: str) -> str:
    """Take from other users the right to write in our home and its folder `state`; return a note, empty if none could.

    They could replace tokens, code and the queue. Members of a group keep their right: they may share the home. A
    folder with the sticky bit, or with files of other programs in it, is left as it is.
    """
    notes = []
    for folder in (home, HomeFolder.STATE.below(home)):
        try:
            found = os.lstat(folder)
            is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
            if not is_open or found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            if folder == home and not set(os.listdir(home)) <= set(HomeFolder):
                notes.append(f"note: others may write in {home}, and act as you through it: chmod o-w {home}")
                continue
            os.chmod(folder, stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
            notes.append(f"note: others could write in {folder} (mode {found.st_mode & 0o777:o}); they no longer can")
        except OSError:
            continue
    return "\n".join(notes)


_OPEN_BASE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_BELOW = _OPEN_BASE | os.O_NOFOLLOW
_OPEN_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class AnchoredFolder(Closable):
    """A folder held by its descriptor: nothing planted below it leads a write elsewhere. Names are single components.

    Use it in a `with`, or `close` it. Only the folder that a person named is opened with links followed. Below it every
    part is opened by the descriptor of the one before, refusing links, and every file is opened, renamed and removed by
    its name in a folder that is held. If the folder is moved, our files move with it; a part that is replaced by a link
    has no effect. A pipe or a device under a name of ours never blocks.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        """For messages; nothing is opened by it again."""
        self.descriptor = descriptor

    @classmethod
    def open(cls, base: str, below: str = "", *, makes: bool = True) -> Self:
        """Open the folder `below` a folder `base` (`/`-separated, a checked name), creating what is missing."""
        path = os.path.join(base, below) if below else base
        with translated(path):
            descriptor = _open_base(base, makes=makes)
            try:
                for part in below.split("/") if below else ():
                    inner = _open_below(descriptor, part, makes=makes)
                    os.close(descriptor)
                    descriptor = inner
            except BaseException:
                os.close(descriptor)
                raise
        return cls(path, descriptor)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def path_of(self, name: str) -> str:
        """Return the path of a name, for messages."""
        return os.path.join(self.path, name)

    def is_in_place(self) -> bool:
        """Return True if the path still leads to this very folder."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def look(self, name: str) -> os.stat_result | None:
        """Return the stat of a name, of a link itself and not its target; nothing if the name does not exist."""
        with translated(self.path_of(name)):
            try:
                return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def open_file(self, name: str, *, writes: bool = False) -> int | None:
        """Open a regular file that has this name and no other, and return its descriptor; `None` for anything else.

        A file with a second name may belong to another program, so it is not opened where we would write to it.
        """
        access = os.O_RDWR if writes else os.O_RDONLY
        with translated(self.path_of(name)):
            try:
                descriptor = os.open(name, access | _OPEN_FILE, dir_fd=self.descriptor)
            except OSError as error:
                if error.errno in _NOT_A_FILE:
                    return None
                raise
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or (writes and info.st_nlink != 1):
                os.close(descriptor)
                return None
            return descriptor

    def create_file(self, name: str, mode: int = 0o644) -> int:
        """Create a new file to write and read, replacing what has that name; a folder there is refused."""
        with translated(self.path_of(name)):
            while True:
                try:
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FILE
                    return os.open(name, flags, mode, dir_fd=self.descriptor)
                except FileExistsError:
                    self.remove(name)

    def remove(self, name: str) -> bool:
        """Remove anything but a folder: a file, a link, a pipe. Returns False if there was nothing."""
        with translated(self.path_of(name)):
            try:
                os.unlink(name, dir_fd=self.descriptor)
            except FileNotFoundError:
                return False
            return True

    def rename(self, old: str, new: str) -> None:
        """Rename a file in this folder, replacing what has the new name: a link itself, not its target."""
        with translated(self.path_of(new)):
            os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def write_file(
        self, name: str, data: bytes, mode: int = 0o644, *, on_step: Callable[[str], None] = NO_STEP
    ) -> None:
        """Write new content under a name, whole and synced; the name itself is durable after `sync`."""
        temp = os.path.basename(temp_name(""))
        with translated(self.path_of(name)):
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FILE, mode, dir_fd=self.descriptor)
            try:
                try:
                    on_step("write")
                    write_all(descriptor, data, 0)
                    on_step("sync")
                    sync_descriptor(descriptor)
                finally:
                    os.close(descriptor)
                on_step("rename")
                self.rename(temp, name)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=self.descriptor)
                raise

    def read_file(self, name: str, limit_bytes: int) -> bytes | None:
        """Read a small regular file; `None` if there is none, or if it is larger than that."""
        descriptor = self.open_file(name)
        if descriptor is None:
            return None
        with translated(self.path_of(name)), open(descriptor, "rb") as file:
            data = file.read(limit_bytes + 1)
        return data if len(data) <= limit_bytes else None

    def names(self) -> list[str]:
        """Return the names in the folder."""
        with translated(self.path):
            return os.listdir(self.descriptor)

    def sync(self) -> None:
        """Make the names in the folder survive a power cut."""
        with translated(self.path):
            os.fsync(self.descriptor)


# Nothing there, a link, a folder, a socket, a device without a driver.
_NOT_A_FILE = frozenset({errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})


def _open_base(path: str, *, makes: bool) -> int:
    try:
        return os.open(path, _OPEN_BASE)
    except FileNotFoundError:
        if not makes:
            raise
    parent = os.path.dirname(os.path.abspath(path))
    above = _open_base(parent, makes=True)
    try:
        _make(above, os.path.basename(os.path.abspath(path)))
    finally:
        os.close(above)
    return os.open(path, _OPEN_BASE)


def _open_below(parent: int, part: str, *, makes: bool) -> int:
    try:
        return os.open(part, _OPEN_BELOW, dir_fd=parent)
    except FileNotFoundError:
        if not makes:
            raise
    _make(parent, part)
    return os.open(part, _OPEN_BELOW, dir_fd=parent)


def _make(parent: int, part: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=parent)
    # Also if another process made it: a durable file in a folder that is not durable would be lost with it.
    os.fsync(parent)


PASSED_THROUGH = 0o711
"""Mode of a folder that other users may pass through but not list."""


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none if it can't be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def make_passed_through(folder: str) -> None:
    """Make a folder that other users may pass through but not list."""
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, PASSED_THROUGH)


class FolderWalk(ABC):
    """One pass over all below a folder, without recursion; a subclass handles entries and chooses folders to enter."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders = [""]

    def run(self) -> None:
        """Walk the folder and all entered folders. Raises `LocalFile` and its like."""
        while self._folders:
            prefix = self._folders.pop()
            folder = os.path.join(self._root, prefix)
            with translated(folder), os.scandir(folder) as entries:
                for entry in entries:
                    self._take(prefix + entry.name, entry)

    @abstractmethod
    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        """Handle one entry; its path is relative to the root, `/`-separated."""

    def _enter(self, path: str) -> None:
        """Also walk a folder."""
        self._folders.append(f"{path}/")


# File names from outside, checked before anything is written under them.
#
# The rules are those of POSIX and of Windows together: a folder that was filled on one machine is copied to another,
# and a name that leads elsewhere there must not be written here. Names are relative, `/`-separated. The caller decides
# what a bad name means: an invalid response of a server, or wrong input of a person. Links below a folder are handled
# by `AnchoredFolder`.

LONGEST_COMPONENT_BYTES = 255
LONGEST_NAME_BYTES = 1024
MOST_LEVELS = 100
_SHOWN_CHARACTERS = 120
_FAULTS = (
    (re.compile(r"[\x00-\x1f\x7f-\x9f]"), "it has a control character"),
    (re.compile(r"[\ud800-\udfff]"), "it is not Unicode text"),
    (re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"), "it has a character that turns the text around"),
    (re.compile(r"[\u2028\u2029]"), "it has a line break"),
    (re.compile(r"\\"), "it has a backslash"),
    (re.compile(r"\A/"), "it is absolute"),
    (re.compile(r":"), "it has a colon, which names a drive or a hidden stream"),
)
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"}
    # Windows takes the three superscript digits for digits here.
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"}
)


class BoundedWalk:
    """Entries of folders that others write to, up to a number of them in all. No link is followed."""

    def __init__(self, most_entries: int, *, deepest: int) -> None:
        """Make a walk over `most_entries` at most, through `deepest` levels of each folder."""
        self.left = most_entries
        """0: there may be more than was seen."""
        self._deepest = deepest

    def entries(self, top: str, *, enters: Callable[[os.DirEntry[str]], bool]) -> Iterator[os.DirEntry[str]]:
        """Return what lies below a folder, level by level; of a folder, what is in it if the walk `enters` it.

        What can't be listed, or is gone meanwhile, is left out.
        """
        folders = [top]
        for _ in range(self._deepest):
            deeper: list[str] = []
            for folder in folders:
                with suppress(OSError), os.scandir(folder) as found:
                    for entry in found:
                        if self.left <= 0:
                            return
                        self.left -= 1
                        if entry.is_dir(follow_symlinks=False) and enters(entry):
                            deeper.append(entry.path)
                        yield entry
            folders = deeper


def placed_path(text: str) -> str:
    """Return a path below a folder in its normal form, which always has a `/`: `data/corpus`, `./train.bin`.

    Raises `BadInput` for a path that leads elsewhere, and for a name that is unsafe to write under.
    """
    path = os.path.normpath(text) if text else ""
    fault = "it names the folder itself" if path in ("", ".") else name_fault(path)
    if fault:
        hint = "a path below the folder that the program runs in, such as data/corpus or ./train.bin"
        raise BadInput(f"data can't be placed at {shown_name(text)}: {fault}", hint=hint)
    return path if "/" in path else f"./{path}"


def check_name(path: str) -> str:
    """Return a name of our own if it is safe to write under. Raises `BadInput` with the reason."""
    fault = name_fault(path)
    if fault:
        shown = shown_name(path)
        raise BadInput(f"unsafe name: {shown}: {fault}", hint="nothing was written", name=shown)
    return path


def shown_name(path: str) -> str:
    """Return a name for a message, whatever it contains: quoted, in ASCII, cut if it is too long to read."""
    # What is cut off is not even quoted: a name may have megabytes.
    return one_line(ascii(path[:_SHOWN_CHARACTERS]) + ("…" if len(path) > _SHOWN_CHARACTERS else ""), _SHOWN_CHARACTERS)


def name_fault(path: str) -> str:
    """Return what makes a name unsafe; empty if it is safe."""
    if not path:
        return "it is empty"
    # First, so that nothing else has to be quick for names of any length.
    if len(path) > LONGEST_NAME_BYTES or len(path.encode("utf-8", "surrogatepass")) > LONGEST_NAME_BYTES:
        return f"it is longer than {LONGEST_NAME_BYTES} bytes"
    if path.count("/") >= MOST_LEVELS:
        return f"it is more than {MOST_LEVELS} levels deep"
    for pattern, fault in _FAULTS:
        if pattern.search(path):
            return fault
    return next((fault for part in path.split("/") if (fault := _component_fault(part))), "")


def clashes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that would be one file on some machine, or would have to be both file and folder.

    One file: they differ only in case, or in the way that Unicode composes a letter.
    """
    files: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        files.setdefault(_folded(name), []).append(name)
    found = [tuple(group) for group in files.values() if len(group) > 1]
    # Sorted so that the names below a name follow it at once; paths are never compared part by part.
    above: list[str] = []
    for folded in sorted(files, key=lambda name: name.replace("/", "\0")):
        while above and not folded.startswith(f"{above[-1]}/"):
            above.pop()
        if above:
            found.append((files[above[-1]][0], files[folded][0]))
        above.append(folded)
    return tuple(found)


def _component_fault(part: str) -> str:
    if not part:
        return "it has an empty part"
    if part in {".", ".."}:
        return f"it has a part {part!r}"
    if part[-1] in ". ":
        return "a part ends in a dot or a space"
    if part.partition(".")[0].rstrip(" ").casefold() in _DEVICES:
        return f"{part!r} is a device on Windows"
    if len(part.encode()) > LONGEST_COMPONENT_BYTES:
        return f"a part is longer than {LONGEST_COMPONENT_BYTES} bytes"
    return ""


def _folded(name: str) -> str:
    # Folding may compose characters again, so it is normalised before and after.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


# Many small files made durable together: step by step for all of them, not file by file.
#
# A file system that is made to commit after each step of each file is several times slower. So all are written, the
# disk is set to work on all, and only then each is waited for; what gives them their names comes after that.

_ENOUGH = 1 << 20


def most_open_files() -> int:
    """Return how many files this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def write_unnamed(folder: AnchoredFolder, contents: Sequence[bytes], mode: int = 0o644) -> list[str]:
    """Write files under temporary names, and return these; their bytes are synced then, or none is left.

    The caller renames or removes each. `sweep_temps` recognises the names. Keeps as many files open at once.
    """
    written: list[tuple[str, int]] = []
    is_whole = False
    try:
        with translated(folder.path):
            for data in contents:
                temp = os.path.basename(temp_name(""))
                descriptor = folder.create_file(temp, mode)
                written.append((temp, descriptor))
                write_all(descriptor, data, 0)
            for _, descriptor in written:
                begin_write_back(descriptor)
            for _, descriptor in written:
                sync_descriptor(descriptor)
        is_whole = True
    finally:
        for temp, descriptor in written:
            os.close(descriptor)
            if not is_whole:
                with suppress(StokerError):
                    folder.remove(temp)
    return [temp for temp, _ in written]


def write_named(folder: AnchoredFolder, files: Sequence[tuple[str, bytes]], mode: int) -> None:
    """Write files under their names, each completely or not at all; all are durable on return."""
    left = write_unnamed(folder, [data for _, data in files], mode)
    try:
        for leaf, _ in reversed(files):
            folder.rename(left[-1], leaf)
            left.pop()
    finally:
        for temp in left:
            with suppress(StokerError):
                folder.remove(temp)
    folder.sync()


def settle_files(paths: Sequence[str], mode: int) -> None:
    """Set the mode of written files, and sync all of them together.

    Keeps as many files open at once: a caller with very many passes some at a time.
    """
    descriptors: list[int] = []
    try:
        for path in paths:
            with translated(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                descriptors.append(descriptor)
                os.fchmod(descriptor, mode)
        for descriptor in descriptors:
            begin_write_back(descriptor)
        for path, descriptor in zip(paths, descriptors, strict=True):
            with translated(path):
                sync_descriptor(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
