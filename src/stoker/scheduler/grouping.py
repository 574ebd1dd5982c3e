"""Nodes in equal states, together: whatever is said of one of them is true of all, but for their names and UUIDs.

A fleet of thousands is in a few hundred states. Explanations look at one node of each, and write the answer down for
the others under their own names.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from stoker.scheduler.changes import at_best
from stoker.scheduler.offers import DeviceOffer, NodeOffer

_MOST_KNOWN = 20_000


class Group(NamedTuple):
    """Nodes that are equal."""

    first: NodeOffer
    places: list[int]
    """Where they stand among all offers."""


class Groups:
    """Puts nodes together. Keep one as long as the same offers are asked about: their states are then known."""

    def __init__(self) -> None:
        # By identity, and with the offer itself, so that nobody else can have it meanwhile.
        self._known: dict[int, tuple[NodeOffer, Hashable]] = {}
        self._best: dict[int, tuple[NodeOffer, NodeOffer]] = {}

    def of(self, offers: Sequence[NodeOffer], *named: frozenset[str]) -> list[Group]:
        """Give the groups, in the order of their first nodes; nodes that only one of some lists names are apart."""
        hosts = [names for names in named if names]
        found: dict[Hashable, Group] = {}
        for place, offer in enumerate(offers):
            key = self._key(offer)
            if hosts:
                key = key, *[offer.node in names for names in hosts]
            group = found.get(key)
            if group is None:
                found[key] = Group(offer, [place])
            else:
                group.places.append(place)
        return list(found.values())

    def at_best(self, offer: NodeOffer) -> NodeOffer:
        """Give a node as it is at its best."""
        known = self._best.get(id(offer))
        if known is None or known[0] is not offer:
            if len(self._best) >= _MOST_KNOWN:
                self._best.clear()
            known = self._best[id(offer)] = offer, at_best(offer)
        return known[1]

    def _key(self, offer: NodeOffer) -> Hashable:
        known = self._known.get(id(offer))
        if known is None or known[0] is not offer:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[id(offer)] = offer, _state(offer)
        return known[1]


def _state(offer: NodeOffer) -> Hashable:
    # Nodes that are alike have their devices in the same places, under other names.
    places = {device.uuid: at for at, device in enumerate(offer.devices)} if offer.processes else {}
    return (
        tuple([_device_state(device) for device in offer.devices]),
        (offer.slots, offer.is_slot_per_device, offer.ram_bytes, offer.cores, offer.is_fake),
        (offer.allow_jobs, offer.deny_jobs, offer.denied_for, offer.priority, offer.closed),
        (offer.jobs, offer.cpu_jobs, offer.ram_held_bytes, offer.cores_held),
        tuple([(one.base, one.size_bytes, places.get(one.device, -1), one.jobs) for one in offer.processes]),
    )


def _device_state(device: DeviceOffer) -> Hashable:
    # All but the UUID.
    return (
        (device.type, device.backend, device.memory_type, device.total_bytes, device.free_bytes, device.sharing),
        (device.slots, device.closed, device.is_held, device.jobs, device.promised_bytes),
        tuple([(one.base, one.size_bytes, one.jobs) for one in device.bases]),
    )
