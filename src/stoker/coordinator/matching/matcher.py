"""Which waiting job a machine gets, and where on it. Decides only; whoever grants tells it with `seat`.

    matcher = Matcher(starved_s=times.starved_s)
    drift = matcher.put_machine(name, capability, declared=node)
    matcher.put_class(7, wanted)
    matcher.line.put(Head(class_id=7, priority=0, seq=12, since_s=now_s))     # whenever the head of a class changes
    found = matcher.choose(name, matcher.line, now_s, measured)
    matcher.seat(found.seat)                                                  # until the lease ends: `unseat`

Order: who waited longer than `starved_s`, then priority, strictly, then the oldest; within a priority, jobs that want a
device go first where the machine has such devices, and jobs that would rather have one go last where it has none. A job
never takes what one of strictly higher priority waits for on this machine (`reserving`). Where a job may go is the one
rule's answer (`scheduler`).

It has no clock, no lock and no I/O: one thread, the queue's writer, uses it. A machine that nobody hears from has to be
closed or removed by the queue: as long as it is open, it counts as one that could take what fits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.coordinator.matching.heads import Head, Match, NoMatch, Seat
from stoker.coordinator.matching.joining import WorkerLimits, joined
from stoker.coordinator.matching.line import Level, Line
from stoker.coordinator.matching.reserving import reserve
from stoker.coordinator.matching.roll import Machine, Roll
from stoker.coordinator.matching.tallying import Tally
from stoker.model.capability import Capability
from stoker.model.capability_reading import capability_from_dict
from stoker.model.errors import Bug
from stoker.model.frozen import changed
from stoker.model.leases import FleetTimes
from stoker.model.nodes import Node
from stoker.model.requirements import WantedJob
from stoker.scheduler.fit import Placement, choose
from stoker.scheduler.node_state import NodeUsage
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.wire.leasing import Measured
from stoker.wire.orders import HostPolicy


class Matcher:
    """All machines, all classes, and the line of those who wait."""

    def __init__(self, *, starved_s: float = FleetTimes().starved_s) -> None:
        """Begin with no machines."""
        self._starved_s = starved_s
        self.clear()

    def clear(self) -> None:
        """Forget everything: the queue no longer trusts what it told, and will tell it again."""
        self._roll = Roll(self._renumbered)
        self._tally = Tally(self._roll)
        self.line = Line(self._roll.number_of)
        """Who waits; the queue keeps it true."""

    def put_machine(  # noqa: PLR0913 - everybody who has a say
        self,
        name: str,
        capability: Mapping[str, object] | Capability,
        declared: Node | None = None,
        slots: int | None = None,
        closed: str = "",
        closed_devices: Mapping[str, str] | None = None,
        *,
        policy: HostPolicy | None = None,
        limits: WorkerLimits | None = None,
        unable: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Let a machine stand as detected and declared, whichever is smaller; says where the two disagree.

        `policy` is what a manifest says about it, `limits` what whoever started its worker does; `closed` and
        `closed_devices` (by UUID) say why nothing goes there; `unable` says of jobs, by a word of theirs, why it can't
        have them. Live leases on it stay counted.

        Raises:
            BadInput: the capability is none.

        """
        found = capability if isinstance(capability, Capability) else capability_from_dict(capability)
        agreed = joined(name, found, declared, slots, policy=policy, limits=limits)
        unable = unable or {}
        offer = changed(
            agreed.offer,
            closed=closed,
            devices=_closed(agreed.offer, closed_devices or {}),
            deny_jobs=(*agreed.offer.deny_jobs, *unable),
            denied_for=tuple(unable.items()),
        )
        drift = tuple(one.message for one in agreed.drift)
        self._roll.put(Machine(offer, found.ram_available_bytes, drift))
        return drift

    def remove_machine(self, name: str) -> None:
        """Forget a machine; if it comes back, what its leases still hold is counted again."""
        self._roll.remove(name)

    def hear_closed(self, name: str, told: Mapping[str, str]) -> None:
        """Take in what a machine itself says is closed, by device; "" is all of it."""
        machine = self._roll.machines.get(name)
        if machine is not None and machine.told != told:
            self._roll.measure(machine, Measured(closed=dict(told)))

    def told_closed(self, name: str) -> str:
        """Say why a machine itself takes nothing, whatever people decided; empty: it would."""
        machine = self._roll.machines.get(name)
        return "" if machine is None else machine.told.get("", "")

    def doubt(self, machine: str, *, is_doubted: bool) -> None:
        """Say whether a machine declined something lately.

        It is still given what fits it. But others no longer leave it to this one to take what waits: a job that it
        declines again and again would be kept nothing anywhere, and starve.
        """
        self._roll.doubt(machine, is_doubted=is_doubted)

    def put_class(self, class_id: int, wanted: WantedJob) -> None:
        """Learn what jobs of a class want, before any of them waits or runs."""
        self._roll.put_class(class_id, wanted)

    def seat(self, seat: Seat) -> None:
        """Count what a lease holds, from its grant on."""
        self._roll.seat(seat)

    def unseat(self, seat: Seat) -> None:
        """Count it no more: the lease has ended."""
        self._roll.unseat(seat)

    def choose(
        self, machine: str, heads: Sequence[Head], now_s: float, measured: Measured | None = None, *, tells: bool = True
    ) -> Match | NoMatch:
        """Give the job that a machine gets now, and where on it; or why it gets none.

        `heads` are `self.line`, or any others in any order, which costs more. Unless it `tells`, what waits for which
        reason is left out. Nothing is taken: call `seat` with the match's.
        """
        found = self._roll.machines.get(machine)
        if found is None:
            return NoMatch(closed="the coordinator does not know this machine")
        if measured is not None:
            self._roll.measure(found, measured)
        if found.closed:
            return NoMatch(closed=found.closed)
        line = heads if isinstance(heads, Line) else Line(self._roll.number_of, heads)
        levels = [line.levels[-negated] for negated in line.priorities]
        match = self._match(found, line.starved(now_s - self._starved_s), levels)
        if match is not None:
            return match
        return NoMatch(waiting=self._tally.counts(found, line) if tells else {})

    def offers(self) -> tuple[NodeOffer, ...]:
        """Give every machine as it stands now, in the order in which they joined."""
        return tuple(self._roll.offers())

    def wanted(self) -> dict[int, WantedJob]:
        """Give what jobs of each class want."""
        return dict(self._roll.wanted)

    def drift(self) -> dict[str, tuple[str, ...]]:
        """Give for each machine where its declaration and what was found disagree."""
        return {name: machine.drift for name, machine in self._roll.machines.items() if machine.drift}

    def _match(self, machine: Machine, starved: Level | None, levels: Sequence[Level]) -> Match | None:
        if starved is not None:
            # Who has starved goes before every priority.
            levels = [starved, *levels]
        roll = self._roll
        fits, room = roll.fits(machine), None
        for level, lower in zip(levels, _below(levels), strict=True):
            found = self._first(machine, level, fits)
            if found is not None:
                head, number = found
                shape = roll.shape(number)
                choice = roll.board.choice(machine.name, shape) if room is None else choose(shape, room)
                return Match(head=head, seat=self._seat(machine, head, choice))
            if not fits & lower:
                return None
            waits = self._waiting(machine, level, starved)
            if waits:
                room = room or roll.board.scratch(machine.name)
                fits = self._keep(machine, level, waits, room, lower)
        return None

    def _waiting(self, machine: Machine, level: Level, starved: Level | None) -> int:
        """Give the shapes of a level, none of which may start here, that wait for this machine and no other."""
        mask = level.mask
        if starved is not None and level is not starved:
            # They keep what they need already.
            mask &= ~starved.mask
        waits = mask and mask & self._roll.ever(machine)
        if waits & self._roll.fits(machine):
            # There is room for them, kept for somebody before them.
            return waits & ~self._roll.takers_beside(machine)
        return waits and waits & ~self._roll.takers()

    def _first(self, machine: Machine, level: Level, fits: int) -> tuple[Head, int] | None:
        able = level.mask & fits
        if not able:
            return None
        first, last = self._roll.wishes(machine)
        return level.first(able & first or able & ~last or able)

    def _keep(self, machine: Machine, level: Level, waits: int, room: NodeUsage, lower: int) -> int:
        """Take from a copy of the machine what those who wait for it keep; gives what fits the rest."""
        board = self._roll.board
        idle = board.scratch(machine.name, is_idle=True)
        numbers = level.numbers(waits)
        for count, number in enumerate(numbers, 1):
            reserve(self._roll.shape(number), room, idle)
            # Now and then: mostly the first ones leave nothing that anybody lower could use.
            if not count & (count - 1) and not board.fitting_as(room) & lower:
                return 0
        return board.fitting_as(room)

    def _seat(self, machine: Machine, head: Head, choice: Placement | None) -> Seat:
        if choice is None:
            message = f"a job of class {head.class_id} was said to fit {machine.name}, and the rule says no"
            raise Bug(message)
        devices = self._roll.board.devices(machine.name)
        return Seat(
            machine=machine.name,
            class_id=head.class_id,
            devices=tuple([devices[one.at] for one in choice.devices]),
            is_shared=bool(choice.devices) and choice.devices[0].is_shared,
        )

    def _renumbered(self) -> None:
        self.line.renumber()


def _below(levels: Sequence[Level]) -> list[int]:
    """Give for each level what waits at any lower one."""
    masks, mask = [], 0
    for level in reversed(levels):
        masks.append(mask)
        mask |= level.mask
    return masks[::-1]


def _closed(offer: NodeOffer, closed: Mapping[str, str]) -> tuple[DeviceOffer, ...]:
    return tuple(
        changed(device, closed=closed[device.uuid] or "closed") if device.uuid in closed else device
        for device in offer.devices
    )
