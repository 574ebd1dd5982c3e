"""This machine, as the house sees it: its cores and devices, who holds and measures them, what keeps memory in bounds.

Each part is made when it is first asked for.
"""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.assembly.settings import Settings
    from stoker.gang.rehearsing import Rehearsal
    from stoker.hardware.ledger.guarding import Guard
    from stoker.hardware.ledger.ledger import Ledger
    from stoker.hardware.probes.asking import Asker
    from stoker.hardware.probes.meters.meter import Meter
    from stoker.hardware.smoke import Smoked
    from stoker.host.containment.choice import Chosen
    from stoker.model.capability import Capability
    from stoker.model.clock import Clock
    from stoker.model.devices import Device
    from stoker.model.resources import Capacity


class ThisMachine:
    """The parts of the house that are about the machine itself."""

    settings: Settings
    clock: Clock

    @cached_property
    def capacity(self) -> Capacity:
        """What this machine may hand out."""
        from stoker.hardware.capacity import capacity_here

        return capacity_here()

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that programs started from here may use."""
        from stoker.hardware.devices_here import devices_here

        return devices_here(self.settings.environment, ask=lambda: self._asker)

    @cached_property
    def ledger(self) -> Ledger:
        """Who holds how much of which device, on the whole machine: STOKER_LEDGER, else the folder that all share."""
        from stoker.hardware.ledger.ledger import DEFAULT_FOLDER, Ledger

        folder = self.settings.environment.get("STOKER_LEDGER", "") or DEFAULT_FOLDER
        folder = os.path.abspath(os.path.join(self.settings.folder, os.path.expanduser(folder)))
        return Ledger(folder, clock=self.clock, meter=self.meter)

    def guard(
        self, size: str = "", *, job: str, share: bool = False, count: int = 1, timeout_s: float | None = None
    ) -> Guard:
        """Give a block that holds room on a device: so much of it, or with no size all of it.

        Raises `NoRoom` if it can never fit, `RoomTimeout`, and `ValueError` for what is not a size.
        """
        from stoker.hardware.ledger.asking import WAIT_S, Ask, Candidate
        from stoker.model.units import parse_size

        candidates = tuple(one for one in map(Candidate.of, self.devices) if one is not None)
        room_bytes = parse_size(size) if size else 0
        ask = Ask(job=job, devices=candidates, count=count, vram_bytes=room_bytes, may_share=share)
        return self.ledger.guard(ask, WAIT_S if timeout_s is None else timeout_s)

    @cached_property
    def meter(self) -> Meter:
        """What measures devices' memory now."""
        from stoker.hardware.probes.meters.metering import open_meter

        return open_meter(self.devices, self.settings.environment)

    def smoke(self, capability: Capability) -> tuple[Smoked, ...]:
        """Compute something small on the CPU and on each device of a snapshot."""
        from stoker.hardware.smoke import smoke

        return smoke(capability, self._asker)

    def rehearse(self, ranks: int, capability: Capability) -> Rehearsal:
        """Bring a gang of so many ranks up for show, of as many as there are GPUs for 0; what goes wrong is in it."""
        from stoker.gang.cuda_devices import cuda_here
        from stoker.gang.rehearsing import choose, rehearse

        devices = () if capability.is_fake or not capability.devices else cuda_here(self.settings.environment)
        return rehearse(choose(ranks or None, devices))

    @cached_property
    def _asker(self) -> Asker:
        from stoker.hardware.probes.asking import ProcessAsker

        return ProcessAsker(self.settings.environment)

    @cached_property
    def _pythons(self) -> tuple[str, ...]:
        """The interpreters of this machine that matter: the one that programs get here, and our own."""
        from stoker.host.interpreter import find_python

        settings = self.settings
        found = find_python("", folder=settings.folder, environment=settings.environment, own_prefix=sys.prefix)
        return tuple(dict.fromkeys(path for path in (found.path, sys.executable) if path))

    def contain_by(self, mechanism: str) -> None:
        """Use exactly this mechanism; call it before anything runs."""
        from stoker.host.containment.choice import choose

        self.__dict__["containment"] = choose(mechanism, environment=self.settings.environment)
        self.__dict__["contained_by"] = mechanism

    @cached_property
    def contained_by(self) -> str | None:
        """The mechanism that was asked for; nothing: the strongest that works."""
        return self.settings.environment.get("STOKER_CONTAIN")

    @cached_property
    def containment(self) -> Chosen:
        """How this machine keeps a program's memory within bounds."""
        from stoker.host.containment.choice import choose

        return choose(self.contained_by, environment=self.settings.environment)
