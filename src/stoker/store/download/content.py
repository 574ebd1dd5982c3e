"""What is there of a file so far: in memory if it is small, else in a partial file with its digest under way."""

from __future__ import annotations

from stoker.host.durable import translated
from stoker.host.http.addresses import shown
from stoker.host.identity import mine
from stoker.model.frozen import changed, frozen
from stoker.store.download.commit import OpenLanding, name_partial, name_small
from stoker.store.download.deciding import Move, Resumption, decide_partial
from stoker.store.download.existing import Validators
from stoker.store.download.hashing import BodyHash, Summing, Sums, sum_file
from stoker.store.download.judging import Take
from stoker.store.download.partial import Partial, read_beside, set_strangers_aside
from stoker.store.download.sidecar import Sidecar, is_plain
from stoker.store.download.tools import Tools
from stoker.store.download.wanted import Wanted

SMALL_BYTES = 1 << 20
"""A body up to here is held in memory until it is checked: no partial file, no thread; a broken one is fetched anew."""
DIRECT_BYTES = 64 << 20
"""Where more than this is still to come it is written past the page cache."""


@frozen
class Totals:
    """The digests and the size of everything that is there."""

    sums: Sums
    size_bytes: int


class Content:
    """The bytes of one version, growing. `close` it, after `leave` or `discard` where it was not named."""

    def __init__(self, wanted: Wanted, landing: OpenLanding, tools: Tools) -> None:
        self._wanted = wanted
        self._landing = landing
        self._tools = tools
        self._partial: Partial | None = None
        self._hash: BodyHash | None = None
        self._small: bytearray | None = None
        self._is_ended = False
        self._connections = 0
        self.total_bytes = wanted.size_bytes
        self.validators = Validators()
        self.bytes_resumed = 0
        """How many bytes of it an earlier run brought."""

    @property
    def offset(self) -> int:
        """From where on bytes are missing; what is only in memory does not outlive its connection."""
        return 0 if self._partial is None else self._partial.end_bytes

    @property
    def end_bytes(self) -> int:
        return self.offset if self._small is None else len(self._small)

    @property
    def sidecar(self) -> Sidecar | None:
        """Which version it is of, where that was recorded."""
        return None if self._partial is None else self._partial.sidecar

    @property
    def hashed_bytes(self) -> int:
        return self.end_bytes if self._hash is None else self._hash.hashed_bytes

    @property
    def allocated_bytes(self) -> int:
        """What the disk would gain if it were discarded."""
        return 0 if self._partial is None else self._partial.allocated_bytes

    @property
    def is_whole(self) -> bool:
        has_begun = self._partial is not None or self._small is not None
        return has_begun and (self._is_ended or self.end_bytes == self.total_bytes)

    @property
    def is_pieced(self) -> bool:
        """Whether more than one connection, or an earlier run, brought its bytes."""
        return self.bytes_resumed > 0 or self._connections > 1

    def take_up(self, *, begins_anew: bool) -> Resumption:
        """Go on with what an earlier run left, as far as it is good for anything, and say what was done with it."""
        folder, names = self._landing.folder, self._landing.names
        strangers = set_strangers_aside(folder, names, self._tools.received)
        if strangers:
            return Resumption(move=Move.RESTART, why=strangers)
        sidecar, here = read_beside(folder, names[1]), folder.look(names[0])
        length = None if here is None or begins_anew else here.st_size
        found = decide_partial(self._wanted, length, sidecar, boot_id=mine().boot_id)
        if found.move in {Move.RESUME, Move.FINISH} and isinstance(sidecar, Sidecar):
            now_s = self._tools.clock.monotonic_s()
            sidecar = changed(sidecar, **_pinned(self._wanted))
            self._partial = Partial.resume(folder, names, sidecar, offset=found.offset, now_s=now_s)
            if self._partial is not None:
                self.bytes_resumed = found.offset
                self.total_bytes = sidecar.size_bytes if self.total_bytes is None else self.total_bytes
                self.validators = Validators(etag=sidecar.etag, last_modified=sidecar.last_modified)
                self._ready_hash()
                return found
            found = Resumption(move=Move.RESTART, why="the partial file is no plain file of its own")
        for name in names:
            folder.remove(name)
        return found

    def receive(self, take: Take, total_bytes: int | None) -> None:
        """Get ready for the body of an answer: the whole (whatever was there is discarded), or the rest."""
        if take.offset == 0:
            self.discard()
        self.total_bytes = total_bytes
        self.validators = Validators(etag=take.etag, last_modified=take.last_modified)
        self._connections += 1
        if take.offset == 0 and total_bytes is not None and total_bytes <= SMALL_BYTES:
            self._small = bytearray()
            return
        if self._partial is None:
            self._create(take)
        else:
            self._partial.describe(**_told(self._wanted, take))
        self._ready_hash()

    def add(self, piece: bytes, now_s: float) -> None:
        """Add the next bytes. Raises as `Partial.write` does."""
        if self._small is not None:
            self._small += piece
        elif self._partial is not None:
            summing = self._ready_hash()
            self._tools.on_step("write")
            if not summing.is_following and self._is_much_to_come():
                self._partial.write_direct(piece, now_s)
            else:
                self._partial.write(piece, now_s)
            with translated(self._landing.part_path):
                summing.wrote(piece)

    def rest(self, now_s: float) -> None:
        """Have everything on the disk before a pause that nobody knows the length of. Raises as `add` does."""
        if self._partial is not None:
            self._partial.settle()
            self._partial.mark(now_s)

    def end(self) -> None:
        """Note that a body of unknown length came to its end."""
        self._is_ended = True

    def check(self) -> Totals:
        """Give the digests and the size of everything that is there, once that is whole."""
        with_git = bool(self._wanted.git_sha1)
        if self._small is not None:
            summing = Summing(len(self._small) if with_git else None)
            summing.add(self._small)
            return Totals(sums=summing.sums(), size_bytes=len(self._small))
        self._open_partial.settle()
        with translated(self._landing.part_path):
            sums = self._ready_hash().finish()
            if with_git and not sums.git_sha1:
                sums = sum_file(self._open_partial.descriptor, self.offset, with_git=True)
        return Totals(sums=sums, size_bytes=self.offset)

    def name(self) -> None:
        """Give what was checked its final name, durably.

        Raises `BytesLost`, `LockHeld` if somebody else took it over, `LocalFile` if its folder is elsewhere by now.
        """
        on_step = self._tools.on_step
        if self._small is not None:
            name_small(self._landing, bytes(self._small), self.validators, on_step)
        else:
            name_partial(self._landing, self._open_partial, self.validators, on_step)

    def believe_less(self) -> None:
        """The partial file was cut back: what was hashed beyond is forgotten."""
        self._close_hash()
        self._is_ended = False

    def discard(self) -> None:
        """Throw away everything that is there."""
        self._close_hash()
        if self._partial is not None:
            self._partial.discard()
            self._partial.close()
            self._partial = None
        self._small = None
        self._is_ended = False
        self._connections = self.bytes_resumed = 0
        self.total_bytes = self._wanted.size_bytes

    def leave(self) -> None:
        """Keep what is on the disk for another run."""
        if self._partial is not None:
            self._partial.leave()

    def close(self) -> None:
        self._close_hash()
        if self._partial is not None:
            self._partial.close()

    @property
    def _open_partial(self) -> Partial:
        assert self._partial is not None, "there is no partial file"  # noqa: S101 - only asked where there is one
        return self._partial

    def _is_much_to_come(self) -> bool:
        return self.total_bytes is not None and self.total_bytes - self.offset > DIRECT_BYTES

    def _create(self, take: Take) -> None:
        sidecar = Sidecar(
            url=shown(self._wanted.url),
            commit=self._wanted.commit,
            size_bytes=self.total_bytes,
        )
        sidecar = changed(sidecar, **_pinned(self._wanted), **_told(self._wanted, take))
        now_s, on_step = self._tools.clock.monotonic_s(), self._tools.on_step
        self._partial = Partial.create(self._landing.folder, self._landing.names, sidecar, now_s=now_s, on_step=on_step)

    def _ready_hash(self) -> BodyHash:
        if self._hash is None:
            partial = self._open_partial
            # A git blob is hashed with its size first; where that is not known it is hashed once all is there.
            git_size_bytes = self.total_bytes if self._wanted.git_sha1 else None
            self._hash = BodyHash(partial.descriptor, prefix_bytes=partial.end_bytes, git_size_bytes=git_size_bytes)
        return self._hash

    def _close_hash(self) -> None:
        if self._hash is not None:
            self._hash.close()
            self._hash = None


def _told(wanted: Wanted, take: Take) -> dict[str, str]:
    etag = take.etag if is_plain(take.etag) else ""
    last_modified = take.last_modified if take.is_date_exact and is_plain(take.last_modified) else ""
    return {"url": shown(wanted.url), "etag": etag, "last_modified": last_modified}


def _pinned(wanted: Wanted) -> dict[str, str]:
    """Give the digests that bytes may be added under: from then on nothing but these vouches for them."""
    pins = {"sha256": (wanted.sha256 or "").lower(), "git_sha1": wanted.git_sha1.lower()}
    return {name: digest for name, digest in pins.items() if digest}
