"""Pools and allocations in rows, on both databases: launchers, plans, tickets, workers, ends."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.auth import Invite, IssuedCertificate
from stoker.coordinator.database.backup import back_up, restore
from stoker.coordinator.database.database import open_database
from stoker.coordinator.queue.commands import (
    CloseRequest,
    Declare,
    InspectLaunch,
    IssueCertificate,
    MakeInvite,
    MoveAllocations,
    PausePool,
    PlanAllocations,
    PlannedTicket,
    QueueCommandResult,
    RequestMachines,
    ResumePool,
    StopAllocations,
    UseInvite,
    WatchPools,
)
from stoker.core.capability import Capability
from stoker.core.device import Backend, Device
from stoker.core.errors import BadInput, Conflict, Forbidden, NotFound, Refused, StaleLease
from stoker.core.frozen import changed
from stoker.core.machine import Cluster, UserPolicy
from stoker.core.pool import (
    Allocation,
    AllocationCause,
    AllocationState,
    Pool,
    PoolBackend,
    PoolGpu,
    PoolShape,
    PoolState,
)
from stoker.protocol.launch_messages import AllocationMove, LaunchView
from stoker.protocol.lease_messages import Grant, Hello, Renewal, RenewalResponse
from stoker.scheduler.launching import decide
from tests.contract.queue_driving import GIB, Driven, order
from tests.contract.queue_words import kinds, state, sweep

POOL = Pool(name="a100", backend=PoolBackend.SLURM, max=4, wall_s=3600.0)
ONE, TWO = "7f3a2c", "00ff00"
MACHINE = f"a100-{ONE}"


def ask(fleet: Driven, command: Any) -> QueueCommandResult:
    answer = fleet.ask(command)
    assert isinstance(answer, QueueCommandResult)
    return answer


def declare(fleet: Driven, *pools: Pool, users: dict[str, UserPolicy] | None = None) -> None:
    ask(fleet, Declare(cluster=Cluster(nodes=(), pools=pools, users=users or {})))


def watch(fleet: Driven, watcher: str = "w1", for_s: float = 60.0, pool: str = "a100") -> int:
    epoch: int = ask(fleet, WatchPools(watcher=watcher, pools=(pool,), for_s=for_s)).data[pool]
    return epoch


def plan(fleet: Driven, *ids: str, epoch: int = 1, pool: str = "a100", key: str = "ab") -> dict[str, str]:
    plans = tuple(PlannedTicket(id=id, wanted=("resnet/1",), key=key * 32) for id in ids or (ONE,))
    return ask(fleet, PlanAllocations(pool=pool, epoch=epoch, plans=plans, by="launcher")).data


def move(fleet: Driven, id: str = ONE, state: AllocationState | None = None, epoch: int = 1, **more: Any) -> Any:
    moves = (AllocationMove(id=id, state=state, **more),)
    return ask(fleet, MoveAllocations(pool="a100", epoch=epoch, moves=moves))


def end(fleet: Driven, id: str = ONE, cause: AllocationCause = AllocationCause.PREEMPTED, epoch: int = 1) -> None:
    assert move(fleet, id, AllocationState.ENDED, epoch, cause=cause).changed == (id,)


def view(fleet: Driven) -> LaunchView:
    found = fleet.ask(InspectLaunch())
    assert isinstance(found, LaunchView)
    return found


def allocation(fleet: Driven, id: str = ONE) -> Allocation:
    return next(one for one in view(fleet).allocations if one.id == id)


def pool(fleet: Driven) -> PoolState:
    (found,) = view(fleet).pools
    return found


def certificate(fleet: Driven, serial: str = "1", name: str = MACHINE) -> IssuedCertificate:
    now_s = fleet.clock.wall_s()
    return IssuedCertificate(serial=serial * 40, name=name, issued_s=now_s, expires_s=now_s + 4200.0)


def use(fleet: Driven, serial: str = "1", id: str = ONE) -> UseInvite:
    named = certificate(fleet, serial, f"a100-{id}")
    return UseInvite(id=id.upper(), request=f"request {serial}", answer=f"answer {serial}", certificate=named)


def serving(fleet: Driven, id: str = ONE) -> None:
    """Let an allocation's worker join and say hello."""
    ask(fleet, use(fleet, str(len(fleet.queue.standing().certificates) + 1), id))
    fleet.join(f"a100-{id}")


def hello(fleet: Driven, id: str, cores: int, ram_gib: int = 64, gpus: int = 0) -> None:
    """Let an allocation's worker say hello from a machine with so much."""
    size = ram_gib * GIB
    devices = tuple(
        Device(uuid=f"GPU-{id}-{number}", backend=Backend.CUDA, name="NVIDIA A100", total_bytes=40 * GIB)
        for number in range(gpus)
    )
    found = Capability(cpu_cores=cores, ram_total_bytes=size, ram_available_bytes=size, devices=devices)
    name = f"a100-{id}"
    fleet.ask(Hello(worker=name, incarnation=name, capability=found.to_dict(), capability_digest=name, slots=4))


def ready(fleet: Driven) -> None:
    declare(fleet, POOL)
    assert watch(fleet) == 1
    plan(fleet)


def moves(fleet: Driven) -> list[tuple[str, str]]:
    return [
        (event.get("from", ""), event["to"]) for event in fleet.reader.events() if event["kind"] == "allocation_changed"
    ]


def running(fleet: Driven) -> Grant:
    fleet.submit(order("one"))
    (grant,) = fleet.claim(MACHINE)
    fleet.start(grant)
    return grant


def leave(fleet: Driven, machine: str = MACHINE) -> None:
    fleet.ask(Renewal(worker=machine, incarnation=f"incarnation-{machine}", is_leaving=True))


def reopen(fleet: Driven) -> None:
    fleet.close()
    fleet.open()


def test_a_signal_is_stored_once_and_only_of_those_that_were_signalled(fleet: Driven) -> None:
    ready(fleet)
    ask(fleet, StopAllocations(pool="a100", by="me"))
    assert (allocation(fleet).state, allocation(fleet).signalled_s) == (AllocationState.DRAINING, None)
    move(fleet, is_signalled=True)
    at_s = allocation(fleet).signalled_s
    assert at_s is not None
    fleet.clock.advance(5.0)
    move(fleet, is_signalled=True)
    reopen(fleet)
    assert allocation(fleet).signalled_s == at_s


def test_an_allocation_lives_from_its_plan_to_its_end_with_one_event_for_each_move(fleet: Driven):
    ready(fleet)
    for new in (AllocationState.SUBMITTED, AllocationState.WAITING, AllocationState.STARTED):
        move(fleet, state=new, backend_id="17", reason="Priority")
    serving(fleet)
    assert allocation(fleet).state is AllocationState.SERVING
    end(fleet)
    found = allocation(fleet)
    assert (found.cause, found.backend_id, found.reason) == (AllocationCause.PREEMPTED, "17", "Priority")
    assert None not in (found.submitted_s, found.started_s, found.serving_s, found.ended_s)
    names = ["", "planned", "submitted", "waiting", "started", "serving", "ended"]
    assert moves(fleet) == list(pairwise(names))


def test_everything_about_pools_and_allocations_survives_a_restart(fleet: Driven):
    ready(fleet)
    plan(fleet, TWO)
    move(fleet, state=AllocationState.WAITING, backend_id="17_3", reason="Priorität", ends_s=5.0)
    end(fleet, TWO, AllocationCause.NOT_SUBMITTED)
    ask(fleet, PausePool(pool="a100", why="too many never joined"))
    before = view(fleet)
    assert len(before.fleet) == 8
    reopen(fleet)
    after = view(fleet)
    assert (after.fleet, after.pools, after.allocations) == (before.fleet, before.pools, before.allocations)


def test_a_change_of_the_reason_alone_is_stored_without_an_event(fleet: Driven):
    ready(fleet)
    move(fleet, state=AllocationState.WAITING)
    told = len(moves(fleet))
    move(fleet, reason="Resources")
    move(fleet, state=AllocationState.WAITING, reason="QOSMaxJobsPerUserLimit")
    assert (allocation(fleet).reason, len(moves(fleet))) == ("QOSMaxJobsPerUserLimit", told)


def test_only_one_launcher_watches_a_pool(fleet: Driven):
    declare(fleet, POOL)
    assert watch(fleet, "w1") == 1
    with pytest.raises(Conflict, match="watched by w1"):
        watch(fleet, "w2")
    assert watch(fleet, "w1") == 1
    fleet.clock.advance(61.0)
    assert pool(fleet).watcher == ""
    assert watch(fleet, "w2") == 2
    assert (pool(fleet).watcher, pool(fleet).epoch) == ("w2", 2)
    with pytest.raises(Conflict, match="watched by w2"):
        watch(fleet, "w1")


def test_a_launcher_that_stops_leaves_the_pool_to_the_next_one_at_once(fleet: Driven):
    declare(fleet, POOL)
    watch(fleet, "w1")
    watch(fleet, "w1", for_s=0.0)
    assert watch(fleet, "w2") == 2
    # Late words of the first change nothing.
    ask(fleet, WatchPools(watcher="w1", pools=("a100",), for_s=0.0))
    assert pool(fleet).watcher == "w2"


def test_the_coordinators_own_launcher_replaces_its_predecessor_and_no_other(fleet: Driven):
    declare(fleet, POOL, changed(POOL, name="cpu"))
    own = "serve --launch "
    ask(fleet, WatchPools(watcher=f"{own}desk:7", pools=("a100",), for_s=60.0, replaces=own))
    with pytest.raises(Conflict, match="watched by serve --launch desk:7"):
        watch(fleet, "w2")
    again = ask(fleet, WatchPools(watcher=f"{own}desk:8", pools=("a100",), for_s=60.0, replaces=own))
    assert again.data == {"a100": 2}
    with pytest.raises(StaleLease):
        plan(fleet, ONE, epoch=1)
    plan(fleet, ONE, epoch=2)
    watch(fleet, "w2", pool="cpu")
    with pytest.raises(Conflict, match="watched by w2"):
        ask(fleet, WatchPools(watcher=f"{own}desk:8", pools=("cpu",), for_s=60.0, replaces=own))


def test_pools_are_watched_all_or_none(fleet: Driven):
    declare(fleet, POOL, changed(POOL, name="cpu"))
    watch(fleet, "w1", pool="cpu")
    with pytest.raises(Conflict):
        fleet.ask(WatchPools(watcher="w2", pools=("a100", "cpu"), for_s=60.0))
    assert [one.watcher for one in view(fleet).pools] == ["", "w1"]


def test_a_stale_launcher_can_write_nothing(fleet: Driven):
    ready(fleet)
    fleet.clock.advance(61.0)
    # Nobody else watches: its epoch is still the pool's.
    plan(fleet, TWO)
    assert watch(fleet, "w2") == 2
    with pytest.raises(StaleLease):
        plan(fleet, "123456")
    with pytest.raises(StaleLease):
        move(fleet, state=AllocationState.SUBMITTED)
    assert allocation(fleet).state is AllocationState.PLANNED
    assert move(fleet, state=AllocationState.SUBMITTED, epoch=2).changed == (ONE,)


def test_a_pool_that_nobody_watched_takes_no_plans(fleet: Driven):
    declare(fleet, POOL)
    with pytest.raises(StaleLease):
        plan(fleet, epoch=0)


def test_an_unknown_pool_is_named_with_the_nearest_one(fleet: Driven):
    declare(fleet, POOL)
    with pytest.raises(NotFound) as caught:
        watch(fleet, pool="a10")
    assert "a100" in str(caught.value.hint)


def test_a_plan_that_is_sent_again_gets_the_same_ticket(fleet: Driven):
    declare(fleet, POOL)
    watch(fleet)
    assert plan(fleet, ONE, key="ab") == {ONE: "ab" * 32}
    assert plan(fleet, ONE, TWO, key="cd") == {ONE: "ab" * 32, TWO: "cd" * 32}
    reopen(fleet)
    assert plan(fleet, ONE, key="ef") == {ONE: "ab" * 32}
    assert len(moves(fleet)) == 2


def test_an_id_is_never_used_twice(fleet: Driven):
    ready(fleet)
    serving(fleet)
    with pytest.raises(Conflict, match="exists already"):
        plan(fleet)
    end(fleet)
    with pytest.raises(Conflict, match="exists already"):
        plan(fleet)
    watch(fleet, "w1", for_s=0.0)
    assert watch(fleet, "w2") == 2
    plan(fleet, TWO, epoch=2)
    fleet.clock.advance(61.0)
    assert watch(fleet, "w3") == 3
    with pytest.raises(Conflict, match="exists already"):
        plan(fleet, TWO, epoch=3)


def test_a_plan_is_all_or_none(fleet: Driven):
    ready(fleet)
    fleet.join(f"a100-{TWO}")
    with pytest.raises(Conflict, match="machine"):
        plan(fleet, "123456", TWO)
    assert [one.id for one in view(fleet).allocations] == [ONE]


def test_a_paused_or_full_pool_takes_no_plans(fleet: Driven):
    declare(fleet, changed(POOL, max=2))
    watch(fleet)
    with pytest.raises(Refused) as caught:
        plan(fleet, ONE, TWO, "123456")
    assert caught.value.data["reason"] == "full"
    plan(fleet, ONE, TWO)
    end(fleet, TWO)
    ask(fleet, PausePool(pool="a100", why="5 were refused"))
    with pytest.raises(Refused, match="5 were refused"):
        plan(fleet, "123456")
    ask(fleet, ResumePool(pool="a100", by="ada"))
    plan(fleet, "123456")
    assert pool(fleet).resumed_s > 0.0
    told = [event for event in fleet.reader.events() if event["kind"] == "pool_changed"]
    assert [event["what"] for event in told] == ["watched", "paused", "resumed"]


def test_a_pool_that_is_no_longer_declared_stays_until_its_last_allocation_ends(fleet: Driven):
    ready(fleet)
    declare(fleet)
    found = pool(fleet)
    assert (found.is_declared, "no longer" in found.paused) == (False, True)
    with pytest.raises(Refused, match="no longer"):
        plan(fleet, TWO)
    move(fleet, state=AllocationState.SUBMITTED)
    end(fleet)
    assert view(fleet).pools == ()
    reopen(fleet)
    assert view(fleet).pools == ()
    declare(fleet, POOL)
    assert pool(fleet).is_declared


def test_moves_that_are_not_allowed_are_refused_one_by_one(fleet: Driven):
    ready(fleet)
    plan(fleet, TWO)
    end(fleet)
    asked = (
        AllocationMove(id=ONE, state=AllocationState.STARTED),
        AllocationMove(id=TWO, state=AllocationState.SUBMITTED),
        AllocationMove(id="999999", state=AllocationState.STARTED),
    )
    done = ask(fleet, MoveAllocations(pool="a100", epoch=1, moves=asked))
    assert done.changed == (TWO,)
    assert sorted(done.data["refused"]) == [ONE, "999999"]
    for bad in (AllocationState.REFUSED, AllocationState.SERVING):
        assert list(move(fleet, TWO, bad).data["refused"]) == [TWO]
    with pytest.raises(BadInput):
        fleet.ask(MoveAllocations(pool="a100", epoch=1, moves=(asked[1], asked[1])))


def test_a_look_from_before_the_hello_counts_for_its_facts_alone(fleet: Driven):
    ready(fleet)
    serving(fleet)
    done = move(fleet, state=AllocationState.STARTED, backend_id="17", ends_s=9000.0)
    assert (done.changed, len(done.notes)) == ((ONE,), 1)
    found = allocation(fleet)
    assert (found.state, found.backend_id, found.ends_s) == (AllocationState.SERVING, "17", 9000.0)


def test_a_ticket_lives_while_its_allocation_waits_and_for_ten_minutes_after_its_start(fleet: Driven):
    ready(fleet)
    fleet.clock.advance(30 * 86400.0)
    move(fleet, state=AllocationState.WAITING)
    fleet.clock.advance(30 * 86400.0)
    move(fleet, state=AllocationState.STARTED)
    fleet.clock.advance(300.0)
    # Requeued by the backend before its worker joined: it may wait for days again.
    move(fleet, state=AllocationState.WAITING)
    assert allocation(fleet).started_s is None
    fleet.clock.advance(86400.0)
    move(fleet, state=AllocationState.STARTED)
    fleet.clock.advance(601.0)
    with pytest.raises(Forbidden):
        fleet.ask(use(fleet))
    assert fleet.queue.standing().certificates == {}


def test_tickets_do_not_count_as_open_invitations(fleet: Driven):
    declare(fleet, changed(POOL, max=150))
    watch(fleet)
    plan(fleet, *(f"{number:06x}" for number in range(120)))
    ask(fleet, MakeInvite(invite=Invite(id="K7", role="worker", key="ab" * 32), life_s=900.0))


def test_a_ticket_that_is_used_twice_by_different_workers_ends_both(fleet: Driven):
    ready(fleet)
    first = use(fleet)
    assert ask(fleet, first).data["answer"] == "answer 1"
    assert ask(fleet, first).data["answer"] == "answer 1"
    fleet.join(MACHINE)
    running(fleet)
    with pytest.raises(Forbidden):
        fleet.ask(use(fleet, "2"))
    found = allocation(fleet)
    assert (found.state, found.cause) == (AllocationState.ENDED, AllocationCause.FAILED)
    assert [one.revoked_s is not None for one in fleet.queue.standing().certificates.values()] == [True]
    assert "ticket_stolen" in [event["kind"] for event in fleet.reader.events()]
    # Its job is not charged.
    assert (state(fleet), fleet.reader.story("one").attempts[-1].cause) == ("pending", "preempted")


def test_the_certificate_of_an_allocation_ends_with_it_and_is_not_renewed(fleet: Driven):
    ready(fleet)
    now_s = fleet.clock.wall_s()
    assert fleet.queue.certificate_end_s(MACHINE, now_s) == now_s + 3600.0 + 600.0
    move(fleet, state=AllocationState.STARTED, ends_s=now_s + 1000.0)
    assert fleet.queue.certificate_end_s(MACHINE, now_s) == now_s + 1600.0
    assert fleet.queue.certificate_end_s("desk", now_s) is None
    serving(fleet)
    with pytest.raises(Refused, match="not renewed"):
        fleet.ask(IssueCertificate(certificate=certificate(fleet, "2"), present="1" * 40))


@pytest.mark.parametrize("cause", [AllocationCause.PREEMPTED, AllocationCause.CANCELLED, AllocationCause.FAILED])
def test_an_end_leaves_nothing_behind_and_ends_leases_at_once(fleet: Driven, cause: AllocationCause):
    ready(fleet)
    serving(fleet)
    running(fleet)
    end(fleet, cause=cause)
    assert state(fleet) == "pending"
    story = fleet.reader.story("one")
    is_free = cause is not AllocationCause.FAILED
    assert (story.attempts[-1].cause, kinds(fleet)[-1]) == ("preempted" if is_free else "lost", "job_expired")
    assert fleet.reader.machines() == ()
    assert [one.revoked_s is not None for one in fleet.queue.standing().certificates.values()] == [True]
    assert fleet.queue.standing().invites == {}
    with pytest.raises(StaleLease, match="has ended"):
        fleet.join(MACHINE)


def test_preemptions_never_make_a_job_poison(fleet: Driven):
    declare(fleet, POOL)
    watch(fleet)
    fleet.submit(order("one"))
    for number in range(6):
        id = f"{number:06x}"
        plan(fleet, id)
        serving(fleet, id)
        (grant,) = fleet.claim(f"a100-{id}")
        fleet.start(grant)
        end(fleet, id, AllocationCause.PREEMPTED)
        assert state(fleet) == "pending"


def test_a_lease_that_expires_before_its_preemption_is_known_costs_a_job_nothing(fleet: Driven):
    declare(fleet, POOL)
    fleet.submit(order("one"))
    for number in range(6):
        id = f"{number:06x}"
        epoch = watch(fleet, f"w{number}", for_s=1000.0)
        plan(fleet, id, epoch=epoch)
        serving(fleet, id)
        (grant,) = fleet.claim(f"a100-{id}")
        fleet.start(grant)
        fleet.clock.advance(200.0)
        sweep(fleet)
        assert state(fleet) == "pending"
        end(fleet, id, AllocationCause.PREEMPTED, epoch)
        watch(fleet, f"w{number}", for_s=0.0)
    assert {one.cause for one in fleet.reader.story("one").attempts} == {"preempted"}
    # What no backend ended is still charged.
    for expected in ("pending", "failed"):
        fleet.join(machine := f"desk-{expected}")
        (grant,) = fleet.claim(machine)
        fleet.start(grant)
        fleet.clock.advance(200.0)
        sweep(fleet)
        assert state(fleet) == expected


def test_a_worker_that_leaves_in_order_ends_its_allocation(fleet: Driven):
    ready(fleet)
    serving(fleet)
    fleet.submit(order("one"))
    (grant,) = fleet.claim(MACHINE)
    fleet.start(grant)
    fleet.finish(grant)
    leave(fleet)
    found = allocation(fleet)
    assert (found.state, found.cause, found.grants) == (AllocationState.ENDED, AllocationCause.FINISHED, 1)
    assert fleet.reader.machines() == ()
    # What the backend reports later does not change that.
    assert list(move(fleet, state=AllocationState.ENDED, cause=AllocationCause.FAILED).data["refused"]) == [ONE]
    assert allocation(fleet).cause is AllocationCause.FINISHED


def test_stopped_allocations_drain_take_no_jobs_and_cannot_join(fleet: Driven):
    ready(fleet)
    plan(fleet, TWO)
    serving(fleet)
    assert set(ask(fleet, StopAllocations(pool="a100", by="ada")).changed) == {ONE, TWO}
    assert {one.state for one in view(fleet).allocations} == {AllocationState.DRAINING}
    fleet.submit(order("one"))
    assert fleet.claim(MACHINE) == ()
    with pytest.raises(Forbidden):
        fleet.ask(use(fleet, "2", TWO))
    assert ask(fleet, StopAllocations(pool="a100", ids=(ONE,))).notes
    with pytest.raises(NotFound):
        fleet.ask(StopAllocations(pool="a100", ids=("999999",)))


def test_a_worker_that_joined_and_was_stopped_before_its_hello_gets_no_jobs(fleet: Driven):
    ready(fleet)
    ask(fleet, use(fleet))
    ask(fleet, StopAllocations(pool="a100"))
    fleet.join(MACHINE)
    fleet.submit(order("one"))
    assert fleet.claim(MACHINE) == ()


def test_after_a_restore_no_launcher_and_no_ticket_of_before_counts(fleet: Driven, tmp_path: Path):
    ready(fleet)
    path = tmp_path / "backup"
    back_up(fleet.database, str(path), clock=fleet.clock)
    fleet.clock.advance(61.0)
    assert watch(fleet, "w2") == 2
    fleet.close()
    database = open_database(fleet.url, clock=fleet.clock)
    restore(database, io.BytesIO(path.read_bytes()), "backup", clock=fleet.clock, may_replace=True)
    database.close()
    fleet.open()
    assert watch(fleet, "w3") > 2
    with pytest.raises(StaleLease):
        plan(fleet, TWO, epoch=2)
    with pytest.raises(Forbidden):
        fleet.ask(use(fleet))


def test_ended_allocations_and_expired_certificates_are_dropped_in_time(fleet: Driven):
    ready(fleet)
    serving(fleet)
    end(fleet)
    sweep(fleet)
    fleet.clock.advance(86400.0 + 1)
    assert view(fleet).allocations == ()
    fleet.clock.advance(86400.0)
    sweep(fleet)
    assert fleet.queue.standing().certificates == {}
    watch(fleet, "w2")
    with pytest.raises(Conflict, match="exists already"):
        plan(fleet, epoch=2)
    fleet.clock.advance(100 * 86400.0)
    sweep(fleet)
    watch(fleet, "w3")
    plan(fleet, epoch=3)


def test_demand_is_what_fits_into_no_free_room(fleet: Driven):
    declare(fleet, POOL)
    fleet.join("desk", slots=2)
    fleet.submit(*(order("small", number) for number in range(1, 6)))
    fleet.submit(order("wide", requirements={"ram_bytes": 500 * GIB}))
    small, wide = view(fleet).demand
    assert (small.count, wide.count) == (3, 1)
    assert (small.names, wide.names) == (("small/3", "small/4", "small/5"), ("wide",))
    assert small.since_s <= view(fleet).now_s
    assert wide.job.requirements.ram_bytes == 500 * GIB
    # Nothing was taken: both slots are still free.
    assert len(fleet.claim("desk", most=4)) == 2
    assert [one.count for one in view(fleet).demand] == [3, 1]


def test_jobs_beyond_the_limits_of_their_user_are_no_demand(fleet: Driven):
    declare(fleet, POOL, users={"*": UserPolicy(most_jobs=2)})
    fleet.submit(*(order("one", number) for number in range(1, 6)))
    assert [one.count for one in view(fleet).demand] == [2]


def test_without_a_pool_no_demand_is_computed(fleet: Driven):
    fleet.submit(order("one"))
    assert view(fleet).demand == ()


def test_as_many_idle_workers_as_the_minimum_stay_those_with_the_most_time_left(fleet: Driven):
    declare(fleet, changed(POOL, min=1))
    watch(fleet)
    plan(fleet, ONE, TWO)

    def stays(id: str) -> bool:
        name = f"a100-{id}"
        answer = fleet.ask(Renewal(worker=name, incarnation=f"incarnation-{name}"))
        assert isinstance(answer, RenewalResponse)
        return answer.stays

    for id in (ONE, TWO):
        serving(fleet, id)
    now_s = fleet.clock.wall_s()
    move(fleet, ONE, ends_s=now_s + 100.0)
    move(fleet, TWO, ends_s=now_s + 200.0)
    assert (stays(ONE), stays(TWO)) == (False, True)
    end(fleet, TWO)
    assert stays(ONE)
    declare(fleet, POOL)
    assert not stays(ONE)


def test_a_worker_that_is_lost_is_named_also_if_no_launcher_looks(fleet: Driven):
    ready(fleet)
    serving(fleet)
    assert view(fleet).silent == ()
    fleet.sweep_late()
    assert view(fleet).silent == (ONE,)


def test_the_hours_of_a_pool_count_also_allocations_that_are_not_listed(fleet: Driven, monkeypatch):
    monkeypatch.setattr("stoker.coordinator.queue.allocations.MOST_SHOWN", 1)
    declare(fleet, POOL)
    watch(fleet)
    plan(fleet, ONE, TWO)
    for id in (ONE, TWO):
        move(fleet, id, AllocationState.STARTED)
    fleet.clock.advance(5 * 3600.0)
    end(fleet, ONE)
    fleet.clock.advance(3600.0)
    assert view(fleet).pools[0].hours == pytest.approx(11.0, abs=0.1)
    end(fleet, TWO)
    found = view(fleet)
    assert len(found.allocations) == 1
    assert found.pools[0].hours == pytest.approx(11.0, abs=0.1)
    fleet.clock.advance(20 * 3600.0)
    assert view(fleet).pools[0].hours == pytest.approx(7.0, abs=0.1), "what was before the last day does not count"


def test_a_workers_time_without_a_job_counts_from_its_hello_to_its_end(fleet: Driven):
    def minutes() -> tuple[float, float]:
        return round(allocation(fleet).idle_s / 60.0), round(pool(fleet).idle_hours * 60.0)

    ready(fleet)
    serving(fleet)
    fleet.clock.advance(300.0)
    reopen(fleet)
    fleet.clock.advance(300.0)
    assert minutes() == (10, 10), "also what was before a restart"
    first = running(fleet)
    fleet.clock.advance(300.0)
    assert minutes() == (10, 10), "it has a job"
    fleet.finish(first)
    fleet.clock.advance(1200.0)
    reopen(fleet)
    fleet.clock.advance(300.0)
    assert minutes() == (35, 35), "also what was before a restart"
    end(fleet)
    fleet.clock.advance(600.0)
    assert minutes() == (35, 35)


def test_a_time_without_a_job_begins_at_a_restart_if_the_last_job_ran_again_elsewhere(fleet: Driven):
    declare(fleet, POOL)
    watch(fleet)
    plan(fleet, ONE, TWO)
    serving(fleet)
    first = running(fleet)
    fleet.release(first)
    serving(fleet, TWO)
    (again,) = fleet.claim(f"a100-{TWO}")
    fleet.start(again)
    fleet.clock.advance(600.0)
    assert allocation(fleet).idle_s >= 600.0
    reopen(fleet)
    assert allocation(fleet).idle_s < 60.0, "by the rows it may have had a job until now"


def test_when_the_backend_expects_to_start_one_is_stored_while_it_says_so(fleet: Driven):
    ready(fleet)
    at_s = fleet.clock.wall_s() + 600.0
    move(fleet, state=AllocationState.WAITING, reason="Priority", may_start_s=at_s)
    reopen(fleet)
    assert allocation(fleet).may_start_s == at_s
    move(fleet, started_s=at_s)
    assert allocation(fleet).may_start_s == at_s, "a move without a reason says nothing about it"
    move(fleet, reason="Resources")
    assert allocation(fleet).may_start_s is None


def request(fleet: Driven, id: str = "0000000a", count: int = 1) -> QueueCommandResult:
    return ask(fleet, RequestMachines(pool="a100", id=id, count=count, by="ann"))


def test_a_request_is_stored_and_closed_with_the_allocations_that_carry_it_out(fleet: Driven):
    declare(fleet, POOL)
    epoch = watch(fleet)
    assert request(fleet, count=2).changed == ("0000000a",)
    assert request(fleet, count=2).changed == (), "a repeat changes nothing"
    fleet.close()
    fleet.open()
    (stored,) = view(fleet).requests
    assert (stored.pool, stored.count, stored.requester, stored.is_open) == ("a100", 2, "ann", True)
    plans = tuple(PlannedTicket(id=id, wanted=(), key="ab" * 32) for id in (ONE, TWO))
    carried_out = PlanAllocations(pool="a100", epoch=epoch, plans=plans, request=stored.id)
    assert set(ask(fleet, carried_out).changed) == {ONE, TWO}
    assert set(ask(fleet, carried_out).data) == {ONE, TWO}, "a lost answer is repeated"
    again = changed(carried_out, plans=(changed(plans[0], id="00000c"),))
    with pytest.raises(Conflict, match="is not open"):
        fleet.ask(again)
    assert len(view(fleet).allocations) == 2
    fleet.close()
    fleet.open()
    (closed,) = view(fleet).requests
    assert (set(closed.allocations), closed.message, closed.is_open) == ({ONE, TWO}, "", False)
    assert ask(fleet, CloseRequest(pool="a100", id=closed.id)).changed == ()


def test_a_request_is_withdrawn_or_answered_by_the_watcher_of_the_pool_alone(fleet: Driven):
    declare(fleet, POOL)
    epoch = watch(fleet)
    for id in ("0000000a", "0000000b", "0000000c"):
        request(fleet, id)
    with pytest.raises(StaleLease):
        fleet.ask(CloseRequest(pool="a100", id="0000000a", epoch=epoch - 1, message="stale"))
    with pytest.raises(NotFound):
        fleet.ask(CloseRequest(pool="a100", id="0000000d"))
    ask(fleet, CloseRequest(pool="a100", id="0000000a", epoch=epoch, message="full", code="launch_refused"))
    ask(fleet, CloseRequest(pool="a100", id="0000000b", by="ann"))
    declare(fleet)
    assert [one.message for one in view(fleet).requests] == [
        "full",
        "withdrawn",
        "the cluster file no longer has this pool",
    ]
    fleet.close()
    fleet.open()
    assert [one.code for one in view(fleet).requests] == ["launch_refused", "", "refused"]
    fleet.clock.advance(601.0)
    assert view(fleet).requests == ()
    assert [one["what"] for one in pool_events(fleet)][-3:] == ["request_closed"] * 3


def test_too_many_open_requests_are_refused(fleet: Driven):
    declare(fleet, POOL)
    for number in range(100):
        request(fleet, f"{number:08x}")
    with pytest.raises(Refused, match="100 open requests"):
        request(fleet, "ffffffff")
    with pytest.raises(Conflict, match="exists already"):
        request(fleet, "00000000", count=2)


def pool_events(fleet: Driven) -> list[dict[str, Any]]:
    return [event for event in fleet.reader.events() if event["kind"] == "pool_changed"]


def test_what_the_workers_of_a_pool_found_replaces_its_declaration(fleet: Driven) -> None:
    shape = PoolShape(cpu_cores=8, ram_mb=65536)
    declare(fleet, changed(POOL, each=shape))
    watch(fleet)
    plan(fleet, ONE, TWO)
    assert pool(fleet).pool.shape == shape
    hello(fleet, ONE, cores=4)
    assert pool(fleet).pool.found == PoolShape(cpu_cores=4, ram_mb=58 * 1024), "64 GiB without the reserve"
    assert pool(fleet).pool.lacks == "declared 8 cores, found 4"
    hello(fleet, TWO, cores=32, ram_gib=16)
    assert pool(fleet).pool.found == PoolShape(cpu_cores=4, ram_mb=14745), "the least of those that serve"
    fleet.close()
    fleet.open()
    assert pool(fleet).pool.found == PoolShape(cpu_cores=4, ram_mb=14745)
    declare(fleet, changed(POOL, each=shape, max=2))
    assert pool(fleet).pool.found is not None, "declared as before"
    for id in (ONE, TWO):
        end(fleet, id)
    plan(fleet, "00000a")
    hello(fleet, "00000a", cores=16, ram_gib=128)
    assert pool(fleet).pool.found == shape, "no more than was requested; the others have left"
    declare(fleet, changed(POOL, each=PoolShape(cpu_cores=2)))
    assert pool(fleet).pool.found is None


def test_one_machine_without_gpus_takes_none_from_the_pool(fleet: Driven) -> None:
    shape = PoolShape(cpu_cores=1, gpus=(PoolGpu(type="a100", vram_mb=20 * 1024),))
    declare(fleet, changed(POOL, each=shape))
    watch(fleet)
    plan(fleet, ONE)
    hello(fleet, ONE, cores=8)
    assert pool(fleet).pool.lacks == "declared 1 GPU, found 0"
    assert pool(fleet).pool.shape.gpus == shape.gpus, "its driver may be dead"
    plan(fleet, TWO)
    hello(fleet, TWO, cores=8, gpus=1)
    assert (pool(fleet).pool.shape.gpus, pool(fleet).pool.without_gpus) == (shape.gpus, 0)
    plan(fleet, "00000a", "00000b")
    hello(fleet, "00000a", cores=8)
    assert pool(fleet).pool.shape.gpus == shape.gpus
    reopen(fleet)
    declare(fleet, changed(POOL, each=shape, max=5))
    hello(fleet, "00000b", cores=8)
    assert pool(fleet).pool.shape.gpus == (), "two machines agree"
    assert pool(fleet).pool.lacks == "declared 1 GPU, found 0"
    ask(fleet, ResumePool(pool="a100", by="me"))
    assert (pool(fleet).pool.shape, pool(fleet).pool.lacks) == (shape, "")


def test_one_machine_without_gpus_takes_none_from_the_pool_while_others_serve(fleet: Driven) -> None:
    """The first machine is broken, and serves; the next ones have less than declared."""
    shape = PoolShape(cpu_cores=1, gpus=(PoolGpu(type="a100", vram_mb=80 * 1024),))
    declare(fleet, changed(POOL, each=shape))
    watch(fleet)
    plan(fleet, ONE, TWO, "00000a")
    hello(fleet, ONE, cores=8)
    assert pool(fleet).pool.shape.gpus == shape.gpus
    hello(fleet, TWO, cores=8, gpus=1)
    (gpu,) = pool(fleet).pool.shape.gpus
    assert gpu.vram_mb == 40 * 1024, "what the one that works has"
    hello(fleet, "00000a", cores=8)
    assert pool(fleet).pool.shape.gpus == (gpu,)


def test_of_a_large_request_that_was_refused_few_allocations_hide_no_other_request(fleet: Driven, monkeypatch) -> None:
    monkeypatch.setattr("stoker.coordinator.queue.allocations.MOST_SHOWN", 10)
    monkeypatch.setattr("stoker.coordinator.queue.allocations.MOST_FAILED", 2)
    declare(fleet, changed(POOL, max=8))
    watch(fleet)
    for number in range(5):
        ids = [f"{number}0000{one}" for one in range(4)]
        plan(fleet, *ids)
        for id in ids:
            move(fleet, id, AllocationState.REFUSED)
        fleet.clock.advance(1.0)
    found = view(fleet)
    assert len({one.planned_s for one in found.allocations}) == 5
    decision = decide(found.pools, (), found.allocations, now_s=found.now_s)
    assert [one.why for one in decision.pauses] == ["5 requests were refused in a row"]


def test_resume_forgets_machines_that_got_no_job(fleet: Driven) -> None:
    ready(fleet)
    done = ask(fleet, ResumePool(pool="a100", by="me"))
    assert (done.changed, done.notes) == ((), ("pool a100 is not paused",))
    assert pool(fleet).resumed_s > 0.0
