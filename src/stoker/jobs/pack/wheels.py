"""Checks from the lock alone whether an environment can be installed on a platform, before any download.

Only what is certain is impossible: a required package without a matching wheel and without source. A marker that can't
be evaluated gives no result. Beside that: what an installed distribution requires. Importing this module imports
`packaging`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import metadata

from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from stoker.core.errors import BadInput
from stoker.core.machine import Platform, fits, tag_of
from stoker.jobs.pack.lock_file import LockedDependency, LockedPackage, UvLock

_OLDEST_GLIBC_MINOR = 5
_LEGACY = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}
_UNKNOWN_GLIBC = (2, 99)
_NEWEST_MACOS = (26, 0)
_NEWEST_MUSL_MINOR = 9
_SYSTEMS = {"linux": ("Linux", "linux", "posix"), "macos": ("Darwin", "darwin", "posix")}
_OF_WINDOWS = ("Windows", "win32", "nt")


def why_impossible(
    lock: UvLock,
    platform: Platform,
    *,
    wish: str = "",
    extras: Collection[str] = (),
    groups: Collection[str] = ("dev",),
) -> list[str]:
    """Return why a lock can't be installed on a platform; empty: it may be possible.

    Checks every Python of the platform that the lock and the request allow; returns the faults of the best one.
    """
    able = [version for version in platform.pythons if fits(version, wish) and fits(version, lock.python)]
    if platform.pythons and not able:
        wants = " and ".join(dict.fromkeys(filter(None, (wish, lock.python))))
        return [f"no Python that is {wants}: it has {', '.join(platform.pythons)}"]
    missing = [_missing(lock, platform, version, extras, groups) for version in able]
    return min(missing, key=len, default=[])


def _missing(
    lock: UvLock, platform: Platform, version: str, extras: Collection[str], groups: Collection[str]
) -> list[str]:
    tags = frozenset(tags_of(platform, version))
    where = f"{platform.machine} {tag_of(version)}"
    return [
        f"no wheel of {one.name} for {where}"
        for one in _needed(lock, _facts(platform, version), extras, groups, _holds)
        if one.wheels and not one.has_source and not any(_suits(wheel, tags) for wheel in one.wheels)
    ]


def needed_exactly(
    lock: UvLock, platform: Platform, version: str, *, extras: Collection[str] = (), groups: Collection[str] = ("dev",)
) -> list[LockedPackage]:
    """Return every package that a lock installs on a platform. Raises `BadInput` if that is not certain."""
    return list(_needed(lock, _facts(platform, version), extras, groups, _holds_for_certain))


def tags_of(platform: Platform, version: str) -> Iterator[Tag]:
    """Return the tags of wheels that a Python of a platform accepts."""
    number = tuple(int(part) for part in version.split(".")[:2])
    platforms = list(_platforms(platform))
    yield from cpython_tags(number, [tag_of(version)], platforms)
    yield from compatible_tags(number, tag_of(version), platforms)


def _platforms(platform: Platform) -> Iterator[str]:
    machine = platform.machine
    if platform.system == "macos":
        yield from mac_platforms(_NEWEST_MACOS, "arm64" if machine == "aarch64" else machine)
    elif platform.system == "windows":
        yield "win_arm64" if machine == "aarch64" else "win_amd64"
    else:
        family, _, said = platform.libc.partition(" ")
        if family == "musl":
            yield from (f"musllinux_1_{minor}_{machine}" for minor in range(_NEWEST_MUSL_MINOR, -1, -1))
        else:
            major, minor = _glibc(said)
            for older in range(minor, _OLDEST_GLIBC_MINOR - 1, -1):
                yield f"manylinux_{major}_{older}_{machine}"
                if (major, older) in _LEGACY:
                    yield f"{_LEGACY[major, older]}_{machine}"
        yield f"linux_{machine}"


def _glibc(said: str) -> tuple[int, int]:
    major, _, minor = said.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else _UNKNOWN_GLIBC


def _needed(
    lock: UvLock,
    facts: dict[str, str],
    extras: Collection[str],
    groups: Collection[str],
    holds: Callable[[str, dict[str, str]], bool],
) -> Iterator[LockedPackage]:
    """Return every package that is installed there, each once; `holds` evaluates markers."""
    by_name: dict[str, list[LockedPackage]] = {}
    for one in lock.packages:
        by_name.setdefault(one.name, []).append(one)
    ahead = _first_needs(lock, extras, groups)
    visited: set[tuple[str, str, tuple[str, ...]]] = set()
    returned: set[tuple[str, str]] = set()
    while ahead:
        need = ahead.pop()
        if not holds(need.marker, facts):
            continue
        for package in _meant(need, by_name.get(need.name, ())):
            which = (package.name, package.version, need.extras)
            if which in visited:
                continue
            visited.add(which)
            ahead += package.needs
            for name in need.extras:
                ahead += package.optional.get(name, ())
            if which[:2] not in returned:
                returned.add(which[:2])
                yield package


def _first_needs(lock: UvLock, extras: Collection[str], groups: Collection[str]) -> list[LockedDependency]:
    root = lock.root()
    if root is None:
        # A workspace without a project of its own: all its members.
        return [need for one in lock.others() for need in one.needs]
    optional = [need for name in extras for need in root.optional.get(name, ())]
    return [*root.needs, *optional, *(need for name in groups for need in root.groups.get(name, ()))]


def _meant(need: LockedDependency, packages: Sequence[LockedPackage]) -> Sequence[LockedPackage]:
    """Return the package of a dependency; None if the lock has several and does not say which."""
    if need.version:
        return [one for one in packages if one.version == need.version]
    return packages if len(packages) == 1 else ()


def _holds(marker: str, facts: dict[str, str]) -> bool:
    """Return True if a marker certainly holds."""
    if not marker:
        return True
    if "extra" in marker:
        # For conflicting extras the lock uses names of its own.
        return False
    try:
        return Marker(marker).evaluate(facts)
    except (InvalidMarker, UndefinedEnvironmentName, InvalidVersion):
        return False


def _holds_for_certain(marker: str, facts: dict[str, str]) -> bool:
    try:
        if "extra" not in marker:
            return not marker or Marker(marker).evaluate(facts)
    except (InvalidMarker, UndefinedEnvironmentName, InvalidVersion):
        pass
    raise BadInput(f"marker not supported: {marker[:200]!r}", hint="extras that exclude each other are not supported")


def _suits(wheel: str, tags: Collection[Tag]) -> bool:
    try:
        return not parse_wheel_filename(wheel)[3].isdisjoint(tags)
    except (InvalidWheelFilename, InvalidVersion):
        # Any error: uv may support it.
        return True


def _facts(platform: Platform, version: str) -> dict[str, str]:
    system, sys_platform, os_name = _SYSTEMS.get(platform.system, _OF_WINDOWS)
    machine = platform.machine
    if platform.system == "macos" and machine == "aarch64":
        machine = "arm64"
    elif platform.system == "windows" and machine == "x86_64":
        machine = "AMD64"
    full = version if version.count(".") > 1 else f"{version}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": os_name,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": system,
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": sys_platform,
        "extra": "",
    }


def installed_requirements(name: str, extra: str) -> tuple[list[str], list[str]]:
    """Return what a distribution with an extra requires, and the versions installed here of all that belongs to it.

    Raises `PackageNotFoundError` if it is not installed itself.
    """
    first = list(_needs(metadata.distribution(name), (extra,)))
    pins: dict[str, str] = {}
    ahead = list(first)
    while ahead:
        need = ahead.pop()
        plain = canonicalize_name(need.name)
        if plain in pins:
            continue
        try:
            found = metadata.distribution(plain)
        except metadata.PackageNotFoundError:
            # Another platform may need it nevertheless.
            continue
        pins[plain] = f"{plain}=={found.version}"
        ahead += _needs(found, need.extras)
    for one in first:
        # Evaluated above.
        one.marker = None
    return sorted(map(str, first)), sorted(pins.values())


def _needs(distribution: metadata.Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for one in map(Requirement, distribution.requires or ()):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield one
