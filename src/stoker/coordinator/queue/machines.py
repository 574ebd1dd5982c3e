"""Machines: what each offers, hello, last contact, closing and opening."""

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
from stoker.coordinator.queue.transaction import WriterTransaction, json_or_empty, lose, plain, telling
from stoker.core.capability import Capability, capability_from_dict
from stoker.core.errors import BadInput, NotFound, Refused, StaleLease
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Node
from stoker.core.text import counted, whole_number
from stoker.devices.admission import MachineMemory
from stoker.protocol.job_messages import HostPolicy
from stoker.protocol.lease_messages import Hello, MachineInventory, Welcome, WorkerMeasurements
from stoker.scheduler.machine_index import MatchableMachine as ScheduledMachine
from stoker.scheduler.offers import AgreedOffer, DeviceOffer, NodeOffer, agree, node_of
from stoker.scheduler.scheduler import END_NEWS_S
from stoker.scheduler.snapshot import Snapshot, take

# What a machine offers: the smallest of detected, declared in the cluster file and the policies over it, and declared
# for the worker. Differences between file and machine are reported.

_MOST = 1 << 60


@frozen
class WorkerLimits:
    """What was declared for a worker. None: as detected."""

    cores: int | None = None
    ram_bytes: int | None = None
    gpus: int | tuple[str, ...] | None = None
    """Number of devices, or their UUIDs."""
    slots: int | None = None


def limits_of(declared: Mapping[str, object]) -> WorkerLimits:
    """Return the limits in `Hello.declared`; other keys are ignored. Raises `BadInput` for an invalid value."""
    gpus = declared.get("gpus")
    if isinstance(gpus, list | tuple):
        if not all(isinstance(one, str) for one in gpus):
            message = "gpus: not a number of devices or a list of UUIDs"
            raise BadInput(message)
        devices: int | tuple[str, ...] | None = tuple(str(one) for one in gpus)
    else:
        devices = _whole(declared, "gpus", least=0)
    return WorkerLimits(
        cores=_whole(declared, "cores", least=1),
        ram_bytes=_whole(declared, "ram_bytes", least=1),
        gpus=devices,
        slots=_whole(declared, "slots", least=1),
    )


def laid_over(node: Node | None, policy: HostPolicy | None, capability: Capability) -> Node | None:
    """Return a declared node with a manifest's policy over it; for an undeclared machine, over what was detected."""
    if policy is None:
        return node
    fields = {
        name: value
        for name in ("description", "priority", "allow_jobs", "deny_jobs")
        if (value := getattr(policy, name)) is not None
    }
    return changed(node or node_of(capability), **fields) if fields else node


def joined(
    name: str,
    capability: Capability,
    declared: Node | None,
    slots: int | None,
    *,
    policy: HostPolicy | None = None,
    limits: WorkerLimits | None = None,
) -> AgreedOffer:
    """Return what a machine offers by its declaration, a manifest's policy, and the slots of its worker."""
    limits = limits or WorkerLimits()
    if slots is not None:
        limits = changed(limits, slots=min(slots, limits.slots or slots))
    return join(name, capability, laid_over(declared, policy, capability), limits=limits)


def with_closed(
    offer: NodeOffer, closed: str, closed_devices: Mapping[str, str], *, unable: Mapping[str, str]
) -> NodeOffer:
    """Return an offer with what is closed, and why: the machine, devices by UUID, jobs by a denied word."""
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
    """Return what a machine offers when idle, and the differences between declaration and machine.

    RAM that was available when it joined is left out: available RAM is measured with every claim.
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
        why = f"the worker was started for {counted(gpus, 'device')}"
    else:
        able = [device.uuid for device in devices if device.uuid in gpus]
        why = "the worker was started for other devices"
    return tuple(device if device.closed or device.uuid in able else changed(device, closed=why) for device in devices)


def _slots_changed(offer: NodeOffer, slots: int | None) -> dict[str, int | bool]:
    if slots is None:
        return {}
    # A slot per device is the default; the worker declared a number.
    return {"slots": slots if offer.is_slot_per_device else min(offer.slots, slots), "is_slot_per_device": False}


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((amount for amount in (one, other) if amount is not None), default=None)


def _whole(declared: Mapping[str, object], name: str, *, least: int) -> int | None:
    if declared.get(name) is None:
        return None
    value = whole_number(declared[name])
    if value is None or not least <= value <= _MOST:
        message = f"{name}: not a whole number of at least {least}: {str(declared[name])[:40]!r}"
        raise BadInput(message)
    return value


_OUTDATED = 8
"""Number of earlier incarnations of a worker that are stored."""


def known_machine(transaction: WriterTransaction, worker: str, incarnation: str) -> RegisteredMachine:
    """Return a registered machine; refuse an unregistered one, and an earlier incarnation of its worker."""
    machine = transaction.book.machines.get(worker)
    # After a restore the last incarnation of a worker is unknown: every worker registers again.
    if machine is None or not machine.incarnation:
        raise NotFound(f"machine {worker!r} is not registered", hint="send a hello first", machine=worker)
    if machine.incarnation != incarnation:
        raise _taken_over(worker)
    return machine


def see(transaction: WriterTransaction, machine: RegisteredMachine) -> None:
    """Record that a machine sent a request; one that was silent is offered jobs again."""
    machine.seen_tick_s = transaction.tick_s
    machine.late_until_tick_s = min(machine.late_until_tick_s, transaction.tick_s + LATE_S)
    machine.row["last_seen_s"] = transaction.now_s
    machine.is_changed = True
    # A machine that left has to send a hello first: a late request from before must not bring it back.
    if not machine.is_offered and machine.row["left_s"] is None:
        offer(transaction, machine)


def stay(transaction: WriterTransaction, machine: RegisteredMachine, left_s: float | None) -> None:
    """Record the time until a machine leaves, as reported now; None: not reported.

    It counts from now, so after a jump of our clock the end is wrong only until the machine's next request.
    """
    if left_s is None:
        return
    ends_s = transaction.now_s + left_s
    if machine.ends_s is None or abs(machine.ends_s - ends_s) > END_NEWS_S:
        row = machine.row
        row["declared"] = dumps({**(loads(row["declared"]) if row["declared"] else {}), ENDS: ends_s})
        transaction.write(transaction.statements.declare_machine, at_name=machine.name, declared=row["declared"])
    transaction.book.scheduler.stay(machine.name, left_s, transaction.now_s)


def leave(transaction: WriterTransaction, machine: RegisteredMachine) -> None:
    """Remove a machine from the scheduler whose worker shuts down in order."""
    if machine.row["left_s"] is not None:
        return
    machine.row["left_s"] = transaction.now_s
    transaction.write(transaction.statements.leave_machine, at_name=machine.name, left_s=transaction.now_s)
    transaction.book.scheduler.remove_machine(machine.name)
    machine.is_offered = False
    transaction.tell(FleetKinds.MACHINE_LEFT, machine=machine.name)


def offer(transaction: WriterTransaction, machine: RegisteredMachine) -> tuple[str, ...]:
    """Register a machine with the scheduler as it is now, and call it; return its differences from its declaration."""
    book = transaction.book
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
    transaction.call(machine.name)
    return drift


def set_closed_by_worker(transaction: WriterTransaction, machine: RegisteredMachine, closed: Mapping[str, str]) -> None:
    """Store what a machine's own worker reports as closed, by device; "" is the whole machine."""
    if _closed_by_worker(transaction.book, machine) != closed:
        transaction.book.scheduler.measure(machine.name, WorkerMeasurements(closed=dict(closed)))
        transaction.call(machine.name)


def _closed_by_worker(book: QueueState, machine: RegisteredMachine) -> Mapping[str, str]:
    """Return what a machine's own worker reported last as closed."""
    scheduled = book.scheduler.machines.machines.get(machine.name)
    return {} if scheduled is None else scheduled.closed_by_worker


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
    """Return what machines that are away would offer if they were back and open."""
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


def hold(transaction: WriterTransaction, machine: RegisteredMachine, holdings: MachineInventory) -> None:
    """Store a machine's inventory; offer it again if that changes which jobs it can run."""
    if is_news(transaction.book, machine, holdings) and machine.is_offered:
        offer(transaction, machine)


def hello(transaction: WriterTransaction, said: Hello) -> Welcome:
    """Register a machine. A new incarnation of its worker ends the leases of the old one."""
    book = transaction.book
    machine = book.machines.get(said.worker)
    if machine is not None and said.incarnation in machine.outdated:
        raise _taken_over(said.worker)
    is_new_start = machine is None or machine.incarnation != said.incarnation
    row = _row(transaction, said, machine)
    fresh = RegisteredMachine(
        row=row,
        closed_devices=machine.closed_devices if machine else {},
        seen_tick_s=transaction.tick_s,
        holdings=said.holdings or MachineInventory(),
    )
    # Refuses an invalid capability or declaration before anything is changed.
    drift = offer(transaction, fresh)
    if machine is not None:
        if is_new_start:
            for live in list(machine.leases.values()):
                lose(transaction, live, "the worker was restarted")
            # The reason why it declined a job may have been fixed.
            book.barred.pop(machine.name, None)
        fresh.leases = machine.leases
        fresh.late_until_tick_s = min(machine.late_until_tick_s, transaction.tick_s + LATE_S)
    book.machines[said.worker] = fresh
    transaction.write(transaction.statements.put_machine, **row)
    if is_new_start:
        fields = {"incarnation": said.incarnation, "version": said.version, "drift": list(drift)}
        transaction.tell(FleetKinds.MACHINE_JOINED, machine=said.worker, fields=telling(fields))
    elif machine is not None:
        _tell_changes(transaction, machine, row, drift)
    return Welcome(
        worker=said.worker,
        generation=book.generation,
        heartbeat_s=transaction.pace.heartbeat_s,
        lease_s=transaction.pace.lease_s,
        start_s=transaction.setting.times.start_s,
        claim_wait_s=transaction.setting.times.claim_wait_s,
        server_s=transaction.now_s,
        version=transaction.setting.version,
        closed=fresh.closed,
        drift=drift,
        slots=_slots(transaction, said),
    )


def close_machine(transaction: WriterTransaction, asked: CloseMachine) -> QueueCommandResult:
    """Close a machine, or some of its devices: no new jobs start there."""
    machine = named(transaction, asked.machine)
    why = plain(asked.why) or f"{asked.how.value} by {plain(asked.by) or 'an operator'}"
    if asked.devices:
        if asked.how is not MachineCloseMode.CORDON:
            raise Refused(
                "drain and pause are for whole machines only", hint="cordon the device", machine=asked.machine
            )
        machine.closed_devices = {**machine.closed_devices, **dict.fromkeys(asked.devices, why)}
    else:
        until_s = None if asked.for_s is None else transaction.now_s + asked.for_s
        machine.row.update(closed=asked.how.value, why=why, until_s=until_s)
        transaction.call(machine.name)
    _write_closed(
        transaction, machine, asked.how.value, {"why": why, "devices": list(asked.devices), "by": plain(asked.by)}
    )
    return QueueCommandResult(changed=(asked.machine,))


def open_machine(transaction: WriterTransaction, asked: OpenMachine) -> QueueCommandResult:
    """Open a machine, or some of its devices, again."""
    machine = named(transaction, asked.machine)
    if asked.devices:
        machine.closed_devices = {
            uuid: why for uuid, why in machine.closed_devices.items() if uuid not in asked.devices
        }
    elif not machine.row["closed"]:
        return QueueCommandResult(notes=(f"{asked.machine} is open already", *_still_closed(transaction, machine)))
    else:
        machine.row.update(closed="", why="", until_s=None)
    _write_closed(transaction, machine, "opened", {"devices": list(asked.devices), "by": plain(asked.by)})
    return QueueCommandResult(changed=(asked.machine,), notes=_still_closed(transaction, machine))


def _still_closed(transaction: WriterTransaction, machine: RegisteredMachine) -> tuple[str, ...]:
    """Return notes about what still keeps jobs from an open machine: its own worker, or closed devices."""
    why = _closed_by_worker(transaction.book, machine).get("", "")
    notes = []
    if why:
        notes.append(f"{machine.name} is closed by its own worker: {why}; end a pause there: `stoker pause --off`")
    if machine.closed_devices:
        devices = ", ".join(sorted(machine.closed_devices))
        notes.append(f"still closed: {devices}; open a device: `stoker machines open {machine.name} --device UUID`")
    return tuple(notes)


def named(transaction: WriterTransaction, name: str) -> RegisteredMachine:
    """Return a machine by name. Raises `NotFound`."""
    machine = transaction.book.machines.get(name)
    if machine is None:
        raise NotFound(f"there is no machine {name!r}", hint="`stoker machines` lists them", machine=name)
    return machine


def _write_closed(
    transaction: WriterTransaction, machine: RegisteredMachine, what: str, fields: dict[str, Any]
) -> None:
    row = machine.row
    row["closed_devices"] = json_or_empty(machine.closed_devices)
    transaction.write(
        transaction.statements.close_machine,
        at_name=machine.name,
        closed=row["closed"],
        why=row["why"],
        until_s=row["until_s"],
        closed_devices=row["closed_devices"],
    )
    transaction.tell(
        FleetKinds.MACHINE_CHANGED,
        machine=machine.name,
        fields=telling({"what": what, "until_s": row["until_s"], **fields}),
    )
    if machine.is_offered:
        offer(transaction, machine)


def _slots(transaction: WriterTransaction, said: Hello) -> int:
    """Return the maximum number of concurrent jobs; 0: as requested."""
    node = transaction.book.cluster.find(said.worker) if transaction.book.cluster is not None else None
    is_declared = node is not None and (node.slots is not None or node.max_adapters > 1)
    declared = node.most_jobs if node is not None and is_declared else None
    return min((slots for slots in (said.slots, declared) if slots is not None), default=0)


def _row(transaction: WriterTransaction, said: Hello, machine: RegisteredMachine | None) -> dict[str, Any]:
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
        "declared": json_or_empty(_declared(said, transaction.now_s)),
        "first_seen_s": old.get("first_seen_s", transaction.now_s),
        "last_seen_s": transaction.now_s,
        "closed": old.get("closed", ""),
        "why": old.get("why", ""),
        "until_s": old.get("until_s"),
        "closed_devices": old.get("closed_devices", ""),
        "left_s": None,
        "report": old.get("report", ""),
    }


def _declared(said: Hello, now_s: float) -> dict[str, Any]:
    """Return what was declared of a machine, with accepted code and end time."""
    declared = {name: value for name, value in said.declared.items() if name not in (ACCEPTS, ENDS)}
    if said.accepts:
        declared[ACCEPTS] = list(said.accepts)
    if said.ends_in_s is not None:
        declared[ENDS] = now_s + said.ends_in_s
    return declared


def _tell_changes(
    transaction: WriterTransaction, machine: RegisteredMachine, row: dict[str, Any], drift: tuple[str, ...]
) -> None:
    """Add an event if a machine that registers again offers something else than before."""
    had, has = _usable_devices(machine.row), _usable_devices(row)
    if had == has and machine.row["capability_digest"] == row["capability_digest"]:
        return
    fields = {"drift": list(drift), "what": "capability", "gone": sorted(had - has), "back": sorted(has - had)}
    transaction.tell(FleetKinds.MACHINE_CHANGED, machine=machine.name, fields=telling(fields))


def _usable_devices(row: dict[str, Any]) -> set[str]:
    """Return the UUIDs of a machine's usable devices; none if its row has no valid capability."""
    try:
        return {device.uuid for device in capability_from_dict(loads(row["capability"])).usable_devices}
    except (BadInput, ValueError):
        return set()


def _outdated(said: Hello, machine: RegisteredMachine | None) -> str:
    """Return the outdated incarnations of a worker, to store: an old one never takes over from a new one."""
    if machine is None or machine.incarnation in ("", said.incarnation):
        return machine.row["outdated"] if machine is not None else ""
    return dumps([*machine.outdated, machine.incarnation][-_OUTDATED:])


def _taken_over(worker: str) -> StaleLease:
    return StaleLease(
        f"a newer worker of {worker} has taken over", hint="stop the jobs of this worker and exit", machine=worker
    )


def inspect_machines(transaction: WriterTransaction, asked: InspectMachines) -> MachineInspection:
    """Return the machines as the scheduler sees them, for explanations and forecasts. Changes nothing."""
    book = transaction.book
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
        schedule=_schedule(transaction) if asked.schedule else None,
    )


def _schedule(transaction: WriterTransaction) -> Snapshot:
    book = transaction.book
    book.waiting.freshen()
    return take(
        book.scheduler,
        transaction.now_s,
        running=[(live.job.seq, live.allocation) for live in book.live.values()],
        declined={
            name: {seq: transaction.now_s + until_tick_s - transaction.tick_s for seq, until_tick_s in barred.items()}
            for name, barred in book.barred.items()
        },
    )
