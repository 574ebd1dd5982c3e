"""Machines: what each offers, hello, and whether one is heard of, closed or opened."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.coordinator.queue.commands import (
    CloseMachine,
    InspectMachines,
    MachineCloseMode,
    MachineInspection,
    OpenMachine,
    QueueCommandResult,
)
from stoker.coordinator.queue.moves import json_or_empty, lose, plain, telling
from stoker.coordinator.queue.queue_state import (
    ACCEPTS,
    ENDS,
    LATE_S,
    QueueState,
    RegisteredMachine,
    is_news,
    unable,
    unaccepted,
)
from stoker.coordinator.queue.transaction import WriterTransaction
from stoker.core.capability import Capability, capability_from_dict
from stoker.core.errors import BadInput, NotFound, Refused, StaleLease
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Node
from stoker.core.text import whole_number
from stoker.devices.admission import MachineMemory
from stoker.protocol.job_messages import HostPolicy
from stoker.protocol.lease_messages import Hello, MachineInventory, Welcome, WorkerMeasurements
from stoker.scheduler.machine_index import MatchableMachine as ScheduledMachine
from stoker.scheduler.offers import AgreedOffer, DeviceOffer, NodeOffer, agree, node_of
from stoker.scheduler.scheduler import END_NEWS_S
from stoker.scheduler.snapshot import Snapshot, take

# What a machine offers: the smallest of what was detected, what the cluster file and the policies laid over it declare,
# and what the worker was started with. Where file and machine disagree, that is reported.

_MOST = 1 << 60


@frozen
class WorkerLimits:
    """What whoever started a worker declared. Nothing said means: as found."""

    cores: int | None = None
    ram_bytes: int | None = None
    gpus: int | tuple[str, ...] | None = None
    """How many devices, or which, by UUID."""
    slots: int | None = None


def limits_of(said: Mapping[str, object]) -> WorkerLimits:
    """Read what a worker says was declared (`Hello.declared`); other keys are passed over.

    Raises:
        BadInput: a value that is none.

    """
    gpus = said.get("gpus")
    if isinstance(gpus, list | tuple):
        if not all(isinstance(one, str) for one in gpus):
            message = "gpus: a number of devices, or a list of UUIDs"
            raise BadInput(message)
        devices: int | tuple[str, ...] | None = tuple(str(one) for one in gpus)
    else:
        devices = _whole(said, "gpus", least=0)
    return WorkerLimits(
        cores=_whole(said, "cores", least=1),
        ram_bytes=_whole(said, "ram_bytes", least=1),
        gpus=devices,
        slots=_whole(said, "slots", least=1),
    )


def laid_over(node: Node | None, policy: HostPolicy | None, capability: Capability) -> Node | None:
    """Lay a manifest's policy over a declared node; over what was found, where nobody declared the machine."""
    if policy is None:
        return node
    said = {
        name: value
        for name in ("description", "priority", "allow_jobs", "deny_jobs")
        if (value := getattr(policy, name)) is not None
    }
    return changed(node or node_of(capability), **said) if said else node


def joined(
    name: str,
    capability: Capability,
    declared: Node | None,
    slots: int | None,
    *,
    policy: HostPolicy | None = None,
    limits: WorkerLimits | None = None,
) -> AgreedOffer:
    """Return what a machine offers by everybody who has a say: also what a manifest says, and slots as it was asked."""
    limits = limits or WorkerLimits()
    if slots is not None:
        limits = changed(limits, slots=min(slots, limits.slots or slots))
    return join(name, capability, laid_over(declared, policy, capability), limits=limits)


def with_closed(
    offer: NodeOffer, closed: str, closed_devices: Mapping[str, str], *, unable: Mapping[str, str]
) -> NodeOffer:
    """Return an offer with what is closed, and why: the machine, devices by UUID, jobs by a word of theirs."""
    devices = tuple(
        changed(device, closed=closed_devices[device.uuid] or "closed") if device.uuid in closed_devices else device
        for device in offer.devices
    )
    return changed(
        offer,
        closed=closed,
        devices=devices,
        deny_jobs=(*offer.deny_jobs, *unable),
        denied_for=tuple(unable.items()),
    )


def join(
    name: str, capability: Capability, node: Node | None = None, *, limits: WorkerLimits | None = None
) -> AgreedOffer:
    """Return what a machine offers, idle, and where its declaration and the machine disagree.

    RAM that was available when it joined is left out: what is available is measured with every claim.
    """
    steady = changed(capability, ram_available_bytes=None)
    agreed = agree(node, steady)
    limits = limits or WorkerLimits()
    offer = agreed.offer
    return AgreedOffer(
        offer=changed(
            offer,
            node=name,
            devices=_chosen(offer.devices, limits.gpus),
            cores=_smaller(offer.cores, limits.cores),
            ram_bytes=_smaller(offer.ram_bytes, limits.ram_bytes),
            **_slots_changed(offer, limits.slots),
        ),
        drift=agreed.drift,
    )


def _chosen(devices: tuple[DeviceOffer, ...], gpus: int | tuple[str, ...] | None) -> tuple[DeviceOffer, ...]:
    if gpus is None:
        return devices
    if isinstance(gpus, int):
        # The first that can be used.
        able = [device.uuid for device in devices if not device.closed][:gpus]
        why = f"its worker was started for {gpus} device{'' if gpus == 1 else 's'}"
    else:
        able = [device.uuid for device in devices if device.uuid in gpus]
        why = "its worker was started for other devices"
    return tuple(device if device.closed or device.uuid in able else changed(device, closed=why) for device in devices)


def _slots_changed(offer: NodeOffer, slots: int | None) -> dict[str, int | bool]:
    if slots is None:
        return {}
    # A slot per device is what holds where nobody counted; the worker did.
    return {"slots": slots if offer.is_slot_per_device else min(offer.slots, slots), "is_slot_per_device": False}


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((amount for amount in (one, other) if amount is not None), default=None)


def _whole(said: Mapping[str, object], name: str, *, least: int) -> int | None:
    if said.get(name) is None:
        return None
    value = whole_number(said[name])
    if value is None or not least <= value <= _MOST:
        message = f"{name}: a whole number of at least {least}, not {str(said[name])[:40]!r}"
        raise BadInput(message)
    return value


_OUTDATED = 8
"""So many earlier starts of a worker are remembered."""


def known_machine(turn: WriterTransaction, worker: str, incarnation: str) -> RegisteredMachine:
    """Return the machine that speaks, or refuse one that never said hello, or whose later start has."""
    machine = turn.book.machines.get(worker)
    # After a restore it is not known which start of a worker was the last: whoever speaks says hello again.
    if machine is None or not machine.incarnation:
        raise NotFound(f"no machine {worker!r} has said hello", hint="say hello first", machine=worker)
    if machine.incarnation != incarnation:
        raise _taken_over(worker)
    return machine


def see(turn: WriterTransaction, machine: RegisteredMachine) -> None:
    """Note that a machine was heard of; one that was silent is offered work again."""
    machine.seen_tick_s = turn.tick_s
    machine.late_until_tick_s = min(machine.late_until_tick_s, turn.tick_s + LATE_S)
    machine.row["last_seen_s"] = turn.now_s
    machine.is_changed = True
    # Who said goodbye says hello first: a word of before that came late brings nobody back.
    if not machine.is_offered and machine.row["left_s"] is None:
        offer(turn, machine)


def stay(turn: WriterTransaction, machine: RegisteredMachine, left_s: float | None) -> None:
    """Take in for how long a machine stays, as it says now; None: it says nothing of an end.

    It counts from now, so a clock of ours that jumped ends a machine only until it speaks next.
    """
    if left_s is None:
        return
    ends_s = turn.now_s + left_s
    if machine.ends_s is None or abs(machine.ends_s - ends_s) > END_NEWS_S:
        row = machine.row
        row["declared"] = dumps({**(loads(row["declared"]) if row["declared"] else {}), ENDS: ends_s})
        turn.write(turn.statements.declare_machine, at_name=machine.name, declared=row["declared"])
    turn.book.scheduler.stay(machine.name, left_s, turn.now_s)


def leave(turn: WriterTransaction, machine: RegisteredMachine) -> None:
    """Count on a machine no longer whose worker ends in order."""
    if machine.row["left_s"] is not None:
        return
    machine.row["left_s"] = turn.now_s
    turn.write(turn.statements.leave_machine, at_name=machine.name, left_s=turn.now_s)
    turn.book.scheduler.remove_machine(machine.name)
    machine.is_offered = False
    turn.tell(FleetKinds.MACHINE_LEFT, machine=machine.name)


def offer(turn: WriterTransaction, machine: RegisteredMachine) -> tuple[str, ...]:
    """Let the scheduler count on a machine as it is now, and call it; return where it differs from its declaration."""
    book = turn.book
    capability = capability_from_dict(loads(machine.row["capability"]))
    agreed = _joined(book, machine, capability)
    closed = with_closed(
        agreed.offer,
        machine.closed,
        machine.closed_devices,
        unable={**unable(book, machine), **unaccepted(book, machine)},
    )
    drift = tuple(one.message for one in agreed.drift)
    memory = MachineMemory(total_bytes=capability.ram_total_bytes, available_bytes=capability.ram_available_bytes)
    book.scheduler.put_machine(ScheduledMachine(closed, memory.room_bytes, drift, machine.ends_s))
    book.restate(machine.name)
    machine.is_offered, machine.away = True, None
    turn.call(machine.name)
    return drift


def hear_closed(turn: WriterTransaction, machine: RegisteredMachine, closed: Mapping[str, str]) -> None:
    """Take in what a machine itself says is closed, by device; "" is all of it."""
    if _told_closed(turn.book, machine) != closed:
        turn.book.scheduler.measure(machine.name, WorkerMeasurements(closed=dict(closed)))
        turn.call(machine.name)


def _told_closed(book: QueueState, machine: RegisteredMachine) -> Mapping[str, str]:
    """Return what a machine itself said last that is closed."""
    scheduled = book.scheduler.machines.machines.get(machine.name)
    return {} if scheduled is None else scheduled.told


def _joined(book: QueueState, machine: RegisteredMachine, capability: Capability) -> AgreedOffer:
    row, name = machine.row, machine.name
    return joined(
        name,
        capability,
        book.cluster.find(name) if book.cluster is not None else None,
        row["slots"],
        policy=book.policies.get(name),
        limits=limits_of(loads(row["declared"]) if row["declared"] else {}),
    )


def away(book: QueueState) -> tuple[NodeOffer, ...]:
    """Return what machines that the scheduler does not count on now would offer, were they back and open."""
    found = []
    for machine in book.machines.values():
        if machine.is_offered or not machine.row["capability"]:
            continue
        if machine.away is None:
            with suppress(BadInput, ValueError):
                machine.away = _joined(book, machine, capability_from_dict(loads(machine.row["capability"]))).offer
        if machine.away is not None:
            found.append(machine.away)
    return tuple(found)


def hold(turn: WriterTransaction, machine: RegisteredMachine, holdings: MachineInventory) -> None:
    """Note what a machine has; it is offered anew if that changes which jobs it can have."""
    if is_news(turn.book, machine, holdings) and machine.is_offered:
        offer(turn, machine)


def hello(turn: WriterTransaction, said: Hello) -> Welcome:
    """Take a machine in, or in again. A new start of its worker ends what the old one held."""
    book = turn.book
    machine = book.machines.get(said.worker)
    if machine is not None and said.incarnation in machine.outdated:
        raise _taken_over(said.worker)
    is_new_start = machine is None or machine.incarnation != said.incarnation
    row = _row(turn, said, machine)
    fresh = RegisteredMachine(
        row=row,
        closed_devices=machine.closed_devices if machine else {},
        seen_tick_s=turn.tick_s,
        holdings=said.holdings or MachineInventory(),
    )
    # Refuses a capability or a declaration that is none, before anything is changed.
    drift = offer(turn, fresh)
    if machine is not None:
        if is_new_start:
            for live in list(machine.leases.values()):
                lose(turn, live, "its worker was started anew")
            # Somebody may have done something about what it declined.
            book.barred.pop(machine.name, None)
        fresh.leases = machine.leases
        fresh.late_until_tick_s = min(machine.late_until_tick_s, turn.tick_s + LATE_S)
    book.machines[said.worker] = fresh
    turn.write(turn.statements.put_machine, **row)
    if is_new_start:
        told = {"incarnation": said.incarnation, "version": said.version, "drift": list(drift)}
        turn.tell(FleetKinds.MACHINE_JOINED, machine=said.worker, fields=telling(told))
    elif machine is not None:
        _tell_changes(turn, machine, row, drift)
    return Welcome(
        worker=said.worker,
        generation=book.generation,
        heartbeat_s=turn.pace.heartbeat_s,
        lease_s=turn.pace.lease_s,
        start_s=turn.setting.times.start_s,
        claim_wait_s=turn.setting.times.claim_wait_s,
        server_s=turn.now_s,
        version=turn.setting.version,
        closed=fresh.closed,
        drift=drift,
        slots=_slots(turn, said),
    )


def close_machine(turn: WriterTransaction, asked: CloseMachine) -> QueueCommandResult:
    """Return a machine, or some of its devices, nothing more."""
    machine = named(turn, asked.machine)
    why = plain(asked.why) or f"{asked.how.value} by {plain(asked.by) or 'an operator'}"
    if asked.devices:
        if asked.how is not MachineCloseMode.CORDON:
            raise Refused("only a whole machine is drained or paused", hint="cordon the device", machine=asked.machine)
        machine.closed_devices = {**machine.closed_devices, **dict.fromkeys(asked.devices, why)}
    else:
        until_s = None if asked.for_s is None else turn.now_s + asked.for_s
        machine.row.update(closed=asked.how.value, why=why, until_s=until_s)
        turn.call(machine.name)
    _write_closed(turn, machine, asked.how.value, {"why": why, "devices": list(asked.devices), "by": plain(asked.by)})
    return QueueCommandResult(changed=(asked.machine,))


def open_machine(turn: WriterTransaction, asked: OpenMachine) -> QueueCommandResult:
    """Take that back."""
    machine = named(turn, asked.machine)
    if asked.devices:
        machine.closed_devices = {
            uuid: why for uuid, why in machine.closed_devices.items() if uuid not in asked.devices
        }
    elif not machine.row["closed"]:
        return QueueCommandResult(notes=(f"{asked.machine} is open already", *_still_closed(turn, machine)))
    else:
        machine.row.update(closed="", why="", until_s=None)
    _write_closed(turn, machine, "opened", {"devices": list(asked.devices), "by": plain(asked.by)})
    return QueueCommandResult(changed=(asked.machine,), notes=_still_closed(turn, machine))


def _still_closed(turn: WriterTransaction, machine: RegisteredMachine) -> tuple[str, ...]:
    """Return what keeps jobs from a machine that is open for us: its own word, or devices that are closed."""
    told = _told_closed(turn.book, machine).get("", "")
    notes = []
    if told:
        notes.append(f"it takes nothing yet, it says: {told}; `stoker pause --off` on {machine.name} ends a pause")
    if machine.closed_devices:
        devices = ", ".join(sorted(machine.closed_devices))
        notes.append(f"closed still: {devices}; `stoker machines open {machine.name} --device UUID` opens a device")
    return tuple(notes)


def named(turn: WriterTransaction, name: str) -> RegisteredMachine:
    """Return a machine that is known."""
    machine = turn.book.machines.get(name)
    if machine is None:
        raise NotFound(f"there is no machine {name!r}", hint="`stoker machines` lists them", machine=name)
    return machine


def _write_closed(turn: WriterTransaction, machine: RegisteredMachine, what: str, told: dict[str, Any]) -> None:
    row = machine.row
    row["closed_devices"] = json_or_empty(machine.closed_devices)
    turn.write(
        turn.statements.close_machine,
        at_name=machine.name,
        closed=row["closed"],
        why=row["why"],
        until_s=row["until_s"],
        closed_devices=row["closed_devices"],
    )
    turn.tell(
        FleetKinds.MACHINE_CHANGED,
        machine=machine.name,
        fields=telling({"what": what, "until_s": row["until_s"], **told}),
    )
    if machine.is_offered:
        offer(turn, machine)


def _slots(turn: WriterTransaction, said: Hello) -> int:
    """Return how many jobs at once it may hold; 0: as many as it wants."""
    node = turn.book.cluster.find(said.worker) if turn.book.cluster is not None else None
    is_declared = node is not None and (node.slots is not None or node.max_adapters > 1)
    declared = node.most_jobs if node is not None and is_declared else None
    return min((slots for slots in (said.slots, declared) if slots is not None), default=0)


def _row(turn: WriterTransaction, said: Hello, machine: RegisteredMachine | None) -> dict[str, Any]:
    old = machine.row if machine is not None else {}
    return {
        "name": said.worker,
        "incarnation": said.incarnation,
        "outdated": _outdated(said, machine),
        "boot_id": plain(said.boot_id)[:100],
        "version": plain(said.version)[:40],
        "capability": json_or_empty(said.capability) or "{}",
        "capability_digest": plain(said.capability_digest)[:64],
        "slots": said.slots,
        "declared": json_or_empty(_declared(said, turn.now_s)),
        "first_seen_s": old.get("first_seen_s", turn.now_s),
        "last_seen_s": turn.now_s,
        "closed": old.get("closed", ""),
        "why": old.get("why", ""),
        "until_s": old.get("until_s"),
        "closed_devices": old.get("closed_devices", ""),
        "left_s": None,
        "report": old.get("report", ""),
    }


def _declared(said: Hello, now_s: float) -> dict[str, Any]:
    """Return what was declared of a machine, and what its row keeps beside that."""
    declared = {name: value for name, value in said.declared.items() if name not in (ACCEPTS, ENDS)}
    if said.accepts:
        declared[ACCEPTS] = list(said.accepts)
    if said.ends_in_s is not None:
        declared[ENDS] = now_s + said.ends_in_s
    return declared


def _tell_changes(
    turn: WriterTransaction, machine: RegisteredMachine, row: dict[str, Any], drift: tuple[str, ...]
) -> None:
    """Write an event if a machine that says hello again offers something else than before."""
    had, has = _usable_devices(machine.row), _usable_devices(row)
    if had == has and machine.row["capability_digest"] == row["capability_digest"]:
        return
    told = {"drift": list(drift), "what": "capability", "gone": sorted(had - has), "back": sorted(has - had)}
    turn.tell(FleetKinds.MACHINE_CHANGED, machine=machine.name, fields=telling(told))


def _usable_devices(row: dict[str, Any]) -> set[str]:
    """Return the UUIDs of the devices that a machine offers; none of a row that holds no capability."""
    try:
        return {device.uuid for device in capability_from_dict(loads(row["capability"])).usable_devices}
    except (BadInput, ValueError):
        return set()


def _outdated(said: Hello, machine: RegisteredMachine | None) -> str:
    """Note which starts of a worker are over. It outlives the coordinator: an old start never takes over a new one."""
    if machine is None or machine.incarnation in ("", said.incarnation):
        return machine.row["outdated"] if machine is not None else ""
    return dumps([*machine.outdated, machine.incarnation][-_OUTDATED:])


def _taken_over(worker: str) -> StaleLease:
    return StaleLease(
        f"a newer start of {worker} has taken over", hint="stop what this one runs, and end", machine=worker
    )


# For explanations and forecasts: the machines as the scheduler sees them, and its whole state.


def look(turn: WriterTransaction, asked: InspectMachines) -> MachineInspection:
    """Return what is known now. Changes nothing."""
    book = turn.book
    scheduler = book.scheduler
    return MachineInspection(
        offers=scheduler.offers(),
        away=away(book),
        wanted=dict(scheduler.wanted),
        stated_s={class_id: kind.stated_s for kind, class_id in book.classes.items() if kind.stated_s is not None},
        drift=scheduler.drift(),
        holdings={name: one.holdings for name, one in book.machines.items() if one.holdings is not None},
        disk_free_bytes={
            name: free for name, one in book.machines.items() if (free := one.disk_free_bytes) is not None
        },
        accepts={name: pins for name, one in book.machines.items() if (pins := one.accepts)},
        schedule=_schedule(turn) if asked.schedule else None,
    )


def _schedule(turn: WriterTransaction) -> Snapshot:
    book = turn.book
    book.waiting.freshen()
    return take(
        book.scheduler,
        turn.now_s,
        running=[(live.seq, live.allocation) for live in book.live.values()],
        declined={
            name: {seq: turn.now_s + until_tick_s - turn.tick_s for seq, until_tick_s in barred.items()}
            for name, barred in book.barred.items()
        },
    )
