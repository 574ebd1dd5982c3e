"""Environments as coordinator, workers and people speak of them: which choice is a machine's, and how it stands there.

Pure. `EnvironmentChoice` is one way to an interpreter; `MachineInventory` is what a machine said of itself.
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
"""The kind of a choice that is an interpreter of the machine itself."""


class EnvironmentStatus(StrEnum):
    """How an environment stands on a machine."""

    READY = "ready"
    BUILDS = "builds"
    """It has to be made first."""
    IMPOSSIBLE = "impossible"
    OWN = "own"
    """The machine's own interpreter; nothing is made."""


@frozen
class MachineEnvironmentStatus:
    """One machine and one environment."""

    machine: str
    standing: EnvironmentStatus
    about_s: float | None = None
    """How long making it may take; nothing: nobody knows."""
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
    """Return the choice for a machine: the first that names its platform, else the first for any; nothing: none is."""
    named = next((one for one in choices if one.platform and platform.is_named(one.platform)), None)
    return named or next((one for one in choices if not one.platform), None)


def why_none(choices: Sequence[EnvironmentChoice], platform: Platform) -> str:
    """Return why no choice is a machine's."""
    names = ", ".join(dict.fromkeys(one.platform for one in choices))
    return f"it is {platform.text}, and the job has environments for {names} only"


def environment_digest(choices: Iterable[EnvironmentChoice]) -> str:
    """Return the digest by which jobs with the same choices are known; empty without any.

    What a submitter says can't be (`refused`) belongs to it: it holds for the jobs that say so, and for no others.
    """
    told = [
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
    return str(digest_value("environment choices", told)) if told else ""


@lru_cache(maxsize=256)
def own_digest(path: str, python: str) -> str:
    """Return the digest of a choice of kind `python`: it has no files, and is its path and version."""
    return str(digest_value("own interpreter", [path, python]))


def reported_digest(choice: EnvironmentChoice) -> str:
    """Return the digest under which machines report what they know of a choice."""
    return own_digest(choice.path, choice.python) if choice.kind == PYTHON else choice.digest


def choices_fault(choices: Iterable[EnvironmentChoice]) -> str:
    """Return what is wrong with the choices of an order; empty if nothing is.

    A digest names what a machine found out about an environment, to all jobs: no choice goes by another one's. That of
    files is held against the files before anything is found out.
    """
    for one in choices:
        if one.kind == PYTHON and one.digest not in ("", own_digest(one.path, one.python)):
            named = one.path or one.python or PYTHON
            return f"its environment {named!r} has the digest of something else; kind python needs none: leave it out"
    return ""


def platform_held(holdings: MachineInventory) -> Platform:
    """Return a machine's platform as it said itself."""
    system, _, machine = holdings.platform.partition("-")
    return Platform(system=system, machine=machine, libc=holdings.libc, pythons=holdings.pythons)


def outlook(
    choices: Sequence[EnvironmentChoice], machine: str, held: MachineInventory, others: Iterable[MachineInventory] = ()
) -> MachineEnvironmentStatus:
    """Return how a job's environment stands on a machine; how long others took for it tells how long it may take."""
    platform = platform_held(held)
    if not choices:
        return MachineEnvironmentStatus(machine=machine, standing=EnvironmentStatus.OWN)
    choice = choose(choices, platform)
    if not platform.system:
        why = "its worker says nothing of environments: is it off, or its Stoker older than this one?"
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
    """Say it of all machines."""
    return [outlook(choices, name, held, machines.values()) for name, held in machines.items()]


def has_python(choice: EnvironmentChoice, held: MachineInventory) -> bool:
    """Return whether a machine has a Python of the version that is asked for; so does one that tells of none."""
    return not choice.python or not held.pythons or any(fits(version, choice.python) for version in held.pythons)


def no_python(wish: str, pythons: Sequence[str]) -> str:
    """Return the message that no Python of a machine is of the version that is asked for."""
    return f"no Python that is {wish or 'any'}: it has {', '.join(pythons) or 'none'}"


def _refused(choice: EnvironmentChoice, platform: Platform) -> str:
    return choice.refused.get(platform.text, "") or choice.refused.get(platform.name, "")
