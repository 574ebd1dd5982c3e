"""All commands of operators beside the attempts of one keeper. Nothing here keeps the keeper waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from stoker.model.clock import Clock
from stoker.model.leases import Token
from stoker.wire.leasing import ExecCall
from stoker.worker.inside.place import Place
from stoker.worker.inside.session import NOT_STARTED, ExecLine, ExecSession

MOST_PER_JOB = 4
_REMEMBERED = 1000


class Sessions:
    """A thread for each session."""

    def __init__(self, line: ExecLine, clock: Clock) -> None:
        self._line = line
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, ExecSession] = {}
        self._known: deque[str] = deque(maxlen=_REMEMBERED)

    def open(self, call: ExecCall, place: Callable[[], Place]) -> None:
        """Begin a session; one that was begun before is not begun again: a machine is told until it has answered."""
        session = self._new(call)
        if session is None:
            return
        with self._lock:
            theirs = [one for one in self._live.values() if one.token == session.token]
            is_room = len(theirs) < MOST_PER_JOB
            if is_room:
                self._live[call.id] = session
        if is_room:
            self._in_thread(lambda: self._see_through(session, place))
        else:
            self._refuse(session, f"{MOST_PER_JOB} commands run inside this job already")

    def refuse(self, call: ExecCall, why: str) -> None:
        """Say why a session is not begun."""
        session = self._new(call)
        if session is not None:
            self._refuse(session, why)

    def end(self, token: Token, why: str) -> None:
        """End all commands beside an attempt, and see them gone."""
        for session in self._of(token):
            session.end(why)

    def close(self, why: str) -> None:
        """End all commands."""
        for session in self._of(None):
            session.end(why)

    def _new(self, call: ExecCall) -> ExecSession | None:
        with self._lock:
            if call.id in self._known:
                return None
            self._known.append(call.id)
        return ExecSession(call, self._line, self._clock)

    def _of(self, token: Token | None) -> list[ExecSession]:
        with self._lock:
            return [one for one in self._live.values() if token in (None, one.token)]

    def _see_through(self, session: ExecSession, place: Callable[[], Place]) -> None:
        try:
            session.run(place)
        finally:
            with self._lock:
                self._live.pop(session.call.id, None)

    def _refuse(self, session: ExecSession, why: str) -> None:
        self._in_thread(lambda: session.tell_end(NOT_STARTED, why))

    def _in_thread(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name="stoker-exec", daemon=True).start()
