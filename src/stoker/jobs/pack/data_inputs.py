"""What jobs read, on its way: files and folders as trees, things of the store, repositories of the hub.

    data = { DATA = "corpus", BASE = "stoker:9f2c…", WEIGHTS = "org/name@main", "data/corpus" = "../corpus" }

A name with a `/` is a path below the program's folder, at which the data appears; any other is a variable. Each is
known by what it holds. A path is read once (the memo) and travels as a tree; a worker of this same machine reads a
variable's data where it lies. A repository is the commit that its revision is now, and every machine fetches it itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from stoker.core.digests import Tree, is_digest
from stoker.core.errors import BadInput, LocalFile, NotFound, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.job import InputKind, JobInput
from stoker.core.text import one_line
from stoker.jobs.builder import JobBuilder
from stoker.jobs.pack.code_tree import Shipment
from stoker.protocol.job_checks import AT, data_where
from stoker.store.memo import read_tree, unread_bytes
from stoker.store.records import Record
from stoker.transfer.hub.listing import DATA_SUFFIXES

STORE = "stoker:"
_REPOSITORY = re.compile(r"(datasets/|spaces/|models/)?[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*(@[\w./+=#%,~-]+)?")


@frozen
class DataInput:
    """One input of jobs."""

    body: JobInput
    digest: str
    """The digest of its content, as a part of a job's id; independent of its path."""
    shipment: Shipment | None = None
    """The tree to send; None if it is already elsewhere."""

    @property
    def is_data_set(self) -> bool:
        """True if it is a data set of the hub."""
        return self.body.repo.startswith("datasets/")


class DataInputs:
    """Finds inputs, each once for all jobs."""

    def __init__(self, builder: JobBuilder) -> None:
        self._builder = builder
        self._known: dict[str, DataInput] = {}
        self._shipments: dict[str, Shipment] = {}

    @property
    def shipments(self) -> tuple[Shipment, ...]:
        """All trees to send."""
        return tuple(self._shipments.values())

    def of(self, where: str, text: str) -> DataInput:
        """Return the input that a value of a manifest means. Raises `StokerError` with the fault."""
        path = self._whole(text)
        if os.path.exists(path) or not _is_elsewhere(text, self._builder.folder):
            if not os.path.exists(path):
                raise LocalFile(f"no file or folder {text}")
            return self.at(where, path)
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._kept(where, text) if _is_kept(text) else self._repository(where, text)
        return self._for(where, known)

    def repository(self, where: str, text: str, kind: str = "") -> DataInput | None:
        """Return the repository that a value names; None if it is a path, or not the name of a repository.

        `kind` is the prefix of its kind (`datasets`), which the value may leave out.
        """
        if os.path.exists(self._whole(text)) or _is_kept(text) or not _is_elsewhere(text, self._builder.folder):
            return None
        if kind and text.lower().endswith(DATA_SUFFIXES):
            return None
        named = f"{kind}/{text}" if kind and not text.startswith(f"{kind}/") else text
        known = self._known.get(named)
        if known is None:
            known = self._known[named] = self._repository(where, named)
        return self._for(where, known)

    def at(self, where: str, path: str) -> DataInput:
        """Return the input at a path. Raises `StokerError`."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._read(where, path)
        return self._for(where, known)

    def _for(self, where: str, known: DataInput) -> DataInput:
        if known.shipment is not None:
            self._shipments.setdefault(known.shipment.digest, known.shipment)
        if known.body.where == where:
            return known
        body = changed(known.body, where=where)
        return DataInput(body=body, digest=known.digest, shipment=known.shipment)

    def _read(self, where: str, path: str) -> DataInput:
        builder, real = self._builder, os.path.realpath(path)
        name, is_folder = os.path.basename(real), os.path.isdir(real)
        if not is_folder and name != one_line(name, 255):
            # Its name is part of its tree, and the tree of the job's id: it must be sent unchanged.
            raise LocalFile(f"file name with unprintable characters: {one_line(name, 255)}", path=real)
        memo = builder.memo
        shown = where.partition(":")[2]
        with builder.data.reading(f"listing {shown}", None) as heed:
            unread = unread_bytes(real, memo=memo, heed=heed)
        with builder.data.reading(f"reading {shown}", unread) as heed:
            tree = read_tree(real, name, memo=memo, clock=builder.clock, heed=heed)
        digest = str(tree.digest())
        body = JobInput(
            where=where,
            kind=InputKind.TREE if is_folder else InputKind.FILE,
            tree=digest,
            name=one_line(name, 255),
            size_bytes=tree.size_bytes,
            files=len(tree.entries),
            path=real,
            host=builder.data.host,
        )
        root = real if is_folder else os.path.dirname(real)
        return DataInput(
            body=body,
            digest=f"tree:{digest}" if is_folder else f"sha256:{tree.entries[0].sha256}",
            shipment=Shipment(what=shown, tree=tree, digest=digest, root=root, is_data=True),
        )

    def _kept(self, where: str, text: str) -> DataInput:
        wanted = text.removeprefix(STORE)
        record: Record | None = None
        try:
            record = self._builder.data.find_kept(wanted)
        except NotFound:
            if not is_digest(wanted):
                raise
        tree = record.tree if record is not None else Tree(())
        digest = wanted if record is None else str(record.digest)
        body = JobInput(
            where=where,
            kind=InputKind.TREE,
            tree=digest,
            size_bytes=tree.size_bytes,
            files=len(tree.entries),
        )
        shipment = None
        if record is not None:
            shown = where.partition(":")[2]
            shipment = Shipment(what=shown, tree=tree, digest=digest, root="", record=record)
        return DataInput(body=body, digest=f"tree:{digest}", shipment=shipment)

    def _repository(self, where: str, text: str) -> DataInput:
        try:
            found = self._builder.data.find_repository(text)
        except StokerError as error:
            message = f"no file or folder {text} here, and as a repository of the hub: {error.message}"
            raise BadInput(message, hint=error.hint) from None
        named = f"{found.repo}@{found.commit}"
        body = JobInput(
            where=where,
            kind=InputKind.REPO,
            name=found.repo.rpartition("/")[2],
            size_bytes=found.size_bytes,
            files=found.files,
            repo=named,
        )
        return DataInput(body=body, digest=f"repo:{named}")

    def _whole(self, text: str) -> str:
        home = self._builder.environment.get("HOME", "~")
        return self._builder.from_here(text.replace("~", home, 1) if text.startswith("~") else text)


def _is_kept(text: str) -> bool:
    return text.startswith(STORE) or is_digest(text)


def _is_elsewhere(text: str, folder: str) -> bool:
    """Return True if a value that is no path here may be valid elsewhere; below an existing folder it is a typo."""
    if _is_kept(text):
        return True
    first = text.partition("/")[0]
    return bool(_REPOSITORY.fullmatch(text)) and not os.path.isdir(os.path.join(folder, first))


def refuse_replaced(code: Tree | None, folder: str, inputs: Iterable[JobInput], shipments: Iterable[Shipment]) -> None:
    """Raise `BadInput` if data that is placed below `folder` of the code would replace a file of it, or other data.

    `code` is None if the program runs in its folder itself, where nothing is placed. The same file twice is no
    conflict: a folder of data may have files that git tracks. What only a machine knows, it checks itself.
    """
    placed = [one for one in inputs if one.where.startswith(AT)]
    if placed and code is None:
        place = placed[0].where.removeprefix(AT)
        raise BadInput(f"data can't be placed at {place}: --in-place makes no copy of the folder")
    trees = {one.digest: one.tree for one in shipments}
    files = {entry.path: (entry.sha256, entry.link_to) for entry in code.entries} if code is not None and placed else {}
    folders = {above for path in files for above in _above(path)}
    for one in placed:
        place = os.path.normpath(os.path.join(folder, one.where.removeprefix(AT)))
        for entry in trees[one.tree].entries if one.tree in trees else ():
            path = place if one.kind is InputKind.FILE else f"{place}/{entry.path}"
            content = (entry.sha256, entry.link_to)
            above = _above(path)
            file_above = next((up for up in above if up in files), "")
            if file_above or files.setdefault(path, content) != content or path in folders:
                replaced = file_above or path
                message = f"{one.where.removeprefix(AT)} would replace {replaced}, which the job has with other content"
                raise BadInput(message, hint="place it at another path, or exclude that file in .stokerignore")
            folders.update(above)


def _above(path: str) -> list[str]:
    """Return all folders above a path."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def typed_inputs(inputs: DataInputs, values: dict[str, Any], folder: str) -> tuple[dict[str, str], list[JobInput]]:
    """Return a program's inputs from the command line (`data.NAME=…`, `inputs=…`): digests, and the trees to send.

    Its `data` then has local paths only. Raises `StokerError`.
    """
    own = os.path.join(folder, "")
    found = {name: inputs.of(data_where(name), path.removeprefix(own)) for name, path in values["data"].items()}
    values["data"] = {name: one.body.path for name, one in found.items() if one.body.path}
    declared = [inputs.at(f"arg:inputs.{number}", path).body for number, path in enumerate(values["inputs"])]
    return {name: one.digest for name, one in found.items()}, [*(one.body for one in found.values()), *declared]
