"""A line to a coordinator without a network: the coordinator's own keeping at the other end, and faults on the way.

    line = KeptLine(keeping)
    line.before = lambda call: NoCoordinator("cut") if call == "put_files" else None

`before` breaks a call that never arrives, `after` one whose answer is lost. Both are asked with the call's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import cast

from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.digests import Digest
from stoker.core.errors import NotFound, StaleLease
from stoker.core.leases import AttemptToken
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import LeaseWrite, PointCheckpoint, WriteResponse
from stoker.protocol.mirror_pieces import MirrorPiece, MirrorPieceResult, read_pieces, results_of, write_pieces
from stoker.protocol.tree_messages import PackResponse, PassResponse, TreeView, read_frames
from stoker.protocol.view_messages import FileList, FileView, UploadResponse
from tests.fakes.trees import MemoryTrees

Breaks = Callable[[str], Exception | None]


class KeptLine:
    """Speaks for any token that is `current`, or for all while that is nothing."""

    def __init__(self, keeping: CoordinatorStorage) -> None:
        self.keeping = keeping
        self.rows = MemoryTrees(keeping.clock)
        self.trees = CoordinatorTrees(keeping, self.rows)
        self.before: Breaks = lambda _call: None
        self.after: Breaks = lambda _call: None
        self.current: AttemptToken | None = None
        self.calls: list[str] = []
        self.sent: list[tuple[str, int, int]] = []
        """Path, offset and size of every piece of a file."""
        self.uploaded_bytes = 0
        self.pointed: list[PointCheckpoint] = []

    @property
    def client(self) -> FleetClient:
        """Itself, where a client is expected."""
        return cast(FleetClient, self)

    def put_files(self, token: AttemptToken, pieces: Sequence[MirrorPiece]) -> tuple[MirrorPieceResult, ...]:
        with self._call("put_files"):
            if self.current is not None and token != self.current:
                raise StaleLease(f"attempt {token.attempt} is over")
            self.sent += [(one.path, one.offset, len(one.data)) for one in pieces]
            pieces = read_pieces(write_pieces(pieces))
            return results_of(self.keeping.append_all(token.job, token.attempt, pieces)).results

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        with self._call("files"):
            kept = self.keeping.attempt_files.files(ref, attempt or 1)
            listed = tuple(FileView(path=one.path, size_bytes=one.size_bytes) for one in kept)
            return FileList(attempt=attempt or 1, files=listed)

    def pass_to_send(self, _digest: str, _size_bytes: int) -> PassResponse:
        return PassResponse(is_direct=False)

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

    def want_tree(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeView:
        with self._call("want_tree"):
            is_here = self.trees.want(tree, files=files, size_bytes=size_bytes) is not None
            return TreeView(tree=tree, files=files, size_bytes=size_bytes, is_here=is_here)

    def missing(self, digests: Sequence[str], sizes: Sequence[int] = ()) -> tuple[str, ...]:
        with self._call("missing"):
            return self.trees.missing(digests, tuple(sizes))

    def send_pack(self, pack: bytes) -> PackResponse:
        with self._call("send_pack"):
            kept, known = self.trees.keep_pack(pack)
            return PackResponse(kept=kept, known=known)

    def keep_tree(self, tree: str, listing: bytes) -> TreeView:
        with self._call("keep_tree"):
            kept = self.trees.keep_tree(tree, BytesIO(listing))
            return TreeView(tree=tree, files=kept.files, size_bytes=kept.size_bytes, is_here=not kept.missing)

    def tree_listing(self, tree: str) -> bytes:
        with self._call("tree_listing"):
            return self.trees.listing(tree)

    @contextmanager
    def fetch_contents(self, digests: Sequence[str]) -> Iterator[Iterator[tuple[Digest, bytes]]]:
        with self._call("fetch_contents"):
            data = BytesIO(b"".join(self.trees.frames(digests)[1]))
            yield read_frames(data.read, requested=frozenset(digests))

    def write(self, job: str, said: LeaseWrite) -> WriteResponse:
        with self._call(said.verb):
            assert isinstance(said, PointCheckpoint)
            if self.current is not None and said.token(job) != self.current:
                raise StaleLease(f"attempt {said.attempt} is over")
            if not self.trees.has(said.checkpoint.tree):
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
