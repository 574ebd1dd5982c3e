"""Alerts about devices (B-47): heat, memory beyond the reservation, power, and idle devices that a job holds.

Each limit is a switch with delays: an alert is raised when the value stays at the limit for a while, and cleared when
it stays below it by a margin for a longer one. Pure: time and values are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from stoker.core.frozen import changeable, frozen
from stoker.core.text import format_duration, format_size
from stoker.devices.telemetry.samples import HEAT, HOST, DeviceSample

RAISE_S = 10.0
CLEAR_S = 60.0
IDLE_S, LONG_IDLE_S = 30.0, 60.0
HOT_C, CRITICAL_C = 80.0, 90.0
BELOW_SLOWDOWN_C = 3.0
COOLER_C = 5.0
POINTS = 3.0
"""Margin of percentages."""
IDLE_PERCENT = 5.0
FULL_PERCENT = 95.0
"""Of the power limit."""
_MEMORY_LEVELS = ((90.0, 60), (95.0, 80), (99.0, 100))
"""Percent, severity."""
GONE_S = 120.0
"""A device without a sample for so long has no alerts."""
INFORMATION = 20
"""Severity of what is only shown; others are reported as symptoms."""


class AlertKind(StrEnum):
    """What an alert is about. The names are those of symptoms."""

    HOT = "hot"
    MEMORY = "memory"
    POWER = "power"
    IDLE = "idle"


@frozen
class DeviceAlert:
    """One limit that a device has reached."""

    device: str
    kind: AlertKind
    severity: int
    """0 to 100; of 50 or more the coordinator makes a symptom."""
    message: str
    since_s: float
    """On the clock of the caller."""


@frozen
class _Limit:
    """One limit of one device at one moment."""

    kind: AlertKind
    severity: int
    value: float
    """Compared with the limits; higher is worse."""
    raised_at: float
    after_s: float = RAISE_S
    message: str


@changeable
class _Switch:
    """The state of one limit."""

    above_s: float | None = None
    """Since when the value is at the limit."""
    below_s: float | None = None
    """Of a raised one: since when the value is below the margin."""
    raised_s: float | None = None
    seen_s: float = 0.0
    message: str = ""


class AlertTracker:
    """The alerts of a machine's devices. Not thread-safe."""

    def __init__(self) -> None:
        self._switches: dict[tuple[str, AlertKind, int], _Switch] = {}

    def update(
        self, samples: Iterable[DeviceSample], reserved_bytes: Mapping[str, int], now_s: float
    ) -> tuple[DeviceAlert, ...]:
        """Take samples in, and return the alerts that are raised: of each device and kind the most severe.

        `reserved_bytes` has the devices that running jobs hold. `now_s` never goes back.
        """
        near: set[tuple[str, AlertKind, int]] = set()
        sampled: set[str] = set()
        for sample in samples:
            if sample.uuid == HOST or sample.error:
                continue
            sampled.add(sample.uuid)
            for limit in limits_of(sample, reserved_bytes.get(sample.uuid)):
                key = (sample.uuid, limit.kind, limit.severity)
                near.add(key)
                _move(self._switches.setdefault(key, _Switch()), limit, now_s)
        for key, switch in self._switches.items():
            if key[0] in sampled and key not in near:
                _move_below(switch, now_s)
        self._switches = {
            key: switch for key, switch in self._switches.items() if now_s - switch.seen_s <= GONE_S and _is_on(switch)
        }
        worst: dict[tuple[str, AlertKind], DeviceAlert] = {}
        for (device, kind, severity), switch in self._switches.items():
            if switch.raised_s is None:
                continue
            before = worst.get((device, kind))
            if before is None or before.severity < severity:
                since_s = switch.raised_s if before is None else min(before.since_s, switch.raised_s)
                worst[device, kind] = DeviceAlert(
                    device=device, kind=kind, severity=severity, message=switch.message, since_s=since_s
                )
        return tuple(sorted(worst.values(), key=lambda one: (-one.severity, one.device, one.kind)))


def alerts_now(samples: Iterable[DeviceSample], reserved_bytes: Mapping[str, int], now_s: float) -> list[DeviceAlert]:
    """Return the limits that are reached now, of each device and kind the most severe; idleness needs time."""
    worst: dict[tuple[str, AlertKind], DeviceAlert] = {}
    for sample in samples:
        for limit in limits_of(sample, reserved_bytes.get(sample.uuid)) if sample.uuid != HOST else ():
            if limit.kind is not AlertKind.IDLE and limit.value >= limit.raised_at:
                worst[sample.uuid, limit.kind] = DeviceAlert(
                    device=sample.uuid, kind=limit.kind, severity=limit.severity, message=limit.message, since_s=now_s
                )
    return list(worst.values())


def limits_of(sample: DeviceSample, reserved_bytes: int | None) -> list[_Limit]:
    """Return the limits that a device has reached, or is within the margin of; what was not measured has none. Pure.

    Most seconds have none: this is called for every sample. `reserved_bytes` is what running jobs have reserved; None:
    no job holds the device.
    """
    return [*_heat(sample), *_memory(sample, reserved_bytes), *_power(sample), *_idle(sample, reserved_bytes)]


def _heat(sample: DeviceSample) -> list[_Limit]:
    if sample.temperature_c is None:
        return []
    celsius = sample.temperature_c
    critical_c = CRITICAL_C if sample.slowdown_c is None else min(CRITICAL_C, sample.slowdown_c - BELOW_SLOWDOWN_C)
    hot_c = min(HOT_C, critical_c)
    is_slowed = bool(sample.throttle) and bool(HEAT.intersection(sample.throttle or ()))
    if celsius < hot_c - COOLER_C and not is_slowed:
        return []
    slows = f", slows down at {sample.slowdown_c:.0f} °C" if sample.slowdown_c is not None else ""
    message = f"{celsius:.0f} °C{', slowed down by heat' if is_slowed else slows}"
    # A device that heat slows down is too hot, whatever its sensor says.
    worst = max(celsius, critical_c) if is_slowed else celsius
    return [
        _Limit(
            kind=AlertKind.HOT,
            severity=severity,
            value=worst,
            raised_at=limit,
            message=message,
        )
        for limit, severity in ((hot_c, 60), (critical_c, 80))
        if worst >= limit - COOLER_C
    ]


def _memory(sample: DeviceSample, reserved_bytes: int | None) -> list[_Limit]:
    percent, used, total = sample.memory_percent, sample.memory_used_bytes, sample.memory_total_bytes
    if percent is None or used is None or total is None:
        return []
    reserved = reserved_bytes or 0
    # What a job has reserved it may use: only more than that is reported.
    if used <= reserved or percent < _MEMORY_LEVELS[0][0] - POINTS:
        return []
    beyond = f", {format_size(reserved)} reserved" if reserved else ", nothing reserved"
    message = f"{format_size(used)} of {format_size(total)} used ({percent:.0f} %){beyond}"
    return [
        _Limit(
            kind=AlertKind.MEMORY,
            severity=severity,
            value=percent,
            raised_at=limit,
            message=message,
        )
        for limit, severity in _MEMORY_LEVELS
        if percent >= limit - POINTS
    ]


def _power(sample: DeviceSample) -> list[_Limit]:
    if sample.power_w is None or not sample.power_limit_w:
        return []
    percent = 100.0 * sample.power_w / sample.power_limit_w
    if percent < FULL_PERCENT - POINTS:
        return []
    why = ", ".join(sample.throttle or ()) if sample.is_slowed else ""
    message = f"{sample.power_w:.0f} W of {sample.power_limit_w:.0f} W{f', slowed down: {why}' if why else ''}"
    return [
        _Limit(
            kind=AlertKind.POWER,
            severity=severity,
            value=percent,
            raised_at=FULL_PERCENT,
            message=message,
        )
        for severity, applies in ((INFORMATION, True), (60, sample.is_slowed))
        if applies
    ]


def _idle(sample: DeviceSample, reserved_bytes: int | None) -> list[_Limit]:
    if sample.utilisation_percent is None or reserved_bytes is None:
        return []
    idle = 100.0 - sample.utilisation_percent
    if idle < 100.0 - IDLE_PERCENT - POINTS:
        return []
    shown = f"utilisation {sample.utilisation_percent:.0f} %"
    return [
        _Limit(
            kind=AlertKind.IDLE,
            severity=severity,
            value=idle,
            raised_at=100.0 - IDLE_PERCENT,
            after_s=after_s,
            message=f"{shown} for {format_duration(after_s)} while a job holds it",
        )
        for after_s, severity in ((IDLE_S, 60), (LONG_IDLE_S, 90))
    ]


def _move(switch: _Switch, limit: _Limit, now_s: float) -> None:
    switch.seen_s = now_s
    if limit.value >= limit.raised_at:
        switch.below_s = None
        if switch.above_s is None:
            switch.above_s = now_s
        if switch.raised_s is None and now_s - switch.above_s >= limit.after_s:
            switch.raised_s = now_s
            switch.message = limit.message
        return
    # Within the margin.
    switch.above_s = switch.below_s = None


def _move_below(switch: _Switch, now_s: float) -> None:
    switch.seen_s, switch.above_s = now_s, None
    if switch.raised_s is not None:
        if switch.below_s is None:
            switch.below_s = now_s
        if now_s - switch.below_s >= CLEAR_S:
            switch.raised_s = switch.below_s = None


def _is_on(switch: _Switch) -> bool:
    return switch.above_s is not None or switch.raised_s is not None
