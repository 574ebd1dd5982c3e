"""Random walks through the queue's verbs, with restarts, lost answers and late words; no promise may break.

The model is small: which jobs there are, and which token each had last. What the rows must say of it is the history
checker's business, on every walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, SetPriority, Write
from stoker.core.errors import InternalError, StokerError, Unavailable
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    Claim,
    ClaimResponse,
    Decline,
    Fail,
    Finish,
    Grant,
    LeaseReport,
    Release,
    Renewal,
    Start,
    WriteResponse,
)
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import SHA, TREE, hello_anew, sweep, token
from tests.servers.fresh_databases import FreshDatabases
from tests.servers.postgres import PostgresServer

MACHINES = ("m1", "m2", "m3")
JOBS: dict[str, dict[str, Any]] = {
    "a": {"attempts": 2},
    "b": {"priority": 1, "attempts": 3},
    "c": {"after": ("a",)},
    "d": {"on_partition": "keep"},
    "e": {"after": ("c", "d"), "priority": 2},
}
VERBS = (
    "claim", "claim", "claim", "repeat", "start", "start", "finish", "finish", "fail", "lost", "release", "decline",
    "cancel", "confirm", "requeue", "renew", "priority", "submit", "wait", "wait_long", "restart", "anew", "join",
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 1000)), min_size=20, max_size=60)


class Walk:
    """One queue, walked through at random. Refusals are part of the walk; a bug is not."""

    def __init__(self, url: str) -> None:
        self.fleet = Driven(url)
        self.fleet.objects[SHA] = 10
        self.grants: list[tuple[str, Grant]] = []
        """Every grant ever, with its machine; the newest of a job is the one that counts."""
        self.claims: list[Claim] = []
        self.incarnations = {machine: f"incarnation-{machine}" for machine in MACHINES}
        self.ids = {one.id for one in self.fleet.submit(*(order(name, **more) for name, more in JOBS.items())).jobs}
        self.fleet.join(*MACHINES)

    def step(self, verb: str, number: int) -> None:
        answer: Any
        try:
            answer = getattr(self, verb)(number)
        except StokerError as error:
            if isinstance(error, InternalError | Unavailable):
                raise
            return
        if isinstance(answer, WriteResponse) and not answer.is_repeat:
            self.accepted(self.last_spoken)

    def accepted(self, grant: Grant) -> None:
        """Only the newest grant of a job may be heard."""
        newest = max((one.epoch for _, one in self.grants if one.job == grant.job), default=0)
        assert grant.epoch == newest, f"epoch {grant.epoch} was heard, {newest} was granted"

    def claim(self, number: int) -> None:
        machine = MACHINES[number % 3]
        asked = Claim(
            request_id=f"request-{len(self.claims):04}",
            worker=machine,
            incarnation=self.incarnations[machine],
            most=1 + number % 2,
        )
        self.claims.append(asked)
        answer = self.fleet.ask(asked)
        assert isinstance(answer, ClaimResponse)
        for grant in answer.grants:
            assert all(grant.epoch > one.epoch for _, one in self.grants if one.job == grant.job)
            self.grants.append((machine, grant))

    def repeat(self, number: int) -> None:
        if self.claims:
            asked = self.claims[number % len(self.claims)]
            answer = self.fleet.ask(asked)
            assert isinstance(answer, ClaimResponse)
            known = [grant for _, grant in self.grants]
            for grant in answer.grants:
                if grant not in known:
                    # Its first try was refused or found nothing.
                    self.grants.append((asked.worker, grant))

    def say(self, number: int, kind: type, **fields: Any) -> Any:
        if not self.grants:
            return None
        # Mostly the latest, now and then one from long ago.
        _, grant = self.grants[-1 - number % min(3, len(self.grants)) if number % 5 else number % len(self.grants)]
        self.last_spoken = grant
        return self.fleet.ask(Write(job=grant.job, said=kind(**token(grant), **fields)))

    def start(self, number: int) -> Any:
        return self.say(number, Start)

    def finish(self, number: int) -> Any:
        return self.say(number, Finish, tree=TREE, archive_sha256=SHA, size_bytes=10)

    def fail(self, number: int) -> Any:
        return self.say(number, Fail, cause=("user", "io", "preempted")[number % 3], message="boom")

    def lost(self, number: int) -> Any:
        return self.say(number, Fail, cause="lost")

    def release(self, number: int) -> Any:
        return self.say(number, Release)

    def decline(self, number: int) -> Any:
        return self.say(number, Decline, reason="busy")

    def confirm(self, number: int) -> Any:
        return self.say(number, CancelConfirmed)

    def some(self, number: int) -> tuple[str, ...]:
        return (sorted(self.ids)[number % len(self.ids)],)

    def cancel(self, number: int) -> None:
        self.fleet.ask(CancelJobs(jobs=self.some(number)))

    def requeue(self, number: int) -> None:
        self.fleet.ask(RequeueJobs(jobs=self.some(number)))

    def priority(self, number: int) -> None:
        self.fleet.ask(SetPriority(jobs=self.some(number), priority=number % 4))

    def submit(self, number: int) -> None:
        name = sorted(JOBS)[number % len(JOBS)]
        more: dict[str, Any] = {**JOBS[name], "priority": number % 3, "code": {"x": str(number % 2)}}
        self.fleet.submit(order(name, **more), on_changed_code="rerun" if number % 2 else "keep")

    def renew(self, number: int) -> None:
        machine = MACHINES[number % 3]
        mine = {grant.job: grant for holder, grant in self.grants if holder == machine}
        reports = tuple(LeaseReport(job=grant.job, **token(grant)) for grant in mine.values())
        self.fleet.ask(Renewal(worker=machine, incarnation=self.incarnations[machine], leases=reports))

    def wait(self, number: int) -> None:
        self.fleet.clock.advance(float(number % 60))
        sweep(self.fleet)

    def wait_long(self, number: int) -> None:
        self.fleet.clock.jump(float(number - 500))
        self.fleet.clock.advance(130.0)
        sweep(self.fleet)

    def restart(self, _number: int) -> None:
        self.fleet.close()
        self.fleet.open()

    def anew(self, number: int) -> None:
        machine = MACHINES[number % 3]
        self.incarnations[machine] = f"incarnation-{machine}-{number}"
        said = hello_anew(machine).model_copy(update={"incarnation": self.incarnations[machine], "slots": 4})
        self.fleet.ask(said)

    def join(self, _number: int) -> None:
        for machine in MACHINES:
            if self.incarnations[machine] == f"incarnation-{machine}":
                self.fleet.join(machine)

    def settle(self) -> None:
        """Let time do what is left to do: every job ends, or waits and says for what."""
        for _ in range(3):
            self.fleet.clock.advance(400.0)
            sweep(self.fleet)
        states = [job.state for job in self.fleet.reader.page().jobs]
        assert "claimed" not in states
        assert "running" not in states


@contextmanager
def walking(url: str) -> Iterator[Walk]:
    walk = Walk(url)
    try:
        yield walk
    finally:
        walk.fleet.close()


def walk_through(url: str, steps: list[tuple[str, int]]) -> None:
    with walking(url) as walk:
        for verb, number in steps:
            walk.step(verb, number)
        walk.settle()
        assert list(check_database(walk.fleet.database, has_object=walk.fleet.objects.get)) == []


@given(steps=STEPS)
@settings(deadline=None, max_examples=8)
def test_no_walk_breaks_a_promise_on_sqlite(fresh_databases: FreshDatabases, steps: list[tuple[str, int]]) -> None:
    walk_through(fresh_databases.sqlite(), steps)


@pytest.mark.slow
@given(steps=STEPS)
@settings(deadline=None, max_examples=150)
def test_no_walk_of_many_breaks_a_promise_on_sqlite(
    fresh_databases: FreshDatabases, steps: list[tuple[str, int]]
) -> None:
    walk_through(fresh_databases.sqlite(), steps)


@given(steps=STEPS)
@settings(deadline=None, max_examples=2)
def test_no_walk_breaks_a_promise_on_postgresql(
    postgres: PostgresServer, fresh_databases: FreshDatabases, steps: list[tuple[str, int]]
) -> None:
    walk_through(fresh_databases.postgres(), steps)
