"""The watcher of pools: it starts what is needed, and whatever is lost on the way, nothing is started twice or left."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.clock import FakeClock
from stoker.core.errors import InternalError, KitRefused, NoBackend
from stoker.core.frozen import changed
from stoker.core.machine import Demand, Requirements, SchedulableJob
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolShape, PoolState
from stoker.launch import watcher
from stoker.launch.launchers import AllocationStatus, Log
from stoker.launch.watcher import LEASE_S, Watcher, WatchSettings
from stoker.views.pool_lines import launch_event_line
from tests.unit.launch.fake_cluster import FakeBackend, FakeCoordinator, Inline

POOL = Pool(name="p", backend=PoolBackend.SLURM, each=PoolShape(cpu_cores=4), max=4, backlog=4, patience_s=0.0)
S = AllocationState


class Bench:
    """A watcher with a coordinator and a backend in memory, and a clock that stands still."""

    def __init__(self, pool: Pool = POOL) -> None:
        self.clock = FakeClock()
        self.coordinator = FakeCoordinator(pool, now_s=self.clock.wall_s)
        self.backend = FakeBackend(self.clock.wall_s)
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.starts = 0
        self.url = "https://desk:7717"
        self.watcher = self.new_watcher()

    def new_watcher(self, pools: Sequence[str] = ()) -> Watcher:
        self.starts += 1
        return Watcher(
            cast("Any", self.coordinator),
            lambda _backend: self.backend,
            WatchSettings(watcher=f"w{self.starts}", url=self.url, local_url="https://127.0.0.1:7717"),
            clock=self.clock,
            log=lambda kind, fields: self.log.append((kind, fields)),
            pools=pools,
        )

    def want(self, jobs: int) -> None:
        job = SchedulableJob(name="train", requirements=Requirements())
        demand = Demand(job=job, count=jobs, since_s=0.0, names=("train/1",))
        self.coordinator.demand = (demand,) if jobs else ()

    def turn(self, pass_s: float = 1.0) -> None:
        self.clock.advance(pass_s)
        try:
            self.watcher.turn(cast("Any", Inline()))
        except KeyboardInterrupt:
            # It was killed: another one takes over once the lease has ended.
            self.watcher = self.new_watcher()

    def turns(self, count: int, pass_s: float = 30.0) -> None:
        for _ in range(count):
            self.turn(pass_s)

    def states(self) -> list[AllocationState]:
        return [row.state for row in self.coordinator.rows.values()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_machines_that_are_requested_together_are_one_request(bench: Bench) -> None:
    bench.want(3)
    bench.turn()
    assert (bench.backend.submits, bench.states()) == (1, [S.SUBMITTED] * 3)
    assert [row.backend_id for row in bench.coordinator.rows.values()] == ["1_0", "1_1", "1_2"]


def test_a_request_is_planned_before_it_is_submitted(bench: Bench) -> None:
    bench.want(1)
    bench.backend.faults = ["die"]
    bench.turn()
    assert bench.states() == [S.PLANNED]


def test_a_ticket_names_the_machine_and_the_coordinator(bench: Bench) -> None:
    bench.want(1)
    bench.turn()
    (row,) = bench.coordinator.rows.values()
    (ticket,) = bench.backend.tickets
    assert f'"name":"{row.machine}"' in ticket.replace(" ", "")
    assert f'"id":"{row.id.upper()}"' in ticket.replace(" ", "")


def test_nothing_is_requested_again_while_a_request_is_under_way(bench: Bench) -> None:
    bench.want(3)
    bench.turns(10)
    assert bench.backend.submits == 1


@pytest.mark.parametrize("fault", ["lose", "die after"])
def test_a_request_whose_answer_was_lost_is_adopted_and_not_repeated(bench: Bench, fault: str) -> None:
    bench.want(2)
    bench.backend.faults = [fault]
    bench.turns(6)
    assert bench.states() == [S.WAITING] * 2
    assert len(bench.backend.live()) == 2


@pytest.mark.parametrize("fault", ["drop", "die"])
def test_a_request_that_never_arrived_is_made_again_under_another_id(bench: Bench, fault: str) -> None:
    bench.want(2)
    bench.backend.faults = [fault]
    bench.turns(8)
    assert sorted(bench.states()) == sorted([S.ENDED] * 2 + [S.WAITING] * 2)
    assert {row.cause for row in bench.coordinator.rows.values() if row.is_over} == {AllocationCause.NOT_SUBMITTED}
    assert len(bench.backend.live()) == 2


def test_five_refusals_pause_the_pool_with_the_backends_words(bench: Bench) -> None:
    bench.want(1)
    bench.backend.faults = ["refuse"] * 10
    bench.turns(10)
    assert bench.coordinator.pools["p"].paused == "5 requests were refused in a row: Invalid account"
    assert bench.backend.submits == 5
    bench.backend.faults.clear()
    bench.coordinator.resume("p")
    bench.turns(1)
    assert bench.backend.submits == 6


def test_a_host_that_can_not_get_stoker_pauses_the_pool_with_the_reason(bench: Bench) -> None:
    bench.want(1)
    bench.backend.kit_fault = KitRefused("far: no Python; Stoker needs >=3.11")
    bench.turns(10)
    assert bench.coordinator.pools["p"].paused.endswith("in a row: far: no Python; Stoker needs >=3.11")
    assert bench.backend.submits == 0
    bench.backend.kit_fault = None
    bench.coordinator.resume("p")
    bench.turns(1)
    assert bench.backend.submits == 1


def test_a_broken_transfer_of_stoker_is_no_request(bench: Bench) -> None:
    bench.want(1)
    bench.backend.kit_fault = NoBackend("transfer of the kit to far broke")
    bench.turns(1)
    (row,) = bench.coordinator.rows.values()
    assert (row.state, row.cause, row.message) == (S.ENDED, AllocationCause.NOT_SUBMITTED, str(bench.backend.kit_fault))
    bench.backend.kit_fault = None
    bench.turns(10)
    assert bench.backend.submits == 1
    assert len(bench.backend.live()) == 1


def test_cancelling_everything_there_pauses_the_pool(bench: Bench) -> None:
    bench.want(8)
    for _ in range(10):
        bench.turns(2, pass_s=5.0)
        for one in bench.backend.live():
            bench.backend.end(one.backend_id, AllocationCause.CANCELLED_THERE)
    assert "cancelled at the backend" in bench.coordinator.pools["p"].paused
    assert bench.backend.submits <= 2


def test_a_request_that_no_job_needs_is_cancelled(bench: Bench) -> None:
    bench.want(2)
    bench.turns(2)
    bench.want(0)
    bench.turns(4)
    assert bench.states() == [S.ENDED] * 2
    assert {row.cause for row in bench.coordinator.rows.values()} == {AllocationCause.CANCELLED}
    assert bench.backend.live() == []


def test_a_preempted_machine_ends_with_its_cause_and_is_replaced(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    (entry,) = bench.backend.live()
    bench.backend.start(entry.backend_id)
    bench.turns(1)
    bench.coordinator.joined(entry.id)
    bench.want(0)
    bench.turns(1)
    bench.backend.end(entry.backend_id, AllocationCause.PREEMPTED)
    bench.want(1)
    bench.turns(3)
    assert bench.coordinator.rows[entry.id].cause is AllocationCause.PREEMPTED
    assert len(bench.backend.live()) == 1


def test_a_worker_that_never_joins_ends_with_the_last_line_of_its_log(bench: Bench) -> None:
    bench.want(1)
    bench.turns(1)
    bench.backend.start("1_0")
    bench.turns(14)
    row = next(iter(bench.coordinator.rows.values()))
    assert (row.cause, row.message) == (AllocationCause.NEVER_JOINED, "no route to host")
    assert row.id not in {one.id for one in bench.backend.live()}


def test_a_watcher_that_was_replaced_changes_nothing_more(bench: Bench) -> None:
    bench.turn()
    old = bench.watcher
    bench.clock.advance(LEASE_S + 1)
    bench.watcher = bench.new_watcher()
    bench.turn()
    bench.want(2)
    old.turn(cast("Any", Inline()))
    assert bench.backend.submits == 0
    bench.turn()
    assert bench.backend.submits == 1


def test_a_stray_of_this_fleet_is_cancelled(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    bench.coordinator.rows.clear()
    bench.want(0)
    bench.turns(6)
    assert bench.backend.live() == []


def test_files_of_a_pool_that_was_removed_from_the_file_are_cleaned(bench: Bench) -> None:
    bench.want(2)
    bench.turns(2)
    bench.want(0)
    for one in bench.backend.live():
        bench.backend.start(one.backend_id)
        bench.coordinator.joined(one.id)
    bench.turn()
    for id_, row in bench.coordinator.rows.items():
        # Their workers said goodbye, and with the last one the pool is gone.
        bench.coordinator.rows[id_] = changed(row, state=S.ENDED, cause=AllocationCause.FINISHED, ended_s=1.0)
    bench.coordinator.pools.clear()
    bench.turns(2)
    assert bench.backend.cleaned == set(bench.coordinator.rows)


def test_files_of_a_worker_that_left_before_its_request_was_found_are_cleaned(bench: Bench) -> None:
    bench.want(1)
    bench.backend.faults = ["lose"]
    bench.turn()
    bench.want(0)
    (entry,) = bench.backend.live()
    # Between two looks it joins, serves and says goodbye.
    bench.coordinator.joined(entry.id)
    row = bench.coordinator.rows[entry.id]
    bench.coordinator.rows[entry.id] = changed(row, state=S.ENDED, cause=AllocationCause.FINISHED, ended_s=1.0)
    bench.backend.end(entry.backend_id, AllocationCause.FINISHED)
    bench.turns(3)
    assert (bench.backend.cleaned, bench.backend.cleaned_there) == ({entry.id}, {entry.backend_id})


def test_few_looks_while_nothing_moves(bench: Bench) -> None:
    bench.want(1)
    bench.turns(60, pass_s=1.0)
    before = bench.backend.looks
    bench.turns(300, pass_s=1.0)
    assert bench.backend.looks - before <= 11


def test_few_looks_while_a_worker_starts(bench: Bench) -> None:
    bench.want(1)
    bench.turns(1)
    bench.backend.start("1_0")
    before = bench.backend.looks
    bench.turns(60, pass_s=1.0)
    assert bench.states() == [S.STARTED]
    assert bench.backend.looks - before <= 4


def test_a_backend_that_can_not_be_reached_is_logged_once() -> None:
    bench = Bench()

    def unreachable(*_args: object, **_fields: object) -> Any:
        raise NoBackend("squeue: no such command", hint="run it on the login node")

    bench.backend.look = unreachable  # type: ignore[method-assign]
    bench.turns(20, pass_s=10.0)
    assert [kind for kind, _ in bench.log] == ["pool_watched", "launch_problem"]


def test_an_error_that_nobody_expects_is_logged_and_tried_again_later(bench: Bench) -> None:
    def broken(*_args: object, **_fields: object) -> Any:
        raise RuntimeError("no such thing")

    bench.backend.look = broken  # type: ignore[method-assign]
    bench.turns(20, pass_s=10.0)
    problems = [fields["why"] for kind, fields in bench.log if kind == "launch_problem"]
    assert problems == ["internal error: RuntimeError: no such thing"]


def test_a_cancel_that_failed_is_repeated(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    bench.want(0)
    cancel, tries = bench.backend.cancel, []

    def once_broken(pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        tries.append(backend_ids)
        if len(tries) == 1:
            raise NoBackend("not reached")
        cancel(pool, backend_ids)

    bench.backend.cancel = once_broken  # type: ignore[method-assign]
    bench.turns(6)
    assert bench.backend.live() == []
    assert len(tries) == 2


def serving(bench: Bench) -> AllocationStatus:
    """Start a worker that serves and does not end by itself."""
    bench.backend.is_stubborn = True
    bench.want(1)
    bench.turns(2)
    (entry,) = bench.backend.live()
    bench.backend.start(entry.backend_id)
    bench.turns(1)
    bench.coordinator.joined(entry.id)
    return entry


def test_a_cancel_that_fails_for_long_stops_neither_looks_nor_starts(bench: Bench) -> None:
    entry = serving(bench)
    bench.coordinator.rows[entry.id] = changed(bench.coordinator.rows[entry.id], state=S.DRAINING)
    tries = []

    def broken(pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        tries.append(backend_ids)
        raise NoBackend("no permission to delete jobs")

    bench.backend.cancel = broken  # type: ignore[method-assign]
    bench.want(2)
    bench.turns(120, pass_s=1.0)
    assert 3 <= len(tries) <= 5, "once in 30 s"
    assert bench.backend.submits == 2
    assert S.WAITING in bench.states()
    problems = [fields["why"] for kind, fields in bench.log if kind == "launch_problem"]
    assert problems == ["no permission to delete jobs"]
    assert bench.coordinator.pools["p"].problem == "", "it starts machines: other watchers count on that"


def test_a_worker_that_drains_is_not_signalled_again_by_the_next_watcher() -> None:
    bench = Bench(changed(POOL, drain_s=100.0))
    entry = serving(bench)
    bench.coordinator.rows[entry.id] = changed(bench.coordinator.rows[entry.id], state=S.DRAINING)
    bench.want(0)
    bench.turns(1)
    assert bench.backend.cancels == [(entry.backend_id, True)]
    bench.watcher = bench.new_watcher()
    bench.turns(1, pass_s=LEASE_S + 1)
    bench.turns(3, pass_s=10.0)
    assert bench.backend.cancels == [(entry.backend_id, True)]
    bench.turns(4)
    assert bench.backend.cancels[:2] == [(entry.backend_id, True), (entry.backend_id, False)]


@pytest.mark.parametrize("is_stopped_before", [False, True])
def test_a_stopped_worker_that_nobody_signalled_is_signalled_by_the_next_watcher(is_stopped_before: bool) -> None:
    bench = Bench(changed(POOL, drain_s=100.0))
    entry = serving(bench)
    bench.want(0)
    bench.coordinator.rows[entry.id] = changed(bench.coordinator.rows[entry.id], state=S.DRAINING)
    if is_stopped_before:
        cancel = bench.backend.cancel

        def broken(*_args: object, **_fields: object) -> Any:
            raise NoBackend("not reached")

        bench.backend.cancel = broken  # type: ignore[method-assign]
        bench.turns(1)
        bench.backend.cancel = cancel  # type: ignore[method-assign]
    bench.watcher = bench.new_watcher()
    bench.turns(1, pass_s=LEASE_S + 1)
    assert bench.backend.cancels == [(entry.backend_id, True)]
    assert bench.coordinator.rows[entry.id].signalled_s is not None


def test_an_allocation_that_its_backend_is_ending_is_not_signalled_by_the_next_watcher() -> None:
    bench = Bench(changed(POOL, drain_s=100.0))
    entry = serving(bench)
    bench.want(0)
    bench.backend.entries[entry.backend_id] = changed(entry, state=S.DRAINING, reason="COMPLETING")
    bench.turns(2)
    assert bench.coordinator.rows[entry.id].state is S.DRAINING
    bench.watcher = bench.new_watcher()
    bench.turns(1, pass_s=LEASE_S + 1)
    assert bench.backend.cancels == []


@pytest.mark.parametrize("place", ["look", "launch_view"])
def test_an_outage_of_our_own_makes_no_worker_hang(bench: Bench, place: str) -> None:
    entry = serving(bench)
    of: Any = bench.backend if place == "look" else bench.coordinator
    original = getattr(of, place)

    def unreachable(*_args: object, **_fields: object) -> Any:
        raise NoBackend("no route to host")

    bench.coordinator.silent = (entry.id,)
    bench.turns(2)
    setattr(of, place, unreachable)
    for _ in range(40):
        if place == "launch_view":
            bench.clock.advance(30.0)
            with pytest.raises(NoBackend):
                bench.watcher.turn(cast("Any", Inline()))
        else:
            bench.turn(30.0)
    setattr(of, place, original)
    bench.turns(5)
    assert bench.backend.cancels == [], "its heartbeat may be on its way"
    bench.turns(30)
    assert bench.backend.cancels[0] == (entry.backend_id, True)


def test_a_worker_that_hangs_is_cancelled_and_its_place_is_free(bench: Bench) -> None:
    entry = serving(bench)
    bench.coordinator.silent = (entry.id,)
    bench.turns(20)
    bench.coordinator.silent = ()
    bench.turns(2)
    bench.coordinator.silent = (entry.id,)
    bench.turns(30)
    assert bench.backend.cancels == [], "it was heard of meanwhile"
    bench.turns(4)
    assert bench.backend.cancels[0] == (entry.backend_id, True)
    whys = [fields["why"] for kind, fields in bench.log if kind == "allocation_cancelled"]
    assert whys == ["its worker was silent for 15m00s"]


def test_a_pool_whose_task_is_under_way_keeps_its_lease_until_that_ends(bench: Bench) -> None:
    look, ends = bench.backend.look, list[float]()

    def long_look(pool: Pool, **fields: Any) -> Any:
        bench.watcher.close()
        time.sleep(0.3)
        ends.append(bench.coordinator.pools["p"].watched_until_s)
        return look(pool, **fields)

    bench.backend.look = long_look  # type: ignore[method-assign]
    bench.watcher.run()
    assert ends[0] > bench.clock.wall_s()
    assert bench.coordinator.pools["p"].watched_until_s <= bench.clock.wall_s()


def test_a_worker_has_the_pools_margin_before_it_is_cancelled_plainly() -> None:
    bench = Bench(changed(POOL, drain_s=100.0))
    bench.backend.is_stubborn = True
    bench.want(1)
    bench.turns(2)
    (entry,) = bench.backend.live()
    bench.backend.start(entry.backend_id)
    bench.turns(1)
    bench.coordinator.joined(entry.id)
    bench.coordinator.rows[entry.id] = changed(bench.coordinator.rows[entry.id], state=S.DRAINING)
    bench.want(0)
    bench.turns(4)
    assert bench.backend.cancels == [(entry.backend_id, True)]
    bench.turns(2)
    assert bench.backend.cancels == [(entry.backend_id, True), (entry.backend_id, False)]
    assert bench.coordinator.rows[entry.id].cause is AllocationCause.CANCELLED


def test_an_allocation_that_its_backend_is_ending_drains_and_is_not_cancelled(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    (entry,) = bench.backend.live()
    bench.backend.start(entry.backend_id)
    bench.turns(1)
    bench.coordinator.joined(entry.id)
    bench.backend.entries[entry.backend_id] = changed(
        bench.backend.entries[entry.backend_id], state=S.DRAINING, reason="COMPLETING"
    )
    bench.turns(4, pass_s=60.0)
    assert bench.coordinator.rows[entry.id].state is S.DRAINING
    assert bench.backend.cancels == []
    bench.backend.end(entry.backend_id, AllocationCause.CANCELLED_THERE)
    bench.turns(4)
    assert bench.coordinator.rows[entry.id].cause is AllocationCause.CANCELLED_THERE


def test_a_cancellation_is_known_as_ours_after_a_restart(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    bench.want(0)
    cancel = bench.backend.cancel

    def die_after(pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        cancel(pool, backend_ids, is_gentle=is_gentle)
        raise KeyboardInterrupt

    bench.backend.cancel = die_after  # type: ignore[method-assign]
    bench.turns(1)
    assert bench.states() == [S.DRAINING]
    bench.backend.cancel = cancel  # type: ignore[method-assign]
    bench.turns(4)
    assert [row.cause for row in bench.coordinator.rows.values()] == [AllocationCause.CANCELLED]


def test_a_worker_that_outlives_its_time_limit_is_cancelled(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    (entry,) = bench.backend.live()
    bench.backend.start(entry.backend_id)
    bench.coordinator.joined(entry.id)
    rows = bench.coordinator.rows
    rows[entry.id] = changed(rows[entry.id], ends_s=bench.clock.wall_s() + 60)
    bench.want(0)
    bench.turns(4)
    assert bench.backend.live() != []
    bench.turns(4)
    assert bench.backend.live() == []


def test_workers_that_exit_at_once_pause_the_pool_with_the_last_line_of_their_log(bench: Bench) -> None:
    bench.want(1)
    for _ in range(12):
        bench.turn(5.0)
        for one in bench.backend.live():
            bench.backend.end(one.backend_id, AllocationCause.FAILED)
    assert bench.coordinator.pools["p"].paused == "3 workers never joined in a row: no route to host"
    assert bench.backend.submits == 3


def test_a_request_of_an_operator_is_carried_out_at_the_next_turn(bench: Bench) -> None:
    id_ = bench.coordinator.request("p", 3)
    bench.turn()
    assert (bench.backend.submits, bench.states()) == (1, [S.SUBMITTED] * 3)
    assert bench.coordinator.requests[id_].allocations == tuple(bench.coordinator.rows)
    bench.turns(3)
    assert bench.backend.submits == 1
    assert len(bench.backend.live()) == 3, "no job needs them, and they stay"


@pytest.mark.parametrize("fault", ["die", "die after", "lose", "drop"])
def test_a_request_whose_watcher_dies_is_not_carried_out_twice(bench: Bench, fault: str) -> None:
    bench.coordinator.request("p", 2)
    bench.backend.faults = [fault]
    bench.turns(8)
    assert bench.backend.submits == 1
    assert len(bench.coordinator.rows) == 2


def test_a_request_that_does_not_fit_is_answered_after_a_fresh_look(bench: Bench) -> None:
    bench.coordinator.request("p", 4)
    bench.turns(3)
    for one in bench.backend.live():
        bench.backend.start(one.backend_id)
        bench.coordinator.joined(one.id)
    bench.turns(3)
    for one in bench.backend.live()[:2]:
        bench.backend.end(one.backend_id, AllocationCause.FAILED)
    too_many, fits = bench.coordinator.request("p", 3), bench.coordinator.request("p", 2)
    bench.turns(2, pass_s=5.0)
    requests = bench.coordinator.requests
    assert requests[too_many].message == "3 more would exceed max 4 (2 requested)"
    assert len(requests[fits].allocations) == 2
    assert ("request_answered", "p") in [(kind, fields["pool"]) for kind, fields in bench.log]


def test_a_request_is_answered_with_the_error_of_its_backend(bench: Bench) -> None:
    def unreachable(*_args: object, **_fields: object) -> Any:
        raise NoBackend("squeue: no such command")

    bench.backend.look = unreachable  # type: ignore[method-assign]
    id_ = bench.coordinator.request("p", 1)
    bench.turn()
    closed = bench.coordinator.requests[id_]
    assert (closed.message, closed.code) == ("squeue: no such command", "no_backend")


def test_requests_are_carried_out_without_a_watch_and_nothing_else_is(bench: Bench) -> None:
    bench.want(2)
    bench.coordinator.request("p", 1)
    bench.watcher.carry_out_requests("p")
    assert bench.states() == [S.SUBMITTED]
    assert bench.coordinator.pools["p"].watched_until_s == bench.clock.wall_s(), "the lease is held on"
    bench.coordinator.request("p")
    bench.watcher.carry_out_requests("p")
    assert bench.states() == [S.WAITING, S.SUBMITTED], "for the second of the waiting jobs"
    id_ = bench.coordinator.request("p")
    bench.watcher.carry_out_requests("p")
    assert bench.coordinator.requests[id_].message == "no waiting job needs a machine"


def test_the_lease_is_renewed_while_a_request_is_carried_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "LEASE_S", 0.03)
    watch, is_renewed = bench.coordinator.watch_pools, threading.Event()

    def watch_pools(watcher: str, pools: tuple[str, ...], *, for_s: float, problem: str = "") -> dict[str, int]:
        if bench.coordinator.pools["p"].watcher:
            is_renewed.set()
        return watch(watcher, pools, for_s=for_s, problem=problem)

    def prepare(pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        assert is_renewed.wait(10)
        return pool

    bench.coordinator.watch_pools = watch_pools  # type: ignore[method-assign]
    bench.backend.prepare = prepare  # type: ignore[method-assign]
    bench.coordinator.request("p", 1)
    bench.watcher.carry_out_requests("p")
    assert bench.states() == [S.SUBMITTED]


@pytest.mark.parametrize("case", ["cheaper", "on its way", "broken", "gone", "broken, on its way", "gone, planned"])
def test_two_watchers_start_no_machines_for_the_same_jobs(bench: Bench, case: str) -> None:
    until_s = bench.clock.wall_s() + (0.5 if "gone" in case else 3600.0)
    dear = changed(POOL, cost_per_hour=1.0)
    bench.coordinator.pools["p"] = changed(bench.coordinator.pools["p"], pool=dear)
    q = changed(POOL, name="q", cost_per_hour=2.0 if case == "on its way" else 0.5)
    problem = "login not reachable" if "broken" in case else ""
    bench.coordinator.pools["q"] = PoolState(pool=q, watcher="another", watched_until_s=until_s, problem=problem)
    coming = Allocation(id="00000a", pool="q", state=S.WAITING, backend_id="1", wanted=("train/1",))
    if "on its way" in case:
        bench.coordinator.rows[coming.id] = coming
    elif case == "gone, planned":
        bench.coordinator.rows[coming.id] = changed(coming, state=S.PLANNED, backend_id="")
    bench.watcher = bench.new_watcher(["p"])
    bench.want(1)
    bench.turns(3, pass_s=1.0)
    assert [row.pool for row in bench.coordinator.rows.values()] == {
        "cheaper": [],
        "on its way": ["q"],
        "broken": ["p"],
        "gone": ["p"],
        "broken, on its way": ["q"],
        "gone, planned": ["q", "p"],
    }[case]


def test_leases_are_not_written_at_every_turn_because_another_watcher_has_a_pool(bench: Bench) -> None:
    until_s = bench.clock.wall_s() + 30.5
    other = PoolState(pool=changed(POOL, name="q"), watcher="another", watched_until_s=until_s)
    bench.coordinator.pools["q"] = other
    tried = record_leases(bench)
    bench.turns(30, pass_s=1.0)
    assert tried == [("p", "q"), ("p",), ("q",), ("p",), ("q",)]
    bench.turns(1, pass_s=1.0)
    assert tried[5:] == [("q",)], "the lease of the other one has ended"


def test_the_leases_of_many_pools_are_renewed_by_one_request_and_each_keeps_its_problem(bench: Bench) -> None:
    names = ("p", *(f"p{number}" for number in range(99)))
    bench.coordinator.pools = {name: PoolState(pool=changed(POOL, name=name)) for name in names}
    look = bench.backend.look

    def look_at(pool: Pool, **fields: Any) -> Any:
        if pool.name == "p7":
            raise NoBackend("p7 not reachable")
        return look(pool, **fields)

    bench.backend.look = look_at  # type: ignore[method-assign]
    tried = record_leases(bench)
    bench.turns(25, pass_s=1.0)
    assert [len(pools) for pools in tried] == [100, 1, 99, 1]
    problems = {name: state.problem for name, state in bench.coordinator.pools.items() if state.problem}
    assert problems == {"p7": "p7 not reachable"}


def record_leases(bench: Bench) -> list[tuple[str, ...]]:
    """Return the pools of each request for leases, as they come."""
    watch, tried = bench.coordinator.watch_pools, list[tuple[str, ...]]()

    def watch_pools(watcher: str, pools: tuple[str, ...], *, for_s: float, problem: str = "") -> dict[str, int]:
        tried.append(pools)
        return watch(watcher, pools, for_s=for_s, problem=problem)

    bench.coordinator.watch_pools = watch_pools  # type: ignore[method-assign]
    return tried


def test_a_request_that_certainly_did_not_arrive_is_over_and_is_not_repeated_at_once(bench: Bench) -> None:
    bench.want(1)
    bench.backend.faults = ["unreachable"] * 20
    bench.turns(3, pass_s=1.0)
    (row,) = bench.coordinator.rows.values()
    assert (row.state, row.cause, row.message) == (S.ENDED, AllocationCause.NOT_SUBMITTED, "No route to host")
    bench.backend.faults.clear()
    bench.turns(3)
    assert bench.states() == [S.ENDED, S.WAITING]


def test_nothing_starts_while_the_backend_is_not_reached_and_operators_read_why(bench: Bench) -> None:
    def unreachable(*_args: object, **_fields: object) -> Any:
        raise NoBackend("far not reachable: No route to host")

    look, bench.backend.look = bench.backend.look, unreachable  # type: ignore[method-assign]
    bench.want(1)
    bench.turns(20, pass_s=1.0)
    assert (bench.backend.submits, bench.states()) == (0, [])
    assert bench.coordinator.pools["p"].problem == "far not reachable: No route to host"
    id_ = bench.coordinator.request("p", 1)
    bench.turn()
    assert bench.coordinator.requests[id_].code == "no_backend"
    bench.backend.look = look  # type: ignore[method-assign]
    bench.turns(3)
    assert bench.states() == [S.WAITING]
    assert bench.coordinator.pools["p"].problem == ""


def test_files_that_can_not_be_removed_stop_nothing_else(bench: Bench) -> None:
    def clean(*_args: object, **_fields: object) -> Any:
        raise InternalError("not an id of Slurm: 'abc'")

    original, bench.backend.clean = bench.backend.clean, clean  # type: ignore[method-assign]
    bench.want(1)
    bench.turns(2)
    bench.backend.end("1_0", AllocationCause.PREEMPTED)
    bench.turns(4)
    assert bench.states() == [S.ENDED, S.WAITING]
    assert [fields["why"] for kind, fields in bench.log if kind == "launch_problem"] == ["not an id of Slurm: 'abc'"]
    bench.backend.clean = original  # type: ignore[method-assign]
    bench.turns(3)
    assert bench.backend.cleaned == {one.id for one in bench.coordinator.rows.values() if one.is_over}


def test_what_operators_stopped_is_cancelled_without_a_watch(bench: Bench) -> None:
    bench.coordinator.request("p", 2)
    bench.turns(2)
    first, second = bench.coordinator.rows.values()
    bench.coordinator.rows[first.id] = changed(first, state=S.DRAINING)
    bench.clock.advance(LEASE_S + 1)
    bench.new_watcher().carry_out_stops("p")
    assert bench.backend.cancels == [(first.backend_id, True)]
    assert [bench.coordinator.rows[one.id].state for one in (first, second)] == [S.ENDED, S.WAITING]
    assert bench.coordinator.rows[first.id].cause is AllocationCause.CANCELLED


def test_a_watch_shows_that_workers_come_and_go(bench: Bench) -> None:
    bench.want(1)
    bench.turns(2)
    (entry,) = bench.backend.live()
    bench.backend.start(entry.backend_id)
    bench.turn()
    bench.coordinator.joined(entry.id)
    bench.want(0)
    bench.turn()
    row = bench.coordinator.rows[entry.id]
    bench.coordinator.rows[entry.id] = changed(row, state=S.ENDED, cause=AllocationCause.FINISHED, ended_s=1.0)
    bench.backend.end(entry.backend_id, AllocationCause.FINISHED)
    bench.turns(3)
    lines = [launch_event_line(kind, fields) for kind, fields in bench.log]
    assert lines[2:] == [f"p-{entry.id} serves", f"p-{entry.id} ended (finished)"]


def test_without_tls_only_local_pools_are_watched(bench: Bench) -> None:
    bench.url = ""
    bench.coordinator.pools["here"] = PoolState(pool=changed(POOL, name="here", backend=PoolBackend.LOCAL))
    bench.watcher = bench.new_watcher()
    bench.want(1)
    bench.turns(3)
    assert {row.pool for row in bench.coordinator.rows.values()} == {"here"}
    assert bench.coordinator.pools["p"].watcher == ""
    (problem,) = [fields for kind, fields in bench.log if kind == "launch_problem"]
    assert (problem["pool"], "serves only its own machine" in problem["why"]) == ("p", True)


def test_a_second_watcher_stands_by_in_one_line(bench: Bench) -> None:
    for name in ("q", "r"):
        bench.coordinator.pools[name] = PoolState(pool=changed(POOL, name=name))
    bench.turn()
    bench.log.clear()
    bench.watcher = bench.new_watcher()
    bench.turns(3, pass_s=1.0)
    assert [launch_event_line(*one) for one in bench.log] == ["stands by: w1 watches p, q, r"]


def test_a_request_that_was_withdrawn_is_no_problem(bench: Bench) -> None:
    id_ = bench.coordinator.request("p", 1)
    plan = bench.coordinator.plan_allocations

    def withdraw(pool: str, epoch: int, *plans: Any, **fields: Any) -> dict[str, str]:
        bench.coordinator.close_request("p", id_, "withdrawn", epoch=epoch, code="")
        return plan(pool, epoch, *plans, **fields)

    bench.coordinator.plan_allocations = withdraw  # type: ignore[method-assign]
    bench.turns(2)
    assert [launch_event_line(*one) for one in bench.log] == ["p watched from now on", "p request withdrawn"]
    assert bench.states() == []


FAULTS = ("lose", "drop", "die", "die after", "refuse")
CHANGES = {"more": 1, "less": -1}
ACTIONS = st.sampled_from([*FAULTS, *CHANGES, "turn", "wait", "start", "join", "preempt", "cancel", "ask"])


def _act(bench: Bench, action: str) -> None:
    """Do something to the first or last entry of the backend."""
    first, last = bench.backend.live()[0], bench.backend.live()[-1]
    if action == "start":
        bench.backend.start(first.backend_id)
    elif action == "join" and first.state is S.STARTED:
        bench.coordinator.joined(first.id)
    elif action == "preempt":
        bench.backend.end(first.backend_id, AllocationCause.PREEMPTED)
    elif action == "cancel":
        bench.backend.end(last.backend_id, AllocationCause.CANCELLED_THERE)


@given(actions=st.lists(ACTIONS, max_size=40))
def test_whatever_is_lost_rows_and_backend_agree_in_the_end(actions: list[str]) -> None:
    bench, jobs = Bench(changed(POOL, max=3)), 2
    bench.want(jobs)
    for action in actions:
        live = bench.backend.live()
        if action in FAULTS:
            bench.backend.faults.append(action)
        elif action in CHANGES:
            jobs = max(0, jobs + CHANGES[action])
            bench.want(jobs)
        elif action == "ask":
            bench.coordinator.request("p", 1)
        elif live:
            _act(bench, action)
        bench.turn({"turn": 1.0, "wait": 30.0}.get(action, 5.0))
        ids = [one.id for one in bench.backend.entries.values()]
        assert len(ids) == len(set(ids)), "an allocation was submitted twice"
        assert len(bench.coordinator.live()) <= 3
    bench.backend.faults.clear()
    bench.want(0)
    by_hand = {id_ for one in bench.coordinator.requests.values() for id_ in one.allocations}
    bench.coordinator.requests.clear()
    for entry in bench.backend.live():
        # What was requested by hand is not cancelled.
        if entry.state is S.STARTED or entry.id in by_hand:
            bench.coordinator.joined(entry.id)
            bench.backend.end(entry.backend_id, AllocationCause.FINISHED)
    bench.turns(20)

    assert bench.backend.live() == []
    assert bench.coordinator.live() == []
    over = {one.id for one in bench.coordinator.rows.values()}
    assert over == bench.backend.cleaned, "files of an allocation are left"
