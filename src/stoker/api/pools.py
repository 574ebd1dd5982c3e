"""Pools of a fleet: what the commands and `stoker.Client` do with them.

Decisions are those of `scheduler.launching`, requests go to backends through `launch.watcher`, that of the pool's
watcher or one that lives for one request; no second way leads there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from stoker.api.app_parts import AppParts
from stoker.core.errors import (
    Conflict,
    LaunchDoubtful,
    LaunchRefused,
    NoBackend,
    NotFound,
    StaleLease,
    StokerError,
    Usage,
)
from stoker.core.frozen import frozen
from stoker.core.pool import (
    ID_CHARACTERS,
    Allocation,
    AllocationCause,
    AllocationState,
    LaunchRequest,
    Pool,
    PoolBackend,
    PoolState,
)
from stoker.core.text import did_you_mean
from stoker.devices.checkup import Check, CheckStatus
from stoker.devices.this_machine import submitter_name
from stoker.host.network import reachable
from stoker.launch.launchers import MOST_TOGETHER, Rendered
from stoker.launch.watcher import Watcher, WatchSettings, needs_tls
from stoker.protocol.client import FleetClient
from stoker.protocol.discovery import find_coordinator
from stoker.protocol.launch_messages import LaunchView
from stoker.protocol.refusals import error_of
from stoker.protocol.view_messages import DoneView
from stoker.scheduler.launching import LaunchDecision, decide
from stoker.views.pool_lines import PoolView, is_cut_off

_POLL_S = 0.3
LaunchLog = Callable[[str, dict[str, Any]], None]


@frozen
class LaunchPlan:
    """What requests for machines would start now, and why no more. Nothing was requested yet."""

    view: LaunchView
    states: tuple[PoolState, ...]
    requests: tuple[LaunchRequest, ...]
    """One for each of the pools."""
    decision: LaunchDecision


@frozen
class PoolRequestResult:
    """What became of a request for machines of a pool."""

    request: LaunchRequest
    allocations: tuple[Allocation, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Return True if nothing was requested of the backend, though a count was requested or for an error."""
        return not self.allocations and bool(self.request.count or self.request.code)

    def require_submitted(self) -> None:
        """Raise the error that closed the request, or because of which a backend did not accept an allocation."""
        pool = self.request.pool
        if self.is_refused:
            verb = "resume" if self.request.message.startswith("paused") else "show"
            error = {
                "error": self.request.code or LaunchRefused.code,
                "message": f"{pool}: {self.request.message}",
                "hint": f"stoker pools {verb} {pool}",
            }
            raise error_of(error, HTTPStatus.BAD_GATEWAY)
        for one in self.allocations:
            if one.cause is AllocationCause.NOT_SUBMITTED:
                raise NoBackend(f"{pool}: {one.message}", hint=f"stoker pools check {pool}")
            if one.state is AllocationState.REFUSED:
                raise LaunchRefused(f"{pool}: {one.message}", hint=f"stoker pools check {pool}")
            if one.state is AllocationState.DOUBTFUL:
                hint = "`stoker launch watch` finds out whether it was submitted"
                raise LaunchDoubtful(f"{pool}: {one.message}", hint=hint)


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
        """Stop allocations of a pool, by default all. Their jobs save a checkpoint and return to the queue.

        The pool's watcher cancels them at the backend; if there is none, it is done here. Raises `NoBackend` then.
        """
        for one in ids:
            if len(one) != ID_CHARACTERS or not set(one) <= set("0123456789abcdef"):
                raise Usage(f"{one!r} is not an allocation's id", hint=f"`stoker pools show {name}` lists them")
        done = self._wire.stop_allocations(name, tuple(ids), by=self._user())
        view = self._wire.launch_view()
        (state,) = pools_named(view, (name,))
        draining = any(one.pool == name and one.state is AllocationState.DRAINING for one in view.allocations)
        if draining and not state.watcher:
            try:
                # Another launcher may have come first: it cancels them.
                with suppress(Conflict, StaleLease):
                    self._watcher((name,), lambda _kind, _fields: None, url="", socket="").carry_out_stops(name)
            except NoBackend as error:
                message = f"{name}: the stop is stored, but no launcher watches the pool, and here: {error.message}"
                raise NoBackend(message, hint=f"where the backend is reached: stoker launch watch {name}") from None
        return done

    def check(self, names: Sequence[str] = (), *, url: str = "") -> Iterator[tuple[PoolState, tuple[Check, ...]]]:
        """Check from this machine whether pools could start workers. Nothing is started.

        `url` is where workers reach the coordinator, by default its first advertised name.
        """
        view = self._wire.launch_view()
        url = url or reachable(view.urls)
        for state in pools_named(view, names):
            error = needs_tls(self._wire.url)
            way_back = Check("coordinator", CheckStatus.BAD, error.message, error.hint)
            is_far = url.startswith("https://") and state.pool.backend is not PoolBackend.LOCAL
            checks = self._parts.launcher(state.pool.backend).check(state.pool, url=url if is_far else "")
            yield state, (*checks, way_back) if is_cut_off(state, view) else checks

    def plan(self, names: Sequence[str], count: int | None = None) -> LaunchPlan:
        """Decide what `launch` would start now: as many workers as waiting jobs need, or `count` of each pool."""
        view = self._wire.launch_view()
        states = tuple(pools_named(view, names))
        requests = tuple(self._request(state.pool.name, count, view.now_s) for state in states)
        decision = decide(
            states, view.demand, view.allocations, now_s=view.now_s, machines=view.machines, requests=requests
        )
        return LaunchPlan(view=view, states=states, requests=requests, decision=decision)

    def render(self, plan: LaunchPlan) -> Iterator[tuple[LaunchRequest, Pool, Rendered | None, str]]:
        """Return each request of a plan with what would be submitted, and what the backend expects of that."""
        for state, request in zip(plan.states, plan.requests, strict=True):
            start = next((start for start in plan.decision.starts if start.request == request.id), None)
            if start is None:
                yield request, state.pool, None, ""
                continue
            launcher = self._parts.launcher(state.pool.backend)
            ids = [f"{number:06x}" for number in range(min(start.count, MOST_TOGETHER))]
            planned = [Allocation(id=one, pool=state.pool.name) for one in ids]
            pool = launcher.prepare(state.pool, lambda _kind, _fields: None, is_dry=True)
            rendered = launcher.render(pool, planned, fleet=plan.view.fleet)
            yield request, state.pool, rendered, launcher.forecast(rendered)

    def launch(
        self,
        name: str,
        count: int | None = None,
        *,
        on_wait: Callable[[str], None] = lambda _watcher: None,
        log: LaunchLog = lambda _kind, _fields: None,
    ) -> PoolRequestResult:
        """Request workers of a pool, and wait until its backend has answered.

        The pool's watcher carries the request out; if there is none, it is done here. `on_wait` gets the watcher,
        `log` the events of what is done here.
        Whatever ends the wait withdraws a request that was not carried out yet.
        """
        view = self._wire.launch_view()
        pools_named(view, (name,))
        request = self._request(name, count, view.now_s)
        self._wire.request_machines(name, request.id, request.count, by=request.requester)
        try:
            return self._follow(request, on_wait, log)
        except BaseException:
            with suppress(StokerError):
                self._wire.close_request(name, request.id, f"withdrawn by {request.requester}")
            raise

    def _request(self, pool: str, count: int | None, now_s: float) -> LaunchRequest:
        id_ = secrets.token_hex(4)
        return LaunchRequest(id=id_, pool=pool, count=count or 0, requester=self._user(), requested_s=now_s)

    def _follow(self, request: LaunchRequest, on_wait: Callable[[str], None], log: LaunchLog) -> PoolRequestResult:
        watcher, is_shown = None, False
        while True:
            view = self._wire.launch_view()
            found = next((one for one in view.requests if one.id == request.id), None)
            if found is None:
                raise NotFound(f"request {request.id} of pool {request.pool} is gone", hint="run the command again")
            rows = tuple(one for one in view.allocations if one.id in found.allocations)
            if not found.is_open and all(one.state is not AllocationState.PLANNED for one in rows):
                return PoolRequestResult(request=found, allocations=rows)
            (state,) = pools_named(view, (request.pool,))
            if found.is_open and not state.watcher:
                watcher = watcher or self.watcher(view, (request.pool,), log)
                # Another launcher may have come first: it carries the request out.
                with suppress(Conflict, StaleLease):
                    watcher.carry_out_requests(request.pool)
                continue
            if state.watcher and not is_shown:
                is_shown = True
                on_wait(state.watcher)
            self._parts.clock.sleep(_POLL_S)

    def watcher(
        self, view: LaunchView, names: Sequence[str], log: LaunchLog, *, url: str = "", server_name: str = ""
    ) -> Watcher:
        """Return a watcher of pools, all without names. `url` is where workers reach the coordinator.

        `server_name` is the coordinator's name in its certificate, if `url` is that of a relay.
        """
        socket = ""
        url = url or reachable(view.urls)
        if not url.startswith("https://"):
            pools = [state.pool for state in view.pools if not names or state.pool.name in names]
            socket, url = self._socket(), ""
            if not socket or (pools and all(pool.backend is not PoolBackend.LOCAL for pool in pools)):
                raise needs_tls(self._wire.url)
        return self._watcher(names, log, url=url, socket=socket, server_name=server_name)

    def _watcher(
        self, names: Sequence[str], log: LaunchLog, *, url: str, socket: str, server_name: str = ""
    ) -> Watcher:
        parts = self._parts
        settings = WatchSettings(
            watcher=f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}",
            url=url,
            local_url=self._wire.url,
            local_socket=socket,
            server_name=server_name,
        )
        return Watcher(self._wire, parts.launcher, settings, clock=parts.clock, log=log, pools=names)

    def _socket(self) -> str:
        """Return the Unix socket of a coordinator on this machine; empty if it has none."""
        settings = self._parts.settings
        found = find_coordinator(self._wire.url, environment=settings.environment, state=settings.state)
        sockets = found.identity.sockets if found is not None and found.identity is not None else ()
        return next((path for path in sockets if os.path.exists(path)), "")

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
