"""What is asked about trees of code and data: of a coordinator, or of a machine that has them.

    client.want_tree(tree, files=…, size_bytes=…)   is it there? keep it; else: may it come?
    client.missing(digests, sizes)                  which files are not there
    client.send_pack(frames)                        small files; large ones go as uploads
    client.keep_tree(tree, listing)                 all files are there: this is the tree

    client.tree_listing(tree), client.fetch_contents(digests), client.get_object(digest, offset=…)

Everything may be asked again after a lost answer. Machines of the fleet answer the last three just as a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from stoker.model.digests import Digest
from stoker.wire.contents import (
    MOST_LISTING_BYTES,
    DigestsAsk,
    Missing,
    PackKept,
    Sources,
    SourcesAsk,
    TreeAsk,
    TreeView,
)
from stoker.wire.packs import read_frames
from stoker.wire.refusals import no_coordinator_there
from stoker.wire.speaking import Question, Speaker, part

_PIECE_BYTES = 1 << 20


class ContentCalls:
    """One part of a `FleetClient`."""

    _speaker: Speaker

    def want_tree(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeView:
        """Say that a tree is wanted: one that is there is kept for a while. `TooLarge`, `NoSpace`: it can't come."""
        body = TreeAsk(files=files, size_bytes=size_bytes)
        question = Question(path=f"/v1/trees/{part(tree)}", method="POST", body=body, is_repeatable=True)
        return self._speaker.ask(question, TreeView)

    def missing(self, digests: Sequence[str], sizes: Sequence[int] = ()) -> tuple[str, ...]:
        """Say which of at most 10,000 files are not there. With their sizes: `NoSpace` if the missing don't fit."""
        body = DigestsAsk(digests=tuple(digests), sizes=tuple(sizes))
        question = Question(path="/v1/contents/missing", method="POST", body=body, is_repeatable=True)
        return self._speaker.ask(question, Missing).digests

    def send_pack(self, pack: bytes) -> PackKept:
        """Send small files (`wire.packs`), at most 8 MiB; durable on return."""
        question = Question(path="/v1/contents", method="POST", body=pack, is_repeatable=True)
        return self._speaker.ask(question, PackKept)

    def keep_tree(self, tree: str, listing: bytes) -> TreeView:
        """Send a tree's listing, once its files are there. If some are not, the answer says it is not here."""
        question = Question(path=f"/v1/trees/{part(tree)}", method="PUT", body=listing, is_repeatable=True)
        return self._speaker.ask(question, TreeView)

    def tree_listing(self, tree: str) -> bytes:
        """Give a tree's listing; `store.listing.read_listing` checks it. `NotFound`."""
        with closing(self._speaker.open(Question(path=f"/v1/trees/{part(tree)}"))) as reply:
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
        body = DigestsAsk(digests=tuple(digests))
        question = Question(path="/v1/contents/fetch", method="POST", body=body, is_repeatable=True)
        with closing(self._speaker.open(question)) as reply:
            pieces = _Pieces(lambda: self._speaker.read(reply, _PIECE_BYTES))
            yield read_frames(pieces.read, wanted=frozenset(digests))

    def object_address(self, sha256: str) -> tuple[str, dict[str, str]]:
        """Give where an object's bytes are, and what to say there: for whoever fetches it by a transport of theirs."""
        return self._speaker.address(Question(path=f"/v1/objects/{part(sha256)}"))

    def sources(self, asked: SourcesAsk) -> Sources:
        """Ask where to get trees, nearest first. Asked again while they come, it says that they still do."""
        question = Question(path="/v1/sources", method="POST", body=asked, is_repeatable=True)
        return self._speaker.ask(question, Sources)


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
