"""Are the bytes on this disk still those that were fetched? Asked of files, receipts and lock lists, without a network.

Every byte is read again: what was known about a file before does not count as evidence. Nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from stoker.core.digests import Digest
from stoker.core.errors import LocalFile, NotVerified
from stoker.core.frozen import frozen
from stoker.store.trees import hash_file
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.receipts import Receipt, Receipts, read_receipt


@frozen
class Finding:
    """What came of checking one file."""

    path: str
    what: str
    """`file`, `receipt` or `entry`."""
    name: str = ""
    """What it is called where it was listed or fetched from."""
    differs: tuple[str, ...] = ()
    """Everything that is not as it should be; nothing if all is well."""
    is_known: bool = True
    """Whether anything here says what its bytes should be."""
    sha256: str = ""
    size_bytes: int | None = None
    source: str = ""
    commit: str = ""

    @property
    def is_good(self) -> bool:
        return not self.differs


def check_file(path: str, receipts: Receipts) -> Finding:
    """Check a downloaded file: against the receipt of its place, or else against one for its digest."""
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
        raise LocalFile(f"{what}: {path}", hint="check the path; nothing was ever fetched to it", path=path)
    sha256, size_bytes = hash_file(path)
    try:
        receipt = receipts.of(sha256)
    except NotVerified as error:
        return Finding(path=path, what="file", differs=(error.message,), sha256=sha256, size_bytes=size_bytes)
    if receipt is None:
        why = "no receipt speaks of it: it was not fetched by Stoker, or it was changed and moved"
        return Finding(path=path, what="file", differs=(why,), is_known=False, sha256=sha256, size_bytes=size_bytes)
    return _found(path, "file", receipt, ())


def check_receipt(path: str) -> Finding:
    """Check a receipt itself, and then the file that it speaks of."""
    try:
        receipt = read_receipt(path)
    except NotVerified as error:
        return Finding(path=path, what="receipt", differs=(error.message,))
    return _held_against(receipt.path, "receipt", receipt)


def check_listed(
    files: Iterable[LockedFile], *, places: Callable[[LockedFile], Iterable[str]], receipts: Receipts
) -> Iterator[Finding]:
    """Check each file of a lock list wherever it may lie: in the places given, then where its receipt says."""
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
            # What lies where the list puts it is told of; a stale copy elsewhere is only no help.
            path, differs = (path, differs) if differs else (place, wrong)
    else:
        differs = differs or ("it is not on this disk",)
    return Finding(
        path=path, what="entry", name=file.id, differs=differs, sha256=file.sha256, size_bytes=file.size_bytes
    )


def _held_against(path: str, what: str, receipt: Receipt) -> Finding:
    return _found(path, what, receipt, _differences(path, receipt.sha256, receipt.size_bytes, "its receipt"))


def _differences(path: str, sha256: Digest, size_bytes: int, whose: str) -> tuple[str, ...]:
    if not os.path.isfile(path):
        return (f"there is no such file: {path}",)
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
