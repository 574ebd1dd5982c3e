"""The gate before devices that asks the machine-wide ledger: no two runs on a machine ever have the same one.

Nothing is opened and no driver asked before something really needs a device. A reservation is ours until the work has a
process of its own, and that one's from then on: it lives exactly as long as the work, also if we are killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cached_property

from stoker.hardware.ledger.answers import Held, NeverFits
from stoker.hardware.ledger.asking import LEASE_S, Ask, Candidate
from stoker.hardware.ledger.deciding import Books, decide
from stoker.hardware.ledger.ledger import Ledger
from stoker.hardware.probes.meters.meter import Meter
from stoker.host.identity import ProcessIdentity
from stoker.model.clock import Clock
from stoker.model.devices import Device
from stoker.model.errors import BadInput, StokerError
from stoker.model.resources import Needs
from stoker.model.units import format_size
from stoker.plan.device.gate import Noticed, Taken, Wait, few
from stoker.plan.device.held_base import held_base
from stoker.plan.device.line import DeviceLine, Granted, short_uuid
from stoker.plan.device.variables import device_variables
from stoker.plan.device.watch import EVERY_S, DeviceWatch

_MOST_PERCENT = 100_000
_LONGEST_NAME = 200


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
        self._held: dict[Taken, Held] = {}
        self._told: set[tuple[object, bool]] = set()
        self._noticed: list[Noticed] = []
        self._lines: dict[Needs, DeviceLine] = {}
        self._leaving: list[DeviceLine] = []
        self._renewed_s = clock.monotonic_s()
        self._watch = DeviceWatch(
            lambda: self._meter,
            self._note,
            beat=self._renew_due,
            trouble=lambda text: self._notice(
                Noticed(message=f"what work holds of its devices is not measured: {text}")
            ),
            every_s=measures_every_s,
        )

    def never(self, needs: Needs) -> str:
        if not needs.gpu:
            return ""
        too_few = few(needs.gpu, len(self._devices))
        if too_few:
            return too_few
        answer = decide(self._ask(needs, ""), Books())
        if not isinstance(answer, NeverFits):
            return ""
        hint = f" ({answer.hint})" if answer.hint else ""
        return f"needs {format_size(needs.vram_bytes)} of a GPU's memory: {answer.why}{hint}"

    def take(self, needs: Needs, *, job: str) -> Taken | Wait:
        line = self._lines.get(needs)
        if line is None:
            line = self._lines[needs] = DeviceLine(
                self._ledger,
                self._ask(needs, job),
                wake=self._wake,
                free_bytes=self._meter.free_bytes,
                ours=self._ours,
                warn=lambda warning: self._notice(Noticed(message=warning)),
                clock=self._clock,
            )
        try:
            answer = line.answer()
        except StokerError:
            del self._lines[needs]
            raise
        if isinstance(answer, Wait):
            return answer
        del self._lines[needs]
        return self._taken(needs, answer)

    def wait_only_for(self, needs: AbstractSet[Needs]) -> None:
        for left in [one for one in self._lines if one not in needs]:
            line = self._lines.pop(left)
            line.leave()
            self._leaving = [*(one for one in self._leaving if one.is_standing), line]

    def noticed(self) -> list[Noticed]:
        if not self._noticed:
            return []
        with self._lock:
            told, self._noticed = self._noticed, []
        return told

    def give_back(self, taken: Taken) -> None:
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

    def _ask(self, needs: Needs, job: str) -> Ask:
        return Ask(
            job=job[:_LONGEST_NAME],
            devices=tuple(_candidate(device) for device in self._devices.values()),
            count=needs.gpu,
            vram_bytes=needs.vram_bytes,
            may_share=needs.shares,
            base=held_base(needs.company) if needs.company else "",
            base_bytes=needs.base_bytes if needs.company else 0,
        )

    def _ours(self) -> set[str]:
        with self._lock:
            return {held.id for held in self._held.values()}

    def _taken(self, needs: Needs, granted: Granted) -> Taken:
        held = granted.held
        alone = {share.uuid for share in held.entry.shares if share.is_exclusive}
        vram_bytes = needs.vram_bytes if len(alone) < len(held.uuids) else None
        devices = [self._devices[uuid] for uuid in held.uuids]

        def started(identity: ProcessIdentity) -> None:
            self._hand_over(taken, identity)
            self._watch.owned_by(taken, identity)

        taken = Taken(
            devices=held.uuids,
            variables=device_variables(devices, self._environment, vram_bytes=vram_bytes),
            started=started,
            claim={"folder": self._ledger.folder, "entry": held.entry.to_dict()},
        )
        with self._lock:
            self._held[taken] = held
        self._watch.begin(taken, {uuid: size for uuid, size in granted.free_bytes.items() if uuid in alone})
        return taken

    def _hand_over(self, taken: Taken, identity: ProcessIdentity) -> None:
        with self._lock:
            held = self._held.get(taken)
        if held is None:
            return
        try:
            moved = self._ledger.hand_over(held, identity)
        except StokerError as error:
            # It stays ours: who waits for it waits until we give it back or end, and nobody gets it twice.
            self._notice(Noticed(message=f"its devices stay reserved by Stoker's own process: {error}", taken=taken))
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

    def _note(self, taken: Taken, measured_bytes: Mapping[str, int]) -> None:
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
            self._notice(Noticed(message=message, taken=taken, is_over_limit=found.is_past_limit))

    def _notice(self, noticed: Noticed) -> None:
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


def _candidate(device: Device) -> Candidate:
    # Of a device of which nobody knows how large it is, all there is can be given to one.
    unsized = Candidate(uuid=device.uuid, total_bytes=0, name=device.name, is_fake=device.is_fake)
    return Candidate.of(device) or unsized
