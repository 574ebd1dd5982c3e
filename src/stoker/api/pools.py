"""Pools of a fleet: what the commands and `stoker.Client` do with them.

Decisions are those of `scheduler.launching`, requests go to backends through `launch.watcher`; no second way leads
there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stoker.api.app_parts import AppParts
from stoker.core.errors import BadInput, LaunchDoubtful, LaunchRefused, NotFound, Usage
from stoker.core.frozen import changed, frozen
from stoker.core.pool import ID_CHARACTERS, Allocation, AllocationState, Pool, PoolState
from stoker.core.text import did_you_mean
from stoker.devices.checkup import Check
from stoker.devices.this_machine import submitter_name
from stoker.host.network import reachable
from stoker.launch.launchers import MOST_TOGETHER, Rendered
from stoker.launch.watcher import Watcher, WatchSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.launch_messages import LaunchView
from stoker.protocol.view_messages import DoneView
from stoker.scheduler.launching import LaunchDecision, StartAllocations, decide
from stoker.views.pool_lines import PoolView

LaunchLog = Callable[[str, dict[str, Any]], None]


@frozen
class LaunchPlan:
    """What would be requested of some pools now, and why no more. Nothing was requested yet."""

    view: LaunchView
    states: tuple[PoolState, ...]
    decision: LaunchDecision

    def start_of(self, pool: str) -> StartAllocations | None:
        """Return what would be requested of a pool; None: nothing."""
        return next((start for start in self.decision.starts if start.pool == pool), None)


@frozen
class PoolRequestResult:
    """What was requested of a pool."""

    pool: str
    allocations: tuple[Allocation, ...] = ()

    def require_submitted(self) -> None:
        """Raise `LaunchRefused` or `LaunchDoubtful` if the backend did not accept all."""
        for one in self.allocations:
            message = f"{self.pool}: {one.message}"
            if one.state is AllocationState.REFUSED:
                raise LaunchRefused(message, hint="see `stoker pools check`")
            if one.state is AllocationState.DOUBTFUL:
                raise LaunchDoubtful(message, hint="`stoker launch watch` finds out whether it was submitted")


class FleetPools:
    """The pools of one coordinator."""

    def __init__(self, wire: FleetClient, parts: AppParts) -> None:
        self._wire = wire
        self._parts = parts

    def list(self, names: Sequence[str] = ()) -> list[PoolView]:
        """Return pools with their allocations; all without names. Raises `NotFound`."""
        view = self._wire.launch_view()
        return [PoolView.of(state, view) for state in pools_named(view, names)]

    def pause(self, name: str, why: str = "") -> DoneView:
        """Start no more workers of a pool; those that run stay."""
        by = self._user()
        return self._wire.pause_pool(name, why or f"by {by}", by=by)

    def resume(self, name: str) -> DoneView:
        """Start workers of a paused pool again."""
        return self._wire.resume_pool(name, by=self._user())

    def stop(self, name: str, ids: Sequence[str] = ()) -> DoneView:
        """Stop allocations of a pool, by default all. Their jobs save a checkpoint and return to the queue."""
        for one in ids:
            if len(one) != ID_CHARACTERS or not set(one) <= set("0123456789abcdef"):
                raise Usage(f"{one!r} is not an allocation's id", hint=f"`stoker pools show {name}` lists them")
        return self._wire.stop_allocations(name, tuple(ids), by=self._user())

    def check(self, names: Sequence[str] = ()) -> Iterator[tuple[PoolState, tuple[Check, ...]]]:
        """Check from this machine whether pools could start workers. Nothing is started."""
        for state in pools_named(self._wire.launch_view(), names):
            yield state, self._parts.launcher(state.pool.backend).check(state.pool)

    def plan(self, names: Sequence[str], count: int | None = None) -> LaunchPlan:
        """Decide how many workers of pools to request now: as many as waiting jobs need, or `count` of each."""
        view = self._wire.launch_view()
        states = tuple(pools_named(view, names))
        if count is not None:
            starts = [
                StartAllocations(pool=state.pool.name, count=count, jobs=0, wanted=(), why="requested by hand")
                for state in states
            ]
            return LaunchPlan(view=view, states=states, decision=LaunchDecision(starts=tuple(starts)))
        # A person requests them: jobs have waited long enough, and a pool that starts by hand starts.
        eager = [changed(state, pool=changed(state.pool, patience_s=0.0, is_automatic=True)) for state in states]
        decision = decide(eager, view.demand, view.allocations, now_s=view.now_s, machines=view.machines)
        return LaunchPlan(view=view, states=states, decision=decision)

    def render(self, plan: LaunchPlan) -> Iterator[tuple[Pool, Rendered | None, str]]:
        """Return each pool of a plan with its request as it would be submitted, and what the backend expects of it."""
        for state in plan.states:
            start = plan.start_of(state.pool.name)
            if start is None:
                yield state.pool, None, ""
                continue
            launcher = self._parts.launcher(state.pool.backend)
            ids = [f"{number:06x}" for number in range(min(start.count, MOST_TOGETHER))]
            planned = [Allocation(id=one, pool=state.pool.name) for one in ids]
            rendered = launcher.render(state.pool, planned, fleet=plan.view.fleet)
            yield state.pool, rendered, launcher.forecast(rendered)

    def launch(self, plan: LaunchPlan, log: LaunchLog) -> Iterator[PoolRequestResult]:
        """Request what a plan has, pool by pool. Raises `Conflict` if a watcher watches one of them."""
        watcher = self.watcher(plan.view, [state.pool.name for state in plan.states], log)
        for state in plan.states:
            pool, start = state.pool, plan.start_of(state.pool.name)
            if start is None:
                yield PoolRequestResult(pool=pool.name)
                continue
            with watcher.holding(pool.name) as epoch:
                # What ended since somebody looked no longer counts.
                watcher.refresh(pool, epoch, plan.view)
                made = watcher.start(pool, epoch, start.count, start.wanted, fleet=plan.view.fleet, why=start.why)
            yield PoolRequestResult(pool=pool.name, allocations=made)

    def watcher(self, view: LaunchView, names: Sequence[str], log: LaunchLog, *, url: str = "") -> Watcher:
        """Return a watcher of pools, all without names. `url` is where workers reach the coordinator."""
        url = url or reachable(view.urls)
        if not url.startswith("https://"):
            raise BadInput(
                f"the coordinator at {self._wire.url} serves only its own machine",
                hint="serve other machines with TLS: stoker serve --listen 0.0.0.0",
            )
        settings = WatchSettings(
            watcher=f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}", url=url, local_url=self._wire.url
        )
        parts = self._parts
        return Watcher(self._wire, parts.launcher, settings, clock=parts.clock, log=log, pools=names)

    def _user(self) -> str:
        return submitter_name(self._parts.settings.environment)


def pools_named(view: LaunchView, names: Sequence[str]) -> list[PoolState]:
    """Return pools by their names; all without names. Raises `NotFound`."""
    by_name = {state.pool.name: state for state in view.pools}
    for name in names:
        if name not in by_name:
            hint = did_you_mean(name, by_name) or (f"there are {', '.join(by_name)}" if by_name else "")
            raise NotFound(
                f"there is no pool {name!r}", hint=hint or "declare pools in the cluster file of the coordinator"
            )
    return [by_name[name] for name in names] if names else list(view.pools)
