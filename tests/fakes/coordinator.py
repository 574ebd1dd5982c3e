"""A coordinator in memory, at the client's seam: the same messages, the same fences, no network and no database.

    fleet = FakeCoordinator()
    job = fleet.submit("hello", argv=["true"], folder=str(tmp_path))
    fleet.until(lambda: fleet.jobs[job].state == "completed")

Everything that was accepted stands in `told`, in order. `is_away` lets every call fail as a cut network does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stoker.core.digests import Digest, Tree
from stoker.core.errors import Conflict, NoCoordinator, NotFound, StaleLease, StokerError
from stoker.core.job import job_id
from stoker.core.leases import AttemptToken
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    CheckpointBody,
    Claim,
    ClaimResponse,
    Decline,
    Fail,
    Finish,
    Grant,
    Hello,
    LeaseInstruction,
    LeaseInstructionKind,
    LeaseReport,
    LeaseWrite,
    PointCheckpoint,
    Release,
    Renewal,
    RenewalResponse,
    Start,
    Welcome,
    WriteResponse,
)
from stoker.protocol.mirror_pieces import MirrorPiece, MirrorPieceResult, results_of
from stoker.protocol.tree_messages import PackResponse, TreeView, read_pack
from stoker.protocol.view_messages import FileList, FileView, FleetStatus
from stoker.store.archives.archive_members import files_of, listing_bytes, read_listing
from tests.fakes.grants import grant_of

PATIENCE_S = 30.0
_STATE_AFTER = {
    Start: "running",
    Decline: "pending",
    Release: "pending",
    Finish: "completed",
    Fail: "failed",
    CancelConfirmed: "cancelled",
    PointCheckpoint: "",
}


@dataclass(slots=True)
class FakeJob:
    """One job, and who has it."""

    grant: dict[str, Any]
    state: str = "pending"
    attempt: int = 0
    epoch: int = 0
    holder: str = ""
    order: tuple[LeaseInstructionKind, str] | None = None
    checkpoint: CheckpointBody | None = None
    last: Any = None
    reports: list[LeaseReport] = field(default_factory=list)
    declined_by: set[str] = field(default_factory=set)


class FakeCoordinator:
    """All of it. Safe from several threads."""

    def __init__(self, *, lease_s: float = 30.0, heartbeat_s: float = 0.2, claim_wait_s: float = 1.0) -> None:
        self.lease_s, self.heartbeat_s, self.claim_wait_s = lease_s, heartbeat_s, claim_wait_s
        self.url = "http://fake.invalid"
        self.generation = 1
        self.jobs: dict[str, FakeJob] = {}
        self.told: list[tuple[str, Any]] = []
        self.files_there: dict[tuple[str, int, str], bytearray] = {}
        self.objects: dict[str, bytes] = {}
        self.trees: dict[str, Tree] = {}
        self.hellos: list[Hello] = []
        self.renewals: list[Renewal] = []
        self.is_away = False
        self.fails_with: StokerError | None = None
        self.closed = ""
        self.loses_answers_of: set[str] = set()
        self._answered: dict[str, ClaimResponse] = {}
        self._turn = threading.Condition()

    def submit(self, name: str, *, recipe: str = "command", args: dict[str, Any] | None = None, **more: Any) -> str:
        """Take a job in; `argv` and `folder` are a program's."""
        argv, checkpoint = more.pop("argv", None), more.pop("checkpoint", None)
        args = {"argv": list(argv), **(args or {})} if argv is not None else dict(args or {})
        # All its arguments are its identity, and its mode tells it from others with the same.
        mode = f"{name}{len(self.jobs)}"
        version, seed = more.get("schema_version", 1), more.get("seed")
        job = str(job_id(recipe=recipe, schema_version=version, args=args, mode=mode, seed=seed))
        more = {"identity": args, "mode": mode, **more}
        with self._turn:
            self.jobs[job] = FakeJob({"name": name, "recipe": recipe, "args": args, **more}, checkpoint=checkpoint)
            self._turn.notify_all()
        return job

    def wish(self, job: str, do: LeaseInstructionKind, why: str = "") -> None:
        """Want something of a running job's worker, told to whoever listens and with every heartbeat."""
        with self._turn:
            self.jobs[job].order = (do, why)
            self._turn.notify_all()

    def expire(self, job: str) -> None:
        """Judge a lease to be over: the job waits again, under a higher epoch."""
        with self._turn:
            found = self.jobs[job]
            found.state, found.holder, found.epoch = "pending", "", found.epoch + 1
            self._turn.notify_all()

    def until(self, claim: Callable[[], object], *, what: Callable[[], str] | None = None) -> None:
        """Wait until something is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < deadline_s, what() if what else f"not within {PATIENCE_S} s: {self.told}"
            time.sleep(0.01)

    def words(self, job: str) -> list[str]:
        """Return what was said of a job, in order."""
        return [word for word, said in self.told if said[0] == job]

    def hello(self, hello: Hello) -> Welcome:
        with self._listening("hello"):
            self.hellos.append(hello)
            for found in self.jobs.values():
                if found.state in ("claimed", "running") and found.holder != hello.incarnation:
                    found.state, found.holder, found.epoch = "pending", "", found.epoch + 1
            return Welcome(
                worker=hello.worker,
                generation=self.generation,
                heartbeat_s=self.heartbeat_s,
                lease_s=self.lease_s,
                start_s=60.0,
                claim_wait_s=self.claim_wait_s,
                server_s=0.0,
                version="fake",
                closed=self.closed,
            )

    def claim(self, claim: Claim) -> ClaimResponse:
        deadline_s = time.monotonic() + claim.wait_s
        while True:
            with self._listening("claim"):
                answer = self._answered.get(claim.request_id) or self._grant(claim)
                left_s = deadline_s - time.monotonic()
                if answer.grants or answer.orders or left_s <= 0:
                    self._answered[claim.request_id] = answer
                    return answer
                self._turn.wait(min(left_s, 0.05))

    def renew(self, renewal: Renewal) -> RenewalResponse:
        with self._listening("renew"):
            self.renewals.append(renewal)
            orders = []
            for report in renewal.leases:
                found = self.jobs.get(report.job)
                if found is None or not self._is_current(report.token()):
                    orders.append(
                        LeaseInstruction(
                            job=report.job, epoch=report.epoch, do=LeaseInstructionKind.DROP, why="it is not yours"
                        )
                    )
                    continue
                found.reports.append(report)
                orders += self._orders(report.job)
            return RenewalResponse(
                lease_s=self.lease_s,
                heartbeat_s=self.heartbeat_s,
                generation=self.generation,
                server_s=0.0,
                orders=tuple(orders),
                closed=self.closed,
            )

    def write(self, job: str, said: LeaseWrite) -> WriteResponse:
        if isinstance(said, Decline):
            self.jobs[job].declined_by.add(self.jobs[job].holder)
        if isinstance(said, Finish) and said.tree not in self.trees:
            raise Conflict("no such bytes lie here")
        settled = self._settle(said.verb, job, said, _STATE_AFTER[type(said)])
        if isinstance(said, PointCheckpoint):
            self.jobs[job].checkpoint = said.checkpoint
        return settled

    def status(self) -> FleetStatus:
        with self._listening("status"):
            jobs: dict[str, int] = {}
            for found in self.jobs.values():
                jobs[found.state] = jobs.get(found.state, 0) + 1
            return FleetStatus(
                version="fake",
                protocol=1,
                generation=self.generation,
                started_s=0.0,
                server_s=0.0,
                database="memory",
                jobs=jobs,
                machines={},
                lease_s=self.lease_s,
                heartbeat_s=self.heartbeat_s,
            )

    def put_files(self, token: AttemptToken, pieces: Sequence[MirrorPiece]) -> tuple[MirrorPieceResult, ...]:
        with self._listening("put_files"):
            self._fence(token)
            return results_of([self._append(token, one) for one in pieces]).results

    def _append(self, token: AttemptToken, piece: MirrorPiece) -> int:
        there = self.files_there.setdefault((token.job, token.attempt, piece.path), bytearray())
        offset, data = piece.offset, bytes(piece.data)
        assert offset <= len(there), "a mirror never skips, and this one never loses"
        assert there[offset : offset + len(data)] == data[: len(there) - offset]
        there += data[len(there) - offset :]
        return len(there)

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        with self._listening("files"):
            found = [
                FileView(path=path, size_bytes=len(data))
                for (job, number, path), data in self.files_there.items()
                if job == ref and number == attempt
            ]
            return FileList(attempt=attempt or 0, files=tuple(found))

    def want_tree(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeView:
        with self._listening("upload"):
            return TreeView(tree=tree, files=files, size_bytes=size_bytes, is_here=tree in self.trees)

    def missing(self, digests: Sequence[str], sizes: Sequence[int] = ()) -> tuple[str, ...]:
        with self._listening("upload"):
            del sizes
            return tuple(digest for digest in digests if digest not in self.objects)

    def send_pack(self, pack: bytes) -> PackResponse:
        with self._listening("upload"):
            count = len(self.objects)
            self.objects.update((str(digest), data) for digest, data in read_pack(pack))
            return PackResponse(kept=len(self.objects) - count, known=0)

    def keep_tree(self, tree: str, listing: bytes) -> TreeView:
        with self._listening("upload"):
            read = read_listing(listing, tree)
            is_here = self.objects.keys() >= files_of(read).keys()
            if is_here:
                self.trees[tree] = read
            return TreeView(tree=tree, files=len(read.entries), size_bytes=read.size_bytes, is_here=is_here)

    def tree_listing(self, tree: str) -> bytes:
        if tree not in self.trees:
            raise NotFound("no such tree")
        return listing_bytes(self.trees[tree])

    @contextmanager
    def fetch_contents(self, digests: Sequence[str]) -> Iterator[Iterator[tuple[Digest, bytes]]]:
        yield iter([(Digest(digest), self.objects[digest]) for digest in digests if digest in self.objects])

    def cut(self) -> None:
        """A line of its own, which nobody needs to cut: questions end by themselves soon."""

    def _orders(self, job: str) -> list[LeaseInstruction]:
        found = self.jobs[job]
        return (
            [LeaseInstruction(job=job, epoch=found.epoch, do=found.order[0], why=found.order[1])] if found.order else []
        )

    def _grant(self, claim: Claim) -> ClaimResponse:
        held = (job for job, found in self.jobs.items() if found.holder == claim.incarnation)
        orders = [one for job in held if job not in claim.stopping for one in self._orders(job)]
        if orders:
            return ClaimResponse(orders=tuple(orders), generation=self.generation, closed=self.closed)
        grants: list[Grant] = []
        for job, found in self.jobs.items():
            if found.state != "pending" or len(grants) >= claim.most or self.closed:
                continue
            if claim.incarnation in found.declined_by or claim.measured.closed:
                continue
            found.attempt, found.epoch = found.attempt + 1, found.epoch + 1
            found.state, found.holder = "claimed", claim.incarnation
            grants.append(
                grant_of(
                    job=job,
                    attempt=found.attempt,
                    epoch=found.epoch,
                    generation=self.generation,
                    lease_s=self.lease_s,
                    start_s=60.0,
                    checkpoint=found.checkpoint,
                    **found.grant,
                )
            )
        return ClaimResponse(grants=tuple(grants), generation=self.generation, closed=self.closed)

    def _settle(self, word: str, job: str, said: LeaseWrite, state: str) -> WriteResponse:
        with self._listening(word):
            token = said.token(job)
            found = self.jobs[job]
            if found.last == said and found.attempt == token.attempt:
                return WriteResponse(job=job, state=found.state, is_repeat=True)
            self._fence(token)
            self.told.append((word, (job, said)))
            found.last = said
            if state:
                found.state = state
            if state not in ("", "running"):
                found.holder, found.order = "", None
            self._turn.notify_all()
            return WriteResponse(job=job, state=found.state)

    def _is_current(self, token: AttemptToken) -> bool:
        found = self.jobs.get(token.job)
        is_same = found is not None and (found.attempt, found.epoch) == (token.attempt, token.epoch)
        return is_same and token.generation == self.generation and found is not None and bool(found.holder)

    def _fence(self, token: AttemptToken) -> None:
        if not self._is_current(token):
            raise StaleLease(f"job {token.job[:8]}: attempt {token.attempt} is not the one that counts")

    @contextmanager
    def _listening(self, what: str) -> Iterator[None]:
        with self._turn:
            if self.is_away:
                raise NoCoordinator("nobody answers")
            if self.fails_with is not None:
                raise self.fails_with
            yield
            if what in self.loses_answers_of:
                self.loses_answers_of.discard(what)
                raise NoCoordinator("the answer was lost")
