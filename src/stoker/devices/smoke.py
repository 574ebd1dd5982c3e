"""Does a device compute what the CPU computes? A small problem on both, in a child with torch, compared by cosine.

`smoke` asks; what it heard is read by a pure function, and `check_smoke` says what it means.
"""

from __future__ import annotations

import math
import os

from stoker.core.capability import Capability
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.devices.checkup import FAKED, Check, CheckStatus
from stoker.devices.probes.readers import marked_objects
from stoker.host.command_runner import CommandRunner, ProbeFailure, Reply

LEAST_COSINE = 0.99
LIMIT_S = 120.0
"""The first touch of a device may compile kernels."""
_SCRIPT = os.path.join(os.path.dirname(__file__), "probes", "smoke_child.py")


@frozen
class SmokeTestResult:
    """How one device did; without a device, why nothing was tried."""

    device: str = ""
    name: str = ""
    cosine: float | None = None
    """How alike its results and the CPU's are; `None`: it gave none."""
    why: str = ""

    @property
    def was_tried(self) -> bool:
        return bool(self.device)

    @property
    def is_right(self) -> bool:
        return self.cosine is not None and self.cosine >= LEAST_COSINE

    @property
    def is_wrong(self) -> bool:
        return self.was_tried and not self.is_right

    def to_dict(self) -> dict[str, object]:
        return {"device": self.device, "name": self.name, "cosine": self.cosine, "why": self.why}


def smoke(capability: Capability, ask: CommandRunner, *, limit_s: float = LIMIT_S) -> tuple[SmokeTestResult, ...]:
    """Try every device that the torch of the first interpreter which has one can see."""
    if capability.is_fake:
        return (SmokeTestResult(why=f"the devices are {FAKED}"),)
    python = next((one.path for one in capability.interpreters if one.torch), "")
    if not python:
        return (SmokeTestResult(why="there is no torch in any Python that was looked at"),)
    return read_smoke(ask.ask([python, _SCRIPT], limit_s=limit_s), python)


def read_smoke(reply: Reply, python: str) -> tuple[SmokeTestResult, ...]:
    """Read what the child said; an answer that is none becomes a line that says so."""
    if isinstance(reply, ProbeFailure):
        return (SmokeTestResult(why=f"{python}: {reply.why}"),)
    try:
        said = marked_objects(reply.out)[-1]
        if error := said.get("error"):
            return (SmokeTestResult(why=f"{python}: {one_line(str(error), 300)}"),)
        tried = tuple(
            SmokeTestResult(
                device=str(row["device"]),
                name=str(row.get("name", "")),
                cosine=_number(row.get("cosine")),
                why=one_line(str(row.get("error", "")), 300),
            )
            for row in said["devices"]
        )
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return (SmokeTestResult(why=f"{python} gave no answer that can be read (exit {reply.exit_code})"),)
    return tried or (SmokeTestResult(why=f"the torch of {python} sees no device"),)


def check_smoke(tried: tuple[SmokeTestResult, ...]) -> tuple[Check, ...]:
    """Judge each device."""
    return tuple(map(_check, tried))


def _check(one: SmokeTestResult) -> Check:
    if not one.was_tried:
        return Check(name="smoke", verdict=CheckStatus.WARN, message=f"skipped: {one.why}")
    name = f"smoke {one.device}"
    if one.is_right:
        return Check(
            name=name,
            verdict=CheckStatus.OK,
            message=f"{one.name} computes what the CPU does (cosine {one.cosine:.6f})",
        )
    if one.cosine is not None:
        told = f"{one.name} computes something else than the CPU (cosine {one.cosine:.3f}, not {LEAST_COSINE} or more)"
        return Check(
            name=name, verdict=CheckStatus.BAD, message=told, hint="do not train on it: driver, cooling or memory"
        )
    return Check(name=name, verdict=CheckStatus.BAD, message=f"{one.name}: {one.why}", hint="mend its driver, or torch")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
