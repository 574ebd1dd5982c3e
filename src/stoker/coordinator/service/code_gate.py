"""Only programs whose code is known: a submission carries commits that a repository has, or it is refused.

The list is the last hundred commits of one branch, read again when it is older than five seconds; if git fails, the
list from before stays. A submitter says itself which commit its code is: this keeps stale and unreviewed code out by
mistake, not a liar. Who must not be lied to pins trees (`stoker work --accept-code`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from stoker.host.git import ask_git
from stoker.model.clock import Clock
from stoker.model.errors import BadInput
from stoker.model.fleet_errors import CodeNotAccepted, CommitMissing
from stoker.model.printable import one_line
from stoker.wire.orders import JobOrder, Submission

MOST_COMMITS = 100
FRESH_S = 5.0
_GIT_S = 10.0
_PROGRAM = "command"
_SHOWN = 12
_LONGEST_SOURCE = 300


class CodeGate:
    """The gate of one repository. For threads."""

    def __init__(self, repository: str, branch: str, *, environment: Mapping[str, str], clock: Clock) -> None:
        """Open it; raises `BadInput` if its commits can't be read now."""
        self._repository = repository
        self._branch = branch
        self._environment = environment
        self._clock = clock
        self._turn = threading.Lock()
        self._commits: frozenset[str] = frozenset()
        self._read_s = 0.0
        why = self._read()
        if why:
            hint = "--accept-code REPO or REPO:BRANCH, a git repository on this machine"
            raise BadInput(f"the commits of {self._shown} can't be read: {why}", hint=hint)

    def check(self, submission: Submission) -> None:
        """Refuse a submission with code that is not known.

        Raises `CommitMissing` if a program carries no commit, and `CodeNotAccepted` if it is another one, or changed.
        """
        programs = [order for order in submission.jobs if order.recipe == _PROGRAM]
        if not programs:
            return
        commits = self._known()
        again = _again(submission)
        for order in programs:
            self._check(order, commits, again)

    def _check(self, order: JobOrder, commits: frozenset[str], again: str) -> None:
        base, _, changes = order.commit.partition("+")
        if not order.code_tree or not base:
            raise CommitMissing(
                f"{order.name} carries no commit, and this coordinator takes only code of {self._shown}",
                hint=f"submit from a git repository, and not --in-place: git add -A && git commit && {again}",
                job=order.name,
            )
        push = f"git push {self._push_to}"
        data = {"job": order.name, "commit": order.commit}
        if changes:
            count = f"{changes} uncommitted change{'' if changes == '1' else 's'}"
            message = f"{order.name} is {base[:_SHOWN]} with {count}; this coordinator takes only commits"
            raise CodeNotAccepted(message, hint=f"git commit -am 'what changed' && {push} && {again}", **data)
        if base not in commits:
            message = f"{order.name} is {base[:_SHOWN]}, which is none of the last {MOST_COMMITS} of {self._shown}"
            raise CodeNotAccepted(message, hint=f"git pull --rebase && {push} && {again}", **data)

    @property
    def _shown(self) -> str:
        return f"{self._repository}:{self._branch}" if self._branch else self._repository

    @property
    def _push_to(self) -> str:
        return f"origin {self._branch}" if self._branch else "origin HEAD"

    def _known(self) -> frozenset[str]:
        with self._turn:
            if self._clock.monotonic_s() - self._read_s > FRESH_S:
                self._read()
            return self._commits

    def _read(self) -> str:
        """Read the list; says why that failed, and leaves the old one then."""
        # Also when it fails: a repository that hangs is not asked by everybody.
        self._read_s = self._clock.monotonic_s()
        (said,) = ask_git(
            self._repository,
            ("rev-list", f"--max-count={MOST_COMMITS}", self._branch or "HEAD", "--"),
            environment=self._environment,
            limit_s=_GIT_S,
        )
        found = frozenset(said.lines()) if said.is_good else frozenset()
        if found:
            self._commits = found
            return ""
        return said.err or "it has none"


def _again(submission: Submission) -> str:
    """Give the command that submits the same again."""
    source = one_line(submission.source, _LONGEST_SOURCE)
    if source.startswith("stoker submit"):
        return source
    return f"stoker submit {os.path.basename(source) or 'manifest.toml'}"
