"""Code and data on their way to the coordinator before jobs that need them are submitted: shown, and gone on with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.faces.cli.under_way import Amount, watched
from stoker.model.errors import StokerError
from stoker.model.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.wire.client import FleetClient
    from stoker.worker.shipping.tree_receiving import Outlook
    from stoker.worker.submitting.orders import Orders, Shipment

_GOES_ON = "what was sent is kept; the same command goes on from there"
_SENT_UNCHECKED_BYTES = 4 << 20
"""So little is sent at once: to check ten thousand jobs first takes longer, and a prune takes what no job names."""


def ship(call: Call, orders: Orders, client: FleetClient, check: Callable[[], object]) -> None:
    """Have every tree with the coordinator that the jobs name. Data stays where all machines are this one.

    `check` is called before the first byte of a large amount flows, to raise what would be refused afterwards.
    """
    missing = [
        one
        for one in orders.to_send(client.url)
        if not client.want_tree(one.digest, files=len(one.tree.entries), size_bytes=one.tree.size_bytes).is_here
    ]
    if sum(one.tree.size_bytes for one in missing) > _SENT_UNCHECKED_BYTES:
        check()
    for shipment in missing:
        _send(call, shipment, client)


def _send(call: Call, shipment: Shipment, client: FleetClient) -> None:
    from stoker.worker.shipping.tree_sending import InFolder, InStore, send_tree

    tree = shipment.tree
    source = InFolder(shipment.root) if shipment.record is None else InStore(call.parts.store, shipment.record)
    amount = _Sent(call, shipment.what)
    with watched(call, amount, hint=_GOES_ON):
        try:
            sent = send_tree(
                client,
                tree,
                source,
                stop=amount.over,
                clock=call.parts.clock,
                heed=amount.heed,
                on_outlook=amount.look_ahead,
            )
        except StokerError:
            if amount.over.is_set():
                raise amount.asked from None
            raise
    files = "1 file" if sent.sent_files == 1 else f"{sent.sent_files:,} files"
    call.out.note(f"sent {shipment.what}: {files}, {format_size(sent.sent_bytes)}")


class _Sent:
    """How much of a tree is sent."""

    def __init__(self, call: Call, what: str) -> None:
        self.over = threading.Event()
        self._call = call
        self._what = f"sending {what}"
        self._turn = threading.Lock()
        self._amount = self._of(None)

    def look_ahead(self, outlook: Outlook) -> None:
        self._amount = self._of(outlook.missing_bytes)

    def heed(self, size_bytes: int) -> None:
        with self._turn:
            self._amount.add(size_bytes)

    def stop(self, error: StokerError) -> None:
        """Ask it to end: everything that was sent is kept."""
        self._amount.stop(error)
        self.over.set()

    @property
    def asked(self) -> StokerError:
        return self._amount.asked

    def lines(self, now_s: float, at_least_s: float) -> list[str]:
        return self._amount.lines(now_s, at_least_s)

    def _of(self, total_bytes: int | None) -> Amount:
        call = self._call
        return Amount(self._what, total_bytes, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode)
