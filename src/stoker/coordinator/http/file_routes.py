"""Routes of bytes: mirrored files in, out and followed; archives uploaded in pieces, and read back in ranges.

They have threads of their own, so that no flood of logs stands in the way of a control call. Who sends bytes of an
attempt is asked for its lease before any of them is read.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.http.access import LAST, LeaseToken, Number, Who, owner_of, recorded
from stoker.coordinator.http.app_state import PIECE_BYTES, ServiceContext
from stoker.coordinator.http.exec_sessions import ExecSessionInfo, ExecSessions, ExecSessionState
from stoker.coordinator.http.http_messages import (
    BYTES_ANSWER,
    BYTES_BODY,
    HEADERS,
    FilePath,
    Ref,
    Refusal,
    RouteTable,
    answer,
    attachment,
    done,
    headers_of,
    raw,
    read_body,
)
from stoker.coordinator.queue.commands import BeginExec, EndExec, QueueCommandResult
from stoker.coordinator.storage.listed_files import LARGE_BYTES
from stoker.coordinator.storage.retention import (
    CoordinatorPrunePlan,
    CoordinatorPruner,
    CoordinatorPruneResult,
    QueueRecords,
    RetentionPolicy,
)
from stoker.coordinator.storage.tree_storage import UNUSED_S, CoordinatorTrees
from stoker.core.digests import Digest
from stoker.core.errors import BadInput, InvalidTransition, NotFound, StaleLease, StokerError, TooLarge
from stoker.core.leases import AttemptToken, Principal, Role
from stoker.protocol.codec import read_range
from stoker.protocol.lease_messages import ExecCall
from stoker.protocol.mirror_pieces import MirrorPiecesResponse, read_pieces, results_of
from stoker.protocol.operator_messages import (
    ERROR,
    EXEC_PIECE_BYTES,
    OUT,
    ExecEnd,
    ExecInput,
    ExecListen,
    ExecOutput,
    ExecRequest,
    ExecResponse,
    ExecSize,
)
from stoker.protocol.tree_messages import PartsRequest, PartsResponse, PassRequest, PassResponse, PassView
from stoker.protocol.view_messages import (
    ATTEMPT_HEADER,
    MOST_FILE_BYTES,
    MOST_LISTED,
    OVER_HEADER,
    SIZE_HEADER,
    AttemptView,
    DoneView,
    FileList,
    FileOffset,
    FileView,
    PrunedResult,
    PruneRequest,
    PruneView,
    ResultFile,
    ResultFiles,
    UploadRequest,
    UploadResponse,
)
from stoker.store.archives.archive_members import read_listing
from stoker.store.objects.s3_passes import Pass
from stoker.store.objects.seam import Condition

MOST_WAIT_S = 60.0
_MOST_RESULT_FILES = 2000

Offset = Annotated[int, Query(ge=0, le=LAST)]
WaitQuery = Annotated[float, Query(ge=0, le=MOST_WAIT_S)]


class FileRoutes:
    """Answers them."""

    def __init__(self, context: ServiceContext, contents: CoordinatorTrees) -> None:
        self._context = context
        self._contents = contents
        self.router = RouteTable("files")
        add = self.router.add
        put: dict[str, Any] = {"response_model": FileOffset, "openapi_extra": BYTES_BODY}
        add(
            "/v1/attempts/{job}/files",
            self.put_all,
            methods=["PUT"],
            response_model=MirrorPiecesResponse,
            openapi_extra=BYTES_BODY,
        )
        add("/v1/attempts/{job}/files/{path:path}", self.put, methods=["PUT"], **put)
        add("/v1/jobs/{ref}/files", self.list, response_model=FileList)
        add("/v1/jobs/{ref}/files/{path:path}", self.read, response_class=Response, responses=BYTES_ANSWER)
        add("/v1/jobs/{ref}/result", self.result, response_model=ResultFiles)
        add("/v1/uploads", self.begin, methods=["POST"], response_model=UploadResponse)
        add("/v1/uploads/{upload}", self.append, methods=["PATCH"], **put)
        add("/v1/uploads/{upload}/finish", self.finish, methods=["POST"], response_model=UploadResponse)
        ranges: dict[int | str, dict[str, Any]] = {
            206: {"description": "A range"},
            416: {"description": "Beyond its end"},
        }
        found: dict[str, Any] = {"response_class": Response, "responses": {**BYTES_ANSWER, **ranges}}
        add("/v1/objects/{sha256}/pass", self.pass_to_send, methods=["POST"], response_model=PassResponse)
        add("/v1/objects/{sha256}/passes", self.passes_to_fetch, methods=["GET"], response_model=PassResponse)
        add("/v1/objects/{sha256}/parts", self.name_parts, methods=["POST"], response_model=PartsResponse)
        add("/v1/objects/{sha256}", self.object, methods=["GET"], **found)
        add("/v1/objects/{sha256}", self.object, methods=["HEAD"], name="object_head", **found)

    async def put(self, request: Request, who: Who, token: LeaseToken, path: FilePath, offset: Offset) -> Response:
        """Append to a mirrored file of an attempt. What lies there already is not written twice."""
        context = self._context
        self._check_lease(token, who)
        data = await read_body(request.receive, headers_of(request.scope), MOST_FILE_BYTES)
        # It may have ended while they came.
        self._check_lease(token, who)
        size_bytes = await context.keep(context.keeping.append, token.job, token.attempt, path, offset, data)
        return answer(FileOffset(offset=size_bytes))

    async def put_all(self, request: Request, who: Who, token: LeaseToken) -> Response:
        """Append to several mirrored files of an attempt, in order; return the size of each, or its error."""
        context = self._context
        self._check_lease(token, who)
        pieces = read_pieces(await read_body(request.receive, headers_of(request.scope), MOST_FILE_BYTES))
        # It may have ended while they came.
        self._check_lease(token, who)
        return answer(results_of(await context.keep(context.keeping.append_all, token.job, token.attempt, pieces)))

    async def list(self, ref: Ref, who: Who, attempt: Number | None = None) -> Response:
        """Return what is mirrored of a job's attempt, by default its last. A machine sees its own attempts alone."""
        job, number, is_over = await self._attempt(ref, attempt, machine=who.name if who.role is Role.WORKER else "")
        kept = await self._context.keep(self._context.keeping.attempt_files.files, job, number)
        files = tuple(FileView(path=file.path, size_bytes=file.size_bytes) for file in kept)
        return answer(FileList(attempt=number, files=files, is_over=is_over))

    async def read(
        self,
        ref: Ref,
        path: FilePath,
        attempt: Number | None = None,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=0, le=MOST_FILE_BYTES)] = MOST_FILE_BYTES,
        wait_s: WaitQuery = 0.0,
    ) -> Response:
        """Return bytes of a mirrored file, with `limit` 0 all to its end; at its end, wait for more while it runs."""
        context = self._context
        job, number, is_over = await self._attempt(ref, attempt)
        place = (job, number, path)
        with context.followers.following(place) as grown:
            data, size_bytes = await self._piece(place, offset, limit or PIECE_BYTES, may_be_missing=not is_over)
            if not data and wait_s and not is_over:
                await context.followers.wait(grown, wait_s)
                job, number, is_over = await self._attempt(ref, number)
                data, size_bytes = await self._piece(place, offset, limit or PIECE_BYTES, may_be_missing=True)
        named = {SIZE_HEADER: str(size_bytes), OVER_HEADER: str(int(is_over)), ATTEMPT_HEADER: str(number)}
        named["content-disposition"] = attachment(path)
        length = min(limit or size_bytes, size_bytes - offset)
        if length <= len(data):
            return raw(data, "application/octet-stream", headers=named)
        headers = {**HEADERS, **named, "content-length": str(length)}
        pieces = self._rest(place, offset, length, data)
        return StreamingResponse(pieces, 200, headers, media_type="application/octet-stream")

    async def result(self, ref: Ref) -> Response:
        """Return the files of a job's result with their digests; of very many the first."""
        tree = (await self._context.read(self._context.reader.story, ref)).job.result
        if not tree:
            raise NotFound(f"job {ref!r} has no result yet", hint=f"stoker jobs show {ref}")
        return answer(await self._context.keep(self._result, tree))

    def _result(self, tree: str) -> ResultFiles:
        size_bytes, listing = self._contents.open_listing(tree)
        with listing:
            if size_bytes > LARGE_BYTES:
                raise TooLarge(f"result {tree[:12]} has too many files to list", hint="stoker get fetches it")
            entries = read_listing(listing.read(), tree).entries
        files = [entry for entry in entries if entry.sha256]
        shown = tuple(
            ResultFile(path=entry.path, size_bytes=entry.size_bytes, sha256=str(entry.sha256))
            for entry in files[:_MOST_RESULT_FILES]
        )
        return ResultFiles(
            tree=tree, count=len(files), size_bytes=sum(entry.size_bytes for entry in files), files=shown
        )

    async def begin(self, asked: UploadRequest, who: Who) -> Response:
        """Begin an upload, or go on with one: the answer says from where, or that the bytes are known."""
        self._context.check_any_lease(who)
        bundles = self._context.keeping.bundles
        begun = await self._context.keep(bundles.begin, asked.digest, asked.size_bytes, owner=owner_of(who))
        return answer(UploadResponse(id=begun.id, offset=begun.offset, is_known=begun.is_known))

    async def append(self, request: Request, who: Who, upload: str, offset: Offset) -> Response:
        """Add bytes to an upload of one's own, at most 8 MiB."""
        bundles = self._context.keeping.bundles
        self._context.check_any_lease(who)
        await self._context.keep(bundles.upload, upload, owner=owner_of(who))
        data = await read_body(request.receive, headers_of(request.scope), MOST_FILE_BYTES)
        size_bytes = await self._context.keep(bundles.append, upload, offset, data, owner=owner_of(who))
        return answer(FileOffset(offset=size_bytes))

    async def finish(self, who: Who, upload: str) -> Response:
        """Have the bytes of an upload checked against their digest and kept."""
        bundles = self._context.keeping.bundles
        found = await self._context.keep(bundles.upload, upload, owner=owner_of(who))
        await self._context.keep(bundles.finish, upload, owner=owner_of(who))
        return answer(UploadResponse(id=upload, offset=found.size_bytes, is_known=True))

    async def pass_to_send(self, sha256: str, asked: PassRequest, who: Who) -> Response:
        """Return a pass to send an object, or a part of one, to the object store; or that all goes through here."""
        self._context.check_any_lease(who)
        return answer(await self._context.keep(self._pass_to_send, sha256, asked.size_bytes))

    def _pass_to_send(self, sha256: str, size_bytes: int) -> PassResponse:
        keeping = self._context.keeping
        if keeping.direct is None:
            return PassResponse(is_direct=False)
        digest, part_bytes = keeping.bundles.check_coming(sha256, size_bytes), keeping.direct.part_bytes
        if keeping.bundles.is_known(digest):
            return PassResponse(is_direct=True, part_bytes=part_bytes, is_known=True)
        made = keeping.direct.pass_to_put(digest, size_bytes) if size_bytes <= part_bytes else None
        return PassResponse(is_direct=True, part_bytes=part_bytes, passes=() if made is None else (_shown(made),))

    async def passes_to_fetch(self, sha256: str, doubted: Annotated[int, Query(ge=0, le=1)] = 0) -> Response:
        """Return passes to fetch an object from the object store; if it is doubted, its bytes are checked first."""
        return answer(await self._context.keep(self._passes_to_fetch, sha256, is_doubted=bool(doubted)))

    def _passes_to_fetch(self, sha256: str, *, is_doubted: bool) -> PassResponse:
        keeping = self._context.keeping
        if keeping.direct is None:
            return PassResponse(is_direct=False)
        if keeping.has_archive(sha256) is None:
            self._contents.missed(sha256)
            raise NotFound(f"no object {sha256[:12]} is stored", hint="it was never sent, or was pruned")
        passes = keeping.direct.passes_to_get(Digest(sha256))
        # Only of several parts: the store itself has checked a single one.
        if is_doubted and len(passes) > 1 and keeping.objects.verify(Digest(sha256)) is not Condition.WHOLE:
            self._contents.missed(sha256)
            raise NotFound(f"object {sha256[:12]} had wrong parts and was removed", hint="send it again")
        part_bytes = keeping.direct.part_bytes
        return PassResponse(is_direct=bool(passes), part_bytes=part_bytes, passes=tuple(map(_shown, passes)))

    async def name_parts(self, sha256: str, asked: PartsRequest, who: Who) -> Response:
        """Name an object whose parts were sent to the object store; the answer lists parts that are not there."""
        self._context.check_any_lease(who)
        return answer(await self._context.keep(self._name_parts, sha256, asked))

    def _name_parts(self, sha256: str, asked: PartsRequest) -> PartsResponse:
        keeping = self._context.keeping
        if keeping.direct is None:
            raise BadInput("this coordinator has no object store", hint="send the object to the coordinator")
        digest = keeping.bundles.check_coming(sha256, sum(size for _, size in asked.parts))
        if keeping.bundles.is_known(digest):
            return PartsResponse()
        parts = tuple((Digest(part), size) for part, size in asked.parts)
        return PartsResponse(missing=keeping.direct.name_parts(digest, parts))

    async def object(self, request: Request, sha256: str, name: Annotated[str, Query(max_length=400)] = "") -> Response:
        """Return an object's bytes, or a range of them; `name` is what a browser saves it as."""
        context = self._context
        size_bytes = await context.keep(context.keeping.has_archive, sha256)
        if size_bytes is None:
            self._contents.missed(sha256)
            raise NotFound(f"no object {sha256[:12]} lies with this coordinator", hint="it never came, or was pruned")
        start, length, is_partial = read_range(request.headers.get("range", ""), size_bytes)
        if length < 0:
            error = BadInput(f"the object has {size_bytes} bytes")
            raise Refusal(error, 416, (b"content-range", b"bytes */%d" % size_bytes))
        headers = {**HEADERS, "content-length": str(length), "accept-ranges": "bytes", "etag": f'"{sha256}"'}
        if name:
            headers["content-disposition"] = attachment(name)
        if is_partial:
            headers["content-range"] = f"bytes {start}-{start + length - 1}/{size_bytes}"
        status, kind = 206 if is_partial else 200, "application/octet-stream"
        if request.method == "HEAD" or not length:
            return Response(None, status, headers, media_type=kind)
        stream = await context.keep(context.keeping.bundles.open, Digest(sha256), start=start, length=length)
        return StreamingResponse(context.pieces(stream), status, headers, media_type=kind)

    def _check_lease(self, token: AttemptToken, who: Principal) -> None:
        """Raise `StaleLease` unless a token is of a live lease of the sender."""
        if not self._context.queue.is_current(token, who.name):
            job = token.job
            raise StaleLease(f"attempt {token.attempt} of job {job[:12]} is over", hint="drop what it made", job=job)

    async def _rest(self, place: tuple[str, int, str], offset: int, length: int, piece: bytes) -> AsyncIterator[bytes]:
        """Yield bytes of a file, the first of which were read: the next ones once those were taken."""
        until = offset + length
        while piece:
            yield piece
            offset += len(piece)
            read = self._context.keeping.attempt_files.read
            piece = await self._context.keep(read, *place, offset, min(until - offset, PIECE_BYTES))

    async def _piece(
        self, place: tuple[str, int, str], offset: int, limit: int, *, may_be_missing: bool
    ) -> tuple[bytes, int]:
        """Return the first bytes of a range of a file, and its size. What is followed may not be there yet."""
        context = self._context
        try:
            data = await context.keep(context.keeping.attempt_files.read, *place, offset, min(limit, PIECE_BYTES))
            size_bytes = await context.keep(context.keeping.attempt_files.size, *place)
        except NotFound:
            if not may_be_missing:
                raise
            return b"", 0
        return data, max(size_bytes or 0, offset + len(data) if data else 0)

    async def _attempt(self, ref: str, attempt: int | None, *, machine: str = "") -> tuple[str, int, bool]:
        """Return a job's id, the attempt that is meant, and whether it is over."""
        context = self._context
        found = await context.read(context.reader.find, ref)
        tries = await context.read(context.reader.attempts_of, found.id)
        if machine:
            tries = tuple(one for one in tries if one.machine == machine)
        return found.id, *_meant(ref, tries, attempt)


def _meant(ref: str, tries: tuple[AttemptView, ...], attempt: int | None) -> tuple[int, bool]:
    if not tries:
        raise NotFound(f"nothing has run of job {ref!r} yet", hint=f"stoker explain {ref}")
    one = tries[-1] if attempt is None else next((one for one in tries if one.number == attempt), None)
    if one is None:
        raise NotFound(f"job {ref!r} had no attempt {attempt}", hint=f"its last one is {tries[-1].number}")
    return one.number, bool(one.ending)


def _shown(made: Pass) -> PassView:
    return PassView(digest=made.digest, size_bytes=made.size_bytes, url=made.url, headers=dict(made.headers))


class RetentionRoutes:
    """The route that shows what a fleet keeps and may remove, and prunes it on request."""

    def __init__(self, context: ServiceContext, contents: CoordinatorTrees) -> None:
        self._context = context
        self._pruning = CoordinatorPruner(
            context.keeping, QueueRecords(context.queue, context.reader.database), contents
        )
        self.router = RouteTable("fleet")
        self.router.add("/v1/prune", self.prune, methods=["POST"], response_model=PruneView)

    async def prune(self, asked: PruneRequest, who: Who) -> Response:
        """Return which results and logs would go, and let them go if that is wanted."""
        return answer(await self._context.keep(self._prune, asked, recorded(who, asked.by)))

    def _prune(self, asked: PruneRequest, by: str) -> PruneView:
        policy = RetentionPolicy(
            keep_last=asked.keep_last,
            older_than_s=asked.older_than_s,
            max_bytes=asked.max_bytes,
            logs_older_than_s=asked.logs_older_than_s,
            trees_unused_s=UNUSED_S if asked.trees_unused_s is None else asked.trees_unused_s,
        )
        outlook = self._pruning.look(policy)
        return view_of(outlook, self._pruning.carry_out(outlook, by=by) if asked.is_wanted else None)


def view_of(outlook: CoordinatorPrunePlan, done: CoordinatorPruneResult | None) -> PruneView:
    """Return what would go or, if it was carried out, what went."""
    removals = outlook.results.removals
    if done is not None:
        removals = tuple(removal for removal in removals if removal.row.id in done.marked)
    listed = tuple(
        PrunedResult(
            job=removal.row.job,
            name=removal.row.name,
            attempt=removal.row.attempt,
            archive_sha256=removal.row.archive_sha256,
            size_bytes=removal.row.size_bytes,
            freed_bytes=removal.freed_bytes,
            at_s=removal.row.at_s,
            why=removal.why,
        )
        for removal in removals[:MOST_LISTED]
    )
    return PruneView(
        is_done=done is not None,
        results=listed,
        result_count=len(removals),
        before_bytes=outlook.results.before_bytes,
        after_bytes=outlook.results.after_bytes,
        kept=outlook.results.kept_by_reason,
        logs=len(outlook.logs) if done is None else done.logs,
        log_bytes=sum(one.size_bytes for one in outlook.logs) if done is None else done.log_bytes,
        orphans=len(outlook.orphans),
        orphan_bytes=sum(size_bytes for _, size_bytes in outlook.orphans),
        uploads=len(outlook.uploads) if done is None else done.uploads,
        trees=len(outlook.trees.removals) if done is None else len(done.trees),
        tree_bytes=sum(size_bytes for _, size_bytes in outlook.tree_files) if done is None else done.tree_bytes,
        freed_bytes=outlook.freed_bytes if done is None else done.freed_bytes,
        stuck=() if done is None else done.stuck,
    )


SHELL = "a shell"
_DONE = QueueCommandResult()


class ExecRoutes:
    """Routes of commands inside running jobs: begun and followed by operators, run by the lease's worker."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._desk: ExecSessions = context.execs
        self._desk.on_end = self._note_end
        self._noting: set[asyncio.Task[None]] = set()
        self.router = RouteTable("exec")
        add = self.router.add
        add("/v1/jobs/{ref}/exec", self.begin, methods=["POST"], response_model=ExecResponse)
        add("/v1/exec/{session}/in", self.send, methods=["POST"], response_model=FileOffset, openapi_extra=BYTES_BODY)
        add("/v1/exec/{session}/out", self.read, response_model=ExecOutput)
        add("/v1/exec/{session}/size", self.resize, methods=["POST"], response_model=DoneView)
        add("/v1/exec/{session}", self.end, methods=["DELETE"], response_model=DoneView)
        place = "/v1/attempts/{job}/exec/{session}"
        add(f"{place}/in", self.listen, methods=["POST"], response_model=ExecInput)
        add(f"{place}/out", self.put, methods=["PUT"], response_model=FileOffset, openapi_extra=BYTES_BODY)
        add(f"{place}/end", self.finish, methods=["POST"], response_model=DoneView)

    async def begin(self, ref: Ref, who: Who, asked: ExecRequest) -> Response:
        """Begin a command inside a running job: its machine takes it up in a moment."""
        context = self._context
        found = await context.read(context.reader.find_all, ref)
        if len(found) > 1:
            raise InvalidTransition(f"{ref} has {len(found):,} points", hint=f"name one of them: {ref}/1", move="exec")
        job, id, by = found[0].id, secrets.token_hex(16), recorded(who, asked.by)
        self._desk.check(job, await self._machine_of(job))
        program = os.path.basename(asked.argv[0]) if asked.argv else SHELL
        where = (await context.ask(BeginExec(job=job, session=id, program=program, by=by))).data
        call = ExecCall(
            id=id,
            job=job,
            attempt=where["attempt"],
            epoch=where["epoch"],
            generation=where["generation"],
            argv=asked.argv,
            is_tty=asked.is_tty,
            rows=asked.rows,
            columns=asked.columns,
            term=asked.term,
        )
        self._desk.open(call, ExecSessionInfo(machine=where["machine"], name=where["name"], by=by, person=who.name))
        context.waiting.call((where["machine"],))
        return answer(
            ExecResponse(id=id, job=job, name=where["name"], machine=where["machine"], attempt=where["attempt"])
        )

    async def send(
        self, request: Request, session: str, who: Who, offset: Offset, eof: Annotated[int, Query(ge=0, le=1)] = 0
    ) -> Response:
        """Send what the command is to read; the answer says how much of it there was room for."""
        data = await read_body(request.receive, headers_of(request.scope), EXEC_PIECE_BYTES)
        one = self._desk.of_operator(session, who.name)
        return answer(FileOffset(offset=self._desk.send(one, offset, data, is_eof=bool(eof))))

    async def read(self, session: str, who: Who, offset: Offset = 0, wait_s: WaitQuery = 0.0) -> Response:
        """Return what the command wrote, and in the end how it ended."""
        one = self._desk.of_operator(session, who.name)
        return answer(await self._desk.read(one, offset, wait_s))

    async def resize(self, session: str, who: Who, asked: ExecSize) -> Response:
        """Tell the size of the operator's terminal."""
        self._desk.resize(self._desk.of_operator(session, who.name), asked.rows, asked.columns)
        return done(_DONE)

    async def end(self, session: str, who: Who) -> Response:
        """End a session: its command is killed."""
        self._desk.end(self._desk.of_operator(session, who.name), "ended by the operator")
        return done(_DONE)

    async def listen(self, job: str, session: str, who: Who, said: ExecListen) -> Response:
        """Wait for what a command is to read; for the worker that runs it."""
        one = self._desk.of_worker(session, said.token(job), who.name)
        return answer(await self._desk.listen(one, said))

    async def put(  # noqa: PLR0913, PLR0917 - a token, a place and bytes
        self,
        request: Request,
        who: Who,
        token: LeaseToken,
        session: str,
        offset: Offset,
        stream: Annotated[int, Query(ge=OUT, le=ERROR)] = OUT,
        wait_s: WaitQuery = 0.0,
    ) -> Response:
        """Send what a command wrote; held while the operator has not read what came before."""
        data = await read_body(request.receive, headers_of(request.scope), EXEC_PIECE_BYTES)
        one = self._desk.of_worker(session, token, who.name)
        return answer(FileOffset(offset=await self._desk.put(one, offset, data, stream=stream, wait_s=wait_s)))

    async def finish(self, job: str, session: str, who: Who, said: ExecEnd) -> Response:
        """Tell how a command ended."""
        one = self._desk.of_worker(session, said.token(job), who.name)
        self._desk.end(one, said.message, said.exit_code)
        return done(_DONE)

    async def _machine_of(self, job: str) -> str:
        context = self._context
        tries = await context.read(context.reader.attempts_of, job)
        return tries[-1].machine if tries else ""

    def _note_end(self, session: ExecSessionState) -> None:
        """Record that a command has ended, without waiting for the record."""
        noting = asyncio.ensure_future(self._write_end(session))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _write_end(self, session: ExecSessionState) -> None:
        call, opened = session.call, session.opened
        ended = EndExec(
            token=call.token(),
            session=call.id,
            machine=opened.machine,
            program=os.path.basename(call.argv[0]) if call.argv else SHELL,
            exit_code=session.exit_code,
            why=session.why,
            by=opened.by,
        )
        with suppress(StokerError):
            await self._context.ask(ended)
