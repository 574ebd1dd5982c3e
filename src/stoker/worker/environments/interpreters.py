"""The machine's own interpreters, of which environments are made: found where they usually lie, each asked once.

What an interpreter said is remembered until its file is another one. `python3` of `PATH` goes before the others: it is
the one that a person means who says nothing; then the newest.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import read_regular, translated, write_file
from stoker.host.folders import names_in
from stoker.host.processes import Child, start

_NAME = re.compile(r"python3(\.\d{1,2})?")
_ASKING_S = 20.0
_LARGEST_BYTES = 1 << 20
_MOST = 100
# An environment's interpreter stands for the one that it was made of.
_QUESTION = """
import json, platform, sys
base = getattr(sys, "_base_executable", "") or sys.executable
print(json.dumps([platform.python_version(), sys.implementation.name, base, sys.prefix != sys.base_prefix]))
"""


@frozen
class Python:
    """One interpreter."""

    path: str
    version: str
    """`3.11.7`."""


class Interpreters:
    """All of them. The file at `memory` keeps what each said."""

    def __init__(self, memory: str, *, environment: Mapping[str, str], own_base: str, clock: Clock) -> None:
        self._memory = memory
        self._environment = environment
        self._own_base = own_base
        self._clock = clock
        self._found: tuple[Python, ...] | None = None
        self._found_s = 0.0

    def all(self) -> tuple[Python, ...]:
        """Return every interpreter, the preferred one first. Looked for once; asked are those that are new."""
        if self._found is None:
            self._found, self._found_s = self._look(), self._clock.monotonic_s()
        return self._found

    def look_again(self, *, after_s: float) -> None:
        """Look for them anew where the last look is so long ago: somebody may have put one there."""
        if self._clock.monotonic_s() - self._found_s >= after_s:
            self._found = None

    def _look(self) -> tuple[Python, ...]:
        marks = {path: mark for path in self._candidates() if (mark := _mark(path)) is not None}
        known = self._remembered()
        said = {path: known[path] for path, mark in marks.items() if path in known and known[path][0] == mark}
        new = [path for path in marks if path not in said]
        if new:
            answers = _ask_all(new, self._clock)
            said |= {path: [marks[path], *answer] for path, answer in answers.items()}
            with suppress(StokerError), translated(self._memory):
                os.makedirs(os.path.dirname(self._memory), exist_ok=True)
                write_file(self._memory, dumps(said).encode())
        return _ordered([(path, said[path][1:]) for path in marks if path in said])

    def _remembered(self) -> dict[str, list[Any]]:
        try:
            told = loads(read_regular(self._memory, _LARGEST_BYTES))
        except (OSError, ValueError):
            return {}
        return {path: said for path, said in told.items() if isinstance(said, list) and len(said) == 5}

    def _candidates(self) -> list[str]:
        """Return the files that may be interpreters, each once; whoever is preferred first."""
        env = self._environment
        home = env.get("HOME", "")
        places = [place for place in env.get("PATH", os.defpath).split(os.pathsep) if place.startswith("/")]
        # A shim is a script that asks what to run; the interpreters behind it are found by themselves.
        places = [place for place in places if not place.rstrip("/").endswith("/shims")]
        pyenv = env.get("PYENV_ROOT", "") or os.path.join(home, ".pyenv")
        of_uv = env.get("UV_PYTHON_INSTALL_DIR", "") or os.path.join(
            env.get("XDG_DATA_HOME", "") or os.path.join(home, ".local", "share"), "uv", "python"
        )
        found = [*_in_folders(places), self._own_base]
        for root in (os.path.join(pyenv, "versions"), of_uv, "/opt/python"):
            found += _in_folders(os.path.join(root, name, "bin") for name in names_in(root))
        by_file: dict[str, str] = {}
        for path in filter(None, found):
            by_file.setdefault(os.path.realpath(path), path)
        return list(by_file.values())[:_MOST]


def _ordered(found: Sequence[tuple[str, Sequence[Any]]]) -> tuple[Python, ...]:
    pythons: dict[str, Python] = {}
    for _, (version, implementation, base, _is_environment) in found:
        if implementation == "cpython" and os.access(base, os.X_OK):
            pythons.setdefault(os.path.realpath(base), Python(path=base, version=version))
    if not pythons:
        return ()
    first, *rest = pythons.values()
    return (first, *sorted(rest, key=lambda one: _numbers(one.version), reverse=True))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _in_folders(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        names = [name for name in names_in(folder) if _NAME.fullmatch(name)]
        yield from (os.path.join(folder, name) for name in sorted(names, key=lambda name: (name != "python3", name)))


def _mark(path: str) -> str | None:
    """Return what tells a file from another one at the same path."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return f"{seen.st_ino}-{seen.st_mtime_ns}-{seen.st_size}" if os.access(path, os.X_OK) else None


def _ask_all(paths: Sequence[str], clock: Clock) -> dict[str, list[Any]]:
    """Ask interpreters who they are, all at once; those that don't answer are none."""
    children: dict[str, Child] = {}
    for path in paths:
        with suppress(StokerError):
            argv = (path, "-I", "-S", "-c", _QUESTION)
            children[path] = start(argv, cwd="/", env={"PATH": os.defpath}, stdout=subprocess.PIPE)
    answers: dict[str, list[Any]] = {}
    for path, child in children.items():
        with suppress(TimeoutError, ValueError, StokerError):
            child.wait(_ASKING_S, clock)
            said = loads(child.stdout.read() if child.stdout is not None else b"")
            if isinstance(said, list) and len(said) == 4 and isinstance(said[0], str) and isinstance(said[2], str):
                answers[path] = said
        if child.poll() is None:
            child.stop(grace_s=0.0, clock=clock)
        if child.stdout is not None:
            child.stdout.close()
    return answers
