"""Receipts: evidence of finished downloads, so that years later their bytes can be verified without a network.

A receipt states where a file came from, its commit and digest, the bytes transferred and when. It is stored twice below
one folder, under the file's path and under its digest, so that a moved file is still known. It contains its own
checksum: an edited or incomplete one is rejected. It is written after the file has its name and before its event. URLs
are stored without their query: signatures are secrets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from stoker.core.digests import Digest, digest_bytes, is_digest
from stoker.core.errors import LocalFile, NotVerified
from stoker.core.frozen import fields_of, frozen
from stoker.host.durable import read_regular, sync_dir, temp_name, translated, write_file
from stoker.host.folders import AnchoredFolder, write_unnamed
from stoker.store.statements import MARK, moment, read_object, seal, unseal
from stoker.store.trees import hash_file
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.types import FetchedFile, Status

FORMAT = 1
"""Receipts of downloads keep a format of their own, shorter than a statement's (`store.statements`, 2)."""
_CHECKSUM = "checksum"
LARGEST_BYTES = 64 * 1024
_MOST_TOGETHER = 64


@frozen
class Receipt:
    """The evidence of one finished download."""

    path: str
    """Absolute path of the file."""
    label: str
    source: str
    commit: str
    sha256: Digest
    size_bytes: int
    status: Status
    bytes_from_network: int
    bytes_resumed: int
    etag: str
    last_modified: str
    began_s: float
    ended_s: float
    stoker: str
    """The version that wrote it."""

    def to_bytes(self) -> bytes:
        """Return the bytes of its file, its checksum included."""
        moments = {"began_s": "began", "ended_s": "ended"}
        body: dict[str, Any] = {MARK: FORMAT}
        for name, value in fields_of(self).items():
            body[moments.get(name, name)] = moment(value) if name in moments else value
        return seal(body, name=_CHECKSUM)


def receipt_of(fetched: FetchedFile, *, label: str, ended_s: float, version: str) -> Receipt:
    """Return the receipt of a downloaded file."""
    return Receipt(
        path=os.path.abspath(fetched.path),
        label=label,
        source=fetched.url,
        commit=fetched.commit,
        sha256=fetched.sha256,
        size_bytes=fetched.size_bytes,
        status=fetched.status,
        bytes_from_network=fetched.bytes_from_network,
        bytes_resumed=fetched.bytes_resumed,
        etag=fetched.etag,
        last_modified=fetched.last_modified,
        began_s=ended_s - fetched.seconds,
        ended_s=ended_s,
        stoker=version,
    )


def read_receipt(path: str) -> Receipt:
    """Read a receipt. Raises `NotVerified` if it is not one, was edited, or is incomplete."""
    with translated(path):
        data = read_regular(path, LARGEST_BYTES)
    return parse_receipt(data, path)


def parse_receipt(data: bytes, path: str) -> Receipt:
    """Parse a receipt's bytes; `path` is for messages."""
    try:
        body = read_object(data, largest_bytes=LARGEST_BYTES)
        if MARK not in body:
            raise _refusal(path, "is not a receipt")
        if body[MARK] != FORMAT:
            raise _refusal(path, f"has format {body[MARK]!r}; the receipt of a download has format {FORMAT}")
        body = unseal(body, name=_CHECKSUM)
    except ValueError as error:
        raise _refusal(path, str(error)) from None
    try:
        return _read(body)
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(path, f"has a valid checksum, but is not a receipt ({error})") from None


class Receipts:
    """The receipts of one user, below one folder. Safe for threads and processes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._places = os.path.join(folder, "places")
        self._digests = os.path.join(folder, "digests")

    def make(self) -> None:
        """Create the folders, so that missing write permission is detected before the work."""
        for folder in (self._places, self._digests):
            with translated(folder):
                os.makedirs(folder, exist_ok=True)

    def keep(self, receipts: Sequence[Receipt]) -> None:
        """Store receipts, durably; they replace earlier ones of their paths and digests."""
        if not receipts:
            return
        self.make()
        for start in range(0, len(receipts), _MOST_TOGETHER):
            self._write(receipts[start : start + _MOST_TOGETHER])
        for folder in (self._places, self._digests):
            sync_dir(folder)

    def at(self, path: str) -> Receipt | None:
        """Return the receipt of a path: of the path as given, or of the path that its links lead to."""
        for place in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
            found = self._find(self._by_place(place))
            if found is not None:
                return found
        return None

    def has(self, path: str, sha256: Digest) -> bool:
        """Return True if there is a valid receipt of these bytes at a path."""
        try:
            found = self._find(self._by_place(os.path.abspath(path)))
        except NotVerified:
            return False
        return found is not None and found.sha256 == sha256

    def sha256_at(self, path: str) -> Digest | None:
        """Return the digest of a path by its receipt, if that is valid."""
        try:
            found = self.at(path)
        except NotVerified:
            return None
        return None if found is None else found.sha256

    def has_any(self, path: str) -> bool:
        """Return True if a path has a receipt, valid or not, by any of its names."""
        places = dict.fromkeys((os.path.abspath(path), os.path.realpath(path)))
        return any(os.path.lexists(self._by_place(place)) for place in places)

    def of(self, sha256: Digest) -> Receipt | None:
        """Return the newest receipt of a digest."""
        return self._find(self._by_digest(sha256))

    def place_of(self, sha256: Digest) -> str:
        """Return the path of the newest valid receipt of a digest; None if there is none."""
        try:
            found = self.of(sha256)
        except NotVerified:
            return ""
        return "" if found is None else found.path

    def _find(self, path: str) -> Receipt | None:
        try:
            return read_receipt(path) if os.path.lexists(path) else None
        except LocalFile:
            raise _refusal(path, "is not a plain file of a receipt's size") from None

    def _write(self, receipts: Sequence[Receipt]) -> None:
        """Write receipts once each, under two names; a reader sees the old one or the new one."""
        with translated(self.folder), AnchoredFolder.open(self._digests) as folder:
            left = write_unnamed(folder, [receipt.to_bytes() for receipt in receipts])
            try:
                for receipt in reversed(receipts):
                    self._name(receipt, folder.path_of(left[-1]))
                    left.pop()
            finally:
                for temp in left:
                    folder.remove(temp)

    def _name(self, receipt: Receipt, temp: str) -> None:
        again = temp_name(self._places)
        try:
            try:
                os.link(temp, again)
            except OSError:
                # No hard links here: write a second file.
                write_file(again, receipt.to_bytes())
            _replace(again, self._by_place(receipt.path))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(again)
        _replace(temp, self._by_digest(receipt.sha256))

    def _by_place(self, path: str) -> str:
        return os.path.join(self._places, f"{digest_bytes(os.fsencode(path))}.json")

    def _by_digest(self, sha256: Digest) -> str:
        return os.path.join(self._digests, f"{sha256}.json")


def _replace(temp: str, path: str) -> None:
    try:
        os.replace(temp, path)
    except IsADirectoryError:
        # A folder can't be replaced by a file, and must not block this receipt forever.
        os.rename(path, f"{path}~")
        os.replace(temp, path)


def _read(body: dict[str, Any]) -> Receipt:
    sha256 = _text(body, "sha256")
    if not is_digest(sha256):
        raise ValueError("sha256")
    read: dict[str, Any] = {"sha256": Digest(sha256), "status": Status(_text(body, "status"))}
    for name in ("path", "label", "source", "commit", "etag", "last_modified", "stoker"):
        read[name] = _text(body, name)
    for name in ("size_bytes", "bytes_from_network", "bytes_resumed"):
        read[name] = _count(body, name)
    for name in ("began", "ended"):
        read[f"{name}_s"] = datetime.fromisoformat(_text(body, name)).timestamp()
    return Receipt(**read)


def _text(body: dict[str, Any], name: str) -> str:
    if not isinstance(body[name], str):
        raise TypeError(name)
    return str(body[name])


def _count(body: dict[str, Any], name: str) -> int:
    value = body[name]
    if type(value) is not int or value < 0:
        raise ValueError(name)
    return value


def _refusal(path: str, how: str) -> NotVerified:
    return NotVerified(f"the receipt {path} {how}", hint="fetch the file again to get a new one", path=path)


# Verification of files, receipts and lock lists against the bytes on this disk, without a network.
#
# Every byte is read again: cached digests do not count. Nothing is changed.


@frozen
class Finding:
    """The result of checking one file."""

    path: str
    what: str
    """`file`, `receipt`, `entry` (of a list), or `statement`: a receipt of something else than a download."""
    name: str = ""
    """Its name in the list, or where it was downloaded from."""
    differs: tuple[str, ...] = ()
    """All differences; empty if there are none."""
    is_known: bool = True
    """True if a receipt or a list states what its bytes should be."""
    sha256: str = ""
    size_bytes: int | None = None
    source: str = ""
    commit: str = ""

    @property
    def is_good(self) -> bool:
        return not self.differs


def check_file(path: str, receipts: Receipts) -> Finding:
    """Check a downloaded file: against the receipt of its path, otherwise against one of its digest."""
    try:
        receipt = receipts.at(path)
    except NotVerified as error:
        return Finding(path=path, what="file", differs=(error.message,))
    if receipt is not None:
        return _held_against(path, "file", receipt)
    if not os.path.isfile(path):
        if os.path.isdir(path):
            raise LocalFile(f"this is a folder: {path}", hint="name the files in it one by one", path=path)
        what = "this is not a file" if os.path.lexists(path) else "no such file"
        raise LocalFile(f"{what}: {path}", hint="check the path: no download was stored there", path=path)
    sha256, size_bytes = hash_file(path)
    try:
        receipt = receipts.of(sha256)
    except NotVerified as error:
        return Finding(path=path, what="file", differs=(error.message,), sha256=sha256, size_bytes=size_bytes)
    if receipt is None:
        why = "no receipt: not downloaded by Stoker, or changed and moved"
        return Finding(path=path, what="file", differs=(why,), is_known=False, sha256=sha256, size_bytes=size_bytes)
    return _found(path, "file", receipt, ())


def check_receipt(path: str) -> Finding:
    """Check a receipt, then the file that it describes."""
    try:
        receipt = read_receipt(path)
    except NotVerified as error:
        return Finding(path=path, what="receipt", differs=(error.message,))
    return _held_against(receipt.path, "receipt", receipt)


def check_listed(
    files: Iterable[LockedFile], *, places: Callable[[LockedFile], Iterable[str]], receipts: Receipts
) -> Iterator[Finding]:
    """Check each file of a lock list: in the given folders, then where its receipt says."""
    for file in files:
        yield _check_entry(file, [*places(file), *filter(None, [receipts.place_of(file.sha256)])])


def _check_entry(file: LockedFile, places: list[str]) -> Finding:
    differs: tuple[str, ...] = ()
    path = places[0] if places else ""
    for place in dict.fromkeys(places):
        if os.path.isfile(place):
            wrong = _differences(place, file.sha256, file.size_bytes, "the list")
            if not wrong:
                path, differs = place, ()
                break
            # Report a difference in the list's own folder; an outdated copy elsewhere is skipped.
            path, differs = (path, differs) if differs else (place, wrong)
    else:
        differs = differs or ("not on this disk",)
    return Finding(
        path=path, what="entry", name=file.id, differs=differs, sha256=file.sha256, size_bytes=file.size_bytes
    )


def _held_against(path: str, what: str, receipt: Receipt) -> Finding:
    return _found(path, what, receipt, _differences(path, receipt.sha256, receipt.size_bytes, "its receipt"))


def _differences(path: str, sha256: Digest, size_bytes: int, whose: str) -> tuple[str, ...]:
    if not os.path.isfile(path):
        return (f"file not found: {path}",)
    if os.path.getsize(path) != size_bytes:
        return (f"it has {os.path.getsize(path):,} bytes, {whose} says {size_bytes:,}",)
    found, _ = hash_file(path)
    return () if found == sha256 else (f"its sha256 is {found}, {whose} says {sha256}",)


def _found(path: str, what: str, receipt: Receipt, differs: tuple[str, ...]) -> Finding:
    return Finding(
        path=path,
        what=what,
        name=receipt.label,
        differs=differs,
        sha256=receipt.sha256,
        size_bytes=receipt.size_bytes,
        source=receipt.source,
        commit=receipt.commit,
    )
