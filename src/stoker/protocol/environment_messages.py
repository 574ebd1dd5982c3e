"""Python environments of jobs on machines: which choice applies to a machine, and its status there.

Pure. `EnvironmentChoice` is one way to an interpreter; `MachineInventory` is what a machine reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache

from stoker.core.digests import digest_value
from stoker.core.frozen import frozen
from stoker.core.job import EnvironmentChoice
from stoker.core.machine import Platform, fits
from stoker.core.text import format_duration
from stoker.protocol.lease_messages import MachineInventory

PYTHON = "python"
"""The kind of a choice that is an installed interpreter of the machine."""


class EnvironmentStatus(StrEnum):
    """The status of an environment on a machine."""

    READY = "ready"
    BUILDS = "builds"
    """It has to be built first."""
    IMPOSSIBLE = "impossible"
    OWN = "own"
    """The machine's own interpreter; nothing is built."""


@frozen
class MachineEnvironmentStatus:
    """One machine and one environment."""

    machine: str
    standing: EnvironmentStatus
    about_s: float | None = None
    """Estimated build time; None: unknown."""
    why: str = ""

    @property
    def text(self) -> str:
        """`desk ready`, `lab1 builds, about 2m00s`, `jetson: no wheel of torch for aarch64 cp310`."""
        if self.standing is EnvironmentStatus.IMPOSSIBLE:
            return f"{self.machine}: {self.why}"
        if self.standing is EnvironmentStatus.OWN:
            return f"{self.machine} uses its own python"
        about = f", about {format_duration(self.about_s)}" if self.about_s is not None else ""
        return f"{self.machine} {self.standing}{about}"

    def to_dict(self) -> dict[str, object]:
        return {"standing": str(self.standing), "about_s": self.about_s, "why": self.why}


def choose(choices: Sequence[EnvironmentChoice], platform: Platform) -> EnvironmentChoice | None:
    """Return a machine's choice: the first that names its platform, else the first for any; None if none applies."""
    named = next((one for one in choices if one.platform and platform.is_named(one.platform)), None)
    return named or next((one for one in choices if not one.platform), None)


def why_none(choices: Sequence[EnvironmentChoice], platform: Platform) -> str:
    """Return why no choice applies to a machine."""
    names = ", ".join(dict.fromkeys(one.platform for one in choices))
    return f"platform {platform.text}; the job has environments only for {names}"


def environment_digest(choices: Iterable[EnvironmentChoice]) -> str:
    """Return the digest of a job's choices; empty without any.

    It covers what the submitter declared impossible (`refused`), which applies to jobs that declare it and no others.
    """
    fields = [
        [
            one.platform,
            one.kind,
            one.path,
            one.digest,
            one.python,
            list(one.extras),
            *([one.refused] if one.refused else ()),
        ]
        for one in choices
    ]
    return str(digest_value("environment choices", fields)) if fields else ""


@lru_cache(maxsize=256)
def own_digest(path: str, python: str) -> str:
    """Return the digest of a choice of kind `python`: of its path and version, as it has no files."""
    return str(digest_value("own interpreter", [path, python]))


def reported_digest(choice: EnvironmentChoice) -> str:
    """Return the digest under which machines report a choice."""
    return own_digest(choice.path, choice.python) if choice.kind == PYTHON else choice.digest


def choices_fault(choices: Iterable[EnvironmentChoice]) -> str:
    """Return what is wrong with the choices of a job; empty if nothing is.

    Machines report environments by digest, for all jobs, so no choice may have the digest of another. A digest of files
    is verified against the files before a machine reports it.
    """
    for one in choices:
        if one.kind == PYTHON and one.digest not in ("", own_digest(one.path, one.python)):
            named = one.path or one.python or PYTHON
            return f"environment {named!r} has a wrong digest; kind python needs none: leave it out"
    return ""


def platform_held(holdings: MachineInventory) -> Platform:
    """Return a machine's platform as it reported it."""
    system, _, machine = holdings.platform.partition("-")
    return Platform(system=system, machine=machine, libc=holdings.libc, pythons=holdings.pythons)


def outlook(
    choices: Sequence[EnvironmentChoice], machine: str, held: MachineInventory, others: Iterable[MachineInventory] = ()
) -> MachineEnvironmentStatus:
    """Return the status of a job's environment on a machine; build times on `others` give the estimate."""
    platform = platform_held(held)
    if not choices:
        return MachineEnvironmentStatus(machine=machine, standing=EnvironmentStatus.OWN)
    choice = choose(choices, platform)
    if not platform.system:
        why = "the worker reported no environments; check that it runs and has this version of Stoker"
    elif choice is None:
        why = why_none(choices, platform)
    else:
        why = held.impossible.get(reported_digest(choice), "") or _refused(choice, platform)
    if why or choice is None:
        return MachineEnvironmentStatus(machine=machine, standing=EnvironmentStatus.IMPOSSIBLE, why=why)
    if reported_digest(choice) in held.environments:
        return MachineEnvironmentStatus(machine=machine, standing=EnvironmentStatus.READY)
    if not has_python(choice, held):
        return MachineEnvironmentStatus(
            machine=machine, standing=EnvironmentStatus.IMPOSSIBLE, why=no_python(choice.python, held.pythons)
        )
    if choice.kind == PYTHON:
        return MachineEnvironmentStatus(machine=machine, standing=EnvironmentStatus.OWN)
    took = [one.builds_s[choice.digest] for one in (held, *others) if choice.digest in one.builds_s]
    return MachineEnvironmentStatus(
        machine=machine, standing=EnvironmentStatus.BUILDS, about_s=took[0] if took else None
    )


def outlooks(
    choices: Sequence[EnvironmentChoice], machines: Mapping[str, MachineInventory]
) -> list[MachineEnvironmentStatus]:
    """Return the status of a job's environment on all machines."""
    return [outlook(choices, name, held, machines.values()) for name, held in machines.items()]


def has_python(choice: EnvironmentChoice, held: MachineInventory) -> bool:
    """Return True if a machine has a Python of the required version, or reported no versions."""
    return not choice.python or not held.pythons or any(fits(version, choice.python) for version in held.pythons)


def no_python(required: str, pythons: Sequence[str]) -> str:
    """Return the message that no Python of a machine has the required version."""
    return f"no Python that is {required or 'any'}: it has {', '.join(pythons) or 'none'}"


def _refused(choice: EnvironmentChoice, platform: Platform) -> str:
    return choice.refused.get(platform.text, "") or choice.refused.get(platform.name, "")
