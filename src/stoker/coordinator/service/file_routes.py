"""Routes of bytes: mirrored files in, out and followed; archives uploaded in pieces, and read back in ranges.

They have threads of their own, so that no flood of logs stands in the way of a control call. Who sends bytes of an
attempt is asked for its lease before any of them is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.keeping.contents import Contents
from stoker.coordinator.service.answers import BYTES_ANSWER, BYTES_BODY, HEADERS, FilePath, Ref, answer, raw
from stoker.coordinator.service.intake import headers_of, read_body
from stoker.coordinator.service.lease_token import LAST, LeaseToken, Number
from stoker.coordinator.service.office import PIECE_BYTES, Office
from stoker.coordinator.service.speech import Refusal
from stoker.coordinator.service.who import Who, owner_of
from stoker.model.digests import Digest
from stoker.model.errors import BadInput, NotFound
from stoker.model.fleet_errors import StaleLease
from stoker.model.leases import Token
from stoker.model.principals import Principal, Role
from stoker.wire.asking import (
    MOST_FILE_BYTES,
    FileList,
    FileOffset,
    FileView,
    UploadAsk,
    UploadBegun,
)
from stoker.wire.people_calls import ATTEMPT_HEADER, OVER_HEADER, SIZE_HEADER
from stoker.wire.ranges import read_range
from stoker.wire.views import AttemptView

MOST_WAIT_S = 60.0

Offset = Annotated[int, Query(ge=0, le=LAST)]
Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_S)]


class FileRoutes:
    """Answers them."""

    def __init__(self, office: Office, contents: Contents) -> None:
        self._office = office
        self._contents = contents
        self.router = APIRouter(tags=["files"])
        add = self.router.add_api_route
        put: dict[str, Any] = {"response_model": FileOffset, "openapi_extra": BYTES_BODY}
        add("/v1/attempts/{job}/files/{path:path}", self.put, methods=["PUT"], **put)
        add("/v1/jobs/{ref}/files", self.list, response_model=FileList)
        add("/v1/jobs/{ref}/files/{path:path}", self.read, response_class=Response, responses=BYTES_ANSWER)
        add("/v1/uploads", self.begin, methods=["POST"], response_model=UploadBegun)
        add("/v1/uploads/{upload}", self.append, methods=["PATCH"], **put)
        add("/v1/uploads/{upload}/finish", self.finish, methods=["POST"], response_model=UploadBegun)
        ranges: dict[int | str, dict[str, Any]] = {
            206: {"description": "A range"},
            416: {"description": "Beyond its end"},
        }
        found: dict[str, Any] = {"response_class": Response, "responses": {**BYTES_ANSWER, **ranges}}
        add("/v1/objects/{sha256}", self.object, methods=["GET"], **found)
        add("/v1/objects/{sha256}", self.object, methods=["HEAD"], name="object_head", **found)

    async def put(self, request: Request, who: Who, token: LeaseToken, path: FilePath, offset: Offset) -> Response:
        """Append to a mirrored file of an attempt. What lies there already is not written twice."""
        office = self._office
        self._check_lease(token, who)
        data = await read_body(request.receive, headers_of(request.scope), MOST_FILE_BYTES)
        # It may have ended while they came.
        self._check_lease(token, who)
        size_bytes = await office.keep(office.keeping.append, token.job, token.attempt, path, offset, data)
        return answer(FileOffset(offset=size_bytes))

    async def list(self, ref: Ref, who: Who, attempt: Number | None = None) -> Response:
        """Give what is mirrored of a job's attempt, by default its last. A machine sees its own attempts alone."""
        job, number, is_over = await self._attempt(ref, attempt, machine=who.name if who.role is Role.WORKER else "")
        kept = await self._office.keep(self._office.keeping.files, job, number)
        files = tuple(FileView(path=file.path, size_bytes=file.size_bytes) for file in kept)
        return answer(FileList(attempt=number, files=files, is_over=is_over))

    async def read(
        self,
        ref: Ref,
        path: FilePath,
        attempt: Number | None = None,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_FILE_BYTES)] = MOST_FILE_BYTES,
        wait_s: Wait = 0.0,
    ) -> Response:
        """Give bytes of a mirrored file; at its end, wait for more while the attempt runs."""
        office = self._office
        job, number, is_over = await self._attempt(ref, attempt)
        place = (job, number, path)
        with office.followers.following(place) as grown:
            data, size_bytes = await self._piece(place, offset, limit, may_be_missing=not is_over)
            if not data and wait_s and not is_over:
                await office.followers.wait(grown, wait_s)
                job, number, is_over = await self._attempt(ref, number)
                data, size_bytes = await self._piece(place, offset, limit, may_be_missing=True)
        named = {SIZE_HEADER: str(size_bytes), OVER_HEADER: str(int(is_over)), ATTEMPT_HEADER: str(number)}
        length = min(limit, size_bytes - offset)
        if length <= len(data):
            return raw(data, "application/octet-stream", headers=named)
        headers = {**HEADERS, **named, "content-length": str(length)}
        pieces = self._rest(place, offset, length, data)
        return StreamingResponse(pieces, 200, headers, media_type="application/octet-stream")

    async def begin(self, asked: UploadAsk, who: Who) -> Response:
        """Begin an upload, or go on with one: the answer says from where, or that the bytes are known."""
        self._check_any_lease(who)
        bundles = self._office.keeping.bundles
        begun = await self._office.keep(bundles.begin, asked.digest, asked.size_bytes, owner=owner_of(who))
        return answer(UploadBegun(id=begun.id, offset=begun.offset, is_known=begun.is_known))

    async def append(self, request: Request, who: Who, upload: str, offset: Offset) -> Response:
        """Add bytes to an upload of one's own, at most 8 MiB."""
        bundles = self._office.keeping.bundles
        self._check_any_lease(who)
        await self._office.keep(bundles.upload, upload, owner=owner_of(who))
        data = await read_body(request.receive, headers_of(request.scope), MOST_FILE_BYTES)
        size_bytes = await self._office.keep(bundles.append, upload, offset, data, owner=owner_of(who))
        return answer(FileOffset(offset=size_bytes))

    async def finish(self, who: Who, upload: str) -> Response:
        """Have the bytes of an upload checked against their digest and kept."""
        bundles = self._office.keeping.bundles
        found = await self._office.keep(bundles.upload, upload, owner=owner_of(who))
        await self._office.keep(bundles.finish, upload, owner=owner_of(who))
        return answer(UploadBegun(id=upload, offset=found.size_bytes, is_known=True))

    async def object(self, request: Request, sha256: str) -> Response:
        """Give an object's bytes, or a range of them."""
        office = self._office
        size_bytes = await office.keep(office.keeping.has_archive, sha256)
        if size_bytes is None:
            self._contents.missed(sha256)
            raise NotFound(f"no object {sha256[:12]} lies with this coordinator", hint="it never came, or was pruned")
        start, length, is_partial = read_range(request.headers.get("range", ""), size_bytes)
        if length < 0:
            error = BadInput(f"the object has {size_bytes} bytes")
            raise Refusal(error, 416, (b"content-range", b"bytes */%d" % size_bytes))
        headers = {**HEADERS, "content-length": str(length), "accept-ranges": "bytes", "etag": f'"{sha256}"'}
        if is_partial:
            headers["content-range"] = f"bytes {start}-{start + length - 1}/{size_bytes}"
        status, kind = 206 if is_partial else 200, "application/octet-stream"
        if request.method == "HEAD" or not length:
            return Response(None, status, headers, media_type=kind)
        stream = await office.keep(office.keeping.bundles.open, Digest(sha256), start=start, length=length)
        return StreamingResponse(office.pieces(stream), status, headers, media_type=kind)

    def _check_lease(self, token: Token, who: Principal) -> None:
        """Raise `StaleLease` unless a token is that of a live lease of whoever sends bytes."""
        if not self._office.queue.is_current(token, who.name):
            job = token.job
            raise StaleLease(f"attempt {token.attempt} of job {job[:12]} is over", hint="drop what it made", job=job)

    def _check_any_lease(self, who: Principal) -> None:
        """Raise `StaleLease` for a machine that can have nothing to send: it holds no lease, nor lost one of late."""
        if who.role is Role.WORKER and who.name and not self._office.queue.may_send(who.name):
            raise StaleLease(
                f"{who.name} holds no lease: there is nothing that it could send", hint="claim a job first"
            )

    async def _rest(self, place: tuple[str, int, str], offset: int, length: int, piece: bytes) -> AsyncIterator[bytes]:
        """Yield bytes of a file, the first of which were read: the next ones once those were taken."""
        until = offset + length
        while piece:
            yield piece
            offset += len(piece)
            piece = await self._office.keep(self._office.keeping.read, *place, offset, min(until - offset, PIECE_BYTES))

    async def _piece(
        self, place: tuple[str, int, str], offset: int, limit: int, *, may_be_missing: bool
    ) -> tuple[bytes, int]:
        """Return the first bytes of a range of a file, and its size. What is followed may not be there yet."""
        office = self._office
        try:
            data = await office.keep(office.keeping.read, *place, offset, min(limit, PIECE_BYTES))
            size_bytes = await office.keep(office.keeping.attempt_files.size, *place)
        except NotFound:
            if not may_be_missing:
                raise
            return b"", 0
        return data, max(size_bytes or 0, offset + len(data) if data else 0)

    async def _attempt(self, ref: str, attempt: int | None, *, machine: str = "") -> tuple[str, int, bool]:
        """Give a job's id, the attempt that is meant, and whether it is over."""
        office = self._office
        found = await office.read(office.reader.find, ref)
        tries = await office.read(office.reader.attempts_of, found.id)
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
