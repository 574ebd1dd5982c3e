"""The watcher of pools: starts workers when jobs wait that would fit, and cancels what is not needed.

    lease the pools ─▶ read rows and demand ─▶ decide ─▶ per pool: look, reconcile, cancel, plan, submit, write

It is a client of the coordinator. Every write names the epoch of its lease, so a watcher that was replaced changes
nothing more. The row of an allocation is durable before its backend gets the request; a request whose answer was lost
is found again by its label. Each pool has its own thread: one whose backend does not answer delays no other.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import BadInput, Conflict, LaunchRefused, NoBackend, StaleLease, StokerError
from stoker.core.frozen import changeable, changed, fresh, frozen
from stoker.core.pool import (
    ID_CHARACTERS,
    Allocation,
    AllocationCause,
    AllocationState,
    Pool,
    PoolBackend,
    PoolState,
)
from stoker.core.text import one_line
from stoker.launch.launchers import (
    LONGEST_MESSAGE,
    MOST_TOGETHER,
    Launcher,
    SubmitOutcome,
    last_line,
    not_submitted,
    submitted,
)
from stoker.launch.reconcile import MISSED_LOOKS, LookMemory, due_to_end, reconcile
from stoker.protocol.client import FleetClient
from stoker.protocol.enrolment_messages import Ticket, ticket_to_text
from stoker.protocol.launch_messages import MOST_AT_ONCE, AllocationMove, LaunchView
from stoker.scheduler.launching import AnswerRequest, LaunchDecision, StartAllocations, decide, starting_pools

LOOK_S = 30.0
"""Time between two looks at a backend while nothing moves."""
LEASE_S = 60.0
_FIRST_LOOK_S = 1.0
_LONGER = 3
"""Each pause between looks that find nothing is so many times the one before, up to `look_s`."""
_TURN_S = 1.0
"""The longest time between two turns: a submission begins one after `_REST_S`."""
_REST_S = 0.25
"""A worker whose time limit ended so long ago did not end by itself."""
_STOP_LOOKS = 5
_MOST_THREADS = 64

_Rows = Mapping[str, Allocation]


@frozen
class WatchSettings:
    """What a watcher needs besides its client and its launchers."""

    watcher: str
    """Unique for each start."""
    url: str
    """Where workers reach the coordinator; empty: it has no TLS, and serves only its own machine."""
    local_url: str
    """Where workers of this machine reach it."""
    local_socket: str = ""
    """Its Unix socket, if it has no TLS."""
    server_name: str = ""
    """The coordinator's host name in its certificate, if `url` is that of a relay; empty: the URL's host."""
    look_s: float = LOOK_S


@changeable
class _Watched:
    """One pool between two turns. Only the thread of its task changes it."""

    memory: LookMemory = LookMemory()
    look_at_s: float = 0.0
    pause_s: float = _FIRST_LOOK_S
    cancelled: dict[str, float] = fresh(factory=dict)
    """Allocations that this watcher or an earlier one cancelled, with the time of the last attempt."""
    cancel_at_s: float = 0.0
    """Later than now, if the last cancel failed."""
    cancel_error: StokerError | None = None
    """Why it failed."""
    silent_since_s: dict[str, float] = fresh(factory=dict)
    """Allocations whose workers serve and send no heartbeat."""
    seen_s: float = 0.0
    """When silence was last read."""
    seen_over: set[str] = fresh(factory=set)
    """Allocations that are over and whose files are not removed yet."""
    cleaned: set[str] = fresh(factory=set)
    unclean: str = ""
    """Why files could not be removed at the last look; the next one tries again, and nothing else waits for it."""
    deferred: set[str] = fresh(factory=set)
    """Requests of operators that could not be carried out before the last look."""
    problem: str = ""
    """The last error, which is logged once."""
    reported: str = ""
    """The last error as the coordinator has it."""
    states: dict[str, AllocationState] = fresh(factory=dict)
    """The last state of allocations whose end is not logged yet."""
    start_at_s: float = 0.0
    """Later than now, if the last request did not reach the backend."""
    is_blind: bool = False
    """The last look failed: nothing is started before one succeeds."""


class Watcher:
    """Watches some pools, or all."""

    def __init__(
        self,
        client: FleetClient,
        launcher_of: Callable[[PoolBackend], Launcher],
        settings: WatchSettings,
        *,
        clock: Clock,
        log: Callable[[str, dict[str, Any]], None],
        pools: Sequence[str] = (),
    ) -> None:
        """`pools` are the names of those to watch; none: all. `log` gets every event."""
        self._client = client
        self._launcher_of = launcher_of
        self._launchers: dict[PoolBackend, Launcher] = {}
        self._settings = settings
        self._clock = clock
        self._log = log
        self._pools = tuple(pools)
        self._watched: dict[str, _Watched] = {}
        self._tasks: dict[str, Future[None]] = {}
        self._held: dict[str, int] = {}
        self._pools_seen: dict[str, Pool] = {}
        self._cut_off: set[str] = set()
        self._renew_at_s = 0.0
        self._is_closed = False
        self.turns = 0
        """How often it has looked at the coordinator's rows, or tried to."""

    def run(self) -> None:
        """Watch until closed. Errors of the coordinator are logged, and the watcher tries again."""
        problem, wait_s = "", 0.0
        with ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="stoker-launch") as threads:
            try:
                while not self._is_closed:
                    self.turns += 1
                    try:
                        self.turn(threads, wait_s=wait_s)
                        problem, wait_s = "", _TURN_S - _REST_S
                    except StokerError as error:
                        if str(error) != problem:
                            problem = str(error)
                            self._log("launch_problem", {"pool": "", "why": problem, "hint": error.hint})
                        self._clock.sleep(wait_s)
                    self._clock.sleep(_REST_S)
            finally:
                self._is_closed = True
                # A task under way writes under its lease.
                threads.shutdown()
                self._release_pools()

    def close(self) -> None:
        """End the watch; allocations stay. Safe in signal handlers: it takes no lock."""
        self._is_closed = True

    def turn(self, threads: ThreadPoolExecutor, *, wait_s: float = 0.0) -> None:
        """Wait for jobs, decide once, and begin a task for each pool that has no task under way."""
        # A task may write rows after they were read: only pools that were free before count.
        busy = {name for name, task in self._tasks.items() if not task.done()}
        view = self._client.launch_view(wait_s)
        states = [state for state in view.pools if not self._pools or state.pool.name in self._pools]
        if not self._settings.url:
            states = self._local_only(states)
        self._lease(states)
        states = [state for state in states if state.pool.name in self._held]
        self._clean_removed(view, threads)
        decision = _decide(view.pools, view, starting_pools(view.pools, view.now_s, held=self._held))
        for state in states:
            self._pools_seen[state.pool.name] = state.pool
            if state.pool.name not in busy:
                epoch = self._held[state.pool.name]
                self._tasks[state.pool.name] = threads.submit(self._serve_pool, state, epoch, view, decision)

    def _local_only(self, states: Sequence[PoolState]) -> list[PoolState]:
        """Return the pools whose workers reach a coordinator without TLS; log once that others start nothing."""
        cut_off = [one.pool.name for one in states if one.pool.backend is not PoolBackend.LOCAL]
        for name in set(cut_off) - self._cut_off:
            error = needs_tls(self._settings.local_url)
            self._log("launch_problem", {"pool": name, "why": error.message, "hint": error.hint})
        self._cut_off.update(cut_off)
        return [one for one in states if one.pool.name not in cut_off]

    def _clean_removed(self, view: LaunchView, threads: ThreadPoolExecutor) -> None:
        """Remove the files of pools that the cluster file no longer has, whose last allocation has ended."""
        present = {state.pool.name for state in view.pools}
        for name in [name for name in self._pools_seen if name not in present]:
            task = self._tasks.get(name)
            if task is None or task.done():
                pool = self._pools_seen.pop(name)
                self._held.pop(name, None)
                rows = [one for one in view.allocations if one.pool == name and one.is_over]
                self._tasks[name] = threads.submit(self._clean, pool, rows)

    def _clean(self, pool: Pool, over: Sequence[Allocation]) -> None:
        cleaned = self._watched.pop(pool.name, _Watched()).cleaned
        if left := [one for one in over if one.id not in cleaned]:
            self._clean_files(pool, left)

    def _clean_files(self, pool: Pool, over: Sequence[Allocation], problem: str = "") -> str:
        """Remove files; return why they stay, if they do. `problem` is the last such reason, which is logged once."""
        try:
            self._launcher(pool).clean(pool, over)
        except StokerError as error:
            if str(error) != problem:
                self._log("launch_problem", {"pool": pool.name, "why": str(error), "hint": error.hint})
            return str(error)
        return ""

    def carry_out_requests(self, pool: str) -> None:
        """Do what operators requested of a pool, and nothing else, under its lease.

        Raises `Conflict` if another watcher has the lease, and the backend's error after the requests have it too.
        """
        with self._leased(pool) as epoch:
            watched = _Watched()
            view = self._client.launch_view()
            # First compare rows with the backend: what has ended no longer counts.
            for state in _named(view, pool):
                self._do(state, epoch, watched, view, LaunchDecision())
            view = self._client.launch_view()
            for state in _named(view, pool):
                decision = _decide([state], view)
                requested = tuple(start for start in decision.starts if start.request)
                self._do(state, epoch, watched, view, changed(decision, starts=requested, cancels=()))

    def carry_out_stops(self, pool: str) -> None:
        """Cancel what operators stopped of a pool, under its lease; wait a moment for what had not served yet.

        Raises `Conflict` if another watcher has the lease, and the backend's error.
        """
        with self._leased(pool) as epoch:
            watched = _Watched()
            for _ in range(_STOP_LOOKS):
                view = self._client.launch_view()
                for state in _named(view, pool):
                    self._do(state, epoch, watched, view, LaunchDecision())
                if watched.cancel_error is not None:
                    raise watched.cancel_error
                rows = self._client.launch_view().allocations
                draining = [one for one in rows if one.pool == pool and one.state is AllocationState.DRAINING]
                if all(one.serving_s is not None for one in draining):
                    return
                self._clock.sleep(_FIRST_LOOK_S)

    @contextmanager
    def _leased(self, pool: str) -> Iterator[int]:
        """Take the lease of a pool within the block; return its epoch."""
        self._held.update(self._client.watch_pools(self._settings.watcher, (pool,), for_s=LEASE_S))
        try:
            with self._renewed(pool):
                yield self._held[pool]
        finally:
            self._release_pools()

    @contextmanager
    def _renewed(self, pool: str) -> Iterator[None]:
        """Renew the lease of a pool within the block: to bring Stoker to a host may take minutes."""
        is_over = threading.Event()

        def renew() -> None:
            while not is_over.wait(LEASE_S / 3):
                # If another watcher has it, the next write is refused.
                with suppress(StokerError):
                    self._client.watch_pools(self._settings.watcher, (pool,), for_s=LEASE_S)

        thread = threading.Thread(target=renew, name="stoker-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _launcher(self, pool: Pool) -> Launcher:
        found = self._launchers.get(pool.backend)
        if found is None:
            found = self._launchers[pool.backend] = self._launcher_of(pool.backend)
        return found

    def _lease(self, states: Sequence[PoolState]) -> None:
        """Take or renew the leases of pools; one that another watcher holds is left to it."""
        now_s = self._clock.monotonic_s()
        is_due = now_s >= self._renew_at_s
        if is_due:
            self._renew_at_s = now_s + LEASE_S / 3
        free = [state.pool.name for state in states if not state.watcher]
        names = [state.pool.name for state in states] if is_due else [name for name in free if name not in self._held]
        new = {name for name in names if name not in self._watched}
        others: dict[str, list[str]] = {}
        news = [name for name in self._held if (one := self._watched.get(name)) and one.problem != one.reported]
        alike: dict[tuple[str, bool], list[str]] = {}
        for name in dict.fromkeys((*names, *news)):
            watched = self._watched.setdefault(name, _Watched())
            alike.setdefault((watched.problem, name in self._held), []).append(name)
        refused: dict[str, Conflict | ValueError] = {}
        for (problem, _), together in alike.items():
            for first in range(0, len(together), MOST_AT_ONCE):
                refused |= self._take(together[first : first + MOST_AT_ONCE], problem)
        for name, error in refused.items():
            if self._held.pop(name, None) is None and name not in new:
                continue
            if isinstance(error, Conflict):
                others.setdefault(str(error.data.get("watcher", "another launcher")), []).append(name)
            else:
                hint = "give it another name"
                self._log("launch_problem", {"pool": name, "why": one_line(str(error), 300), "hint": hint})
        for watcher, theirs in others.items():
            self._log("launch_stands_by", {"pools": theirs, "watcher": watcher})

    def _take(self, names: Sequence[str], problem: str) -> dict[str, Conflict | ValueError]:
        """Take or renew the leases of pools with the same problem, by one request; return why some were refused."""
        shown = one_line(problem, LONGEST_MESSAGE)
        try:
            epochs = self._client.watch_pools(self._settings.watcher, tuple(names), for_s=LEASE_S, problem=shown)
        except (Conflict, ValueError) as error:
            if len(names) == 1:
                return {names[0]: error}
            # One that another watcher holds, or that the protocol does not accept, stops no other.
            return {name: why for one in names for name, why in self._take([one], problem).items()}
        for name in names:
            self._watched[name].reported = problem
            if name not in self._held:
                self._log("pool_watched", {"pool": name, "epoch": epochs[name]})
            self._held[name] = epochs[name]
        return {}

    def _release_pools(self) -> None:
        while self._held:
            name, _ = self._held.popitem()
            try:
                self._client.watch_pools(self._settings.watcher, (name,), for_s=0.0)
            except StokerError as error:
                self._log("launch_problem", {"pool": name, "why": str(error), "hint": error.hint})

    def _serve_pool(self, state: PoolState, epoch: int, view: LaunchView, decision: LaunchDecision) -> None:
        """Do what was decided for a pool, under the epoch of the decision. Errors are logged, and it goes on later."""
        pool, watched = state.pool, self._watched.setdefault(state.pool.name, _Watched())
        answered = {one.id for one in decision.answers if one.pool == pool.name}
        if answered - watched.deferred:
            # What has ended since the last look may leave room for the request: look, and answer in the next turn.
            watched.look_at_s = self._clock.monotonic_s()
            decision = changed(decision, answers=())
        watched.deferred = answered
        try:
            self._do(state, epoch, watched, view, decision)
        except StaleLease:
            self._held.pop(pool.name, None)
        except Exception as error:  # noqa: BLE001 - nobody else would notice it
            self._note_problem(pool, watched, error)
            watched.look_at_s = self._clock.monotonic_s() + self._settings.look_s

    def _do(self, state: PoolState, epoch: int, watched: _Watched, view: LaunchView, decision: LaunchDecision) -> None:
        """Do what was decided for a pool. Requests of operators are answered with the error, if there is one."""
        pool = state.pool
        answers = {one.id: one for one in decision.answers if one.pool == pool.name}
        try:
            self._look(pool, epoch, watched, view)
            self._end_unwanted(pool, epoch, watched, view, decision)
            for pause in decision.pauses:
                if pause.pool == pool.name:
                    self._client.pause_pool(pool.name, one_line(pause.why, LONGEST_MESSAGE))
                    self._log("pool_paused", {"pool": pool.name, "why": pause.why})
            for start in decision.starts:
                if start.pool != pool.name or self._is_closed or watched.is_blind:
                    continue
                if start.request or self._clock.monotonic_s() >= watched.start_at_s:
                    is_reached = self._start(pool, epoch, start, view.fleet, watched)
                    now_s = self._clock.monotonic_s()
                    watched.pause_s, watched.look_at_s = _FIRST_LOOK_S, now_s + _FIRST_LOOK_S
                    watched.start_at_s = 0.0 if is_reached else now_s + self._settings.look_s
        except StokerError as error:
            if not isinstance(error, StaleLease):
                requests = (one for one in view.requests if one.pool == pool.name and one.is_open)
                failed = (AnswerRequest(pool=one.pool, id=one.id, why=str(error), code=error.code) for one in requests)
                answers = {one.id: one for one in failed} | answers
            raise
        finally:
            for one in answers.values():
                # One that allocations were planned for before the error stays as it is.
                why = one_line(one.why, LONGEST_MESSAGE)
                closed = self._client.close_request(pool.name, one.id, why, epoch=epoch, code=one.code)
                if closed.changed:
                    self._log("request_answered", {"pool": pool.name, "request": one.id, "why": one.why})

    def _look(self, pool: Pool, epoch: int, watched: _Watched, view: LaunchView) -> None:
        """Compare rows with the backend if that is due, and write what changed."""
        now_s = self._clock.monotonic_s()
        rows = [one for one in view.allocations if one.pool == pool.name]
        self._log_serving(pool, watched, rows)
        uncleaned = {one.id for one in rows if one.is_over} - watched.cleaned
        if uncleaned - watched.seen_over:
            # A worker has left: look soon, and remove its files.
            watched.pause_s, watched.look_at_s = _FIRST_LOOK_S, min(watched.look_at_s, now_s + _FIRST_LOOK_S)
        watched.seen_over = uncleaned
        is_requested = any(one.pool == pool.name and one.is_open for one in view.requests)
        if now_s < watched.look_at_s and not (watched.is_blind and is_requested):
            return
        launcher = self._launcher(pool)
        known = [one for one in rows if one.backend_id and not one.is_over]
        watched.is_blind = True
        statuses = launcher.look(pool, fleet=view.fleet, known=known)
        watched.is_blind, watched.problem = False, ""
        found = reconcile(
            rows, statuses, watched.memory, now_s=view.now_s, cancelled={*watched.cancelled}, silent={*view.silent}
        )
        watched.memory = found.memory
        by_id = {one.id: one for one in rows}
        moves = [
            move.model_copy(update={"message": last_line(launcher.log(pool, by_id[move.id]))})
            if move.id in found.unjoined
            else move
            for move in found.moves
        ]
        if found.cancels:
            launcher.cancel(pool, found.cancels)
            for backend_id in found.cancels:
                self._log("stray_cancelled", {"pool": pool.name, "backend_id": backend_id})
        self._write(pool, epoch, moves, watched)
        running = {one.id for one in statuses if one.state is not AllocationState.ENDED}
        # One whose answer was lost may have served and left since the last look.
        backend_ids = {one.id: one.backend_id for one in statuses}
        over = [
            one if one.backend_id else changed(one, backend_id=backend_ids.get(one.id, ""))
            for one in rows
            if one.id in uncleaned - running
        ]
        if over:
            for one in over:
                # Its worker said goodbye. Had the backend given a reason, a move would have been written.
                self._log_end(pool, watched, one.id, one.cause, one.message)
            watched.unclean = self._clean_files(pool, over, watched.unclean)
            if not watched.unclean:
                watched.cleaned.update(one.id for one in over)
        is_missed = any(count < MISSED_LOOKS for count in found.memory.missed.values())
        # Of a worker that has started, the coordinator hears first what comes next.
        is_news = any(move.state is not AllocationState.STARTED for move in moves)
        watched.pause_s = (
            _FIRST_LOOK_S if is_news or is_missed else min(self._settings.look_s, watched.pause_s * _LONGER)
        )
        # A worker that serves or idles ends by itself; its machine tells the coordinator.
        watched.look_at_s = now_s + watched.pause_s

    def _log_serving(self, pool: Pool, watched: _Watched, rows: Sequence[Allocation]) -> None:
        for one in rows:
            if one.is_over:
                continue
            is_new = watched.states.get(one.id, AllocationState.SERVING) is not AllocationState.SERVING
            if is_new and one.state is AllocationState.SERVING:
                self._log("allocation_serving", {"pool": pool.name, "allocation": one.id})
            watched.states[one.id] = one.state

    def _log_end(self, pool: Pool, watched: _Watched, id: str, cause: AllocationCause | None, why: str) -> None:
        """Log the end of an allocation once."""
        if watched.states.pop(id, None) is not None:
            fields = {"pool": pool.name, "allocation": id, "cause": str(cause or ""), "why": why}
            self._log("allocation_ended", fields)

    def _note_problem(self, pool: Pool, watched: _Watched, error: Exception) -> None:
        """Log an error, unless it is the last one."""
        is_known = isinstance(error, StokerError)
        problem = str(error) if is_known else f"internal error: {type(error).__name__}: {one_line(str(error), 300)}"
        if problem != watched.problem:
            watched.problem = problem
            hint = error.hint if isinstance(error, StokerError) else "please report it"
            self._log("launch_problem", {"pool": pool.name, "why": problem, "hint": hint})

    def _end_unwanted(self, pool: Pool, epoch: int, watched: _Watched, view: LaunchView, by: LaunchDecision) -> None:
        """Cancel what is not needed. After an error it is tried again later; looks and starts do not wait for it."""
        now_s = self._clock.monotonic_s()
        rows = {one.id: one for one in view.allocations if one.pool == pool.name and not one.is_over}
        # A second signal would mean: at once.
        signalled = [one.id for one in rows.values() if one.signalled_s is not None]
        watched.cancelled = dict.fromkeys({*signalled} - watched.memory.ending, now_s) | watched.cancelled
        # Behind an outage of our own, at the backend or at the coordinator, nobody was heard of.
        is_out = watched.is_blind or now_s - watched.seen_s > LEASE_S
        watched.seen_s, known = now_s, {} if is_out else watched.silent_since_s
        watched.silent_since_s = {id: known.get(id, now_s) for id in view.silent if id in rows}
        if now_s < watched.cancel_at_s:
            return
        silent_s = {id: now_s - since_s for id, since_s in watched.silent_since_s.items()}
        unwanted = due_to_end(rows.values(), ending=watched.memory.ending, silent_s=silent_s, now_s=view.now_s)
        unwanted |= {one.id: one.why for one in by.cancels if one.id in rows}
        try:
            self._cancel(pool, epoch, watched, rows, unwanted)
        except StokerError as error:
            if isinstance(error, StaleLease):
                raise
            if str(error) != str(watched.cancel_error):
                # No problem of the pool: it starts machines all the same, and other watchers count on that.
                self._log("launch_problem", {"pool": pool.name, "why": str(error), "hint": error.hint})
            watched.cancel_error, watched.cancel_at_s = error, now_s + self._settings.look_s
        else:
            watched.cancel_error = None

    def _cancel(self, pool: Pool, epoch: int, watched: _Watched, rows: _Rows, unwanted: Mapping[str, str]) -> None:
        """Cancel first gently, and what still runs after the pool's margin plainly."""
        now_s = self._clock.monotonic_s()
        new = [one for one in unwanted if one not in watched.cancelled and rows[one].backend_id]
        late = [one for one in unwanted if now_s - watched.cancelled.get(one, now_s) >= pool.end_margin_s]
        if late:
            self._launcher(pool).cancel(pool, [rows[one].backend_id for one in late])
            watched.cancelled.update(dict.fromkeys(late, now_s))
        if not new:
            return
        # Before the backend cancels anything: after a restart it would look as if others had done it.
        draining = [one for one in new if rows[one].state is not AllocationState.DRAINING]
        self._write(pool, epoch, [AllocationMove(id=one, state=AllocationState.DRAINING) for one in draining], watched)
        self._launcher(pool).cancel(pool, [rows[one].backend_id for one in new], is_gentle=True)
        watched.cancelled.update(dict.fromkeys(new, now_s))
        self._write(pool, epoch, [AllocationMove(id=one, is_signalled=True) for one in new], watched)
        for id_ in new:
            self._log("allocation_cancelled", {"pool": pool.name, "allocation": id_, "why": unwanted[id_]})
        watched.pause_s, watched.look_at_s = _FIRST_LOOK_S, now_s + _FIRST_LOOK_S

    def _start(self, pool: Pool, epoch: int, start: StartAllocations, fleet: str, watched: _Watched) -> bool:
        """Plan allocations, and submit them; all are durable before the backend gets the first.

        Return False if the backend was not reached.
        """
        settings, is_here = self._settings, pool.backend is PoolBackend.LOCAL
        if not is_here and not settings.url:
            raise needs_tls(settings.local_url)
        launcher = self._launcher(pool)
        # More than one message has are planned in the next turn.
        ids = [secrets.token_hex(ID_CHARACTERS // 2) for _ in range(min(start.count, MOST_AT_ONCE))]
        allocations = [Allocation(id=one, pool=pool.name, wanted=start.wanted) for one in ids]
        # Faults of the pool are found before anything is planned.
        ready, fault = self._prepare(launcher, pool)
        together = [
            launcher.render(ready, allocations[first : first + MOST_TOGETHER], fleet=fleet)
            for first in range(0, len(ids), MOST_TOGETHER)
        ]
        plans = [(one, start.wanted) for one in ids]
        try:
            keys = self._client.plan_allocations(pool.name, epoch, plans, request=start.request)
        except Conflict:
            if not start.request:
                raise
            # Its operator withdrew it a moment ago.
            self._log("request_withdrawn", {"pool": pool.name, "request": start.request})
            return True
        watched.states.update(dict.fromkeys(ids, AllocationState.PLANNED))
        is_reached = True
        where = (
            {"url": settings.local_url, "socket": settings.local_socket}
            if is_here
            else {"url": settings.url, "server_name": settings.server_name}
        )
        tickets = {
            one.id: ticket_to_text(Ticket(id=one.id.upper(), key=keys[one.id], name=one.machine, **where))
            for one in allocations
        }
        for rendered in together:
            outcome = fault or submitted(launcher, rendered, {id_: tickets[id_] for id_ in rendered.ids})
            is_reached = is_reached and outcome.state is not AllocationState.ENDED
            if outcome.state is not AllocationState.ENDED:
                for id_ in rendered.ids:
                    fields = {"pool": pool.name, "allocation": id_, "backend_id": outcome.backend_ids.get(id_, "")}
                    self._log(f"allocation_{outcome.state}", {**fields, "why": outcome.message or start.why})
            self._write(pool, epoch, [outcome.move(id_) for id_ in rendered.ids], watched)
        return is_reached

    def _prepare(self, launcher: Launcher, pool: Pool) -> tuple[Pool, SubmitOutcome | None]:
        """Return the pool as its launcher renders it, and what is to become of requests if Stoker can't get there.

        They are planned all the same: brakes count them, and `stoker pools` shows why.
        """
        try:
            return launcher.prepare(pool, self._log), None
        except LaunchRefused as error:
            return pool, SubmitOutcome(state=AllocationState.REFUSED, message=last_line(str(error)))
        except NoBackend as error:
            return pool, not_submitted(error)

    def _write(self, pool: Pool, epoch: int, moves: Sequence[AllocationMove], watched: _Watched) -> None:
        for first in range(0, len(moves), MOST_AT_ONCE):
            self._client.move_allocations(pool.name, epoch, tuple(moves[first : first + MOST_AT_ONCE]))
        for move in moves:
            if move.state is AllocationState.ENDED:
                self._log_end(pool, watched, move.id, move.cause, move.message)


def needs_tls(url: str) -> BadInput:
    """Return the error of a pool whose workers can't reach a coordinator without TLS."""
    hint = "serve other machines with TLS: stoker serve --listen 0.0.0.0; without it only local pools start"
    return BadInput(f"the coordinator at {url} serves only its own machine", hint=hint)


def _named(view: LaunchView, pool: str) -> list[PoolState]:
    return [state for state in view.pools if state.pool.name == pool]


def _decide(states: Sequence[PoolState], view: LaunchView, starting: Collection[str] | None = None) -> LaunchDecision:
    return decide(
        states,
        view.demand,
        view.allocations,
        now_s=view.now_s,
        machines=view.machines,
        requests=view.requests,
        starting=starting,
    )
