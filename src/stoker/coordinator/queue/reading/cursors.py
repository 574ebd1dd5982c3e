"""Where a list goes on: a word that only we read, bound to the filters it was made for."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from zlib import crc32

from stoker.model.errors import BadInput

_MARK = "j1"


def write_cursor(seq: int, filters: Mapping[str, str]) -> str:
    """Give the word for the page after this job."""
    return urlsafe_b64encode(f"{_MARK}.{seq}.{_seal(seq, filters):08x}".encode()).decode().rstrip("=")


def read_cursor(word: str, filters: Mapping[str, str]) -> int:
    """Give the job after which a page begins, or refuse a word that is not ours or belongs to another list."""
    try:
        mark, number, seal = urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode("ascii").split(".")
        seq = int(number)
        if mark == _MARK and seq >= 0 and int(seal, 16) == _seal(seq, filters):
            return seq
    except (ValueError, binascii.Error):
        pass
    raise BadInput(
        f"{word[:40]!r} is not where this list goes on",
        hint="hand back the `next` of the page before, with the same filters; or begin again without it",
    )


def _seal(seq: int, filters: Mapping[str, str]) -> int:
    """Bind a place to its list. It guards against mistakes, not against people: everybody may read every page."""
    return crc32(repr((seq, sorted(filters.items()))).encode())
