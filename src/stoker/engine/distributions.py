"""Versions of installed distributions, read from the names of their metadata folders: no import, no parsing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache

from stoker.core.errors import MissingExtra
from stoker.engine.stage import Stage
from stoker.host.install import pip_install

_ABSENT = "absent"
_NAME = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.(?:dist|egg)-info", re.ASCII)


def version_of(distribution: str) -> str:
    """Return the installed version of a distribution, `absent` if there is none. `python` is the interpreter's own."""
    if distribution == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return _installed(tuple(sys.path)).get(_normal(distribution), _ABSENT)


@cache
def _installed(search: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in search:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith("-info") and (match := _NAME.fullmatch(name)):
                found.setdefault(_normal(match["name"]), match["version"])
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_of(stages: Sequence[Stage]) -> MissingExtra | None:
    """Return which distributions that stages declare to use are not installed, if any."""
    missing: dict[str, str] = {}
    for stage in stages:
        for name in stage.uses:
            if version_of(name) == _ABSENT:
                missing.setdefault(name, stage.name)
    if not missing:
        return None
    first = next(iter(missing.values()))
    extra = first.partition("/")[0]
    is_ours = any(stage.name == first and stage.module.startswith("stoker.cookbooks.") for stage in stages)
    hint = pip_install(f"stoker[{extra}]") if is_ours else pip_install(*sorted(missing))
    message = f"{first} needs {', '.join(sorted(missing))}: not installed"
    return MissingExtra(message, hint=hint, missing=sorted(missing))
