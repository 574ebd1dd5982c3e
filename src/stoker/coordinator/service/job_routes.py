"""Routes for people about jobs: hand in, list, look, explain, cancel, requeue, put elsewhere in the line, pin."""

from __future__ import annotations

import asyncio
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Query, Request, Response

from stoker.coordinator.queue.commands import CancelJobs, PinJobs, RequeueJobs, SetPriority
from stoker.coordinator.queue.reading.finding import Meant
from stoker.coordinator.service.answers import Ref, answer, body_of, done
from stoker.coordinator.service.bodies import spooled
from stoker.coordinator.service.code_gate import CodeGate
from stoker.coordinator.service.intake import headers_of
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.submission_reading import read_submission
from stoker.coordinator.service.who import Who, changes_only, recorded
from stoker.model.errors import StokerError
from stoker.model.fleet_errors import NotAllowed
from stoker.model.lifecycle import JobState
from stoker.model.principals import Principal, Role
from stoker.wire.asking import DoneView, EventPage, JobAsk, JobsAsk, JobsPriorityAsk, Leaderboard, PriorityAsk
from stoker.wire.orders import MOST_SUBMISSION_BYTES, Submission, Submitted
from stoker.wire.views import JobExplanation, JobPage, JobStory

SUBMISSIONS_AT_ONCE = 1
"""In memory at the same time, from when they have arrived whole until they are answered: each takes 150 MB or so."""
MOST_PER_PAGE = 1000
_LAST_ID = 2**63 - 1
_NOT_COMPLETED = (JobState.FAILED.value, JobState.CANCELLED.value)

Text = Annotated[str, Query(max_length=300)]
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]


class JobRoutes:
    """Answers them."""

    def __init__(self, office: Office, code_gate: CodeGate | None = None) -> None:
        self._office = office
        self._code_gate = code_gate
        self._submissions = asyncio.Semaphore(SUBMISSIONS_AT_ONCE)
        self._dry_runs = asyncio.Semaphore(SUBMISSIONS_AT_ONCE)
        """In memory beside these, until their forecast is made: others do not wait for that."""
        self.router = APIRouter(tags=["jobs"])
        add = self.router.add_api_route
        add("/v1/jobs", self.submit, methods=["POST"], response_model=Submitted, openapi_extra=body_of(Submission))
        add("/v1/jobs", self.page, response_model=JobPage)
        add("/v1/jobs/{ref}", self.story, response_model=JobStory)
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
        """Hand in jobs, all or none."""
        office = self._office
        headers = headers_of(request.scope)
        body = spooled(request.receive, headers, MOST_SUBMISSION_BYTES, disk=office.keeping, keep=office.keep)
        async with body as file:
            try:
                return answer(await self._submit(file, who))
            except StokerError as error:
                # Its frames hold the submission, for as long as the client takes to read the refusal.
                error.__context__ = None
                raise error.with_traceback(None) from None

    async def _submit(self, file: BinaryIO, who: Principal) -> Submitted:
        async with self._submissions:
            submission, submitted = await self._take(file, who)
        if not submission.dry_run:
            return submitted
        # Others do not wait for its forecast. It is read again when it is its turn, so that none waits in memory.
        del submission, submitted
        async with self._dry_runs:
            async with self._submissions:
                await self._office.order(file.seek, 0)
                submission, submitted = await self._take(file, who)
            return await self._office.foresee(self._office.views.forecast, submission, submitted)

    async def _take(self, file: BinaryIO, who: Principal) -> tuple[Submission, Submitted]:
        """Read a submission, and hand it in."""
        office = self._office
        submission = await office.order(read_submission, file)
        if submission.hosts and not who.may(Role.OPERATE):
            hint = "leave [[hosts]] out, or let somebody with the role operate submit it"
            raise NotAllowed("what a manifest says about machines needs the role operate", hint=hint)
        submitter = recorded(who, submission.submitter)
        if submitter != submission.submitter:
            submission = submission.model_copy(update={"submitter": submitter})
        if self._code_gate is not None:
            await office.order(self._code_gate.check, submission)
        return submission, await office.submit(submission, only_of=changes_only(who))

    async def page(
        self,
        state: Text = "",
        name: Text = "",
        recipe: Text = "",
        machine: Text = "",
        after: Text = "",
        limit: Limit = 100,
    ) -> Response:
        """List jobs, newest first."""
        reader = self._office.reader
        return answer(
            await self._office.read(
                reader.page, state=state, name=name, recipe=recipe, machine=machine, after=after, limit=limit
            )
        )

    async def story(self, ref: Ref) -> Response:
        """Give everything about one job."""
        return answer(await self._office.read(self._office.reader.story, ref))

    async def explain(self, ref: Ref) -> Response:
        """Return why a job is where it is: every machine with its reason, and where and when it should start."""
        return answer(await self._office.foresee(self._office.views.explain, ref))

    async def events(
        self, ref: Ref, after: Annotated[int, Query(ge=0, le=_LAST_ID)] = 0, limit: Limit = 100
    ) -> Response:
        """Give a page of one job's events, oldest first."""
        events = await self._office.read(self._office.reader.events, after, limit, ref)
        return answer(EventPage(events=events, next=events[-1]["seq"] if events else after))

    async def cancel(self, ref: Ref, who: Who, asked: JobAsk | None = None) -> Response:
        """Say that a job is no longer wanted, or by a sweep's bare name none of its points."""
        jobs = tuple(one.id for one in await self._all(ref))
        return done(
            await self._office.ask(CancelJobs(jobs=jobs, by=recorded(who, _by(asked)), only_of=changes_only(who)))
        )

    async def requeue(self, ref: Ref, who: Who, asked: JobAsk | None = None) -> Response:
        """Start a job that has ended again; by a sweep's bare name, its points that did not complete."""
        found = await self._all(ref)
        ended = [one for one in found if one.state in _NOT_COMPLETED] if len(found) > 1 else found
        jobs = tuple(one.id for one in ended or found[:1])
        return done(
            await self._office.ask(RequeueJobs(jobs=jobs, by=recorded(who, _by(asked)), only_of=changes_only(who)))
        )

    async def set_priority(self, ref: Ref, who: Who, asked: PriorityAsk) -> Response:
        """Put a job elsewhere in the line, or by a sweep's bare name all its points."""
        jobs = tuple(one.id for one in await self._all(ref))
        return done(
            await self._office.ask(
                SetPriority(jobs=jobs, priority=asked.priority, by=recorded(who, asked.by), only_of=changes_only(who))
            )
        )

    async def pin(self, ref: Ref, who: Who, asked: JobAsk | None = None) -> Response:
        """Keep a job's result whatever is pruned."""
        job = await self._id(ref)
        return done(await self._office.ask(PinJobs(jobs=(job,), by=recorded(who, _by(asked)))))

    async def unpin(self, ref: Ref, who: Who, asked: JobAsk | None = None) -> Response:
        """Take that back."""
        job = await self._id(ref)
        return done(await self._office.ask(PinJobs(jobs=(job,), is_pinned=False, by=recorded(who, _by(asked)))))

    async def cancel_many(self, who: Who, asked: JobsAsk) -> Response:
        """Say that jobs are no longer wanted; those that have ended stay as they are."""
        return done(
            await self._office.ask(CancelJobs(jobs=asked.jobs, by=recorded(who, asked.by), only_of=changes_only(who)))
        )

    async def requeue_many(self, who: Who, asked: JobsAsk) -> Response:
        """Start jobs that have ended again; none of them if one is live."""
        return done(
            await self._office.ask(RequeueJobs(jobs=asked.jobs, by=recorded(who, asked.by), only_of=changes_only(who)))
        )

    async def set_priority_of_many(self, who: Who, asked: JobsPriorityAsk) -> Response:
        """Put jobs elsewhere in the line."""
        return done(
            await self._office.ask(
                SetPriority(
                    jobs=asked.jobs, priority=asked.priority, by=recorded(who, asked.by), only_of=changes_only(who)
                )
            )
        )

    async def leaderboard(self, metric: Text = "", recipe: Text = "", name: Text = "", limit: Limit = 20) -> Response:
        """Rank completed jobs by a metric, best first."""
        board = self._office.reader.leaderboard
        return answer(await self._office.read(board, metric, recipe=recipe, name=name, limit=limit))

    async def _all(self, ref: str) -> tuple[Meant, ...]:
        return await self._office.read(self._office.reader.find_all, ref)

    async def _id(self, ref: str) -> str:
        return (await self._office.read(self._office.reader.find, ref)).id


def _by(asked: JobAsk | None) -> str:
    return asked.by if asked is not None else ""
