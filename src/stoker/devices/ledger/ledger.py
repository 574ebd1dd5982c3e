"""The ledger of device memory: machine-wide, and true whatever is killed when.

    reserve      now or not at all, with the reason
    wait         until there is room, first come first served
    line_up      the same for a caller with a loop of its own
    guard        wait, hold, renew and release, as a block
    hand_over    another process, the one that does the work, is the owner from now on
    release      release it

A reservation lives as long as its owner: the process that requested it, until `hand_over` names another one. From then
on only that one counts; the first may still renew, measure and release it, and its own end changes nothing. An owner
that leads a process group or session counts as living while any process of it lives.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, DeviceWaitTimeout, InsufficientDeviceMemory, StokerError
from stoker.core.frozen import changed
from stoker.core.text import format_duration
from stoker.devices.ledger.ledger_rules import charges_on, total_of
from stoker.devices.ledger.liveness import POLL_S, ReservationLiveness, WakeupSocket, listen
from stoker.devices.ledger.reservations import (
    WAIT_S,
    CandidateDevice,
    DeviceRequest,
    DevicesBusy,
    DeviceWaitProgress,
    MeasuredDeviceUse,
    Meter,
    NeverFits,
    Reservation,
)
from stoker.devices.ledger.snapshot import (
    LedgerState,
    beside_base,
    judge_measured,
    measured_by,
    same_process,
    shared_out,
    state_of,
    with_measured,
)
from stoker.devices.ledger.transactions import LedgerAccess, LedgerPhase, Phases, QueuePoll
from stoker.host.durable import NO_STEP
from stoker.host.identity import ProcessIdentity


class Guard:
    """A block that waits for room, holds it, renews and measures it meanwhile, and releases it.

    `as` gives what is held; the devices are `held.uuids`.
    """

    def __init__(self, ledger: Ledger, ask: DeviceRequest, timeout_s: float) -> None:
        self._ledger = ledger
        self._ask = ask
        self._timeout_s = timeout_s
        self._held: Reservation | None = None
        self._pid = 0
        self._is_over = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Reservation:
        self._held = held = self._ledger.wait(self._ask, self._timeout_s)
        self._pid = os.getpid()
        self._is_over.clear()
        self._beating = threading.Thread(target=self._beat, args=(held,), name="device-lease", daemon=True)
        self._beating.start()
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A forked child that leaves the block must not release what its parent holds.
        if self._held is None or self._pid != os.getpid():
            return
        self._is_over.set()
        if self._beating is not None:
            self._beating.join()
        self._ledger.release(self._held)
        self._held = None

    def _beat(self, held: Reservation) -> None:
        while not self._is_over.wait(self._ask.lease_s / 3):
            # The next beat tries again; while its owner is alive, the reservation counts without it.
            with suppress(StokerError):
                self._ledger.measure(held)
                self._ledger.renew(held)


class QueuedRequest:
    """A queued request, polled with `look` without blocking. Not thread-safe; `leave` it, or use it as a block.

    A caller with a loop of its own polls when the descriptor becomes readable, and every few seconds besides;
    `Ledger.wait` is the loop for all others. The first poll that finds no room draws a number; no later request gets a
    device that this one waits for. A request that is not polled for half a minute blocks no other and keeps its number.
    """

    def __init__(self, clerk: LedgerAccess, ask: DeviceRequest, remember: Callable[[Reservation], None]) -> None:
        self.ask = ask
        self._clerk = clerk
        self._remember = remember
        self._id = os.urandom(8).hex()
        self._pid = os.getpid()
        self._bell = WakeupSocket(self._id)
        self._looked: QueuePoll | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a poll may succeed; -1 if there is none."""
        return self._bell.fileno()

    def look(self) -> Reservation | DevicesBusy | NeverFits:
        """Try once more. What was granted leaves the queue; so does what never fits."""
        # Before the poll, so that nothing that happens after it is missed.
        self._bell.quieten()
        ticket = None if self._looked is None else self._looked.ticket
        self._looked = self._clerk.look(self.ask, ticket, place=self._id)
        answer = self._looked.answer
        if isinstance(answer, Reservation):
            self._remember(answer)
        if not isinstance(answer, DevicesBusy):
            self._bell.close()
        return answer

    def listen(self, wait_s: float) -> bool:
        """Wait until something happened that may change the answer, at most so long; return True if it did."""
        looked = self._looked
        with self._clerk.phases.during(LedgerPhase.WAIT):
            if looked is None:
                return True
            return listen(self._bell, looked.in_the_way, looked.users, wait_s)

    def leave(self) -> None:
        """Leave the queue, if still in it."""
        # A child that was forked meanwhile must not leave its parent's place.
        if self._looked is not None and self._looked.ticket is not None and self._pid == os.getpid():
            self._clerk.leave(self._looked.ticket)
        self._looked = None
        self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


DEFAULT_FOLDER = "/var/tmp/stoker-ledger"  # noqa: S108 - sticky, and nothing in it is trusted
_STOP_LOOK_S = 0.2


class Ledger:
    """Reservations of device memory. Thread-safe."""

    def __init__(
        self,
        folder: str = DEFAULT_FOLDER,
        *,
        clock: Clock,
        meter: Meter,
        living: ReservationLiveness | None = None,
        phases: Phases | None = None,
        on_step: Callable[[str], None] = NO_STEP,
    ) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        """What was damaged and what was done about it, each once; the caller that shows it may clear it."""
        self._living = living or ReservationLiveness()
        self._clerk = LedgerAccess(
            folder,
            clock=clock,
            meter=meter,
            living=self._living,
            phases=phases or Phases(),
            warn=self.warnings.append,
            on_step=on_step,
        )
        self._lock = threading.Lock()
        self._ours: dict[str, Reservation] = {}

    def reserve(self, ask: DeviceRequest) -> Reservation | DevicesBusy | NeverFits:
        """Reserve now, or return why not. Queued requests are not overtaken."""
        answer = self._clerk.look(ask).answer
        if isinstance(answer, Reservation):
            self._remember(answer)
        return answer

    def line_up(self, ask: DeviceRequest) -> QueuedRequest:
        """Return a queued request that is polled without blocking."""
        return QueuedRequest(self._clerk, ask, self._remember)

    def wait(
        self,
        ask: DeviceRequest,
        timeout_s: float = WAIT_S,
        on_progress: Callable[[DeviceWaitProgress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Reservation:
        """Wait for room, first come first served. `stop` is called five times a second; True cancels the wait.

        Raises `InsufficientDeviceMemory` if it can never fit, `DeviceWaitTimeout`, and `Cancelled` when stopped.
        In every case the request leaves the queue.
        """
        begun_s = self._living.since_boot_s()
        attempt = 0
        with self.line_up(ask) as place:
            while not isinstance(answer := place.look(), Reservation):
                attempt += 1
                if isinstance(answer, NeverFits):
                    raise never_fits(ask, answer)
                elapsed_s = self._living.since_boot_s() - begun_s
                if elapsed_s >= timeout_s:
                    raise _too_late(ask, answer, timeout_s)
                if on_progress is not None:
                    remaining_s = timeout_s - elapsed_s
                    on_progress(
                        DeviceWaitProgress(attempt=attempt, elapsed_s=elapsed_s, remaining_s=remaining_s, answer=answer)
                    )
                self._listen(place, begun_s + timeout_s, stop)
            return answer

    def guard(self, ask: DeviceRequest, timeout_s: float = WAIT_S) -> Guard:
        """Return a block that waits for room, holds it, renews and measures it meanwhile, and releases it."""
        return Guard(self, ask, timeout_s)

    def renew(self, *held: Reservation) -> tuple[Reservation, ...]:
        """Renew leases, and rewrite damaged records; return those that are no longer ours.

        Those were released, or renewed so late that others, which could not see their owner, were promised the memory.
        """
        return tuple(one for one in held if self._rewrite(one, lambda entry: entry) is None)

    def hand_over(self, held: Reservation, identity: ProcessIdentity) -> Reservation:
        """Make another process the owner: its end releases the memory, and ours no longer does.

        Raises `InsufficientDeviceMemory` if it is no longer ours to hand over.
        """
        entry = self._rewrite(held, lambda entry: changed(entry, owner=identity))
        if entry is None:
            raise InsufficientDeviceMemory(
                f"{held.job} no longer has its room on {', '.join(held.uuids)}",
                hint="request it again",
                id=held.id,
            )
        return entry

    def note_measured(
        self, held: Reservation, measured_bytes: Mapping[str, int], *, limit_percent: int | None = None
    ) -> MeasuredDeviceUse:
        """Record what the owner takes on each device; the most that was seen counts, if it is above the promise.

        Where its process works for several that have a base in common, each is charged with its part.
        """
        entry = self._current(held)
        members = same_process(entry, self._clerk.book().entries if entry.base else ())
        process_bytes, measured_bytes = measured_bytes, shared_out(entry, members, measured_bytes)
        noted = with_measured(entry, measured_bytes)
        if noted != entry:
            entry = self._rewrite(held, lambda current: with_measured(current, measured_bytes)) or noted
        judged = judge_measured(entry, limit_percent)
        if not entry.base or judged.uuid not in process_bytes:
            return judged
        beside, promised = beside_base(members, judged.uuid, process_bytes[judged.uuid])
        return changed(judged, beside_bytes=beside, beside_promised_bytes=promised)

    def measure(self, held: Reservation, *, limit_percent: int | None = None) -> MeasuredDeviceUse | None:
        """Measure with the driver what the owner and its children use, and record it; `None` if it can't tell."""
        entry = self._current(held)
        readings = self._clerk.measure(tuple(share.device for share in entry.shares))
        used = measured_by(entry, readings)
        return None if not used else self.note_measured(held, used, limit_percent=limit_percent)

    def release(self, held: Reservation) -> None:
        """Release it and wake the next in the queue. Idempotent, also after its owner has ended."""
        with self._lock:
            entry = self._ours.pop(held.id, held)
            self._clerk.release(entry)

    def state(self, devices: Iterable[CandidateDevice] = ()) -> LedgerState:
        """Return holders and queued requests, on these devices and on all with a reservation."""
        book = self._clerk.book()
        known = {device.uuid: device for device in devices}
        for entry in book.entries:
            known |= {share.uuid: share.device for share in entry.shares if share.uuid not in known}
        return state_of(book, tuple(known.values()), self._clerk.measure(tuple(known.values())), self._living)

    def reserved(self) -> dict[str, int]:
        """Return the reserved bytes of each device that is held, by UUID, without measuring anything."""
        entries = self._clerk.book().entries
        found: dict[str, int] = {}
        for uuid, share in {share.uuid: share for entry in entries for share in entry.shares}.items():
            is_taken = any(one.is_exclusive for entry in entries for one in entry.shares if one.uuid == uuid)
            found[uuid] = share.total_bytes if is_taken else total_of(charges_on(uuid, entries))
        return found

    def _listen(self, place: QueuedRequest, deadline_s: float, stop: Callable[[], bool] | None) -> None:
        until_s = min(deadline_s, self._living.since_boot_s() + POLL_S)
        while (left_s := until_s - self._living.since_boot_s()) > 0:
            if stop is not None and stop():
                raise Cancelled("stopped while waiting for device memory")
            if place.listen(left_s if stop is None else min(left_s, _STOP_LOOK_S)):
                return

    def _remember(self, held: Reservation) -> None:
        with self._lock:
            self._ours[held.id] = held

    def _current(self, held: Reservation) -> Reservation:
        with self._lock:
            return self._ours.get(held.id, held)

    def _rewrite(self, held: Reservation, change: Callable[[Reservation], Reservation]) -> Reservation | None:
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


def never_fits(ask: DeviceRequest, answer: NeverFits) -> InsufficientDeviceMemory:
    """Return the error for a request that no device can ever hold."""
    return InsufficientDeviceMemory(
        f"{ask.job} never fits: {answer.why}",
        hint=answer.hint or "request less, or name another device",
        needed_bytes=ask.vram_bytes,
        devices=[device.uuid for device in ask.devices],
    )


def _too_late(ask: DeviceRequest, answer: DevicesBusy, timeout_s: float) -> DeviceWaitTimeout:
    return DeviceWaitTimeout(
        f"timed out after {format_duration(timeout_s)} waiting for device memory for {ask.job}: {answer.why}",
        hint="stoker machines memory shows the holders; --timeout waits longer",
        needed_bytes=answer.nearest.needed_bytes,
        room_bytes=answer.nearest.room_bytes,
        bound=str(answer.bound),
        ahead=answer.ahead,
    )
