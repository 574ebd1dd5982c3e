"""Devices on which everything fails alike while the same work succeeds elsewhere: the device is at fault, not the code.

Pure memory of the last endings, forgotten with the process: a restart gives a device the benefit of the doubt.
"""

from __future__ import annotations

from collections import deque

from stoker.model.frozen import frozen

ALIKE = 5
"""So many attempts of different jobs in a row."""
_ENDINGS = 4096

Place = tuple[str, str]
"""A machine and one of its devices."""


@frozen
class Verdict:
    """A device that should be given nothing more."""

    machine: str
    device: str
    why: str


class Suspicion:
    """How attempts ended on which device, lately."""

    def __init__(self) -> None:
        self._in_a_row: dict[Place, list[tuple[int, str]]] = {}
        """Job and sign of the last failures, since something succeeded there."""
        self._failed: deque[tuple[Place, str]] = deque(maxlen=_ENDINGS)
        """Where which sign was seen."""
        self._succeeded: deque[tuple[Place, str]] = deque(maxlen=_ENDINGS)
        """Where which work succeeded."""

    def succeeded(self, machine: str, devices: tuple[str, ...], work: str) -> None:
        """Something ended well there; `work` is what jobs that run the same code have in common."""
        for device in devices:
            self._in_a_row.pop((machine, device), None)
            self._succeeded.append(((machine, device), work))

    def failed(self, machine: str, devices: tuple[str, ...], seq: int, work: str, sign: str) -> tuple[Verdict, ...]:
        """Something failed there; `sign` is what failures that are alike have in common. Says which devices to close.

        A device is closed after `ALIKE` different jobs in a row failed there with one sign that no other device shows,
        if the same work succeeded on another one: what fails everywhere, or was never seen to succeed, is the code. A
        job on several devices accuses none of them.
        """
        for device in devices:
            self._failed.append(((machine, device), sign))
        if len(devices) != 1:
            return ()
        place = (machine, devices[0])
        row = self._in_a_row.setdefault(place, [])
        if row and row[-1][1] != sign:
            row.clear()
        if seq not in {job for job, _ in row}:
            row.append((seq, sign))
        if len(row) < ALIKE or not self._is_the_devices(place, work, sign):
            return ()
        del self._in_a_row[place]
        why = f"{ALIKE} jobs in a row failed there alike, and succeed elsewhere: {sign}"
        return (Verdict(machine=machine, device=devices[0], why=why),)

    def _is_the_devices(self, place: Place, work: str, sign: str) -> bool:
        fails_elsewhere = any(seen == sign and at != place for at, seen in self._failed)
        return not fails_elsewhere and any(done == work and at != place for at, done in self._succeeded)
