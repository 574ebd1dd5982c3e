"""How long a file is, asked of a server that sends it without saying so: HEAD, or else one byte with its range.

Nothing here fails: a size that can't be learnt stays unknown. Then a body that ends too early looks like one that is
whole, and only a digest known beforehand can tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from stoker.host.http.exchange import Reply, Request
from stoker.model.errors import BadAnswer, NetworkFailed
from stoker.store.download.heads import file_size_of
from stoker.store.download.wanted import Wanted


def probe_size(send: Callable[[Request], Reply], wanted: Wanted, etag: str) -> int | None:
    """Ask how long the version with this tag is; `send` follows redirects. Without tags its word counts."""
    return _by_head(send, wanted, etag) or _by_first_byte(send, wanted, etag)


def _by_head(send: Callable[[Request], Reply], wanted: Wanted, etag: str) -> int | None:
    return _told(send, Request(url=wanted.url, method="HEAD", headers=dict(wanted.headers)), etag)


def _by_first_byte(send: Callable[[Request], Reply], wanted: Wanted, etag: str) -> int | None:
    return _told(send, Request(url=wanted.url, headers={**wanted.headers, "Range": "bytes=0-0"}), etag)


def _told(send: Callable[[Request], Reply], request: Request, etag: str) -> int | None:
    try:
        # Closed unread: a server that sends everything instead is cut off, not drained.
        with closing(send(request)) as reply:
            told = reply.headers.get("ETag") or ""
            is_same = not told or not etag or told == etag
            size_bytes = file_size_of(reply.status, reply.headers)
            return size_bytes if is_same and isinstance(size_bytes, int) else None
    except (NetworkFailed, BadAnswer):
        return None
