"""The field `Content-Range`, read strictly: whatever is not exactly one valid range of bytes is nothing."""

from __future__ import annotations

import re

from stoker.model.frozen import frozen

# Sizes are signed 64-bit numbers in every file system; eighteen digits stay below.
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII | re.IGNORECASE)


@frozen
class ContentRange:
    """Which bytes of how many an answer holds; a refusal (416) holds none and only tells the total."""

    first: int | None
    last: int | None
    total: int | None


def read_content_range(values: tuple[str, ...]) -> ContentRange | None:
    """Read the field from all its values in a head. `None`: missing, repeated or not to be believed."""
    match = _RANGE.fullmatch(values[0].strip()) if len(values) == 1 else None
    if match is None:
        return None
    first, last, total = (None if text in {None, "*"} else int(text) for text in match.groups())
    if first is None or last is None:
        return None if total is None else ContentRange(first=None, last=None, total=total)
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first=first, last=last, total=total)
