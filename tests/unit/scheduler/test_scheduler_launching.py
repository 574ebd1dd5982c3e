"""How many machines a pool starts for waiting jobs: enough, never too many, and always with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.coordinator.queue.machines import WorkerLimits, join
from stoker.core.capability import Capability
from stoker.core.device import GIB, MIB
from stoker.core.frozen import changed
from stoker.core.machine import Demand, DevicePreference, Requirements, SchedulableJob
from stoker.core.pool import (
    Allocation,
    AllocationCause,
    AllocationState,
    LaunchRequest,
    Pool,
    PoolBackend,
    PoolGpu,
    PoolShape,
    PoolState,
    staying,
)
from stoker.scheduler.launching import (
    CUT_OFF,
    LaunchDecision,
    decide,
    detected_shape,
    explain_pools,
    offer_for,
    starting_pools,
)

NOW_S = 100_000.0
CPU = Pool(name="cpu", backend=PoolBackend.SLURM, each=PoolShape(cpu_cores=4, slots=2), max=8, backlog=8)
GPU = Pool(
    name="gpu",
    backend=PoolBackend.SLURM,
    each=PoolShape(cpu_cores=8, ram_mb=65536, gpus=(PoolGpu(type="a100", vram_mb=40960),)),
    max=8,
    backlog=8,
)


def jobs(count: int = 1, *, name: str = "train", waited_s: float = 60.0, **requires: object) -> Demand:
    requirements = Requirements(ram_bytes=GIB, **requires)  # type: ignore[arg-type]
    takes_s = None
    return Demand(
        job=SchedulableJob(name=name, requirements=requirements),
        count=count,
        since_s=NOW_S - waited_s,
        names=(f"{name}/1", f"{name}/2", f"{name}/3")[:count],
        takes_s=takes_s,
    )


def on_gpu(count: int = 1, gib: int = 10) -> Demand:
    return jobs(count, name="resnet", wish=DevicePreference.REQUIRE, vram_bytes=gib * GIB)


def ended(cause: AllocationCause, *, ago_s: float = 60.0, number: int = 0, **fields: object) -> Allocation:
    state = AllocationState.REFUSED if cause is AllocationCause.REFUSED else AllocationState.ENDED
    return Allocation(
        id=f"e{number:05}",
        pool="cpu",
        state=state,
        cause=cause,
        planned_s=NOW_S - ago_s - 10,
        ended_s=NOW_S - ago_s,
        **fields,  # type: ignore[arg-type]
    )


def live(state: AllocationState, *, number: int = 0, pool: str = "cpu", age_s: float = 60.0) -> Allocation:
    return Allocation(id=f"a{number:05}", pool=pool, state=state, planned_s=NOW_S - age_s, wanted=("train/1",))


def decided(
    demand: Sequence[Demand] = (),
    allocations: Sequence[Allocation] = (),
    *pools: Pool,
    machines: int = 1,
    **state: object,
) -> LaunchDecision:
    states = [PoolState(pool=pool, **state) for pool in pools or (CPU,)]  # type: ignore[arg-type]
    return decide(states, demand, allocations, now_s=NOW_S, machines=machines)


def test_as_many_machines_start_as_the_jobs_fill() -> None:
    (start,) = decided([jobs(5)]).starts
    assert (start.pool, start.count, start.jobs) == ("cpu", 3, 5)
    assert start.why == "for train/1 and 4 more: no free machine fits"


def test_nothing_starts_without_demand() -> None:
    assert decided() == LaunchDecision()


def test_machines_on_their_way_count() -> None:
    coming = [live(AllocationState.WAITING), live(AllocationState.STARTED, number=1)]
    decision = decided([jobs(5)], coming)
    assert [one.count for one in decision.starts] == [1]
    assert decision.cancels == ()


def test_machines_that_serve_do_not_count_as_room_but_count_against_the_maximum() -> None:
    serving = [live(AllocationState.SERVING, number=number) for number in range(7)]
    decision = decided([jobs(100)], serving)
    assert [one.count for one in decision.starts] == [1]
    assert [(one.pool, one.why) for one in decision.holds] == [("cpu", "all 8 machines of it requested")]
    assert decision.unplaced == 98


def test_a_backlog_limits_what_waits() -> None:
    decision = decided([jobs(100)], [live(AllocationState.WAITING)], changed(CPU, backlog=2))
    assert [one.count for one in decision.starts] == [1]
    assert decision.holds[0].why == "2 allocations waiting already (backlog 2)"


def test_jobs_wait_for_a_machine_of_the_fleet_first_unless_it_has_none() -> None:
    fresh = [jobs(1, waited_s=2.0)]
    held = decided(fresh)
    assert (held.starts, held.holds[0].why) == ((), "waits for a machine here first, 8.0s more")
    assert len(decided(fresh, machines=0).starts) == 1


def test_a_job_that_fits_no_machine_of_a_pool_starts_none() -> None:
    decision = decided([on_gpu(gib=60)], (), CPU, GPU)
    assert decision.starts == ()
    assert [one.pool for one in decision.holds] == ["cpu", "gpu"]
    assert "60.0 GiB" in decision.holds[1].why


def test_a_job_that_takes_longer_than_the_time_limit_starts_none() -> None:
    long = changed(jobs(), takes_s=5 * 3600.0)
    assert decided([long]).holds[0].why == "needs 5h00m; its time limit leaves 3h58m"


def test_a_job_that_has_saved_a_checkpoint_may_take_longer_than_an_allocation() -> None:
    long = changed(jobs(), takes_s=5 * 3600.0)
    saved = changed(long, job=changed(long.job, has_checkpoint=True))
    assert [(start.pool, start.count) for start in decided([saved]).starts] == [("cpu", 1)]
    short = changed(CPU, wall_s=120.0)
    assert decided([saved], (), short).holds[0].why == (
        "needs 2m00s to continue from its checkpoint; its time limit leaves 1m30s"
    )


def test_the_cheapest_pool_comes_first() -> None:
    cheap, dear = changed(CPU, name="cheap", max=1, cost_per_hour=1.0), changed(CPU, name="dear", cost_per_hour=2.0)
    decision = decided([jobs(4)], (), dear, cheap)
    assert [(one.pool, one.count) for one in decision.starts] == [("cheap", 1), ("dear", 1)]


def test_a_request_that_no_job_needs_is_cancelled_once_it_is_old() -> None:
    decision = decided((), [live(AllocationState.WAITING), live(AllocationState.WAITING, number=1, age_s=5.0)])
    assert [(one.id, one.why) for one in decision.cancels] == [("a00000", "no waiting job needs it")]
    assert decided((), [live(AllocationState.WAITING)], changed(CPU, min=1)).cancels == ()
    by_hand = changed(live(AllocationState.WAITING), wanted=())
    assert decided((), [by_hand]).cancels == (), "it was requested by hand"


def test_a_minimum_is_kept() -> None:
    (start,) = decided((), [live(AllocationState.SERVING)], changed(CPU, min=3)).starts
    assert (start.count, start.why) == (2, "its minimum is 3")


def test_a_paused_pool_starts_nothing_and_says_why() -> None:
    decision = decided([jobs()], paused="by ada: maintenance")
    assert (decision.starts, decision.holds[0].why) == ((), "paused: by ada: maintenance")


@pytest.mark.parametrize(
    ("cause", "count", "message", "why"),
    [
        (AllocationCause.NEVER_JOINED, 3, "no route to host", "3 workers never joined in a row: no route to host"),
        (AllocationCause.REFUSED, 5, "Invalid account", "5 requests were refused in a row: Invalid account"),
        (
            AllocationCause.CANCELLED_THERE,
            3,
            "",
            "3 allocations were cancelled at the backend within 10m00s",
        ),
    ],
)
def test_a_pool_pauses_by_itself(cause: AllocationCause, count: int, message: str, why: str) -> None:
    past = [ended(cause, number=number, ago_s=100.0 - number, message=message) for number in range(count)]
    assert decided([jobs()], past[1:]).pauses == ()
    decision = decided([jobs()], past)
    assert [(one.pool, one.why) for one in decision.pauses] == [("cpu", why)]
    assert decision.starts == ()
    assert len(decided([jobs()], past, resumed_s=NOW_S - 1.0).starts) == 1, "what was before counts no more"


@pytest.mark.parametrize("cause", [AllocationCause.REFUSED, AllocationCause.NOT_SUBMITTED])
def test_a_request_of_many_that_fails_counts_once(cause: AllocationCause) -> None:
    past = [ended(cause, number=10 * at + one, ago_s=100.0 - at) for at in range(5) for one in range(8)]
    assert decided([jobs()], past[:32]).pauses == ()
    assert len(decided([jobs()], past).pauses) == 1
    alone = [ended(AllocationCause.NEVER_JOINED, number=number) for number in range(3)]
    assert len(decided([jobs()], alone).pauses) == 1, "workers that never joined count one by one"


def test_old_cancellations_do_not_pause() -> None:
    past = [ended(AllocationCause.CANCELLED_THERE, number=number, ago_s=3600.0) for number in range(5)]
    assert decided([jobs()], past).pauses == ()


def test_machines_that_got_no_job_are_not_started_again_for_such_jobs() -> None:
    useless = [
        ended(AllocationCause.FINISHED, number=number, serving_s=NOW_S - 65, wanted=("train/1",)) for number in range(2)
    ]
    assert "got no job" in decided([jobs()], useless).holds[0].why
    assert len(decided([jobs(name="other")], useless).starts) == 1
    useful = [useless[0], changed(useless[1], grants=1)]
    assert len(decided([jobs()], useful).starts) == 1


def test_machines_that_others_ended_before_a_job_came_do_not_count_and_resume_forgets_all() -> None:
    useless = [
        ended(AllocationCause.FINISHED, number=number, serving_s=NOW_S - 65, wanted=("train/1",)) for number in range(2)
    ]
    cancelled = [changed(one, cause=AllocationCause.CANCELLED) for one in useless]
    assert len(decided([jobs()], cancelled).starts) == 1
    state = PoolState(pool=CPU, resumed_s=NOW_S - 1)
    assert len(decide([state], [jobs()], useless, now_s=NOW_S).starts) == 1


def test_jobs_are_packed_onto_what_the_last_machines_were_found_to_have() -> None:
    found = changed(CPU, found=PoolShape(cpu_cores=2, slots=2))
    (start,) = decided([jobs(4, cores=2)], (), CPU).starts
    assert start.count == 2
    (start,) = decided([jobs(4, cores=2)], (), found).starts
    assert start.count == 4
    wide = decided([jobs(cores=4)], (), found)
    assert wide.starts == ()
    assert wide.holds[0].why.endswith("(declared 4 cores, found 2)")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (PoolShape(cpu_cores=8, ram_mb=60000, gpus=GPU.each.gpus), ""),
        (
            PoolShape(cpu_cores=4, ram_mb=32768, gpus=GPU.each.gpus),
            "declared 8 cores, found 4; declared 64.0 GiB of RAM, found 32.0 GiB",
        ),
        (PoolShape(cpu_cores=8, ram_mb=65536), "declared 1 GPU, found 0"),
        (
            PoolShape(cpu_cores=8, ram_mb=65536, gpus=(PoolGpu(type="a100-mig", vram_mb=10240),)),
            "declared a100 with 40.0 GiB, found 10.0 GiB",
        ),
    ],
    ids=["nearly all", "half", "no device", "a part of one"],
)
def test_what_machines_lack_is_named(found: PoolShape, text: str) -> None:
    assert changed(GPU, found=found).lacks == text


def test_a_detected_shape_has_no_more_than_was_requested() -> None:
    machine = Capability(cpu_cores=64, ram_total_bytes=512 * GIB)
    assert detected_shape(CPU.each, machine) == changed(CPU.each, ram_mb=506 * 1024)
    assert detected_shape(GPU.each, machine) == changed(GPU.each, gpus=())


@pytest.mark.parametrize("total_gib", [2, 4])
def test_a_pool_fits_a_job_exactly_if_its_worker_does(total_gib: int) -> None:
    """The machine's system reserve counts, not a tenth of what the pool declares."""
    declared = PoolShape(cpu_cores=1, ram_mb=2048)
    capability = Capability(cpu_cores=1, ram_total_bytes=total_gib * GIB, ram_available_bytes=total_gib * GIB)
    worker = join("small-1", capability, None, limits=WorkerLimits(ram_bytes=2 * GIB)).offer.ram_bytes
    assert worker is not None
    pool = changed(CPU, each=declared, found=detected_shape(declared, capability))
    offered = offer_for(pool, "small-1").ram_bytes
    assert offered is not None
    assert worker - MIB < offered <= worker
    assert pool.lacks == ""
    assert offer_for(changed(CPU, each=declared), "small-1").ram_bytes == 2 * GIB, "before any machine was seen"


def test_hours_a_day_are_a_limit() -> None:
    used = [ended(AllocationCause.FINISHED, ago_s=0.0, started_s=NOW_S - 5 * 3600.0)]
    limited = changed(CPU, max_hours=4.0)
    assert decided([jobs()], used, limited).holds[0].why == "5.0 of 4 hours a day used"
    counted = PoolState(pool=limited, hours=6.0)
    decision = decide([counted], [jobs()], used, now_s=NOW_S)
    assert decision.holds[0].why == "6.0 of 4 hours a day used", "also of allocations that are not listed"


def test_hours_that_machines_may_still_use_count_before_another_one_starts() -> None:
    limited = changed(CPU, max_hours=10.0, wall_s=3 * 3600.0)
    (start,) = decided([jobs(16)], (), limited).starts
    assert start.count == 3, "each may be there for 3 hours"
    serving = Allocation(
        id="a00000",
        pool="cpu",
        state=AllocationState.SERVING,
        started_s=NOW_S - 3600.0,
        ends_s=NOW_S + 2 * 3600.0,
    )
    decision = decided([jobs(16)], [serving, live(AllocationState.SUBMITTED, number=1)], limited)
    assert [one.count for one in decision.starts] == [1], "1 used, 2 and 3 granted"
    why = "1.0 of 10 hours a day used; machines that were requested may use 8.0, another one 3.0"
    assert decision.holds[0].why == why
    left = changed(serving, state=AllocationState.ENDED, ended_s=NOW_S, cause=AllocationCause.FINISHED)
    assert [one.count for one in decided([jobs(16)], [left], limited).starts] == [3], "what is not used comes back"
    (answer,) = requested(asked(4), max_hours=10.0, wall_s=3 * 3600.0).answers
    assert answer.why == "0.0 of 10 hours a day used; machines that were requested may use 9.0, another one 3.0"
    assert requested(asked(3), max_hours=10.0, wall_s=3 * 3600.0).starts[0].count == 3
    weeks = changed(CPU, max_hours=24.0, wall_s=7 * 86400.0)
    assert [one.count for one in decided([jobs(16)], (), weeks).starts] == [1], "a day has no more hours"


def asked(count: int = 0, number: int = 0, *, pool: str = "cpu", ago_s: float = 1.0) -> LaunchRequest:
    return LaunchRequest(id=f"{number:08x}", pool=pool, count=count, requester="ann", requested_s=NOW_S - ago_s)


def requested(
    *requests: LaunchRequest, demand: Sequence[Demand] = (), allocations: Sequence[Allocation] = (), **pool: Any
) -> LaunchDecision:
    paused = pool.pop("paused", "")
    state = PoolState(pool=changed(CPU, **pool), paused=paused)
    return decide([state], demand, allocations, now_s=NOW_S, requests=requests)


def test_a_request_with_a_count_starts_that_many_whatever_waits_and_jobs_use_them() -> None:
    decision = requested(asked(3), demand=[jobs(4)], backlog=1, is_automatic=False)
    (start,) = decision.starts
    assert (start.count, start.request, start.wanted, start.why) == (3, "00000000", (), "requested by ann")
    assert (decision.unplaced, decision.answers) == (0, ())
    (by_hand, more) = requested(asked(1), demand=[jobs(5)]).starts
    assert (by_hand.count, more.count, more.request) == (1, 2, "")


def test_a_request_without_a_count_is_for_waiting_jobs_and_does_not_wait() -> None:
    decision = requested(asked(), demand=[jobs(3, waited_s=0.0)], is_automatic=False)
    (start,) = decision.starts
    assert (start.count, start.request, start.wanted[0]) == (2, "00000000", "train/1")
    assert decision.answers == ()


@pytest.mark.parametrize(
    ("request_", "state", "why"),
    [
        (asked(), {}, "no waiting job needs a machine"),
        (asked(9), {}, "9 more would exceed max 8 (0 requested)"),
        (asked(1), {"paused": "maintenance"}, "paused: maintenance"),
        (asked(), {"paused": "maintenance"}, "paused: maintenance"),
        (asked(1, ago_s=7200.0), {}, "expired: no launcher carried it out within 1h00m"),
        (asked(), {"demand": [on_gpu()]}, "no allocation for resnet/1: "),
        (
            asked(1),
            {"max_hours": 4.0, "allocations": [ended(AllocationCause.FINISHED, ago_s=0, started_s=NOW_S - 18000)]},
            "5.0 of 4 hours a day used",
        ),
    ],
)
def test_a_request_that_starts_nothing_is_answered(request_: LaunchRequest, state: dict[str, Any], why: str) -> None:
    decision = requested(request_, **state)
    assert decision.starts == ()
    (answer,) = decision.answers
    assert (answer.id, answer.pool) == (request_.id, "cpu")
    assert answer.why.startswith(why)
    assert answer.code == ("" if why == "no waiting job needs a machine" else "launch_refused")


def test_what_each_pool_does_for_a_waiting_job_is_explained() -> None:
    def text(demand: Demand, allocations: Sequence[Allocation] = (), **state: object) -> str:
        watched = {"watcher": "w", "watched_until_s": NOW_S + 60, **state}
        pools = [PoolState(pool=CPU, **watched)]  # type: ignore[arg-type]
        (verdict,) = explain_pools(demand, pools, allocations, now_s=NOW_S)
        return verdict.text

    waiting = changed(live(AllocationState.WAITING, age_s=40.0), reason="Priority")
    assert text(jobs(), [waiting]) == "requested 40s ago, slurm: Priority"
    soon = changed(waiting, may_start_s=NOW_S + 1800.0)
    assert text(jobs(), [soon]) == "requested 40s ago, slurm: Priority, may start in 30m00s"
    assert text(jobs()) == "a machine of it is about to be requested"
    assert text(jobs(), watcher="") == "a machine of it would fit; nobody watches it: stoker launch watch"
    assert text(jobs(), paused="5 requests were refused") == "paused: 5 requests were refused"
    local = changed(CPU, backend=PoolBackend.LOCAL, name="here")
    pools = [PoolState(pool=one) for one in (CPU, local)]
    far, here = explain_pools(jobs(), pools, (), now_s=NOW_S, is_reachable=False)
    assert (far.text, far.order) == (CUT_OFF, None)
    assert (here.text.endswith("stoker launch watch"), here.order) == (True, 5)
    assert text(jobs(waited_s=2.0)) == "waits for a machine here first, 8.0s more"
    assert text(changed(jobs(), takes_s=5 * 3600.0)).startswith("needs 5h00m")


def test_of_several_pools_only_those_that_are_used_are_about_to_be_requested() -> None:
    def texts(*allocations: Allocation, watcher: str = "w") -> dict[str, str]:
        pools = [changed(CPU, name="dear", cost_per_hour=2.0), changed(CPU, name="cheap", cost_per_hour=1.0)]
        watchers = zip(pools, (watcher, "w"), strict=True)
        states = [PoolState(pool=one, watcher=name, watched_until_s=NOW_S + 60) for one, name in watchers]
        return {one.pool: one.text for one in explain_pools(jobs(), states, allocations, now_s=NOW_S)}

    about, other = "a machine of it is about to be requested", "a machine of it would fit; another pool is used first"
    assert texts() == {"dear": other, "cheap": about}
    assert texts(watcher="another") == {"dear": other, "cheap": about}, "whoever watches them"
    assert texts(watcher="")["cheap"] == about
    coming = live(AllocationState.WAITING, pool="cheap", age_s=40.0)
    assert texts(coming) == {"dear": other, "cheap": "requested 40s ago"}


def test_pools_that_start_machines_now_are_decided_together() -> None:
    watched: dict[str, Any] = {"watcher": "w", "watched_until_s": NOW_S + 60}
    given = {
        "other": PoolState(pool=CPU, **watched),
        "late": PoolState(pool=CPU, watcher="w", watched_until_s=NOW_S - 1),
        "nobody": PoolState(pool=CPU),
        "broken": PoolState(pool=CPU, problem="login not reachable", **watched),
        "mine": PoolState(pool=CPU, problem="login not reachable", **watched),
    }
    states = [changed(state, pool=changed(CPU, name=name)) for name, state in given.items()]
    assert starting_pools(states, NOW_S) == {"other"}
    assert starting_pools(states, NOW_S, held=["mine"]) == {"other", "mine"}
    (broken,) = explain_pools(jobs(), states[3:4], (), now_s=NOW_S)
    assert broken.text == "a machine of it would fit; its launcher has a problem: login not reachable"


def test_the_pool_that_helps_soonest_comes_first() -> None:
    watched: dict[str, Any] = {"watcher": "w", "watched_until_s": NOW_S + 60}
    names = ["paused", "hand", "unwatched", "doubtful", "held", "about", "coming", "unfit"]
    pools = {name: changed(CPU, name=name) for name in names}
    pools["hand"] = changed(pools["hand"], is_automatic=False)
    pools["held"] = changed(pools["held"], backlog=0)
    pools["unfit"] = changed(pools["unfit"], each=PoolShape(cpu_cores=1))
    states = [
        PoolState(pool=pool, paused="broken" if name == "paused" else "", **({} if name == "unwatched" else watched))
        for name, pool in pools.items()
    ]
    allocations = [live(AllocationState.DOUBTFUL, pool="doubtful"), live(AllocationState.WAITING, pool="coming")]
    verdicts = explain_pools(jobs(cores=2), states, allocations, now_s=NOW_S)
    order = {one.pool: one.order for one in verdicts if one.order is not None}
    assert sorted(order, key=lambda name: order[name]) == ["coming", "about", "held", "doubtful", "unwatched", "hand"]


def test_a_full_pool_that_starts_by_hand_is_full() -> None:
    by_hand = changed(CPU, is_automatic=False, max=1)
    decision = decided([jobs()], [live(AllocationState.SERVING)], by_hand)
    assert decision.holds[0].why == "all 1 machine of it requested"


@given(
    least=st.integers(1, 4),
    walls=st.lists(st.one_of(st.none(), st.integers(1, 3)), min_size=1, max_size=12),
    bursts=st.lists(st.integers(0, 4), max_size=4),
)
def test_a_minimum_stays_and_is_not_started_again(least: int, walls: list[int | None], bursts: list[int]) -> None:
    state = PoolState(pool=changed(CPU, min=least, patience_s=0.0))
    rows: dict[str, Allocation] = {}

    def turn(demand: Sequence[Demand]) -> int:
        decision = decide([state], demand, list(rows.values()), now_s=NOW_S)
        assert decision.cancels == ()
        count = sum(start.count for start in decision.starts)
        for number in range(len(rows), len(rows) + count):
            wall = walls[number % len(walls)]
            ends_s = None if wall is None else NOW_S + 3600.0 * wall
            serving = changed(live(AllocationState.SERVING, number=number), ends_s=ends_s, grants=1)
            rows[serving.id] = serving
        return count

    for burst in [*bursts, 0]:
        turn([jobs(burst)] if burst else [])
        stay = staying(state, rows.values())
        for one in [one for one in rows.values() if not one.is_over and one.id not in stay]:
            over = changed(one, state=AllocationState.ENDED, cause=AllocationCause.FINISHED, ended_s=NOW_S)
            rows[one.id] = over
    assert sum(not one.is_over for one in rows.values()) == least
    assert [turn([]) for _ in range(3)] == [0, 0, 0], "the minimum is started again and again"


STATES = st.sampled_from([state for state in AllocationState if state is not AllocationState.REFUSED])


@given(
    counts=st.lists(st.integers(0, 40), max_size=4),
    states=st.lists(st.tuples(STATES, st.booleans()), max_size=12),
    limits=st.tuples(st.integers(1, 6), st.integers(0, 3), st.integers(1, 6)),
    machines=st.integers(0, 1),
    by_hand=st.lists(st.integers(0, 3), max_size=3),
)
def test_a_decision_keeps_every_limit(
    counts: list[int],
    states: list[tuple[AllocationState, bool]],
    limits: tuple[int, int, int],
    machines: int,
    by_hand: list[int],
) -> None:
    most, least, backlog = limits
    pools = [
        changed(CPU, max=most, min=min(least, most), backlog=backlog),
        changed(GPU, max=most, backlog=backlog),
    ]
    allocations = [
        Allocation(id=f"a{number:05}", pool="gpu" if is_gpu else "cpu", state=state, planned_s=NOW_S - 60)
        for number, (state, is_gpu) in enumerate(states)
    ]
    demand = [on_gpu(count) if number % 2 else jobs(count) for number, count in enumerate(counts) if count]
    requests = [asked(count, number) for number, count in enumerate(by_hand)]
    decision = decide(
        [PoolState(pool=pool) for pool in pools],
        demand,
        allocations,
        now_s=NOW_S,
        machines=machines,
        requests=requests,
    )

    started = [start.request for start in decision.starts if start.request]
    answered = [answer.id for answer in decision.answers]
    assert len({*started, *answered}) == len(started) + len(answered), "a request is carried out or answered, once"
    left = {one.id for one in requests} - {*started, *answered}
    assert all(one.count == 0 for one in requests if one.id in left), "only a second one for the same jobs waits"
    for start in decision.starts:
        counted = next((one.count for one in requests if one.id == start.request and one.count), start.count)
        assert start.count == counted
    for pool in pools:
        mine = [one for one in allocations if one.pool == pool.name and not one.is_over]
        new = sum(start.count for start in decision.starts if start.pool == pool.name)
        assert new == 0 or len(mine) + new <= pool.max
        waiting = sum(one.is_on_its_way for one in mine)
        by_count = sum(one.count for one in requests if one.pool == pool.name and one.id in started)
        assert new == by_count or waiting + new <= pool.backlog
        gone = [one.id for one in decision.cancels if one.pool == pool.name]
        assert len(mine) + new - len(gone) >= min(pool.min, len(mine))
        assert not (new and gone and not pool.min), "a pool does not start and cancel at once"
    if sum(counts) == 0:
        assert all(start.jobs == 0 for start in decision.starts)
    placed = sum(start.jobs for start in decision.starts)
    assert placed + decision.unplaced <= sum(counts)
    assert decision.unplaced == 0 or decision.holds, "what is not placed has its reason"
