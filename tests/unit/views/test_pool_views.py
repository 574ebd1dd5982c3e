"""Pools and allocations in tables."""

from __future__ import annotations

from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationState, Pool, PoolBackend, PoolState
from stoker.protocol.launch_messages import LaunchView
from stoker.views.pool_lines import PoolView, allocation_row
from stoker.views.text_tables import moment

NOW_S = 1_800_000_000.0
POOL = Pool(name="a100", backend=PoolBackend.SLURM, max=8)
WATCHED = PoolState(pool=POOL, watcher="w", watched_until_s=NOW_S + 60.0, hours=11.2, idle_hours=0.25)
SERVING = Allocation(
    id="aaaaaa", pool="a100", state=AllocationState.SERVING, started_s=NOW_S - 1080.0, serving_s=NOW_S - 540.0
)
WAITING = Allocation(id="bbbbbb", pool="a100", state=AllocationState.WAITING, reason="Priority")


def shown(*allocations: Allocation) -> PoolView:
    return PoolView.of(WATCHED, LaunchView(fleet="4c1d", now_s=NOW_S, pools=(WATCHED,), allocations=allocations))


def test_a_pool_shows_its_hours_and_those_without_a_job() -> None:
    view = shown(SERVING)
    assert view.row()[2:4] == ["1 serving, 0 requested, of 8", "11.2 h, 0.4 h idle"]
    assert view.to_dict()["hours"] == {"started": 11.2, "before_serving": 0.15, "idle": 0.4}


def test_a_pool_shows_when_the_first_of_those_that_wait_may_start() -> None:
    soon, later = (changed(WAITING, id=id, may_start_s=NOW_S + s) for id, s in (("cccccc", 60.0), ("dddddd", 900.0)))
    assert shown(WAITING, later, soon).row()[4] == f"slurm: Priority, may start {moment(NOW_S + 60.0, NOW_S)}"
    assert shown(WAITING).row()[4] == "slurm: Priority"
    assert shown(changed(soon, may_start_s=NOW_S - 60.0)).row()[4] == "slurm: Priority", "a time that is over"
    assert allocation_row(soon, NOW_S)[-1] == f"Priority; may start {moment(NOW_S + 60.0, NOW_S)}"
    assert allocation_row(changed(soon, state=AllocationState.SERVING), NOW_S)[-1] == "Priority"
