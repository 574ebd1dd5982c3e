"""Every step that reads or writes the ledger, one at a time under its lock.

`ledger_rules` decides; here the decision is carried out. A reservation counts from the moment that its record has its
name, and is returned to the caller after that. Devices are measured before the lock is taken, because a driver may be
slow: what others take meanwhile they were promised, and what was promised and not yet taken is never handed out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum

from stoker.core.clock import Clock
from stoker.core.errors import LockHeld, NoPermission
from stoker.core.frozen import changed, frozen
from stoker.devices.ledger.ledger_folder import (
    LAST_NUMBER,
    LEASES,
    LINE,
    LedgerFile,
    LedgerFolder,
    Name,
    OpenFolder,
    name_of,
    pack,
    unpack,
    unusable,
)
from stoker.devices.ledger.ledger_rules import (
    DeviceAssignment,
    DeviceReading,
    LedgerDecisionInputs,
    could_hold,
    decide,
    first_for,
    in_the_way,
    on_device,
    still_fits,
    taken_of_promised,
    unclaimed,
)
from stoker.devices.ledger.liveness import SEEN_S, ReservationLiveness, chain_of, ring
from stoker.devices.ledger.reservations import (
    LEASE_S,
    LONGEST_TEXT,
    CandidateDevice,
    DeviceRequest,
    DevicesBusy,
    Meter,
    NeverFits,
    QueueTicket,
    Reservation,
    ReservationShare,
)
from stoker.host.durable import NO_STEP
from stoker.host.identity import Liveness, ProcessIdentity, identity_from, mine

# The current content of the folder: read, checked and cleaned up under the lock.
#
# Records of ended processes are left out, and removed if that is ours to do. What can't be read is set aside with a
# warning, unless a living process wrote it: then it may hold anything, and nothing is granted until that process renews
# its lease, which rewrites it, or ends.

_MOST_KNOWN = 1024


@frozen
class LedgerSnapshot:
    """The ledger at one moment."""

    entries: tuple[Reservation, ...]
    """Reservations that count, oldest first."""
    tickets: tuple[QueueTicket, ...]
    """Queued requests in order, as far as they were read."""
    line: tuple[Name, ...] = ()
    """The names of all records in the queue."""
    unreadable: tuple[str, ...] = ()
    """Owners of reservations that can't be read, although they may count."""
    warnings: tuple[str, ...] = ()
    freed: tuple[str, ...] = ()
    """Devices with memory that was just found to be free, because its holder is gone."""

    def awake(self, living: ReservationLiveness) -> tuple[QueueTicket, ...]:
        """Return the queued requests that poll, in order."""
        return tuple(ticket for ticket in self.tickets if not living.is_asleep(ticket))

    def next_number(self) -> int:
        """Return the number for a new request: behind all that wait. Abandoned numbers do not count."""
        return min(max((ticket.number for ticket in self.tickets), default=0) + 1, LAST_NUMBER)


class LedgerRecordCache:
    """Records that were read before, by their bytes: most stay the same from one poll to the next."""

    def __init__(self) -> None:
        self._known: dict[LedgerFile, Reservation | QueueTicket] = {}

    def entry(self, found: LedgerFile) -> Reservation | None:
        """Read a reservation; `None` if it is damaged, or does not match its name."""
        record = self._read(found, Reservation.from_dict)
        return record if isinstance(record, Reservation) else None

    def ticket(self, found: LedgerFile) -> QueueTicket | None:
        """Read a queued request; `None` if it is damaged, or does not match its name."""
        record = self._read(found, QueueTicket.from_dict)
        return record if isinstance(record, QueueTicket) else None

    def _read(
        self, found: LedgerFile, parse: Callable[..., Reservation | QueueTicket]
    ) -> Reservation | QueueTicket | None:
        known = self._known.get(found)
        if known is not None or found.data is None:
            return known
        try:
            record = parse(unpack(found.data), user=found.user)
        except ValueError:
            return None
        if name_of(record) != found.name:
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[found] = record
        return record


class LedgerReader:
    """Reads the ledger's folder, and removes what no longer counts."""

    def __init__(self, living: ReservationLiveness, clock: Clock) -> None:
        self._living = living
        self._clock = clock
        self._parsed = LedgerRecordCache()

    def read(self, folder: OpenFolder, *, before: int | None = None) -> LedgerSnapshot:
        """Read and clean up; the caller holds the lock. With `before`, of the queue only lower numbers."""
        unreadable: list[str] = []
        warnings: list[str] = []
        counting: dict[str, Reservation] = {}
        gone = []
        for found in folder.read(LEASES, folder.names(LEASES)):
            entry = self._parsed.entry(found)
            if entry is None:
                self._judge_damaged(folder, found, unreadable, warnings)
            elif self._living.holds(entry):
                # After a kill between writing it for its new owner and removing the old one's, it is there twice.
                twin = counting.get(entry.id)
                if twin is None or twin.lease_until_s <= entry.lease_until_s:
                    counting[entry.id] = entry
            else:
                gone.append(entry)
                folder.remove(LEASES, found.name)
        line = folder.names(LINE)
        tickets = self._tickets(folder, (name for name in line if before is None or (name.number or 0) < before))
        folder.sweep()
        return LedgerSnapshot(
            entries=tuple(sorted(counting.values(), key=lambda entry: (entry.since_s, entry.id))),
            tickets=tuple(tickets),
            line=tuple(line),
            unreadable=tuple(unreadable),
            warnings=tuple(warnings),
            freed=tuple(sorted({uuid for entry in gone if entry.id not in counting for uuid in entry.uuids})),
        )

    def awake(self, folder: OpenFolder, *, besides: str = "") -> Iterator[QueueTicket]:
        """Read the requests that wait and poll, one by one in order, changing nothing; also without the lock."""
        names = (name for name in folder.names(LINE) if name.id != besides)
        for found in folder.read(LINE, names):
            ticket = self._parsed.ticket(found)
            if ticket is not None and self._living.waits(ticket) and not self._living.is_asleep(ticket):
                yield ticket

    def _tickets(self, folder: OpenFolder, names: Iterable[Name]) -> list[QueueTicket]:
        waiting = []
        for found in folder.read(LINE, names):
            ticket = self._parsed.ticket(found)
            if ticket is not None and self._living.waits(ticket):
                waiting.append(ticket)
            else:
                # A request that still waits is written again.
                folder.remove(LINE, found.name)
        return waiting

    def _judge_damaged(self, folder: OpenFolder, found: LedgerFile, unreadable: list[str], warnings: list[str]) -> None:
        name = found.name
        is_here = self._living.is_here(identity_from(name.pid, name.start_ticks)) and self._living.speaks_for(
            found.user, name.pid
        )
        # Its owner may be in another container: then it would have been renewed lately.
        is_fresh = found.modified_s and 0 <= self._clock.wall_s() - found.modified_s < LEASE_S
        if is_here or is_fresh:
            unreadable.append(f"process {name.pid}")
            warnings.append(
                f"the ledger's record of process {name.pid} can't be read; no device is granted until that process "
                "renews it or ends"
            )
            return
        done = "set aside" if folder.set_aside(LEASES, name) else "left alone"
        warnings.append(f"a damaged record of the ledger was {done}: {name}; no process of its user holds it")


# The time of the ledger, in six phases. Without a clock nothing is measured.


class LedgerPhase(StrEnum):
    """What the ledger does."""

    LOCK = "lock_acq"
    READ = "ledger_rd"
    MEASURE = "vram_qry"
    WRITE = "ledger_wr"
    UNLOCK = "lock_rel"
    WAIT = "wait_poll"


@frozen
class LedgerPhaseTime:
    """Count and total duration of a phase."""

    times: int
    seconds: float


class Phases:
    """Adds up the time of each phase; without a clock it counts nothing."""

    def __init__(self, seconds: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._spent: dict[LedgerPhase, LedgerPhaseTime] = {}

    def during(self, phase: LedgerPhase) -> AbstractContextManager[None]:
        """Measure the block."""
        return _NOTHING if self._seconds is None else self._count(phase, self._seconds)

    @property
    def spent(self) -> dict[LedgerPhase, LedgerPhaseTime]:
        """Return the sums so far, in the order of the phases."""
        return {phase: self._spent.get(phase, LedgerPhaseTime(times=0, seconds=0.0)) for phase in LedgerPhase}

    @contextmanager
    def _count(self, phase: LedgerPhase, seconds: Callable[[], float]) -> Iterator[None]:
        begun_s = seconds()
        try:
            yield
        finally:
            before = self._spent.get(phase, LedgerPhaseTime(times=0, seconds=0.0))
            self._spent[phase] = LedgerPhaseTime(times=before.times + 1, seconds=before.seconds + seconds() - begun_s)


_NOTHING = nullcontext()


STEPS = (
    "lock", "read", "leases:write", "leases:name", "leases:named", "leases:remove",
    "line:write", "line:name", "line:named", "line:remove", "unlock", "wake",
)  # fmt: skip
"""What `on_step` is called with, just before each step (`named`: just after), so that tests can crash at each."""


@frozen
class QueuePoll:
    """The result of one poll."""

    answer: Reservation | DevicesBusy | NeverFits
    ticket: QueueTicket | None = None
    """Its record in the queue from now on."""
    in_the_way: tuple[ProcessIdentity, ...] = ()
    """Processes whose end may change the answer."""
    users: tuple[int, ...] = ()
    """Numbers of all processes that use a device of the request."""


class LedgerAccess:
    """Reads and writes the ledger. Safe from several threads and processes; keeps nothing open."""

    def __init__(  # noqa: PLR0913 - the interfaces to everything outside
        self,
        folder: str,
        *,
        clock: Clock,
        meter: Meter,
        living: ReservationLiveness,
        phases: Phases,
        warn: Callable[[str], None],
        on_step: Callable[[str], None] = NO_STEP,
    ) -> None:
        self.clock = clock
        self.living = living
        self.phases = phases
        self._folder = LedgerFolder(folder, clock, on_step)
        self._meter = meter
        self._warn = warn
        self._warned: set[str] = set()
        self._reader = LedgerReader(living, clock)
        self._on_step = on_step

    def measure(self, devices: tuple[CandidateDevice, ...]) -> dict[str, DeviceReading]:
        """Measure devices with the driver."""
        with self.phases.during(LedgerPhase.MEASURE):
            return {
                device.uuid: DeviceReading(
                    free_bytes=self._meter.free_bytes(device.uuid), used_by=self._meter.used_by(device.uuid)
                )
                for device in devices
            }

    def look(self, ask: DeviceRequest, ticket: QueueTicket | None = None, *, place: str = "") -> QueuePoll:
        """Grant a request if that is possible now; if not, keep its record in the queue under that id."""
        readings = self.measure(ask.devices)
        granted: list[Reservation] = []
        try:
            return self._look(ask, ticket, place, readings, granted)
        except BaseException:
            # Interrupted after it was written: the caller never gets it.
            for held in granted:
                self.release(held)
            raise

    def _look(
        self,
        ask: DeviceRequest,
        ticket: QueueTicket | None,
        place: str,
        readings: Mapping[str, DeviceReading],
        granted: list[Reservation],
    ) -> QueuePoll:
        before = None if ticket is None else ticket.number
        with self._open("decide about device memory", before=before) as (folder, book):
            books = LedgerDecisionInputs(
                entries=book.entries,
                ahead=book.awake(self.living),
                free_bytes={
                    uuid: reading.free_bytes for uuid, reading in readings.items() if reading.free_bytes is not None
                },
                taken_bytes=self._taken(ask.devices, book.entries, readings),
                unreadable=book.unreadable,
            )
            decided = decide(ask, books)
            rings = set(book.freed)
            if isinstance(decided, DeviceAssignment):
                looked = QueuePoll(answer=self._grant(folder, ask, decided, granted))
            elif isinstance(decided, NeverFits) or not place:
                looked = QueuePoll(answer=decided)
            else:
                looked = self._wait(folder, ask, decided, book, ticket or self._draw(ask, book, place))
            if ticket is not None and looked.ticket is None:
                folder.remove(LINE, name_of(ticket))
                rings |= set(ticket.uuids)
            woken = self._first(folder, rings, besides=ticket)
        self._wake(woken)
        if looked.ticket is None:
            return looked
        entries, tickets = in_the_way(looked.ticket, books)
        owners = dict.fromkeys([*(one.owner for one in entries), *(one.owner for one in tickets)])
        users = {pid for uuid in unclaimed(looked.ticket, books) for pid in readings[uuid].used_by or ()}
        watched = (self._to_watch(owner) for owner in owners)
        return changed(looked, in_the_way=tuple(one for one in watched if one), users=tuple(sorted(users)))

    def write(self, entry: Reservation, before: Reservation) -> bool:
        """Rewrite a reservation of ours: renewed, measured, or with another owner than before.

        False: it no longer counted for others, its lease being expired or its record gone, and its memory was promised.
        """
        with self._locked("renew a reservation of device memory") as folder:
            was_sure = self.living.since_boot_s() < before.lease_until_s and name_of(before) in folder.names(LEASES)
            if not was_sure:
                book = self._reader.read(folder)
                if not still_fits(entry, book.entries):
                    folder.remove(LEASES, name_of(before))
                    return False
            with self.phases.during(LedgerPhase.WRITE):
                folder.publish(LEASES, name_of(entry), pack(entry.to_dict()))
                if before.owner != entry.owner:
                    folder.remove(LEASES, name_of(before))
        return True

    def release(self, entry: Reservation) -> None:
        """Remove a reservation, whatever process owns it by now, and wake the requests that wait for it."""
        try:
            with self._locked("release device memory") as folder:
                self._remove(folder, entry)
                woken = self._first(folder, entry.uuids)
        except LockHeld:
            # A stopped process has the lock. What is ours we can release without it: a reader meanwhile sees too little
            # room and not too much.
            with self._folder.opened() as folder:
                self._remove(folder, entry)
                woken = self._first(folder, entry.uuids)
        self._wake(woken)

    def leave(self, ticket: QueueTicket) -> None:
        """Leave the queue."""
        with self._locked("leave the line for device memory") as folder:
            folder.remove(LINE, name_of(ticket))
            woken = self._first(folder, ticket.uuids)
        self._wake(woken)

    def book(self) -> LedgerSnapshot:
        """Read everything."""
        with self._open("read who holds device memory") as (_, book):
            pass
        self._wake(first_for(book.freed, book.awake(self.living)))
        return book

    @contextmanager
    def _open(self, purpose: str, *, before: int | None = None) -> Iterator[tuple[OpenFolder, LedgerSnapshot]]:
        with self._locked(purpose) as folder:
            self._on_step("read")
            with self.phases.during(LedgerPhase.READ):
                book = self._reader.read(folder, before=before)
            for warning in book.warnings:
                self._warn_once(warning)
            yield folder, book

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[OpenFolder]:
        with self._folder.opened() as folder:
            self._on_step("lock")
            lock = self._folder.lock(folder, purpose)
            with self.phases.during(LedgerPhase.LOCK):
                try:
                    lock.acquire()
                except NoPermission as error:
                    raise unusable(error) from error
            try:
                yield folder
                self._on_step("unlock")
            finally:
                with self.phases.during(LedgerPhase.UNLOCK):
                    lock.release()

    def _grant(
        self, folder: OpenFolder, ask: DeviceRequest, grant: DeviceAssignment, granted: list[Reservation]
    ) -> Reservation:
        now_s = self.living.since_boot_s()
        entry = Reservation(
            id=os.urandom(8).hex(),
            job=ask.job[:LONGEST_TEXT],
            owner=ask.owner or mine(),
            shares=tuple(_share(ask, device) for device in grant.devices),
            base=ask.base,
            base_bytes=ask.base_bytes,
            since_s=now_s,
            since_wall_s=self.clock.wall_s(),
            lease_s=ask.lease_s,
            lease_until_s=now_s + ask.lease_s,
            user=os.geteuid(),
        )
        granted.append(entry)
        with self.phases.during(LedgerPhase.WRITE):
            folder.publish(LEASES, name_of(entry), pack(entry.to_dict()))
        return granted[0]

    def _draw(self, ask: DeviceRequest, book: LedgerSnapshot, place: str) -> QueueTicket:
        return QueueTicket(
            id=place,
            number=book.next_number(),
            job=ask.job[:LONGEST_TEXT],
            owner=mine(),
            uuids=could_hold(ask),
            count=ask.count,
            vram_bytes=ask.vram_bytes,
            may_share=ask.may_share,
            since_s=self.living.since_boot_s(),
            seen_until_s=0.0,
            user=os.geteuid(),
        )

    def _wait(
        self, folder: OpenFolder, ask: DeviceRequest, answer: DevicesBusy, book: LedgerSnapshot, ticket: QueueTicket
    ) -> QueuePoll:
        now_s = self.living.since_boot_s()
        is_written = any(name.id == ticket.id for name in book.line)
        if not is_written or ticket.seen_until_s - now_s < SEEN_S / 2:
            ticket = changed(ticket, seen_until_s=now_s + SEEN_S)
            with self.phases.during(LedgerPhase.WRITE):
                folder.publish(LINE, name_of(ticket), pack(ticket.to_dict()))
        return QueuePoll(answer=changed(answer, number=ticket.number), ticket=ticket)

    def _taken(
        self,
        devices: tuple[CandidateDevice, ...],
        entries: tuple[Reservation, ...],
        readings: Mapping[str, DeviceReading],
    ) -> dict[str, int]:
        pids = {pid for reading in readings.values() for pid in reading.used_by or ()}
        chains = {pid: chain_of(pid) for pid in pids}
        return {
            device.uuid: taken_of_promised(device, on_device(device.uuid, entries), readings[device.uuid], chains)
            for device in devices
        }

    def _to_watch(self, owner: ProcessIdentity) -> ProcessIdentity | None:
        """Return the process to watch for an owner: itself, or one it left behind; none that is not visible."""
        alive = self.living.liveness(owner)
        return owner if alive is Liveness.ALIVE else self.living.left_behind(owner) if alive is Liveness.GONE else None

    def _first(self, folder: OpenFolder, uuids: Iterable[str], besides: QueueTicket | None = None) -> list[QueueTicket]:
        return first_for(uuids, self._reader.awake(folder, besides="" if besides is None else besides.id))

    def _remove(self, folder: OpenFolder, entry: Reservation) -> None:
        for name in folder.names(LEASES):
            if name.id == entry.id and not folder.remove(LEASES, name) and name in folder.names(LEASES):
                message = f"this reservation belongs to another user: {name}"
                raise NoPermission(message, hint="its own user, or root, may release it")

    def _wake(self, tickets: list[QueueTicket]) -> None:
        self._on_step("wake")
        ring(ticket.id for ticket in tickets)

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._warn(warning)


def _share(ask: DeviceRequest, device: CandidateDevice) -> ReservationShare:
    return ReservationShare(
        uuid=device.uuid,
        promised_bytes=ask.vram_bytes,
        total_bytes=device.total_bytes,
        memory_type=device.memory_type,
        name=device.name,
        is_exclusive=not ask.shares(device),
        is_fake=device.is_fake,
    )
