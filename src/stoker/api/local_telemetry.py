"""Telemetry of this machine for screens: what a worker here recorded, else what was measured while a screen asked.

Only a worker records all the time. Without one, each request takes a sample, and the samples of this process are kept
for half a day. The sampler stays open between requests: starting the child that calls a vendor's library costs more
than a sample.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.monitor import SpanQuery
from stoker.core.errors import StokerError
from stoker.devices.ledger.reservations import CandidateDevice
from stoker.devices.telemetry.alerts import DeviceAlert, alerts_now
from stoker.devices.telemetry.local import LocalSampler
from stoker.devices.telemetry.recorder import FOLDER
from stoker.devices.telemetry.samples import HOST, DeviceSample
from stoker.devices.telemetry.series import (
    MINUTES,
    ON_THE_MACHINE,
    SECONDS,
    TENS,
    RingLevel,
    RowCollector,
    TelemetryRow,
    row_of,
    stored_rings,
)
from stoker.protocol.telemetry_messages import AlertView, DeviceTelemetry, TelemetryView, TimelineSpan, TimelineView
from stoker.protocol.view_messages import JobView, MachineHolder, MachineView
from stoker.views.telemetry_lines import telemetry_of
from stoker.views.telemetry_view import StoredRows, TelemetrySpan, telemetry_view

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState

HOUR_S = 3600.0
_EVERY_S = 2.0
"""A sample is shown for so long."""
_KEPT_ROWS = 12 * 360
_MOST_SPANS = 3000


class LocalTelemetryReader:
    """Samples this machine when it is asked, and reads what a worker recorded. Thread-safe."""

    def __init__(self, parts: AppParts, name: str) -> None:
        """`name` is what screens call this machine."""
        self._parts = parts
        self._name = name
        self._folder = os.path.join(parts.settings.state, FOLDER)
        self._guard = threading.Lock()
        self._sampler: LocalSampler | None = None
        self._samples: tuple[DeviceSample, ...] = ()
        self._sampled_s = float("-inf")
        self._collectors: dict[str, RowCollector] = {}
        self._own: dict[str, deque[TelemetryRow]] = {}

    def present(self) -> dict[str, DeviceTelemetry]:
        """Return the present state of each device and of the host, by UUID. Blocks for a moment."""
        return {one.uuid: telemetry_of(one) for one in self._sample()}

    def reservations(self) -> dict[str, DeviceState]:
        """Return the reservations of each device, by UUID; none if the ledger can't be read."""
        candidates = [one for one in map(CandidateDevice.of, self._parts.capability.devices) if one is not None]
        if not candidates:
            return {}
        try:
            return {one.device.uuid: one for one in self._parts.ledger.state(candidates).devices}
        except StokerError:
            return {}

    def view(self, query: SpanQuery) -> TelemetryView:
        """Return what was measured in a span of time. Blocks."""
        samples, now_s = self._sample(), self._parts.clock.wall_s()
        to_s = now_s if query.to_s is None else min(query.to_s, now_s)
        from_s = to_s - HOUR_S if query.from_s is None else min(query.from_s, to_s)
        level, stored = self._stored(from_s, to_s, now_s)
        return telemetry_view(
            self._name,
            stored,
            {one.uuid: telemetry_of(one) for one in samples},
            TelemetrySpan(from_s=from_s, to_s=to_s, period_s=level.period_s, points=query.points, now_s=now_s),
            reported_s=now_s,
            alerts=tuple(_alert(one) for one in self._alerts(samples)),
        )

    def _stored(self, from_s: float, to_s: float, now_s: float) -> tuple[RingLevel, list[StoredRows]]:
        rings = stored_rings(self._folder, ON_THE_MACHINE)
        for level in [one for one in (SECONDS, TENS, MINUTES) if from_s >= now_s - one.period_s * one.rows]:
            found = [(ring.about(), ring.read(level.period_s, from_s, to_s)) for ring in rings]
            if any(rows for _, rows in found):
                return level, list(found)
        with self._guard:
            own = {uuid: [row for row in rows if from_s <= row.start_s <= to_s] for uuid, rows in self._own.items()}
        names = {one.uuid: one.name for one in self._parts.capability.devices}
        return TENS, [({"uuid": uuid, "name": names.get(uuid, "")}, rows) for uuid, rows in own.items()]

    def _sample(self) -> tuple[DeviceSample, ...]:
        clock = self._parts.clock
        with self._guard:
            if clock.monotonic_s() - self._sampled_s < _EVERY_S:
                return self._samples
            if self._sampler is None:
                settings, devices = self._parts.settings, self._parts.capability.devices
                self._sampler = LocalSampler(devices, settings.environment, settings.state, clock=clock)
            self._samples = tuple(one for one in self._sampler.sample() if not one.error)
            self._sampled_s = clock.monotonic_s()
            for one in self._samples:
                tens = self._collectors.setdefault(one.uuid, RowCollector(TENS.period_s)).add(
                    row_of(one, clock.wall_s())
                )
                if tens is not None:
                    self._own.setdefault(one.uuid, deque(maxlen=_KEPT_ROWS)).append(tens)
            return self._samples

    def _alerts(self, samples: Sequence[DeviceSample]) -> list[DeviceAlert]:
        if len(samples) <= 1:
            return []
        try:
            reserved: Mapping[str, int] = self._parts.ledger.reserved()
        except StokerError:
            reserved = {}
        return alerts_now(samples, reserved, self._parts.clock.monotonic_s())


def _alert(one: DeviceAlert) -> AlertView:
    return AlertView(device=one.device, kind=one.kind.value, severity=one.severity, message=one.message)


def measured_machine(
    machine: MachineView,
    running: Sequence[JobView],
    measured: Mapping[str, DeviceTelemetry],
    reserved: Mapping[str, DeviceState],
) -> MachineView:
    """Return this machine with what its devices are at, and who holds how much of them."""
    devices = []
    holders: dict[str, MachineHolder] = {}
    for device in machine.devices:
        uuid, shown = str(device.get("uuid", "")), dict(device)
        if uuid in measured:
            shown["telemetry"] = measured[uuid].model_dump(mode="json")
        state = reserved.get(uuid)
        if state is not None:
            shown |= {"promised_bytes": 0 if state.is_taken else state.reserved_bytes, "free_bytes": state.free_bytes}
            shown["jobs"] = [holder.entry.job for holder in state.holders]
            for holder in state.holders:
                before = holders.get(holder.entry.id)
                holders[holder.entry.id] = _device_holder(holder, uuid, before, running)
        devices.append(shown)
    named = {one.job for one in holders.values()}
    others = [
        MachineHolder(job=row.id, name=row.name, started_s=row.started_s) for row in running if row.id not in named
    ]
    update: dict[str, Any] = {"devices": tuple(devices), "holders": (*holders.values(), *others)}
    if HOST in measured:
        update["host"] = measured[HOST].model_dump(mode="json")
    return machine.model_copy(update=update)


def _device_holder(
    holder: DeviceHolder, uuid: str, before: MachineHolder | None, running: Sequence[JobView]
) -> MachineHolder:
    """Return a reservation; its job is one of this machine's if it is called like one that runs, or another program."""
    name = holder.entry.job.partition("/")[0]
    job = next((row for row in running if name in (row.name, row.id)), None)
    return MachineHolder(
        job="" if job is None else job.id,
        name=holder.entry.job if job is None else job.name,
        devices=(*(before.devices if before is not None else ()), uuid),
        memory_bytes=holder.share.promised_bytes or None,
        is_shared=not holder.share.is_exclusive,
        started_s=holder.entry.since_wall_s,
    )


def local_timeline(rows: Sequence[JobView], machine: str, query: SpanQuery, now_s: float) -> TimelineView:
    """Return which jobs of this machine ran in a span of time; of very many the newest."""
    to_s = now_s if query.to_s is None else query.to_s
    from_s = to_s - HOUR_S if query.from_s is None else query.from_s
    found = [
        TimelineSpan(
            machine=machine,
            devices=row.devices,
            job=row.id,
            name=row.name,
            attempt=1,
            from_s=row.started_s,
            to_s=row.ended_s,
            ending=row.state if row.ended_s is not None else "",
        )
        for row in rows
        if row.started_s is not None and row.started_s < to_s and (row.ended_s is None or row.ended_s >= from_s)
    ]
    found.sort(key=lambda span: -span.from_s)
    shown = sorted(found[:_MOST_SPANS], key=lambda span: (span.from_s, span.job))
    return TimelineView(
        server_s=now_s,
        from_s=from_s,
        to_s=to_s,
        spans=tuple(shown),
        is_cut=len(found) > _MOST_SPANS,
        whole_from_s=shown[0].from_s if len(found) > _MOST_SPANS else None,
    )
