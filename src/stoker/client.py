"""The fleet from Python: `from stoker import Client`, with the verbs of the command line.

    from stoker import Client

    with Client() as fleet:
        fleet.submit("manifest.toml")
        for job in fleet.wait("resnet"):
            print(job.name, job.state, job.metrics)
        fleet.get("resnet", "results")

On no layer, like `__main__`: it joins what `app` builds with the coordinator's client. Errors are those of
`stoker.core.errors`, each with a `message`, a `hint` and a `code`. NAME is a job's name, `name/3`, the beginning of an
id, or `last`. The bare name of a sweep means all its points where a method takes several jobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from stoker.api.fleet_job import FleetJob, wait_for
from stoker.api.job import StageLogLine
from stoker.api.job_lookup import open_client
from stoker.api.pools import FleetPools, LaunchPlan
from stoker.api.submission import KnownJobs, check_environments, preview_submission, send_submission
from stoker.app import App
from stoker.core.clock import Closable
from stoker.core.job import JobSpec
from stoker.core.pool import Allocation
from stoker.jobs.pack.code_tree import PreparedSubmission
from stoker.jobs.request import JobRequest
from stoker.jobs.submission import prepare
from stoker.protocol.discovery import find_coordinator, no_coordinator_known
from stoker.protocol.job_messages import OnChangedCode, Submission, SubmissionResponse
from stoker.protocol.transport import FleetEvent
from stoker.protocol.view_messages import (
    DoneView,
    FleetStatus,
    JobDetails,
    JobExplanation,
    JobView,
    Leaderboard,
    MachineView,
)
from stoker.store.results import lay_out
from stoker.transfer.trees.tree_upload import send_tree
from stoker.views.pool_lines import PoolView

__all__ = ["Client"]

_RETRY_S = 10.0
_PAGE = 500


class Client(Closable):
    """A coordinator's client. Thread-safe. Close it, or use it in a `with`."""

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        """Find the coordinator as the command line does: `url`, STOKER_COORDINATOR, this home's, or the joined one.

        On this machine it is reached over its Unix socket, as the user who runs it, without a token. Elsewhere `token`
        is used, else STOKER_OPERATOR_TOKEN, else what joining gave. No token is sent in clear over TCP. Raises
        `NoCoordinator` if none is known; no request is sent yet.
        """
        self._parts = App.here()
        settings = self._parts.settings
        found = find_coordinator(url or "", environment=settings.environment, state=settings.state)
        if found is None:
            raise no_coordinator_known(settings.state)
        self._wire, self._transport = open_client(self._parts, found, token=token, retry_s=_RETRY_S)
        self._pools = FleetPools(self._wire, self._parts)

    @property
    def url(self) -> str:
        """Where the coordinator is."""
        return self._wire.url

    def submit(
        self,
        what: str | os.PathLike[str] | Submission | Iterable[JobSpec],
        *,
        rerun: bool = False,
        dry_run: bool = False,
    ) -> SubmissionResponse:
        """Submit a manifest by its path, or jobs. Idempotent: the same jobs again change nothing.

        Up to 5,000 jobs are accepted together or not at all. More are sent in parts of that size; if a part is refused,
        the parts before it stay submitted.

        `rerun` runs completed jobs again whose code has changed; otherwise their results are kept, and the response
        says so. `dry_run` returns what would change, and changes nothing. Raises `InvalidManifest` with every fault.
        Code and data of a manifest's jobs are sent before the jobs.
        """
        if isinstance(what, Submission):
            return self._wire.submit(what)
        prepared, parts = check_environments(self._wire, self._prepared(what)), self._parts
        changed_code = OnChangedCode.RERUN if rerun else OnChangedCode.KEEP
        if dry_run:
            return preview_submission(self._wire, prepared, parts, changed_code)
        return send_submission(
            self._wire,
            prepared,
            parts,
            upload=lambda one: send_tree(self._wire, one.tree, one.source(parts.store)),
            on_changed_code=changed_code,
        )

    def jobs(
        self, *, state: str = "", name: str = "", recipe: str = "", machine: str = "", limit: int | None = None
    ) -> Iterator[JobView]:
        """Return jobs, the newest first, fetched page by page as they are taken. `state` may be several: `a,b`."""
        after, left = "", limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            page = self._wire.jobs(state=state, name=name, recipe=recipe, machine=machine, after=after, limit=size)
            yield from page.jobs
            left = None if left is None else left - len(page.jobs)
            after = page.next
            if not after:
                return

    def job(self, name: str) -> JobDetails:
        """Return everything about one job."""
        return self._wire.job(name)

    def wait(self, name: str, timeout_s: float | None = None) -> list[JobView]:
        """Wait until a job, or every point of a sweep, has ended, and return them. Raises `TimeoutError`.

        A failed job is no error here: read its `state`.
        """
        points = self._job(name).points()
        ended = wait_for(self._wire, points, clock=self._parts.clock, limit_s=timeout_s)
        if len(ended) < len(points):
            message = f"{len(points) - len(ended)} of {len(points)} jobs of {name} had not ended after {timeout_s} s"
            raise TimeoutError(message)
        return [ended[point.id] for point in points]

    def logs(self, name: str, *, follow: bool = False, attempt: int | None = None) -> Iterator[str]:
        """Return a job's output line by line; with `follow` until it ends, across attempts and machines.

        Of a sweep, the output of every point. `attempt` needs one point: else it raises `Usage`.
        """
        lines = self._job(name).logs(attempt=attempt, follow=follow)
        return (one.text for one in lines if isinstance(one, StageLogLine))

    def explain(self, name: str) -> JobExplanation:
        """Return why a job is in its state: each machine and device with its reason, and what would change it."""
        return self._wire.explain(name)

    def cancel(self, name: str, *, wait: bool = False) -> list[JobView]:
        """Cancel a job, or every point of a sweep that has not ended; with `wait`, block until each has stopped.

        The request is durable when this returns. Return the jobs that had not ended; raise `InvalidTransition` if all
        have.
        """
        live = self._job(name).cancel(waits=False)
        if not wait:
            now = {point.id: point for point in self._job(name).points()}
            return [now.get(point.id, point) for point in live]
        ended = wait_for(self._wire, live, clock=self._parts.clock)
        return [ended[point.id] for point in live]

    def requeue(self, name: str) -> DoneView:
        """Start a job again that has ended; of a sweep, every point that failed or was cancelled.

        Raise `InvalidTransition` if there is none.
        """
        return self._job(name).requeue()[1]

    def priority(self, name: str, priority: int) -> DoneView:
        """Set the priority of a job, or of every point of a sweep that has not ended: higher starts first.

        Raise `InvalidTransition` if all have ended.
        """
        return self._job(name).set_priority(priority)[1]

    def machines(self) -> tuple[MachineView, ...]:
        """Return every machine of the fleet."""
        return self._wire.machines()

    def pools(self) -> list[PoolView]:
        """Return every pool with its state and its allocations: those that live, and those of the last 24 hours."""
        return self._pools.list()

    def pool(self, name: str) -> PoolView:
        """Return one pool. Raises `NotFound`."""
        return self._pools.list((name,))[0]

    def pause_pool(self, name: str, why: str = "") -> DoneView:
        """Start no more workers of a pool. Those that run stay."""
        return self._pools.pause(name, why)

    def resume_pool(self, name: str) -> DoneView:
        """Start workers of a paused pool again. What paused it no longer counts."""
        return self._pools.resume(name)

    def stop_pool(self, name: str, *ids: str) -> DoneView:
        """Stop allocations of a pool: all, or those named. Their jobs save a checkpoint and return to the queue."""
        return self._pools.stop(name, ids)

    def plan_launch(self, *names: str, count: int | None = None) -> LaunchPlan:
        """Return what `launch` would request now, and why no more. Without names: of all pools."""
        return self._pools.plan(names, count)

    def launch(self, name: str, *, count: int | None = None) -> tuple[Allocation, ...]:
        """Request workers of a pool now: as many as waiting jobs need, or `count`.

        The pool's watcher starts them; if there is none, this process does. Return the allocations; none if no waiting
        job needs a machine. Raises `LaunchRefused` with the backend's words, `LaunchDoubtful` if its answer was lost,
        `NoBackend` if it is not reached.
        """
        made = self._pools.launch(name, count)
        made.require_submitted()
        return made.allocations

    def status(self) -> FleetStatus:
        """Return the state of the whole fleet."""
        return self._wire.status()

    def leaderboard(self, metric: str = "", *, limit: int = 20, is_live: bool = False) -> Leaderboard:
        """Return completed jobs ranked by a metric, best first; with `is_live` also running ones."""
        return self._wire.leaderboard(metric, limit=limit, is_live=is_live)

    def get(self, name: str, folder: str | os.PathLike[str]) -> list[str]:
        """Download a job's result into a folder as plain files, verified, and return their paths.

        Of a sweep, every completed point gets a folder of its own, named by its label. Raise `NotFound` if there is no
        result, `Refused` if no point has completed.
        """
        files: list[str] = []
        for result in self._job(name).results().found:
            into = os.path.abspath(os.path.join(folder, result.folder))
            laid_out = lay_out(self._parts.store, result.fetch(lambda _size_bytes: None), into)
            files += [os.path.join(laid_out.folder, file) for file in laid_out.files]
        return files

    def events(self, after: int | None = None) -> Iterator[FleetEvent]:
        """Return events of the fleet as they occur; `after` an event's id, those after it first."""
        return (event for event in self._wire.more_patient().events(after) if event is not None)

    def close(self) -> None:
        """Close its connections."""
        self._transport.close()
        self._parts.close()

    def _prepared(self, what: str | os.PathLike[str] | Iterable[JobSpec]) -> PreparedSubmission:
        if not isinstance(what, str | os.PathLike):
            return PreparedSubmission(jobs=tuple(what))
        request = JobRequest(target=os.fspath(what), is_manifest=True)
        parts = self._parts
        return prepare(request, builder=parts.builder(), code=parts.code, known_jobs=KnownJobs(self._wire))

    def _job(self, name: str) -> FleetJob:
        return FleetJob(self._wire, name, self._wire.job(name), self._parts)
