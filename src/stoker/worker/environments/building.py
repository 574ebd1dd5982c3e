"""One environment built by uv: its files laid out, its commands run in a group of their own, its packages counted.

With a user, uv runs as that user, who owns what it writes while it runs:

    KEY/build/     requirements that we wrote, the project's wheels, uv's home, cache and temporary files; then removed
    KEY/venv/      then ours again, read by everybody, its links made by us

No code of a submitter runs meanwhile: only wheels are installed. All processes of that user have ended before what it
wrote is taken over, so nothing of it changes later, and no other build reads anything that this one left.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Protocol

from stoker.host.acting_as import acting_as
from stoker.host.durable import open_regular, read_regular, remove_tree, translated
from stoker.host.identity import ProcessIdentity
from stoker.host.installed import package_folders
from stoker.host.other_user import OtherUser, may_execute
from stoker.host.ownership import give_to, take_back
from stoker.host.processes import Child, start
from stoker.host.switching import start_as
from stoker.host.user_processes import end_everybody_of
from stoker.model.clock import Clock
from stoker.model.errors import BadInput
from stoker.model.frozen import changed, frozen
from stoker.model.platforms import Platform
from stoker.worker.environments.interpreters import Python
from stoker.worker.environments.lock_file import read_lock
from stoker.worker.environments.sources import LOCK, PYPROJECT, REQUIREMENTS, Sources, without_folders
from stoker.worker.environments.uv import uv_environment, uv_environment_for_others

if TYPE_CHECKING:
    from stoker.worker.environments.strict_requirements import Installation

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
    platform: Platform
    user: OtherUser | None = None
    """As whom uv runs, with wheels and our own text only (`strict_requirements`); nothing: as ourselves."""


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


def lay_out(sources: Sources, project: str, folder: str, *, reader: OtherUser | None = None) -> None:
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
    """Read files with a user's rights for a block; nothing: with our own."""
    return nullcontext() if reader is None else acting_as(reader.uid, reader.gid)


def build(work: Build, *, heard: Hearing, is_stopped: Callable[[], bool], clock: Clock) -> Ended:
    """Build it; return how uv ended. Everything that was started has ended when this returns or raises.

    Raises `BadInput` if a user is given and the environment's files ask for something that is not accepted then.
    """
    if work.user is not None:
        return _build_as(work.user, work, heard, is_stopped, clock)
    _leave_folders_out(work)
    env = uv_environment(work.environment, UV_PROJECT_ENVIRONMENT=work.venv)
    cwd = os.path.join(work.folder, os.path.dirname(work.sources.path))
    return _run_all(commands(work), partial(start, cwd=cwd, env=env), heard, is_stopped, clock)


def commands(work: Build) -> Iterator[tuple[str, ...]]:
    """Return the commands that make an environment as ourselves.

    What others named is never a word of its own: it can't be taken for an option.
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
    """Return the commands that make an environment as another user, in the folder with the files that we wrote."""
    yield (work.uv, "venv", "--no-config", "--no-project", "--allow-existing", "--python", work.base.path, work.venv)
    python = os.path.join(work.venv, "bin", "python")
    # Copies: a link into uv's cache would be a second name of a file that changes hands.
    words = ["--no-config", "--no-build", "--link-mode=copy", "--python", python]
    words += ["--no-deps"] if installation.is_complete else []
    words += ["--find-links=./links"] if installation.has_links else []
    words += ["--constraint=./constraints.txt"] if installation.constraints else []
    yield (work.uv, "pip", "install", *words, "--requirement=./requirements.txt")


def _build_as(user: OtherUser, work: Build, heard: Hearing, is_stopped: Callable[[], bool], clock: Clock) -> Ended:
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
                heard,
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
    """Make the links of an environment anew, as uv makes them. Raises `BadInput` where a wheel has put a file."""
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


def _run_all(
    commands: Iterable[tuple[str, ...]],
    begin: Callable[..., Child],
    heard: Hearing,
    is_stopped: Callable[[], bool],
    clock: Clock,
) -> Ended:
    """Run commands until one fails; return how the last one ended."""
    ended = Ended(exit_code=0)
    for argv in commands:
        ended = _run(begin(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), heard, is_stopped, clock)
        if ended.exit_code or is_stopped():
            break
    return ended


def _run(child: Child, heard: Hearing, is_stopped: Callable[[], bool], clock: Clock) -> Ended:
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
