"""Which code each trial of a program's sweep ran: the program may be edited while its sweep runs.

The files are read as each trial begins. What a trial imports later is not seen. Journal, `jobs show` and `compare` name
the trials that ran edited code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from stoker.core.digests import Digest, digest_value
from stoker.core.errors import StokerError
from stoker.core.events import Event, Kinds
from stoker.core.text import some_of
from stoker.jobs.trials import Trial

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
        return digest_of_code({**self._ordered, **self._of(trial)})

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
