"""What running plans needs, whichever plan it is: built once, handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.model.clock import Clock
from stoker.model.frozen import frozen
from stoker.model.resources import Capacity
from stoker.plan.admitting import MemoryGate
from stoker.plan.cache import Cache
from stoker.plan.device.gate import DeviceGate
from stoker.plan.history import History
from stoker.plan.lease import LeaseBook
from stoker.plan.runner import StageRunner
from stoker.plan.stage import Stage

if TYPE_CHECKING:
    from stoker.plan.company.runner import CompanyRunner


@frozen
class Engine:
    """What the executor works with; the same for every run of a process."""

    cache: Cache
    history: History
    leases: LeaseBook
    runner_for: Callable[[Stage], StageRunner]
    capacity: Capacity
    memory: MemoryGate
    open_devices: Callable[[Callable[[], None]], DeviceGate]
    """Give the gate before devices for one run; it calls whenever somebody who waits may have a chance."""
    clock: Clock
    company_runner: Callable[[], CompanyRunner | None] = lambda: None
    """Give what runs stages that share a process; nothing: each has its own here."""
    forked_runner: Callable[[], StageRunner] | None = None
    """Give what runs in a process of its own a stage that would run here, if this process has its code no more."""
