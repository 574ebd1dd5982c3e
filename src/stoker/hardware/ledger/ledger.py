"""The ledger of device memory: machine-wide, and true whatever is killed when.

    reserve      now or not at all, with the reason
    wait         until there is room, first come first served
    line_up      the same for who has a loop of its own
    guard        wait, hold, renew and give back, as a block
    hand_over    another process, the one that does the work, is the owner from now on
    release      give it back

A reservation lives as long as its owner: the process that asked, until `hand_over` names another one. From then on only
that one counts; whoever handed it over may go on renewing, measuring and releasing it, and its own end changes nothing.
An owner that leads a process group or session counts as living while anybody of it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from stoker.hardware.ledger.answers import Held, Measured, NeverFits, NoRoomNow, Progress
from stoker.hardware.ledger.asking import WAIT_S, Ask, Candidate
from stoker.hardware.ledger.bell import POLL_S
from stoker.hardware.ledger.clerk import Clerk
from stoker.hardware.ledger.entries import Entry
from stoker.hardware.ledger.guarding import Guard
from stoker.hardware.ledger.line import Place
from stoker.hardware.ledger.living import Living
from stoker.hardware.ledger.overshoot import (
    beside_base,
    company_of,
    judge_measured,
    measured_by,
    shared_out,
    with_measured,
)
from stoker.hardware.ledger.phases import Phases
from stoker.hardware.ledger.state import State, state_of
from stoker.hardware.probes.meters.meter import Meter
from stoker.host.durable import NO_STEP
from stoker.host.identity import ProcessIdentity
from stoker.model.clock import Clock
from stoker.model.errors import Cancelled, NoRoom, RoomTimeout
from stoker.model.frozen import changed
from stoker.model.units import format_duration

DEFAULT_FOLDER = "/var/tmp/stoker-ledger"  # noqa: S108 - sticky, and nothing in it is trusted
_STOP_LOOK_S = 0.2


class Ledger:
    """Who holds how much of which device. Safe from several threads."""

    def __init__(
        self,
        folder: str = DEFAULT_FOLDER,
        *,
        clock: Clock,
        meter: Meter,
        living: Living | None = None,
        phases: Phases | None = None,
        on_step: Callable[[str], None] = NO_STEP,
    ) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        """What was damaged and what was done about it, each once; whoever shows it may clear it."""
        self._living = living or Living()
        self._clerk = Clerk(
            folder,
            clock=clock,
            meter=meter,
            living=self._living,
            phases=phases or Phases(),
            warn=self.warnings.append,
            on_step=on_step,
        )
        self._lock = threading.Lock()
        self._ours: dict[str, Entry] = {}

    def reserve(self, ask: Ask) -> Held | NoRoomNow | NeverFits:
        """Take room now, or say why not. Who waits in line is not overtaken."""
        answer = self._clerk.look(ask).answer
        if isinstance(answer, Held):
            self._remember(answer)
        return answer

    def line_up(self, ask: Ask) -> Place:
        """Give a place in line that is looked from without waiting."""
        return Place(self._clerk, ask, self._remember)

    def wait(
        self,
        ask: Ask,
        timeout_s: float = WAIT_S,
        on_progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Held:
        """Wait for room, first come first served. `stop` is asked five times a second whether to go on.

        Raises `NoRoom` if it can never fit, `RoomTimeout`, and `Cancelled` when stopped. Whatever ends it, the place in
        line is given back.
        """
        begun_s = self._living.since_boot_s()
        attempt = 0
        with self.line_up(ask) as place:
            while not isinstance(answer := place.look(), Held):
                attempt += 1
                if isinstance(answer, NeverFits):
                    raise never_fits(ask, answer)
                elapsed_s = self._living.since_boot_s() - begun_s
                if elapsed_s >= timeout_s:
                    raise _too_late(ask, answer, timeout_s)
                if on_progress is not None:
                    remaining_s = timeout_s - elapsed_s
                    on_progress(Progress(attempt=attempt, elapsed_s=elapsed_s, remaining_s=remaining_s, answer=answer))
                self._listen(place, begun_s + timeout_s, stop)
            return answer

    def guard(
        self,
        ask: Ask,
        timeout_s: float = WAIT_S,
        on_progress: Callable[[Progress], None] | None = None,
        on_measured: Callable[[Measured], None] | None = None,
    ) -> Guard:
        """Give a block that waits for room, holds it, renews and measures it meanwhile, and gives it back."""
        return Guard(
            lambda: self.wait(ask, timeout_s, on_progress),
            renew=lambda held: self._beat(held, on_measured),
            release=self.release,
            every_s=ask.lease_s / 3,
        )

    def renew(self, *held: Held) -> tuple[Held, ...]:
        """Renew leases, and write anew what was damaged; give those that are no longer ours.

        Those were released, or renewed so late that others, who could not see their owner, were promised the room.
        """
        return tuple(one for one in held if self._rewrite(one, lambda entry: entry) is None)

    def hand_over(self, held: Held, identity: ProcessIdentity) -> Held:
        """Make another process the owner: its end gives the room back, and ours no longer does.

        Raises `NoRoom` if it is no longer ours to hand over.
        """
        entry = self._rewrite(held, lambda entry: changed(entry, owner=identity))
        if entry is None:
            raise NoRoom(
                f"{held.entry.job} no longer has its room on {', '.join(held.uuids)}",
                hint="ask for it again",
                id=held.id,
            )
        return Held(entry=entry)

    def note_measured(
        self, held: Held, measured_bytes: Mapping[str, int], *, limit_percent: int | None = None
    ) -> Measured:
        """Record what the owner takes on each device; the most that was seen counts, if it is above the promise.

        Where its process works for several that have a base in common, each is charged with its part.
        """
        entry = self._current(held)
        company = company_of(entry, self._clerk.book().entries if entry.base else ())
        process_bytes, measured_bytes = measured_bytes, shared_out(entry, company, measured_bytes)
        noted = with_measured(entry, measured_bytes)
        if noted != entry:
            entry = self._rewrite(held, lambda current: with_measured(current, measured_bytes)) or noted
        judged = judge_measured(entry, limit_percent)
        if not entry.base or judged.uuid not in process_bytes:
            return judged
        beside, promised = beside_base(company, judged.uuid, process_bytes[judged.uuid])
        return changed(judged, beside_bytes=beside, beside_promised_bytes=promised)

    def measure(self, held: Held, *, limit_percent: int | None = None) -> Measured | None:
        """Ask the driver what the owner and its children take, and record it; `None` if it can't tell."""
        entry = self._current(held)
        readings = self._clerk.measure(_candidates_of(entry))
        used = measured_by(entry, readings)
        return None if not used else self.note_measured(held, used, limit_percent=limit_percent)

    def release(self, held: Held) -> None:
        """Give room back and wake who is next. Again, or after its owner has ended, it does nothing."""
        with self._lock:
            entry = self._ours.pop(held.id, held.entry)
            self._clerk.release(entry)

    def state(self, devices: Iterable[Candidate] = ()) -> State:
        """Say who holds and who waits, on these devices and on all that anybody holds something of."""
        book = self._clerk.book()
        known = {device.uuid: device for device in devices}
        for entry in book.entries:
            known |= {one.uuid: one for one in _candidates_of(entry) if one.uuid not in known}
        return state_of(book, tuple(known.values()), self._clerk.measure(tuple(known.values())), self._living)

    def _listen(self, place: Place, deadline_s: float, stop: Callable[[], bool] | None) -> None:
        until_s = min(deadline_s, self._living.since_boot_s() + POLL_S)
        while (left_s := until_s - self._living.since_boot_s()) > 0:
            if stop is not None and stop():
                raise Cancelled("stopped while waiting for room on a device")
            if place.listen(left_s if stop is None else min(left_s, _STOP_LOOK_S)):
                return

    def _beat(self, held: Held, on_measured: Callable[[Measured], None] | None) -> None:
        measured = self.measure(held)
        if measured is not None and on_measured is not None:
            on_measured(measured)
        self.renew(held)

    def _remember(self, held: Held) -> None:
        with self._lock:
            self._ours[held.id] = held.entry

    def _current(self, held: Held) -> Entry:
        with self._lock:
            return self._ours.get(held.id, held.entry)

    def _rewrite(self, held: Held, change: Callable[[Entry], Entry]) -> Entry | None:
        """Change a reservation of ours and renew it; nothing if it was released or lost."""
        with self._lock:
            before = self._ours.get(held.id)
            if before is None:
                return None
            until_s = self._living.since_boot_s() + before.lease_s
            after = changed(change(before), lease_until_s=until_s)
            if not self._clerk.write(after, before):
                del self._ours[held.id]
                return None
            self._ours[held.id] = after
            return after


def never_fits(ask: Ask, answer: NeverFits) -> NoRoom:
    """Give the error for a wish that no device can ever hold."""
    return NoRoom(
        f"{ask.job} never fits: {answer.why}",
        hint=answer.hint or "ask for less, or name another device",
        needed_bytes=ask.vram_bytes,
        devices=[device.uuid for device in ask.devices],
    )


def _too_late(ask: Ask, answer: NoRoomNow, timeout_s: float) -> RoomTimeout:
    return RoomTimeout(
        f"no room for {ask.job} within {format_duration(timeout_s)}: {answer.why}",
        hint="stoker machines memory shows who holds it; --timeout waits longer",
        needed_bytes=answer.nearest.needed_bytes,
        room_bytes=answer.nearest.room_bytes,
        bound=str(answer.bound),
        ahead=answer.ahead,
    )


def _candidates_of(entry: Entry) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            uuid=share.uuid,
            total_bytes=share.total_bytes,
            memory_type=share.memory_type,
            name=share.name,
            is_fake=share.is_fake,
        )
        for share in entry.shares
    )
