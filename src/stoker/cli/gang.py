"""`stoker gang run`: run a script as several ranks on one machine, like `torchrun --standalone`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CliOutput, CommandContext, list_verbs
from stoker.cli.dispatch import Interruptions, report, say_aside
from stoker.cli.grammar import Grammar, Option, duration, ranks
from stoker.core.errors import Cancelled, LocalFile, StokerError, Terminated, Usage

if TYPE_CHECKING:
    from stoker.core.errors import RankFailed
    from stoker.gang.mailbox import Phase


_STUCK_S = 1.0


GANG_GRAMMAR = Grammar(
    "gang run",
    about=(
        "Run a script as several ranks that start and stop together, like `torchrun --standalone`: the same "
        "environment variables (RANK, LOCAL_RANK, WORLD_SIZE, …), the script unchanged. Libraries are imported once "
        "for all ranks if `python` is Stoker's interpreter; no port is needed. If a rank fails, all are stopped, and "
        "the failed rank is reported with place and cause. Exit code 0 if all ranks exit with 0."
    ),
    options=(
        Option(
            "--ranks",
            value="N|auto",
            read=ranks,
            help="number of ranks; auto: one for each GPU, at least 1 (default: auto)",
        ),
        Option(
            "--timeout",
            value="TIME",
            read=duration,
            help="time limit for init_process_group on all ranks, such as 90s or 15m (default: none)",
        ),
        Option("--no-prefix", help="print output without the prefix [rank 3]"),
        Option("--quiet-others", help="print only the output of rank 0"),
        Option("--log-dir", value="DIR", help="also write each rank's output to DIR/rank-3.out and DIR/rank-3.err"),
        Option("--grace", value="TIME", read=duration, help="grace period before ranks are killed (default: 10s)"),
    ),
    examples=(
        "stoker gang run --ranks 8 -- python train.py --epochs 3",
        "stoker gang run -- python -m package.train",
        "stoker gang run --ranks 2 --quiet-others --log-dir logs -- python train.py",
        "stoker gang run --ranks 4 --timeout 60s --json -- python train.py",
        "stoker run --ranks 8 -- python train.py",
    ),
    takes_program=True,
)


def perform_gang(call: CommandContext, given: dict[str, Any]) -> int:
    """Run the ranks and wait for them."""
    try:
        return _perform(call, given)
    except StokerError as error:
        _report_to_run(str(error))
        raise


def _perform(call: CommandContext, given: dict[str, Any]) -> int:
    if not given["program"]:
        raise Usage("no program after --", hint="stoker gang run --ranks 2 -- python train.py")
    from stoker.gang.script_gang import ScriptGang
    from stoker.gang.scripts import read_script

    # Not `call.parts`: building them takes longer than starting the ranks.
    try:
        folder, environment = os.getcwd(), dict(os.environ)
    except FileNotFoundError as error:
        raise LocalFile("the current folder no longer exists", hint="cd to an existing folder") from error
    script = read_script(given["program"], folder=folder, environment=environment)
    nranks = _count(call, given["ranks"])
    printer = _RankPrinter(
        call.out, is_prefixed=nranks > 1 and not given["no_prefix"], only=0 if given["quiet_others"] else None
    )
    gang = ScriptGang(
        script,
        nranks,
        folder=folder,
        hear=printer.on_lines,
        on_phase=printer.on_phase,
        timeout_s=given["timeout"],
        log_folder=_log_folder(given["log_dir"]),
        **({} if given["grace"] is None else {"grace_s": given["grace"]}),
    )
    call.out.goes_on_unread = True
    printer.event("gang_started", ranks=nranks, program=list(given["program"]), is_forked=script.is_own)
    try:
        with Interruptions(gang.end, say_aside, _leave, hint="the ranks are being stopped"):
            gang.run()
    except StokerError as error:
        return _report_failure(call, printer, error)
    finally:
        for warning in gang.warnings:
            call.out.note(f"note: {warning}")
    printer.event("gang_ended", ranks=nranks, exit_code=0, seconds=printer.seconds())
    return 0


def _leave() -> None:
    os._exit(Cancelled.exit_code)


def _count(call: CommandContext, wanted: int | str | None) -> int:
    if isinstance(wanted, int):
        return wanted
    return max(1, len(call.parts.devices))


def _log_folder(given: str | None) -> str | None:
    if given is None:
        return None
    folder = os.path.abspath(os.path.expanduser(given))
    os.makedirs(folder, exist_ok=True)
    return folder


def _report_failure(call: CommandContext, printer: _RankPrinter, error: StokerError) -> int:
    from stoker.core.errors import RankFailed, RankTimeout
    from stoker.gang.gang_failures import story_of

    if isinstance(error, RankFailed) and error.data.get("crash") and not isinstance(error, RankTimeout):
        error.hint = "the stack at the crash follows"
    code = report(error, call.out, debug=call.flags.debug, is_in_stream=True)
    if isinstance(error, RankFailed):
        # Its first line has been printed.
        for line in [*story_of(error)[1:], *_last_output(error)]:
            call.out.complain(line)
    _report_to_run(str(error))
    wait_s = _STUCK_S if isinstance(error, (Cancelled, Terminated)) else -1
    printer.event("gang_failed", wait_s=wait_s, **error.to_dict(), seconds=printer.seconds())
    return code


def _report_to_run(message: str) -> None:
    """Report the failure to the parent run of Stoker, if there is one, by the trainer contract."""
    path = os.environ.get("STOKER_CONTROL")
    if path:
        from stoker.core.jsontext import dumps

        with suppress(OSError), open(path, "ab", buffering=0) as file:
            file.write(dumps({"kind": "failed", "message": message}).encode() + b"\n")


def _last_output(error: RankFailed) -> list[str]:
    output = str(error.data.get("output", "")).splitlines()
    return [f"last output of rank {error.rank} on standard error:", *(f"  {line}" for line in output)] if output else []


class _RankPrinter:
    """Prints the output of ranks as lines, or as JSON events. Thread-safe."""

    def __init__(self, out: CliOutput, *, is_prefixed: bool, only: int | None) -> None:
        self._out = out
        self._is_prefixed = is_prefixed
        self._only = only
        self._turn = threading.Lock()
        self._seq = 0
        self._began_s = time.monotonic()
        self._unread: set[int] = set()

    def seconds(self) -> float:
        return round(time.monotonic() - self._began_s, 3)

    def on_lines(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        """Print lines of a rank, each in one write."""
        if self._only not in (None, rank):
            return
        if self._out.is_json:
            for line in lines:
                stream = "stderr" if is_error else "stdout"
                self.event("rank_said", rank=rank, stream=stream, text=line.decode(errors="replace"))
            return
        from stoker.gang.script_gang import prefixed

        with self._turn:
            self._write(2 if is_error else 1, prefixed(rank, lines, is_prefixed=self._is_prefixed))

    def on_phase(self, rank: int, phase: Phase, at_ns: int) -> None:
        """Write an event for a rank's phase."""
        self.event("rank_phase", rank=rank, phase=phase.name, after_s=round(at_ns / 1e9 - self._began_s, 6))

    def event(self, kind: str, *, wait_s: float = -1, **fields: Any) -> None:
        """Write a JSON event; nothing in text mode. `wait_s` limits the wait for a blocked reader."""
        if not self._out.is_json or not self._turn.acquire(timeout=wait_s):
            return
        from stoker.core.jsontext import dumps

        try:
            self._seq += 1
            envelope = {"v": 1, "ts": round(time.time(), 6), "seq": self._seq, "source": "gang", "kind": kind}
            self._out.json_line(dumps({**envelope, **fields}))
        finally:
            self._turn.release()

    def _write(self, fd: int, data: bytes) -> None:
        if fd in self._unread:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            # The ranks continue without a reader.
            self._unread.add(fd)
            if fd == 1 and not isinstance(error, BrokenPipeError):
                self._out.complain(f"stoker: can't write to standard output: {error.strerror}")


# `stoker gang`: list its verbs.

GANG_HELP_GRAMMAR = Grammar(
    "gang",
    about="A gang is a group of processes, its ranks, that start and stop together. From Python: stoker.gang.Gang.",
    examples=("stoker gang run --ranks 8 -- python train.py", "stoker gang run -- python -m package.train"),
)


def perform_gang_help(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "gang")
    return 0
