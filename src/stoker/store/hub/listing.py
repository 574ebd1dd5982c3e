"""What a hub answers about a repository, read with suspicion.

The answers come from a server, so nothing in them is believed before it is checked: commits and digests have their
exact form, sizes are counts, and the next page is on the same server. Names are judged once it is known which files
are wanted (`check_names`), before anything is written, all the bad ones at once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stoker.host.http.addresses import joined, origin, shown
from stoker.host.names import clashes, name_fault, shown_name
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import BadAnswer, BadInput
from stoker.model.printable import one_line
from stoker.store.hub.address import Repo, is_commit
from stoker.store.hub.repo_file import RepoFile

LONGEST_ANSWER_BYTES = 8 * 1024 * 1024
LONGEST_LISTING_BYTES = 256 * 1024 * 1024
"""Of all its pages together."""
MOST_FILES = 1_000_000
MOST_PAGES = 10_000

_LARGEST_FILE_BYTES = 1 << 60
_SHOWN_FAULTS = 3
_KEPT_FAULTS = 100
_LONGEST_LICENCE = 100
_NEXT = re.compile(r'<([^<>]*)>[^,<]*;\s*rel="?next"?(?:[\s;,]|$)')
_SHA1 = re.compile(r"[0-9a-f]{40}")


def read_commit(body: bytes, url: str) -> str:
    """Read which commit a revision is from the answer about it. Raises `BadAnswer`."""
    answer = _decoded(body, url)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not is_commit(commit):
        raise BadAnswer(f"the server names no commit: {shown(url)}", hint="is this a hub? check the address")
    return commit


def read_licence(body: bytes, url: str) -> str:
    """Read which licence a repository's card names from the answer about a revision; nothing where it names none."""
    answer = _decoded(body, url)
    card = answer.get("cardData") if isinstance(answer, dict) else None
    licence = card.get("license") if isinstance(card, dict) else None
    return one_line(licence, _LONGEST_LICENCE) if isinstance(licence, str) else ""


def read_entries(body: bytes, url: str) -> list[RepoFile]:
    """Read the files on one page of a listing; their names are not judged yet. Raises `BadAnswer`."""
    answer = _decoded(body, url)
    if not isinstance(answer, list):
        raise BadAnswer(f"the server's listing is no list: {shown(url)}", hint="is this a hub? check the address")
    return [read_entry(entry, url) for entry in answer if not _is_folder(entry)]


def read_next(links: Iterable[str], url: str) -> str:
    """Give the address of the next page from the Link fields of a page, or nothing. Raises `BadAnswer`."""
    found = next((match[1] for link in links if (match := _NEXT.search(link))), "")
    if not found:
        return ""
    following = joined(url, found)
    try:
        is_same = origin(following) == origin(url)
    except BadInput:
        is_same = False
    if not is_same:
        raise BadAnswer(f"the next page of a listing is on another server: {shown(url)}", next=shown(following))
    return following


def read_entry(entry: Any, where: str) -> RepoFile:
    """Read one file of a listing, as a hub sends it. Raises `BadAnswer`."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise BadAnswer(f"a file without a name in the listing: {shown(where)}")
    large = entry.get("lfs")
    if large is not None and not isinstance(large, dict):
        raise _bad(entry, "lfs", where)
    size_bytes = large.get("size", entry.get("size")) if large else entry.get("size")
    if type(size_bytes) is not int or not 0 <= size_bytes <= _LARGEST_FILE_BYTES:
        raise _bad(entry, "size", where)
    sha256 = large.get("oid") if large else None
    if large and not (isinstance(sha256, str) and is_digest(sha256)):
        raise _bad(entry, "lfs.oid", where)
    oid = entry.get("oid")
    git_sha1 = oid if isinstance(oid, str) and _SHA1.fullmatch(oid) else ""
    if not large and not git_sha1:
        raise _bad(entry, "oid", where)
    xet_hash = entry.get("xetHash")
    return RepoFile(
        path=entry["path"],
        size_bytes=size_bytes,
        sha256=Digest(sha256) if isinstance(sha256, str) else None,
        git_sha1="" if large else git_sha1,
        pointer_sha1=git_sha1 if large else "",
        xet_hash=xet_hash if isinstance(xet_hash, str) and is_digest(xet_hash) else "",
    )


def check_names(files: Sequence[RepoFile], repo: Repo) -> None:
    """Refuse a repository that holds names which can't be written safely, counting all of them. Raises `BadAnswer`."""
    counts = Counter(file.path for file in files)
    bad = {path: fault for path in counts if (fault := name_fault(path))}
    faults = [f"{shown_name(path)}: {fault}" for path, fault in bad.items()]
    faults += [f"{shown_name(path)}: listed {count} times" for path, count in counts.items() if count > 1]
    groups = clashes(path for path in counts if path not in bad)
    faults += [f"{' and '.join(map(shown_name, group[:2]))}: one file on some machines" for group in groups]
    if faults:
        told = "; ".join(faults[:_SHOWN_FAULTS]) + (" …" if len(faults) > _SHOWN_FAULTS else "")
        message = f"{repo} holds {len(faults)} bad names: {told}"
        raise BadAnswer(message, hint="nothing was written", faults=faults[:_KEPT_FAULTS], reason="bad_names")


def _is_folder(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("type", "file") != "file"


def _decoded(body: bytes, url: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(
            f"the server's answer is not JSON: {shown(url)}", hint="is this a hub? check the address"
        ) from error


def _bad(entry: dict[str, Any], field: str, where: str) -> BadAnswer:
    return BadAnswer(f"the listing's {field} of {shown_name(entry['path'])} can't be: {shown(where)}")
