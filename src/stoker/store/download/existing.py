"""The file that lies under the final name already: whether it is what is wanted.

With a digest its bytes are read and no network is needed. Without one only the server can tell whether it is still the
newest, by the validators that were left beside it. A link under the final name counts as nothing there: it is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from stoker.host.anchored import AnchoredFolder
from stoker.host.durable import translated
from stoker.host.http.exchange import Reply, Request
from stoker.model.errors import BadAnswer, LocalFile, NetworkFailed
from stoker.model.frozen import frozen
from stoker.store.download.deciding import digests_match
from stoker.store.download.hashing import Sums, sum_file
from stoker.store.download.heads import length_of
from stoker.store.download.places import ETAG, LAST_MODIFIED, beside
from stoker.store.download.sidecar import is_plain, strong_etag
from stoker.store.download.wanted import Wanted

_LONGEST_VALIDATOR_BYTES = 8192


@frozen
class Existing:
    """A regular file under the final name whose size and digests are those wanted, as far as they are known."""

    size_bytes: int
    sums: Sums


@frozen
class Validators:
    """What a server said about the version of a file; empty where it said nothing."""

    etag: str = ""
    last_modified: str = ""

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)


def read_existing(folder: AnchoredFolder, leaf: str, wanted: Wanted) -> Existing | str | None:
    """Read the file under the final name. `None`: there is none; a text: why it is not the one wanted."""
    descriptor = folder.open_file(leaf)
    if descriptor is None:
        return None
    try:
        with translated(folder.path_of(leaf)):
            size_bytes = os.fstat(descriptor).st_size
            if wanted.size_bytes not in {None, size_bytes}:
                return f"it has {size_bytes} bytes, {wanted.size_bytes} are expected"
            sums = sum_file(descriptor, size_bytes, with_git=bool(wanted.git_sha1))
    finally:
        os.close(descriptor)
    if not digests_match(wanted, sums.sha256, sums.git_sha1):
        return f"its sha256 is {sums.sha256}" + ("" if wanted.sha256 is None else f", {wanted.sha256} is expected")
    return Existing(size_bytes=size_bytes, sums=sums)


def not_ours(path: str) -> LocalFile:
    """Give the error for a file of the user's that is in the way."""
    message = f"there is already a file that Stoker did not fetch: {path}"
    return LocalFile(message, hint="move it away", path=path, reason="not_ours")


def read_validators(folder: AnchoredFolder, leaf: str) -> Validators:
    """Read the validators that were left beside a file."""
    etag, last_modified = (
        (folder.read_file(beside(leaf, suffix), _LONGEST_VALIDATOR_BYTES) or b"").decode("latin-1").strip()
        for suffix in (ETAG, LAST_MODIFIED)
    )
    return Validators(
        etag=etag if is_plain(etag) else "", last_modified=last_modified if is_plain(last_modified) else ""
    )


def write_validators(folder: AnchoredFolder, leaf: str, validators: Validators) -> None:
    """Leave validators beside a file that has its final name already."""
    for suffix, text in ((ETAG, validators.etag), (LAST_MODIFIED, validators.last_modified)):
        if text:
            folder.write_file(beside(leaf, suffix), f"{text}\n".encode("latin-1", errors="replace"))
    folder.sync()


def remove_validators(folder: AnchoredFolder, leaf: str) -> None:
    """Remove them before another file takes the name: they would speak for it."""
    for suffix in (ETAG, LAST_MODIFIED):
        folder.remove(beside(leaf, suffix))


def is_newest(send: Callable[[Request], Reply], wanted: Wanted, size_bytes: int, validators: Validators) -> bool:
    """Ask whether the server still has the version that these validators are of; `send` follows redirects.

    Whatever is not a plain yes, trouble included, is a no: the download that follows finds out what is the matter.
    """
    headers = dict(wanted.headers)
    if validators.etag:
        headers["If-None-Match"] = validators.etag
    if validators.last_modified:
        headers["If-Modified-Since"] = validators.last_modified
    try:
        with closing(send(Request(url=wanted.url, method="HEAD", headers=headers))) as reply:
            if reply.status == 304:
                return True
            is_same = bool(strong_etag(validators.etag)) and reply.headers.get("ETag") == validators.etag
            return reply.status == 200 and is_same and length_of(reply.headers) == size_bytes
    except (NetworkFailed, BadAnswer):
        return False
