"""What a node reads, hashed beside the loop where that takes long.

A decision about a node needs the digests of the files that it is given, and a look at the result that is known. Mostly
all of that is remembered, and the loop decides at once. Where more has to be read than takes a moment, a thread reads
it, and the loop decides when that is done: it goes on hearing, renewing and ending work meanwhile.

One thread reads at a time, in the order of asking. Nodes that are given the same large file wait for the first of them:
when their turn comes its digest is remembered, and they look at the file instead of reading it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import islice
from typing import ParamSpec, TypeVar

from stoker.core.clock import Clock
from stoker.core.digests import ArtifactRef
from stoker.core.errors import InternalError, StokerError
from stoker.core.frozen import changeable, fresh
from stoker.core.text import format_size
from stoker.engine.plan import PlanNode
from stoker.engine.result_cache import Execute, Resolver, Use
from stoker.store.trees import ReadingStopped, heeding

P = ParamSpec("P")
T = TypeVar("T")

_MOST_AT_ONCE_BYTES = 16 << 20
"""What the loop itself reads for one decision: a few hundredths of a second."""
_TELL_EVERY_S = 10.0
_LAST_PIECE_S = 1.0


@changeable
class _Reader:
    """What is read for one node, by a thread once it is its turn."""

    name: str
    read: Callable[[], Mapping[str, str]]
    path: str
    """What took the loop too long to read; empty: the bytes of a result."""
    told_s: float = 0.0
    read_bytes: int = 0
    outcome: Mapping[str, str] | StokerError | None = None
    thread: threading.Thread | None = None
    is_stopped: threading.Event = fresh(factory=threading.Event)


class LoopReadBudget:
    """What the loop reads itself. `heed` is told of all that its thread reads, as long as the run goes on."""

    def __init__(self) -> None:
        self._left_bytes: int | None = None

    def heed(self, size_bytes: int) -> None:
        """Count what is read for a decision; more than a moment allows ends it."""
        if self._left_bytes is not None:
            self._left_bytes -= size_bytes
            if self._left_bytes < 0:
                raise ReadingStopped

    def quickly(self, decide: Callable[P, T], *args: P.args, **more: P.kwargs) -> T | None:
        """Return a decision if it takes no more reading than a moment allows; else None. Decisions are never None."""
        self._left_bytes = _MOST_AT_ONCE_BYTES
        try:
            return decide(*args, **more)
        except ReadingStopped:
            return None
        finally:
            self._left_bytes = None


class NodeDecider:
    """Decisions about the nodes of one run, and the threads that read for them. Only the executor's loop uses it."""

    def __init__(self, resolver: Resolver, moment: LoopReadBudget, clock: Clock, wake: Callable[[], None]) -> None:
        self._resolver = resolver
        self._moment = moment
        self._clock = clock
        self._wake = wake
        self._readers: dict[str, _Reader] = {}
        """By node, in the order of asking; the first of them reads."""
        self._long: set[str] = set()
        """Paths that wait to be read by a thread: the loop does not begin with them."""
        self._path = ""
        """What the loop is reading."""
        self._stopped: list[_Reader] = []
        self._outcomes: dict[str, Mapping[str, str] | StokerError] = {}

    def decide(
        self, name: str, node: PlanNode, inputs: Mapping[str, tuple[ArtifactRef, ...]], *, needs_bytes: bool
    ) -> Use | Execute | None:
        """Decide about a node at once, or have a thread read what that needs: None, ask again when it has ended.

        Raises what went wrong there.
        """
        read = self._outcomes.pop(name, None)
        if isinstance(read, StokerError):
            raise read
        if read is not None:
            return self._resolver.resolve(
                name,
                node,
                inputs,
                needs_bytes=needs_bytes,
                digest_of=lambda path: read.get(path) or self._resolver.digest_of(path),
            )
        self._path = ""
        decision = self._moment.quickly(
            self._resolver.resolve, name, node, inputs, needs_bytes=needs_bytes, digest_of=self._digest_quickly
        )
        if decision is None:
            # What is known of its code belongs to the loop: it is looked up here.
            read_all = self._resolver.reader(name, node, inputs)
            self._readers[name] = _Reader(name=name, read=read_all, path=self._path)
            self._long.add(self._path)
            self._begin_next()
        return decision

    def ended(self) -> list[str]:
        """Return the nodes for which everything has been read, each once, and have the next one read."""
        names = []
        for reader in self._first():
            if reader.outcome is not None:
                del self._readers[reader.name]
                self._long.discard(reader.path)
                self._outcomes[reader.name] = reader.outcome
                names.append(reader.name)
        self._begin_next()
        return names

    def tell(self, said: Callable[[str, str], None]) -> None:
        """Say now and then how far the one is that has been reading for a while."""
        now_s = self._clock.monotonic_s()
        for reader in self._first():
            if now_s - reader.told_s >= _TELL_EVERY_S:
                reader.told_s = now_s
                said(reader.name, f"reading what it is given: {format_size(reader.read_bytes)} so far")

    def stop(self, name: str) -> None:
        """Read nothing any more for a node. The next one begins when the loop asks for those that have ended."""
        self._outcomes.pop(name, None)
        reader = self._readers.pop(name, None)
        if reader is not None:
            self._long.discard(reader.path)
            reader.is_stopped.set()
            self._stopped.append(reader)

    def stop_all(self) -> list[str]:
        """Stop reading; return the nodes that waited for it. A thread ends with the piece that it reads."""
        names = list(self._readers)
        for name in names:
            self.stop(name)
        stopped, self._stopped = self._stopped, []
        deadline_s = self._clock.monotonic_s() + _LAST_PIECE_S
        for reader in stopped:
            if reader.thread is not None:
                reader.thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))
        return names

    def _digest_quickly(self, path: str) -> str:
        self._path = path
        if path in self._long:
            raise ReadingStopped
        digest = self._resolver.digest_of(path)
        self._path = ""
        return digest

    def _first(self) -> list[_Reader]:
        return list(islice(self._readers.values(), 1))

    def _begin_next(self) -> None:
        for reader in self._first():
            if reader.thread is None:
                reader.told_s = self._clock.monotonic_s()
                reader.thread = threading.Thread(
                    target=self._read, args=(reader,), name=f"read {reader.name}", daemon=True
                )
                reader.thread.start()

    def _read(self, reader: _Reader) -> None:
        def count(size_bytes: int) -> None:
            reader.read_bytes += size_bytes
            if reader.is_stopped.is_set():
                raise ReadingStopped

        outcome: Mapping[str, str] | StokerError
        try:
            with heeding(count):
                outcome = reader.read()
        except ReadingStopped:
            return
        except StokerError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - a thread that dies without a word would hang the run
            outcome = InternalError(f"{type(error).__name__}: {error}")
        reader.outcome = outcome
        self._wake()
