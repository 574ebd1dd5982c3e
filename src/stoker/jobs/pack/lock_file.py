"""Parser of a project's `uv.lock`: packages, their dependencies, and the files that they can be installed from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen

_LOCAL = ("editable", "virtual", "directory")


@frozen
class LockedDependency:
    """A dependency of a package."""

    name: str
    version: str = ""
    """Present if the lock has several versions."""
    marker: str = ""
    extras: tuple[str, ...] = ()


@frozen
class LockedPackage:
    """One package at one version."""

    name: str
    version: str = ""
    local: str | None = None
    """The folder of a local package, relative to the lock; empty: not local."""
    file: str = ""
    """A local archive that it is installed from."""
    source: str = ""
    """Its source: `registry`, `path`, `git`, `url`, or a kind of local folder."""
    hashes: tuple[str, ...] = ()
    """Of its wheels: `sha256:…`."""
    wheels: tuple[str, ...] = ()
    """File names."""
    has_source: bool = False
    """True if it can be built without a wheel."""
    needs: tuple[LockedDependency, ...] = ()
    optional: Mapping[str, tuple[LockedDependency, ...]] = fresh(factory=dict)
    """By extra."""
    groups: Mapping[str, tuple[LockedDependency, ...]] = fresh(factory=dict)


@frozen
class UvLock:
    """A whole lock."""

    python: str = ""
    """`requires-python`: >=3.11."""
    packages: tuple[LockedPackage, ...] = ()

    def root(self) -> LockedPackage | None:
        """Return the project itself."""
        return next((one for one in self.packages if one.local in (".", "")), None)

    def others(self) -> tuple[LockedPackage, ...]:
        """Return the other packages in folders of the project: workspace members, path dependencies."""
        return tuple(one for one in self.packages if one.local not in (None, ".", ""))


def read_lock(text: str) -> UvLock:
    """Parse a lock. Raises `BadInput`, in one line, if it is invalid."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"not valid TOML: {error}", hint="uv lock writes it") from None
    packages = raw.get("package", [])
    if not isinstance(raw.get("version"), int) or not isinstance(packages, list):
        raise BadInput("not a lock file of uv", hint="uv lock writes it")
    try:
        return UvLock(python=str(raw.get("requires-python", "")), packages=tuple(map(_package, packages)))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"not a lock file of uv: {error}", hint="uv lock") from None


def _package(raw: Mapping[str, Any]) -> LockedPackage:
    source: Mapping[str, Any] = raw.get("source", {})
    local = next((str(source[kind]) for kind in _LOCAL if kind in source), None)
    optional, groups = raw.get("optional-dependencies", {}), raw.get("dev-dependencies", {})
    return LockedPackage(
        name=str(raw["name"]),
        version=str(raw.get("version", "")),
        local=local,
        file=str(source.get("path", "")),
        source=next(iter(source), ""),
        hashes=tuple(str(one["hash"]) for one in raw.get("wheels", ()) if "hash" in one),
        wheels=tuple(_file_name(one) for one in raw.get("wheels", ())),
        has_source="sdist" in raw or "git" in source or ("url" in source and "wheels" not in raw),
        needs=_needs(raw.get("dependencies", ())),
        optional={str(name): _needs(needs) for name, needs in optional.items()},
        groups={str(name): _needs(needs) for name, needs in groups.items()},
    )


def _needs(raw: Sequence[Mapping[str, Any]]) -> tuple[LockedDependency, ...]:
    return tuple(
        LockedDependency(
            name=str(one["name"]),
            version=str(one.get("version", "")),
            marker=str(one.get("marker", "")),
            extras=tuple(map(str, one.get("extra", ()))),
        )
        for one in raw
    )


def _file_name(wheel: Mapping[str, Any]) -> str:
    where = str(wheel.get("filename") or wheel.get("path") or wheel.get("url") or "")
    return where.partition("#")[0].rpartition("/")[2].replace("%2B", "+").replace("%2b", "+")
