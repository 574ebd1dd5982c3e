"""Builds of environments by the program uv, and the interpreters that they are made of.

Its path, its settings and the meaning of its failures are in `host.install`.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Protocol

from stoker.core.clock import Clock
from stoker.core.errors import BadInput, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.machine import Platform
from stoker.host.durable import open_regular, read_regular, remove_tree, translated
from stoker.host.identity import ProcessIdentity
from stoker.host.install import UV_SETTINGS, package_folders, uv_environment
from stoker.host.processes import Child, start
from stoker.host.user_switch import end_everybody_of, start_as
from stoker.host.users import OtherUser, acting_as, give_to, may_execute, take_back
from stoker.jobs.pack.environment_files import LOCK, PYPROJECT, REQUIREMENTS, EnvironmentSources, without_folders
from stoker.jobs.pack.lock_file import read_lock

if TYPE_CHECKING:
    from stoker.worker.environments.strict_requirements import Installation
from typing import Any

from stoker.core.jsontext import dumps, loads
from stoker.host.durable import write_file
from stoker.host.folders import names_in

_NAME = re.compile(r"python3(\.\d{1,2})?")
_ASKING_S = 20.0
_LARGEST_BYTES = 1 << 20
_MOST = 100
# The interpreter of an environment is reported as its base interpreter.
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
    """All interpreters of this machine. The file at `memory` caches their versions."""

    def __init__(self, memory: str, *, environment: Mapping[str, str], own_base: str, clock: Clock) -> None:
        self._memory = memory
        self._environment = environment
        self._own_base = own_base
        self._clock = clock
        self._found: tuple[Python, ...] | None = None
        self._found_s = 0.0

    def all(self) -> tuple[Python, ...]:
        """Return every interpreter, the preferred one first. Detected once; only new ones are executed."""
        if self._found is None:
            self._found, self._found_s = self._look(), self._clock.monotonic_s()
        return self._found

    def look_again(self, *, after_s: float) -> None:
        """Detect them again if the last detection is `after_s` ago: one may have been installed."""
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
            remembered = loads(read_regular(self._memory, _LARGEST_BYTES))
        except (OSError, ValueError):
            return {}
        return {path: fields for path, fields in remembered.items() if isinstance(fields, list) and len(fields) == 5}

    def _candidates(self) -> list[str]:
        """Return the files that may be interpreters, each once; preferred ones first."""
        env = self._environment
        home = env.get("HOME", "")
        places = [place for place in env.get("PATH", os.defpath).split(os.pathsep) if place.startswith("/")]
        # A shim is a script that selects an interpreter; the interpreters behind it are found by themselves.
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
    """Return what distinguishes a file from another one at the same path."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return f"{seen.st_ino}-{seen.st_mtime_ns}-{seen.st_size}" if os.access(path, os.X_OK) else None


def _ask_all(paths: Sequence[str], clock: Clock) -> dict[str, list[Any]]:
    """Query the versions of interpreters, in parallel; those without a valid response are left out."""
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


# All variables of the worker that uv gets as another user: the operator's configuration of uv itself.
_FOR_OTHERS = ("LANG", "SSL_CERT_DIR", "SSL_CERT_FILE", *UV_SETTINGS)
_NAMED_INDEX = re.compile(r"UV_INDEX_[A-Z0-9_]+_(?:USERNAME|PASSWORD)")
_PROXIES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")


def uv_environment_for_others(environment: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the variables of a uv that runs as another user: the operator's settings for uv, and places of its own.

    `place` is that user's folder; nothing else of the worker's environment is passed on.
    """
    configured = {name: value for name, value in uv_environment(environment).items() if _is_for_others(name)}
    return {
        **configured,
        "PATH": os.defpath,
        "HOME": os.path.join(place, "home"),
        "TMPDIR": os.path.join(place, "tmp"),
        "UV_CACHE_DIR": os.path.join(place, "cache"),
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }


def _is_for_others(name: str) -> bool:
    return name in _FOR_OTHERS or name.lower() in _PROXIES or _NAMED_INDEX.fullmatch(name) is not None


_LARGEST_TEXT_BYTES = 64 << 20
_MOST_LINES = 2000
_LOOK_EVERY_S = 0.2


@frozen
class Build:
    """The inputs of a build."""

    uv: str
    sources: EnvironmentSources
    folder: str
    """Where its files are copied to."""
    venv: str
    base: Python
    """The interpreter that it is made of."""
    environment: Mapping[str, str]
    platform: Platform
    user: OtherUser | None = None
    """As whom uv runs, with wheels and our own text only (`strict_requirements`); nothing: as ourselves."""


@frozen
class UvExit:
    """The result of a run of uv."""

    exit_code: int
    lines: tuple[str, ...] = ()
    """Its output."""


class BuildListener(Protocol):
    """Receives events of a build."""

    def started(self, group: ProcessIdentity) -> None: ...
    def line(self, text: str) -> None: ...


def lay_out(sources: EnvironmentSources, project: str, folder: str, *, reader: OtherUser | None = None) -> None:
    """Copy an environment's files into a folder of ours, so that nothing else has a say.

    With a `reader` they are opened with that user's rights: the project is a folder that others write to.
    """
    with translated(folder):
        os.makedirs(folder, mode=0o700)
    for path in sources.files:
        to = os.path.join(folder, path)
        with translated(to):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with reading_as(reader):
                source = open_regular(os.path.realpath(os.path.join(project, path)))
            with source, open(to, "wb") as target:
                shutil.copyfileobj(source, target)


def reading_as(reader: OtherUser | None) -> AbstractContextManager[None]:
    """Read files with a user's rights for a block; None: with our own."""
    return nullcontext() if reader is None else acting_as(reader.uid, reader.gid)


def build(work: Build, *, listener: BuildListener, is_stopped: Callable[[], bool], clock: Clock) -> UvExit:
    """Build it; return how uv ended. Everything that was started has ended when this returns or raises.

    Raises `BadInput` if a user is given and the environment's files contain something that is not accepted then.

    With a user, uv runs as that user, who owns what it writes while it runs. No code of a submitter runs meanwhile:
    only wheels are installed. All processes of that user have ended before what it wrote is taken over, so nothing of
    it changes later, and no other build reads anything that this one left.
    """
    if work.user is not None:
        return _build_as(work.user, work, listener, is_stopped, clock)
    _leave_folders_out(work)
    env = uv_environment(work.environment, UV_PROJECT_ENVIRONMENT=work.venv)
    cwd = os.path.join(work.folder, os.path.dirname(work.sources.path))
    return _run_all(commands(work), partial(start, cwd=cwd, env=env), listener, is_stopped, clock)


def commands(work: Build) -> Iterator[tuple[str, ...]]:
    """Return the commands that build an environment as the worker's user.

    Values from a submitter are never separate arguments: they can't be taken for options.
    """
    sources = work.sources
    name = os.path.basename(sources.path)
    extras = tuple(f"--extra={extra}" for extra in sources.extras)
    if sources.kind == LOCK:
        left_out = tuple(f"--no-install-package={one}" for one in _own_packages(work))
        yield (work.uv, "sync", "--frozen", "--no-install-project", *left_out, *extras, "--python", work.base.path)
        return
    yield (work.uv, "venv", "--python", work.base.path, work.venv)
    python = os.path.join(work.venv, "bin", "python")
    here = os.path.dirname(sources.path)
    projects = () if sources.kind == PYPROJECT else (os.path.relpath(one, here or ".") for one in sources.projects)
    wanted = tuple(f"--requirement={os.path.join('.', one)}" for one in (name, *projects))
    yield (work.uv, "pip", "install", "--python", python, *wanted, *extras)


def strict_commands(work: Build, installation: Installation) -> Iterator[tuple[str, ...]]:
    """Return the commands that build an environment as another user, in the folder with the files that we wrote."""
    yield (work.uv, "venv", "--no-config", "--no-project", "--allow-existing", "--python", work.base.path, work.venv)
    python = os.path.join(work.venv, "bin", "python")
    # Copies: a link into uv's cache would be a second name of a file whose owner changes.
    words = ["--no-config", "--no-build", "--link-mode=copy", "--python", python]
    words += ["--no-deps"] if installation.is_complete else []
    words += ["--find-links=./links"] if installation.has_links else []
    words += ["--constraint=./constraints.txt"] if installation.constraints else []
    yield (work.uv, "pip", "install", *words, "--requirement=./requirements.txt")


def _build_as(
    user: OtherUser, work: Build, listener: BuildListener, is_stopped: Callable[[], bool], clock: Clock
) -> UvExit:
    # Loads a library that other builds don't need.
    from stoker.worker.environments.strict_requirements import read_installation  # noqa: PLC0415

    installation = read_installation(work.sources, work.folder, work.platform, work.base.version)
    place = os.path.join(os.path.dirname(work.venv), "build")
    for folder in (place, work.venv):
        remove_tree(folder)
        with translated(folder):
            os.mkdir(folder, 0o700)
    try:
        work = changed(work, uv=_write_build(user, work, installation, place))
        for folder in (place, work.venv):
            give_to(user, folder)
        env = uv_environment_for_others(work.environment, place)
        try:
            ended = _run_all(
                strict_commands(work, installation),
                partial(start_as, user, cwd=place, env=env),
                listener,
                is_stopped,
                clock,
            )
        finally:
            end_everybody_of(user.uid, clock)
        if not ended.exit_code:
            take_back(user, work.venv, keeps_links=False, is_public=True)
            _link(work)
        return ended
    finally:
        remove_tree(place)


def _write_build(user: OtherUser, work: Build, installation: Installation, place: str) -> str:
    """Write all that uv reads into its folder; return uv's path, which that user may execute."""
    with translated(place):
        for name in ("home", "tmp", "cache"):
            os.mkdir(os.path.join(place, name))
        for beside, path in installation.wheels.items():
            to = os.path.join(place, beside)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copyfile(os.path.join(work.folder, path), to)
        for name, lines in (("requirements", installation.requirements), ("constraints", installation.constraints)):
            with open(os.path.join(place, f"{name}.txt"), "w", encoding="ascii") as file:
                file.writelines(f"{line}\n" for line in lines)
        if may_execute(user, work.uv):
            return work.uv
        return str(shutil.copy(work.uv, os.path.join(place, "uv")))


def _link(work: Build) -> None:
    """Make the links of an environment again, as uv makes them. Raises `BadInput` where a wheel has put a file."""
    version = "python" + ".".join(work.base.version.split(".")[:2])
    links = {"bin/python": work.base.path, "bin/python3": "python", f"bin/{version}": "python", "lib64": "lib"}
    for name, target in links.items():
        try:
            os.symlink(target, os.path.join(work.venv, name))
        except FileExistsError:
            raise BadInput(f"a wheel of {work.sources.path} replaces {name} of the environment") from None


def _leave_folders_out(work: Build) -> None:
    """Take the project's own folders out of its requirements: their code comes with the job."""
    for path in work.sources.files if work.sources.kind == REQUIREMENTS else ():
        if path.endswith((".txt", ".in")):
            place = os.path.join(work.folder, path)
            text = read_regular(place, _LARGEST_TEXT_BYTES).decode("utf-8-sig")
            with translated(place), open(place, "w", encoding="utf-8") as file:
                file.write(without_folders(text))


def size_of(venv: str) -> int:
    """Return the size of an environment's packages, from their records."""
    return sum(_recorded_bytes(os.path.join(place, "RECORD")) for place in package_folders(venv))


def uv_of(venv: str) -> str:
    """Return the version of the uv that made an environment, from its record."""
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
    """Return the names of the project's other packages: their code comes with the job."""
    if not work.sources.local:
        return []
    with open(os.path.join(work.folder, work.sources.path), encoding="utf-8-sig") as file:
        return [one.name for one in read_lock(file.read()).others()]


def _run_all(
    commands: Iterable[tuple[str, ...]],
    begin: Callable[..., Child],
    listener: BuildListener,
    is_stopped: Callable[[], bool],
    clock: Clock,
) -> UvExit:
    """Run commands until one fails; return the result of the last one."""
    ended = UvExit(exit_code=0)
    for argv in commands:
        ended = _run(begin(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), listener, is_stopped, clock)
        if ended.exit_code or is_stopped():
            break
    return ended


def _run(child: Child, listener: BuildListener, is_stopped: Callable[[], bool], clock: Clock) -> UvExit:
    lines: list[str] = []
    try:
        listener.started(child.identity)
        for line in _lines(child, is_stopped):
            listener.line(line)
            lines.append(line)
            del lines[:-_MOST_LINES]
        if not is_stopped():
            status = child.wait(clock=clock).status
            return UvExit(exit_code=1 if status is None else status, lines=tuple(lines))
    finally:
        child.stop(grace_s=1.0, clock=clock)
        if child.stdout is not None:
            child.stdout.close()
    return UvExit(exit_code=1, lines=tuple(lines))


def _lines(child: Child, is_stopped: Callable[[], bool]) -> Iterator[str]:
    """Yield its output lines until it exits or is stopped."""
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
