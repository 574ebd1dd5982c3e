"""The client of a coordinator, with a method for each route. Blocks. Thread-safe.

    client = FleetClient(transport, "http://127.0.0.1:7717", clock=clock)
    client.jobs(state="running").jobs

An error of the coordinator is raised here as the same error. Raises `NoCoordinator` if it can't be reached, and
`BadAnswer` for a response that no coordinator sends. Requests that may be sent twice are, for as long as
`RequestTimeouts` says. A REF is a job's name, `name/3`, the beginning of an id, or `last`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from pydantic import BaseModel

from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.leases import AttemptToken
from stoker.host.http.exchange import BodySource
from stoker.protocol.enrolment_messages import (
    CertificateList,
    CertificateView,
    InviteRequest,
    InviteResponse,
    JoinFinish,
    JoinFinishResponse,
    LiveCertificates,
    RenewCertificate,
    TokenList,
    TokenRequest,
    TokenResponse,
    TokenView,
)
from stoker.protocol.job_messages import Submission, SubmissionResponse, joined, parts_of
from stoker.protocol.launch_messages import (
    MOST_WANTED,
    AllocationMove,
    AllocationPlan,
    CloseMachinesRequest,
    LaunchView,
    MachinesRequest,
    MoveRequest,
    PlanRequest,
    PlanResponse,
    PoolRequest,
    StopRequest,
    WatchRequest,
    WatchResponse,
)
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Hello,
    LeaseWrite,
    Renewal,
    RenewalResponse,
    Welcome,
    WriteResponse,
)
from stoker.protocol.mirror_pieces import (
    MirrorPiece,
    MirrorPieceResult,
    MirrorPiecesResponse,
    write_pieces,
)
from stoker.protocol.operator_messages import (
    CodeRequest,
    CodeView,
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
from stoker.protocol.screen_client import ScreenClient
from stoker.protocol.transport import (
    CoordinatorRequest,
    FleetEvent,
    Query,
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
    PartsRequest,
    PartsResponse,
    PassRequest,
    PassResponse,
    SourcesRequest,
    SourcesResponse,
    TreeRequest,
    TreeView,
    read_frames,
)
from stoker.protocol.view_messages import (
    ATTEMPT_HEADER,
    MOST_FILE_BYTES,
    MOST_NAMED_JOBS,
    OVER_HEADER,
    SIZE_HEADER,
    ChangeRequest,
    DoneView,
    FileList,
    FileOffset,
    FilePiece,
    FleetStatus,
    JobDetails,
    JobExplanation,
    JobsPriorityRequest,
    JobsRequest,
    Leaderboard,
    MachineList,
    MachineRequest,
    MachineView,
    PruneRequest,
    PruneView,
    ResultFiles,
    ScheduleView,
    UploadRequest,
    UploadResponse,
)

M = TypeVar("M", bound=BaseModel)

_SUBMIT_S = 300.0
_PRUNE_S = 600.0
_VERDICT_S = 600.0
_TRY_S = 60.0


class FleetClient(ScreenClient):
    """One coordinator, seen from outside. The caller closes the transport."""

    # -- jobs

    def submit(self, submission: Submission) -> SubmissionResponse:
        """Submit jobs, all or none. With a key, a repeat gets the same response; without one it is sent once.

        Very many are sent in parts (`job_messages`), all or none of each.
        """
        sent = parts_of(submission)
        answers: list[SubmissionResponse] = []
        for one in sent:
            request = CoordinatorRequest(
                path="/v1/jobs",
                method="POST",
                body=one.body,
                headers={"Content-Type": "application/json"},
                is_repeatable=bool(submission.key) or submission.dry_run,
                waits_s=_SUBMIT_S,
            )
            try:
                answer = self.transport.ask(request, SubmissionResponse)
                if len(answer.jobs) != len(one.positions):
                    raise no_coordinator_there(self.url, "its response lists different jobs than were sent")
            except StokerError as error:
                if answers and not submission.dry_run:
                    done, total = sum(len(answer.jobs) for answer in answers), len(submission.jobs)
                    error.add_hint(f"{done:,} of {total:,} jobs were submitted; the same again submits the rest")
                raise
            answers.append(answer)
        return joined(sent, answers)

    def job(self, ref: str) -> JobDetails:
        """Return everything about one job."""
        return self._get(f"/v1/jobs/{part(ref)}", JobDetails)

    def explain(self, ref: str) -> JobExplanation:
        """Return why a job is where it is: every machine, with its reason."""
        return self._get(f"/v1/jobs/{part(ref)}/explain", JobExplanation)

    def events(self, after: int | None = None, *, beat_s: float = 20.0) -> Iterator[FleetEvent | None]:
        """Return every event behind one, as they happen, across restarts of the coordinator.

        Without `after` it begins with what happens now. Yields None after every `beat_s` of silence. Raises
        `NoCoordinator` if the coordinator is away for longer than it is retried.
        """
        return listen(self.transport, after, beat_s=beat_s)

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        """Return the mirrored files of a job's attempt, by default its last."""
        return self._get(f"/v1/jobs/{part(ref)}/files", FileList, {"attempt": attempt})

    def result_files(self, ref: str) -> ResultFiles:
        """Return the files of a job's result with their digests. Raises `NotFound` if it has none."""
        return self._get(f"/v1/jobs/{part(ref)}/result", ResultFiles)

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
        """Return bytes of a mirrored file; at its end the request is held open for `wait_s` until more come."""
        query: Query = {"attempt": attempt, "offset": offset, "limit": limit, "wait_s": wait_s or None}
        where = f"/v1/jobs/{part(ref)}/files/{parts(path)}"
        with closing(self.transport.open(CoordinatorRequest(path=where, query=query, waits_s=wait_s))) as reply:
            data = self.transport.read_all(reply, limit, "it sent more of a file than requested")
        size = whole_number(reply.headers.get(SIZE_HEADER))
        return FilePiece(
            data=data,
            offset=offset,
            attempt=whole_number(reply.headers.get(ATTEMPT_HEADER)) or attempt or 0,
            size_bytes=offset + len(data) if size is None else size,
            is_over=reply.headers.get(OVER_HEADER) == "1",
        )

    def make_login_code(self, role: str = "") -> CodeView:
        """Make a one-time code for the log-in of a web page, with one's own role or a lower one."""
        return self._ask("/v1/sessions/codes", CodeView, CodeRequest(role=role), is_repeatable=False)

    def pin(self, ref: str, *, by: str = "") -> DoneView:
        """Keep a job's result whatever is pruned."""
        return self._ask(f"/v1/jobs/{part(ref)}/pin", DoneView, ChangeRequest(by=by))

    def unpin(self, ref: str, *, by: str = "") -> DoneView:
        """Undo `pin`."""
        return self._ask(f"/v1/jobs/{part(ref)}/unpin", DoneView, ChangeRequest(by=by))

    def cancel_jobs(self, jobs: Sequence[str], *, by: str = "") -> DoneView:
        """Request that jobs are cancelled, by their ids; those that have ended already are in the notes.

        Durable on return; that they stopped is confirmed later.
        """
        return self._do_to_jobs(jobs, "cancel", by=by)

    def requeue_jobs(self, jobs: Sequence[str], *, by: str = "") -> DoneView:
        """Start jobs again that have ended, by their ids; none of them if one is live."""
        return self._do_to_jobs(jobs, "requeue", by=by, is_repeatable=False)

    def set_priority_of_jobs(self, jobs: Sequence[str], priority: int, *, by: str = "") -> DoneView:
        """Change the priority of jobs, by their ids."""
        return self._do_to_jobs(jobs, "priority", by=by, priority=priority)

    def _do_to_jobs(
        self, jobs: Sequence[str], verb: str, *, by: str, priority: int | None = None, is_repeatable: bool = True
    ) -> DoneView:
        """Send as few requests as may name so many jobs."""
        done = DoneView()
        for start in range(0, len(jobs), MOST_NAMED_JOBS):
            some = tuple(jobs[start : start + MOST_NAMED_JOBS])
            body: BaseModel = JobsRequest(jobs=some, by=by)
            if priority is not None:
                body = JobsPriorityRequest(jobs=some, by=by, priority=priority)
            more = self._ask(f"/v1/jobs/{verb}", DoneView, body, is_repeatable=is_repeatable)
            done = DoneView(changed=done.changed + more.changed, notes=done.notes + more.notes)
        return done

    # -- machines and the fleet

    def machines(self) -> tuple[MachineView, ...]:
        """Return every machine."""
        return self._get("/v1/machines", MachineList).machines

    def machine(self, name: str) -> MachineView:
        """Return one machine."""
        return self._get(f"/v1/machines/{part(name)}", MachineView)

    def change_machine(self, name: str, verb: str, request: MachineRequest | None = None) -> DoneView:
        """Change whether a machine, or some of its devices, gets work.

        `drain` and `cordon` start no more jobs there, `pause` also releases those that run, `open` undoes each.
        `forget` removes it: without a certificate, one that holds nothing and whose worker is gone, or if forced.
        """
        path = f"/v1/machines/{part(name)}/{verb}"
        return self._ask(path, DoneView, request or MachineRequest(), is_repeatable=verb != "forget")

    def report(self, report: MachineReport) -> DoneView:
        """Send what a worker found out about its machine."""
        return self._ask(f"/v1/machines/{part(report.worker)}/report", DoneView, report)

    def schedule(self) -> ScheduleView:
        """Return the state of the scheduler."""
        return self._get("/v1/schedule", ScheduleView)

    def status(self) -> FleetStatus:
        """Return the state of the whole fleet."""
        return self._get("/v1/status", FleetStatus)

    def leaderboard(
        self, metric: str = "", *, recipe: str = "", limit: int | None = None, is_live: bool = False
    ) -> Leaderboard:
        """Return completed jobs by a metric, best first; without one, by the metric that most likely matters.

        With `is_live` running jobs are ranked too.
        """
        query = {"metric": metric, "recipe": recipe or None, "limit": limit, "live": "true" if is_live else None}
        return self._get("/v1/leaderboard", Leaderboard, query)

    def reload(self, *, dry_run: bool = False) -> DoneView:
        """Make the coordinator read its cluster file and manifest again."""
        return self._ask("/v1/reload", DoneView, query={"dry_run": 1 if dry_run else None})

    def prune(self, asked: PruneRequest) -> PruneView:
        """Return which results and logs would be deleted, or delete them."""
        return self._ask("/v1/prune", PruneView, asked, waits_s=_PRUNE_S)

    def verdict(self, *, jobs: int = 20_000) -> HistoryCheck:
        """Run the history checker over the newest jobs."""
        return self._get("/v1/history/verdict", HistoryCheck, {"jobs": jobs}, waits_s=_VERDICT_S)

    # -- pools and allocations

    def launch_view(self, wait_s: float = 0.0) -> LaunchView:
        """Return pools, allocations, and the jobs that no present machine has room for.

        With `wait_s` it returns after the next submission, or after so long.
        """
        return self._get("/v1/launch", LaunchView, {"wait_s": wait_s or None}, waits_s=wait_s)

    def watch_pools(self, watcher: str, pools: Sequence[str], for_s: float, *, problem: str = "") -> dict[str, int]:
        """Watch pools, or for longer, all or none; return their epochs. For 0 s: watch them no longer.

        `problem` is why it can't work with their backend now, for operators to read.
        Raises `Conflict` if another launcher watches one of them.
        """
        asked = WatchRequest(watcher=watcher, pools=tuple(pools), for_s=for_s, problem=problem)
        return self._ask("/v1/pools/watch", WatchResponse, asked).epochs

    def plan_allocations(
        self, pool: str, epoch: int, plans: Sequence[tuple[str, Sequence[str]]], *, request: str = ""
    ) -> dict[str, str]:
        """Plan allocations (id, names of the jobs that they are for), all or none; return the keys of their tickets.

        `request` is the operator's request that they carry out, which is closed with them; it must be open.
        Idempotent. Raises `StaleLease` if the epoch is not the pool's, `Conflict` if an id is taken, `Refused` if the
        pool is paused or full (`data["reason"]`).
        """
        made = tuple(AllocationPlan(id=id, wanted=tuple(wanted)[:MOST_WANTED]) for id, wanted in plans)
        path = f"/v1/pools/{part(pool)}/allocations"
        return self._ask(path, PlanResponse, PlanRequest(epoch=epoch, plans=made, request=request)).tickets

    def move_allocations(self, pool: str, epoch: int, moves: Sequence[AllocationMove]) -> DoneView:
        """Record what became of allocations; `data["refused"]` has the reason of each refused move, by id.

        Raises `StaleLease` if the epoch is not the pool's.
        """
        asked = MoveRequest(epoch=epoch, moves=tuple(moves))
        return self._ask(f"/v1/pools/{part(pool)}/moves", DoneView, asked)

    def request_machines(self, pool: str, id: str, count: int = 0, *, by: str = "") -> DoneView:
        """Request machines of a pool, which its launcher starts; 0: as many as waiting jobs need. Idempotent."""
        return self._ask(f"/v1/pools/{part(pool)}/requests", DoneView, MachinesRequest(id=id, count=count, by=by))

    def close_request(
        self, pool: str, id: str, message: str = "", *, epoch: int | None = None, code: str = "", by: str = ""
    ) -> DoneView:
        """Withdraw a request for machines, or answer it under an epoch. One that was carried out stays as it is."""
        asked = CloseMachinesRequest(epoch=epoch, message=message, code=code, by=by)
        return self._ask(f"/v1/pools/{part(pool)}/requests/{part(id)}/close", DoneView, asked)

    def pause_pool(self, pool: str, why: str = "", *, by: str = "") -> DoneView:
        """Start no more allocations of a pool."""
        return self._ask(f"/v1/pools/{part(pool)}/pause", DoneView, PoolRequest(why=why, by=by))

    def resume_pool(self, pool: str, *, by: str = "") -> DoneView:
        """Start allocations of a pool again."""
        return self._ask(f"/v1/pools/{part(pool)}/resume", DoneView, PoolRequest(by=by))

    def stop_allocations(self, pool: str, ids: Sequence[str] = (), *, by: str = "") -> DoneView:
        """Drain allocations, by default all of a pool; its launcher cancels them."""
        return self._ask(f"/v1/pools/{part(pool)}/stop", DoneView, StopRequest(ids=tuple(ids), by=by))

    # -- webhooks

    def make_hook(self, asked: WebhookRequest) -> WebhookResponse:
        """Create a webhook. The secret that signs its messages is returned this once."""
        return self._ask("/v1/hooks", WebhookResponse, asked, is_repeatable=False)

    def hooks(self) -> tuple[WebhookView, ...]:
        """Return all webhooks."""
        return self._get("/v1/hooks", WebhookList).hooks

    def close_hook(self, hook: int) -> DoneView:
        """Delete a webhook."""
        return self._ask(f"/v1/hooks/{hook}", DoneView, method="DELETE")

    def try_hook(self, hook: int) -> WebhookTestResult:
        """Send a test message to a webhook."""
        return self._ask(f"/v1/hooks/{hook}/test", WebhookTestResult, is_repeatable=False, waits_s=_TRY_S)

    # -- a worker's leases and files
    #
    # Each may be sent again after a lost response: a claim by its request id, a report of an attempt by its token, a
    # file by its offset, an upload by its digest.

    def hello(self, hello: Hello) -> Welcome:
        """Register this worker and what its machine has."""
        return self._ask("/v1/hello", Welcome, hello)

    def claim(self, claim: Claim) -> ClaimResponse:
        """Request work; held open for `claim.wait_s` while there is none."""
        return self._ask("/v1/claims", ClaimResponse, claim, waits_s=claim.wait_s)

    def renew(self, renewal: Renewal) -> RenewalResponse:
        """Renew every lease of this worker."""
        return self._ask("/v1/renewals", RenewalResponse, renewal)

    def write(self, job: str, report: LeaseWrite) -> WriteResponse:
        """Report that an attempt started, ended or stored a checkpoint. What it names was uploaded before."""
        return self._ask(f"/v1/attempts/{part(job)}/{report.verb}", WriteResponse, report)

    def put_file(self, token: AttemptToken, path: str, data: bytes | BodySource, *, offset: int) -> int:
        """Append to a mirrored file of an attempt, and return its new size.

        Bytes that are there already are not written twice. Raises `Conflict` with the right `offset` in its data if
        the file is shorter or longer than the offset.
        """
        where = f"/v1/attempts/{part(token.job)}/files/{parts(path)}"
        return self._ask(where, FileOffset, data, query={**token.fence(), "offset": offset}, method="PUT").offset

    def put_files(self, token: AttemptToken, pieces: Sequence[MirrorPiece]) -> tuple[MirrorPieceResult, ...]:
        """Append to several mirrored files of an attempt, in order; return the new size of each, or its error.

        The last file of an attempt, `end.json`, is refused if a piece before it was.
        """
        where, body = f"/v1/attempts/{part(token.job)}/files", write_pieces(pieces)
        return self._ask(where, MirrorPiecesResponse, body, query=token.fence(), method="PUT").results

    def begin_upload(self, digest: str, size_bytes: int) -> UploadResponse:
        """Begin or resume an upload: the response has the offset, or says that the bytes are known."""
        return self._ask("/v1/uploads", UploadResponse, UploadRequest(digest=digest, size_bytes=size_bytes))

    def append_upload(self, upload: str, data: bytes | BodySource, *, offset: int) -> int:
        """Send the next bytes of an upload, and return how many are there now."""
        return self._ask(
            f"/v1/uploads/{part(upload)}", FileOffset, data, query={"offset": offset}, method="PATCH"
        ).offset

    def finish_upload(self, upload: str) -> UploadResponse:
        """Have the bytes checked against their digest and stored; `is_known` says that they are."""
        return self._ask(f"/v1/uploads/{part(upload)}/finish", UploadResponse)

    # -- members: invitations, joining, certificates, tokens

    def invite(self, asked: InviteRequest) -> InviteResponse:
        """Invite a machine or a person. The code is returned this once."""
        return self._ask("/v1/invites", InviteResponse, asked, is_repeatable=False)

    def withdraw_invite(self, invite: str) -> DoneView:
        """Withdraw an invitation."""
        return self._ask(f"/v1/invites/{part(invite)}", DoneView, is_repeatable=False, method="DELETE")

    def finish_join(self, finish: JoinFinish) -> JoinFinishResponse:
        """Prove that we have the code, and get what it is for. Idempotent for the same request."""
        return self._ask("/v1/join/finish", JoinFinishResponse, finish)

    def renew_certificate(self, asked: RenewCertificate) -> JoinFinishResponse:
        """Get this machine's next certificate; the connection shows the present one."""
        return self._ask("/v1/certificates/renew", JoinFinishResponse, asked)

    def certificates(self) -> tuple[CertificateView, ...]:
        """Return the certificates of machines that have not expired."""
        return self._get("/v1/certificates", CertificateList).certificates

    def live_certificates(self) -> tuple[str, ...]:
        """Return the serial numbers of all certificates that are valid now."""
        return self._get("/v1/certificates/live", LiveCertificates).serials

    def make_token(self, asked: TokenRequest) -> TokenResponse:
        """Create a token. Its secret is returned this once."""
        return self._ask("/v1/tokens", TokenResponse, asked, is_repeatable=False)

    def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens, without their secrets, which are not stored."""
        return self._get("/v1/tokens", TokenList).tokens

    def revoke_token(self, token: str, *, by: str = "") -> DoneView:
        """Revoke a token at once."""
        return self._ask(f"/v1/tokens/{part(token)}/revoke", DoneView, ChangeRequest(by=by))

    def rotate_token(self, token: str, *, by: str = "") -> TokenResponse:
        """Replace a token's secret; the old one stops working."""
        return self._ask(f"/v1/tokens/{part(token)}/rotate", TokenResponse, ChangeRequest(by=by), is_repeatable=False)

    # -- trees of code and data
    #
    # Each may be sent again after a lost response. Machines of the fleet answer `tree_listing`, `fetch_contents` and
    # `object_address` as a coordinator does.

    def want_tree(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeView:
        """Announce that a tree is needed: one that is there is kept for a while. Raises `TooLarge` or `NoSpace`."""
        return self._ask(f"/v1/trees/{part(tree)}", TreeView, TreeRequest(files=files, size_bytes=size_bytes))

    def missing(self, digests: Sequence[str], sizes: Sequence[int] = ()) -> tuple[str, ...]:
        """Return which of at most 10,000 files are not there. With their sizes: `NoSpace` if the missing don't fit."""
        body = DigestsRequest(digests=tuple(digests), sizes=tuple(sizes))
        return self._ask("/v1/contents/missing", MissingDigests, body).digests

    def send_pack(self, pack: bytes) -> PackResponse:
        """Send small files (`protocol.tree_messages`), at most 8 MiB; durable on return."""
        return self._ask("/v1/contents", PackResponse, pack)

    def keep_tree(self, tree: str, listing: bytes) -> TreeView:
        """Send a tree's listing, after its files. If some are not there, the response says so."""
        return self._ask(f"/v1/trees/{part(tree)}", TreeView, listing, method="PUT")

    def tree_listing(self, tree: str) -> bytes:
        """Return a tree's listing; `archives.archive_members.read_listing` checks it. Raises `NotFound`."""
        with closing(self.transport.open(CoordinatorRequest(path=f"/v1/trees/{part(tree)}"))) as reply:
            return self.transport.read_all(reply, MOST_LISTING_BYTES, "its listing of a tree is too long")

    @contextmanager
    def fetch_contents(self, digests: Sequence[str]) -> Iterator[Iterator[tuple[Digest, bytes]]]:
        """Fetch small files together, each verified; those that are not there are left out."""
        body = DigestsRequest(digests=tuple(digests))
        request = CoordinatorRequest(path="/v1/contents/fetch", method="POST", body=body, is_repeatable=True)
        with closing(self.transport.open(request)) as reply:
            yield read_frames(self.transport.buffered(reply).read, requested=frozenset(digests))

    def pass_to_send(self, digest: str, size_bytes: int) -> PassResponse:
        """Return how to send an object, or a part of one, to the object store of the coordinator."""
        return self._ask(f"/v1/objects/{part(digest)}/pass", PassResponse, PassRequest(size_bytes=size_bytes))

    def passes_to_fetch(self, digest: str, *, is_doubted: bool = False) -> PassResponse:
        """Return how to fetch an object from the object store of the coordinator. Raises `NotFound`.

        `is_doubted`: its bytes were wrong, and are to be checked there first.
        """
        path, query = f"/v1/objects/{part(digest)}/passes", {"doubted": int(is_doubted)}
        return self._ask(path, PassResponse, method="GET", query=query)

    def name_parts(self, digest: str, parts: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        """Name an object whose parts were sent by passes; return the parts that are missing."""
        body = PartsRequest(parts=tuple(parts))
        return self._ask(f"/v1/objects/{part(digest)}/parts", PartsResponse, body).missing

    def object_address(self, sha256: str) -> tuple[str, dict[str, str]]:
        """Return the URL of an object's bytes and the headers to send, for a caller that fetches it itself."""
        return self.transport.address(CoordinatorRequest(path=f"/v1/objects/{part(sha256)}"))

    def sources(self, asked: SourcesRequest) -> SourcesResponse:
        """Return where to get trees, nearest first. Sent again while they are fetched, it says that they still are."""
        return self._ask("/v1/sources", SourcesResponse, asked)

    # -- commands inside a running job

    def begin_exec(self, ref: str, asked: ExecRequest) -> ExecResponse:
        """Begin a command inside a running job."""
        return self._ask(f"/v1/jobs/{part(ref)}/exec", ExecResponse, asked, is_repeatable=False)

    def send_exec(self, session: str, data: bytes, *, offset: int, is_eof: bool = False) -> int:
        """Send what the command is to read; return up to where it was taken, as there may not be room for all."""
        query = {"offset": offset, "eof": int(is_eof) or None}
        return self._ask(f"/v1/exec/{part(session)}/in", FileOffset, data, query=query).offset

    def read_exec(self, session: str, *, offset: int, wait_s: float = 0.0) -> ExecOutput:
        """Return what the command wrote from an offset on; wait for it if there is nothing yet."""
        query = {"offset": offset, "wait_s": wait_s}
        return self._get(f"/v1/exec/{part(session)}/out", ExecOutput, query, waits_s=wait_s)

    def size_exec(self, session: str, rows: int, columns: int) -> DoneView:
        """Report the size of the operator's terminal."""
        return self._ask(f"/v1/exec/{part(session)}/size", DoneView, ExecSize(rows=rows, columns=columns))

    def end_exec(self, session: str) -> DoneView:
        """End a session: its command is killed."""
        return self._ask(f"/v1/exec/{part(session)}", DoneView, method="DELETE")

    def hear_exec(self, job: str, session: str, said: ExecListen) -> ExecInput:
        """Return what a command is to read; for the worker that runs it."""
        path = f"/v1/attempts/{part(job)}/exec/{part(session)}/in"
        return self._ask(path, ExecInput, said, waits_s=said.wait_s)

    def put_exec(
        self, token: AttemptToken, session: str, data: bytes, *, stream: int, offset: int, wait_s: float
    ) -> int:
        """Send what a command wrote; return up to where it was taken. Held open while there is no room."""
        path = f"/v1/attempts/{part(token.job)}/exec/{part(session)}/out"
        query: Query = {**token.fence(), "offset": offset, "stream": stream, "wait_s": wait_s}
        return self._ask(path, FileOffset, data, query=query, waits_s=wait_s, method="PUT").offset

    def finish_exec(self, job: str, session: str, said: ExecEnd) -> DoneView:
        """Report how a command ended."""
        return self._ask(f"/v1/attempts/{part(job)}/exec/{part(session)}/end", DoneView, said)
