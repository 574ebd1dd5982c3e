"""One command beside a running job: started, fed, listened to, and ended for certain. Blocks: it has its own threads.

What it writes is sent as fast as its operator reads, and no faster; secrets of the job are kept out of it. When `run`
returns nothing of it runs, whatever went wrong; if the keeper is killed, a shell beside it sees to that.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from stoker.host.containment.keeper import Keeper
from stoker.host.exit import Exit
from stoker.host.processes import stop_group
from stoker.host.seating import Seat, take_seat
from stoker.model.clock import Clock
from stoker.model.errors import Bug, ProcessLost, ProgramNotFound, StokerError
from stoker.model.leases import Token
from stoker.plan.program.hiding import Hiding
from stoker.wire.asking import DoneView
from stoker.wire.exec_sessions import OUT, PIECE_BYTES, ExecEnd, ExecInput, ExecListen
from stoker.wire.leasing import ExecCall
from stoker.worker.inside.place import Place, command_for
from stoker.worker.shipping.line import is_later
from stoker.worker.shipping.pauses import Pauses

NOT_STARTED, NOT_FOUND, BY_SIGNAL = 126, 127, 128
"""Exit codes as shells give them; of a signal, its number is added."""
_WAIT_S = 20.0
_AWAY_S = 60.0
_LOOK_EVERY_S = 0.1
_LAST_READ_S = 0.2
_LAST_TRIES = 3


class ExecLine(Protocol):
    """What a session needs of a coordinator."""

    def hear_exec(self, job: str, session: str, said: ExecListen) -> ExecInput: ...
    def put_exec(self, token: Token, session: str, data: bytes, *, stream: int, offset: int, wait_s: float) -> int: ...
    def finish_exec(self, job: str, session: str, said: ExecEnd) -> DoneView: ...


class ExecSession:
    """One session."""

    def __init__(self, call: ExecCall, line: ExecLine, clock: Clock) -> None:
        self.call = call
        self.token = call.token()
        self._line = line
        self._clock = clock
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._seat: Seat | None = None
        self._sent = 0
        self.why = ""
        """Why it was ended before its command."""

    def run(self, place: Callable[[], Place]) -> None:
        """See a command through."""
        try:
            code, message = self._run(place)
        except ProgramNotFound as error:
            code, message = NOT_FOUND, _said(error)
        except StokerError as error:
            code, message = NOT_STARTED, _said(error)
        except Exception as problem:  # noqa: BLE001 - whoever waits for it is told
            code, message = NOT_STARTED, str(Bug(f"{type(problem).__name__}: {problem}"))
        self._over.set()
        self.tell_end(code, message)

    def end(self, why: str) -> None:
        """End the command and whatever it started. From any thread; nothing begins after this."""
        self.why = self.why or why
        self._over.set()
        with self._lock:
            seat = self._seat
        if seat is not None:
            self._kill(seat)

    def tell_end(self, code: int, message: str) -> None:
        """Tell how it ended; who does not hear it finds out by itself."""
        token, pauses = self.token, Pauses()
        said = ExecEnd(
            attempt=token.attempt,
            epoch=token.epoch,
            generation=token.generation,
            exit_code=code,
            message=message[:2000],
        )
        for _ in range(_LAST_TRIES):
            try:
                self._line.finish_exec(token.job, self.call.id, said)
            except StokerError as error:
                if not is_later(error):
                    return
                self._clock.sleep(pauses.failed())
            else:
                return

    def _run(self, place: Callable[[], Place]) -> tuple[int, str]:
        call, found = self.call, place()
        argv, environment = command_for(call.argv, found, call.term)
        guard = Keeper()
        try:
            with self._lock:
                if self._over.is_set():
                    return NOT_STARTED, self.why
                self._seat = seat = take_seat(
                    argv,
                    folder=found.folder,
                    env=environment,
                    size=(call.rows, call.columns) if call.is_tty else None,
                    procs_files=found.procs_files,
                    user=found.user,
                )
            guard.guard_session(seat.child.identity)
            try:
                ended = self._see_through(seat, found.hidden)
            finally:
                self._kill(seat)
                # Before its descriptors are closed: the system gives their numbers to others.
                self._over.set()
                with self._lock:
                    seat.close()
        finally:
            guard.dismiss()
        code = ended.status if ended.status is not None else BY_SIGNAL + (ended.signal or 0)
        return code, self.why

    def _see_through(self, seat: Seat, hidden: tuple[str, ...]) -> Exit:
        for descriptor in (seat.input, *seat.outputs):
            os.set_blocking(descriptor, False)
        threading.Thread(target=self._listen, args=(seat,), name="stoker-exec-in", daemon=True).start()
        hidings = {descriptor: Hiding(hidden) for descriptor in seat.outputs}
        with selectors.DefaultSelector() as selector:
            for stream, descriptor in enumerate(seat.outputs, OUT):
                selector.register(descriptor, selectors.EVENT_READ, stream)
            while (ended := seat.child.poll()) is None:
                if not self._pump(selector, hidings, _LOOK_EVERY_S) and seat.is_tty:
                    # A prompt must be seen, even if it looks like the beginning of a secret.
                    self._send(hidings[seat.outputs[0]].finish(), OUT)
            # Its background goes with it; what was written before is still there to be read.
            self._kill(seat)
            while selector.get_map() and self._pump(selector, hidings, _LAST_READ_S):
                pass
            for stream, descriptor in enumerate(seat.outputs, OUT):
                self._send(hidings[descriptor].finish(), stream)
        return ended

    def _pump(self, selector: selectors.BaseSelector, hidings: dict[int, Hiding], wait_s: float) -> bool:
        """Send what was written; say whether anything was."""
        if not selector.get_map():
            self._over.wait(wait_s)
            return False
        ready = selector.select(wait_s)
        for key, _ in ready:
            try:
                data = os.read(key.fd, PIECE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                # What a terminal says when nobody has it open any more.
                data = b""
            if not data:
                selector.unregister(key.fd)
            self._send(hidings[key.fd].feed(data), key.data)
        return bool(ready)

    def _send(self, data: bytes, stream: int) -> None:
        """Send bytes, however long that takes; what nobody wants any more is dropped."""
        pauses, until_s = Pauses(), self._clock.monotonic_s() + _AWAY_S
        while data and not self._over.is_set():
            try:
                end = self._line.put_exec(
                    self.token, self.call.id, data[:PIECE_BYTES], stream=stream, offset=self._sent, wait_s=_WAIT_S
                )
            except StokerError as error:
                self._pause_or_end(error, pauses, until_s)
                continue
            data, self._sent = data[end - self._sent :], end
            pauses, until_s = Pauses(), self._clock.monotonic_s() + _AWAY_S

    def _listen(self, seat: Seat) -> None:
        """Give the command what it is to read, and do what else its operator wants, until it has ended."""
        token, call = self.token, self.call
        rows, columns, offset, is_eof = call.rows, call.columns, 0, False
        pauses, until_s = Pauses(), self._clock.monotonic_s() + _AWAY_S
        while not self._over.is_set():
            said = ExecListen(
                attempt=token.attempt,
                epoch=token.epoch,
                generation=token.generation,
                offset=offset,
                rows=rows,
                columns=columns,
                is_eof=is_eof,
                wait_s=_WAIT_S,
            )
            try:
                heard = self._line.hear_exec(token.job, call.id, said)
            except StokerError as error:
                self._pause_or_end(error, pauses, until_s)
                continue
            pauses, until_s = Pauses(), self._clock.monotonic_s() + _AWAY_S
            if heard.over:
                self.end(heard.over)
                return
            if (heard.rows, heard.columns) != (rows, columns):
                rows, columns = heard.rows, heard.columns
                self._while_seated(lambda: seat.resize(rows, columns))  # noqa: B023 - called at once
            self._type(seat, heard.data)
            offset += len(heard.data)
            if heard.is_eof and not is_eof:
                is_eof = True
                self._while_seated(seat.end_input)

    def _while_seated(self, act: Callable[[], None]) -> None:
        with self._lock:
            if not self._over.is_set():
                act()

    def _type(self, seat: Seat, data: bytes) -> None:
        while data and not self._over.is_set():
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    data = data[os.write(seat.input, data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    # It reads no more; what it goes on to write is still wanted.
                    return
            if data:
                self._over.wait(_LOOK_EVERY_S / 2)

    def _pause_or_end(self, error: StokerError, pauses: Pauses, until_s: float) -> None:
        if is_later(error) and self._clock.monotonic_s() < until_s:
            self._over.wait(pauses.failed())
        else:
            self.end(str(error))

    def _kill(self, seat: Seat) -> None:
        with suppress(ProcessLost):
            stop_group(seat.child.identity, grace_s=0.0, clock=self._clock)


def _said(error: StokerError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
