"""The index of a family of sweeps against a small model: whatever jobs do, in whatever order, and wherever they die."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.core.digests import Digest, digest_value
from stoker.jobs.sweeps import FinishedTrial, SweepIndex, decide_kept

TRIALS = [digest_value("trial", number) for number in range(6)]
trials = st.sampled_from(TRIALS)
some = st.sets(trials, max_size=6)
codes = st.sampled_from(["one", "two"])


class Index(RuleBasedStateMachine):
    """Jobs that begin, note, end and die, one after the other or at once."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / f"{digest_value('family', 1)}.jsonl"
        self.index = SweepIndex(self._folder.name, digest_value("family", 1))
        self.finished: dict[str, FinishedTrial] = {}
        self.attempts: dict[str, str] = {}
        self.is_ended = False
        self._count = 0

    @rule(code=codes, afresh=some)
    def begin(self, code: str, afresh: set[str]) -> None:
        self._count += 1
        attempt = f"attempt-{self._count}"
        self.index.begin(attempt, code=code, afresh=frozenset(afresh))
        if afresh:
            self.finished = {trial: one for trial, one in self.finished.items() if trial not in afresh}
            self.attempts = {}
        self.attempts[attempt] = code
        self.is_ended = False

    @rule(trial=trials, code=codes)
    def note(self, trial: Digest, code: str) -> None:
        self._count += 1
        one = FinishedTrial(key="k" * 64, digest=f"{self._count:064}", code=code, attempt=f"attempt-{self._count}")
        self.index.note(trial, one)
        self.finished[trial] = one

    @rule()
    def end(self) -> None:
        if self.attempts:
            self.index.end(list(self.attempts)[-1])
            self.is_ended = True

    @rule(rubbish=st.binary(max_size=30), cut=st.integers(0, 30))
    def die_while_writing(self, rubbish: bytes, cut: int) -> None:
        """Leave the beginning of a line, or anything else, at the end."""
        line = b'{"v":1,"kind":"finished","trial":"x","key":"k"}'[:cut] + rubbish.replace(b"}", b"")
        with open(self._path, "ab") as file:
            file.write(line)

    @rule(wanted=st.lists(trials, min_size=1, max_size=6), code=codes)
    def decide(self, wanted: list[Digest], code: str) -> None:
        written = self.index.read()
        decision = decide_kept(wanted, written.finished, code=code, is_ended=written.is_ended)
        usable = {one for one in wanted if one in self.finished and self.finished[one].code == code}
        # Nothing is kept that has not finished with this very program.
        assert decision.kept <= usable
        if usable == set(wanted) and self.is_ended:
            assert (set(decision.kept), set(decision.afresh)) == (set(), usable)
        else:
            assert (set(decision.kept), set(decision.afresh)) == (usable, set())

    @invariant()
    def the_file_says_what_was_written(self) -> None:
        written = self.index.read()
        assert written.finished == self.finished
        assert written.attempts == self.attempts
        assert written.is_ended is self.is_ended

    def teardown(self) -> None:
        self._folder.cleanup()


TestIndex = Index.TestCase
TestIndex.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
