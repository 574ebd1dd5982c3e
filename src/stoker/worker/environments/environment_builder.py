"""Environments: looked up in milliseconds, built by uv once while others wait; failures are remembered.

A lookup reads a few small files. A build runs in a process group of its own; a caller that stops waiting stops it.
If this process is killed, the next one that needs the environment first stops what is left of the build.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import BadInput, LockHeld, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.job import EnvironmentChoice
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Platform, fits, platform_of, tag_of
from stoker.core.text import one_line
from stoker.devices.detection import read_interpreter
from stoker.host.durable import read_regular, write_file
from stoker.host.identity import ProcessIdentity
from stoker.host.install import Diagnosis, Trouble, diagnose, find_uv, packages_in, without_secrets
from stoker.host.interpreter import find_python
from stoker.host.locks import FileLock, read_owner
from stoker.host.processes import stop_group
from stoker.host.users import OtherUser, may_execute, no_such_program
from stoker.jobs.pack.environment_files import LOCK, EnvironmentSources, gather
from stoker.protocol.environment_messages import PYTHON, choose, no_python, own_digest, why_none
from stoker.store.environment_cache import (
    FORGET_S,
    EnvironmentAnswer,
    EnvironmentCache,
    EnvironmentFailed,
    EnvironmentImpossible,
    EnvironmentReady,
    key_of,
    prune,
)
from stoker.worker.environments.uv import (
    Build,
    Interpreters,
    Python,
    build,
    lay_out,
    reading_as,
    size_of,
    uv_of,
)

Say = Callable[[str], None]
"""Receives a line for the job's log."""
_OWN_FORGET_S = 600.0
"""A missing interpreter is looked for again after so long: it may have been installed."""
_LOOK_AGAIN_S = 60.0
_LOOK_EVERY_S = 0.25
_TELL_EVERY_S = 0.5
_LARGEST_BYTES = 1 << 20
_LONGEST_LINE = 300


class Maker:
    """Looks up and builds environments on this machine."""

    def __init__(  # noqa: PLR0913 - a machine, and what may be done on it
        self,
        *,
        shelf: EnvironmentCache,
        environment: Mapping[str, str],
        own_prefix: str,
        clock: Clock,
        own_base: str = getattr(sys, "_base_executable", "") or sys.executable,
        user: OtherUser | None = None,
        keep_bytes: int | None = None,
    ) -> None:
        """Create it.

        With a `user`, environments are for programs of that user, use interpreters that it may execute, and are built
        as that user: it is the job's, and no process of the job runs yet. After each build the least recently used ones
        are deleted until the rest takes `keep_bytes`; None: all stay.
        """
        self.shelf = shelf
        self.user = user
        self._keep_bytes = keep_bytes
        self.interpreters = Interpreters(
            os.path.join(shelf.folder, "interpreters.json"), environment=environment, own_base=own_base, clock=clock
        )
        self._environment = environment
        self._own_prefix = own_prefix
        self._clock = clock

    def for_user(self, user: OtherUser) -> Maker:
        """Return a copy for programs that run as a user."""
        made = copy(self)
        made.user = user
        return made

    @property
    def platform(self) -> Platform:
        """This machine, with the interpreters that its programs may execute."""
        about = os.uname()
        versions = [one.version for one in self._usable()]
        return platform_of(system=about.sysname, machine=about.machine, libc=self._libc, pythons=versions)

    @cached_property
    def _libc(self) -> str:
        return _libc()

    def report(self) -> dict[str, Any]:
        """Return what a worker reports about its environments, as fields of `MachineInventory`."""
        return self.report_for([] if self.user is None else [self.user])

    def report_for(self, users: Sequence[OtherUser]) -> dict[str, Any]:
        """Return the same for a worker whose programs run as any of these users; none: as the worker's own.

        Any of them may get the next job. So an interpreter counts if every user may execute it, and an environment is
        impossible if it is so for one of them.
        """
        # A machine without a Python gets no jobs that need one, so it has to notice a new one by itself.
        self.interpreters.look_again(after_s=_LOOK_AGAIN_S)
        platform = self.platform
        pythons = {str(user.uid): self.for_user(user).platform.pythons for user in users} or {"": platform.pythons}
        is_for_others = bool(users)
        kept = [
            one for one in self.shelf.all_kept() if one.key == key_of(one.digest, platform, is_for_others=is_for_others)
        ]
        return {
            "platform": platform.name,
            "libc": platform.libc,
            "pythons": tuple(
                version for version in platform.pythons if all(version in had for had in pythons.values())
            ),
            "environments": tuple(dict.fromkeys(one.digest for one in reversed(kept)))[:1000],
            "impossible": self.shelf.all_refused(pythons),
            "builds_s": {one.digest: one.seconds for one in kept},
        }

    def key_of(self, digest: str) -> str:
        """Return the key under which an environment of a digest is kept."""
        return key_of(digest, self.platform, is_for_others=self.user is not None)

    def look(
        self, choices: Sequence[EnvironmentChoice], *, folder: str = "/"
    ) -> EnvironmentReady | EnvironmentImpossible | None:
        """Return a job's environment here, without building anything; None: it has to be built.

        `folder` is where the program will run: a path of `python` may be relative to it.
        """
        choice = choose(choices, self.platform)
        if choice is None:
            return EnvironmentImpossible(digest="", why=why_none(choices, self.platform))
        if choice.kind == PYTHON:
            return self._own(choice, folder)
        ready = self.shelf.find(choice.digest, self.key_of(choice.digest))
        if ready is not None and self._is_of_its_python(ready) and self._may_execute(ready.interpreter):
            self.shelf.use(ready.key)
            return ready
        return self.shelf.refused(choice.digest, self.platform.pythons, user=self._run_as)

    def _is_of_its_python(self, ready: EnvironmentReady) -> bool:
        """Return True if its base interpreter has the same version: another one finds none of its packages."""
        base = next((one for one in self.interpreters.all() if one.path == ready.base), None)
        return base is None or tag_of(base.version) == tag_of(ready.version)

    def make(
        self,
        choices: Sequence[EnvironmentChoice],
        *,
        project: str,
        say: Say,
        is_stopped: Callable[[], bool] = lambda: False,
        is_ours: bool = False,
    ) -> EnvironmentAnswer:
        """Return the environment of a job whose code is in `project`; build it if it is missing.

        While another process builds it, that one's last line is logged. Fails if `is_stopped` returns True. A project
        that is not in our own store (`is_ours`) is read with the rights of the job's user.
        """
        found = self.look(choices, folder=project)
        if found is not None:
            return found
        choice = choose(choices, self.platform)
        if choice is None:
            return EnvironmentImpossible(digest="", why=why_none(choices, self.platform))
        key = self.key_of(choice.digest)
        try:
            lock = self._locked(choice, key, say, is_stopped)
            if lock is None:
                return EnvironmentFailed(digest=choice.digest, why="it was stopped")
            try:
                found = self.look(choices, folder=project)
                reader = None if is_ours else self.user
                return found or self._make(choice, key, _Project(folder=project, reader=reader), say, is_stopped)
            finally:
                lock.release()
        except StokerError as error:
            return EnvironmentFailed(digest=choice.digest, why=error.message)

    def _locked(self, choice: EnvironmentChoice, key: str, say: Say, is_stopped: Callable[[], bool]) -> FileLock | None:
        path = self.shelf.lock_path(key)
        self.shelf.make_locks()
        lock = FileLock(path, f"builds {choice.path}", wait_s=0.0, clock=self._clock)
        last_line = ""
        while not is_stopped():
            try:
                lock.acquire(_LOOK_EVERY_S if last_line else 0.0)
            except LockHeld:
                owner = read_owner(path)
                who = f"process {owner.identity.pid}" if owner is not None else "another process"
                line = self._progress(key).get("line", "")
                news = f"{who} builds {choice.path}{f': {line}' if line else ''}"
                if news != last_line:
                    say(news)
                    last_line = news
            else:
                return lock
        return None

    def _make(
        self, choice: EnvironmentChoice, key: str, project: _Project, say: Say, is_stopped: Callable[[], bool]
    ) -> EnvironmentAnswer:
        """Build it. The caller holds its lock."""
        began_s = self._clock.monotonic_s()
        self._end_leftover(key)
        work = self._planned(choice, key, project)
        if not isinstance(work, Build):
            return work
        found = self._built(work, key, say, is_stopped)
        if found is not None and found.trouble is Trouble.IMPOSSIBLE:
            other = self._other(work)
            if other is not None:
                say(f"{found.why}; {other.version} may do better")
                work = changed(work, base=other)
                found = self._built(work, key, say, is_stopped)
        if is_stopped():
            return EnvironmentFailed(digest=choice.digest, why="it was stopped")
        if found is None:
            return self._keep(choice, key, work, self._clock.monotonic_s() - began_s)
        if found.trouble is Trouble.IMPOSSIBLE:
            return self._refuse(choice.digest, found.why)
        return EnvironmentFailed(digest=choice.digest, why=found.why)

    def _built(self, work: Build, key: str, say: Say, is_stopped: Callable[[], bool]) -> Diagnosis | None:
        """Build it with one interpreter; return what went wrong, or None."""
        say(f"builds {work.sources.path} for {self.platform.name} with Python {work.base.version}")
        output = _BuildOutput(say, self._progress_path(key), self._clock)
        try:
            ended = build(work, listener=output, is_stopped=is_stopped, clock=self._clock)
        except BadInput as error:
            return Diagnosis(trouble=Trouble.IMPOSSIBLE, why=error.message)
        where = f"{self.platform.machine} {tag_of(work.base.version)}"
        return diagnose(ended.lines, ended.exit_code, where=where) if ended.exit_code else None

    def _planned(
        self, choice: EnvironmentChoice, key: str, project: _Project
    ) -> Build | EnvironmentImpossible | EnvironmentFailed:
        """Write its files and choose its interpreter; or return why it can't be built."""
        uv = find_uv(self._own_prefix, self._environment)
        if not uv:
            return EnvironmentFailed(digest=choice.digest, why="there is no uv here, beside Stoker or on PATH")
        try:
            with reading_as(project.reader):
                sources = gather_choice(project.folder, choice)
        except BadInput as error:
            return EnvironmentFailed(digest=choice.digest, why=error.message)
        chosen = next((one for one in self._usable() if fits(one.version, sources.python)), None)
        if chosen is None:
            return self._refuse(choice.digest, self._no_python(sources.python))
        self.shelf.remove(key)
        self.shelf.make(key)
        folder = os.path.join(self.shelf.place(key), "project")
        lay_out(sources, project.folder, folder, reader=project.reader)
        try:
            # The copy is what is built, and files of the project may have changed since they were digested.
            gather_choice(folder, choice)
        except BadInput as error:
            return EnvironmentFailed(digest=choice.digest, why=error.message)
        return Build(
            uv=uv,
            sources=sources,
            folder=folder,
            venv=self.shelf.venv(key),
            base=chosen,
            environment=self._environment,
            platform=self.platform,
            user=self.user,
        )

    def _usable(self) -> tuple[Python, ...]:
        """Return the interpreters that its user may execute."""
        return tuple(one for one in self.interpreters.all() if self._may_execute(one.path))

    def _may_execute(self, path: str) -> bool:
        return self.user is None or may_execute(self.user, path)

    @property
    def _run_as(self) -> str:
        return "" if self.user is None else str(self.user.uid)

    def _other(self, failed: Build) -> Python | None:
        """Return another interpreter for which a lock has all wheels, if there is one."""
        if failed.sources.kind != LOCK:
            return None
        # Here alone: mostly the first one does, and this loads a library.
        from stoker.jobs.pack.lock_file import read_lock  # noqa: PLC0415
        from stoker.jobs.pack.wheels import why_impossible  # noqa: PLC0415

        with open(os.path.join(failed.folder, failed.sources.path), encoding="utf-8-sig") as file:
            lock = read_lock(file.read())
        for one in self._usable():
            alone = changed(self.platform, pythons=(one.version,))
            missing = why_impossible(lock, alone, wish=failed.sources.python, extras=failed.sources.extras)
            if not missing and one.version != failed.base.version:
                return one
        return None

    def _keep(self, choice: EnvironmentChoice, key: str, work: Build, seconds: float) -> EnvironmentReady:
        venv = self.shelf.venv(key)
        ready = EnvironmentReady(
            digest=choice.digest,
            key=key,
            interpreter=os.path.join(venv, "bin", "python"),
            version=work.base.version,
            base=work.base.path,
            packages=packages_in(venv),
            local=work.sources.local,
            uv=uv_of(venv),
            seconds=round(seconds, 3),
            size_bytes=size_of(venv),
        )
        self.shelf.keep(ready, user=self._run_as)
        with suppress(OSError):
            os.unlink(self._progress_path(key))
        if self._keep_bytes is not None:
            prune(self.shelf, keep_bytes=self._keep_bytes, clock=self._clock)
        return ready

    def _own(self, choice: EnvironmentChoice, folder: str) -> EnvironmentReady | EnvironmentImpossible:
        """Find the machine's own interpreter. Its digest is computed here: a submitter may have sent a wrong one."""
        digest = own_digest(choice.path, choice.python)
        if not choice.path:
            chosen = next((one for one in self._usable() if fits(one.version, choice.python)), None)
            if chosen is None:
                return self._refuse(digest, self._no_python(choice.python), for_s=_OWN_FORGET_S)
            packages = packages_in(os.path.dirname(os.path.dirname(chosen.path)))
            return EnvironmentReady(
                digest="", key="", interpreter=chosen.path, version=chosen.version, packages=packages
            )
        found, why = None, ""
        try:
            found = find_python(choice.path, folder=folder, environment=self._environment, own_prefix=self._own_prefix)
        except StokerError as error:
            why = error.message
        if found is None or not self._may_execute(found.path):
            # A relative path of this project means nothing for other projects.
            is_everywhere = os.path.isabs(os.path.expanduser(choice.path))
            why = why if self.user is None else no_such_program(choice.path, self.user)
            return self._refuse(digest if is_everywhere else "", why, for_s=_OWN_FORGET_S)
        details = read_interpreter(found.path, self._environment.get("HOME", ""))
        packages = packages_in(os.path.dirname(os.path.dirname(found.path)))
        return EnvironmentReady(digest="", key="", interpreter=found.path, version=details.version, packages=packages)

    def _no_python(self, wish: str) -> str:
        return no_python(wish, self.platform.pythons)

    def _refuse(self, digest: str, why: str, *, for_s: float = FORGET_S) -> EnvironmentImpossible:
        found = EnvironmentImpossible(digest=digest, why=one_line(why, _LONGEST_LINE))
        if digest and self.shelf.refused(digest, self.platform.pythons, user=self._run_as) != found:
            self.shelf.refuse(found, self.platform.pythons, user=self._run_as, for_s=for_s)
        return found

    def _end_leftover(self, key: str) -> None:
        """Stop what is left of a killed builder: its uv would write into the new environment."""
        group = self._progress(key).get("group")
        if isinstance(group, dict):
            with suppress(KeyError, TypeError, ValueError):
                stop_group(ProcessIdentity.from_dict(group), grace_s=0.0, clock=self._clock)

    def _progress(self, key: str) -> dict[str, Any]:
        try:
            progress = loads(read_regular(self._progress_path(key), _LARGEST_BYTES))
        except (OSError, ValueError):
            return {}
        return progress if isinstance(progress, dict) else {}

    def _progress_path(self, key: str) -> str:
        return os.path.join(self.shelf.place(key), "building.json")


def gather_choice(project: str, choice: EnvironmentChoice) -> EnvironmentSources:
    """Gather the files of a choice from a project. Raises `BadInput` if they do not match its digest."""
    sources = gather(project, choice.path, python=choice.python, extras=choice.extras)
    if sources.digest != choice.digest:
        raise BadInput(f"{choice.path} is not the one that was submitted")
    return sources


@frozen
class _Project:
    """The folder of a job's code, and the user that reads it; None: the worker's own."""

    folder: str
    reader: OtherUser | None


class _BuildOutput:
    """Passes uv's output to the job's log and to waiting processes."""

    def __init__(self, say: Say, path: str, clock: Clock) -> None:
        self._say = say
        self._path = path
        self._clock = clock
        self._group: dict[str, object] = {}
        self._written_s = float("-inf")

    def started(self, group: ProcessIdentity) -> None:
        """Record the process group before its first line."""
        self._group = group.to_dict()
        self._tell("")

    def line(self, text: str) -> None:
        clean = one_line(without_secrets(text), _LONGEST_LINE)
        if clean:
            self._say(clean)
            if self._clock.monotonic_s() - self._written_s >= _TELL_EVERY_S:
                self._tell(clean)

    def _tell(self, line: str) -> None:
        self._written_s = self._clock.monotonic_s()
        with suppress(StokerError):
            write_file(self._path, dumps({"group": self._group, "line": line}).encode())


def _libc() -> str:
    """Return this machine's C library: `glibc 2.36`."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        version = ""
    if version:
        return version
    return "musl" if os.path.exists(f"/lib/ld-musl-{os.uname().machine}.so.1") else ""
