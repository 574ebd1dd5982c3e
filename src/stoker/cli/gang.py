"""`stoker gang run`: a script as several ranks of one machine, in the place of `torchrun --standalone`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CliOutput, CommandContext, list_verbs
from stoker.cli.dispatch import report
from stoker.cli.grammar import Grammar, Option, duration, ranks
from stoker.cli.interrupts import Interruptions, say_aside
from stoker.core.errors import Cancelled, LocalFile, StokerError, Terminated, Usage

if TYPE_CHECKING:
    from stoker.core.errors import RankFailed
    from stoker.gang.mailbox import Phase


_STUCK_S = 1.0


GANG_GRAMMAR = Grammar(
    "gang run",
    about=(
        "Run a script as several ranks that start and end together, in the place of `torchrun --standalone`: the same "
        "variables (RANK, LOCAL_RANK, WORLD_SIZE, …), the script unchanged. Libraries are imported once for all ranks, "
        "if `python` is the one that Stoker runs in; no port is needed. When a rank fails, all are ended, and it is "
        "told which one, where and why. Exit code 0 if all ranks end with 0."
    ),
    options=(
        Option("--ranks", value="N|auto", read=ranks, help="how many; auto, unless told: one for each GPU, or 1"),
        Option(
            "--timeout",
            value="TIME",
            read=duration,
            help="give up if not all ranks come through init_process_group within: 90s, 15m",
        ),
        Option("--no-prefix", help="print what ranks say as it is, without [rank 3] before each line"),
        Option("--quiet-others", help="print what rank 0 says and nothing of the others"),
        Option("--log-dir", value="DIR", help="also keep what each rank says in DIR/rank-3.out and DIR/rank-3.err"),
        Option("--grace", value="TIME", read=duration, help="how long ranks that are told to end may take, 10s"),
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
    """Run the ranks to their end."""
    try:
        return _perform(call, given)
    except StokerError as error:
        _tell_run(str(error))
        raise


def _perform(call: CommandContext, given: dict[str, Any]) -> int:
    if not given["program"]:
        raise Usage(
            "what is to run as ranks? No program follows --", hint="stoker gang run --ranks 2 -- python train.py"
        )
    from stoker.gang.script_gang import ScriptGang
    from stoker.gang.scripts import read_script

    # Not the parts: to build them takes longer than to start the ranks.
    try:
        folder, environment = os.getcwd(), dict(os.environ)
    except FileNotFoundError as error:
        raise LocalFile("the folder this was started in is gone", hint="cd to one that exists") from error
    script = read_script(given["program"], folder=folder, environment=environment)
    nranks = _count(call, given["ranks"])
    telling = _Telling(
        call.out, is_prefixed=nranks > 1 and not given["no_prefix"], only=0 if given["quiet_others"] else None
    )
    gang = ScriptGang(
        script,
        nranks,
        folder=folder,
        hear=telling.hear,
        on_phase=telling.phase,
        timeout_s=given["timeout"],
        log_folder=_log_folder(given["log_dir"]),
        **({} if given["grace"] is None else {"grace_s": given["grace"]}),
    )
    call.out.goes_on_unread = True
    telling.event("gang_started", ranks=nranks, program=list(given["program"]), is_forked=script.is_own)
    try:
        with Interruptions(gang.end, say_aside, _leave, hint="the ranks were told to end"):
            gang.run()
    except StokerError as error:
        return _tell_failure(call, telling, error)
    finally:
        for warning in gang.warnings:
            call.out.note(f"note: {warning}")
    telling.event("gang_ended", ranks=nranks, exit_code=0, seconds=telling.seconds())
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


def _tell_failure(call: CommandContext, telling: _Telling, error: StokerError) -> int:
    from stoker.core.errors import RankFailed, RankTimeout
    from stoker.gang.gang_failures import story_of

    if isinstance(error, RankFailed) and error.data.get("crash") and not isinstance(error, RankTimeout):
        error.hint = "where it was when it crashed follows"
    code = report(error, call.out, debug=call.flags.debug, is_in_stream=True)
    if isinstance(error, RankFailed):
        # Its first line has been said.
        for line in [*story_of(error)[1:], *_last_words(error)]:
            call.out.complain(line)
    _tell_run(str(error))
    wait_s = _STUCK_S if isinstance(error, (Cancelled, Terminated)) else -1
    telling.event("gang_failed", wait_s=wait_s, **error.to_dict(), seconds=telling.seconds())
    return code


def _tell_run(message: str) -> None:
    """Tell the run of Stoker that started us, if one did, in the words of its trainer contract."""
    path = os.environ.get("STOKER_CONTROL")
    if path:
        from stoker.core.jsontext import dumps

        with suppress(OSError), open(path, "ab", buffering=0) as file:
            file.write(dumps({"kind": "failed", "message": message}).encode() + b"\n")


def _last_words(error: RankFailed) -> list[str]:
    said = str(error.data.get("output", "")).splitlines()
    return (
        [f"the last that rank {error.rank} wrote to standard error:", *(f"  {line}" for line in said)] if said else []
    )


class _Telling:
    """Where the words of ranks and the news of them go: lines for people, or events. Any thread may tell."""

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

    def hear(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        """Pass on what a rank printed, each line in one piece."""
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

    def phase(self, rank: int, phase: Phase, at_ns: int) -> None:
        """Tell programs where a rank is."""
        self.event("rank_phase", rank=rank, phase=phase.name, after_s=round(at_ns / 1e9 - self._began_s, 6))

    def event(self, kind: str, *, wait_s: float = -1, **fields: Any) -> None:
        """Tell programs; people are told otherwise. `wait_s` is for a reader who may never go on."""
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
            # The ranks go on all the same; that nobody reads on is no news to anybody.
            self._unread.add(fd)
            if fd == 1 and not isinstance(error, BrokenPipeError):
                self._out.complain(f"stoker: standard output can't be written: {error.strerror}")


# `stoker gang`: what there is to do with gangs.

GANG_HELP_GRAMMAR = Grammar(
    "gang",
    about="A gang is several processes, its ranks, that start and end together. From Python: stoker.gang.Gang.",
    examples=("stoker gang run --ranks 8 -- python train.py", "stoker gang run -- python -m package.train"),
)


def perform_gang_help(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "gang")
    return 0
