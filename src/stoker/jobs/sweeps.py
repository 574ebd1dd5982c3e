"""The index of a program's finished trials: a sweep that was killed, or gets more points, runs only the rest.

A program without declared inputs is never skipped by the cache. But a sweep that did not end continues when the same
command is given again, and one with more points runs the new ones. Each family of sweeps (one program in one folder)
has a file of lines: `attempt` (a job works on it), `ended` (that job ended), `finished` (a trial and its result).
Unreadable lines are skipped; of one trial the last line counts.

A result counts only if it is in the store as recorded. A result without a line, because its job was killed before it
could write one, is known by its record, which names the attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from stoker.core.digests import Digest, digest_value
from stoker.core.errors import StokerError
from stoker.core.events import Event, Kinds
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import some_of
from stoker.host.durable import translated, write_file
from stoker.host.locks import BriefLocks
from stoker.jobs.trials import Trial

_LARGEST_BYTES = 256 * 1024 * 1024
# So many outdated lines may be in a file before it is rewritten.
_MOST_IDLE_LINES = 1_000


@frozen
class FinishedTrial:
    """A trial that has its result."""

    key: str
    digest: str
    """Of the result."""
    code: str
    """Of the program's own files, when it ran."""
    attempt: str


@frozen
class SweepIndexContent:
    """What a family's file says."""

    finished: Mapping[str, FinishedTrial] = fresh(factory=dict)
    """By the id of the trial."""
    attempts: Mapping[str, str] = fresh(factory=dict)
    """The jobs that worked on it since a trial was last wanted afresh, each with the code that it ran."""
    is_ended: bool = False
    """True if the last of them ended and reported its result."""
    lines: int = 0


@frozen
class SweepDecision:
    """Which trials of a sweep need not run again, and why these."""

    kept: frozenset[str]
    afresh: frozenset[str]
    """Trials whose finished results do not count any more."""
    why: str


def decide_kept(
    wanted: Sequence[str], finished: Mapping[str, FinishedTrial], *, code: str, is_ended: bool
) -> SweepDecision:
    """Decide which trials a sweep of a program may keep, from those that have finished and are whole.

    If all have, the same sweep again runs all of them; unless the last job was killed before it reported its end.
    """
    known = [trial for trial in wanted if trial in finished]
    usable = frozenset(trial for trial in known if finished[trial].code == code)
    older = len(known) - len(usable)
    if is_ended and len(usable) == len(set(wanted)):
        why = "all of these trials had finished, so all run again"
        return SweepDecision(kept=frozenset(), afresh=usable, why=why)
    if not known:
        return SweepDecision(kept=usable, afresh=frozenset(), why="")
    if not usable:
        why = f"the program has changed since {older} of these trials finished, so they run again"
        return SweepDecision(kept=usable, afresh=frozenset(), why=why)
    those = "is kept: it" if len(usable) == 1 else "are kept: they"
    why = f"{len(usable)} of {len(wanted)} trials {those} finished before, and the program is the same"
    more = f"; it was another one when {older} more finished, so those run again" if older else ""
    return SweepDecision(kept=usable, afresh=frozenset(), why=f"{why}{more}")


@frozen
class IndexEntry:
    """How one job's trials are written down."""

    index: SweepIndex
    code: str
    attempt: str = ""
    """Set when the job starts."""
    afresh: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Write down that the job works on it."""
        self.index.begin(self.attempt, code=self.code, afresh=self.afresh)

    def end(self) -> None:
        """Write down that the job came to its end."""
        self.index.end(self.attempt)

    def note(self, trial: str, *, key: str, digest: str, code: str) -> None:
        """Write down that a trial has its result, made by this code. Call it when the result has its name."""
        self.index.note(trial, FinishedTrial(key=key, digest=digest, code=code, attempt=self.attempt))


class SweepIndex:
    """The file of one family."""

    def __init__(self, folder: str, family: Digest) -> None:
        self._path = os.path.join(folder, f"{family}.jsonl")

    def read(self) -> SweepIndexContent:
        """Return what is written down."""
        finished: dict[str, FinishedTrial] = {}
        attempts: dict[str, str] = {}
        is_ended = False
        lines = self._lines()
        for line in lines:
            try:
                raw = loads(line)
                if raw["kind"] == "attempt":
                    attempts[str(raw["attempt"])] = str(raw["code"])
                    is_ended = False
                elif raw["kind"] == "ended":
                    is_ended = bool(attempts) and raw["attempt"] == list(attempts)[-1]
                elif raw["kind"] == "finished":
                    names = ("key", "digest", "code", "attempt")
                    finished[str(raw["trial"])] = FinishedTrial(**{name: str(raw[name]) for name in names})
            except (ValueError, KeyError, TypeError):
                continue
        return SweepIndexContent(finished=finished, attempts=attempts, is_ended=is_ended, lines=len(lines))

    def begin(self, attempt: str, *, code: str, afresh: frozenset[str]) -> None:
        """Write down that a job works on it; what is wanted afresh has not finished any more."""
        line = {"kind": "attempt", "attempt": attempt, "code": code}
        with self._held():
            written = self.read()
            if not afresh and written.lines <= 2 * len(written.finished) + _MOST_IDLE_LINES:
                self._append(line)
                return
            left = {trial: one for trial, one in written.finished.items() if trial not in afresh}
            # Results of older attempts are known by their lines alone from now on, or those would count again.
            attempts = {} if afresh else written.attempts
            lines = [{"kind": "attempt", "attempt": one, "code": its_code} for one, its_code in attempts.items()]
            lines += [line, *(_finished_line(trial, one) for trial, one in left.items())]
            write_file(self._path, "".join(map(_as_text, lines)).encode())

    def end(self, attempt: str) -> None:
        """Write down that a job came to its end."""
        with self._held():
            self._append({"kind": "ended", "attempt": attempt})

    def note(self, trial: str, finished: FinishedTrial) -> None:
        """Write down that a trial has its result."""
        with self._held():
            self._append(_finished_line(trial, finished))

    def _lines(self) -> list[bytes]:
        try:
            with open(self._path, "rb") as file:
                return [line for line in file.read(_LARGEST_BYTES).splitlines() if line]
        except OSError:
            return []

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep others from reading, deciding and writing at the same moment."""
        with translated(self._path):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
        locks = BriefLocks()
        try:
            with locks.hold(f"{self._path}.lock"):
                yield
        finally:
            locks.close()

    def _append(self, line: dict[str, Any]) -> None:
        with translated(self._path):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                # A line that was torn before must not swallow this one.
                os.write(descriptor, f"\n{_as_text(line)}".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _finished_line(trial: str, one: FinishedTrial) -> dict[str, Any]:
    body = {"key": one.key, "digest": one.digest, "code": one.code, "attempt": one.attempt}
    return {"kind": "finished", "trial": trial, **body}


def _as_text(line: dict[str, Any]) -> str:
    return f"{dumps({'v': 1, **line})}\n"


# Which code each trial of a program's sweep ran: the program may be edited while its sweep runs.
#
# The files are read as each trial begins. What a trial imports later is not seen. Journal, `jobs show` and `compare`
# name the trials that ran edited code.


_MOST_NAMED = 10


def digest_of_code(files: Mapping[str, str]) -> Digest:
    """Return the digest of a program's own files, each of which has one."""
    return digest_value("program-code", dict(files))


class TrialCode:
    """The code of one job's trials."""

    def __init__(self, folder: str, ordered: Mapping[str, str], digest_of: Callable[[str], str]) -> None:
        """`ordered` are the program's files below `folder`, with their digests when the job was ordered."""
        self._folder = folder
        self._ordered = ordered
        self._digest_of = digest_of
        self._edits: dict[str, Mapping[str, str]] = {}
        """Of each node, the files that were edited when it began, with their digests."""
        self._reported: set[str] = set()

    def begin(self, node: str) -> None:
        """Read the program's files: a node begins."""
        edits = {}
        for name, ordered in self._ordered.items():
            now = ""
            with suppress(StokerError):
                now = self._digest_of(os.path.join(self._folder, name))
            if now != ordered:
                edits[name] = now
        self._edits[node] = edits

    def of(self, trial: Trial) -> Digest:
        """Return the digest of the code that a trial ran."""
        return digest_of_code(self.files_of(trial))

    def files_of(self, trial: Trial) -> dict[str, str]:
        """Return the digest of each file of the program as a trial ran it."""
        return {**self._ordered, **self._of(trial)}

    def warning(self, trial: Trial) -> Event | None:
        """Return a warning for the first trial that ran some edited code; None for all others."""
        edits, code = self._of(trial), self.of(trial)
        if not edits or code in self._reported:
            return None
        self._reported.add(code)
        return self._warning(f"while this sweep runs: {trial.spec.label} ran the edited code", [trial])

    def summary(self, trials: Iterable[Trial], total: int) -> Event | None:
        """Return a warning that names those of the trials that ran edited code; None if there are none."""
        ran = sorted((trial for trial in trials if self._of(trial)), key=lambda trial: trial.spec.number)
        if not ran:
            return None
        codes = len({self.of(trial) for trial in ran})
        what = f"edited code, {codes} different texts" if codes > 1 else "edited code"
        numbers = some_of([str(trial.spec.number) for trial in ran], _MOST_NAMED)
        which = f"{len(ran):,} of {total:,} trials ran {what}: {numbers}"
        again = "the same command again runs the trials that ran other code than the current, and keeps the rest"
        return self._warning(f"while this sweep ran; {which}; {again}", ran)

    def _warning(self, text: str, trials: Sequence[Trial]) -> Event:
        """Return a warning with the edited files of each code that was run, and the trials that ran it."""
        by_code: dict[str, list[Trial]] = {}
        for trial in trials:
            by_code.setdefault(self.of(trial), []).append(trial)
        edited = {
            code: {"files": dict(self._of(ran[0])), "trials": [trial.spec.number for trial in ran]}
            for code, ran in by_code.items()
        }
        files = list(dict.fromkeys(name for ran in by_code.values() for name in self._of(ran[0])))
        message = f"{some_of(files, _MOST_NAMED)} {'was' if len(files) == 1 else 'were'} edited {text}"
        return Event(Kinds.WARNING, {"message": message, "edited": edited})

    def _of(self, trial: Trial) -> Mapping[str, str]:
        return self._edits.get(trial.nodes.final, {})
