"""The Python that `python` means to the user: theirs, never the one that happens to run Stoker.

In this order: the one that was named; the active environment; `.venv` of the folder; the first on `PATH`. Two
environments that may be active by accident come after the folder's own `.venv`: Stoker's own, and conda's `base`. A
private environment of Stoker, which a launcher may have put first on `PATH`, is taken off it: neither Python nor any
other program is ever found there by accident.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from stoker.core.errors import LocalFile, NoPermission
from stoker.core.frozen import fresh, frozen
from stoker.host.box_entry import find_program

_BARE = re.compile(r"python(3(\.\d+)?)?")
# What pipx and uv leave in an environment that they made for one tool, and where uv keeps temporary ones.
_PRIVATE_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
_UV_CACHE = re.compile(r"/uv/(archive|environments|builds)-v\d+/")
_ANY = ("python", "python3")
"""Names that mean any Python 3; another one names its version and is used as it is."""


@frozen
class FolderInterpreter:
    """The interpreter for programs of a folder."""

    path: str
    """Empty if there is none."""
    why: str
    env: Mapping[str, str | None] = fresh(factory=dict)
    """Variables for a program, so that everything it starts finds the same one; `None` is not set."""


def is_bare_python(word: str) -> bool:
    """Return True if a word means any Python."""
    return _BARE.fullmatch(word) is not None


def find_python(
    wanted: str, *, folder: str, environment: Mapping[str, str], own_prefix: str, word: str = "python"
) -> FolderInterpreter:
    """Choose the interpreter that `word` means in a folder.

    `wanted` names one: a path, the folder of an environment, or a program on `PATH`; `LocalFile` if it does not exist.
    """
    path = _without_private(environment.get("PATH", os.defpath), own_prefix)
    around = {**environment, "PATH": path}
    if wanted:
        return _named(wanted, word, folder, around)
    for prefix, why in _environments(folder, environment, own_prefix):
        if found := _in_environment(prefix, word):
            return FolderInterpreter(path=found, why=why, env=_inside(prefix, path))
    found = _on_path(word, folder, around)
    return FolderInterpreter(path=found, why="PATH" if found else f"{word} not found on PATH", env={"PATH": path})


def _environments(folder: str, environment: Mapping[str, str], own_prefix: str) -> list[tuple[str, str]]:
    """Return the candidate environments, the likeliest first, each with the reason."""
    virtual = (environment.get("VIRTUAL_ENV", ""), "the active environment (VIRTUAL_ENV)")
    conda = (environment.get("CONDA_PREFIX", ""), "the active environment (CONDA_PREFIX)")
    beside = (os.path.join(folder, ".venv"), "the folder's .venv")
    is_base = environment.get("CONDA_DEFAULT_ENV", "") in ("base", "root")
    wished = [
        one
        for one in (virtual, conda)
        if one[0] and not _is_same(one[0], own_prefix) and not (one is conda and is_base)
    ]
    unwished = [one for one in (virtual, conda) if one[0] and one not in wished]
    return [*wished, beside, *unwished]


def _named(wanted: str, word: str, folder: str, environment: Mapping[str, str]) -> FolderInterpreter:
    path = os.path.join(folder, os.path.expanduser(wanted))
    prefix = os.path.dirname(os.path.dirname(path))
    if os.path.isdir(path):
        prefix, path = path, os.path.join(path, "bin", "python")
    elif "/" not in wanted and not os.path.exists(path):
        path = _found(wanted, folder, environment)
        prefix = os.path.dirname(os.path.dirname(path))
    if not path or not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise LocalFile(
            f"there is no Python at {path or wanted}", hint="python= takes an interpreter or a .venv folder"
        )
    is_environment = os.path.isfile(os.path.join(prefix, "pyvenv.cfg"))
    return FolderInterpreter(
        path=path if word in _ANY or word == os.path.basename(path) else _found(word, folder, environment),
        why="as asked (python=)",
        # The variable of another active environment would be wrong for programs that read it.
        env=_inside(prefix, environment["PATH"])
        if is_environment
        else {"PATH": environment["PATH"], "VIRTUAL_ENV": None},
    )


def _in_environment(prefix: str, word: str) -> str:
    for name in (word, "python") if word in _ANY else (word,):
        path = os.path.join(prefix, "bin", name)
        if os.access(path, os.X_OK):
            return path
    return ""


def _on_path(word: str, folder: str, environment: Mapping[str, str]) -> str:
    others = [other for other in _ANY if other != word] if word == "python" else []
    return next((found for name in (word, *others) if (found := _found(name, folder, environment))), "")


def _found(name: str, folder: str, environment: Mapping[str, str]) -> str:
    try:
        return os.path.join(folder, find_program(name, cwd=folder, env=environment))
    except (LocalFile, NoPermission):
        return ""


def _inside(prefix: str, path: str) -> dict[str, str | None]:
    """Return the variables that activating an environment would set."""
    scripts = os.path.join(prefix, "bin")
    rest = [place for place in path.split(os.pathsep) if place != scripts]
    changes: dict[str, str | None] = {"PATH": os.pathsep.join([scripts, *rest])}
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
        changes["VIRTUAL_ENV"] = prefix
    return changes


def _without_private(path: str, own_prefix: str) -> str:
    """Remove an environment that a tool's installer made for Stoker alone from a `PATH`.

    Any other environment with Stoker in it that is on `PATH` is there on purpose: a container's, a cluster's.
    """
    is_private = any(os.path.isfile(os.path.join(own_prefix, mark)) for mark in _PRIVATE_MARKS)
    if not is_private and not _UV_CACHE.search(own_prefix):
        return path
    own = os.path.join(own_prefix, "bin")
    return os.pathsep.join(place for place in path.split(os.pathsep) if not _is_same(place, own))


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False
