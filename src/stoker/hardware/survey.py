"""What Stoker needs of a machine beside its hardware, looked at once: disks, containment, clock, ports.

Gathers and judges nothing; `checkup` says what it means. Whatever can't be found out is said to be so, never raised.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from stoker.host.clock_check import is_clock_synchronised
from stoker.host.containment.choice import Chosen
from stoker.host.disk import existing_above
from stoker.host.file_systems import FileSystem, file_system_of
from stoker.host.ports import is_port_free
from stoker.model.devices import Answer, Verdict
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen

Reflink = Callable[[BinaryIO, BinaryIO], bool]
"""Lets one file share another's blocks; says whether that worked."""


@frozen
class Disk:
    """A file system and what of ours lies on it."""

    names: tuple[str, ...]
    """`store`, `runs`, …"""
    paths: tuple[str, ...]
    file_system: FileSystem | None
    """`None`: it can't be looked at."""
    shares_blocks: Answer
    """Whether copies on it cost no space; tried."""
    why: str = ""


@frozen
class Containing:
    """How programs are kept within their memory."""

    mechanism: str = ""
    """Empty: as asked for, it does not work."""
    warning: str = ""
    hint: str = ""
    stronger: tuple[tuple[str, str], ...] = ()
    """Mechanisms before it, each with the reason against it."""


@frozen
class Survey:
    """The answers."""

    disks: tuple[Disk, ...] = ()
    containing: Containing = Containing()
    clock: Answer
    """It is synchronised."""
    ports: Mapping[int, Answer]
    """It is free."""


def survey(
    places: Mapping[str, str], *, contain: Callable[[], Chosen], reflink: Reflink, ports: Sequence[int]
) -> Survey:
    """Look around. `places` are our folders by name, which need not exist; nothing is made."""
    return Survey(
        disks=_disks(places, reflink),
        containing=_containing(contain),
        clock=is_clock_synchronised(),
        ports={port: is_port_free(port) for port in ports},
    )


def _disks(places: Mapping[str, str], reflink: Reflink) -> tuple[Disk, ...]:
    by_mount: dict[tuple[str, bool], list[tuple[str, str, FileSystem]]] = {}
    unseen = []
    for name, path in places.items():
        try:
            found = file_system_of(path)
        except OSError as error:
            unknown = Answer(verdict=Verdict.UNKNOWN)
            why = error.strerror or str(error)
            unseen.append(Disk(names=(name,), paths=(path,), file_system=None, shares_blocks=unknown, why=why))
            continue
        by_mount.setdefault((found.mount_point, found.is_writable), []).append((name, path, found))
    seen = [
        Disk(
            names=tuple(name for name, _, _ in group),
            paths=tuple(path for _, path, _ in group),
            file_system=group[0][2],
            shares_blocks=_shares_blocks(group[0][1], reflink),
        )
        for group in by_mount.values()
    ]
    return (*seen, *unseen)


def _shares_blocks(path: str, reflink: Reflink) -> Answer:
    """Try it with two files that have no name, and so leave nothing behind."""
    place = existing_above(path)
    try:
        with tempfile.TemporaryFile(dir=place) as source, tempfile.TemporaryFile(dir=place) as target:
            source.write(bytes(4096))
            source.flush()
            does = reflink(source, target)
    except OSError as error:
        return Answer(verdict=Verdict.UNKNOWN, why=error.strerror or str(error))
    return Answer(verdict=Verdict.YES if does else Verdict.NO)


def _containing(contain: Callable[[], Chosen]) -> Containing:
    try:
        chosen = contain()
    except StokerError as error:
        return Containing(warning=str(error), hint=error.hint)
    return Containing(
        mechanism=str(chosen.mechanism),
        warning=chosen.warning,
        stronger=tuple((str(mechanism), why) for mechanism, why in chosen.tried),
    )
