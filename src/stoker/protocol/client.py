"""The client that speaks to a coordinator: blocking, safe to use from several threads, a method for each route.

    client = FleetClient(transport, "http://127.0.0.1:7717", clock=clock)
    client.jobs(state="running").jobs

What the coordinator refuses is raised here as the error it was there; whoever can't be reached is `NoCoordinator`, an
answer that none of ours gives is `BadAnswer`. Questions that may be asked twice are, for as long as `Patience` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import TypeVar

from pydantic import BaseModel

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.errors import NotFound, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.leases import AttemptToken
from stoker.host.http.exchange import BodySource, HttpClientResponse, Transport
from stoker.protocol.enrolment_messages import (
    CertificateList,
    CertificateView,
    InviteList,
    InviteRequest,
    InviteResponse,
    InviteView,
    JoinFinish,
    JoinFinishResponse,
    LiveCertificates,
    RenewCertificate,
    TokenList,
    TokenRequest,
    TokenResponse,
    TokenView,
)
from stoker.protocol.job_messages import Submission, SubmissionPart, SubmissionResponse, joined, parts_of
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    Claim,
    ClaimResponse,
    Decline,
    Fail,
    Finish,
    Hello,
    LeaseTokenMessage,
    PointCheckpoint,
    Release,
    Renewal,
    RenewalResponse,
    Start,
    Welcome,
    WriteResponse,
)
from stoker.protocol.operator_messages import (
    ExecEnd,
    ExecInput,
    ExecListen,
    ExecOutput,
    ExecRequest,
    ExecResponse,
    ExecSize,
    HistoryCheck,
    MachineReport,
    WebhookList,
    WebhookRequest,
    WebhookResponse,
    WebhookTestResult,
    WebhookView,
)
from stoker.protocol.refusals import no_coordinator_there
from stoker.protocol.transport import (
    CoordinatorRequest,
    CoordinatorTransport,
    FleetEvent,
    Query,
    RequestTimeouts,
    listen,
    part,
    parts,
    whole_number,
)
from stoker.protocol.tree_messages import (
    MOST_LISTING_BYTES,
    DigestsRequest,
    MissingDigests,
    PackResponse,
    SourcesRequest,
    SourcesResponse,
    TreeRequest,
    TreeView,
    read_frames,
)
from stoker.protocol.view_messages import (
    MOST_FILE_BYTES,
    MOST_NAMED_JOBS,
    DoneView,
    EventPage,
    FileList,
    FileOffset,
    FleetStatus,
    JobDetails,
    JobExplanation,
    JobPage,
    JobRequest,
    JobsPriorityRequest,
    JobsRequest,
    Leaderboard,
    MachineList,
    MachineRequest,
    MachineView,
    PriorityRequest,
    PruneRequest,
    PruneView,
    ScheduleView,
    UploadRequest,
    UploadResponse,
)

# What people and their programs ask of a coordinator, a method for each route.
#
# A REF is a job's name, `name/3`, the beginning of an id, or `last`.

M = TypeVar("M", bound=BaseModel)

PAGE = 100
"""How many jobs a page has unless another number is asked for."""
SIZE_HEADER = "X-Stoker-Size"
"""Of an answer with a piece of a mirrored file: how large the file is by now."""
OVER_HEADER = "X-Stoker-Over"
"""Of the same: `1` when the attempt has ended, so that nothing will be added."""
ATTEMPT_HEADER = "X-Stoker-Attempt"
_SUBMIT_S = 300.0
_PRUNE_S = 600.0


@frozen
class FilePiece:
    """Some bytes of a mirrored file."""

    data: bytes
    offset: int
    attempt: int
    size_bytes: int
    """Of the whole file, by now."""
    is_over: bool
    """The attempt has ended: nothing will be added to it."""


class PeopleCalls:
    """The other half of a `FleetClient`."""

    _speaker: CoordinatorTransport

    def submit(self, submission: Submission) -> SubmissionResponse:
        """Hand in jobs, all or none. With a key, a repeat gets the same answer; without one it is sent once.

        Very many are sent in parts (`job_messages`), all or none of each.
        """
        sent = parts_of(submission)
        answers: list[SubmissionResponse] = []
        for one in sent:
            try:
                answers.append(self._submit(one, is_repeatable=bool(submission.key) or submission.dry_run))
            except StokerError as error:
                if answers and not submission.dry_run:
                    done, total = sum(len(answer.jobs) for answer in answers), len(submission.jobs)
                    error.add_hint(f"{done:,} of {total:,} jobs were submitted; the same again submits the rest")
                raise
        return joined(sent, answers)

    def _submit(self, sent: SubmissionPart, *, is_repeatable: bool) -> SubmissionResponse:
        question = CoordinatorRequest(
            path="/v1/jobs",
            method="POST",
            body=sent.body,
            headers={"Content-Type": "application/json"},
            is_repeatable=is_repeatable,
            waits_s=_SUBMIT_S,
        )
        submitted = self._speaker.ask(question, SubmissionResponse)
        if len(submitted.jobs) != len(sent.positions):
            raise no_coordinator_there(self._speaker.url, "it answered for other jobs than it was sent")
        return submitted

    def jobs(
        self,
        *,
        state: str = "",
        name: str = "",
        recipe: str = "",
        machine: str = "",
        after: str = "",
        limit: int = PAGE,
    ) -> JobPage:
        """Return a page of jobs, newest first; `after` is the `next` of the page before."""
        named: Query = {"state": state, "name": name, "recipe": recipe, "machine": machine}
        page = self._get("/v1/jobs", JobPage, {**named, "after": after, "limit": limit})
        if after and page.next == after:
            raise no_coordinator_there(self._speaker.url, "its list of jobs goes on where it was")
        return page

    def job(self, ref: str) -> JobDetails:
        """Return everything about one job."""
        return self._get(f"/v1/jobs/{part(ref)}", JobDetails)

    def explain(self, ref: str) -> JobExplanation:
        """Return why a job is where it is: every machine, with its reason."""
        return self._get(f"/v1/jobs/{part(ref)}/explain", JobExplanation)

    def job_events(self, ref: str, *, after: int = 0, limit: int = PAGE) -> EventPage:
        """Return a page of one job's events, oldest first."""
        return self._get(f"/v1/jobs/{part(ref)}/events", EventPage, {"after": after, "limit": limit})

    def events(self, after: int | None = None, *, beat_s: float = 20.0) -> Iterator[FleetEvent | None]:
        """Return every event behind one, as they happen, across restarts of the coordinator.

        Without `after` it begins with what happens now. None comes with every beat of silence, so that whoever listens
        can look at the clock. Raises `NoCoordinator` once its patience is over.
        """
        return listen(self._speaker, after, beat_s=beat_s)

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        """Return what is mirrored of a job's attempt, by default its last."""
        return self._get(f"/v1/jobs/{part(ref)}/files", FileList, {"attempt": attempt})

    def read_file(
        self,
        ref: str,
        path: str,
        *,
        attempt: int | None = None,
        offset: int = 0,
        limit: int = MOST_FILE_BYTES,
        wait_s: float = 0.0,
    ) -> FilePiece:
        """Return bytes of a mirrored file; at its end the question is held open for `wait_s` until more come."""
        query: Query = {"attempt": attempt, "offset": offset, "limit": limit, "wait_s": wait_s or None}
        where = f"/v1/jobs/{part(ref)}/files/{parts(path)}"
        reply = self._speaker.open(CoordinatorRequest(path=where, query=query, waits_s=wait_s))
        try:
            data = bytearray()
            while piece := self._speaker.read(reply):
                data += piece
                if len(data) > limit:
                    raise no_coordinator_there(self._speaker.url, "it sent more of a file than was asked for")
        finally:
            reply.close()
        size = whole_number(reply.headers.get(SIZE_HEADER))
        return FilePiece(
            data=bytes(data),
            offset=offset,
            attempt=whole_number(reply.headers.get(ATTEMPT_HEADER)) or attempt or 0,
            size_bytes=offset + len(data) if size is None else size,
            is_over=reply.headers.get(OVER_HEADER) == "1",
        )

    def cancel(self, ref: str, *, by: str = "") -> DoneView:
        """Say that a job is no longer wanted. It is durable once this returns; that it stopped is confirmed later."""
        return self._do_to_job(ref, "cancel", JobRequest(by=by), is_repeatable=True)

    def requeue(self, ref: str, *, by: str = "") -> DoneView:
        """Start a job that has ended again."""
        return self._do_to_job(ref, "requeue", JobRequest(by=by), is_repeatable=False)

    def set_priority(self, ref: str, priority: int, *, by: str = "") -> DoneView:
        """Put a job elsewhere in the line."""
        return self._do_to_job(ref, "priority", PriorityRequest(priority=priority, by=by), is_repeatable=True)

    def cancel_jobs(self, jobs: Sequence[str], *, by: str = "") -> DoneView:
        """Cancel many, by their ids; what has ended already stands in the notes."""
        return self._do_to_jobs(jobs, "cancel", lambda some: JobsRequest(jobs=some, by=by), is_repeatable=True)

    def requeue_jobs(self, jobs: Sequence[str], *, by: str = "") -> DoneView:
        """Start many again that have ended, by their ids; none of them if one is live."""
        return self._do_to_jobs(jobs, "requeue", lambda some: JobsRequest(jobs=some, by=by), is_repeatable=False)

    def set_priority_of_jobs(self, jobs: Sequence[str], priority: int, *, by: str = "") -> DoneView:
        """Put many elsewhere in the line, by their ids."""
        return self._do_to_jobs(
            jobs, "priority", lambda some: JobsPriorityRequest(jobs=some, priority=priority, by=by), is_repeatable=True
        )

    def pin(self, ref: str, *, by: str = "") -> DoneView:
        """Keep a job's result whatever is pruned."""
        return self._do_to_job(ref, "pin", JobRequest(by=by), is_repeatable=True)

    def unpin(self, ref: str, *, by: str = "") -> DoneView:
        """Take that back."""
        return self._do_to_job(ref, "unpin", JobRequest(by=by), is_repeatable=True)

    def machines(self) -> tuple[MachineView, ...]:
        """Return every machine."""
        return self._get("/v1/machines", MachineList).machines

    def machine(self, name: str) -> MachineView:
        """Return one machine."""
        return self._get(f"/v1/machines/{part(name)}", MachineView)

    def drain(self, machine: str, asked: MachineRequest | None = None) -> DoneView:
        """Return a machine no more work; what runs there finishes."""
        return self._do_to_machine(machine, "drain", asked, is_repeatable=True)

    def cordon(self, machine: str, asked: MachineRequest | None = None) -> DoneView:
        """Return a machine, or some of its devices, no more work: it is mistrusted."""
        return self._do_to_machine(machine, "cordon", asked, is_repeatable=True)

    def pause(self, machine: str, asked: MachineRequest | None = None) -> DoneView:
        """Give a machine back to its owner: what runs there checkpoints and goes back to the queue."""
        return self._do_to_machine(machine, "pause", asked, is_repeatable=True)

    def open(self, machine: str, asked: MachineRequest | None = None) -> DoneView:
        """Let a machine, or some of its devices, have work again."""
        return self._do_to_machine(machine, "open", asked, is_repeatable=True)

    def forget(self, machine: str, asked: MachineRequest | None = None) -> DoneView:
        """Remove a machine; without a certificate, one that holds nothing and whose worker is gone, or if forced."""
        return self._do_to_machine(machine, "forget", asked, is_repeatable=False)

    def schedule(self) -> ScheduleView:
        """Return the state of the scheduler."""
        return self._get("/v1/schedule", ScheduleView)

    def status(self) -> FleetStatus:
        """Return the whole fleet in one look."""
        return self._get("/v1/status", FleetStatus)

    def leaderboard(self, metric: str = "", *, limit: int | None = None) -> Leaderboard:
        """Return completed jobs by a metric, best first; without one, by the metric that most of them have."""
        return self._get("/v1/leaderboard", Leaderboard, {"metric": metric, "limit": limit})

    def reload(self, *, dry_run: bool = False) -> DoneView:
        """Have the coordinator read its cluster file and manifest again."""
        query: Query = {"dry_run": 1 if dry_run else None}
        return self._speaker.ask(
            CoordinatorRequest(path="/v1/reload", method="POST", query=query, is_repeatable=True), DoneView
        )

    def prune(self, asked: PruneRequest) -> PruneView:
        """Return which results and logs would go, or let them go."""
        question = CoordinatorRequest(path="/v1/prune", method="POST", body=asked, is_repeatable=True, waits_s=_PRUNE_S)
        return self._speaker.ask(question, PruneView)

    def _get(self, path: str, kind: type[M], query: Query | None = None) -> M:
        return self._speaker.ask(CoordinatorRequest(path=path, query=query or {}), kind)

    def _do_to_job(self, ref: str, verb: str, asked: JobRequest | PriorityRequest, *, is_repeatable: bool) -> DoneView:
        where = f"/v1/jobs/{part(ref)}/{verb}"
        return self._speaker.ask(
            CoordinatorRequest(path=where, method="POST", body=asked, is_repeatable=is_repeatable), DoneView
        )

    def _do_to_jobs(
        self, jobs: Sequence[str], verb: str, ask: Callable[[tuple[str, ...]], BaseModel], *, is_repeatable: bool
    ) -> DoneView:
        """Ask in as few requests as may name so many."""
        done = DoneView()
        for start in range(0, len(jobs), MOST_NAMED_JOBS):
            asked = ask(tuple(jobs[start : start + MOST_NAMED_JOBS]))
            question = CoordinatorRequest(
                path=f"/v1/jobs/{verb}", method="POST", body=asked, is_repeatable=is_repeatable
            )
            part_done = self._speaker.ask(question, DoneView)
            done = DoneView(changed=done.changed + part_done.changed, notes=done.notes + part_done.notes)
        return done

    def _do_to_machine(self, name: str, verb: str, asked: MachineRequest | None, *, is_repeatable: bool) -> DoneView:
        where, asked = f"/v1/machines/{part(name)}/{verb}", asked or MachineRequest()
        return self._speaker.ask(
            CoordinatorRequest(path=where, method="POST", body=asked, is_repeatable=is_repeatable), DoneView
        )


# What a worker asks of its coordinator, a method for each route.
#
# Everything here may be asked again after a lost answer: a claim by its request id, an attempt's word by its token, a
# file by its offset, an upload by its digest.


class ObjectStream:
    """The bytes of one object of the coordinator's, from some offset on."""

    def __init__(self, speaker: CoordinatorTransport, reply: HttpClientResponse, *, offset: int) -> None:
        self._speaker = speaker
        self._reply = reply
        self.offset = offset
        """Where the bytes begin: 0 where the server knows no ranges."""
        self.length_bytes = whole_number(reply.headers.get("Content-Length"))
        """How many follow, where the server says so."""

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes; nothing at the end."""
        return self._speaker.read(self._reply, at_most_bytes)


class WorkerCalls:
    """One half of a `FleetClient`."""

    _speaker: CoordinatorTransport

    def hello(self, hello: Hello) -> Welcome:
        """Return who this worker is and what its machine has."""
        return self._speaker.ask(_said("/v1/hello", hello), Welcome)

    def claim(self, claim: Claim) -> ClaimResponse:
        """Ask for work; held open for `claim.wait_s` while there is none."""
        question = CoordinatorRequest(
            path="/v1/claims", method="POST", body=claim, is_repeatable=True, waits_s=claim.wait_s
        )
        return self._speaker.ask(question, ClaimResponse)

    def renew(self, renewal: Renewal) -> RenewalResponse:
        """Renew every lease of this worker."""
        return self._speaker.ask(_said("/v1/renewals", renewal), RenewalResponse)

    def start(self, job: str, said: Start) -> WriteResponse:
        """Tell that the job's process runs."""
        return self._settle(job, "start", said)

    def decline(self, job: str, said: Decline) -> WriteResponse:
        """Decline a grant unstarted, with the reason."""
        return self._settle(job, "decline", said)

    def release(self, job: str, said: Release) -> WriteResponse:
        """Release a lease; the attempt is not charged."""
        return self._settle(job, "release", said)

    def finish(self, job: str, said: Finish) -> WriteResponse:
        """Tell that it completed; the bundle lies with the coordinator."""
        return self._settle(job, "finish", said)

    def fail(self, job: str, said: Fail) -> WriteResponse:
        """Tell that it failed, and why."""
        return self._settle(job, "fail", said)

    def cancelled(self, job: str, said: CancelConfirmed) -> WriteResponse:
        """Confirm that it was stopped and nothing of it runs."""
        return self._settle(job, "cancelled", said)

    def checkpoint(self, job: str, said: PointCheckpoint) -> WriteResponse:
        """Point the job at a checkpoint that lies with the coordinator."""
        return self._settle(job, "checkpoint", said)

    def put_file(self, token: AttemptToken, path: str, data: bytes | BodySource, *, offset: int) -> int:
        """Append to a mirrored file of an attempt, and give its new size.

        Bytes that lie there already are not written twice. `Conflict` carries the right `offset` in its data where
        the file is shorter or longer than the offset.
        """
        told = {"attempt": token.attempt, "epoch": token.epoch, "generation": token.generation, "offset": offset}
        where = f"/v1/attempts/{part(token.job)}/files/{parts(path)}"
        return self._speaker.ask(_sent("PUT", where, data, told), FileOffset).offset

    def begin_upload(self, digest: str, size_bytes: int) -> UploadResponse:
        """Begin, or go on with, an upload: its answer says from where, or that the bytes are known."""
        return self._speaker.ask(
            _said("/v1/uploads", UploadRequest(digest=digest, size_bytes=size_bytes)), UploadResponse
        )

    def append_upload(self, upload: str, data: bytes | BodySource, *, offset: int) -> int:
        """Send the next bytes of an upload, and give how many lie there now."""
        question = _sent("PATCH", f"/v1/uploads/{part(upload)}", data, {"offset": offset})
        return self._speaker.ask(question, FileOffset).offset

    def finish_upload(self, upload: str) -> UploadResponse:
        """Have the bytes checked against their digest and kept; `is_known` says that they are."""
        question = CoordinatorRequest(path=f"/v1/uploads/{part(upload)}/finish", method="POST", is_repeatable=True)
        return self._speaker.ask(question, UploadResponse)

    def has_object(self, sha256: str) -> int | None:
        """Return how large an object of the coordinator's is; nothing: it has none of that digest."""
        try:
            reply = self._speaker.open(CoordinatorRequest(path=f"/v1/objects/{part(sha256)}", method="HEAD"))
        except NotFound:
            return None
        reply.close()
        return whole_number(reply.headers.get("Content-Length"))

    @contextmanager
    def get_object(self, sha256: str, *, offset: int = 0) -> Iterator[ObjectStream]:
        """Open an object's bytes from an offset on. Whoever reads them checks them against the digest."""
        ranged = {"Range": f"bytes={offset}-"} if offset else {}
        reply = self._speaker.open(CoordinatorRequest(path=f"/v1/objects/{part(sha256)}", headers=ranged))
        try:
            is_partial = reply.status == HTTPStatus.PARTIAL_CONTENT
            if is_partial and not (reply.headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
                raise no_coordinator_there(self._speaker.url, "it sent another range than was asked for")
            yield ObjectStream(self._speaker, reply, offset=offset if is_partial else 0)
        finally:
            reply.close()

    def _settle(self, job: str, verb: str, said: LeaseTokenMessage) -> WriteResponse:
        return self._speaker.ask(_said(f"/v1/attempts/{part(job)}/{verb}", said), WriteResponse)


def _said(path: str, body: BaseModel) -> CoordinatorRequest:
    return CoordinatorRequest(path=path, method="POST", body=body, is_repeatable=True)


def _sent(method: str, path: str, data: bytes | BodySource, query: Query) -> CoordinatorRequest:
    return CoordinatorRequest(path=path, method=method, body=data, query=query, is_repeatable=True)


# Who belongs to a fleet, as asked of its coordinator: invitations, joining, certificates, tokens.

JOIN_BEGIN = "/v1/join/begin"
"""Asked over a connection that proves nothing yet: `worker.enrolment`, and nobody else."""


class TrustCalls:
    """A part of a `FleetClient`."""

    _speaker: CoordinatorTransport

    def invite(self, asked: InviteRequest) -> InviteResponse:
        """Invite a machine or a person. Its code is shown this once."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/invites", method="POST", body=asked), InviteResponse)

    def invites(self) -> tuple[InviteView, ...]:
        """Return the invitations that still count."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/invites"), InviteList).invites

    def withdraw_invite(self, invite: str) -> DoneView:
        """Take an invitation back."""
        return self._speaker.ask(CoordinatorRequest(path=f"/v1/invites/{part(invite)}", method="DELETE"), DoneView)

    def finish_join(self, finish: JoinFinish) -> JoinFinishResponse:
        """Prove that we have the code, and get what it is for. Asked again in the same words, the same comes back."""
        question = CoordinatorRequest(path="/v1/join/finish", method="POST", body=finish, is_repeatable=True)
        return self._speaker.ask(question, JoinFinishResponse)

    def renew_certificate(self, asked: RenewCertificate) -> JoinFinishResponse:
        """Get this machine's next certificate; the connection shows the present one."""
        question = CoordinatorRequest(path="/v1/certificates/renew", method="POST", body=asked, is_repeatable=True)
        return self._speaker.ask(question, JoinFinishResponse)

    def certificates(self) -> tuple[CertificateView, ...]:
        """Return the certificates of machines that have not expired."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/certificates"), CertificateList).certificates

    def live_certificates(self) -> tuple[str, ...]:
        """Return the numbers of all certificates that count now."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/certificates/live"), LiveCertificates).serials

    def make_token(self, asked: TokenRequest) -> TokenResponse:
        """Make a token. It is shown this once."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/tokens", method="POST", body=asked), TokenResponse)

    def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens, without their texts: those are not kept."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/tokens"), TokenList).tokens

    def revoke_token(self, token: str, *, by: str = "") -> DoneView:
        """End a token at once."""
        question = CoordinatorRequest(
            path=f"/v1/tokens/{part(token)}/revoke", method="POST", body=JobRequest(by=by), is_repeatable=True
        )
        return self._speaker.ask(question, DoneView)

    def rotate_token(self, token: str, *, by: str = "") -> TokenResponse:
        """Put a new text in a token's place; the old one ends."""
        return self._speaker.ask(
            CoordinatorRequest(path=f"/v1/tokens/{part(token)}/rotate", method="POST", body=JobRequest(by=by)),
            TokenResponse,
        )


# What is asked about trees of code and data: of a coordinator, or of a machine that has them.
#
# Everything may be asked again after a lost answer. Machines of the fleet answer the last three just as a
# coordinator.

_PIECE_BYTES = 1 << 20


class ContentCalls:
    """One part of a `FleetClient`."""

    _speaker: CoordinatorTransport

    def want_tree(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeView:
        """Announce that a tree is wanted: one that is there is kept for a while. Raises `TooLarge` or `NoSpace`."""
        body = TreeRequest(files=files, size_bytes=size_bytes)
        question = CoordinatorRequest(path=f"/v1/trees/{part(tree)}", method="POST", body=body, is_repeatable=True)
        return self._speaker.ask(question, TreeView)

    def missing(self, digests: Sequence[str], sizes: Sequence[int] = ()) -> tuple[str, ...]:
        """Return which of at most 10,000 files are not there. With their sizes: `NoSpace` if the missing don't fit."""
        body = DigestsRequest(digests=tuple(digests), sizes=tuple(sizes))
        question = CoordinatorRequest(path="/v1/contents/missing", method="POST", body=body, is_repeatable=True)
        return self._speaker.ask(question, MissingDigests).digests

    def send_pack(self, pack: bytes) -> PackResponse:
        """Send small files (`protocol.tree_messages`), at most 8 MiB; durable on return."""
        question = CoordinatorRequest(path="/v1/contents", method="POST", body=pack, is_repeatable=True)
        return self._speaker.ask(question, PackResponse)

    def keep_tree(self, tree: str, listing: bytes) -> TreeView:
        """Send a tree's listing, once its files are there. If some are not, the answer says it is not here."""
        question = CoordinatorRequest(path=f"/v1/trees/{part(tree)}", method="PUT", body=listing, is_repeatable=True)
        return self._speaker.ask(question, TreeView)

    def tree_listing(self, tree: str) -> bytes:
        """Return a tree's listing; `archives.archive_members.read_listing` checks it. `NotFound`."""
        with closing(self._speaker.open(CoordinatorRequest(path=f"/v1/trees/{part(tree)}"))) as reply:
            pieces, size = [], 0
            while piece := self._speaker.read(reply):
                size += len(piece)
                if size > MOST_LISTING_BYTES:
                    raise no_coordinator_there(self._speaker.url, "it sent a listing without end")
                pieces.append(piece)
        return b"".join(pieces)

    @contextmanager
    def fetch_contents(self, digests: Sequence[str]) -> Iterator[Iterator[tuple[Digest, bytes]]]:
        """Fetch small files together, each verified; what is not there does not come."""
        body = DigestsRequest(digests=tuple(digests))
        question = CoordinatorRequest(path="/v1/contents/fetch", method="POST", body=body, is_repeatable=True)
        with closing(self._speaker.open(question)) as reply:
            pieces = _Pieces(lambda: self._speaker.read(reply, _PIECE_BYTES))
            yield read_frames(pieces.read, wanted=frozenset(digests))

    def object_address(self, sha256: str) -> tuple[str, dict[str, str]]:
        """Give where an object's bytes are, and what to say there: for whoever fetches it by a transport of theirs."""
        return self._speaker.address(CoordinatorRequest(path=f"/v1/objects/{part(sha256)}"))

    def sources(self, asked: SourcesRequest) -> SourcesResponse:
        """Ask where to get trees, nearest first. Asked again while they come, it says that they still do."""
        question = CoordinatorRequest(path="/v1/sources", method="POST", body=asked, is_repeatable=True)
        return self._speaker.ask(question, SourcesResponse)


class _Pieces:
    """Bytes as they are wanted, from an answer that is read in large pieces."""

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._piece = b""
        self._at = 0

    def read(self, at_most_bytes: int) -> bytes:
        if self._at == len(self._piece):
            self._piece, self._at = self._more(), 0
        given = self._piece[self._at : self._at + at_most_bytes]
        self._at += len(given)
        return given


# What an operator and a worker ask of a coordinator about a command inside a running job.


class ExecCalls:
    """A part of a `FleetClient`."""

    _speaker: CoordinatorTransport

    def begin_exec(self, ref: str, asked: ExecRequest) -> ExecResponse:
        """Begin a command inside a running job."""
        return self._speaker.ask(
            CoordinatorRequest(path=f"/v1/jobs/{part(ref)}/exec", method="POST", body=asked), ExecResponse
        )

    def send_exec(self, session: str, data: bytes, *, offset: int, is_eof: bool = False) -> int:
        """Send what the command is to read, and give up to where it was taken: there may not be room for all."""
        told = {"offset": offset, "eof": int(is_eof) or None}
        path = f"/v1/exec/{part(session)}/in"
        question = CoordinatorRequest(path=path, method="POST", body=data, query=told, is_repeatable=True)
        return self._speaker.ask(question, FileOffset).offset

    def read_exec(self, session: str, *, offset: int, wait_s: float = 0.0) -> ExecOutput:
        """Return what the command wrote from an offset on; wait for it if there is nothing yet."""
        told = {"offset": offset, "wait_s": wait_s}
        question = CoordinatorRequest(path=f"/v1/exec/{part(session)}/out", query=told, waits_s=wait_s)
        return self._speaker.ask(question, ExecOutput)

    def size_exec(self, session: str, rows: int, columns: int) -> DoneView:
        """Return how large the operator's terminal is now."""
        size = ExecSize(rows=rows, columns=columns)
        path = f"/v1/exec/{part(session)}/size"
        return self._speaker.ask(CoordinatorRequest(path=path, method="POST", body=size, is_repeatable=True), DoneView)

    def end_exec(self, session: str) -> DoneView:
        """End a session: its command is killed."""
        path = f"/v1/exec/{part(session)}"
        return self._speaker.ask(CoordinatorRequest(path=path, method="DELETE", is_repeatable=True), DoneView)

    def hear_exec(self, job: str, session: str, said: ExecListen) -> ExecInput:
        """Return what a command is to read; for the worker that runs it."""
        path = f"/v1/attempts/{part(job)}/exec/{part(session)}/in"
        question = CoordinatorRequest(path=path, method="POST", body=said, is_repeatable=True, waits_s=said.wait_s)
        return self._speaker.ask(question, ExecInput)

    def put_exec(
        self, token: AttemptToken, session: str, data: bytes, *, stream: int, offset: int, wait_s: float
    ) -> int:
        """Send what a command wrote, and give up to where it was taken; held while there is no room."""
        told = {
            "attempt": token.attempt,
            "epoch": token.epoch,
            "generation": token.generation,
            "offset": offset,
            "stream": stream,
            "wait_s": wait_s,
        }
        path = f"/v1/attempts/{part(token.job)}/exec/{part(session)}/out"
        question = CoordinatorRequest(
            path=path, method="PUT", body=data, query=told, is_repeatable=True, waits_s=wait_s
        )
        return self._speaker.ask(question, FileOffset).offset

    def finish_exec(self, job: str, session: str, said: ExecEnd) -> DoneView:
        """Tell how a command ended."""
        path = f"/v1/attempts/{part(job)}/exec/{part(session)}/end"
        return self._speaker.ask(CoordinatorRequest(path=path, method="POST", body=said, is_repeatable=True), DoneView)


# How machines are and who is told of events, as asked of a coordinator.

_VERDICT_S = 600.0
_TRY_S = 60.0


class HealthCalls:
    """A part of a `FleetClient`."""

    _speaker: CoordinatorTransport

    def report(self, report: MachineReport) -> DoneView:
        """Return what a worker found out about its machine."""
        path = f"/v1/machines/{part(report.worker)}/report"
        return self._speaker.ask(
            CoordinatorRequest(path=path, method="POST", body=report, is_repeatable=True), DoneView
        )

    def make_hook(self, asked: WebhookRequest) -> WebhookResponse:
        """Have somebody told of events. What signs the messages is shown this once."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/hooks", method="POST", body=asked), WebhookResponse)

    def hooks(self) -> tuple[WebhookView, ...]:
        """Return all hooks."""
        return self._speaker.ask(CoordinatorRequest(path="/v1/hooks"), WebhookList).hooks

    def close_hook(self, hook: int) -> DoneView:
        """Tell one nothing more."""
        return self._speaker.ask(
            CoordinatorRequest(path=f"/v1/hooks/{hook}", method="DELETE", is_repeatable=True), DoneView
        )

    def try_hook(self, hook: int) -> WebhookTestResult:
        """Send it a message that says nothing."""
        return self._speaker.ask(
            CoordinatorRequest(path=f"/v1/hooks/{hook}/test", method="POST", waits_s=_TRY_S), WebhookTestResult
        )

    def verdict(self, *, jobs: int = 20_000) -> HistoryCheck:
        """Have the history checker run over the newest jobs."""
        question = CoordinatorRequest(path="/v1/history/verdict", query={"jobs": jobs}, waits_s=_VERDICT_S)
        return self._speaker.ask(question, HistoryCheck)


FOLLOWING_S = 600.0
"""For so long whoever follows something asks a coordinator again that is away."""


class FleetClient(WorkerCalls, PeopleCalls, ContentCalls, TrustCalls, HealthCalls, ExecCalls):
    """One coordinator, seen from outside. Closing the transport is up to whoever made it."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        clock: Clock,
        token: str = "",
        patience: RequestTimeouts | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._given = (url, token, chance)
        self._speaker = CoordinatorTransport(transport, url, clock=clock, token=token, patience=patience, chance=chance)

    def more_patient(self, retry_s: float = FOLLOWING_S) -> FleetClient:
        """Return a client of the same coordinator that asks again for so long: whoever follows outlives a restart."""
        url, token, chance = self._given
        patience = changed(self._speaker.patience, retry_s=retry_s)
        return FleetClient(self._transport, url, clock=self._clock, token=token, patience=patience, chance=chance)

    @property
    def url(self) -> str:
        """Where the coordinator is, without credentials."""
        return self._speaker.url
