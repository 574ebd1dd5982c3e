"""Attempts as members of a company: each finds the living one, or starts it, and is told of its own work alone.

An attempt never outlives its run: the end of its connection frees its seat. To stop it is a message, to kill it is to
hang up; the company is never killed for one member. If the company's process is lost, all its members are, each to be
tried again as its own policy says. One that does not answer, since somebody stopped it, is waited for so long and no
longer: then its door is taken away, and another company begun. Linux only.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from stoker.host.door import Door
from stoker.host.identity import Liveness, is_alive
from stoker.host.log_file import LogFile
from stoker.model.clock import Clock
from stoker.model.errors import ArgsFaults, NoPermission, ProcessLost, StokerError
from stoker.model.faults import Fault
from stoker.model.retry import Cause
from stoker.model.units import format_duration
from stoker.plan.company.founding import CompanySettings, begin_company, company_name
from stoker.plan.company.greeting import ComeAgain, Greeted, Unanswered, be_greeted
from stoker.plan.company.words import Frames, LastWords, framed, is_ready, read_last_words, receive
from stoker.plan.process_runner import as_request
from stoker.plan.program.end import out_of_memory
from stoker.plan.runner import Attempt, Failed, Finished, Usage, Work
from stoker.plan.stage import Stage
from stoker.plan.stays import read_stay

_MOST_TRIES = 5
_LOOK_S = 0.25
_LAST_WORDS_S = 10.0
_FAREWELL_S = 5.0


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

    def is_begun(self, company: str) -> bool:
        """Say whether there is a company of that key without devices, of whichever run: its base is there already."""
        settings = self._settings()
        with suppress(StokerError):
            return Door(settings.folder, company_name(company, (), settings)).is_answered()
        return False

    def close(self) -> None:
        """A company belongs to no run: it ends when nobody is left in it."""


class _Standing(Enum):
    """Where a member is."""

    OUTSIDE = auto()
    JOINING = auto()
    """A part of what it is here for may be said."""
    JOINED = auto()


class _Member:
    def __init__(self, work: Work, settings: CompanySettings, clock: Clock) -> None:
        self._work = work
        self._settings = settings
        self._clock = clock
        self._door = Door(settings.folder, company_name(work.company, work.devices, settings))
        self._log = LogFile(work.folders.log_of(work.node))
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._standing = _Standing.OUTSIDE
        self._stopped = threading.Event()
        self._killed_s: float | None = None

    def run(self) -> Finished | Failed:
        try:
            said = self._said()
            for _ in range(_MOST_TRIES):
                with suppress(ComeAgain):
                    return self._try(said)
            raise ProcessLost(f"{_MOST_TRIES} companies ended before it could join one")
        except ProcessLost as error:
            return Failed(cause=Cause.LOST, message=str(error), hint=error.hint, error_code=error.code)
        except (ArgsFaults, NoPermission) as error:
            # Neither is otherwise a moment later.
            return Failed(cause=Cause.INPUT, message=str(error), hint=error.hint, error_code=error.code)
        except StokerError as error:
            return Failed(cause=Cause.IO, message=str(error), hint=error.hint, error_code=error.code)
        finally:
            self._log.close()

    def ask_to_stop(self) -> None:
        with self._lock:
            self._stopped.set()
            self._part()

    def kill(self) -> bool:
        with self._lock:
            self._stopped.set()
            self._killed_s = self._clock.monotonic_s()
            self._part()
        return True

    def _part(self) -> None:
        """Say that this attempt is to stop, or hang up if it was killed, without waiting; the caller holds the lock.

        Whoever is joining looks for itself.
        """
        link = self._link
        if link is None:
            return
        with suppress(OSError):
            if self._standing is _Standing.OUTSIDE:
                # Nobody works for it yet.
                link.shutdown(socket.SHUT_RDWR)
            elif self._standing is _Standing.JOINED and self._killed_s is not None:
                # The other direction stays open for a last word: that nobody writes to its folder any more.
                link.shutdown(socket.SHUT_WR)
            elif self._standing is _Standing.JOINED:
                link.send(framed({"stop": True}), socket.MSG_DONTWAIT)

    def _said(self) -> bytes:
        """Give what a company is told of the work: made before it waits, for to find the inputs may take a while."""
        work = self._work
        join = {
            "join": {
                **as_request(work),
                "who": f"{work.folders.job}/{work.node}",
                "most": work.most,
                "claim": work.claim,
            }
        }
        try:
            return framed(join)
        except ValueError as error:
            fault = Fault(work.node, f"its arguments are too long for a company: {error}", "--solo needs none")
            raise ArgsFaults(str(fault), faults=(fault,), hint=fault.hint) from None

    def _try(self, said: bytes) -> Finished | Failed:
        # First: what is opened after this may be another one's.
        mark = self._door.mark()
        link = self._door.knock()
        if link is None:
            link, mark = begin_company(self._work, self._settings, self._door, self._clock)
        if link is None:
            raise ComeAgain
        with link:
            with self._lock:
                self._link, self._standing = link, _Standing.OUTSIDE
                if self._stopped.is_set():
                    return _STOPPED_EARLY
            try:
                return self._take_part(link, said)
            except Unanswered:
                self._give_up(mark)
                raise ComeAgain from None
            finally:
                with self._lock:
                    self._link = None

    def _give_up(self, mark: str) -> None:
        """Take away the door of that opening: the next company found is another.

        Raises `ProcessLost` where a second base has no room: on a device, where it is in no ledger, or in memory.
        """
        waited = f"has not answered for {format_duration(self._settings.answer_s)}"
        short = "" if self._work.devices else self._work.short_of_base()
        if self._work.devices or short:
            hint = "somebody may have stopped its process, stoker-company: kill -CONT lets it go on, kill -9 ends it"
            beside = f", and there is no room for another: {short}" if short else f": {self._door.path}"
            raise ProcessLost(f"its company {waited}{beside}", hint=hint)
        self._note(f"the company at {self._door.path} {waited}: another one is begun")
        self._door.take_away(mark)

    def _take_part(self, link: socket.socket, said: bytes) -> Finished | Failed:
        frames = Frames()
        try:
            greeted, waiting = be_greeted(link, frames, within_s=self._settings.answer_s, clock=self._clock)
        except ComeAgain:
            if self._stopped.is_set():
                return _STOPPED_EARLY
            raise
        except ValueError as error:
            raise ProcessLost(f"what answers at {self._door.path} is no company: {error}") from None
        try:
            self._work.started(greeted.identity)
            self._note(f"in the company of process {greeted.identity.pid}")
            if not self._join(link, said):
                return _STOPPED_EARLY
            return self._listen(link, frames, waiting) or self._lost(greeted)
        except (ConnectionError, ValueError) as error:
            self._note(f"the company's connection: {error}")
            return self._lost(greeted)
        finally:
            os.close(greeted.words_fd)

    def _join(self, link: socket.socket, said: bytes) -> bool:
        """Say what the work is; not if this attempt is stopped before that is whole. Raises `Unanswered`."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._standing = _Standing.JOINING
        # Not under the lock: whoever wants to stop it must not wait for a company that does not listen.
        deadline_s = self._clock.monotonic_s() + self._settings.answer_s
        unsent = memoryview(said)
        while unsent:
            if self._stopped.is_set():
                return False
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise Unanswered
            if is_ready(link, select.POLLOUT, min(left_s, _LOOK_S)):
                with suppress(BlockingIOError):
                    unsent = unsent[link.send(unsent, socket.MSG_DONTWAIT) :]
        with self._lock:
            self._standing = _Standing.JOINED
            if self._stopped.is_set():
                self._part()
        return True

    def _listen(
        self, link: socket.socket, frames: Frames, waiting: Sequence[dict[str, Any]]
    ) -> Finished | Failed | None:
        """Pass on what is said until the answer; nothing if there is none."""
        bodies = list(waiting)
        while True:
            for body in bodies:
                if isinstance(body.get("answer"), dict):
                    return self._read_answer(body)
                self._pass_on(body)
            if self._killed_s is not None and self._clock.monotonic_s() - self._killed_s > _FAREWELL_S:
                return Failed(cause=Cause.CANCELLED, message="it did not leave its company in time")
            if not is_ready(link, select.POLLIN, _LOOK_S):
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
        elif isinstance(body.get("told"), str) or _is_step(body):
            self._work.emit(body)

    def _read_answer(self, body: Mapping[str, Any]) -> Finished | Failed:
        # Its process has others' memory in it, too: no measure of how much this work needs by itself.
        answer, peak_bytes = body["answer"], body.get("peak_rss_bytes")
        usage = Usage(
            peak_rss_bytes=peak_bytes if isinstance(peak_bytes, int) else None, stay=read_stay(body.get("company"))
        )
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

    def _lost(self, greeted: Greeted) -> Failed:
        """Say why the connection ended without an answer, from what the keeper left."""
        if self._stopped.is_set():
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
            is_kept = is_alive(greeted.keeper) is not Liveness.GONE
            words = LastWords(how="and its keeper has not said how" if is_kept else "and its keeper with it")
        self._note(words.said)
        return _failure(words, greeted.identity.pid)

    def _note(self, text: str) -> None:
        if text:
            self._log.write(text.encode(errors="replace").rstrip(b"\n") + b"\n")


def _is_step(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("step"), int) and isinstance(body.get("metrics"), dict)


_STOPPED_EARLY = Failed(cause=Cause.CANCELLED, message="it was stopped before it began")


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
