"""What stands in the folder now: read, judged and tidied up under the lock.

Whoever is gone is left out, and removed where that is ours to do. What can't be read is set aside with a warning,
unless a living process wrote it: then it may hold anything, and nothing is given away until that process renews its
lease, which writes it anew, or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from stoker.hardware.ledger.asking import LEASE_S
from stoker.hardware.ledger.entries import Entry, Ticket
from stoker.hardware.ledger.folder import LEASES, LINE, Found, OpenFolder
from stoker.hardware.ledger.living import Living
from stoker.hardware.ledger.records import LAST_NUMBER, Name, name_of, unpack
from stoker.host.identity import identity_from
from stoker.model.clock import Clock
from stoker.model.frozen import frozen

_MOST_KNOWN = 1024


@frozen
class Book:
    """The ledger at one moment."""

    entries: tuple[Entry, ...]
    """Reservations that count, oldest first."""
    tickets: tuple[Ticket, ...]
    """Who waits, in order, as far as it was asked for."""
    line: tuple[Name, ...] = ()
    """The names of all that were found in line."""
    unreadable: tuple[str, ...] = ()
    """Whose reservations can't be read, although they may count."""
    warnings: tuple[str, ...] = ()
    freed: tuple[str, ...] = ()
    """Devices of which something was just found to be free, because its holder is gone."""

    def awake(self, living: Living) -> tuple[Ticket, ...]:
        """Give who is in line and looks, in order."""
        return tuple(ticket for ticket in self.tickets if not living.is_asleep(ticket))

    def next_number(self) -> int:
        """Give the number for who comes now: behind all who wait. What nobody waits at has no say."""
        return min(max((ticket.number for ticket in self.tickets), default=0) + 1, LAST_NUMBER)


class Parsed:
    """Records that were read before, by their bytes: most stay the same from one look to the next."""

    def __init__(self) -> None:
        self._known: dict[Found, Entry | Ticket] = {}

    def entry(self, found: Found) -> Entry | None:
        """Read a reservation; `None` if it is damaged, or not what its name says."""
        record = self._read(found, Entry.from_dict)
        return record if isinstance(record, Entry) else None

    def ticket(self, found: Found) -> Ticket | None:
        """Read a place in line; `None` if it is damaged, or not what its name says."""
        record = self._read(found, Ticket.from_dict)
        return record if isinstance(record, Ticket) else None

    def _read(self, found: Found, parse: Callable[..., Entry | Ticket]) -> Entry | Ticket | None:
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


def read_book(folder: OpenFolder, living: Living, clock: Clock, parsed: Parsed, *, before: int | None = None) -> Book:
    """Read and tidy up; the caller holds the lock. With `before`, of the line only who has a lower number."""
    reading = _Reading(folder, living, clock, parsed)
    entries, gone = reading.entries()
    line = folder.names(LINE)
    tickets = reading.tickets(name for name in line if before is None or (name.number or 0) < before)
    folder.sweep()
    held = {share.uuid for entry in gone for share in entry.shares}
    return Book(
        entries=tuple(sorted(entries, key=lambda entry: (entry.since_s, entry.id))),
        tickets=tuple(tickets),
        line=tuple(line),
        unreadable=tuple(reading.unreadable),
        warnings=tuple(reading.warnings),
        freed=tuple(sorted(held)),
    )


def awake_in_line(folder: OpenFolder, living: Living, parsed: Parsed, *, besides: str = "") -> Iterator[Ticket]:
    """Read who waits and looks, in order and one after the other, changing nothing; also without the lock."""
    names = (name for name in folder.names(LINE) if name.id != besides)
    for found in folder.read(LINE, names):
        ticket = parsed.ticket(found)
        if ticket is not None and living.waits(ticket) and not living.is_asleep(ticket):
            yield ticket


class _Reading:
    def __init__(self, folder: OpenFolder, living: Living, clock: Clock, parsed: Parsed) -> None:
        self._folder = folder
        self._parsed = parsed
        self._living = living
        self._clock = clock
        self.unreadable: list[str] = []
        self.warnings: list[str] = []

    def entries(self) -> tuple[Iterable[Entry], list[Entry]]:
        """Give reservations that count, and those that no longer do."""
        counting: dict[str, Entry] = {}
        gone = []
        for found in self._folder.read(LEASES, self._folder.names(LEASES)):
            entry = self._parsed.entry(found)
            if entry is None:
                self._judge_damaged(found)
            elif self._living.holds(entry):
                # Killed between writing it for its new owner and removing the old one's, it is there twice.
                twin = counting.get(entry.id)
                if twin is None or twin.lease_until_s <= entry.lease_until_s:
                    counting[entry.id] = entry
            else:
                gone.append(entry)
                self._folder.remove(LEASES, found.name)
        return counting.values(), [entry for entry in gone if entry.id not in counting]

    def tickets(self, names: Iterable[Name]) -> list[Ticket]:
        waiting = []
        for found in self._folder.read(LINE, names):
            ticket = self._parsed.ticket(found)
            if ticket is not None and self._living.waits(ticket):
                waiting.append(ticket)
            else:
                # Who still waits takes its place again.
                self._folder.remove(LINE, found.name)
        return waiting

    def _judge_damaged(self, found: Found) -> None:
        name = found.name
        is_here = self._living.is_here(identity_from(name.pid, name.start_ticks)) and self._living.speaks_for(
            found.user, name.pid
        )
        # Its owner may be in another container: then it would have been renewed lately.
        is_fresh = found.modified_s and 0 <= self._clock.wall_s() - found.modified_s < LEASE_S
        if is_here or is_fresh:
            self.unreadable.append(f"process {name.pid}")
            self.warnings.append(
                f"the ledger's record of process {name.pid} can't be read; no device is given away until that process "
                "renews it or ends"
            )
            return
        was_moved = self._folder.set_aside(LEASES, name)
        done = "set aside" if was_moved else "left alone"
        self.warnings.append(f"a damaged record of the ledger was {done}: {name}; no process of its user's holds it")
