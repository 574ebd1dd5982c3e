"""This machine, as the house sees it: its cores and devices, who holds and measures them, what keeps memory in bounds.

Each part is made when it is first asked for.
"""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.app.settings import AppSettings
    from stoker.core.capability import Capability
    from stoker.core.clock import Clock
    from stoker.core.device import Capacity, Device
    from stoker.devices.checkup import SmokeTestResult
    from stoker.devices.ledger.ledger import Guard, Ledger
    from stoker.devices.ledger.reservations import Meter
    from stoker.gang.gang_check import GangSelfTest
    from stoker.host.command_runner import CommandRunner
    from stoker.host.containment.mechanisms import ContainmentChoice


class ThisMachine:
    """The parts of the house that are about the machine itself."""

    settings: AppSettings
    clock: Clock

    @cached_property
    def capacity(self) -> Capacity:
        """What this machine may hand out."""
        from stoker.devices.admission import capacity_here

        return capacity_here()

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that programs started from here may use."""
        from stoker.devices.this_machine import devices_here

        return devices_here(self.settings.environment, ask=lambda: self._asker)

    @cached_property
    def ledger(self) -> Ledger:
        """Who holds how much of which device, on the whole machine: STOKER_LEDGER, else the folder that all share."""
        from stoker.devices.ledger.ledger import DEFAULT_FOLDER, Ledger

        folder = self.settings.environment.get("STOKER_LEDGER", "") or DEFAULT_FOLDER
        folder = os.path.abspath(os.path.join(self.settings.folder, os.path.expanduser(folder)))
        return Ledger(folder, clock=self.clock, meter=self.meter)

    def guard(
        self, size: str = "", *, job: str, share: bool = False, count: int = 1, timeout_s: float | None = None
    ) -> Guard:
        """Return a block that holds room on a device: so much of it, or with no size all of it.

        Raises `InsufficientDeviceMemory` if it can never fit, `DeviceWaitTimeout`, and `ValueError` for what is not a
        size.
        """
        from stoker.core.text import parse_size
        from stoker.devices.ledger.reservations import WAIT_S, CandidateDevice, DeviceRequest

        candidates = tuple(one for one in map(CandidateDevice.of, self.devices) if one is not None)
        room_bytes = parse_size(size) if size else 0
        ask = DeviceRequest(job=job, devices=candidates, count=count, vram_bytes=room_bytes, may_share=share)
        return self.ledger.guard(ask, WAIT_S if timeout_s is None else timeout_s)

    @cached_property
    def meter(self) -> Meter:
        """What measures devices' memory now."""
        from stoker.devices.meters import open_meter

        return open_meter(self.devices, self.settings.environment)

    def smoke(self, capability: Capability) -> tuple[SmokeTestResult, ...]:
        """Compute something small on the CPU and on each device of a snapshot."""
        from stoker.devices.checkup import smoke

        return smoke(capability, self._asker)

    def rehearse(self, ranks: int, capability: Capability) -> GangSelfTest:
        """Bring a gang of so many ranks up for show, of as many as there are GPUs for 0; what goes wrong is in it."""
        from stoker.gang.gang_check import choose, rehearse
        from stoker.gang.owner import cuda_here

        devices = () if capability.is_fake or not capability.devices else cuda_here(self.settings.environment)
        return rehearse(choose(ranks or None, devices))

    @cached_property
    def _asker(self) -> CommandRunner:
        from stoker.host.command_runner import SubprocessRunner

        return SubprocessRunner(self.settings.environment)

    @cached_property
    def _pythons(self) -> tuple[str, ...]:
        """The interpreters of this machine that matter: the one that programs get here, and our own."""
        from stoker.host.interpreter import find_python

        settings = self.settings
        found = find_python("", folder=settings.folder, environment=settings.environment, own_prefix=sys.prefix)
        return tuple(dict.fromkeys(path for path in (found.path, sys.executable) if path))

    def contain_by(self, mechanism: str) -> None:
        """Use exactly this mechanism; call it before anything runs."""
        from stoker.host.containment.mechanisms import choose_mechanism

        self.__dict__["containment"] = choose_mechanism(mechanism, environment=self.settings.environment)
        self.__dict__["contained_by"] = mechanism

    @cached_property
    def contained_by(self) -> str | None:
        """The mechanism that was asked for; nothing: the strongest that works."""
        return self.settings.environment.get("STOKER_CONTAIN")

    @cached_property
    def containment(self) -> ContainmentChoice:
        """How this machine keeps a program's memory within bounds."""
        from stoker.host.containment.mechanisms import choose_mechanism

        return choose_mechanism(self.contained_by, environment=self.settings.environment)
