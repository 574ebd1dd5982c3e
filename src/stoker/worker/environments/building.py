"""One environment built by uv: its files laid out, its commands run in a group of their own, its packages counted."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Protocol

from stoker.host.durable import read_regular, translated
from stoker.host.identity import ProcessIdentity
from stoker.host.installed import package_folders
from stoker.host.processes import Child, start
from stoker.model.clock import Clock
from stoker.model.frozen import frozen
from stoker.worker.environments.interpreters import Python
from stoker.worker.environments.lock_file import read_lock
from stoker.worker.environments.sources import LOCK, PYPROJECT, REQUIREMENTS, Sources, without_folders
from stoker.worker.environments.uv import uv_environment

_LARGEST_TEXT_BYTES = 64 << 20
_MOST_LINES = 2000
_LOOK_EVERY_S = 0.2


@frozen
class Build:
    """What is to be built."""

    uv: str
    sources: Sources
    folder: str
    """Where its files are laid out."""
    venv: str
    base: Python
    """The interpreter that it is made of."""
    environment: Mapping[str, str]
    only_wheels: bool = False
    """Nothing is built from source, and no project's settings count: they would act as whoever builds."""


@frozen
class Ended:
    """How uv ended."""

    exit_code: int
    lines: tuple[str, ...] = ()
    """What it said."""


class Hearing(Protocol):
    """Takes what happens while it is built."""

    def started(self, group: ProcessIdentity) -> None: ...
    def line(self, text: str) -> None: ...


def lay_out(sources: Sources, project: str, folder: str) -> None:
    """Copy an environment's files into a folder of its own, so that nothing else has a say."""
    for path in sources.files:
        to = os.path.join(folder, path)
        with translated(to):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            source = os.path.realpath(os.path.join(project, path))
            if sources.kind == REQUIREMENTS and path.endswith((".txt", ".in")):
                text = read_regular(source, _LARGEST_TEXT_BYTES).decode("utf-8-sig")
                with open(to, "w", encoding="utf-8") as file:
                    file.write(without_folders(text))
            else:
                shutil.copyfile(source, to)


def build(work: Build, *, heard: Hearing, is_stopped: Callable[[], bool], clock: Clock) -> Ended:
    """Build it; says how uv ended. Everything that was started has ended when this returns or raises."""
    env = uv_environment(work.environment, UV_PROJECT_ENVIRONMENT=work.venv)
    cwd = os.path.join(work.folder, os.path.dirname(work.sources.path))
    ended = Ended(exit_code=0)
    for argv in commands(work):
        ended = _run(argv, cwd, env, heard, is_stopped, clock)
        if ended.exit_code or is_stopped():
            break
    return ended


def commands(work: Build) -> Iterator[tuple[str, ...]]:
    """Give the commands that make an environment.

    What others named is never a word of its own: it can't be taken for an option.
    """
    sources = work.sources
    name = os.path.basename(sources.path)
    # A project's settings could have uv write wherever they say.
    careful = ("--no-build", "--no-config") if work.only_wheels else ()
    extras = tuple(f"--extra={extra}" for extra in sources.extras)
    if sources.kind == LOCK:
        left_out = tuple(f"--no-install-package={one}" for one in _own_packages(work))
        wanted = ("--no-install-project", *left_out, *extras, *careful)
        yield (work.uv, "sync", "--frozen", *wanted, "--python", work.base.path)
        return
    yield (work.uv, "venv", *careful[1:], "--python", work.base.path, work.venv)
    python = os.path.join(work.venv, "bin", "python")
    here = os.path.dirname(sources.path)
    projects = () if sources.kind == PYPROJECT else (os.path.relpath(one, here or ".") for one in sources.projects)
    wanted = tuple(f"--requirement={os.path.join('.', one)}" for one in (name, *projects))
    yield (work.uv, "pip", "install", "--python", python, *wanted, *extras, *careful)


def size_of(venv: str) -> int:
    """Give how large an environment's packages are, as each wrote down itself."""
    return sum(_recorded_bytes(os.path.join(place, "RECORD")) for place in package_folders(venv))


def uv_of(venv: str) -> str:
    """Give the version of the uv that made an environment, as it wrote down itself."""
    with suppress(OSError, ValueError):
        text = read_regular(os.path.join(venv, "pyvenv.cfg"), _LARGEST_TEXT_BYTES).decode()
        return next((line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("uv ")), "")
    return ""


def _recorded_bytes(path: str) -> int:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return sum(int(size) for line in file if (size := line.rstrip().rpartition(",")[2]).isdecimal())
    except OSError:
        return 0


def _own_packages(work: Build) -> list[str]:
    """Name the project's other packages: their code comes with the job."""
    if not work.sources.local:
        return []
    with open(os.path.join(work.folder, work.sources.path), encoding="utf-8-sig") as file:
        return [one.name for one in read_lock(file.read()).others()]


def _run(
    argv: tuple[str, ...],
    cwd: str,
    env: Mapping[str, str],
    heard: Hearing,
    is_stopped: Callable[[], bool],
    clock: Clock,
) -> Ended:
    child = start(argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    try:
        heard.started(child.identity)
        for line in _lines(child, is_stopped):
            heard.line(line)
            lines.append(line)
            del lines[:-_MOST_LINES]
        if not is_stopped():
            status = child.wait(clock=clock).status
            return Ended(exit_code=1 if status is None else status, lines=tuple(lines))
    finally:
        child.stop(grace_s=1.0, clock=clock)
        if child.stdout is not None:
            child.stdout.close()
    return Ended(exit_code=1, lines=tuple(lines))


def _lines(child: Child, is_stopped: Callable[[], bool]) -> Iterator[str]:
    """Give what it prints, as it does, until it ends or somebody stops it."""
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    if child.stdout is None:
        return
    reader = threading.Thread(target=_read, args=(child.stdout, said), name="stoker-uv", daemon=True)
    reader.start()
    while not is_stopped():
        try:
            line = said.get(timeout=_LOOK_EVERY_S)
        except queue.Empty:
            continue
        if line is None:
            return
        yield line


def _read(stream: IO[bytes], said: queue.SimpleQueue[str | None]) -> None:
    with suppress(OSError, ValueError):
        for line in stream:
            said.put(line.decode("utf-8", "replace").rstrip("\r\n"))
    said.put(None)
