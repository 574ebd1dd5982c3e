"""Put a thing into the store while others clear it up.

A lease, renewed as long as bytes come, tells those who can't see this process (it may be in another container) that its
staging folder is no leftover.
"""

from __future__ import annotations

from stoker.core.clock import Clock
from stoker.core.digests import digest_value
from stoker.engine.key_leases import KeyLeases
from stoker.host.identity import mine
from stoker.store.local_store import LocalStore
from stoker.store.put import PutRequest, PutSurvey, StoredTree, StoreWriter
from stoker.store.refs import PUT
from stoker.store.trees import Heed


class LeasedStoreWriter:
    """The way into a store, under a lease; `heed` is told of every byte that goes it."""

    def __init__(self, store: LocalStore, *, leases: KeyLeases, clock: Clock, heed: Heed) -> None:
        self._store = store
        self._leases = leases
        self._clock = clock
        self._heed = heed

    def put(self, surveyed: PutSurvey, wish: PutRequest, *, unpacks: bool = False) -> StoredTree:
        """Take in what was surveyed and name it; with `unpacks` what an archive holds, instead of the archive."""
        me = mine()
        ticket = digest_value(PUT, [me.host, me.pid, me.start_ticks, surveyed.path, self._clock.wall_s()])
        staging_name = f"{PUT}.{ticket[:12]}"
        putting = StoreWriter(self._store, clock=self._clock, heed=self._heed_and_renew)
        self._leases.take(ticket)
        try:
            if unpacks:
                return putting.put_unpacked(surveyed.path, wish, staging_name=staging_name)
            return putting.put(surveyed, wish, staging_name=staging_name)
        finally:
            self._leases.give_back(ticket)

    def _heed_and_renew(self, size_bytes: int) -> None:
        self._leases.renew_due()
        self._heed(size_bytes)
