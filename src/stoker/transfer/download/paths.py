"""The names beside a file that is being fetched. They are appended to its own, so that two files never share one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from stoker.host.folders import LONGEST_COMPONENT_BYTES

PART, SIDECAR, LOCK, ETAG, LAST_MODIFIED = ".part", ".part.json", ".lock", ".etag", ".lastmod"
SUFFIXES = (PART, SIDECAR, LOCK, ETAG, LAST_MODIFIED)
CLAIM_TAG = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-([0-9a-f]{8})-(\d{1,10})-(\d{1,20})", re.ASCII)
"""What follows `.part.` where locks can't be had: host, boot, process space, process and its start, of the claimant."""
_UNFINISHED = re.compile(rf"(.+?{re.escape(PART)}(?:\.{CLAIM_TAG.pattern})?)(?:\.json)?", re.ASCII)
_ROOM_BYTES = LONGEST_COMPONENT_BYTES - 96
"""Names up to here are used as they are: what is appended is never longer than the rest."""


def beside(leaf: str, suffix: str) -> str:
    """Return the name of a file's companion: `model.gguf.part`. One too long is shortened, and stays unique."""
    if len(leaf.encode()) <= _ROOM_BYTES:
        return leaf + suffix
    short = leaf.encode()[: _ROOM_BYTES - 17].decode(errors="ignore")
    return f"{short}~{sha256(leaf.encode()).hexdigest()[:16]}{suffix}"


def unfinished_of(name: str) -> str:
    """Return the name of the partial file, claimed or not, that a name is, or is the sidecar of; nothing for others."""
    found = _UNFINISHED.fullmatch(name)
    return "" if found is None else found[1]


def companion_clashes(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names where fetching the first into one folder would write under the name of the second."""
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
