"""`stoker admin torture`: test the guarantees of the queue on a live fleet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, duration, whole
from stoker.core.clock import Clock
from stoker.core.errors import InternalError, StokerError, Unavailable, Usage
from stoker.core.job import JobSpec, JobState, job_id
from stoker.core.machine import MOST_PRIORITY, Requirements
from stoker.core.text import counted
from stoker.devices.this_machine import submitter_name
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Fail, Release, Start
from stoker.protocol.view_messages import JobView

if TYPE_CHECKING:
    from stoker.protocol.operator_messages import HistoryCheck


_FOR_S = 180.0
_JOBS = 200
_MOST_JOBS = 10_000
_CHECKED = 20_000

GRAMMAR = Grammar(
    "admin torture",
    about=(
        "Stress this fleet for some minutes with no-op jobs: random cancels, requeues and priorities, repeated "
        "submissions, stale reports of ended attempts. Then check the history of the newest jobs, and list each "
        "guarantee as kept or broken. The jobs have the lowest priority; at the end, also after Ctrl-C, unfinished "
        "ones are cancelled. Exit code 1 if a guarantee is broken."
    ),
    options=(
        Option("--for", value="TIME", read=duration, help="duration (default: 3m)"),
        Option("--jobs", value="N", read=whole(1), help=f"maximum number of jobs (default: {_JOBS})"),
        Option("--seed", value="N", read=whole(0), help="seed of the random operations"),
        AT,
    ),
    examples=("stoker admin torture", "stoker admin torture --for 20s --jobs 50", "stoker admin torture --json"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Stress the queue, clean up, and print the verdict."""
    from stoker.cli.screens import ElapsedSeconds, show_progress

    for_s = _FOR_S if given["for"] is None else given["for"]
    jobs = given["jobs"] or _JOBS
    if jobs > _MOST_JOBS:
        raise Usage(f"--jobs {jobs}: the maximum is {_MOST_JOBS:,}", hint="the same jobs are used repeatedly")
    client = call.lookup.client(given["at"])
    # A token without permission is rejected before the test starts.
    client.verdict(jobs=1)
    seed = call.parts.entropy() if given["seed"] is None else given["seed"]
    by = submitter_name(call.parts.settings.environment)
    torture = StressTest(client, clock=call.parts.clock, seed=seed, jobs=jobs, by=by)
    began_s = call.parts.clock.monotonic_s()
    with show_progress(call, "torturing", int(for_s), ElapsedSeconds) as count:
        try:
            torture.run(for_s, lambda _done: count.reach(int(call.parts.clock.monotonic_s() - began_s)))
        finally:
            left = torture.tidy()
    verdict = client.verdict(jobs=_CHECKED)
    is_well = verdict.is_clean and not torture.troubles and not left
    _show(call, torture, verdict, seed=seed, left=left, is_well=is_well)
    return 0 if is_well else 1


def _show(
    call: CommandContext, torture: StressTest, verdict: HistoryCheck, *, seed: int, left: int, is_well: bool
) -> None:
    from stoker.views.fleet_lines import counts_lines, verdict_lines

    out = call.out
    signs = out.signs
    out.object(
        {
            "is_well": is_well,
            "seed": seed,
            "name": torture.name,
            "tried": dict(torture.tried),
            "refused": dict(torture.refused),
            "jobs": len(torture.jobs),
            "left": left,
            "troubles": torture.troubles,
            "verdict": verdict.model_dump(mode="json"),
        }
    )
    jobs = counted(len(torture.jobs), "job")
    out.line(f"{torture.name}: {counted(torture.tried.total(), 'operation')} on {jobs} (seed {seed})")
    for line in counts_lines(torture.tried, torture.refused, columns=out.columns):
        out.line(f"  {line}")
    whole_text = "all" if verdict.is_whole else "the newest"
    out.line(f"\nthe history checker on {whole_text} {counted(verdict.jobs, 'job')}, in {verdict.seconds:.1f} s:")
    for line in verdict_lines(verdict, signs, columns=out.columns):
        out.line(f"  {line}")
    for trouble in torture.troubles:
        out.line(f"  {signs.failed} {trouble}")
    if left:
        out.line(
            f"  {signs.failed} {counted(left, 'job')} did not end within 1 min after the cancellation: stoker jobs"
        )
    out.line(
        f"{signs.ran} all guarantees kept" if is_well else f"{signs.failed} a guarantee is broken or a job is left"
    )


NAME = "torture"
_AT_ONCE = 5
_PAUSE_S = 0.05
"""Leaves time for other requests."""
_TIDY_S = 60.0
_TIDY_LOOK_S = 0.2
_PAGE = 1000
_RAM_BYTES = 64 * 1024 * 1024
_MOST_TROUBLES = 20


class StressTest:
    """One stress test of a queue, from one client."""

    def __init__(self, client: FleetClient, *, clock: Clock, seed: int, jobs: int, by: str) -> None:
        self._client = client
        self._clock = clock
        self._chance = random.Random(seed)  # noqa: S311 - repeats by its seed, guards nothing
        self._by = by
        self._most = jobs
        self.name = f"{NAME}-{seed:08x}"
        self.tried: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.troubles: list[str] = []
        """Errors of the coordinator: internal errors, and accepted stale reports."""
        self.jobs: list[str] = []
        self._last: Submission | None = None
        self._states: dict[str, JobView] = {}

    def run(self, for_s: float, heed: Callable[[int], None]) -> None:
        """Run random operations for a while; `heed` gets their number, and may raise to stop."""
        until_s = self._clock.monotonic_s() + for_s
        verbs: tuple[tuple[Callable[[], None], int], ...] = (
            (self._submit, 6),
            (self._submit_again, 2),
            (self._cancel, 1),
            (self._requeue, 3),
            (self._prioritise, 2),
            (self._send_stale_report, 3),
            (self._look, 2),
        )
        choices, weights = zip(*verbs, strict=True)
        while self._clock.monotonic_s() < until_s:
            (verb,) = self._chance.choices(choices, weights)
            verb()
            heed(self.tried.total())
            self._clock.sleep(_PAUSE_S)

    def tidy(self) -> int:
        """Cancel unfinished jobs, wait up to 60 s, and return how many are left."""
        until_s = self._clock.monotonic_s() + _TIDY_S
        while left := [view.id for view in self._all() if not JobState(view.state).is_terminal]:
            if self._clock.monotonic_s() > until_s:
                return len(left)
            self._client.cancel_jobs(left, by=self._by)
            self._clock.sleep(_TIDY_LOOK_S)
        return 0

    def _submit(self) -> None:
        room = self._most - len(self.jobs)
        if room <= 0:
            return self._requeue()
        first = len(self.jobs)
        orders = tuple(self._order(first + at) for at in range(self._chance.randint(1, min(_AT_ONCE, room))))
        self._last = Submission(key=f"{self.name}-{first}", jobs=orders, submitter=self._by, source=self.name)
        if self._try("submitted jobs", lambda: self._client.submit(self._submission()), len(orders)):
            self.jobs += [order.id for order in orders]
        return None

    def _submission(self) -> Submission:
        if self._last is None:
            raise InternalError("nothing was submitted")
        return self._last

    def _submit_again(self) -> None:
        """Repeat the last submission, with its idempotency key or without."""
        if self._last is None:
            return
        again = self._last if self._chance.random() < 0.5 else self._last.model_copy(update={"key": ""})
        if self._try("repeated submissions", lambda: self._client.submit(again)):
            known = set(self.jobs)
            self.jobs += [order.id for order in again.jobs if order.id not in known]

    def _cancel(self) -> None:
        self._to_some("cancels", lambda some: self._client.cancel_jobs(some, by=self._by))

    def _requeue(self) -> None:
        self._to_some("requeues", lambda some: self._client.requeue_jobs(some, by=self._by))

    def _prioritise(self) -> None:
        priority = self._priority()
        self._to_some("priorities", lambda some: self._client.set_priority_of_jobs(some, priority, by=self._by))

    def _send_stale_report(self) -> None:
        """Send a stale report of an attempt; it must be refused."""
        view = self._states.get(self._chance.choice(self.jobs)) if self.jobs and self._states else None
        if view is None or view.epoch < 1:
            return self._look()
        token: dict[str, Any] = {"attempt": max(1, view.attempt), "epoch": max(1, view.epoch), "generation": 1 << 40}
        late = Fail(**token, cause="user", message="late")
        report = self._chance.choice((Start(**token), late, Release(**token)))
        before = self.refused["words of the past"]
        self._try("words of the past", lambda: self._client.write(view.id, report))
        if self.refused["words of the past"] == before:
            self._note(f"a stale report was accepted: {report.verb} of {view.name}")
        return None

    def _look(self) -> None:
        if self._try("looks", lambda: self._states.update({view.id: view for view in self._all()})):
            return

    def _to_some(self, what: str, do: Callable[[list[str]], object]) -> None:
        if self.jobs:
            some = self._chance.sample(self.jobs, min(len(self.jobs), self._chance.randint(1, _AT_ONCE)))
            self._try(what, lambda: do(some))

    def _try(self, what: str, do: Callable[[], object], count: int = 1) -> bool:
        """Run one operation; a refusal is expected, an internal error is not."""
        self.tried[what] += count
        try:
            do()
        except InternalError as error:
            self._note(f"{what}: {error}")
            return False
        except Unavailable:
            raise
        except StokerError:
            self.refused[what] += count
            return False
        return True

    def _note(self, trouble: str) -> None:
        if len(self.troubles) < _MOST_TROUBLES:
            self.troubles.append(trouble)

    def _order(self, number: int) -> JobSpec:
        """Return a no-op job; some of them fail."""
        is_bad = self._chance.random() < 0.2
        args = {"argv": ["false" if is_bad else "true"], "params": {"torture": self.name, "number": number}}
        return JobSpec(
            id=job_id(recipe="command", schema_version=1, args=args),
            name=self.name,
            number=number + 1,
            recipe="command",
            args=args,
            identity=args,
            folder="/",
            priority=self._priority(),
            requirements=Requirements(ram_bytes=_RAM_BYTES),
            attempts=self._chance.randint(1, 3),
        )

    def _priority(self) -> int:
        return -MOST_PRIORITY + self._chance.randint(0, 9)

    def _all(self) -> list[JobView]:
        found: list[JobView] = []
        after = ""
        while True:
            page = self._client.jobs(name=self.name, after=after, limit=_PAGE)
            found += page.jobs
            after = page.next
            if not after:
                return found
