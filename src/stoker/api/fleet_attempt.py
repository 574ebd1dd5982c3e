"""One attempt of a fleet job, read from the coordinator: its folder, its log, its result.

    attempt = SyncedAttempt(client, job, 2, wants=story_files)     a copy of its folder, which `pull` brings up to date
    log = AttemptLog(client, job, 2, "", parts)                     what it printed, from where the last look ended
    fetch_result(client, FleetResult.of(…), store, clock=clock)     its result, into this machine's store

Whatever a coordinator sends is checked before it touches a file here: names, sizes, digests. A result is fetched as a
tree: resumed after a break, every file verified, and a second `get` fetches nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from stoker.api.job import JobLogReader, StageLogLine
from stoker.core.clock import Clock
from stoker.core.digests import is_digest
from stoker.core.errors import BadAnswer, NotFound
from stoker.core.frozen import frozen
from stoker.core.text import format_size, one_line
from stoker.host.durable import translated
from stoker.host.folders import name_fault, shown_name
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import GrowingLines
from stoker.protocol.client import FleetClient
from stoker.protocol.view_messages import JobView
from stoker.store.local_store import LocalStore
from stoker.store.results import ResultPart
from stoker.store.trees import Heed

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts

_BESIDE = ("preparing", "output")
"""Logs that no stage wrote; `output` is what a worker of system A sent, whose attempts have no job folder."""
_PIECE_BYTES = 4 * 1024 * 1024
# More than a correct coordinator keeps of one attempt.
_MOST_BYTES = 8 << 30
_MOST_FILES = 20_000
FIRST_FILE = "job.json"
_ASK = "contact the coordinator's operator"


def story_files(path: str) -> bool:
    """Return True if a file tells how the job went: all but logs and metrics."""
    return not path.startswith(("logs/", "metrics/", "code/"))


def log_files(path: str) -> bool:
    """Return True if a file is needed to show what was printed."""
    return not path.startswith(("metrics/", "code/"))


class SyncedAttempt:
    """A copy of one attempt's folder in a temporary folder. Files only grow; only what is new is fetched."""

    def __init__(self, client: FleetClient, job: str, attempt: int, *, wants: Callable[[str], bool]) -> None:
        self._client = client
        self._job = job
        self.attempt = attempt
        self._wants = wants
        self._top = tempfile.mkdtemp(prefix="stoker-fleet-")
        self.folder = JobFolder(os.path.join(self._top, f"{job[:12]}-{attempt}"))
        self._sizes: dict[str, int] = {}
        self._came_bytes = 0
        self._newest = ""
        self._has_looked = False
        self.is_over = False
        """The attempt has ended and everything of it is here."""
        with translated(self.folder.path):
            os.makedirs(self.folder.log_folder)

    def pull(self, wait_s: float = 0.0) -> bool:
        """Fetch what is new, waiting for it if there is nothing; return whether anything came."""
        has_come = False
        if wait_s and self._has_looked and not self.is_over:
            # Whatever grew last is the likeliest to grow next.
            has_come = self._take(self._newest or FIRST_FILE, wait_s=wait_s) > 0
        listed = self._client.files(self._job, attempt=self.attempt)
        self._has_looked = True
        if len(listed.files) > _MOST_FILES:
            raise BadAnswer(f"the coordinator lists {len(listed.files):,} files of one attempt", hint=_ASK)
        for file in listed.files:
            while self._wants(file.path) and self._sizes.get(file.path, 0) < file.size_bytes:
                if not self._take(file.path):
                    break
                has_come = True
        self.is_over = listed.is_over
        return has_come

    def has(self, path: str) -> bool:
        """Return True if anything of a file is here."""
        return path in self._sizes

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._top, ignore_errors=True)

    def _take(self, path: str, wait_s: float = 0.0) -> int:
        at = self._sizes.get(path, 0)
        piece = self._client.read_file(
            self._job, path, attempt=self.attempt, offset=at, limit=_PIECE_BYTES, wait_s=wait_s
        )
        if piece.data:
            self._came_bytes += len(piece.data)
            if self._came_bytes > _MOST_BYTES:
                raise BadAnswer(f"the coordinator sends more than {format_size(_MOST_BYTES)} of one attempt", hint=_ASK)
            self._append(path, piece.data)
            self._sizes[path] = at + len(piece.data)
            self._newest = path
        return len(piece.data)

    def _append(self, path: str, data: bytes) -> None:
        parts = path.split("/")
        if path.startswith("/") or any(part in ("", ".", "..") or "\0" in part for part in parts):
            # A coordinator has no business anywhere else on this computer.
            raise BadAnswer(f"the coordinator lists a file that leads elsewhere: {one_line(path, 200)!r}")
        target = os.path.join(self.folder.path, *parts)
        with translated(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "ab") as file:
                file.write(data)


class AttemptLog:
    """What one attempt of a job printed, read from where the last look ended."""

    def __init__(self, client: FleetClient, job: str, number: int, stage: str, parts: AppParts) -> None:
        self.number = number
        self.has_come = False
        """Whether the last look found anything."""
        self._stage = stage
        self._parts = parts
        self._mirror = SyncedAttempt(client, job, number, wants=log_files)
        self._reading: JobLogReader | None = None
        self._beside = {
            name: GrowingLines(os.path.join(self._mirror.folder.log_folder, f"{name}.log"))
            for name in _BESIDE
            if stage in ("", name)
        }
        self._shown = ""

    @property
    def is_over(self) -> bool:
        """Whether the attempt has ended and all of it was returned."""
        return self._mirror.is_over and not self.has_come

    def close(self) -> None:
        self._mirror.close()

    def read_on(self, wait_s: float = 0.0) -> Iterator[StageLogLine | str]:
        """Return what was printed since the last look, waiting for it if there is nothing."""
        mirror = self._mirror
        self.has_come = mirror.pull(wait_s=wait_s)
        if self._reading is None and mirror.has(FIRST_FILE):
            self._beside.pop("output", None)
            self._reading = JobLogReader(mirror.folder, self._stage, self._parts)
        for name, log in self._beside.items():
            for line in log.fresh() if mirror.has(f"logs/{name}.log") else ():
                heading = "" if self._shown == name else name
                self._shown = name
                yield StageLogLine(node=name, text=line.decode(errors="backslashreplace"), heading=heading)
        if self._reading is not None:
            yield from self._reading.read_on()

    def finish(self, *, is_growing: bool) -> Iterator[StageLogLine | str]:
        """Return last lines without an end, and why there is nothing if there is nothing."""
        if self._reading is not None:
            yield from self._reading.finish()
        elif is_growing and not self._shown:
            yield f"note: nothing of attempt {self.number} has arrived yet"


class TrialHeading:
    """Names the lines of a sweep's points as those of a local sweep: by the number of the trial and its stage."""

    def __init__(self) -> None:
        self._shown = ""

    def over(self, point: JobView, lines: Iterable[StageLogLine | str]) -> Iterator[StageLogLine | str]:
        for line in lines:
            if isinstance(line, str):
                text = line.removeprefix("note: ")
                yield f"{'note: ' if text != line else ''}{point.name}: {text}"
                continue
            node = f"{point.name.rpartition('/')[2]}.{line.node}"
            is_other, before = node != self._shown, self._shown
            self._shown = node
            heading = f"{node} ({point.label})" if point.label else node
            yield StageLogLine(
                node=node, text=line.text, heading=heading if is_other else "", has_gap=is_other and bool(before)
            )


@frozen
class FleetResult:
    """A result that a coordinator has, as a job's details describe it."""

    name: str
    """Of the job."""
    job: str
    """The job's id."""
    tree: str
    size_bytes: int
    """Of its files."""
    recipe: str = ""
    machine: str = ""

    @classmethod
    def of(cls, name: str, job: str, bundle: dict[str, Any], *, recipe: str = "", machine: str = "") -> FleetResult:
        """Read `JobDetails.bundle`. `NotFound` if the job has no result, or its bytes were pruned."""
        if not bundle:
            raise NotFound(f"job {name} has no result", hint=f"stoker jobs show {name}")
        if bundle.get("pruned_s") is not None:
            raise NotFound(f"the result of {name} was pruned", hint=f"stoker jobs requeue {name} makes it again")
        tree = str(bundle.get("tree", ""))
        if not is_digest(tree):
            raise BadAnswer(f"the coordinator sent no digest of the result of {name}", hint=_ASK)
        size_bytes = int(bundle.get("size_bytes", 0))
        return cls(name=name, job=job, tree=tree, size_bytes=size_bytes, recipe=recipe, machine=machine)


def folder_name(name: str) -> str:
    """Return a name for a folder, checked: a coordinator may name nothing outside the folder that was asked for."""
    fault = name_fault(name)
    if fault:
        message = f"the coordinator has a job that no folder can be called by: {shown_name(name)}: {fault}"
        raise BadAnswer(message, hint=_ASK)
    return name


def fetch_result(
    client: FleetClient, wanted: FleetResult, store: LocalStore, *, clock: Clock, heed: Heed = lambda _size_bytes: None
) -> ResultPart:
    """Fetch a result into this machine's store, verified; `heed` is called with the size of everything that arrives.

    Raises what `receive_tree` raises; the same call continues from there.
    """
    from stoker.transfer.download.types import DownloadStop
    from stoker.transfer.trees.tree_download import receive_tree
    from stoker.transfer.trees.tree_sources import CoordinatorSource

    try:
        source = CoordinatorSource(client)
        record = receive_tree(source, wanted.tree, store, stop=DownloadStop(), clock=clock, heed=heed)
    except NotFound as error:
        hint = f"stoker jobs requeue {wanted.name} makes it again"
        raise NotFound(f"the coordinator lacks files of the result of {wanted.name}: {error}", hint=hint) from None
    sidecar = {
        "node": wanted.name,
        "kind": "",
        "version": None,
        "digest": record.digest,
        "stage": wanted.recipe,
        "key": record.key,
        "made_at": record.body.get("made_at"),
        "job": wanted.job,
        "machine": wanted.machine,
    }
    return ResultPart(record=record, folder="", sidecar=sidecar)
