"""One wish for devices that waits for its turn, in a thread of its own: nothing here holds the executor's loop up."""

from __future__ import annotations

import os
import pwd
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from stoker.hardware.ledger.answers import Bound, Held, NeverFits, NoRoomNow
from stoker.hardware.ledger.asking import Ask
from stoker.hardware.ledger.bell import POLL_S
from stoker.hardware.ledger.ledger import Ledger, never_fits
from stoker.hardware.ledger.line import Place
from stoker.hardware.ledger.state import DeviceState, Holder
from stoker.model.clock import Clock
from stoker.model.errors import Bug, StokerError
from stoker.model.frozen import frozen
from stoker.model.printable import one_line
from stoker.model.units import format_duration, format_size
from stoker.plan.device.gate import Wait

# Between looks, who wants to leave the line is heard this soon.
_SLICE_S = 0.1
_LAST_LOOK_S = 2.0
_MOMENT_S = 1.0
_NOT_YET = Wait(waits_for="", why="", is_known=False)
_NO_ANSWER = Wait(waits_for="waits for the driver's answer", why="waits for the driver's answer")
_MOST_LISTED = 3
_LONGEST_NAME = 80
_LONG_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{20,}.*", re.IGNORECASE)


@frozen
class Granted:
    """It has its devices."""

    held: Held
    free_bytes: Mapping[str, int]
    """What was free on each of them just now, as far as somebody could say."""


class DeviceLine:
    """A place in line, from its first look to a grant or to leaving it. The loop asks `answer` whenever it is woken."""

    def __init__(  # noqa: PLR0913 - the seams of everything outside
        self,
        ledger: Ledger,
        ask: Ask,
        *,
        wake: Callable[[], None],
        free_bytes: Callable[[str], int | None],
        ours: Callable[[], Collection[str]],
        warn: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Stand in line; `ours` are the reservations of this very run, `warn` hears what is wrong with the ledger."""
        self._ledger = ledger
        self._ask = ask
        self._wake = wake
        self._free_bytes = free_bytes
        self._ours = ours
        self._warn = warn
        self._clock = clock
        self._begun_s = clock.monotonic_s()
        self._lock = threading.Lock()
        self._answer: Granted | Wait | StokerError | None = None
        self._is_left = False
        self._thread = threading.Thread(target=self._run, name="stoker-device-line", daemon=True)
        self._thread.start()

    def answer(self) -> Granted | Wait:
        """Give how it stands. Raises `StokerError` if it can't be waited for."""
        with self._lock:
            if isinstance(self._answer, StokerError):
                raise self._answer
            is_young = self._clock.monotonic_s() - self._begun_s < _MOMENT_S
            return self._answer or (_NOT_YET if is_young else _NO_ANSWER)

    @property
    def is_standing(self) -> bool:
        """Whether its place may still be seen by others."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Give the place up, soon, and what was granted and not fetched."""
        with self._lock:
            self._is_left = True
            granted = self._answer if isinstance(self._answer, Granted) else None
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
                    if isinstance(answer, Held):
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
        except Exception as error:  # noqa: BLE001 - a line that nobody stands in any more would never be told about
            self._tell(Bug(f"waiting for devices: {type(error).__name__}: {error}"))

    def _listen(self, place: Place) -> None:
        for _ in range(round(POLL_S / _SLICE_S)):
            if self._is_left or place.listen(_SLICE_S):
                return

    def _settle(self, held: Held) -> None:
        is_wanted = False
        try:
            free = {uuid: self._free_bytes(uuid) for uuid in held.uuids}
            known = {uuid: size for uuid, size in free.items() if size is not None}
            with self._lock:
                is_wanted = not self._is_left
                if is_wanted:
                    self._answer = Granted(held=held, free_bytes=known)
        finally:
            # Nobody will fetch it.
            if not is_wanted:
                self._ledger.release(held)
        self._wake()

    def _tell(self, answer: Wait | StokerError) -> None:
        with self._lock:
            before, self._answer = self._answer, answer
        if not isinstance(before, Wait) or not isinstance(answer, Wait) or before.waits_for != answer.waits_for:
            self._wake()


def describe(ask: Ask, answer: NoRoomNow, devices: Sequence[DeviceState], ours: Collection[str]) -> Wait:
    """Say what a wish waits for, with and without the times, and whether only our own reservations are in the way."""
    place = answer.ahead + 1
    in_line = f", {_ordinal(place)} in line" if answer.ahead else ""
    holders = [holder for device in devices for holder in device.holders]
    return Wait(
        waits_for=_text(ask, answer, devices, with_times=False) + in_line,
        why=_text(ask, answer, devices, with_times=True) + in_line,
        place=place,
        is_ours=bool(holders) and not answer.ahead and all(holder.entry.id in ours for holder in holders),
    )


def short_uuid(uuid: str) -> str:
    """Give as much of a device's UUID as people compare."""
    match = _LONG_UUID.fullmatch(uuid)
    return match[1] if match else uuid


def _text(ask: Ask, answer: NoRoomNow, devices: Sequence[DeviceState], *, with_times: bool) -> str:
    held = [device for device in devices if device.holders and device.device.uuid in _wanted(ask)]
    if not held or answer.bound is Bound.MEASURED:
        return f"waits: {answer.nearest.why}" if answer.bound is not Bound.LINE else f"waits for {_devices(ask)}"
    told = [f"held by {_holders(device.holders, with_times=with_times)}" for device in held[:_MOST_LISTED]]
    if answer.bound is Bound.LEDGER and len(held) == 1:
        told = [f"{format_size(held[0].available_bytes)} left to share, {told[0]}"]
    if len(held) > 1 or len(ask.devices) > 1:
        pairs = zip(held, told, strict=False)
        told = [f"{short_uuid(device.device.uuid)} {text}" for device, text in pairs]
    more = f" and {len(held) - _MOST_LISTED} more" if len(held) > _MOST_LISTED else ""
    return f"waits for {_devices(ask)}: {'; '.join(told)}{more}"


def _devices(ask: Ask) -> str:
    what = short_uuid(ask.devices[0].uuid) if len(ask.devices) == 1 else "a GPU" if ask.count == 1 else ""
    part = f"{format_size(ask.vram_bytes)} of " if ask.may_share and ask.vram_bytes else ""
    return part + (what or f"{ask.count} GPUs")


def _wanted(ask: Ask) -> set[str]:
    return {device.uuid for device in ask.devices}


def _holders(holders: Sequence[Holder], *, with_times: bool) -> str:
    told = []
    for holder in holders[:_MOST_LISTED]:
        entry = holder.entry
        whose = "" if entry.user == os.geteuid() else f" of {_user(entry.user)}"
        since = f" for {format_duration(holder.held_s)}" if with_times else ""
        told.append(
            f"job {one_line(entry.job, _LONGEST_NAME)}{whose} (pid {holder.left_behind or entry.owner.pid}){since}"
        )
    more = f" and {len(holders) - _MOST_LISTED} more" if len(holders) > _MOST_LISTED else ""
    return ", ".join(told) + more


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
