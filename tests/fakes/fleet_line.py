"""A line to a coordinator without a network: the coordinator's own keeping at the other end, and faults on the way.

    line = KeptLine(keeping)
    line.before = lambda call: NoCoordinator("cut") if call == "put_file" else None

`before` breaks a call that never arrives, `after` one whose answer is lost. Both are asked with the call's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.errors import NotFound, StaleLease
from stoker.core.leases import AttemptToken
from stoker.protocol.lease_messages import PointCheckpoint, WriteResponse
from stoker.protocol.view_messages import FileList, FileView, UploadResponse

Breaks = Callable[[str], Exception | None]


class Stream:
    """The bytes of one object; `ends_after` cuts the answer short."""

    def __init__(self, file: BinaryIO, offset: int, ends_after: int | None) -> None:
        self.offset = offset
        self._file = file
        self._left = ends_after

    def read(self, at_most_bytes: int) -> bytes:
        if self._left is not None:
            at_most_bytes = min(at_most_bytes, self._left)
            self._left -= at_most_bytes
        return self._file.read(at_most_bytes)


class KeptLine:
    """Speaks for any token that is `current`, or for all while that is nothing."""

    def __init__(self, keeping: CoordinatorStorage) -> None:
        self.keeping = keeping
        self.before: Breaks = lambda _call: None
        self.after: Breaks = lambda _call: None
        self.current: AttemptToken | None = None
        self.calls: list[str] = []
        self.sent: list[tuple[str, int, int]] = []
        """Path, offset and size of every piece of a file."""
        self.uploaded_bytes = 0
        self.pointed: list[PointCheckpoint] = []
        self.ends_after: int | None = None
        self.knows_ranges = True

    def put_file(self, token: AttemptToken, path: str, data: bytes, *, offset: int) -> int:
        with self._call("put_file"):
            if self.current is not None and token != self.current:
                raise StaleLease(f"attempt {token.attempt} is over")
            self.sent.append((path, offset, len(data)))
            return self.keeping.append(token.job, token.attempt, path, offset, data)

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        with self._call("files"):
            kept = self.keeping.attempt_files.files(ref, attempt or 1)
            listed = tuple(FileView(path=one.path, size_bytes=one.size_bytes) for one in kept)
            return FileList(attempt=attempt or 1, files=listed)

    def begin_upload(self, digest: str, size_bytes: int) -> UploadResponse:
        with self._call("begin_upload"):
            begun = self.keeping.bundles.begin(digest, size_bytes)
            return UploadResponse(id=begun.id, offset=begun.offset, is_known=begun.is_known)

    def append_upload(self, upload: str, data: bytes, *, offset: int) -> int:
        with self._call("append_upload"):
            self.uploaded_bytes += len(data)
            return self.keeping.bundles.append(upload, offset, data)

    def finish_upload(self, upload: str) -> UploadResponse:
        with self._call("finish_upload"):
            self.keeping.bundles.finish(upload)
            return UploadResponse(id=upload, is_known=True)

    @contextmanager
    def get_object(self, sha256: str, *, offset: int = 0) -> Iterator[Stream]:
        with self._call("get_object"):
            if self.keeping.has_archive(sha256) is None:
                raise NotFound(f"no object {sha256[:12]}")
            start = offset if self.knows_ranges else 0
            with self.keeping.bundles.open(sha256, start=start) as file:
                yield Stream(file, start, self.ends_after)

    def checkpoint(self, job: str, said: PointCheckpoint) -> WriteResponse:
        with self._call("checkpoint"):
            if self.current is not None and said.token(job) != self.current:
                raise StaleLease(f"attempt {said.attempt} is over")
            if self.keeping.has_archive(said.checkpoint.archive_sha256) is None:
                raise NotFound("its bytes are not here")
            self.pointed.append(said)
            return WriteResponse(job=job, state="running")

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        self.calls.append(name)
        if (error := self.before(name)) is not None:
            raise error
        yield
        if (error := self.after(name)) is not None:
            raise error
