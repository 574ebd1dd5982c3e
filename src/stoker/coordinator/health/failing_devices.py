"""Whether a device is at fault for what failed on it: decided purely, by comparing it with all others.

Two signs count, each since something last ended well there: three different jobs failed as on broken hardware; or five
in a row failed all alike, whatever they said, in a way that no other place shows. What fails everywhere, or was never
seen to succeed, is the code; a job on several devices accuses none of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stoker.coordinator.health.facts import Ending
from stoker.model.budgets import Charge, charge_of
from stoker.model.retry import Cause

BROKEN_JOBS = 3
"""Different jobs that failed as on broken hardware."""
ALIKE_JOBS = 5
"""Different jobs that failed alike, in a row."""

Place = tuple[str, str]
"""A machine and one of its devices."""

_SIGN_CHARS = 80
_WHY_CHARS = 200
_OF_SIZE = frozenset({Cause.OOM_DEVICE, Cause.OOM_HOST})
# As drivers and runtimes say it. Memory that runs out is not among them: that is the job's size.
_DEVICE_LIKE = re.compile(
    r"cuda error|cuda(?:_|\s)?(?:driver|runtime) error|cudnn_status|cublas_status|hip error|hipErr|\bXid\b|\bECC\b"
    r"|uncorrectable|illegal memory access|unspecified launch failure|device-side assert|misaligned address"
    r"|fallen off the bus|device (?:is )?(?:lost|unavailable|not ready)|no cuda-capable device|nvml|nccl.*(?:unhandled|"
    r"internal) error|mps backend.*(?:failed|error)|gpu is lost|bus error",
    re.IGNORECASE,
)


def devices_at_fault(endings: Sequence[Ending]) -> dict[Place, str]:
    """Give the devices that should be given nothing more, each with the reason; `endings` are oldest first."""
    failed: dict[Place, list[Ending]] = {}
    for one in endings:
        if len(one.devices) == 1:
            _note(failed.setdefault((one.machine, one.devices[0]), []), one)
    found: dict[Place, str] = {}
    for place, here in failed.items():
        if len({one.seq for one in here}) >= min(BROKEN_JOBS, ALIKE_JOBS):
            elsewhere = [one for one in endings if one.machine != place[0] or one.devices != place[1:]]
            why = _why_broken(here, elsewhere) or _why_alike(here, elsewhere)
            if why:
                found[place] = why
    return found


def _note(failed: list[Ending], one: Ending) -> None:
    """Keep what failed since something last ended well; what was cancelled or lost says nothing of a device."""
    if one.ending == "completed":
        failed.clear()
    elif one.ending == "failed" and one.cause != Cause.CANCELLED and charge_of(one.cause) is Charge.USER:
        failed.append(one)


def _why_broken(failed: Sequence[Ending], elsewhere: Sequence[Ending]) -> str:
    told = [one for one in failed if _is_device_like(one)]
    jobs = {one.seq for one in told}
    if len(jobs) < BROKEN_JOBS:
        return ""
    well = {one.work for one in elsewhere if one.ending == "completed"}
    if not any(one.work in well for one in told):
        return ""
    last = told[-1].message.strip().splitlines()[-1][:_WHY_CHARS]
    return f"{len(jobs)} different jobs failed on it, and jobs succeed elsewhere: {last}"


def _why_alike(failed: Sequence[Ending], elsewhere: Sequence[Ending]) -> str:
    if not failed or _is_of_size(failed[-1]):
        return ""
    sign = _sign(failed[-1])
    jobs: set[int] = set()
    for one in reversed(failed):
        if _sign(one) != sign:
            break
        jobs.add(one.seq)
    if len(jobs) < ALIKE_JOBS:
        return ""
    fails_elsewhere = any(one.ending == "failed" and _sign(one) == sign for one in elsewhere)
    # On another device: that the same runs without one proves nothing.
    is_done_elsewhere = any(
        one.ending == "completed" and one.devices and one.work == failed[-1].work for one in elsewhere
    )
    if fails_elsewhere or not is_done_elsewhere:
        return ""
    return f"{len(jobs)} different jobs in a row failed on it alike, and the same succeeds elsewhere: {sign}"


def _is_device_like(ending: Ending) -> bool:
    return not _is_of_size(ending) and _DEVICE_LIKE.search(ending.message) is not None


def _is_of_size(ending: Ending) -> bool:
    return ending.cause in _OF_SIZE


def _sign(ending: Ending) -> str:
    """Give what failures that are alike have in common."""
    return f"{ending.cause}: {ending.message.partition(chr(10))[0][:_SIGN_CHARS]}"
