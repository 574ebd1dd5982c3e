"""Is a device worth the way there? A rule of thumb that advises; whoever asks may override it.

Two rules, and the advice says which one spoke. With only a device's figures known: the work there must take more than
five times as long as the transfer (system B's). Once it is known how fast this work runs on the CPU: transfer and
device together must beat the CPU.
"""

from __future__ import annotations

from stoker.model.frozen import frozen


@frozen
class CostRule:
    """The figures that advice is computed from; measured ones may stand in for these."""

    us_per_mb: float = 40.0
    """Microseconds to bring a megabyte to the device."""
    us_per_mflop: float = 0.01
    """Microseconds that a million operations take there."""
    threshold: float = 5.0
    cpu_us_per_mflop: float | None = None
    """The same on the CPU; nothing: nobody measured."""

    def advise(self, transfer_mb: float, mflop: float) -> Advice:
        """Say whether work belongs on a device. Of work whose size nobody declared it says nothing."""
        if transfer_mb <= 0 or mflop <= 0:
            return Advice()
        transfer_us = transfer_mb * self.us_per_mb
        device_us = mflop * self.us_per_mflop
        if self.cpu_us_per_mflop is not None:
            cpu_us = mflop * self.cpu_us_per_mflop
            is_worth = transfer_us + device_us < cpu_us
            sides = f"{_us(transfer_us)} transfer + {_us(device_us)} there"
            return Advice(rule="device beats cpu", is_worth=is_worth, why=f"{sides}, {_us(cpu_us)} on the CPU")
        # Not the quotient: exactly five times is not more than five times.
        is_worth = device_us > self.threshold * transfer_us
        why = f"{_us(device_us)} of work, {_us(transfer_us)} of transfer: {device_us / transfer_us:.3g} times"
        return Advice(rule=f"work above {self.threshold:g} times the transfer", is_worth=is_worth, why=why)


@frozen
class Advice:
    """What the rule says, which rule it was, and the figures."""

    rule: str = ""
    is_worth: bool | None = None
    """Nothing: it has no opinion."""
    why: str = ""

    @property
    def is_against(self) -> bool:
        """Whether a job that merely prefers a device is better off without."""
        return self.is_worth is False

    def __str__(self) -> str:
        if self.is_worth is None:
            return "no opinion: transfer and work are not declared"
        return f"{'worth' if self.is_worth else 'not worth'} a device by the rule “{self.rule}” ({self.why})"


def _us(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.3g} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds / 1_000_000:.3g} s"
