"""What fits: on one device, and in a machine's RAM. The only rules for both. Pure: what is known is an argument.

On a device (`block_on`): the scheduler (`scheduler.fit`) knows what it promised and what was measured last; the ledger
of a machine (`ledger.ledger_rules`) knows what all processes of the machine were promised and what the driver measures
now; the check of a plan (`engine.ledger_gate`) and a worker's second check ask the ledger. A job has a device alone
unless sharing is allowed, the job declares its memory, and that much of the device may be shared. Jobs that share are
promised at most the usable part of a device together; a base model counts once.

In RAM (`admit`): a machine keeps a reserve of its RAM for itself. Work that declares no need is never refused and gets
everything above the reserve as its limit. Work that declares a need is refused if it can never fit, has to wait or is
refused if it does not fit now, and gets a limit a little above the need. What can't be read refuses nothing. A run
(`engine.permits`) and a worker's second check (`worker.machine_checks`) call `admit`. What a machine offers to the
scheduler (`scheduler.offers`) is `MachineMemory.most_bytes`, and what its worker announces with each claim is
`MachineMemory.room_bytes`: a coordinator grants what the worker admits.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.core.device import GIB, Capacity, MemoryType, usable_bytes
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.host.resources import memory_available_bytes, memory_total_bytes, usable_cores


class DeviceBlock(StrEnum):
    """Why a job can't use a device."""

    TOO_SMALL = "too_small"
    """It needs more than the device has for it, whatever our jobs hold."""
    HELD = "held_alone"
    """Another job has the device alone."""
    IN_USE = "in_use"
    """The job would have it alone, and other jobs are on it."""
    DEVICE_SLOTS = "device_slots"
    """As many jobs share it as may."""
    ROOM = "room"
    """What is promised to the jobs on it leaves too little."""


def block_on(  # noqa: PLR0913 - a record of them would be made for every device of every machine
    vram_bytes: int,
    added_bytes: int,
    *,
    is_shared: bool,
    most_bytes: int,
    promised_bytes: int,
    jobs: int,
    is_held: bool,
    slots: int | None,
) -> DeviceBlock | None:
    """Return why a job can't use a device; `None` if it can.

    Args:
        vram_bytes: What the job declares; 0 if it declares nothing.
        added_bytes: What it would add to a shared device (`added_bytes`).
        is_shared: Whether it would share the device (`shares`).
        most_bytes: What the device has for it: `shared_bytes` or `alone_bytes`.
        promised_bytes: What the jobs on the device were promised together.
        jobs: How many they are.
        is_held: Whether one of them has it alone.
        slots: How many jobs may share it; `None`: as many as its memory takes.

    """
    if vram_bytes > most_bytes:
        return DeviceBlock.TOO_SMALL
    if is_held:
        return DeviceBlock.HELD
    if not is_shared:
        return DeviceBlock.IN_USE if jobs else None
    if slots is not None and jobs >= slots:
        return DeviceBlock.DEVICE_SLOTS
    return DeviceBlock.ROOM if added_bytes > most_bytes - promised_bytes else None


def shares(vram_bytes: int, usable_bytes: int, *, is_allowed: bool) -> bool:
    """Return True if a job shares a device on which sharing is allowed to it; otherwise it has the device alone.

    A job that is too large to share has it alone, and so has one that does not declare its memory.
    """
    return is_allowed and 0 < vram_bytes <= usable_bytes


def alone_bytes(total_bytes: int, memory_type: MemoryType, free_bytes: int | None) -> int:
    """Return what a device has for a job that has it alone.

    `free_bytes` is the measured free memory, with what our own jobs hold counted as free. If it is `None`, not
    measured, that is all of the device, or the usable part where the machine works in the same memory.
    """
    if free_bytes is not None:
        return min(total_bytes, free_bytes)
    return total_bytes if memory_type is MemoryType.DISCRETE else usable_bytes(total_bytes, memory_type)


def shared_bytes(total_bytes: int, memory_type: MemoryType, free_bytes: int | None) -> int:
    """Return what a device has for all jobs that share it together; `free_bytes` as in `alone_bytes`."""
    return min(usable_bytes(total_bytes, memory_type), alone_bytes(total_bytes, memory_type, free_bytes))


def added_bytes(vram_bytes: int, base_bytes: int, resident_bytes: int) -> int:
    """Return what a job adds to what the jobs on a shared device were promised together.

    `base_bytes` of its memory are its base model, of which `resident_bytes` are there already. The largest size that
    any job states for a base model counts.
    """
    return vram_bytes - min(vram_bytes, base_bytes, resident_bytes)


_MOST_FLOOR_BYTES = 6 * GIB
_SLACK_BYTES = 2 * GIB


@frozen
class MachineMemory:
    """What this machine, or the container we are in, has. `None`: can't be read."""

    total_bytes: int | None
    available_bytes: int | None

    @property
    def most_bytes(self) -> int | None:
        """What work may use in total: everything above the system reserve."""
        return None if self.total_bytes is None else above_floor_bytes(self.total_bytes)

    @property
    def room_bytes(self) -> int | None:
        """What work may use now: what is free above the system reserve."""
        if self.available_bytes is None or self.total_bytes is None:
            return self.available_bytes
        return max(0, self.available_bytes - floor_bytes(self.total_bytes))


@frozen
class Admission:
    """It may start."""

    cap_bytes: int | None
    """Memory limit; beyond it the work is killed. `None`: the machine's memory is unknown, so there is no limit."""
    why: str
    is_raised: bool = False
    """The limit is above what the declaration gives, because that was not enough before."""


@frozen
class AdmissionRefusal:
    """It can never fit on this machine."""

    need_bytes: int
    most_bytes: int
    why: str


@frozen
class AdmissionDelay:
    """It fits on this machine, but not beside what is there at the moment."""

    need_bytes: int
    available_bytes: int
    room_bytes: int
    """What work may have of that."""
    may_wait: bool
    """Work of ours is running, and will release memory. If not, other programs hold it, and waiting does not help."""
    why: str


def memory_here(proc: str = "/proc") -> MachineMemory:
    """Read this machine's memory."""
    return MachineMemory(total_bytes=memory_total_bytes(proc), available_bytes=memory_available_bytes(proc))


def floor_bytes(total_bytes: int) -> int:
    """Return the system reserve: a tenth of the RAM, at most 6 GiB."""
    return min(_MOST_FLOOR_BYTES, total_bytes // 10)


def above_floor_bytes(total_bytes: int) -> int:
    """Return what work may use of a machine with so much RAM."""
    return total_bytes - floor_bytes(total_bytes)


def admit(
    need_bytes: int | None, memory: MachineMemory, *, is_work_running: bool = False, killed_at_bytes: int | None = None
) -> Admission | AdmissionRefusal | AdmissionDelay:
    """Decide on a start. A need of `None` or zero means that nothing was declared.

    `killed_at_bytes` is the limit at which the same work was killed for memory before; only that raises the next one.
    """
    most_bytes = memory.most_bytes
    if not need_bytes:
        limit = "memory can't be read" if most_bytes is None else f"{format_size(most_bytes)}: all but the reserve"
        return Admission(cap_bytes=most_bytes, why=f"nothing declared; {limit}")
    if most_bytes is not None and need_bytes > most_bytes:
        return AdmissionRefusal(
            need_bytes=need_bytes,
            most_bytes=most_bytes,
            why=f"it needs {format_size(need_bytes)}; this machine has {_of(memory)}",
        )
    shortage = _shortage(need_bytes, memory, is_work_running=is_work_running)
    return shortage or _cap(need_bytes, most_bytes, killed_at_bytes)


def _shortage(need_bytes: int, memory: MachineMemory, *, is_work_running: bool) -> AdmissionDelay | None:
    room_bytes = memory.room_bytes
    if memory.available_bytes is None or memory.total_bytes is None or room_bytes is None or need_bytes <= room_bytes:
        return None
    return AdmissionDelay(
        need_bytes=need_bytes,
        available_bytes=memory.available_bytes,
        room_bytes=room_bytes,
        may_wait=is_work_running,
        why=f"it needs {format_size(need_bytes)}; {format_size(memory.available_bytes)} are free now, and "
        f"{format_size(floor_bytes(memory.total_bytes))} of that are the system reserve",
    )


def _cap(need_bytes: int, most_bytes: int | None, killed_at_bytes: int | None) -> Admission:
    cap_bytes, why = need_bytes + _SLACK_BYTES, f"the need and {format_size(_SLACK_BYTES)}"
    is_raised = killed_at_bytes is not None and killed_at_bytes * 3 // 2 > cap_bytes
    if killed_at_bytes is not None and is_raised:
        cap_bytes = killed_at_bytes * 3 // 2
        why = f"1.5 × the {format_size(killed_at_bytes)} at which it was killed for memory"
    if most_bytes is not None and cap_bytes > most_bytes:
        # The need fits; the rest is optional, and the reserve must stay.
        cap_bytes, why = most_bytes, f"{why}, but no more than all above the reserve"
    return Admission(cap_bytes=cap_bytes, why=f"{format_size(cap_bytes)}: {why}", is_raised=is_raised)


def _of(memory: MachineMemory) -> str:
    total_bytes = memory.total_bytes or 0
    return (
        f"{format_size(total_bytes)}, of which {format_size(floor_bytes(total_bytes))} are the system reserve: "
        f"{format_size(above_floor_bytes(total_bytes))} at most"
    )


# What one run may use of this machine: cores and memory. Devices are the machine's: see `probes` and `ledger`.


def capacity_here() -> Capacity:
    """Return what stages of one run may hold together; the system reserve of min(6 GiB, a tenth) stays free."""
    total = memory_total_bytes() or 0
    return Capacity(cpu=usable_cores(), memory_bytes=total - floor_bytes(total))
