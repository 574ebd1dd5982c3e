"""The life of allocations at the real queue beside a model of a page: launchers, workers and operators in any order.

After every step both have the same states, epochs and reasons; at the end the database passes its check, which also
finds what is left of ended allocations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run

from stoker.coordinator.auth import IssuedCertificate
from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.commands import (
    Declare,
    InspectLaunch,
    MoveAllocations,
    PausePool,
    PlanAllocations,
    PlannedTicket,
    ResumePool,
    StopAllocations,
    UseInvite,
    WatchPools,
)
from stoker.core.errors import Conflict, Forbidden, NotFound, Refused, StaleLease, StokerError
from stoker.core.machine import Cluster
from stoker.core.pool import AllocationCause, AllocationState, Pool, PoolBackend
from stoker.protocol.launch_messages import AllocationMove, LaunchView
from stoker.protocol.lease_messages import Renewal
from tests.contract.queue_driving import Driven, order
from tests.servers.fresh_databases import FreshDatabases

POOL = Pool(name="gpu", backend=PoolBackend.SLURM, max=3)
IDS = ("00000a", "00000b", "00000c", "00000d", "00000e")
WATCHERS = ("w1", "w2")
WATCH_S, JOIN_S = 60.0, 600.0
ORDER = ("planned", "doubtful", "submitted", "waiting", "started", "serving", "draining", "ended")
OUTCOMES: tuple[tuple[type[StokerError], str], ...] = (
    (StaleLease, "stale"),
    (Conflict, "conflict"),
    (NotFound, "missing"),
    (Forbidden, "forbidden"),
    (Refused, "refused"),
)


@dataclass(slots=True)
class Planned:
    """One allocation."""

    epoch: int
    state: str = "planned"
    serial: str = ""
    """The certificate that its ticket was used for."""
    until_s: float = float("inf")
    """Until when the ticket may be used."""
    has_hello: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in ("ended", "refused")


class AllocationsBesideModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.fleet = Driven(self.databases.sqlite())
        self.fleet.ask(Declare(cluster=Cluster(nodes=(), pools=(POOL,))))
        self.fleet.submit(*(order("job", number) for number in range(1, 30)))
        self.epoch, self.watcher, self.until_s, self.paused = 0, "", 0.0, ""
        self.known: dict[str, Planned] = {}
        self.serials = 0

    databases: FreshDatabases

    def ask(self, command: Any) -> tuple[str, Any]:
        try:
            return "ok", self.fleet.ask(command)
        except StokerError as error:
            return next(word for kind, word in OUTCOMES if isinstance(error, kind)), None

    @property
    def now_s(self) -> float:
        """When the next command will be done."""
        return self.fleet.clock.wall_s() + 1.0

    @rule(watcher=st.sampled_from(WATCHERS), for_s=st.sampled_from((0.0, WATCH_S)))
    def watch(self, watcher: str, for_s: float) -> None:
        now_s = self.now_s
        is_held = self.watcher not in ("", watcher) and self.until_s > now_s
        outcome, done = self.ask(WatchPools(watcher=watcher, pools=("gpu",), for_s=for_s))
        assert outcome == ("conflict" if is_held and for_s else "ok")
        if outcome == "ok" and for_s:
            self.epoch += self.watcher != watcher
            self.watcher, self.until_s = watcher, now_s + for_s
            assert done.data == {"gpu": self.epoch}
        elif outcome == "ok" and self.watcher == watcher:
            self.watcher, self.until_s = "", now_s

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True), late=st.sampled_from((0, 0, 0, 1)))
    def plan(self, ids: list[str], late: int) -> None:
        epoch, now_s = self.epoch - late, self.now_s
        plans = tuple(PlannedTicket(id=id, wanted=(), key=id * 10 + "0000") for id in ids)
        outcome, done = self.ask(PlanAllocations(pool="gpu", epoch=epoch, plans=plans))
        new = [id for id in ids if id not in self.known]
        again = [self.known[id] for id in ids if id in self.known]
        live = sum(not one.is_over for one in self.known.values())
        if not self.epoch or late:
            expected = "stale"
        elif any(one.epoch != epoch or one.is_over or one.serial or one.until_s <= now_s for one in again):
            expected = "conflict"
        elif new and (self.paused or live + len(new) > POOL.max):
            expected = "refused"
        else:
            expected = "ok"
            assert done.data == {id: id * 10 + "0000" for id in ids}
            self.known |= {id: Planned(epoch) for id in new}
        assert outcome == expected

    @rule(
        id=st.sampled_from(IDS),
        state=st.sampled_from([state for state in AllocationState if state is not AllocationState.SERVING]),
        late=st.sampled_from((0, 0, 0, 1)),
        cause=st.sampled_from((AllocationCause.PREEMPTED, AllocationCause.FAILED)),
    )
    def move(self, id: str, state: AllocationState, late: int, cause: AllocationCause) -> None:
        moves = (AllocationMove(id=id, state=state, cause=cause),)
        now_s = self.now_s
        outcome, done = self.ask(MoveAllocations(pool="gpu", epoch=self.epoch - late, moves=moves))
        if not self.epoch or late:
            assert outcome == "stale"
            return
        one = self.known.get(id)
        is_refused = one is None or one.is_over or (state == "refused" and one.state not in ("planned", "doubtful"))
        assert (outcome, list(done.data.get("refused", ()))) == ("ok", [id] if is_refused else [])
        if one is not None and not is_refused:
            self._enter(one, state.value, now_s)

    def _enter(self, one: Planned, state: str, now_s: float) -> None:
        is_requeued = one.state == "started" and state == "waiting"
        if state != "refused" and not is_requeued and ORDER.index(state) <= ORDER.index(one.state):
            return
        one.state = state
        if state == "started":
            one.until_s = now_s + JOIN_S
        elif state == "waiting":
            one.until_s = float("inf")
        elif state in ("draining", "ended", "refused"):
            one.until_s = 0.0
        if one.is_over:
            one.has_hello = False

    @rule(id=st.sampled_from(IDS), is_again=st.booleans())
    def join(self, id: str, is_again: bool) -> None:
        one, now_s = self.known.get(id), self.now_s
        self.serials += 1
        is_repeat = one is not None and bool(one.serial) and is_again
        serial = one.serial if one is not None and is_repeat else f"{self.serials:040x}"
        certificate = IssuedCertificate(serial=serial, name=f"gpu-{id}", issued_s=now_s, expires_s=now_s + 1e9)
        outcome, _ = self.ask(UseInvite(id=id.upper(), request=serial, answer=serial, certificate=certificate))
        if one is None or one.is_over:
            assert outcome == "forbidden"
        elif one.serial:
            assert outcome == ("ok" if is_repeat else "forbidden")
            if not is_repeat:
                # Copied: both are refused from now on.
                self._enter(one, "ended", now_s)
        elif one.until_s <= now_s:
            assert outcome == "forbidden"
        else:
            assert outcome == "ok"
            one.serial = serial

    @rule(id=st.sampled_from(IDS))
    def hello(self, id: str) -> None:
        one = self.known.get(id)
        if one is None or not (one.serial or one.is_over):
            return
        try:
            self.fleet.join(f"gpu-{id}")
        except StaleLease:
            assert one.is_over
            return
        assert not one.is_over
        one.has_hello = True
        if one.state != "draining":
            one.state = "serving"

    @rule(id=st.sampled_from(IDS))
    def claim(self, id: str) -> None:
        one = self.known.get(id)
        if one is None or not one.has_hello:
            return
        grants = self.fleet.claim(f"gpu-{id}")
        if one.state == "draining":
            assert grants == ()
        for grant in grants:
            self.fleet.start(grant)

    @rule(id=st.sampled_from(IDS))
    def leave(self, id: str) -> None:
        one = self.known.get(id)
        if one is not None and one.has_hello:
            machine = f"gpu-{id}"
            self.fleet.ask(Renewal(worker=machine, incarnation=f"incarnation-{machine}", is_leaving=True))
            self._enter(one, "ended", self.now_s)

    @rule(id=st.sampled_from((*IDS, "")))
    def stop(self, id: str) -> None:
        outcome, _ = self.ask(StopAllocations(pool="gpu", ids=(id,) if id else ()))
        assert outcome == ("missing" if id and id not in self.known else "ok")
        for known, one in self.known.items():
            if outcome == "ok" and id in ("", known) and not one.is_over:
                self._enter(one, "draining", 0.0)

    @rule(why=st.sampled_from(("", "brake")))
    def pause(self, why: str) -> None:
        self.ask(PausePool(pool="gpu", why=why) if why else ResumePool(pool="gpu"))
        self.paused = why

    @rule(seconds=st.sampled_from((30.0, 61.0, 700.0)))
    def wait(self, seconds: float) -> None:
        self.fleet.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.fleet.close()
        self.fleet.open()

    @invariant()
    def both_are_alike(self) -> None:
        view = self.fleet.ask(InspectLaunch())
        assert isinstance(view, LaunchView)
        (pool,) = view.pools
        watcher = self.watcher if self.until_s > view.now_s else ""
        assert (pool.epoch, pool.watcher, pool.paused) == (self.epoch, watcher, self.paused)
        assert {one.id: one.state.value for one in view.allocations} == {
            id: one.state for id, one in self.known.items()
        }
        live = {f"gpu-{id}" for id, one in self.known.items() if one.has_hello}
        assert {machine.name for machine in self.fleet.reader.machines()} == live

    def teardown(self) -> None:
        broken = list(check_database(self.fleet.database, has_object=self.fleet.objects.get))
        self.fleet.close()
        assert broken == []


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_allocations_and_their_model_are_alike(fresh_databases: FreshDatabases, count: int):
    class OnSqlite(AllocationsBesideModel):
        databases = fresh_databases

    run(
        OnSqlite,
        settings=settings(
            max_examples=count, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
