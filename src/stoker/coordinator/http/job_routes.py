"""Routes about jobs: submit, list, show, explain, cancel, requeue, priority, pin."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, BinaryIO

from fastapi import Query, Request, Response

from stoker.coordinator.http.access import Who, changes_only, owner_of, recorded
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import Ref, RouteTable, answer, body_of, done, headers_of
from stoker.coordinator.http.submission_body import read_submission, spooled
from stoker.coordinator.queue.commands import CancelJobs, PinJobs, RequeueJobs, SetPriority
from stoker.coordinator.queue.read_jobs import JobMatch
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, CodeNotAccepted, CommitMissing, Forbidden, StokerError
from stoker.core.job import JobSpec, JobState
from stoker.core.leases import Principal, Role
from stoker.core.text import one_line
from stoker.host.git import ask_git
from stoker.protocol.job_messages import MOST_SUBMISSION_BYTES, Submission, SubmissionResponse
from stoker.protocol.view_messages import (
    MOST_PER_PAGE,
    ChangeRequest,
    DoneView,
    EventPage,
    JobDetails,
    JobExplanation,
    JobListRequest,
    JobPage,
    JobsPriorityRequest,
    JobsRequest,
    Leaderboard,
    PriorityRequest,
)
from stoker.views.explanation_view import with_texts

MOST_COMMITS = 100
FRESH_S = 5.0
_GIT_S = 10.0
_PROGRAM = "command"
_SHOWN = 12
_LONGEST_SOURCE = 300


class CodeGate:
    """Refuses submissions whose code is no known commit of one repository. Thread-safe.

    The list is the last hundred commits of one branch, read again when it is older than five seconds; if git fails, the
    old list is kept. The client itself reports the commit of its code: this keeps out stale and unreviewed code by
    mistake, not on purpose. Against forged reports a worker pins trees (`stoker work --accept-code`).
    """

    def __init__(self, repository: str, branch: str, *, environment: Mapping[str, str], clock: Clock) -> None:
        """Raises `BadInput` if the commits can't be read now."""
        self._repository = repository
        self._branch = branch
        self._environment = environment
        self._clock = clock
        self._turn = threading.Lock()
        self._commits: frozenset[str] = frozenset()
        self._read_s = 0.0
        why = self._read()
        if why:
            hint = "--accept-code REPO or REPO:BRANCH, a git repository on this machine"
            raise BadInput(f"the commits of {self._shown} can't be read: {why}", hint=hint)

    def check(self, submission: Submission) -> None:
        """Refuse a submission with unknown code.

        Raises `CommitMissing` if a program has no commit, and `CodeNotAccepted` if it is unknown, or changed.
        """
        programs = [order for order in submission.jobs if order.recipe == _PROGRAM]
        if not programs:
            return
        commits = self._known()
        again = _again(submission)
        for order in programs:
            self._check(order, commits, again)

    def _check(self, order: JobSpec, commits: frozenset[str], again: str) -> None:
        base, _, changes = order.commit.partition("+")
        if not order.code_tree or not base:
            raise CommitMissing(
                f"{order.name} has no commit; this coordinator accepts only code of {self._shown}",
                hint=f"submit from a git repository, and not --in-place: git add -A && git commit && {again}",
                job=order.name,
            )
        push = f"git push {self._push_to}"
        data = {"job": order.name, "commit": order.commit}
        if changes:
            count = f"{changes} uncommitted change{'' if changes == '1' else 's'}"
            message = f"{order.name} is {base[:_SHOWN]} with {count}; this coordinator accepts only commits"
            raise CodeNotAccepted(message, hint=f"git commit -am 'what changed' && {push} && {again}", **data)
        if base not in commits:
            message = f"{order.name} is {base[:_SHOWN]}, not one of the last {MOST_COMMITS} commits of {self._shown}"
            raise CodeNotAccepted(message, hint=f"git pull --rebase && {push} && {again}", **data)

    @property
    def _shown(self) -> str:
        return f"{self._repository}:{self._branch}" if self._branch else self._repository

    @property
    def _push_to(self) -> str:
        return f"origin {self._branch}" if self._branch else "origin HEAD"

    def _known(self) -> frozenset[str]:
        with self._turn:
            if self._clock.monotonic_s() - self._read_s > FRESH_S:
                self._read()
            return self._commits

    def _read(self) -> str:
        """Read the list; return the error if that failed, and keep the old one."""
        # Also when it fails: a repository that hangs is not read by every request.
        self._read_s = self._clock.monotonic_s()
        (answered,) = ask_git(
            self._repository,
            ("rev-list", f"--max-count={MOST_COMMITS}", self._branch or "HEAD", "--"),
            environment=self._environment,
            limit_s=_GIT_S,
        )
        found = frozenset(answered.lines()) if answered.is_good else frozenset()
        if found:
            self._commits = found
            return ""
        return answered.err or "it has none"


def _again(submission: Submission) -> str:
    """Return the command that submits the same again."""
    source = one_line(submission.source, _LONGEST_SOURCE)
    if source.startswith("stoker submit"):
        return source
    return f"stoker submit {os.path.basename(source) or 'manifest.toml'}"


SUBMISSIONS_AT_ONCE = 1
"""In memory at the same time, from their complete arrival until they are answered: each takes about 150 MB."""
_LAST_ID = 2**63 - 1
_NOT_COMPLETED = (JobState.FAILED.value, JobState.CANCELLED.value)

Text = Annotated[str, Query(max_length=300)]
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]


class JobRoutes:
    """Routes about jobs."""

    def __init__(self, context: ServiceContext, code_gate: CodeGate | None = None) -> None:
        self._context = context
        self._code_gate = code_gate
        self._submissions = asyncio.Semaphore(SUBMISSIONS_AT_ONCE)
        self._dry_runs = asyncio.Semaphore(SUBMISSIONS_AT_ONCE)
        """Dry runs in memory besides these, until their forecast is made: others do not wait for that."""
        self.router = RouteTable("jobs")
        add = self.router.add
        add(
            "/v1/jobs",
            self.submit,
            methods=["POST"],
            response_model=SubmissionResponse,
            openapi_extra=body_of(Submission),
        )
        add("/v1/jobs", self.page, response_model=JobPage)
        add("/v1/jobs/{ref}", self.story, response_model=JobDetails)
        add("/v1/jobs/{ref}/explain", self.explain, response_model=JobExplanation)
        add("/v1/jobs/{ref}/events", self.events, response_model=EventPage)
        for verb, act in (
            ("cancel", self.cancel),
            ("requeue", self.requeue),
            ("priority", self.set_priority),
            ("pin", self.pin),
            ("unpin", self.unpin),
        ):
            add(f"/v1/jobs/{{ref}}/{verb}", act, methods=["POST"], response_model=DoneView)
        add("/v1/jobs/cancel", self.cancel_many, methods=["POST"], response_model=DoneView)
        add("/v1/jobs/requeue", self.requeue_many, methods=["POST"], response_model=DoneView)
        add("/v1/jobs/priority", self.set_priority_of_many, methods=["POST"], response_model=DoneView)
        add("/v1/leaderboard", self.leaderboard, response_model=Leaderboard)

    async def submit(self, request: Request, who: Who) -> Response:
        """Submit jobs, all or none."""
        context = self._context
        headers = headers_of(request.scope)
        body = spooled(request.receive, headers, MOST_SUBMISSION_BYTES, disk=context.keeping, keep=context.keep)
        async with body as file:
            try:
                return answer(await self._submit(file, who))
            except StokerError as error:
                # Its frames hold the submission, for as long as the client takes to read the response.
                error.__context__ = None
                raise error.with_traceback(None) from None

    async def _submit(self, file: BinaryIO, who: Principal) -> SubmissionResponse:
        async with self._submissions:
            submission, submitted = await self._take(file, who)
        if not submission.dry_run:
            return submitted
        # Others do not wait for its forecast. It is read again then, so that none waits in memory.
        del submission, submitted
        async with self._dry_runs:
            async with self._submissions:
                await self._context.order(file.seek, 0)
                submission, submitted = await self._take(file, who)
            return await self._context.run_forecast(self._context.views.forecast, submission, submitted)

    async def submit_checked(self, submission: Submission, who: Principal) -> SubmissionResponse:
        """Submit jobs that were made here, all or none; a dry run has their forecast."""
        async with self._submissions:
            submission, submitted = await self._judge(submission, who)
        if not submission.dry_run:
            return submitted
        async with self._dry_runs:
            return await self._context.run_forecast(self._context.views.forecast, submission, submitted)

    async def _take(self, file: BinaryIO, who: Principal) -> tuple[Submission, SubmissionResponse]:
        """Read a submission, and submit it."""
        return await self._judge(await self._context.order(read_submission, file), who)

    async def _judge(self, submission: Submission, who: Principal) -> tuple[Submission, SubmissionResponse]:
        """Submit jobs, if who asks for it may."""
        context = self._context
        if submission.hosts and not who.may(Role.OPERATE):
            hint = "leave [[hosts]] out, or submit it with the role operate"
            raise Forbidden("[[hosts]] in a manifest needs the role operate", hint=hint)
        submitter = recorded(who, submission.submitter)
        if submitter != submission.submitter:
            submission = submission.model_copy(update={"submitter": submitter})
        if self._code_gate is not None:
            await context.order(self._code_gate.check, submission)
        return submission, await context.submit(submission, only_of=changes_only(who))

    async def page(self, asked: Annotated[JobListRequest, Query()]) -> Response:
        """List jobs, newest first or in another order."""
        filters: dict[str, Any] = asked.filters()
        read = partial(self._context.reader.page, sort=asked.sort, after=asked.after, limit=asked.limit, **filters)
        return await self._context.read(lambda: answer(read(has_marks=asked.marks)))

    async def story(self, ref: Ref) -> Response:
        """Return everything about one job."""
        return answer(await self._context.read(self._context.reader.story, ref))

    async def explain(self, ref: Ref, who: Who) -> Response:
        """Explain a job's state: every machine with its reason, and where and when it should start."""
        context = self._context
        async with context.explanations.of(owner_of(who)):
            explained = await context.run_forecast(context.views.explain, ref)
        return answer(with_texts(explained, context.clock.wall_s()))

    async def events(
        self, ref: Ref, after: Annotated[int, Query(ge=0, le=_LAST_ID)] = 0, limit: Limit = 100
    ) -> Response:
        """Return a page of one job's events, oldest first."""
        events = await self._context.read(self._context.reader.events, after, limit, ref)
        return answer(EventPage(events=events, next=events[-1]["seq"] if events else after))

    async def cancel(self, ref: Ref, who: Who, asked: ChangeRequest | None = None) -> Response:
        """Cancel a job, or by a sweep's bare name all of its points."""
        jobs = tuple(one.id for one in await self._all(ref))
        return done(
            await self._context.ask(CancelJobs(jobs=jobs, by=recorded(who, _by(asked)), only_of=changes_only(who)))
        )

    async def requeue(self, ref: Ref, who: Who, asked: ChangeRequest | None = None) -> Response:
        """Start a job that has ended again; by a sweep's bare name, its points that did not complete."""
        found = await self._all(ref)
        ended = [one for one in found if one.state in _NOT_COMPLETED] if len(found) > 1 else found
        jobs = tuple(one.id for one in ended or found[:1])
        return done(
            await self._context.ask(RequeueJobs(jobs=jobs, by=recorded(who, _by(asked)), only_of=changes_only(who)))
        )

    async def set_priority(self, ref: Ref, who: Who, asked: PriorityRequest) -> Response:
        """Change a job's priority, or by a sweep's bare name that of all its points."""
        jobs = tuple(one.id for one in await self._all(ref))
        return done(
            await self._context.ask(
                SetPriority(jobs=jobs, priority=asked.priority, by=recorded(who, asked.by), only_of=changes_only(who))
            )
        )

    async def pin(self, ref: Ref, who: Who, asked: ChangeRequest | None = None) -> Response:
        """Keep a job's result whatever is pruned."""
        job = await self._id(ref)
        return done(await self._context.ask(PinJobs(jobs=(job,), by=recorded(who, _by(asked)))))

    async def unpin(self, ref: Ref, who: Who, asked: ChangeRequest | None = None) -> Response:
        """Undo `pin`."""
        job = await self._id(ref)
        return done(await self._context.ask(PinJobs(jobs=(job,), is_pinned=False, by=recorded(who, _by(asked)))))

    async def cancel_many(self, who: Who, asked: JobsRequest) -> Response:
        """Cancel jobs; those that have ended stay as they are."""
        return done(
            await self._context.ask(CancelJobs(jobs=asked.jobs, by=recorded(who, asked.by), only_of=changes_only(who)))
        )

    async def requeue_many(self, who: Who, asked: JobsRequest) -> Response:
        """Start jobs that have ended again; none of them if one is live."""
        return done(
            await self._context.ask(RequeueJobs(jobs=asked.jobs, by=recorded(who, asked.by), only_of=changes_only(who)))
        )

    async def set_priority_of_many(self, who: Who, asked: JobsPriorityRequest) -> Response:
        """Change the priority of jobs."""
        return done(
            await self._context.ask(
                SetPriority(
                    jobs=asked.jobs, priority=asked.priority, by=recorded(who, asked.by), only_of=changes_only(who)
                )
            )
        )

    async def leaderboard(
        self, metric: Text = "", recipe: Text = "", name: Text = "", limit: Limit = 20, *, live: bool = False
    ) -> Response:
        """Rank completed jobs by a metric, best first; with `live` also running ones, by what they reported last."""
        board = self._context.reader.leaderboard
        asked = self._context.read(board, metric, recipe=recipe, name=name, limit=limit, is_live=live)
        return answer(await asked)

    async def _all(self, ref: str) -> tuple[JobMatch, ...]:
        return await self._context.read(self._context.reader.find_all, ref)

    async def _id(self, ref: str) -> str:
        return (await self._context.read(self._context.reader.find, ref)).id


def _by(asked: ChangeRequest | None) -> str:
    return asked.by if asked is not None else ""
