"""The lines to a coordinator, as a keeper uses them. `wire.client.FleetClient` is each of them; tests bring their own.

Three, so that none waits for another: short words, long questions for work, and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from stoker.model.errors import Unavailable
from stoker.model.frozen import frozen
from stoker.model.leases import Token
from stoker.wire.asking import FileList, UploadBegun
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
    Welcome,
)
from stoker.wire.views import FleetStatus
from stoker.worker.inside.session import ExecLine
from stoker.worker.shipping.line import FleetLine, Incoming


class Coordinator(Protocol):
    """Short words. Each may be said again after a lost answer."""

    def hello(self, hello: Hello) -> Welcome: ...
    def claim(self, claim: Claim) -> Granted: ...
    def renew(self, renewal: Renewal) -> Renewed: ...
    def start(self, job: str, said: Start) -> Settled: ...
    def decline(self, job: str, said: Decline) -> Settled: ...
    def release(self, job: str, said: Release) -> Settled: ...
    def finish(self, job: str, said: Finish) -> Settled: ...
    def fail(self, job: str, said: Fail) -> Settled: ...
    def cancelled(self, job: str, said: CancelConfirmed) -> Settled: ...
    def status(self) -> FleetStatus: ...


class Asking(Protocol):
    """A line for one long question; cut, it answers no more."""

    def claim(self, claim: Claim) -> Granted: ...
    def cut(self) -> None: ...


@frozen
class Lines:
    """All of them."""

    url: str
    words: Coordinator
    bytes: FleetLine
    ask: Callable[[], Asking]
    """Open a line for long questions."""
    execs: ExecLine | None = None
    """For commands of operators; nothing: this worker runs none."""


class Guarded:
    """The line for an attempt's bytes, silent while its lease is over by our own clock."""

    def __init__(self, line: FleetLine, may_speak: Callable[[Token], bool]) -> None:
        self._line = line
        self._may_speak = may_speak

    def put_file(self, token: Token, path: str, data: bytes, *, offset: int) -> int:
        self._hold(token)
        return self._line.put_file(token, path, data, offset=offset)

    def checkpoint(self, job: str, said: PointCheckpoint) -> Settled:
        self._hold(said.token(job))
        return self._line.checkpoint(job, said)

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        return self._line.files(ref, attempt=attempt)

    def begin_upload(self, digest: str, size_bytes: int) -> UploadBegun:
        return self._line.begin_upload(digest, size_bytes)

    def append_upload(self, upload: str, data: bytes, *, offset: int) -> int:
        return self._line.append_upload(upload, data, offset=offset)

    def finish_upload(self, upload: str) -> UploadBegun:
        return self._line.finish_upload(upload)

    def get_object(self, sha256: str, *, offset: int = 0) -> AbstractContextManager[Incoming]:
        return self._line.get_object(sha256, offset=offset)

    def _hold(self, token: Token) -> None:
        if not self._may_speak(token):
            raise Unavailable("its lease is over by this machine's clock", hint="it is renewed, or dropped")
