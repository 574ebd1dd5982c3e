"""The body of a small answer, read to its end: one that trickles, or is never over, does not keep us waiting."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.host.http.addresses import shown
from stoker.host.http.exchange import Reply
from stoker.model.clock import Clock
from stoker.model.errors import NetworkFailed
from stoker.model.units import format_duration
from stoker.store.download.pace import Pace
from stoker.store.download.patience import Patience

LONGEST_S = 600.0
"""A small answer takes no longer, even if it comes just quickly enough not to be too slow."""


def pieces_of(reply: Reply, at_most_bytes: int, *, clock: Clock, patience: Patience) -> Iterator[bytes]:
    """Give what comes, piece by piece. Raises `NetworkFailed` if that is too slow, besides what `Reply.read` raises."""
    began_s = clock.monotonic_s()
    pace = Pace(began_s, patience)
    while piece := reply.read(at_most_bytes):
        now_s = clock.monotonic_s()
        pace.got(len(piece), now_s)
        yield piece
        complaint = pace.complaint
        if now_s - began_s > LONGEST_S:
            complaint = f"the answer is not over after {format_duration(LONGEST_S)}"
        if complaint:
            raise NetworkFailed(f"{complaint}: {shown(reply.url)}", reason="too_slow")
