"""The gate before devices that asks the machine-wide ledger: no two runs on a machine ever have the same one.

Nothing is opened and no driver asked before something really needs a device. A reservation is ours until the work has a
process of its own, and that one's from then on: it lives exactly as long as the work, also if we are killed.
"""

from __future__ import annotations

import os
import pwd
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cached_property

from stoker.core.clock import Clock
from stoker.core.device import Device, Needs
from stoker.core.errors import BadInput, InternalError, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import format_duration, format_size, one_line
from stoker.devices.ledger.ledger import Ledger, QueuedRequest, never_fits
from stoker.devices.ledger.ledger_rules import LedgerDecisionInputs, decide
from stoker.devices.ledger.liveness import POLL_S, chain_of
from stoker.devices.ledger.reservations import (
    LEASE_S,
    CandidateDevice,
    DeviceLimit,
    DeviceRequest,
    DevicesBusy,
    Meter,
    NeverFits,
    Reservation,
)
from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState
from stoker.engine.device_gate import AttemptDevices, DeviceNotice, DeviceWait, device_variables, few, held_base
from stoker.host.identity import ProcessIdentity

# One wish for devices that waits for its turn, in a thread of its own: nothing here holds the executor's loop up.

# Between looks, who wants to leave the line is heard this soon.
_SLICE_S = 0.1
_LAST_LOOK_S = 2.0
_MOMENT_S = 1.0
_NOT_YET = DeviceWait(waits_for="", why="", is_known=False)
_NO_ANSWER = DeviceWait(waits_for="waits for the driver's answer", why="waits for the driver's answer")
_MOST_LISTED = 3
_LONGEST_NAME = 80
_LONG_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{20,}.*", re.IGNORECASE)


@frozen
class DeviceGrant:
    """It has its devices."""

    held: Reservation
    free_bytes: Mapping[str, int]
    """What was free on each of them just now, as far as it is known."""


class DeviceQueueEntry:
    """A queue entry, from its first poll to a grant or its removal. The loop reads `answer` whenever it is woken."""

    def __init__(  # noqa: PLR0913 - the seams of everything outside
        self,
        ledger: Ledger,
        ask: DeviceRequest,
        *,
        wake: Callable[[], None],
        free_bytes: Callable[[str], int | None],
        ours: Callable[[], Collection[str]],
        warn: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Enter the queue; `ours` are the reservations of this run, `warn` is called with problems of the ledger."""
        self._ledger = ledger
        self._ask = ask
        self._wake = wake
        self._free_bytes = free_bytes
        self._ours = ours
        self._warn = warn
        self._clock = clock
        self._begun_s = clock.monotonic_s()
        self._lock = threading.Lock()
        self._answer: DeviceGrant | DeviceWait | StokerError | None = None
        self._is_left = False
        self._thread = threading.Thread(target=self._run, name="stoker-device-line", daemon=True)
        self._thread.start()

    def answer(self) -> DeviceGrant | DeviceWait:
        """Return how it stands. Raises `StokerError` if it can't be waited for."""
        with self._lock:
            if isinstance(self._answer, StokerError):
                raise self._answer
            is_young = self._clock.monotonic_s() - self._begun_s < _MOMENT_S
            return self._answer or (_NOT_YET if is_young else _NO_ANSWER)

    @property
    def is_standing(self) -> bool:
        """True if others may still see its place in the queue."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Leave the queue soon, and release devices that were granted and not taken."""
        with self._lock:
            self._is_left = True
            granted = self._answer if isinstance(self._answer, DeviceGrant) else None
            self._answer = None
        if granted is not None:
            with suppress(StokerError):
                self._ledger.release(granted.held)

    def join(self) -> None:
        """Wait until a place that was given up is. Should a driver keep it, it goes with this process."""
        self._thread.join(_LAST_LOOK_S)

    def _run(self) -> None:
        try:
            with self._ledger.line_up(self._ask) as place:
                while not self._is_left:
                    answer = place.look()
                    if isinstance(answer, Reservation):
                        self._settle(answer)
                        return
                    if isinstance(answer, NeverFits):
                        raise never_fits(self._ask, answer)
                    state = self._ledger.state(self._ask.devices)
                    for warning in state.warnings:
                        self._warn(warning)
                    self._tell(describe(self._ask, answer, state.devices, self._ours()))
                    self._listen(place)
        except StokerError as error:
            self._tell(error)
        except Exception as error:  # noqa: BLE001 - an error that is not reported would look like waiting
            self._tell(InternalError(f"waiting for devices: {type(error).__name__}: {error}"))

    def _listen(self, place: QueuedRequest) -> None:
        for _ in range(round(POLL_S / _SLICE_S)):
            if self._is_left or place.listen(_SLICE_S):
                return

    def _settle(self, held: Reservation) -> None:
        is_wanted = False
        try:
            free = {uuid: self._free_bytes(uuid) for uuid in held.uuids}
            known = {uuid: size for uuid, size in free.items() if size is not None}
            with self._lock:
                is_wanted = not self._is_left
                if is_wanted:
                    self._answer = DeviceGrant(held=held, free_bytes=known)
        finally:
            # It will not be fetched.
            if not is_wanted:
                self._ledger.release(held)
        self._wake()

    def _tell(self, answer: DeviceWait | StokerError) -> None:
        with self._lock:
            before, self._answer = self._answer, answer
        if (
            not isinstance(before, DeviceWait)
            or not isinstance(answer, DeviceWait)
            or before.waits_for != answer.waits_for
        ):
            self._wake()


def describe(
    ask: DeviceRequest, answer: DevicesBusy, devices: Sequence[DeviceState], ours: Collection[str]
) -> DeviceWait:
    """Return what a request waits for, with and without times, and whether only our own reservations block it."""
    place = answer.ahead + 1
    queue_position = f", queue position {place:,}" if answer.ahead else ""
    holders = [holder for device in devices for holder in device.holders]
    return DeviceWait(
        waits_for=_text(ask, answer, devices, with_times=False) + queue_position,
        why=_text(ask, answer, devices, with_times=True) + queue_position,
        place=place,
        is_ours=bool(holders) and not answer.ahead and all(holder.entry.id in ours for holder in holders),
    )


def short_uuid(uuid: str) -> str:
    """Return as much of a device's UUID as people compare."""
    match = _LONG_UUID.fullmatch(uuid)
    return match[1] if match else uuid


def _text(ask: DeviceRequest, answer: DevicesBusy, devices: Sequence[DeviceState], *, with_times: bool) -> str:
    held = [device for device in devices if device.holders and device.device.uuid in _wanted(ask)]
    if not held or answer.bound is DeviceLimit.MEASURED:
        return f"waits: {answer.nearest.why}" if answer.bound is not DeviceLimit.LINE else f"waits for {_devices(ask)}"
    texts = [f"held by {_holders(device.holders, with_times=with_times)}" for device in held[:_MOST_LISTED]]
    if answer.bound is DeviceLimit.LEDGER and len(held) == 1:
        texts = [f"{format_size(held[0].available_bytes)} left to share, {texts[0]}"]
    if len(held) > 1 or len(ask.devices) > 1:
        pairs = zip(held, texts, strict=False)
        texts = [f"{short_uuid(device.device.uuid)} {text}" for device, text in pairs]
    more = f" and {len(held) - _MOST_LISTED} more" if len(held) > _MOST_LISTED else ""
    return f"waits for {_devices(ask)}: {'; '.join(texts)}{more}"


def _devices(ask: DeviceRequest) -> str:
    what = short_uuid(ask.devices[0].uuid) if len(ask.devices) == 1 else "a GPU" if ask.count == 1 else ""
    part = f"{format_size(ask.vram_bytes)} of " if ask.may_share and ask.vram_bytes else ""
    return part + (what or f"{ask.count} GPUs")


def _wanted(ask: DeviceRequest) -> set[str]:
    return {device.uuid for device in ask.devices}


def _holders(holders: Sequence[DeviceHolder], *, with_times: bool) -> str:
    texts = []
    for holder in holders[:_MOST_LISTED]:
        entry = holder.entry
        whose = "" if entry.user == os.geteuid() else f" of {_user(entry.user)}"
        since = f" for {format_duration(holder.held_s)}" if with_times else ""
        texts.append(
            f"job {one_line(entry.job, _LONGEST_NAME)}{whose} (pid {holder.left_behind or entry.owner.pid}){since}"
        )
    more = f" and {len(holders) - _MOST_LISTED} more" if len(holders) > _MOST_LISTED else ""
    return ", ".join(texts) + more


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


EVERY_S = 1.0

Measured = Callable[[AttemptDevices, Mapping[str, int]], None]
"""Called with what an attempt holds of each of its devices at this moment, if that is more than ever before."""


class _Watched:
    def __init__(self, free_bytes: Mapping[str, int]) -> None:
        self.owner: ProcessIdentity | None = None
        self.free_bytes = free_bytes
        self.most_bytes: dict[str, int] = {}


class DeviceWatch:
    """Measures what attempts hold of their devices, about once a second in its own thread.

    Of a device, whatever processes below an attempt's own hold is its. Where the driver's process numbers mean nothing
    here (in a container), an attempt that has a device to itself is charged with what became less free since it began.
    No thread runs before an attempt holds a device.
    """

    def __init__(
        self,
        meter: Callable[[], Meter],
        measured: Measured,
        *,
        beat: Callable[[], None],
        trouble: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        """Make it; `beat` is called each time before it measures, `trouble` when either went wrong."""
        self._meter = meter
        self._measured = measured
        self._beat = beat
        self._trouble = trouble
        self._every_s = every_s
        self._lock = threading.Lock()
        self._watched: dict[AttemptDevices, _Watched] = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, taken: AttemptDevices, free_bytes: Mapping[str, int]) -> None:
        """Watch an attempt; `free_bytes` is what was free on devices that it has to itself, before it began."""
        with self._lock:
            self._watched[taken] = _Watched(free_bytes)
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._run, name="stoker-devices", daemon=True)
                self._thread.start()

    def owned_by(self, taken: AttemptDevices, owner: ProcessIdentity) -> None:
        """Learn whose processes do the work; what it holds is measured from now on."""
        with self._lock:
            if taken in self._watched:
                self._watched[taken].owner = owner

    def end(self, taken: AttemptDevices) -> None:
        """Watch it no longer."""
        with self._lock:
            self._watched.pop(taken, None)

    def close(self) -> None:
        """Measure no more. A question that is under way is not waited for."""
        self._is_over.set()

    def look(self) -> None:
        """Measure every attempt once."""
        with self._lock:
            watched = [(taken, one, one.owner) for taken, one in self._watched.items() if one.owner is not None]
        if not watched:
            return
        meter = self._meter()
        used: dict[str, Mapping[int, int] | None] = {}
        for taken, one, owner in watched:
            fresh: dict[str, int] = {}
            for uuid in taken.devices:
                if uuid not in used:
                    used[uuid] = meter.used_by(uuid)
                held, is_unclear = _held_by(owner.pid, used[uuid])
                if is_unclear and uuid in one.free_bytes:
                    free_bytes = meter.free_bytes(uuid)
                    held = 0 if free_bytes is None else one.free_bytes[uuid] - free_bytes
                if held and held > one.most_bytes.get(uuid, 0):
                    one.most_bytes[uuid] = fresh[uuid] = held
            if fresh:
                taken.peak_bytes = max(one.most_bytes.values())
                self._measured(taken, fresh)

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            try:
                self._beat()
                self.look()
            except Exception as error:  # noqa: BLE001 - else renewing and measuring would stop silently
                self._trouble(f"{type(error).__name__}: {error}")


def _held_by(owner: int, used: Mapping[int, int] | None) -> tuple[int, bool]:
    """Add up what an attempt's processes hold; also return True if none of the holders is a process seen here."""
    chains = {pid: chain_of(pid) for pid in used or ()}
    theirs = [pid for pid, chain in chains.items() if pid == owner or owner in (chain or ())]
    return sum((used or {})[pid] for pid in theirs), not any(chain is not None for chain in chains.values())


_MOST_PERCENT = 100_000
_LONGEST_JOB_NAME = 200


class LedgerGate:
    """The gate for one run. The executor's loop uses it; what its own threads hear it keeps for the loop."""

    def __init__(  # noqa: PLR0913 - the seams of everything outside
        self,
        *,
        devices: Callable[[], tuple[Device, ...]],
        ledger: Callable[[], Ledger],
        meter: Callable[[], Meter],
        environment: Mapping[str, str],
        wake: Callable[[], None],
        clock: Clock,
        limit_percent: int | None = None,
        measures_every_s: float = EVERY_S,
    ) -> None:
        """Make it; above `limit_percent` of its promise work has to end, if that is set."""
        self._find = devices
        self._open_ledger = ledger
        self._open_meter = meter
        self._environment = environment
        self._wake = wake
        self._clock = clock
        self._limit_percent = limit_percent
        self._lock = threading.Lock()
        self._held: dict[AttemptDevices, Reservation] = {}
        self._told: set[tuple[object, bool]] = set()
        self._noticed: list[DeviceNotice] = []
        self._lines: dict[Needs, DeviceQueueEntry] = {}
        self._leaving: list[DeviceQueueEntry] = []
        self._renewed_s = clock.monotonic_s()
        self._watch = DeviceWatch(
            lambda: self._meter,
            self._note,
            beat=self._renew_due,
            trouble=lambda text: self._notice(
                DeviceNotice(message=f"what work holds of its devices is not measured: {text}")
            ),
            every_s=measures_every_s,
        )

    def never(self, needs: Needs) -> str:
        if not needs.gpu:
            return ""
        too_few = few(needs, len(self._matching(needs)))
        if too_few:
            return too_few
        answer = decide(self._ask(needs, ""), LedgerDecisionInputs())
        if not isinstance(answer, NeverFits):
            return ""
        hint = f" ({answer.hint})" if answer.hint else ""
        return f"needs {format_size(needs.vram_bytes)} of a GPU's memory: {answer.why}{hint}"

    def take(self, needs: Needs, *, job: str) -> AttemptDevices | DeviceWait:
        line = self._lines.get(needs)
        if line is None:
            line = self._lines[needs] = DeviceQueueEntry(
                self._ledger,
                self._ask(needs, job),
                wake=self._wake,
                free_bytes=self._meter.free_bytes,
                ours=self._ours,
                warn=lambda warning: self._notice(DeviceNotice(message=warning)),
                clock=self._clock,
            )
        try:
            answer = line.answer()
        except StokerError:
            del self._lines[needs]
            raise
        if isinstance(answer, DeviceWait):
            return answer
        del self._lines[needs]
        return self._taken(needs, answer)

    def wait_only_for(self, needs: AbstractSet[Needs]) -> None:
        for left in [one for one in self._lines if one not in needs]:
            line = self._lines.pop(left)
            line.leave()
            self._leaving = [*(one for one in self._leaving if one.is_standing), line]

    def noticed(self) -> list[DeviceNotice]:
        if not self._noticed:
            return []
        with self._lock:
            notices, self._noticed = self._noticed, []
        return notices

    def give_back(self, taken: AttemptDevices) -> None:
        self._watch.end(taken)
        with self._lock:
            held = self._held.pop(taken, None)
        if held is not None:
            # What could not be given back goes with its process.
            with suppress(StokerError):
                self._ledger.release(held)

    def close(self) -> None:
        self.wait_only_for(frozenset())
        for line in self._leaving:
            line.join()
        self._watch.close()

    @cached_property
    def _devices(self) -> dict[str, Device]:
        return {device.uuid: device for device in self._find()}

    @cached_property
    def _ledger(self) -> Ledger:
        return self._open_ledger()

    @cached_property
    def _meter(self) -> Meter:
        # First asked for by the loop, as the ledger is: threads find them made.
        return self._open_meter()

    def _ask(self, needs: Needs, job: str) -> DeviceRequest:
        return DeviceRequest(
            job=job[:_LONGEST_JOB_NAME],
            devices=tuple(_candidate(device) for device in self._matching(needs)),
            count=needs.gpu,
            vram_bytes=needs.vram_bytes,
            may_share=needs.shares,
            base=held_base(needs.share_key) if needs.share_key else "",
            base_bytes=needs.base_bytes if needs.share_key else 0,
        )

    def _matching(self, needs: Needs) -> list[Device]:
        return [device for device in self._devices.values() if needs.may_use(device)]

    def _ours(self) -> set[str]:
        with self._lock:
            return {held.id for held in self._held.values()}

    def _taken(self, needs: Needs, granted: DeviceGrant) -> AttemptDevices:
        held = granted.held
        alone = {share.uuid for share in held.shares if share.is_exclusive}
        vram_bytes = needs.vram_bytes if len(alone) < len(held.uuids) else None
        devices = [self._devices[uuid] for uuid in held.uuids]

        def started(identity: ProcessIdentity) -> None:
            self._hand_over(taken, identity)
            self._watch.owned_by(taken, identity)

        taken = AttemptDevices(
            devices=held.uuids,
            variables=device_variables(devices, self._environment, vram_bytes=vram_bytes),
            started=started,
            claim={"folder": self._ledger.folder, "entry": held.to_dict()},
        )
        with self._lock:
            self._held[taken] = held
        self._watch.begin(taken, {uuid: size for uuid, size in granted.free_bytes.items() if uuid in alone})
        return taken

    def _hand_over(self, taken: AttemptDevices, identity: ProcessIdentity) -> None:
        with self._lock:
            held = self._held.get(taken)
        if held is None:
            return
        try:
            moved = self._ledger.hand_over(held, identity)
        except StokerError as error:
            # It stays ours: who waits for it waits until we give it back or end; it is never given twice.
            self._notice(
                DeviceNotice(message=f"its devices stay reserved by Stoker's own process: {error}", taken=taken)
            )
            return
        with self._lock:
            if taken in self._held:
                self._held[taken] = moved

    def _renew_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._renewed_s < LEASE_S / 3:
            return
        self._renewed_s = now_s
        with self._lock:
            held = tuple(self._held.values())
        with suppress(StokerError):
            self._ledger.renew(*held)

    def _note(self, taken: AttemptDevices, measured_bytes: Mapping[str, int]) -> None:
        """Record what was measured, and keep for the loop what is too much. Called by the watch."""
        with self._lock:
            held = self._held.get(taken)
        if held is None:
            return
        with suppress(StokerError):
            found = self._ledger.note_measured(held, measured_bytes, limit_percent=self._limit_percent)
            taken.beside_base = max(taken.beside_base, (found.beside_promised_bytes, found.beside_bytes))
            if not (found.is_over or found.is_past_limit):
                return
            promised = f"was promised {format_size(found.promised_bytes)}"
            limit = (
                f"{promised}, and {self._limit_percent} % of that are the limit" if found.is_past_limit else promised
            )
            message = f"it holds {format_size(found.measured_bytes)} of {short_uuid(found.uuid)}, and {limit}"
            self._notice(DeviceNotice(message=message, taken=taken, is_over_limit=found.is_past_limit))

    def _notice(self, noticed: DeviceNotice) -> None:
        """Keep something for the loop: about one attempt a warning and an end, of everything else each once."""
        subject = noticed.taken or noticed.message
        with self._lock:
            if (subject, noticed.is_over_limit) in self._told:
                return
            self._told.add((subject, noticed.is_over_limit))
            self._noticed.append(noticed)
        self._wake()


def read_limit(text: str) -> int | None:
    """Read at how many percent of its promise work is ended: `150`, `150%`; empty means never. Raises `BadInput`."""
    plain = text.strip().removesuffix("%").strip()
    if not plain:
        return None
    if not plain.isascii() or not plain.isdecimal() or not 100 <= int(plain) <= _MOST_PERCENT:
        raise BadInput(
            f"STOKER_VRAM_LIMIT={text!r} is no limit on what work may hold of a GPU",
            hint="percent of what it was promised, 100 or more: STOKER_VRAM_LIMIT=150",
        )
    return int(plain)


def _candidate(device: Device) -> CandidateDevice:
    # A device of unknown size can only be given as a whole.
    unsized = CandidateDevice(uuid=device.uuid, total_bytes=0, name=device.name, is_fake=device.is_fake)
    return CandidateDevice.of(device) or unsized
