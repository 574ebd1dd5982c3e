"""What a worker asks of its coordinator, a method for each route.

Everything here may be asked again after a lost answer: a claim by its request id, an attempt's word by its token, a
file by its offset, an upload by its digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from pydantic import BaseModel

from stoker.host.http.exchange import BodySource, Reply
from stoker.model.errors import NotFound
from stoker.model.leases import Token
from stoker.wire.asking import FileOffset, UploadAsk, UploadBegun
from stoker.wire.leasing import (
    CancelConfirmed,
    Claim,
    Decline,
    Fail,
    Finish,
    Granted,
    Hello,
    PointCheckpoint,
    Release,
    Renewal,
    Renewed,
    Settled,
    Start,
    Tokened,
    Welcome,
)
from stoker.wire.refusals import no_coordinator_there
from stoker.wire.speaking import Query, Question, Speaker, part, parts, whole_number


class ObjectStream:
    """The bytes of one object of the coordinator's, from some offset on."""

    def __init__(self, speaker: Speaker, reply: Reply, *, offset: int) -> None:
        self._speaker = speaker
        self._reply = reply
        self.offset = offset
        """Where the bytes begin: 0 where the server knows no ranges."""
        self.length_bytes = whole_number(reply.headers.get("Content-Length"))
        """How many follow, where the server says so."""

    def read(self, at_most_bytes: int) -> bytes:
        """Give the next bytes; nothing at the end."""
        return self._speaker.read(self._reply, at_most_bytes)


class WorkerCalls:
    """One half of a `FleetClient`."""

    _speaker: Speaker

    def hello(self, hello: Hello) -> Welcome:
        """Say who this worker is and what its machine has."""
        return self._speaker.ask(_said("/v1/hello", hello), Welcome)

    def claim(self, claim: Claim) -> Granted:
        """Ask for work; held open for `claim.wait_s` while there is none."""
        question = Question(path="/v1/claims", method="POST", body=claim, is_repeatable=True, waits_s=claim.wait_s)
        return self._speaker.ask(question, Granted)

    def renew(self, renewal: Renewal) -> Renewed:
        """Renew every lease of this worker."""
        return self._speaker.ask(_said("/v1/renewals", renewal), Renewed)

    def start(self, job: str, said: Start) -> Settled:
        """Tell that the job's process runs."""
        return self._settle(job, "start", said)

    def decline(self, job: str, said: Decline) -> Settled:
        """Give a grant back unstarted, with the reason."""
        return self._settle(job, "decline", said)

    def release(self, job: str, said: Release) -> Settled:
        """Give a lease back, attempt not charged."""
        return self._settle(job, "release", said)

    def finish(self, job: str, said: Finish) -> Settled:
        """Tell that it completed; the bundle lies with the coordinator."""
        return self._settle(job, "finish", said)

    def fail(self, job: str, said: Fail) -> Settled:
        """Tell that it failed, and why."""
        return self._settle(job, "fail", said)

    def cancelled(self, job: str, said: CancelConfirmed) -> Settled:
        """Confirm that it was stopped and nothing of it runs."""
        return self._settle(job, "cancelled", said)

    def checkpoint(self, job: str, said: PointCheckpoint) -> Settled:
        """Point the job at a checkpoint that lies with the coordinator."""
        return self._settle(job, "checkpoint", said)

    def put_file(self, token: Token, path: str, data: bytes | BodySource, *, offset: int) -> int:
        """Append to a mirrored file of an attempt, and give its new size.

        Bytes that lie there already are not written twice. `Conflict` carries the right `offset` in its data where
        the file is shorter or longer than the offset.
        """
        told = {"attempt": token.attempt, "epoch": token.epoch, "generation": token.generation, "offset": offset}
        where = f"/v1/attempts/{part(token.job)}/files/{parts(path)}"
        return self._speaker.ask(_sent("PUT", where, data, told), FileOffset).offset

    def begin_upload(self, digest: str, size_bytes: int) -> UploadBegun:
        """Begin, or go on with, an upload: its answer says from where, or that the bytes are known."""
        return self._speaker.ask(_said("/v1/uploads", UploadAsk(digest=digest, size_bytes=size_bytes)), UploadBegun)

    def append_upload(self, upload: str, data: bytes | BodySource, *, offset: int) -> int:
        """Send the next bytes of an upload, and give how many lie there now."""
        question = _sent("PATCH", f"/v1/uploads/{part(upload)}", data, {"offset": offset})
        return self._speaker.ask(question, FileOffset).offset

    def finish_upload(self, upload: str) -> UploadBegun:
        """Have the bytes checked against their digest and kept; `is_known` says that they are."""
        question = Question(path=f"/v1/uploads/{part(upload)}/finish", method="POST", is_repeatable=True)
        return self._speaker.ask(question, UploadBegun)

    def has_object(self, sha256: str) -> int | None:
        """Say how large an object of the coordinator's is; nothing: it has none of that digest."""
        try:
            reply = self._speaker.open(Question(path=f"/v1/objects/{part(sha256)}", method="HEAD"))
        except NotFound:
            return None
        reply.close()
        return whole_number(reply.headers.get("Content-Length"))

    @contextmanager
    def get_object(self, sha256: str, *, offset: int = 0) -> Iterator[ObjectStream]:
        """Open an object's bytes from an offset on. Whoever reads them checks them against the digest."""
        ranged = {"Range": f"bytes={offset}-"} if offset else {}
        reply = self._speaker.open(Question(path=f"/v1/objects/{part(sha256)}", headers=ranged))
        try:
            is_partial = reply.status == HTTPStatus.PARTIAL_CONTENT
            if is_partial and not (reply.headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
                raise no_coordinator_there(self._speaker.url, "it sent another range than was asked for")
            yield ObjectStream(self._speaker, reply, offset=offset if is_partial else 0)
        finally:
            reply.close()

    def _settle(self, job: str, verb: str, said: Tokened) -> Settled:
        return self._speaker.ask(_said(f"/v1/attempts/{part(job)}/{verb}", said), Settled)


def _said(path: str, body: BaseModel) -> Question:
    return Question(path=path, method="POST", body=body, is_repeatable=True)


def _sent(method: str, path: str, data: bytes | BodySource, query: Query) -> Question:
    return Question(path=path, method=method, body=data, query=query, is_repeatable=True)
