"""A project's code as a tree: hashed once, known again by the memo, sent as it was hashed or not at all.

    packed = pack(project, include=…, needed=…, builder=builder)
    send_tree(client, packed.tree, FolderFileSource(packed.project.root), …)

What changes while it is read is read again; what never comes to rest is refused by its name.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, BinaryIO

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import Diagnostic, InvalidInput, Refused, StokerError
from stoker.core.frozen import frozen
from stoker.core.job import JobSpec
from stoker.core.text import counted, format_size
from stoker.host.durable import open_regular, stamp_of, translated
from stoker.host.http.exchange import is_this_computer, read_address
from stoker.jobs.builder import JobBuilder
from stoker.jobs.pack.left_behind import LeftBehind
from stoker.jobs.pack.project import IGNORE_FILE, MOST_BYTES, Project, ProjectFiles, find_project, list_files
from stoker.jobs.request import JobRequest
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import MOST_SOURCE, HostPolicy, OnChangedCode, Submission
from stoker.store.archives.archive_members import check_tree
from stoker.store.local_store import LocalStore
from stoker.store.memo import Memo, recall_below, recall_file, remember_file
from stoker.store.records import Record
from stoker.store.trees import leads_out
from stoker.transfer.trees.tree_upload import FileSource, FolderFileSource, StoreFileSource

_BLOCK_BYTES = 1 << 20
_TRIES = 3
_MOST_NAMED = 3
_MANY = 50


@frozen
class PackedProject:
    """The code of a project at one moment."""

    project: Project
    tree: Tree
    digest: str
    """The tree's."""
    commit: str = ""
    """`HASH`, or `HASH+3` with so many uncommitted changes; empty: nothing was ever committed."""
    uncommitted: int = 0
    notes: tuple[str, ...] = ()
    left: LeftBehind = LeftBehind()
    """What the folder of its programs has, and the tree has not."""

    @property
    def files(self) -> int:
        return len(self.tree.entries)

    @property
    def size_bytes(self) -> int:
        return self.tree.size_bytes


def pack(
    project: Project,
    *,
    builder: JobBuilder,
    include: Sequence[str] = (),
    needed: Iterable[str] = (),
) -> PackedProject:
    """Read a project's files into a tree.

    Raises what `list_files` raises, `InvalidInput` with everything that a tree can't store, `InvalidArchive` with names
    that are invalid on some machines, and `Refused` for a file that keeps changing.
    """
    listed = list_files(
        project, environment=builder.environment, include=include, needed=needed, ours=builder.own_folders
    )
    if len(listed.files) > _MANY:
        recall_below(project.root, memo=builder.memo)
    reading = _Reading(project, builder)
    entries = tuple(entry for path in listed.files if (entry := reading.entry(path)) is not None)
    reading.refuse_any()
    tree = Tree(entries)
    count = len(listed.uncommitted)
    return PackedProject(
        project=project,
        tree=tree,
        digest=_checked_digest(project, tree, builder.memo),
        commit=f"{listed.commit}+{count}" if listed.commit and count else listed.commit,
        uncommitted=count,
        notes=(*listed.notes, *_notes(project, listed, tree, reading.gone)),
    )


def _checked_digest(project: Project, tree: Tree, memo: Memo) -> Digest:
    """Return the digest of a valid tree; a tree that is the same as last time is not checked again."""
    rows = [f"{one.path}\0{one.sha256}\0{one.executable}\0{one.link_to}\0{one.size_bytes}" for one in tree.entries]
    stamp = struct.unpack(">4Q", sha256("\0".join(rows).encode()).digest())
    name = f"code:{project.root!a}"
    digest = memo.recall(name, stamp)
    if digest is None:
        check_tree(tree)
        digest = tree.digest()
        memo.remember(name, stamp, digest)
    return digest


class _Reading:
    """One pass over a project's files."""

    def __init__(self, project: Project, builder: JobBuilder) -> None:
        self.gone: list[str] = []
        self._root = project.root
        self._memo, self._clock = builder.memo, builder.clock
        self._faults: list[Diagnostic] = []
        # Folders that are real folders, and no links to elsewhere.
        self._folders: dict[str, bool] = {"": True}

    def refuse_any(self) -> None:
        if self._faults:
            faults = tuple(self._faults)
            headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} files of the project can't be sent"
            hint = f"exclude them in {IGNORE_FILE}, or use --in-place"
            raise InvalidInput(headline, faults=faults, hint=hint, folder=self._root)

    def entry(self, path: str) -> TreeEntry | None:
        """Return a file's entry; None if it does not exist any more, or can't be stored."""
        whole = f"{self._root}/{path}"
        try:
            info = os.lstat(whole)
        except (FileNotFoundError, NotADirectoryError):
            self.gone.append(path)
            return None
        if not self._is_folder(path.rpartition("/")[0]):
            # A folder was replaced by a link: its target is not part of the project.
            self.gone.append(path)
            return None
        if stat.S_ISREG(info.st_mode):
            digest = recall_file(whole, info, memo=self._memo)
            if digest is None:
                digest, info = self._read(path, whole)
            return TreeEntry(path, info.st_size, digest, bool(info.st_mode & stat.S_IXUSR))
        if stat.S_ISLNK(info.st_mode):
            return self._link(path, whole)
        what = "is a folder now" if stat.S_ISDIR(info.st_mode) else "is neither a file, a folder nor a symlink"
        self._faults.append(Diagnostic(path, what))
        return None

    def _read(self, path: str, whole: str) -> tuple[Digest, os.stat_result]:
        for _ in range(_TRIES):
            with translated(whole), open_regular(whole) as file:
                before = os.fstat(file.fileno())
                digest = _digest_of(file)
                is_same = stamp_of(os.fstat(file.fileno())) == stamp_of(before) == stamp_of(os.lstat(whole))
            if is_same:
                remember_file(whole, before, digest, memo=self._memo, clock=self._clock)
                return digest, before
        raise Refused(
            f"{path} keeps changing while it is read", hint="submit again when no process writes to it", path=whole
        )

    def _link(self, path: str, whole: str) -> TreeEntry | None:
        with translated(whole):
            target = os.readlink(whole)
        try:
            text = target.encode()
        except UnicodeEncodeError:
            self._faults.append(Diagnostic(path, "symlink whose target is not valid Unicode"))
            return None
        if leads_out(self._root, path, target):
            self._faults.append(Diagnostic(path, f"symlink out of the project: {target}"))
            return None
        return TreeEntry(path, len(text), digest_bytes(text), link_to=target)

    def _is_folder(self, folder: str) -> bool:
        known = self._folders.get(folder)
        if known is None:
            above = self._is_folder(folder.rpartition("/")[0])
            known = self._folders[folder] = above and not os.path.islink(f"{self._root}/{folder}")
        return known


def _digest_of(file: BinaryIO) -> Digest:
    digest = sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return Digest(digest.hexdigest())


def _notes(project: Project, listed: ProjectFiles, tree: Tree, gone: Sequence[str]) -> Iterable[str]:
    """Return notes for the user before it is sent."""
    if tree.size_bytes > MOST_BYTES:
        largest = sorted(tree.entries, key=lambda entry: -entry.size_bytes)[:_MOST_NAMED]
        named = ", ".join(f"{entry.path} {format_size(entry.size_bytes)}" for entry in largest)
        size = format_size(tree.size_bytes)
        yield f"the code has {size}: {named}; exclude files in {IGNORE_FILE}; for data use data = {{ NAME = PATH }}"
    lacking = set(gone).difference(listed.uncommitted)
    if project.is_git and lacking:
        count = counted(len(lacking), "tracked file is", "tracked files are")
        yield f"{count} not checked out here, and not sent: {min(lacking)}"


class SubmittedCode:
    """Packs the project of a builder's folder, once for each set of files that jobs include."""

    def __init__(self, builder: JobBuilder, request: JobRequest) -> None:
        self._builder = builder
        self._request = request
        self._project: Project | None = None
        self._packed: dict[tuple[tuple[str, ...], tuple[str, ...]], PackedProject | StokerError] = {}

    @property
    def packed(self) -> tuple[PackedProject, ...]:
        """The trees to send before the jobs are submitted, each once."""
        return tuple({one.digest: one for one in self._packed.values() if isinstance(one, PackedProject)}.values())

    @property
    def project(self) -> Project:
        """The project of the folder. Raises what `find_project` raises."""
        if self._project is None:
            self._project = find_project(self._builder.folder, environment=self._builder.environment)
        return self._project

    def of(
        self, *, include: tuple[str, ...] = (), needed: tuple[str, ...] = (), is_in_place: bool = False
    ) -> dict[str, Any]:
        """Return the fields of a program's spec that identify its code. Raises what `pack` raises."""
        fields: dict[str, Any] = {"folder": self._builder.folder, "project": self.project.identity}
        if is_in_place or self._request.in_place:
            return fields
        packed = self._pack((*self._request.include, *include), needed)
        fields |= {"code_tree": packed.digest, "code_folder": self.project.folder}
        return fields | ({"commit": packed.commit} if packed.commit else {})

    def tree(self, digest: str) -> Tree:
        """Return a tree that was packed."""
        return next(one.tree for one in self.packed if one.digest == digest)

    def _pack(self, include: tuple[str, ...], needed: tuple[str, ...]) -> PackedProject:
        key = (include, needed)
        known = self._packed.get(key)
        if known is None:
            try:
                known = pack(self.project, builder=self._builder, include=include, needed=needed)
            except StokerError as error:
                # Ten thousand jobs of one project are refused after one check.
                known = error
            self._packed[key] = known
        if isinstance(known, StokerError):
            raise known
        return known


# A prepared submission: job specs, policies of machines, and notes for the user.


@frozen
class Shipment:
    """A tree that machines of the fleet need for these jobs, and where its files are here."""

    what: str
    """`code`, or the variable or argument that it is for."""
    tree: Tree
    digest: str
    """Of the tree."""
    root: str
    """The folder of the tree's paths."""
    is_data: bool = False
    """Workers on this machine read it in place."""
    record: Record | None = None
    """The record of a tree in this machine's store: its files are there, not below `root`."""

    def source(self, store: LocalStore) -> FileSource:
        """Return the source of its files."""
        return FolderFileSource(self.root) if self.record is None else StoreFileSource(store, self.record)


def code_shipments(packed: Iterable[PackedProject]) -> tuple[Shipment, ...]:
    """Return the code of projects as shipments."""
    return tuple(Shipment(what="code", tree=one.tree, digest=one.digest, root=one.project.root) for one in packed)


@frozen
class PreparedSubmission:
    """Jobs that can be submitted, in the order of their source."""

    jobs: tuple[JobSpec, ...]
    hosts: tuple[HostPolicy, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the user before they run."""
    source: str = ""
    """The manifest's absolute path, or the command line."""
    packed: tuple[PackedProject, ...] = ()
    """The code of their programs: the coordinator must have it before they are submitted."""
    shipments: tuple[Shipment, ...] = ()
    """All trees that the jobs name and that are here."""

    def to_send(self, url: str) -> tuple[Shipment, ...]:
        """Return the trees that the coordinator at a URL needs. Data is not sent if all machines are this one."""
        is_here_alone = url.startswith("http://") and is_this_computer(read_address(url).origin.host)
        return tuple(one for one in self.shipments if not (one.is_data and is_here_alone))

    def missing(self, client: FleetClient) -> list[Shipment]:
        """Announce all trees to a coordinator, and return the missing ones."""
        return [
            one
            for one in self.to_send(client.url)
            if not client.want_tree(one.digest, files=len(one.tree.entries), size_bytes=one.tree.size_bytes).is_here
        ]

    def submission(
        self,
        *,
        key: str = "",
        submitter: str = "",
        on_changed_code: OnChangedCode = OnChangedCode.KEEP,
        dry_run: bool = False,
    ) -> Submission:
        """Return the message that submits them."""
        # Each was checked when it was made: another check of ten thousand would take long.
        return Submission.model_construct(
            key=key,
            jobs=self.jobs,
            hosts=self.hosts,
            submitter=submitter,
            source=self.source[:MOST_SOURCE],
            on_changed_code=on_changed_code,
            dry_run=dry_run,
        )
