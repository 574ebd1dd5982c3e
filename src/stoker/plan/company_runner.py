"""Attempts as members of a company: each finds the living one, or starts it, and is told of its own work alone.

An attempt never outlives its run: the end of its connection frees its seat. To stop it is a message, to kill it is to
hang up; the company is never killed for one member. If the company's process is lost, all its members are, each to be
tried again as its own policy says. Linux only.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.host.containment.box import MARK
from stoker.host.door import Door, Opened
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.host.log_file import LogFile
from stoker.host.processes import start
from stoker.host.script_orders import written
from stoker.model.clock import Clock
from stoker.model.digests import digest_value
from stoker.model.errors import ProcessLost, StokerError
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps
from stoker.model.retry import Cause
from stoker.plan.company_words import FORMAT, Frames, LastWords, framed, read_last_words, receive, words_from_json
from stoker.plan.device_variables import HIDDEN, VRAM_BYTES
from stoker.plan.process_runner import as_request
from stoker.plan.program_end import out_of_memory
from stoker.plan.runner import Attempt, Failed, Finished, Usage, Work
from stoker.plan.stage import Stage

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.plan.company_host import main; main(int(sys.argv[1]))"
)
_MOST_TRIES = 5
_LOOK_S = 0.25
_LAST_WORDS_S = 10.0
_FAREWELL_S = 5.0
_START_S = 30.0


@frozen
class CompanySettings:
    """What all companies that are started from here have in common."""

    folder: str
    """Where their doors are: this user's own, on this machine."""
    home: str
    """Of runs with another home, nobody joins."""
    cwd: str
    environment: Mapping[str, str]
    contain: str | None
    """The containment that was asked for; nothing: the strongest that works."""
    version: str
    linger_s: float
    """How long a company waits for others when nobody is left."""
    patience_s: float = 60.0
    """When one without members that does not end is ended."""


class CompanyRunner:
    """Makes members."""

    is_here = False

    def __init__(self, settings: Callable[[], CompanySettings], *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """A company is started from what runs already: nothing can be missing."""

    def attempt(self, work: Work) -> Attempt:
        return _Member(work, self._settings(), self._clock)

    def close(self) -> None:
        """A company belongs to no run: it ends when nobody is left in it."""


def company_name(work: Work, settings: CompanySettings) -> str:
    """Name the company that an attempt joins: the same only for what may share a process."""
    same = [FORMAT, work.company, list(work.devices), settings.home, settings.version, sys.executable, list(sys.path)]
    return digest_value("company name", same)[:24]


@frozen
class _Greeted:
    """Who answered at the door."""

    identity: ProcessIdentity
    keeper: ProcessIdentity
    words_fd: int
    """Where the keeper leaves last words. Held shared as long as this member lives, for the keeper to see."""


class _Again(Exception):
    """The company ended before this member was in it: the next one is to be found."""


class _Member:
    def __init__(self, work: Work, settings: CompanySettings, clock: Clock) -> None:
        self._work = work
        self._settings = settings
        self._clock = clock
        self._door = Door(settings.folder, company_name(work, settings))
        self._log = LogFile(work.folders.log_of(work.node))
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._has_joined = False
        self._is_stopped = False
        self._killed_s: float | None = None

    def run(self) -> Finished | Failed:
        try:
            for _ in range(_MOST_TRIES):
                try:
                    return self._try()
                except _Again:
                    continue
            raise ProcessLost(f"{_MOST_TRIES} companies ended before it could join one")
        except ProcessLost as error:
            return Failed(cause=Cause.LOST, message=str(error), hint=error.hint, error_code=error.code)
        except StokerError as error:
            return Failed(cause=Cause.IO, message=str(error), hint=error.hint, error_code=error.code)
        finally:
            self._log.close()

    def ask_to_stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            link, has_joined = self._link, self._has_joined
            if link is None:
                return
            with suppress(OSError):
                if has_joined:
                    link.sendall(framed({"stop": True}))
                else:
                    # Nobody works for it yet.
                    link.shutdown(socket.SHUT_RDWR)

    def kill(self) -> bool:
        with self._lock:
            self._is_stopped = True
            self._killed_s = self._clock.monotonic_s()
            if self._link is not None:
                # The other direction stays open for a last word: that nobody writes to its folder any more.
                with suppress(OSError):
                    self._link.shutdown(socket.SHUT_WR if self._has_joined else socket.SHUT_RDWR)
        return True

    def _try(self) -> Finished | Failed:
        link = self._door.knock() or self._begin()
        if link is None:
            raise _Again
        with link:
            with self._lock:
                self._link, self._has_joined = link, False
                if self._is_stopped:
                    return _STOPPED_EARLY
            try:
                return self._take_part(link)
            finally:
                with self._lock:
                    self._link = None

    def _begin(self) -> socket.socket | None:
        """Open the door, knock at it, and start a keeper that has the door opened; nothing if another was quicker."""
        opened = self._door.open()
        if opened is None:
            return None
        link: socket.socket | None = None
        try:
            with opened.listener:
                link = self._door.knock()
                self._start_keeper(opened)
        except BaseException:
            self._door.close(opened)
            if link is not None:
                link.close()
            raise
        return link

    def _start_keeper(self, opened: Opened) -> None:
        work, settings = self._work, self._settings
        variables = {name: value for name, value in (work.variables or HIDDEN).items() if name != VRAM_BYTES}
        environment = {name: value for name, value in settings.environment.items() if name != MARK}
        listener_fd = opened.listener.fileno()
        order = {
            "run": work.stage.together.run if work.stage.together else "",
            "folder": self._door.folder,
            "name": self._door.name,
            "mark": opened.mark,
            "listener_fd": listener_fd,
            "devices": list(work.devices),
            "variables": variables,
            # Unless somebody said otherwise: threads that spin while they wait take the cores of those they wait for.
            "environment": {"OMP_WAIT_POLICY": "passive", **environment},
            "memory_bytes": work.memory_bytes,
            "contain": settings.contain,
            "python": sys.executable,
            "sys_path": list(sys.path),
            "cwd": settings.cwd,
            "linger_s": settings.linger_s,
            "patience_s": settings.patience_s,
        }
        with written(order) as descriptor:
            # It leaves this one at once and goes on by itself, in a session of its own.
            first = start(
                [sys.executable, "-P", "-c", _BOOT, str(descriptor), dumps(list(sys.path))],
                cwd="/",
                env=environment,
                pass_fds=(descriptor, listener_fd),
            )
            ended = first.wait(_START_S, self._clock)
        if not ended.is_success:
            raise ProcessLost(f"its company's keeper could not begin: {ended}")

    def _take_part(self, link: socket.socket) -> Finished | Failed:
        frames = Frames()
        greeted, waiting = self._be_greeted(link, frames)
        if greeted is None:
            return _STOPPED_EARLY
        try:
            self._work.started(greeted.identity)
            self._note(f"in the company of process {greeted.identity.pid}")
            work = self._work
            join = framed({"join": {**as_request(work), "most": work.most, "claim": work.claim}})
            with self._lock:
                if self._is_stopped:
                    return _STOPPED_EARLY
                link.sendall(join)
                self._has_joined = True
            return self._listen(link, frames, waiting) or self._lost(greeted)
        except (ConnectionError, ValueError) as error:
            self._note(f"the company's connection: {error}")
            return self._lost(greeted)
        finally:
            os.close(greeted.words_fd)

    def _be_greeted(self, link: socket.socket, frames: Frames) -> tuple[_Greeted | None, list[dict[str, Any]]]:
        """Wait for the company to begin, which may take a while; nobody is given if this attempt is stopped."""
        fds: list[int] = []
        try:
            while True:
                data, more_fds = receive(link)
                fds += more_fds
                if not data:
                    if self._is_stopped:
                        return None, []
                    raise _Again
                bodies = frames.feed(data)
                if bodies:
                    return _read_greeting(bodies[0], fds), bodies[1:]
        except ValueError as error:
            raise ProcessLost(f"what answers at {self._door.path} is no company: {error}") from None
        finally:
            for fd in fds:
                os.close(fd)

    def _listen(
        self, link: socket.socket, frames: Frames, waiting: Sequence[dict[str, Any]]
    ) -> Finished | Failed | None:
        """Pass on what is said until the answer; nothing if there is none."""
        bodies = list(waiting)
        poller = select.poll()
        poller.register(link, select.POLLIN)
        while True:
            for body in bodies:
                if isinstance(body.get("answer"), dict):
                    return self._read_answer(body["answer"], body.get("peak_rss_bytes"))
                self._pass_on(body)
            if self._killed_s is not None and self._clock.monotonic_s() - self._killed_s > _FAREWELL_S:
                return Failed(cause=Cause.CANCELLED, message="it did not leave its company in time")
            if not poller.poll(_LOOK_S * 1000):
                bodies = []
                continue
            data, fds = receive(link)
            for fd in fds:
                os.close(fd)
            if not data:
                return None
            bodies = frames.feed(data)

    def _pass_on(self, body: dict[str, Any]) -> None:
        if isinstance(body.get("log"), str):
            self._note(body["log"])
        elif isinstance(body.get("step"), int) and isinstance(body.get("metrics"), dict):
            self._work.emit(body)

    def _read_answer(self, answer: Mapping[str, Any], peak_bytes: Any) -> Finished | Failed:
        # Its process has others' memory in it, too: no measure of how much this work needs by itself.
        usage = Usage(peak_rss_bytes=peak_bytes if isinstance(peak_bytes, int) else None)
        if answer.get("outcome") == "finished":
            return Finished(usage=usage)
        detail = str(answer.get("detail", ""))
        self._note(detail)
        return Failed(
            cause=Cause(answer.get("cause", Cause.LOST)),
            message=str(answer.get("message", "")),
            hint=str(answer.get("hint", "")),
            detail=detail,
            error_code=str(answer.get("error_code", "stage_failed")),
            usage=usage,
        )

    def _lost(self, greeted: _Greeted) -> Failed:
        """Say why the connection ended without an answer, from what the keeper left."""
        if self._is_stopped:
            return Failed(cause=Cause.CANCELLED, message="it was asked to stop")
        deadline_s = self._clock.monotonic_s() + _LAST_WORDS_S
        while (words := read_last_words(greeted.words_fd)) is None:
            is_kept = is_alive(greeted.keeper) is not Liveness.GONE
            if not is_kept or self._clock.monotonic_s() > deadline_s:
                words = read_last_words(greeted.words_fd)
                break
            self._clock.sleep(0.02)
        if words is None:
            with suppress(StokerError):
                self._door.clear()
            words = LastWords(how="and its keeper with it")
        self._note(words.said)
        return _failure(words, greeted.identity.pid)

    def _note(self, text: str) -> None:
        if text:
            self._log.write(text.encode(errors="replace").rstrip(b"\n") + b"\n")


_STOPPED_EARLY = Failed(cause=Cause.CANCELLED, message="it was stopped before it began")


def _read_greeting(body: dict[str, Any], fds: list[int]) -> _Greeted:
    """Read who answered, and be seen by its keeper from now on.

    Raises `_Again`, `ProcessLost` if there is nobody any more, `ValueError` for what is no greeting.
    """
    if body.get("over") is True:
        if isinstance(body.get("lost"), dict):
            words = words_from_json(body["lost"])
            said = words.said.strip().rpartition("\n")[2]
            raise ProcessLost(f"its company ended before it began ({words.how}){f': {said}' if said else ''}")
        if isinstance(body.get("refused"), dict):
            refused = body["refused"]
            raise ProcessLost(
                f"its company could not begin: {refused.get('message')}", hint=str(refused.get("hint", ""))
            )
        raise _Again
    hello = body.get("hello")
    if body.get("v") != FORMAT or not isinstance(hello, dict) or len(fds) != 1:
        message = "it greets in another way"
        raise ValueError(message)
    identity = ProcessIdentity.from_dict(hello.get("identity") or {})
    keeper = ProcessIdentity.from_dict(hello.get("keeper") or {})
    # An opening of our own, for a lock of our own: what came by a message is the same as everybody's.
    words_fd = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(words_fd, fcntl.LOCK_SH)
    return _Greeted(identity=identity, keeper=keeper, words_fd=words_fd)


def _failure(words: LastWords, pid: int) -> Failed:
    if words.was_out_of_memory:
        return out_of_memory(words.cap_bytes, Usage(), is_part=False)
    hint = "stoker logs shows what it wrote last"
    if words.number == 9:
        hint = "somebody killed it, or the whole machine ran out of memory; `dmesg` would say"
    return Failed(
        cause=Cause.LOST,
        message=f"its company's process {pid} ended without an answer: {words.how}",
        hint=hint,
        error_code=ProcessLost.code,
    )
