"""`stoker exec`: run a command or a shell inside a running fleet job, in its folder, with its environment."""

from __future__ import annotations

import codecs
import os
import select
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional
from stoker.cli.screens import is_at_terminal, raw_terminal, terminal_size
from stoker.core.errors import StokerError, Unavailable, Usage
from stoker.devices.this_machine import submitter_name
from stoker.protocol.operator_messages import ERROR, EXEC_PIECE_BYTES, OUT, ExecOutput, ExecResponse

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient


GRAMMAR = Grammar(
    "exec",
    about=(
        "Run a command inside a running fleet job, on the job's machine: in its folder, with its environment "
        "variables, devices and limits, as its user. Without a command, start a shell. Exits with the command's exit "
        "code. Needs the role operate; the job's history records each session. The command is stopped with the job, "
        "or when this program exits."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix", completes="job"),),
    options=(Option("--no-tty", help="allocate no terminal"), AT),
    examples=("stoker exec resnet -- nvidia-smi", "stoker exec resnet", "stoker exec resnet/3 -- sh -c 'ls $DATA'"),
    takes_program=True,
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run a command inside a job."""
    argv = tuple(given["program"] or ())
    is_tty = is_at_terminal() and not call.flags.json and not given["no_tty"]
    if not argv and not is_tty:
        raise Usage("a shell needs a terminal", hint=f"stoker exec {given['name']} -- CMD …")
    job = call.lookup.fleet_job(given["name"], given["at"])
    if job.is_sweep and len(points := job.points()) > 1:
        raise Usage(f"{job.ref} has {len(points):,} points", hint=f"stoker exec {points[0].name} …")

    from stoker.protocol.operator_messages import ExecRequest

    environment = call.parts.settings.environment
    rows, columns = terminal_size()
    request = ExecRequest(
        argv=argv,
        is_tty=is_tty,
        rows=rows,
        columns=columns,
        term=environment.get("TERM", "")[:100] if is_tty else "",
        by=submitter_name(environment),
    )
    return follow(call, job.client, job.client.begin_exec(job.view.id, request), is_tty=is_tty)


# A session: forwards input and output until the command ends.

_WAIT_S = 10.0
_AWAY_S = 30.0
"""A restarted coordinator has no sessions, so waiting longer is useless."""
_LOOK_EVERY_S = 0.2
_FULL_S = 0.05
_STDIN = 0
_NAMES = {OUT: "stdout", ERROR: "stderr"}


def follow(call: CommandContext, client: FleetClient, begun: ExecResponse, *, is_tty: bool) -> int:
    """Follow a session to its end and return the exit code; an exception ends the session."""
    client = client.more_patient(_AWAY_S)
    showing = _Showing(call)
    call.out.object({"kind": "exec_begun", "job": begun.name, "machine": begun.machine, "session": begun.id[:8]})
    ended: ExecOutput | None = None
    over = threading.Event()
    try:
        with ExitStack() as opened:
            resized = opened.enter_context(raw_terminal()) if is_tty else threading.Event()
            # Not joined: it may block in a read.
            typing = _Typing(client, begun.id, resized, over)
            threading.Thread(target=typing.run, name="stoker-typing", daemon=True).start()
            offset = 0
            while ended is None:
                output = client.read_exec(begun.id, offset=offset, wait_s=_WAIT_S)
                for piece in output.pieces:
                    showing.show(piece.stream, piece.data)
                    offset += len(piece.data)
                if output.exit_code is not None:
                    ended = output
    finally:
        over.set()
        showing.finish()
        if ended is None:
            with suppress(StokerError):
                client.end_exec(begun.id)
    return _conclude(call, begun, ended)


def _conclude(call: CommandContext, begun: ExecResponse, ended: ExecOutput) -> int:
    if not ended.is_taken:
        hint = f"stoker machines show {begun.machine}"
        raise Unavailable(ended.why or f"{begun.machine} did not answer", hint=hint, machine=begun.machine)
    code = ended.exit_code or 0
    call.out.object({"kind": "exec_ended", "exit_code": code, "why": ended.why})
    if ended.why:
        call.out.complain(f"stoker: {ended.why}")
    return code


class _Showing:
    """Writes the output: unchanged, or as lines of JSON."""

    def __init__(self, call: CommandContext) -> None:
        self._call = call
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in _NAMES}

    def show(self, stream: int, data: bytes) -> None:
        if self._call.flags.json:
            self._write_json(stream, self._decoders[stream].decode(data))
            return
        view = memoryview(data)
        while view:
            view = view[os.write(stream, view) :]

    def finish(self) -> None:
        """Write an incomplete character at the end."""
        if self._call.flags.json:
            for stream, decoder in self._decoders.items():
                self._write_json(stream, decoder.decode(b"", final=True))

    def _write_json(self, stream: int, text: str) -> None:
        if text:
            self._call.out.object({"kind": "exec_output", "stream": _NAMES[stream], "text": text})


class _Typing:
    """Sends standard input, and the size of the terminal when it changes."""

    def __init__(self, client: FleetClient, session: str, resized: threading.Event, over: threading.Event) -> None:
        self._client = client
        self._session = session
        self._resized = resized
        self._over = over
        self._sent = 0

    def run(self) -> None:
        """Send until the end of input or of the session. The session's reader reports errors."""
        is_eof = False
        with suppress(StokerError):
            while not self._over.is_set():
                if self._resized.is_set():
                    self._resized.clear()
                    self._client.size_exec(self._session, *terminal_size())
                if is_eof:
                    self._over.wait(_LOOK_EVERY_S)
                    continue
                data = self._read()
                if data is not None:
                    is_eof = not data
                    self._send(data, is_eof=is_eof)

    def _read(self) -> bytes | None:
        """Return new input; None if there is none yet, empty at its end."""
        try:
            if not select.select([_STDIN], [], [], _LOOK_EVERY_S)[0]:
                return None
            return os.read(_STDIN, EXEC_PIECE_BYTES)
        except (OSError, ValueError):
            return b""

    def _send(self, data: bytes, *, is_eof: bool) -> None:
        while not self._over.is_set():
            end = self._client.send_exec(self._session, data, offset=self._sent, is_eof=is_eof)
            data, self._sent = data[end - self._sent :], end
            if not data:
                return
            self._over.wait(_FULL_S)
