"""What an archive may contain, and under which names: decided without touching a file.

A name has to be safe wherever the tree may ever be unpacked (`host.folders`), whatever this machine allows. Links may
lead anywhere inside the tree, also to nothing, and never out of it, also not by way of another link. All faults are
collected, member by member; a hundred are counted and the first of them shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes, is_digest
from stoker.core.errors import BadInput, Diagnostic, HashMismatch, InvalidArchive
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import format_size
from stoker.host.folders import LONGEST_NAME_BYTES, clashes, name_fault
from stoker.store.archives.tar import Broken, TarMember, TarMemberType

MOST_SHOWN = 20
_LONGEST_SHOWN = 200
# What Linux follows before it gives up; such a link leads nowhere.
_MOST_HOPS = 40


@frozen
class ArchiveLimits:
    """Limits of an untrusted archive."""

    members: int = 1_000_000
    total_bytes: int = 1 << 40
    """Of everything that is unpacked, headers and hard links included."""
    ratio: int = 1000
    """Maximum ratio of unpacked to packed bytes…"""
    ratio_free_bytes: int = 1 << 30
    """…after these, which may come out of next to nothing: a checkpoint of zeros is a checkpoint."""


class FaultList:
    """Faults as they are found: all are counted, the first are kept."""

    def __init__(self) -> None:
        self.count = 0
        self._shown: list[Diagnostic] = []

    def add(self, where: str, message: str) -> None:
        self.count += 1
        if len(self._shown) < MOST_SHOWN:
            self._shown.append(Diagnostic(_shown(where), message))

    def raise_any(self, what: str, *, hint: str) -> None:
        """Raise `InvalidArchive` if there are any. A single one is the message itself."""
        if not self.count:
            return
        message = f"{what}; the first {MOST_SHOWN} of {self.count} errors" if self.count > MOST_SHOWN else what
        if self.count == 1:
            (only,) = self._shown
            message = str(only) if only.where else f"{what}: {only}"
        raise InvalidArchive(message, faults=tuple(self._shown), hint=hint, count=self.count)


class ArchiveMembers:
    """The members of one archive, checked one by one."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self.faults = FaultList()
        self.links: dict[str, str] = {}
        """Symlinks by path, to be made once everything else exists."""
        self._limits = limits
        self._members = 0
        self._total_bytes = 0
        self._sizes: dict[str, int] = {}
        self._folders: set[str] = set()

    def admit(self, member: TarMember) -> str:
        """Return the path under which a file is to be written; nothing if there is nothing to write, or it is refused.

        Raises `Broken` if the archive exceeds its limits: then it is not read any further.
        """
        self._members += 1
        if self._members > self._limits.members:
            raise Broken(f"it has more than {self._limits.members} members")
        name = _without_dots(member)
        if member.sort is TarMemberType.FOLDER and not name:
            return ""
        fault = member.oddity or path_fault(name) or self._place_fault(name, member)
        if fault:
            self.faults.add(member.name, fault)
            return ""
        return self._enter(name, member)

    def original_of(self, member: TarMember) -> str:
        """Return the path of the file that a hard link refers to."""
        return _plain(member.link)

    def settle(self) -> None:
        """Check what only shows when all members are known."""
        self._judge_spelling([*self._sizes, *self.links])
        for path, target in self.links.items():
            if fault := link_fault(path, target, self.links):
                self.faults.add(path, fault)

    def _judge_spelling(self, names: Iterable[str]) -> None:
        for first, *others in _all_clashes(names, self._folders):
            for other in others:
                self.faults.add(other, f"clashes with {_shown(first)} where case or Unicode forms do not count")

    def _enter(self, name: str, member: TarMember) -> str:
        self._folders.update(_folders_above(name))
        if member.sort is TarMemberType.FOLDER:
            self._folders.add(name)
            return ""
        if member.sort is TarMemberType.SYMLINK:
            self.links[name] = member.link
            return ""
        is_copy = member.sort is TarMemberType.HARDLINK
        size_bytes = self._sizes[_plain(member.link)] if is_copy else member.size_bytes
        self._total_bytes += size_bytes
        if self._total_bytes > self._limits.total_bytes:
            raise Broken(f"its members have more than {format_size(self._limits.total_bytes)}")
        self._sizes[name] = size_bytes
        return name

    def _place_fault(self, name: str, member: TarMember) -> str:
        """Return what is wrong with a member among those before it."""
        if name in self._sizes or name in self.links:
            return "comes twice"
        if name in self._folders and member.sort is not TarMemberType.FOLDER:
            return "is a folder and a file at once"
        for folder in _folders_above(name):
            if folder in self._sizes or folder in self.links:
                return f"is below {_shown(folder)}, which is not a folder"
        if member.sort is TarMemberType.HARDLINK and _plain(member.link) not in self._sizes:
            return f"is a hard link to {_shown(member.link)}, which is not an earlier file"
        return ""


def tree_faults(tree: Tree) -> FaultList:
    """Return what keeps a tree from being packed: everything that would keep its archive from being unpacked."""
    roll = ArchiveMembers(ArchiveLimits(members=len(tree.entries), total_bytes=tree.size_bytes))
    for entry in tree.entries:
        sort = TarMemberType.FILE if entry.link_to is None else TarMemberType.SYMLINK
        size_bytes = entry.size_bytes if entry.link_to is None else 0
        roll.admit(TarMember(name=entry.path, sort=sort, size_bytes=size_bytes, link=entry.link_to or ""))
    roll.settle()
    return roll.faults


def path_fault(path: str) -> str:
    """Return what makes a path unfit for a bundle; empty if it is fit."""
    fault = name_fault(path)
    return f"has an unsafe name: {fault}" if fault else ""


def link_fault(path: str, target: str, links: Mapping[str, str]) -> str:
    """Return what is wrong with a symlink, given all links of its tree; empty if it stays inside."""
    shown = _shown(target)
    parts = [part for part in target.split("/") if part not in ("", ".", "..")]
    if not target or len(target.encode("utf-8", "surrogateescape")) > LONGEST_NAME_BYTES:
        return "is a symlink to an invalid name"
    if target.startswith("/"):
        return f"is a symlink that leads out of the tree, to {shown}"
    if parts and (fault := name_fault("/".join(parts))):
        return f"is a symlink to an unsafe name: {fault}"
    if _climbs_out(path, target, {}) or _climbs_out(path, target, links):
        return f"is a symlink that leads out of the tree, to {shown}"
    return ""


def _climbs_out(path: str, target: str, links: Mapping[str, str]) -> bool:
    """Resolve a link without the disk, through the other links that are given."""
    at = path.split("/")[:-1]
    ahead = target.split("/")[::-1]
    hops = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            if not at:
                return True
            at.pop()
        elif part not in ("", "."):
            at.append(part)
            inner = links.get("/".join(at))
            if inner is not None:
                hops += 1
                if inner.startswith("/"):
                    return True
                if hops > _MOST_HOPS:
                    return False
                at.pop()
                ahead.extend(inner.split("/")[::-1])
    return False


def _all_clashes(names: Iterable[str], folders: Iterable[str]) -> list[tuple[str, ...]]:
    # Of folders only the spelling is compared: that one is in another is as it should be.
    among_folders = clashes(folder.replace("/", "\0") for folder in folders)
    return [*clashes(names), *(tuple(name.replace("\0", "/") for name in group) for group in among_folders)]


def _without_dots(member: TarMember) -> str:
    name = _plain(member.name)
    if member.sort is TarMemberType.FOLDER:
        name = name.rstrip("/")
        return "" if name == "." else name
    return name


def _plain(name: str) -> str:
    while name.startswith("./"):
        name = name[2:]
    return name


def _folders_above(path: str) -> list[str]:
    folders = []
    cut = path.find("/")
    while cut >= 0:
        folders.append(path[:cut])
        cut = path.find("/", cut + 1)
    return folders


def _shown(name: str) -> str:
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


# A tree's listing as bytes: how it is sent and stored where only bytes are. The same tree gives the same bytes.
#
# A reader gets a tree with the requested digest, whose every name may be written on any machine, or an error that
# states what is wrong with it; nothing of it is trusted before.

MOST_ENTRIES = 500_000
_LARGEST_FILE_BYTES = 1 << 60
_FIELDS = 5
_HINT = "a tree to send has plain names, no two of them alike, and no link that leads out of it"


def listing_bytes(tree: Tree) -> bytes:
    """Write a tree's listing."""
    rows = [[entry.path, entry.size_bytes, entry.sha256, entry.executable, entry.link_to] for entry in tree.entries]
    return dumps({"v": 1, "entries": rows}).encode()


def read_listing(data: bytes, digest: str, *, most_entries: int = MOST_ENTRIES) -> Tree:
    """Read the listing of the tree that has this digest.

    `BadInput` if it is no listing, `HashMismatch` if it is another tree's, `InvalidArchive` if part of it must not be
    written.
    """
    tree = Tree(tuple(_entries(data, most_entries)))
    check_tree(tree)
    if (found := tree.digest()) != digest:
        raise HashMismatch(
            f"the listing is that of tree {found[:12]}, not of {digest[:12]}",
            hint="send it again",
            expected=digest,
            found=found,
        )
    return tree


def check_tree(tree: Tree) -> None:
    """Refuse a tree that can't be laid out on every machine: `InvalidArchive`, with all faults."""
    faults = tree_faults(tree)
    last = ""
    for entry in tree.entries:
        if entry.path < last:
            faults.add(entry.path, "is not in the order of names")
        last = entry.path
        if entry.link_to is not None:
            text = entry.link_to.encode("utf-8", "surrogatepass")
            if entry.executable or (entry.size_bytes, entry.sha256) != (len(text), digest_bytes(text)):
                faults.add(entry.path, "is a link whose size or digest does not match its target")
    faults.raise_any("the tree can't be sent", hint=_HINT)


def files_of(tree: Tree) -> dict[Digest, int]:
    """Return the files that a tree needs, each once: digest and size, in the order of the listing.

    `BadInput` if one digest has two sizes.
    """
    files: dict[Digest, int] = {}
    for entry in tree.entries:
        if entry.link_to is None and files.setdefault(entry.sha256, entry.size_bytes) != entry.size_bytes:
            raise BadInput(f"{entry.path}: its bytes have another size elsewhere in the same tree")
    return files


def _entries(data: bytes, most_entries: int) -> list[TreeEntry]:
    try:
        read: Any = loads(data)
    except (ValueError, UnicodeDecodeError):
        raise BadInput("not a listing of a tree: not JSON") from None
    rows = read.get("entries") if isinstance(read, dict) and read.get("v") == 1 else None
    if not isinstance(rows, list):
        raise BadInput("not a listing of a tree, or one of a newer Stoker")
    if len(rows) > most_entries:
        raise BadInput(
            f"a tree of {len(rows)} files: {most_entries} are the most",
            hint="pack them into fewer, larger files",
            most_files=most_entries,
        )
    return [_entry(row) for row in rows]


def _entry(row: Any) -> TreeEntry:
    if not (isinstance(row, list) and len(row) == _FIELDS):
        raise BadInput("invalid entry of a listing")
    path, size_bytes, sha256, executable, link_to = row
    is_right = (
        isinstance(path, str)
        and type(size_bytes) is int
        and 0 <= size_bytes <= _LARGEST_FILE_BYTES
        and isinstance(sha256, str)
        and is_digest(sha256)
        and type(executable) is bool
        and (link_to is None or isinstance(link_to, str))
    )
    if not is_right:
        raise BadInput(f"invalid entry of a listing: {ascii(path)[:120]}")
    # Digests recur from tree to tree: one text for each.
    return TreeEntry(path, size_bytes, Digest(sys.intern(sha256)), executable, link_to)
