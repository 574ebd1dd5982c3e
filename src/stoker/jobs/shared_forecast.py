"""What becomes of a job's trials that may work together: how many share a process, what that takes, what is free.

Pure: what trials share is asked of their recipe, what the machine has is handed in. The run decides again, member by
member, by what is free then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.core.device import Needs
from stoker.core.frozen import frozen
from stoker.engine.plan import PlanNode
from stoker.engine.stage import SharedBase
from stoker.jobs.trials import Trial


@frozen
class SharedProcessCapacity:
    """What the machine has for work on one device, or on none."""

    device_bytes: int | None = None
    """Free on the device that has the most of it."""
    memory_bytes: int | None = None
    """Free of the machine's own."""


@frozen
class SharedProcessEstimate:
    """The expected memory of one shared process."""

    members: int
    at_once: int
    """How many of them have room together; the rest comes after them."""
    base_bytes: int
    """Held once."""
    predicted_bytes: int
    """Of those that have room together, the base included."""
    free_bytes: int | None
    is_on_device: bool
    about: str = ""
    """Description of the base."""

    def to_json(self) -> dict[str, Any]:
        return {
            "members": self.members,
            "at_once": self.at_once,
            "base_bytes": self.base_bytes,
            "predicted_bytes": self.predicted_bytes,
            "free_bytes": self.free_bytes,
            "is_on_device": self.is_on_device,
            "about": self.about,
        }


def estimate_shared_processes(
    nodes: Sequence[PlanNode],
    trials: Sequence[Trial],
    shared: Callable[[Trial], SharedBase | None],
    room: SharedProcessCapacity,
) -> list[SharedProcessEstimate]:
    """Estimate the shared processes that trials with some nodes become, in the order of their first members.

    What works alone makes none, and neither does a trial that has none of these nodes.
    """
    together = {node.id: node.needs for node in nodes if node.stage.together}
    groups: dict[str, list[Needs]] = {}
    about: dict[str, str] = {}
    for trial in trials:
        needs = next((together[name] for name in trial.nodes.nodes if name in together), None)
        base = shared(trial) if needs is not None else None
        if needs is not None and base is not None and base.share_key:
            groups.setdefault(base.share_key, []).append(needs)
            about.setdefault(base.share_key, base.about)
    return [_forecast(members, room, about[word]) for word, members in groups.items()]


def _forecast(members: Sequence[Needs], room: SharedProcessCapacity, about: str) -> SharedProcessEstimate:
    from stoker.devices.estimate.shared_base import fitting_members  # noqa: PLC0415 - 7 ms that only shared processes need

    is_on_device = members[0].gpu > 0
    free_bytes = room.device_bytes if is_on_device else room.memory_bytes
    wanted = [
        (one.vram_bytes, one.base_bytes) if is_on_device else (one.memory_bytes, one.base_memory_bytes)
        for one in members
    ]
    base_bytes = max(base for _, base in wanted)
    own = [max(0, total - base) for total, base in wanted]
    most = min((one.most for one in members if one.most), default=len(members))
    may = own[:most]
    # One begins whatever is free at the moment: it waits until there is room.
    at_once = len(may) if free_bytes is None else max(1, fitting_members(free_bytes, base_bytes, may))
    return SharedProcessEstimate(
        members=len(members),
        at_once=at_once,
        base_bytes=base_bytes,
        predicted_bytes=base_bytes + sum(may[:at_once]),
        free_bytes=free_bytes,
        is_on_device=is_on_device,
        about=about,
    )
