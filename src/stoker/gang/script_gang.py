"""A script run as ranks: all of them started, heard and watched until every one has ended well, or the first cause.

    gang = ScriptGang(script, 8, folder=…, hear=…)
    gang.run()      # returns when all ended with 0; raises RankFailed with the first cause, nothing is left then

A rank is done when its process has ended with 0. Whatever else happens to one ends all. There is no limit of time,
except from the moment the first rank enters `init_process_group` until all are through it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

from stoker.gang.bringing_up import Cancel, Patience, wait_for
from stoker.gang.judging import How, Look, is_echo
from stoker.gang.memory import unnamed_memory
from stoker.gang.plans import ERR, OUT, STORE
from stoker.gang.ranks import Ranks
from stoker.gang.script_rank import BECOME, RUN_HERE
from stoker.gang.scripts import Script, check_ranks, needs_libraries
from stoker.gang.starting import ExecStarter, Starter, ZygoteStarter
from stoker.gang.states import Phase
from stoker.gang.stopping import stop, wait_gone
from stoker.gang.torchrun_variables import HeldPort, rank_variables, shared_variables, speaks_for_all
from stoker.gang.voices import Hear, Voices
from stoker.host.processes import GRACE_S
from stoker.host.zygote import Zygote
from stoker.model.clock import SystemClock
from stoker.model.errors import Cancelled, StokerError, Unavailable
from stoker.model.gang_errors import RankFailed, RankSilent

OnPhase = Callable[[int, Phase, int], None]
"""Takes a rank, the phase that it began, and when by the monotonic clock, in nanoseconds."""

_PRELOAD = ("stoker.gang.script_rank",)
_LIBRARIES = ("torch", "torch.distributed")
_LINGER_S = 1.0
_LOOK_S = 0.05
_FDS_PER_RANK = 8
_FDS_BESIDE = 64
_NAMED = 8
_NS = 1_000_000_000


class ScriptGang:
    """One run of one script. One thread runs it; any thread, or a signal handler, may `end` it."""

    def __init__(  # noqa: PLR0913 - what a run is made of
        self,
        script: Script,
        nranks: int,
        *,
        folder: str,
        hear: Hear,
        on_phase: OnPhase = lambda *_: None,
        timeout_s: float | None = None,
        log_folder: str | None = None,
        grace_s: float = GRACE_S,
        sys_path: Sequence[str] | None = None,
    ) -> None:
        """Check what can be checked; start nothing. Raises `BadGang`.

        `timeout_s` is for coming through `init_process_group`. `sys_path` is where scripts find modules, beside their
        own folder: what this interpreter was started with, unless told.
        """
        check_ranks(nranks)
        self._script = script
        self._nranks = nranks
        self._folder = folder
        self._hear = hear
        self._on_phase = on_phase
        self._timeout_s = timeout_s
        self._log_folder = log_folder
        self._grace_s = grace_s
        self._sys_path = list(sys_path if sys_path is not None else sys.path[0 if sys.flags.safe_path else 1 :])
        self._cancel = Cancel()
        self._why: StokerError | None = None
        self._stamps: dict[tuple[int, Phase], int] = {}
        self._left: set[int] = set()
        self.warnings: tuple[str, ...] = ()

    def end(self, why: StokerError) -> None:
        """Have `run` stop all ranks and raise this: `Cancelled` interrupts them, anything else asks them to end."""
        self._why = self._why or why
        self._cancel()

    def run(self) -> None:
        """Run to the end.

        Raises `RankFailed` (its `data` has as `output` the last lines that the rank wrote to standard error),
        `RankSilent`, whatever `end` was given, `ProcessLost`; nothing is left of any rank then.
        """
        _make_room(self._nranks)
        with ExitStack() as held:
            port = held.enter_context(HeldPort())
            voices = Voices(
                self._nranks,
                self._hear,
                log_folder=self._log_folder,
                is_given_up=lambda: self._cancel.is_wanted,
            )
            try:
                with voices:
                    self._run(voices, port.number)
            except RankFailed as error:
                # Who could not say what was wrong may have said it to people.
                is_mute = error.data.get("how") == How.ENDED
                error.data["output"] = "\n".join(voices.last_words(error.rank)) if is_mute else ""
                if isinstance(error, RankSilent):
                    error.hint = self._why_silent(error.rank)
                elif self._left and is_echo(str(error.data.get("text", ""))):
                    error.hint = f"rank {_named(self._left)} had ended with 0 by then; it may be the peer that is gone"
                raise
            finally:
                self.warnings += tuple(voices.unkept)

    def _why_silent(self, rank: int) -> str:
        strangers = [other for other in range(self._nranks) if (other, Phase.COMM) not in self._stamps]
        if not strangers or rank in strangers:
            return "the others waited for it in init_process_group; --timeout gives it longer"
        return f"it waited in init_process_group for rank {_named(strangers)}, which ended with 0 and never came there"

    def _run(self, voices: Voices, port: int) -> None:
        env = shared_variables(self._script.environment, self._nranks)
        with ExitStack() as held:
            starter = self._starter(env, held)
            ranks = held.enter_context(Ranks(starter, [f"device {rank}" for rank in range(self._nranks)]))
            self._cancel.attend(ranks)
            started_ns = time.monotonic_ns()
            grace_s = self._grace_s
            try:
                self._start(ranks, voices, env, port)
                voices.listen()
                patience = Patience(total_s=None, started_ns=started_ns)
                wait_for(ranks, self._is_done, patience, cancel=self._cancel, deadline_of=self._deadline_ns)
            except Cancelled as cancelled:
                number = signal.SIGINT if self._why is None or isinstance(self._why, Cancelled) else signal.SIGTERM
                starter.signal(ranks.living(), number)
                wait_gone(ranks, grace_s, SystemClock())
                grace_s = 0.0
                raise self._why or cancelled from None
            finally:
                stop(ranks, grace_s=grace_s)

    def _starter(self, env: dict[str, str], held: ExitStack) -> Starter:
        if sys.platform != "linux":
            return ExecStarter(sys.executable, env=env, cwd=self._folder, sys_path=sys.path)
        wants_libraries = self._script.is_own and needs_libraries(self._script, self._folder)
        zygote = Zygote.start(
            sys.executable,
            (*_PRELOAD, *(_LIBRARIES if wants_libraries else ())),
            env=env,
            cwd=self._folder,
            sys_path=sys.path,
            linger_s=_LINGER_S,
        )
        held.callback(zygote.close, grace_s=0.0)
        self._see_warm(zygote)
        return ZygoteStarter(zygote)

    def _see_warm(self, zygote: Zygote) -> None:
        """Wait until libraries are imported, or nobody wants that any more."""
        while True:
            if self._cancel.is_wanted:
                raise self._why or Cancelled("interrupted")
            try:
                ready = zygote.wait_ready(_LOOK_S)
            except TimeoutError:
                continue
            self.warnings = tuple(one for one in ready.warnings if not one.startswith("can't preload torch"))
            return

    def _start(self, ranks: Ranks, voices: Voices, env: dict[str, str], port: int) -> None:
        script, run_id = self._script, os.urandom(8).hex()
        store_fd = unnamed_memory("stoker-store", 0, may_grow=True)
        try:
            for rank in range(self._nranks):
                if self._cancel.is_wanted:
                    break
                out_fd, err_fd = voices.ends(rank)
                own = rank_variables(rank, self._nranks, port=port, run_id=run_id)
                request: dict[str, Any] = {
                    "rank": rank,
                    "nranks": self._nranks,
                    "order": script.order(rank, self._nranks),
                    "argv": script.words(rank),
                    "environ": {**env, **own, **speaks_for_all(env, rank)},
                    "sys_path": self._sys_path,
                }
                fds = {STORE: store_fd, OUT: out_fd, ERR: err_fd}
                ranks.start(RUN_HERE if script.is_own else BECOME, request, fds, cwd=self._folder)
        finally:
            os.close(store_fd)

    def _is_done(self, look: Look) -> bool:
        for stamp_ns, phase in sorted(zip(look.page.stamps_ns, Phase, strict=True)):
            if stamp_ns and self._stamps.get((look.rank, phase)) != stamp_ns:
                self._stamps[look.rank, phase] = stamp_ns
                self._on_phase(look.rank, phase, stamp_ns)
        has_left = look.exit is not None and look.exit.is_success
        if has_left:
            self._left.add(look.rank)
        return has_left

    def _deadline_ns(self, looks: Sequence[Look]) -> int | None:
        """Say when the time is over for those who join their group, and for those whom they wait for."""
        begun = [
            look.page.stamps_ns[Phase.COMM] for look in looks if look.page.phase is Phase.COMM and not look.is_done
        ]
        return None if self._timeout_s is None or not begun else min(begun) + round(self._timeout_s * _NS)


def _named(ranks: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:_NAMED])) + (", …" if len(ranks) > _NAMED else "")


def _make_room(nranks: int) -> None:
    """See that so many descriptors may be open as this many ranks take."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nranks * _FDS_PER_RANK + _FDS_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Unavailable(
            f"{nranks:,} ranks take {wanted:,} open files, and this user may have {hard:,}",
            hint="fewer ranks, or a higher limit (ulimit -n)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
