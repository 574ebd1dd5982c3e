"""A `Range` header, as downloads of ours send it: `bytes=START-` or `bytes=START-LAST`."""

from __future__ import annotations

import re

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


def read_range(asked: str, size_bytes: int) -> tuple[int, int, bool]:
    """Say where to begin, how much to give, and whether that is a part. Nothing we can read means the whole.

    A negative length: the range lies beyond the end.
    """
    match = _RANGE.fullmatch(asked.strip())
    if match is None:
        return 0, size_bytes, False
    start, last = int(match[1]), int(match[2]) if match[2] else size_bytes - 1
    if start >= size_bytes or last < start:
        return 0, -1, True
    return start, min(last, size_bytes - 1) - start + 1, True
