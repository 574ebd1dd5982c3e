"""The partial file and its sidecar: bytes at explicit offsets, and a record of how many are durable.

Bytes are written at offsets, never appended: two writers of one pinned version, possible if locks have no effect, write
the same bytes to the same offsets. A restart creates a new file; the old one is not truncated, because another process
may be about to rename it. After a failed sync the kernel may have dropped unwritten bytes, so only bytes up to the last
successful sync are trusted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Self

from stoker.core import jsontext
from stoker.core.digests import digest_bytes
from stoker.core.errors import LocalFile, StokerError
from stoker.core.frozen import changed, fields_of, frozen
from stoker.host.durable import sync_descriptor, translate, translated, write_all
from stoker.host.folders import LONGEST_COMPONENT_BYTES, AnchoredFolder
from stoker.host.identity import ProcessIdentity, mine
from stoker.host.writers import ALIGNED_BYTES, DirectWriter, open_direct

PART, SIDECAR, LOCK, ETAG, LAST_MODIFIED = ".part", ".part.json", ".lock", ".etag", ".lastmod"
SUFFIXES = (PART, SIDECAR, LOCK, ETAG, LAST_MODIFIED)
CLAIM_TAG = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-([0-9a-f]{8})-(\d{1,10})-(\d{1,20})", re.ASCII)
"""The part after `.part.` without locks: host, boot, PID namespace, process and its start time, of the claimant."""
_UNFINISHED = re.compile(rf"(.+?{re.escape(PART)}(?:\.{CLAIM_TAG.pattern})?)(?:\.json)?", re.ASCII)
_ROOM_BYTES = LONGEST_COMPONENT_BYTES - 96
"""Names up to this length are used unchanged: the longest suffix fits into the rest."""


def beside(leaf: str, suffix: str) -> str:
    """Return the name of a companion file: `model.gguf.part`. A name that is too long is shortened to a unique one."""
    if len(leaf.encode()) <= _ROOM_BYTES:
        return leaf + suffix
    short = leaf.encode()[: _ROOM_BYTES - 17].decode(errors="ignore")
    return f"{short}~{sha256(leaf.encode()).hexdigest()[:16]}{suffix}"


def unfinished_of(name: str) -> str:
    """Return the partial file of a name that is a partial file, claimed or not, or a sidecar; empty for other names."""
    found = _UNFINISHED.fullmatch(name)
    return "" if found is None else found[1]


def companion_clashes(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names in which the download of the first would write a file with the name of the second."""
    known = {name.casefold(): name for name in names}
    return tuple(
        (name, known[key])
        for name in known.values()
        for suffix in SUFFIXES
        if (key := _companion(name, suffix).casefold()) in known
    )


def _companion(path: str, suffix: str) -> str:
    folder, slash, leaf = path.rpartition("/")
    return f"{folder}{slash}{beside(leaf, suffix)}"


# The sidecar of a partial file: the version of its bytes, and how many of them are durable.
#
# It is durable before the first byte of the body is written. A partial file without a valid sidecar is of an unknown
# version, and nothing is added to it. `durable_bytes` never counts a byte that was not synced.

FORMAT = 1
LONGEST_BYTES = 64 * 1024


@frozen
class Sidecar:
    """The version of a partial file. Unknown texts are empty."""

    url: str
    """Without its query: signatures are secrets, and change."""
    commit: str = ""
    size_bytes: int | None = None
    sha256: str = ""
    git_sha1: str = ""
    etag: str = ""
    """As the server stated it: a weak one does not identify exact bytes, but shows that they changed."""
    last_modified: str = ""
    """Only one that was old enough when it was first seen: within one second a file may change again."""
    durable_bytes: int = 0
    """So many bytes from the start were synced."""
    boot_id: str = ""
    """Of the machine that wrote it: bytes that were not synced are there until it reboots."""
    writer: ProcessIdentity | None = None
    """The writing process; None after an orderly exit."""

    @property
    def has_validator(self) -> bool:
        return bool(self.condition)

    @property
    def condition(self) -> str:
        """The validator for a request for the rest: a strong ETag, otherwise the date."""
        return strong_etag(self.etag) or self.last_modified


def dump_sidecar(sidecar: Sidecar) -> bytes:
    """Serialise a sidecar as one line of JSON with its own checksum."""
    writer = None if sidecar.writer is None else sidecar.writer.to_dict()
    body = {"format": FORMAT, **fields_of(sidecar), "writer": writer}
    return jsontext.dumps({**body, "check": _check(body)}).encode() + b"\n"


def load_sidecar(data: bytes) -> Sidecar | str:
    """Parse a sidecar; a text is the reason why it is invalid."""
    try:
        body = jsontext.loads(data)
        check = body.pop("check")
        if body["format"] != FORMAT:
            return f"its record has format {body['format']!r}, not {FORMAT}"
        if check != _check(body):
            return "its record is damaged"
        del body["format"]
        writer = body.pop("writer")
        made = Sidecar(**body, writer=None if writer is None else ProcessIdentity.from_dict(writer))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "its record can't be read"
    return made if _is_sound(made) else "its record has invalid values"


def strong_etag(text: str | None) -> str:
    """Return an ETag if it is strong; otherwise an empty text."""
    return text if text is not None and text.startswith('"') and is_plain(text) else ""


def is_plain(text: str) -> bool:
    """Return True if a validator can be sent back unchanged."""
    return text.isascii() and text.isprintable()


def _check(body: dict[str, object]) -> str:
    return digest_bytes(jsontext.dumps(body).encode())


def _is_sound(sidecar: Sidecar) -> bool:
    texts = (sidecar.url, sidecar.commit, sidecar.sha256, sidecar.git_sha1, sidecar.etag, sidecar.last_modified)
    numbers = (sidecar.durable_bytes, 0 if sidecar.size_bytes is None else sidecar.size_bytes)
    return (
        all(isinstance(text, str) for text in (*texts, sidecar.boot_id))
        and all(type(number) is int and number >= 0 for number in numbers)
        and is_plain(sidecar.etag)
        and is_plain(sidecar.last_modified)
    )


WRITE_BACK_BYTES = 32 << 20
"""Start writing to the disk after so many bytes, instead of all at the end."""
WATERMARK_BYTES = 1 << 30
WATERMARK_S = 5.0
"""Sync after so many new bytes or seconds: the most that a power cut may cost."""

_ASIDE = ("~", *(f"~{number}" for number in range(2, 10)))

OnStep = Callable[[str], None]


class BytesLost(Exception):
    """A sync failed: the partial file was truncated to the synced bytes. Carries the error."""

    def __init__(self, error: StokerError) -> None:
        super().__init__(str(error))
        self.error = error


class PartialFile:
    """An open partial file whose bytes up to `end_bytes` are of the version in `sidecar`."""

    def __init__(self, folder: AnchoredFolder, names: tuple[str, str], descriptor: int, sidecar: Sidecar) -> None:
        self.descriptor = descriptor
        self.sidecar = sidecar
        self.end_bytes = 0
        self._folder = folder
        self._name, self._sidecar_name = names
        self._path = folder.path_of(self._name)
        self._durable_bytes = 0
        self._written_back_bytes = 0
        self._synced_s = 0.0
        self._start_write_back = _no_write_back
        self._direct: DirectWriter | None = None
        self._has_tried_direct = False

    @classmethod
    def create(
        cls, folder: AnchoredFolder, names: tuple[str, str], sidecar: Sidecar, *, now_s: float, on_step: OnStep
    ) -> Self:
        """Create a new one, replacing an existing one; its sidecar is durable first."""
        # Deleted first: bytes of one version must never be beside the sidecar of another.
        folder.remove(names[0])
        on_step("sidecar")
        folder.write_file(names[1], dump_sidecar(_signed(sidecar, 0)))
        descriptor = folder.create_file(names[0])
        made = cls(folder, names, descriptor, _signed(sidecar, 0))
        made._synced_s = now_s
        folder.sync()
        return made

    @classmethod
    def resume(
        cls, folder: AnchoredFolder, names: tuple[str, str], sidecar: Sidecar, *, offset: int, now_s: float
    ) -> Self | None:
        """Resume the existing file, truncated to `offset`. None if it no longer exists."""
        descriptor = folder.open_file(names[0], writes=True)
        if descriptor is None:
            return None
        with translated(folder.path_of(names[0])):
            if os.fstat(descriptor).st_size < offset:
                os.close(descriptor)
                return None
            try:
                # Truncate before the sidecar has this boot id: from then on the length is trusted.
                os.ftruncate(descriptor, offset)
                made = cls(folder, names, descriptor, _signed(sidecar, min(sidecar.durable_bytes, offset)))
                made.end_bytes = made._written_back_bytes = offset
                made._durable_bytes, made._synced_s = made.sidecar.durable_bytes, now_s
                folder.write_file(names[1], dump_sidecar(made.sidecar))
            except BaseException:
                os.close(descriptor)
                raise
        return made

    @property
    def allocated_bytes(self) -> int:
        """Disk space that its removal would free."""
        return os.fstat(self.descriptor).st_blocks * 512

    def write(self, piece: bytes, now_s: float) -> None:
        """Add the next bytes. Raises `NoSpace` and similar errors, with all earlier bytes in place; or `BytesLost`."""
        if self._direct is not None and self._direct.failure is not None:
            self.settle()
        if self._direct is not None:
            self._direct.write(piece)
            self.end_bytes += len(piece)
        else:
            self._write_through_cache(piece)
        if self.end_bytes - self._durable_bytes >= WATERMARK_BYTES or now_s - self._synced_s >= WATERMARK_S:
            self.mark(now_s)

    def write_direct(self, piece: bytes, now_s: float) -> None:
        """Add the next bytes past the page cache, if the file system supports that well. They are not readable yet."""
        if not self._has_tried_direct:
            head_bytes = -self.end_bytes % ALIGNED_BYTES
            if head_bytes:
                self.write(piece[:head_bytes], now_s)
                piece = piece[head_bytes:]
            if self.end_bytes % ALIGNED_BYTES == 0:
                self._has_tried_direct = True
                descriptor = open_direct(self.descriptor)
                self._direct = None if descriptor is None else DirectWriter(descriptor, self.end_bytes)
        self.write(piece, now_s)

    def settle(self) -> None:
        """Wait until all bytes are in the file. Raises what `write` raises."""
        direct, self._direct = self._direct, None
        if direct is None:
            return
        rest = direct.settle()
        self._has_tried_direct = direct.failure is not None
        self.end_bytes = self._written_back_bytes = direct.written_bytes
        # A file system without direct writes reports that at the first one.
        if direct.failure is not None and direct.failure.errno != errno.EINVAL:
            raise translate(direct.failure, self._path) from direct.failure
        for view in rest:
            self._write_through_cache(view)

    def mark(self, now_s: float) -> None:
        """Sync the bytes and record their number. Raises `BytesLost`."""
        self._synced_s = now_s
        if self.end_bytes > self._durable_bytes:
            self._sync(_sync_data)
            self._save()

    def describe(self, **facts: object) -> None:
        """Record more about the version, such as a validator that the first response lacked."""
        described = changed(self.sidecar, **facts)
        if described != self.sidecar:
            self.sidecar = described
            self._save()

    def sync(self) -> None:
        """Sync everything. Raises `BytesLost`, and what `write` raises."""
        self.settle()
        self._sync(sync_descriptor)

    def is_ours(self) -> bool:
        """Return True if the file under the partial name is still this one, with our process in its sidecar."""
        here = self._folder.look(self._name)
        if here is None or not os.path.samestat(here, os.fstat(self.descriptor)):
            return False
        return self._is_record_ours()

    @property
    def size_bytes(self) -> int:
        """Return the length of the file on disk."""
        return os.fstat(self.descriptor).st_size

    def name_it(self, leaf: str) -> None:
        """Rename the file to its final name; the caller syncs the folder."""
        self._folder.rename(self._name, leaf)
        self._folder.remove(self._sidecar_name)

    def leave(self) -> None:
        """Keep it for another run: sync what is possible, and remove our process from the sidecar. Never raises."""
        with suppress(StokerError, BytesLost, OSError):
            if self.is_ours():
                with suppress(BytesLost, StokerError):
                    self.settle()
                    self._sync(_sync_data)
                self.sidecar = changed(self.sidecar, writer=None)
                self._save()
            elif self._is_record_ours():
                # Another file has the partial name, and our sidecar would state this version for its bytes.
                self._folder.remove(self._sidecar_name)

    def discard(self) -> None:
        """Delete it and its sidecar, unless another file has the name."""
        self._abandon_direct()
        here = self._folder.look(self._name)
        if here is not None and os.path.samestat(here, os.fstat(self.descriptor)):
            self._folder.remove(self._name)
            self._folder.remove(self._sidecar_name)

    def close(self) -> None:
        self._abandon_direct()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _is_record_ours(self) -> bool:
        record = load_sidecar(self._folder.read_file(self._sidecar_name, LONGEST_BYTES) or b"")
        return isinstance(record, Sidecar) and record.writer == mine()

    def _abandon_direct(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.abandon()

    def _write_through_cache(self, piece: bytes | memoryview) -> None:
        try:
            write_all(self.descriptor, piece, self.end_bytes)
        except OSError as error:
            raise translate(error, self._path) from error
        self.end_bytes += len(piece)
        if self.end_bytes - self._written_back_bytes >= WRITE_BACK_BYTES:
            self._write_back()

    def _write_back(self) -> None:
        if self._start_write_back is _no_write_back:
            self._start_write_back = _find_write_back()
        start, self._written_back_bytes = self._written_back_bytes, self.end_bytes
        self._start_write_back(self.descriptor, start, self.end_bytes - start)

    def _sync(self, sync: Callable[[int], None]) -> None:
        end_bytes = self.end_bytes if self._direct is None else self._direct.written_bytes
        try:
            sync(self.descriptor)
        except OSError as error:
            self._abandon_direct()
            with suppress(OSError):
                os.ftruncate(self.descriptor, self._durable_bytes)
            self.end_bytes = self._written_back_bytes = self._durable_bytes
            raise BytesLost(translate(error, self._path)) from error
        self._durable_bytes = end_bytes

    def _save(self) -> None:
        self.sidecar = changed(self.sidecar, durable_bytes=self._durable_bytes)
        self._folder.write_file(self._sidecar_name, dump_sidecar(self.sidecar))


def read_beside(folder: AnchoredFolder, name: str) -> Sidecar | str | None:
    """Read a sidecar; None if there is none, a text with the reason if it is invalid."""
    data = folder.read_file(name, LONGEST_BYTES)
    return None if data is None else load_sidecar(data)


def set_strangers_aside(
    folder: AnchoredFolder, names: tuple[str, str], received: Callable[[str], object | None]
) -> str:
    """Rename existing files under the names of a partial file and its sidecar that we did not make; return a message.

    Our partial file always has a sidecar, so one without belongs to another program, and so does an invalid sidecar.
    They get a new name ending with `~` and a number if needed. Raises `LocalFile` if all those names are taken, and for
    a file that was downloaded to this path on purpose (`received`).
    """
    if isinstance(read_beside(folder, names[1]), Sidecar):
        return ""
    renamed = []
    for name in names:
        if folder.look(name) is None:
            continue
        path = folder.path_of(name)
        if received(path) is not None:
            hint = "fetch the two into different folders"
            raise LocalFile(f"file exists and was downloaded under this name: {path}", hint=hint, path=path)
        aside = next((free for tail in _ASIDE if folder.look(free := f"{name}{tail}") is None), "")
        if not aside:
            raise LocalFile(f"file exists and was not made by Stoker: {path}", hint="move it away", path=path)
        folder.rename(name, aside)
        renamed.append(f"{path} was not made by Stoker; renamed to {aside}")
    return "; ".join(renamed)


def _signed(sidecar: Sidecar, durable_bytes: int) -> Sidecar:
    me: ProcessIdentity = mine()
    return changed(sidecar, durable_bytes=durable_bytes, boot_id=me.boot_id, writer=me)


def _no_write_back(descriptor: int, offset: int, size_bytes: int, /) -> None:
    """Leave write-back to the kernel."""


if sys.platform == "linux":

    def _find_write_back() -> Callable[[int, int, int], None]:
        from stoker.host.linux import start_write_back  # noqa: PLC0415 - loads ctypes, for large files only

        return start_write_back

    def _sync_data(descriptor: int) -> None:
        os.fdatasync(descriptor)

else:

    def _find_write_back() -> Callable[[int, int, int], None]:
        return lambda *_: None

    def _sync_data(descriptor: int) -> None:
        sync_descriptor(descriptor)
