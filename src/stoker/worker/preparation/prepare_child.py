"""Prepare inputs in a child process, and detect activity without output: a silent compiler, another job's transfer.

A second counts while uv's processes use CPU time, or while bytes of the tree arrive. A hanging one counts nothing.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Any, Protocol

from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, Refused, StokerError
from stoker.core.frozen import fields_of, frozen
from stoker.core.job import EnvironmentChoice
from stoker.core.jsontext import dumps, loads
from stoker.core.text import one_line
from stoker.host.durable import read_regular, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.host.processes import Child, group_cpu_ticks, start
from stoker.host.users import OtherUser
from stoker.protocol.environment_messages import choose
from stoker.protocol.lease_messages import Grant
from stoker.store.local_store import LocalStore
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees.tree_download import TreeFetchEstimate, receive_tree
from stoker.transfer.trees.tree_sources import TreeSourceFinder
from stoker.worker.environments.environment_builder import Maker
from stoker.worker.preparation.input_check import LocalInputs, PresentInputs, what_is_missing
from stoker.worker.worker_state import StartRefusal

LONGEST_LINE = 500
READY, REFUSED = "ready", "refused"


@frozen
class PrepareLine:
    """One line that a preparing child writes to its worker: its progress, or its end.

    `count` only grows with progress: it extends the lease.
    """

    says: str = ""
    """For a heartbeat."""
    line: str = ""
    """For the job's log."""
    count: int = 0
    end: str = ""
    verified: tuple[str, ...] = ()
    """Inputs that were read in place, and are as submitted."""
    reason: str = ""
    message: str = ""
    lasts: bool = False
    """True: it stays so until this machine is changed; False: it may pass."""

    def to_line(self) -> bytes:
        """Return it as a line."""
        said = {name: value for name, value in fields_of(self).items() if value}
        for name in ("says", "line", "message"):
            if name in said:
                said[name] = one_line(said[name], LONGEST_LINE)
        return dumps(said).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> PrepareLine | None:
        """Parse a line; None if it is not one of ours."""
        try:
            raw: Any = loads(line)
            if not isinstance(raw, dict):
                return None
            return cls(**{**raw, "verified": tuple(raw.get("verified", ()))})
        except (ValueError, TypeError):
            return None


_CHILD_POLL_S = 0.1
_GRACE_S = 5.0
_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16
_MOST_STARTS = 5
PREPARING = "preparing"


@frozen
class PreparingProgram:
    """How a preparing process is started."""

    argv: tuple[str, ...]
    folder: str
    environment: Callable[[], Mapping[str, str]]
    clock: Clock


def bring_by_child(
    program: PreparingProgram, ticket: bytes, stop: threading.Event, heed: Callable[[PrepareLine], None]
) -> PrepareLine | None:
    """Fetch what a job needs in a process of its own. Return its last line; None if it was stopped.

    `heed` gets every line; counts continue from one process to the next.
    """
    base, last_words = 0, ""
    for _ in range(_MOST_STARTS):
        run = _Run(program, ticket, stop, base, heed)
        ended = run.to_end()
        if ended is not None or stop.is_set():
            return ended
        last_words = run.how
        if run.count == base:
            break
        base = run.count
    return PrepareLine(
        end=REFUSED, reason=PREPARING, message=f"preparing process exited without a result: {last_words}"
    )


class _Run:
    """One preparing process."""

    def __init__(
        self,
        program: PreparingProgram,
        ticket: bytes,
        stop: threading.Event,
        base: int,
        heed: Callable[[PrepareLine], None],
    ) -> None:
        self._program = program
        self._ticket = ticket
        self._stop = stop
        self._heed = heed
        self._base = base
        self.count = base
        self.how = ""

    def to_end(self) -> PrepareLine | None:
        program = self._program
        child = start(
            program.argv,
            cwd=program.folder,
            env=program.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            with suppress(OSError):
                if child.stdin is not None:
                    child.stdin.write(self._ticket)
                    child.stdin.flush()
            return self._listen(child)
        finally:
            self._end(child)

    def _listen(self, child: Child) -> PrepareLine | None:
        rest, tail, end = b"", b"", None
        with selectors.DefaultSelector() as selector:
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, stream is child.stdout)
            while selector.get_map() and not self._stop.is_set():
                for key, _ in selector.select(_CHILD_POLL_S):
                    data = os.read(key.fd, _CHUNK_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.data:
                        *lines, rest = (rest + data).split(b"\n")
                        rest = rest[-_LONGEST_LINE_BYTES:]
                        for line in lines:
                            end = self._take(line) or end
                    else:
                        tail = (tail + data)[-2000:]
                if end is not None:
                    return end
        last_lines = tail.decode(errors="replace").strip().splitlines()
        self.how = last_lines[-1] if last_lines else "no output"
        return None

    def _take(self, line: bytes) -> PrepareLine | None:
        report = PrepareLine.from_line(line)
        if report is None:
            return None
        if report.end:
            return report
        self.count = max(self.count, self._base + report.count)
        self._heed(PrepareLine(says=report.says, line=report.line, count=self.count))
        return None

    def _end(self, child: Child) -> None:
        streams: Sequence[IO[bytes] | None] = (child.stdin, child.stdout, child.stderr)
        for stream in streams:
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(StokerError, TimeoutError):
            child.stop(grace_s=_GRACE_S, clock=self._program.clock)


MOST_BYTES = 4 << 20
MOST_FILES = 200
_LOOK_EVERY_S = 0.1


@frozen
class SmallTrees:
    """Fetches trees of which little is missing at once: a changed line of code is not worth its own process."""

    store: Callable[[], LocalStore]
    open_origins: Callable[[], AbstractContextManager[TreeSourceFinder]]
    """Opens connections to machines that have trees."""
    clock: Clock

    def bring(self, tree: str, stop: threading.Event) -> bool:
        """Fetch a tree, if little of it is missing; return True if it is here."""
        try:
            with stopped_by(stop) as inner, self.open_origins() as origins:
                receive_tree(origins, tree, self.store(), stop=inner, clock=self.clock, on_outlook=_refuse_much)
        except StokerError:
            # The process that prepares the job finds the error again, and reports it.
            return False
        return True


def _refuse_much(outlook: TreeFetchEstimate) -> None:
    if outlook.missing_bytes > MOST_BYTES or outlook.missing_files > MOST_FILES:
        raise Refused("too much of it is missing")


@contextmanager
def stopped_by(stop: threading.Event) -> Iterator[DownloadStop]:
    """Return a stop signal for transfers in this block, set within 0.1 s after an event."""
    inner, over = DownloadStop(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_EVERY_S):
            if stop.is_set():
                inner.ask(Cancelled("it is no longer needed"))
                return

    thread = threading.Thread(target=watch, name="stoker-stop", daemon=True)
    thread.start()
    try:
        yield inner
    finally:
        over.set()
        thread.join()


_MOST_LOOKS = 3
"""Fetched inputs may be pruned before they are used; this is the maximum number of checks."""


@frozen
class InputPreparer:
    """Prepares jobs on this machine: a quick check; if something is missing, a process of its own fetches it."""

    here: LocalInputs
    program: PreparingProgram
    ticket: Callable[[Grant, OtherUser | None], bytes]
    """Input of such a process: the job, its user if any, the connection to the coordinator."""
    clock: Clock
    small: SmallTrees | None = None
    """Fetches code of which little is missing, without a process."""

    def prepare(
        self, grant: Grant, stop: threading.Event, heed: Callable[[PrepareLine], None], user: OtherUser | None = None
    ) -> PresentInputs | StartRefusal | None:
        """Fetch everything that a job needs; or return why not. None if it was stopped.

        With a `user`, the job runs as that user, and its environment is built so. `heed` gets progress of transfers
        only: it is not called for inputs that are already here.
        """
        verified: tuple[str, ...] = ()
        for _ in range(_MOST_LOOKS):
            held = self.here.look(grant, verified, user)
            missing = what_is_missing(grant, held)
            if missing.impossible:
                return StartRefusal(reason="environment", message=missing.impossible, lasts=True)
            if missing.is_nothing:
                return held
            if missing.is_code_alone and self._is_brought_at_once(grant, stop):
                heed(PrepareLine())
                continue
            ended = bring_by_child(self.program, self.ticket(grant, user), stop, heed)
            if ended is None or stop.is_set():
                return None
            if ended.end == REFUSED:
                return StartRefusal(reason=ended.reason, message=ended.message, lasts=ended.lasts)
            verified = ended.verified
        return StartRefusal(reason="preparing", message="inputs were pruned before they could be used")

    def _is_brought_at_once(self, grant: Grant, stop: threading.Event) -> bool:
        return self.small is not None and self.small.bring(grant.spec.code_tree, stop)

    def sweep(self) -> None:
        """Delete what attempts left that ended with their worker."""
        with suppress(StokerError):
            self.here.workspaces.sweep(self.clock.wall_s())


_LARGEST_BYTES = 1 << 20


class InputActivity(Protocol):
    """Detects activity."""

    def beats(self) -> bool:
        """Return True if there was progress since the last call."""


class TreeActivity:
    """Detects the arrival of one tree, whichever process fetches it."""

    def __init__(self, store: LocalStore, tree: str) -> None:
        self._incoming = store.places.incoming
        self._staging = store.places.staging
        self._mark = tree[:12]
        self._before: tuple[int, int] | None = None

    def beats(self) -> bool:
        """Return True if any of it has grown since the last call."""
        arriving = _looks_of(self._incoming, "")
        staged = _looks_of(self._staging, self._mark)
        now = (arriving[0] + staged[0], max(arriving[1], staged[1]))
        has_moved = self._before is not None and now != self._before
        self._before = now
        return has_moved


class EnvironmentActivity:
    """Detects activity in the build of one environment."""

    def __init__(self, maker: Maker, choices: Sequence[EnvironmentChoice]) -> None:
        choice = choose(choices, maker.platform) if choices else None
        self._path = ""
        if choice is not None and choice.digest:
            place = maker.shelf.place(maker.key_of(choice.digest))
            self._path = os.path.join(place, "building.json")
        self._before = (0, 0)

    def beats(self) -> bool:
        """Return True if its processes used CPU time since the last call."""
        group = self._group()
        ticks = group_cpu_ticks(group.pid) if group is not None else None
        now = (group.pid, ticks) if group is not None and ticks is not None else self._before
        has_moved, self._before = now != self._before, now
        return has_moved

    def _group(self) -> ProcessIdentity | None:
        try:
            progress = loads(read_regular(self._path, _LARGEST_BYTES)) if self._path else {}
            group = ProcessIdentity.from_dict(progress["group"])
            return group if is_alive(group) is not Liveness.GONE else None
        except (OSError, ValueError, KeyError, TypeError, StokerError):
            return None


def _looks_of(folder: str, part: str) -> tuple[int, int]:
    """Return the bytes in a folder under names that contain a text, and when they last changed."""
    size_bytes, changed_ns = 0, 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if part in entry.name:
                    info = entry.stat(follow_symlinks=False)
                    size_bytes += info.st_size
                    changed_ns = max(changed_ns, info.st_mtime_ns)
    except OSError:
        # It was deleted meanwhile.
        return size_bytes, changed_ns
    return size_bytes, changed_ns


# The rate of the last data transfer to this machine, for estimates.

_WORTH_BYTES = 4 << 20
"""The rate of a smaller transfer means nothing."""
_NAME = "rate"
_LARGEST_RATE_FILE_BYTES = 40


def note_rate(store: LocalStore, size_bytes: int, seconds: float) -> None:
    """Record the rate of a transfer, if it is large enough."""
    if size_bytes >= _WORTH_BYTES and seconds > 0:
        with suppress(StokerError):
            write_file(_path(store), f"{int(size_bytes / seconds)}".encode(), mode=0o600)


def read_rate(store: LocalStore) -> int:
    """Return bytes per second; 0 if unknown."""
    try:
        return max(0, int(read_regular(_path(store), _LARGEST_RATE_FILE_BYTES)))
    except (OSError, ValueError, StokerError):
        return 0


def _path(store: LocalStore) -> str:
    return os.path.join(store.places.incoming, _NAME)
