"""An archive from anywhere unpacked into a new folder: as the tree that it is, or not at all.

Everything flows, one member at a time. From the first fault on nothing is written any more, but the rest is still read,
so that all faults are told together; then the folder goes. Files are made by the descriptors of folders that we made,
never through a link; the archive's own links are made last. Times, owners and all modes but the executable bit are
left behind; a hard link becomes an entry of its own, which costs no bytes while it is unpacked.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from hashlib import sha256
from types import TracebackType
from typing import BinaryIO, Self

from stoker.host.durable import open_regular, remove_tree, translated
from stoker.model.artifacts import Tree, TreeEntry
from stoker.model.digests import Digest, digest_bytes
from stoker.model.frozen import frozen
from stoker.store.bundle.frames import ArchiveBytes
from stoker.store.bundle.members import Limits, Roll
from stoker.store.bundle.tar_reading import Broken, Member, Sort, TarReader
from stoker.store.hash_lane import HashLane
from stoker.store.local import INLINE_FILE_BYTES, MOST_INLINE_FILES
from stoker.store.materialise import copy_bytes
from stoker.store.trees import Walked

DEFAULT_LIMITS = Limits()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Too many already, or the file system has none.
_NO_LINK = frozenset({errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Unpacked:
    """A tree that was unpacked into a folder."""

    tree: Tree
    archive_sha256: Digest
    archive_bytes: int
    found: tuple[Walked, ...]
    """The entries with where they lie, as the store takes them in."""
    small: dict[str, bytes]
    """The contents of small files by where they lie, as far as a record could hold them."""


def unpack(stream: BinaryIO, folder: str, *, limits: Limits = DEFAULT_LIMITS) -> Unpacked:
    """Unpack an archive (`tar.zst` or `tar`) into a folder that must be new; whatever goes wrong, it is gone again.

    `ArchiveFaults` names everything that must not be unpacked.
    """
    with translated(folder):
        os.mkdir(folder)
    try:
        return _unpack(stream, folder, limits)
    except BaseException:
        remove_tree(folder)
        raise


def _unpack(stream: BinaryIO, folder: str, limits: Limits) -> Unpacked:
    roll = Roll(limits)
    archive_sha256, archive_bytes = Digest(""), 0
    hint = "nothing of it was kept; a .tar.zst or .tar without that is taken"
    with HashLane() as archive_lane, _Desk(folder) as desk:
        try:
            archive = ArchiveBytes(stream, limits, archive_lane)
            tar = TarReader(archive)
            for member in tar:
                path = roll.admit(member)
                if not path or roll.faults.count:
                    continue
                if member.sort is Sort.HARDLINK:
                    desk.copy(path, roll.original_of(member))
                else:
                    desk.place(path, member, tar.content())
            archive_sha256, archive_bytes = archive.finish()
        except Broken as broken:
            roll.faults.add("", str(broken))
            hint = broken.hint or hint
        roll.settle()
        roll.faults.raise_any("the archive can't be unpacked", hint=hint)
        for path, target in roll.links.items():
            desk.link(path, target)
        found = [desk.found[path] for path in sorted(desk.found)]
    return Unpacked(
        tree=Tree(tuple(walked.entry for walked in found)),
        archive_sha256=archive_sha256,
        archive_bytes=archive_bytes,
        found=tuple(found),
        small=desk.small,
    )


class _Desk:
    """The folder while it is filled. All paths are relative to it, and known to be safe and new."""

    def __init__(self, folder: str) -> None:
        self.found: dict[str, Walked] = {}
        self.small: dict[str, bytes] = {}
        # Of files that have as many names as can be: the copy that gets the next ones.
        self._copies: dict[str, Walked] = {}
        self._folder = folder
        self._lane = HashLane()
        # The way to the folder that the last file went to: its names, and before them the top.
        self._names: list[str] = []
        with translated(folder):
            self._descriptors = [os.open(folder, _FOLDER)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lane.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def place(self, path: str, member: Member, content: Iterator[bytes]) -> None:
        """Make a file with the content of a member."""
        target = os.path.join(self._folder, path)
        with self._create(path, is_executable=member.is_executable) as file:
            if member.size_bytes <= INLINE_FILE_BYTES:
                data = b"".join(content)
                digest = digest_bytes(data)
                with translated(target):
                    file.write(data)
                if len(self.small) < MOST_INLINE_FILES:
                    self.small[target] = data
            else:
                digest = self._stream(file, target, content)
            self._note(TreeEntry(path, member.size_bytes, digest, member.is_executable), file)

    def copy(self, path: str, original: str) -> None:
        """Make an entry with the content and the executable bit of one that was placed: one more name of its file.

        An archive of next to nothing may hold very many. Only where the file can't have one more name it is copied.
        """
        entry = self.found[original].entry
        first = self.found[original].path
        walked = self._copies.get(first, self.found[original])
        twin = TreeEntry(path, entry.size_bytes, entry.sha256, entry.executable)
        target = os.path.join(self._folder, path)
        with translated(target):
            name, folder = self._reach(path)
            try:
                os.link(walked.path, name, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._copy(twin, walked.path)
                # The next names are the copy's: else each of them would be one more copy.
                self._copies[first] = self.found[path]
                return
        # As the original looked before it had more names: that is what the store takes in, once for all of them.
        self.found[path] = Walked(twin, walked.path, walked.info)

    def _copy(self, twin: TreeEntry, source: str) -> None:
        with open_regular(source) as old, self._create(twin.path, is_executable=twin.executable) as file:
            copy_bytes(old, file)
            self._note(twin, file)
        if source in self.small:
            self.small[os.path.join(self._folder, twin.path)] = self.small[source]

    def link(self, path: str, target: str) -> None:
        """Make a symlink."""
        full = os.path.join(self._folder, path)
        text = target.encode()
        with translated(full):
            name, folder = self._reach(path)
            os.symlink(target, name, dir_fd=folder)
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        entry = TreeEntry(path, len(text), digest_bytes(text), link_to=target)
        self.found[path] = Walked(entry, full, info)

    def _stream(self, file: BinaryIO, target: str, content: Iterator[bytes]) -> Digest:
        # Only what the disk says is translated: what breaks the archive's stream is its owner's affair.
        hashing = sha256()
        for block in content:
            self._lane.feed(hashing, block)
            with translated(target):
                file.write(block)
        self._lane.wait()
        return Digest(hashing.hexdigest())

    def _note(self, entry: TreeEntry, file: BinaryIO) -> None:
        target = os.path.join(self._folder, entry.path)
        with translated(target):
            file.flush()
            info = os.fstat(file.fileno())
        self.found[entry.path] = Walked(entry, target, info)

    def _create(self, path: str, *, is_executable: bool) -> BinaryIO:
        with translated(os.path.join(self._folder, path)):
            name, folder = self._reach(path)
            descriptor = os.open(name, _FILE, 0o644, dir_fd=folder)
            if is_executable:
                # Said aloud: a umask must not make another tree of it.
                os.fchmod(descriptor, 0o755)
            return open(descriptor, "wb")

    def _reach(self, path: str) -> tuple[str, int]:
        """Go to the folder of a path, making what is missing; gives the last name and the folder's descriptor."""
        *folders, name = path.split("/")
        shared = 0
        while shared < min(len(folders), len(self._names)) and folders[shared] == self._names[shared]:
            shared += 1
        while len(self._names) > shared:
            os.close(self._descriptors.pop())
            self._names.pop()
        for folder in folders[shared:]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=self._descriptors[-1])
            self._descriptors.append(os.open(folder, _FOLDER, dir_fd=self._descriptors[-1]))
            self._names.append(folder)
        return name, self._descriptors[-1]
