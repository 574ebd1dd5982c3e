"""The clerk: every step that reads or writes the ledger, one at a time under its lock.

Who asks is answered by `deciding`; here the answer is acted on. A reservation counts from the moment that its record
has its name, and is told to nobody before. Devices are measured before the lock is taken, because a driver may be slow:
what others take meanwhile they were promised, and what was promised and not yet taken is never handed out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from stoker.hardware.ledger.answers import Held, NeverFits, NoRoomNow
from stoker.hardware.ledger.asking import Ask, Candidate
from stoker.hardware.ledger.bell import ring
from stoker.hardware.ledger.book import Book, Parsed, awake_in_line, read_book
from stoker.hardware.ledger.deciding import (
    Books,
    Grant,
    could_hold,
    decide,
    first_for,
    in_the_way,
    still_fits,
    unclaimed,
)
from stoker.hardware.ledger.entries import LONGEST_TEXT, Entry, Share, Ticket
from stoker.hardware.ledger.folder import LEASES, LINE, LedgerFolder, OpenFolder, unusable
from stoker.hardware.ledger.living import SEEN_S, Living, chain_of
from stoker.hardware.ledger.phases import Phase, Phases
from stoker.hardware.ledger.records import name_of, pack
from stoker.hardware.ledger.room import Reading, taken_of_promised
from stoker.hardware.probes.meters.meter import Meter
from stoker.host.durable import NO_STEP
from stoker.host.identity import Liveness, ProcessIdentity, mine
from stoker.host.lockfile import Lock
from stoker.model.clock import Clock
from stoker.model.errors import LockHeld, NoPermission
from stoker.model.frozen import changed, frozen

STEPS = (
    "lock", "read", "leases:write", "leases:name", "leases:named", "leases:remove",
    "line:write", "line:name", "line:named", "line:remove", "unlock", "wake",
)  # fmt: skip
"""What `on_step` is called with, just before each step (`named`: just after), so that tests can crash at each."""


@frozen
class Look:
    """What one look at the ledger gave to who waits."""

    answer: Held | NoRoomNow | NeverFits
    ticket: Ticket | None = None
    """Its place in line from now on."""
    in_the_way: tuple[ProcessIdentity, ...] = ()
    """Whose end may change the answer."""
    users: tuple[int, ...] = ()
    """Numbers of all processes that use a device that is waited for."""


class Clerk:
    """Reads and writes the ledger. Safe from several threads and processes; keeps nothing open."""

    def __init__(  # noqa: PLR0913 - the seams of everything outside
        self,
        folder: str,
        *,
        clock: Clock,
        meter: Meter,
        living: Living,
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
        self._parsed = Parsed()
        self._on_step = on_step

    def measure(self, devices: tuple[Candidate, ...]) -> dict[str, Reading]:
        """Ask the driver about devices."""
        with self.phases.during(Phase.MEASURE):
            return {
                device.uuid: Reading(
                    free_bytes=self._meter.free_bytes(device.uuid), used_by=self._meter.used_by(device.uuid)
                )
                for device in devices
            }

    def look(self, ask: Ask, ticket: Ticket | None = None, *, place: str = "") -> Look:
        """Grant a wish if that is possible now; if not, keep the place in line of that id for it."""
        readings = self.measure(ask.devices)
        granted: list[Held] = []
        try:
            return self._look(ask, ticket, place, readings, granted)
        except BaseException:
            # Interrupted when it was written down already: nobody will learn of it.
            for held in granted:
                self.release(held.entry)
            raise

    def _look(
        self, ask: Ask, ticket: Ticket | None, place: str, readings: Mapping[str, Reading], granted: list[Held]
    ) -> Look:
        before = None if ticket is None else ticket.number
        with self._open("decide about device memory", before=before) as (folder, book):
            books = Books(
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
            if isinstance(decided, Grant):
                looked = Look(answer=self._grant(folder, ask, decided, granted))
            elif isinstance(decided, NeverFits) or not place:
                looked = Look(answer=decided)
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

    def write(self, entry: Entry, before: Entry) -> bool:
        """Write a reservation of ours anew: renewed, measured, or with another owner than before.

        False: others could no longer count on it, its lease being past or its record gone, and were promised its room.
        """
        with self._locked("renew a reservation of device memory") as folder:
            was_sure = self.living.since_boot_s() < before.lease_until_s and name_of(before) in folder.names(LEASES)
            if not was_sure:
                book = read_book(folder, self.living, self.clock, self._parsed)
                if not still_fits(entry, book.entries):
                    folder.remove(LEASES, name_of(before))
                    return False
            with self.phases.during(Phase.WRITE):
                folder.publish(LEASES, name_of(entry), pack(entry.to_dict()))
                if before.owner != entry.owner:
                    folder.remove(LEASES, name_of(before))
        return True

    def release(self, entry: Entry) -> None:
        """Remove a reservation, whoever owns it by now, and wake who waits for it."""
        try:
            with self._locked("release device memory") as folder:
                self._remove(folder, entry)
                woken = self._first(folder, entry.uuids)
        except LockHeld:
            # Somebody is stopped while he has the lock. What is ours we can give back without it: who reads meanwhile
            # sees too little room and not too much.
            with self._folder.opened() as folder:
                self._remove(folder, entry)
                woken = self._first(folder, entry.uuids)
        self._wake(woken)

    def leave(self, ticket: Ticket) -> None:
        """Give a place in line up."""
        with self._locked("leave the line for device memory") as folder:
            folder.remove(LINE, name_of(ticket))
            woken = self._first(folder, ticket.uuids)
        self._wake(woken)

    def book(self) -> Book:
        """Read everything."""
        with self._open("read who holds device memory") as (_, book):
            pass
        self._wake(first_for(book.freed, book.awake(self.living)))
        return book

    @contextmanager
    def _open(self, purpose: str, *, before: int | None = None) -> Iterator[tuple[OpenFolder, Book]]:
        with self._locked(purpose) as folder:
            self._on_step("read")
            with self.phases.during(Phase.READ):
                book = read_book(folder, self.living, self.clock, self._parsed, before=before)
            for warning in book.warnings:
                self._warn_once(warning)
            yield folder, book

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[OpenFolder]:
        with self._folder.opened() as folder:
            self._on_step("lock")
            lock = self._folder.lock(folder, purpose)
            with self.phases.during(Phase.LOCK):
                try:
                    lock.acquire()
                except NoPermission as error:
                    raise unusable(error) from error
            try:
                yield folder
                self._on_step("unlock")
            finally:
                self._unlock(lock)

    def _unlock(self, lock: Lock) -> None:
        with self.phases.during(Phase.UNLOCK):
            lock.release()

    def _grant(self, folder: OpenFolder, ask: Ask, grant: Grant, granted: list[Held]) -> Held:
        now_s = self.living.since_boot_s()
        entry = Entry(
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
        granted.append(Held(entry=entry))
        with self.phases.during(Phase.WRITE):
            folder.publish(LEASES, name_of(entry), pack(entry.to_dict()))
        return granted[0]

    def _draw(self, ask: Ask, book: Book, place: str) -> Ticket:
        return Ticket(
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

    def _wait(self, folder: OpenFolder, ask: Ask, answer: NoRoomNow, book: Book, ticket: Ticket) -> Look:
        now_s = self.living.since_boot_s()
        is_written = any(name.id == ticket.id for name in book.line)
        if not is_written or ticket.seen_until_s - now_s < SEEN_S / 2:
            ticket = changed(ticket, seen_until_s=now_s + SEEN_S)
            with self.phases.during(Phase.WRITE):
                folder.publish(LINE, name_of(ticket), pack(ticket.to_dict()))
        return Look(answer=changed(answer, number=ticket.number), ticket=ticket)

    def _taken(
        self, devices: tuple[Candidate, ...], entries: tuple[Entry, ...], readings: Mapping[str, Reading]
    ) -> dict[str, int]:
        pids = {pid for reading in readings.values() for pid in reading.used_by or ()}
        chains = {pid: chain_of(pid) for pid in pids}
        return {
            device.uuid: taken_of_promised(device, _on(device.uuid, entries), readings[device.uuid], chains)
            for device in devices
        }

    def _to_watch(self, owner: ProcessIdentity) -> ProcessIdentity | None:
        """Give the process to watch for an owner: itself, or who it left behind; none that can't be seen."""
        alive = self.living.liveness(owner)
        return owner if alive is Liveness.ALIVE else self.living.left_behind(owner) if alive is Liveness.GONE else None

    def _first(self, folder: OpenFolder, uuids: Iterable[str], besides: Ticket | None = None) -> list[Ticket]:
        line = awake_in_line(folder, self.living, self._parsed, besides="" if besides is None else besides.id)
        return first_for(uuids, line)

    def _remove(self, folder: OpenFolder, entry: Entry) -> None:
        for name in folder.names(LEASES):
            if name.id == entry.id and not folder.remove(LEASES, name) and name in folder.names(LEASES):
                message = f"this reservation is another user's: {name}"
                raise NoPermission(message, hint="its own user, or root, may release it")

    def _wake(self, tickets: list[Ticket]) -> None:
        self._on_step("wake")
        ring(ticket.id for ticket in tickets)

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._warn(warning)


def _share(ask: Ask, device: Candidate) -> Share:
    return Share(
        uuid=device.uuid,
        promised_bytes=ask.vram_bytes,
        total_bytes=device.total_bytes,
        memory_type=device.memory_type,
        name=device.name,
        is_exclusive=not ask.shares(device),
        is_fake=device.is_fake,
    )


def _on(uuid: str, entries: tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in entries if entry.share_of(uuid) is not None]
