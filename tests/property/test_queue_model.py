"""The real queue beside a model of a page, whatever is said to it, in any order, how often and how late.

Claims, starts, renewals, results and their repeats; cancels and requeues; clocks that jump both ways; coordinators that
start anew or from a backup, workers that start anew. After every step both say the same; at the end no promise is
broken, and whatever still waits is given to whoever asks.
"""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from stoker.coordinator.database.backup import back_up, restore
from stoker.coordinator.database.database import open_database
from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, Write
from stoker.core.errors import Conflict, InvalidTransition, NotFound, StaleLease, StokerError
from stoker.protocol.lease_messages import Claim, ClaimResponse, Fail, Grant, LeaseReport, Renewal, WriteResponse
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import SHA, TREE, WORDS, finish, hello_anew, sweep, token
from tests.property.queue_model import LIVE, TERMINAL, Job, Model, Pass
from tests.servers.fresh_databases import FreshDatabases
from tests.servers.postgres import PostgresServer

MACHINES = ("m1", "m2", "m3")
JOBS: dict[str, dict[str, Any]] = {"a": {"attempts": 2}, "b": {"on_partition": "keep"}, "c": {}, "d": {"attempts": 3}}
WORDS_SAID = ("start", "start", "finish", "finish", "release", "decline", "cancelled")
OUTCOMES: dict[type, str] = {StaleLease: "stale", Conflict: "conflict", InvalidTransition: "illegal"}
OTHER_TREE = "c" * 64


def pass_of(grant: Grant) -> Pass:
    return (grant.job, grant.attempt, grant.epoch, grant.generation)


class QueueBesideModel(RuleBasedStateMachine):
    url = ""
    grants: Bundle[Grant] = Bundle("grants")
    claims: Bundle[Claim] = Bundle("claims")

    @initialize()
    def begin(self) -> None:
        self.folder = TemporaryDirectory()
        self.fleet = Driven(self.fresh_url())
        self.fleet.objects[SHA] = 10
        self.model = Model()
        self.backup: tuple[Path, Model] | None = None
        self.given: dict[str, tuple[Pass, ...]] = {}
        """What each claim was answered, since the last restore."""
        self.seen: set[tuple[str, int, int]] = set()
        """Every job's epochs that were ever given out, in every generation."""
        self.incarnations: dict[str, str] = {}
        """What each worker really is now."""
        self.number = self.backed_up = self.restored = 0
        for one in self.fleet.submit(*(order(name, **more) for name, more in JOBS.items())).jobs:
            more = JOBS[one.name]
            self.model.jobs[one.id] = Job(allowed=more.get("attempts", 1), keeps="on_partition" in more)
        for machine in MACHINES:
            self.start_worker(machine)

    def fresh_url(self) -> str:
        raise NotImplementedError

    @property
    def now_s(self) -> float:
        return self.fleet.clock.monotonic_s()

    def next_number(self) -> int:
        self.number += 1
        return self.number

    @rule(machine=st.sampled_from(MACHINES))
    def start_worker(self, machine: str) -> None:
        self.incarnations[machine] = f"incarnation-{machine}-{self.next_number()}"
        self.greet(machine, self.incarnations[machine])

    @rule(machine=st.sampled_from(MACHINES), back=st.integers(0, 3))
    def an_old_hello_arrives(self, machine: str, back: int) -> None:
        old = self.model.outdated.get(machine, [])[-1 - back : len(self.model.outdated.get(machine, [])) - back]
        for incarnation in old:
            if incarnation:
                self.greet(machine, incarnation)

    def greet(self, machine: str, incarnation: str) -> None:
        said = hello_anew(machine).model_copy(update={"incarnation": incarnation, "slots": 4})
        try:
            self.fleet.ask(said)
        except StaleLease:
            assert not self.model.greet(machine, incarnation)
        else:
            assert self.model.greet(machine, incarnation)

    @rule(target=claims, machine=st.sampled_from(MACHINES), most=st.integers(1, 3))
    def write_a_claim(self, machine: str, most: int) -> Claim:
        return Claim(
            request_id=f"request-{self.next_number():05}",
            worker=machine,
            incarnation=self.incarnations[machine],
            most=most,
        )

    @rule(target=grants, claim=claims)
    def a_claim_arrives(self, claim: Claim) -> Any:
        """For the first time, or again, or long after it was sent."""
        known = self.model.incarnations[claim.worker]
        try:
            answer = self.fleet.ask(claim)
        except NotFound:
            assert known == ""
            return multiple()
        except StaleLease:
            assert known != claim.incarnation
            return multiple()
        assert isinstance(answer, ClaimResponse)
        assert known == claim.incarnation
        return multiple(*self.take(claim, answer))

    def take(self, claim: Claim, answer: ClaimResponse) -> list[Grant]:
        before = self.given.get(claim.request_id, ())
        awaited = [one for one in before if self.model.is_live(one) and self.model.jobs[one[0]].state == "claimed"]
        passes = [pass_of(grant) for grant in answer.grants]
        if awaited:
            assert set(awaited) <= set(passes) <= set(before), "a repeated claim was answered otherwise"
        fresh = [grant for grant in answer.grants if pass_of(grant) not in before]
        for grant in fresh:
            epoch = (grant.job, grant.generation, grant.epoch)
            assert epoch not in self.seen, "an epoch was given out twice"
            self.seen.add(epoch)
            self.model.grant(pass_of(grant), claim.worker, self.now_s)
        self.given[claim.request_id] = tuple(dict.fromkeys([*before, *passes]))
        return fresh

    @rule(grant=grants, word=st.sampled_from(WORDS_SAID))
    def a_word_arrives(self, grant: Grant, word: str) -> None:
        """From whoever has the job, or had it once."""
        self.hear(grant, word, Write(job=grant.job, said=WORDS[word](grant)), tree=TREE)

    @rule(grant=grants, cause=st.sampled_from(["user", "lost", "preempted"]))
    def a_failure_arrives(self, grant: Grant, cause: str) -> None:
        self.hear(grant, "fail", Write(job=grant.job, said=Fail(**token(grant), cause=cause)), cause=cause)

    @rule(grant=grants)
    def another_result_arrives(self, grant: Grant) -> None:
        self.hear(grant, "finish", finish(grant, tree=OTHER_TREE), tree=OTHER_TREE)

    def hear(self, grant: Grant, word: str, said: Write, **fields: Any) -> None:
        try:
            answer = self.fleet.ask(said)
        except StokerError as error:
            outcome = OUTCOMES[type(error)]
        else:
            assert isinstance(answer, WriteResponse)
            outcome = "repeat" if answer.is_repeat else "done"
        assert outcome == self.model.say(pass_of(grant), word, fields, self.now_s)

    @rule(machine=st.sampled_from(MACHINES), held=st.lists(grants, max_size=4))
    def a_heartbeat_arrives(self, machine: str, held: list[Grant]) -> None:
        mine = tuple(LeaseReport(job=grant.job, **token(grant)) for grant in held)
        try:
            self.fleet.ask(Renewal(worker=machine, incarnation=self.incarnations[machine], leases=mine))
        except (StaleLease, NotFound):
            assert self.model.incarnations[machine] != self.incarnations[machine]
            return
        for grant in held:
            self.model.renew(pass_of(grant), self.now_s)

    @rule(pick=st.integers(0, len(JOBS) - 1))
    def somebody_cancels(self, pick: int) -> None:
        id = sorted(self.model.jobs)[pick]
        self.fleet.ask(CancelJobs(jobs=(id,)))
        job = self.model.jobs[id]
        if job.state == "pending":
            job.state = "cancelled"
        elif job.state in LIVE:
            job.is_cancelling = True

    @rule(pick=st.integers(0, len(JOBS) - 1))
    def somebody_requeues(self, pick: int) -> None:
        id = sorted(self.model.jobs)[pick]
        job = self.model.jobs[id]
        try:
            self.fleet.ask(RequeueJobs(jobs=(id,)))
        except InvalidTransition:
            assert job.state in LIVE
            return
        assert job.state not in LIVE
        if job.state in TERMINAL:
            job.requeue()

    @rule(passes_s=st.sampled_from([1.0, 30.0, 60.0, 119.0, 400.0]))
    def time_passes(self, passes_s: float) -> None:
        self.fleet.clock.advance(passes_s)
        self.look()

    @rule(jump_s=st.sampled_from([-86_400.0, -100.0, 100.0, 86_400.0]))
    def the_clock_is_set(self, jump_s: float) -> None:
        self.fleet.clock.jump(jump_s)
        self.look()

    def look(self) -> None:
        assert set(sweep(self.fleet).expired) == self.model.sweep(self.now_s)

    @rule()
    def the_coordinator_starts_anew(self) -> None:
        self.fleet.close()
        self.fleet.open()
        self.model.restart(self.now_s)

    # Whatever may always be done is done every third time; a backup of what was backed up a moment ago shows nothing.
    @precondition(lambda self: self.backup is None or self.number > self.backed_up + 4)
    @rule()
    def a_backup_is_made(self) -> None:
        self.backed_up = self.next_number()
        path = Path(self.folder.name) / f"backup-{self.backed_up}"
        back_up(self.fleet.database, str(path), clock=self.fleet.clock)
        self.backup = (path, self.model.copy())

    @precondition(lambda self: self.backup is not None and self.number > self.restored)
    @rule()
    def the_backup_is_restored(self) -> None:
        assert self.backup is not None
        self.restored = self.number
        path, model = self.backup
        self.fleet.close()
        database = open_database(self.fleet.url, clock=self.fleet.clock)
        done = restore(database, io.BytesIO(path.read_bytes()), path.name, clock=self.fleet.clock, may_replace=True)
        database.close()
        assert done.generation > max(self.model.generation, model.generation)
        self.model = model.copy()
        self.model.restore(done.generation)
        self.given.clear()
        self.fleet.open()
        self.model.restart(self.now_s)

    @invariant()
    def both_say_the_same(self) -> None:
        if hasattr(self, "fleet"):
            seen = {job.id: job.state for job in self.fleet.reader.page().jobs}
            assert seen == {id: job.state for id, job in self.model.jobs.items()}

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            try:
                self.settle()
            finally:
                self.fleet.close()
                self.folder.cleanup()

    def settle(self) -> None:
        """Let all leases end, then let a machine that nobody knows ask: it gets everything that waits."""
        for _ in range(2):
            self.fleet.clock.advance(1000.0)
            self.look()
        states = {id: job.state for id, job in self.model.jobs.items()}
        waiting = {id for id, state in states.items() if state == "pending"}
        assert waiting | {id for id, state in states.items() if state in TERMINAL} == set(states)
        self.fleet.join("healthy", slots=8)
        granted = self.fleet.claim("healthy", most=8)
        assert {grant.job for grant in granted} == waiting
        assert list(check_database(self.fleet.database, has_object=self.fleet.objects.get)) == []


def walk(machine: type[QueueBesideModel], *, count: int, steps: int) -> None:
    run(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("count", [6, pytest.param(250, marks=pytest.mark.slow)])
def test_the_queue_does_what_its_model_does_on_sqlite(fresh_databases: FreshDatabases, count: int) -> None:
    class OnSqlite(QueueBesideModel):
        def fresh_url(self) -> str:
            return fresh_databases.sqlite()

    walk(OnSqlite, count=count, steps=40)


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_the_queue_does_what_its_model_does_on_postgresql(
    postgres: PostgresServer, fresh_databases: FreshDatabases, count: int
) -> None:
    class OnPostgresql(QueueBesideModel):
        def fresh_url(self) -> str:
            return fresh_databases.postgres()

    walk(OnPostgresql, count=count, steps=40)
