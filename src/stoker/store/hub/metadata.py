"""What a server tells of one file without sending it: HEAD, or one byte where HEAD is refused.

A hub answers with the facts itself and points to a content network for the bytes: the facts are those of the hub's own
answer, so a redirect to another server is not followed. Only a hub's tags are digests; those of any other server are
opaque.
"""

from __future__ import annotations

import re

from stoker.host.http.addresses import shown
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import BadAnswer
from stoker.store.download.heads import file_size_of, read_count
from stoker.store.hub.address import is_commit
from stoker.store.hub.asking import Answer, Asker
from stoker.store.hub.repo_file import RepoFile

_REFUSED_HEAD = frozenset({403, 405, 501})
_SHA1 = re.compile(r"[0-9a-f]{40}")


def look(asker: Asker, url: str, path: str, what: str) -> tuple[RepoFile, str]:
    """Ask for what is known of one file, and the commit that it is at, where the server knows commits.

    Raises as `Asker` does; a size that is not told stays unknown.
    """
    answer = asker.head(url, what, accepts=_REFUSED_HEAD)
    if answer.status in _REFUSED_HEAD and answer.headers.get("X-Error-Code") is None:
        answer = asker.head(url, what, first_byte=True)
    return read_file(url, path, answer)


def read_file(url: str, path: str, answer: Answer) -> tuple[RepoFile, str]:
    """Read the file and its commit from the head of an answer. Raises `BadAnswer` for what can't be."""
    headers = answer.headers
    commit = headers.get("X-Repo-Commit") or ""
    if commit and not is_commit(commit):
        raise BadAnswer(f"the server names a commit that is none: {shown(url)}")
    etag = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
    name = etag.strip().strip('"') if commit and not etag.startswith("W/") else ""
    xet_hash = headers.get("X-Xet-Hash") or ""
    file = RepoFile(
        path=path,
        size_bytes=_size(answer, url),
        sha256=Digest(name) if is_digest(name) else None,
        git_sha1=name if _SHA1.fullmatch(name) else "",
        xet_hash=xet_hash if is_digest(xet_hash) else "",
    )
    return file, commit


def _size(answer: Answer, url: str) -> int | None:
    linked = answer.headers.get("X-Linked-Size")
    size_bytes = file_size_of(answer.status, answer.headers) if linked is None else read_count(linked)
    if isinstance(size_bytes, str) or (linked is not None and size_bytes is None):
        raise BadAnswer(f"the server tells a size that is none: {shown(url)}")
    return size_bytes
