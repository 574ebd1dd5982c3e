"""How long a body is, how long a file, and how old, as the head of an answer says it: read once, suspiciously."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

from stoker.host.http.exchange import Headers
from stoker.store.download.content_range import read_content_range

EXACT_DATE_S = 60.0
"""A date that is past by this much stands for one version: dates count seconds, and clocks differ a little."""
_COUNT = re.compile(r"\d{1,18}", re.ASCII)


def read_count(text: str) -> int | None:
    """Read a number of bytes; nothing if it is none that can be."""
    return int(text) if _COUNT.fullmatch(text) else None


def length_of(headers: Headers) -> int | str | None:
    """Give the announced length of a body; `None` if there is none, a text if it can't be."""
    values = {part.strip() for value in headers.all("Content-Length") for part in value.split(",")}
    if not values:
        return None
    value = values.pop()
    if values:
        return "it announces two different lengths"
    length = read_count(value)
    return f"it announces a length of {value[:40]!r}" if length is None else length


def file_size_of(status: int, headers: Headers) -> int | str | None:
    """Give the size of the file that an answer to HEAD, or to a request for the first byte, is about.

    `None` if it does not tell, a text if it can't be.
    """
    if status == 206:
        span = read_content_range(headers.all("Content-Range"))
        return span.total if span is not None and (span.first, span.last) == (0, 0) else None
    is_plain = (headers.get("Content-Encoding") or "identity").lower() == "identity"
    return length_of(headers) if status == 200 and is_plain else None


def http_date_s(text: str) -> float | None:
    """Read a date; nothing if it is none."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def is_date_exact(headers: Headers) -> bool:
    """Whether `Last-Modified` was past for long enough, by the server's own clock, to stand for one version only."""
    changed_s, there_s = http_date_s(headers.get("Last-Modified") or ""), http_date_s(headers.get("Date") or "")
    return changed_s is not None and there_s is not None and there_s - changed_s >= EXACT_DATE_S
