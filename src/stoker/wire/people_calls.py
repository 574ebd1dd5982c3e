"""What people and their programs ask of a coordinator, a method for each route.

A REF is a job's name, `name/3`, the beginning of an id, or `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pydantic import BaseModel

from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.wire.asking import (
    MOST_FILE_BYTES,
    MOST_NAMED_JOBS,
    DoneView,
    EventPage,
    FileList,
    JobAsk,
    JobsAsk,
    JobsPriorityAsk,
    Leaderboard,
    MachineAsk,
    MachineList,
    PriorityAsk,
)
from stoker.wire.event_stream import FleetEvent, listen
from stoker.wire.orders import Submission, Submitted
from stoker.wire.refusals import no_coordinator_there
from stoker.wire.retaining import PruneAsk, PruneView
from stoker.wire.speaking import Query, Question, Speaker, part, parts, whole_number
from stoker.wire.submission_parts import Part, joined, parts_of
from stoker.wire.views import FleetStatus, JobExplanation, JobPage, JobStory, MachineView, ScheduleView

M = TypeVar("M", bound=BaseModel)

PAGE = 100
"""How many jobs a page has unless another number is asked for."""
SIZE_HEADER = "X-Stoker-Size"
"""Of an answer with a piece of a mirrored file: how large the file is by now."""
OVER_HEADER = "X-Stoker-Over"
"""Of the same: `1` when the attempt has ended, so that nothing will be added."""
ATTEMPT_HEADER = "X-Stoker-Attempt"
_SUBMIT_S = 300.0
_PRUNE_S = 600.0


@frozen
class FilePiece:
    """Some bytes of a mirrored file."""

    data: bytes
    offset: int
    attempt: int
    size_bytes: int
    """Of the whole file, by now."""
    is_over: bool
    """The attempt has ended: nothing will be added to it."""


class PeopleCalls:
    """The other half of a `FleetClient`."""

    _speaker: Speaker

    def submit(self, submission: Submission) -> Submitted:
        """Hand in jobs, all or none. With a key, a repeat gets the same answer; without one it is sent once.

        Very many are sent in parts (`submission_parts`), all or none of each.
        """
        sent = parts_of(submission)
        answers: list[Submitted] = []
        for one in sent:
            try:
                answers.append(self._submit(one, is_repeatable=bool(submission.key) or submission.dry_run))
            except StokerError as error:
                if answers and not submission.dry_run:
                    done, total = sum(len(answer.jobs) for answer in answers), len(submission.jobs)
                    error.add_hint(f"{done:,} of {total:,} jobs were submitted; the same again submits the rest")
                raise
        return joined(sent, answers)

    def _submit(self, sent: Part, *, is_repeatable: bool) -> Submitted:
        question = Question(
            path="/v1/jobs",
            method="POST",
            body=sent.body,
            headers={"Content-Type": "application/json"},
            is_repeatable=is_repeatable,
            waits_s=_SUBMIT_S,
        )
        submitted = self._speaker.ask(question, Submitted)
        if len(submitted.jobs) != len(sent.positions):
            raise no_coordinator_there(self._speaker.url, "it answered for other jobs than it was sent")
        return submitted

    def jobs(
        self,
        *,
        state: str = "",
        name: str = "",
        recipe: str = "",
        machine: str = "",
        after: str = "",
        limit: int = PAGE,
    ) -> JobPage:
        """Give a page of jobs, newest first; `after` is the `next` of the page before."""
        named: Query = {"state": state, "name": name, "recipe": recipe, "machine": machine}
        page = self._get("/v1/jobs", JobPage, {**named, "after": after, "limit": limit})
        if after and page.next == after:
            raise no_coordinator_there(self._speaker.url, "its list of jobs goes on where it was")
        return page

    def job(self, ref: str) -> JobStory:
        """Give everything about one job."""
        return self._get(f"/v1/jobs/{part(ref)}", JobStory)

    def explain(self, ref: str) -> JobExplanation:
        """Give why a job is where it is: every machine, with its reason."""
        return self._get(f"/v1/jobs/{part(ref)}/explain", JobExplanation)

    def job_events(self, ref: str, *, after: int = 0, limit: int = PAGE) -> EventPage:
        """Give a page of one job's events, oldest first."""
        return self._get(f"/v1/jobs/{part(ref)}/events", EventPage, {"after": after, "limit": limit})

    def events(self, after: int | None = None, *, beat_s: float = 20.0) -> Iterator[FleetEvent | None]:
        """Give every event behind one, as they happen, across restarts of the coordinator.

        Without `after` it begins with what happens now. None comes with every beat of silence, so that whoever listens
        can look at the clock. Raises `NoCoordinator` once its patience is over.
        """
        return listen(self._speaker, after, beat_s=beat_s)

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        """Give what is mirrored of a job's attempt, by default its last."""
        return self._get(f"/v1/jobs/{part(ref)}/files", FileList, {"attempt": attempt})

    def read_file(
        self,
        ref: str,
        path: str,
        *,
        attempt: int | None = None,
        offset: int = 0,
        limit: int = MOST_FILE_BYTES,
        wait_s: float = 0.0,
    ) -> FilePiece:
        """Give bytes of a mirrored file; at its end the question is held open for `wait_s` until more come."""
        query: Query = {"attempt": attempt, "offset": offset, "limit": limit, "wait_s": wait_s or None}
        where = f"/v1/jobs/{part(ref)}/files/{parts(path)}"
        reply = self._speaker.open(Question(path=where, query=query, waits_s=wait_s))
        try:
            data = bytearray()
            while piece := self._speaker.read(reply):
                data += piece
                if len(data) > limit:
                    raise no_coordinator_there(self._speaker.url, "it sent more of a file than was asked for")
        finally:
            reply.close()
        size = whole_number(reply.headers.get(SIZE_HEADER))
        return FilePiece(
            data=bytes(data),
            offset=offset,
            attempt=whole_number(reply.headers.get(ATTEMPT_HEADER)) or attempt or 0,
            size_bytes=offset + len(data) if size is None else size,
            is_over=reply.headers.get(OVER_HEADER) == "1",
        )

    def cancel(self, ref: str, *, by: str = "") -> DoneView:
        """Say that a job is no longer wanted. It is durable once this returns; that it stopped is confirmed later."""
        return self._do_to_job(ref, "cancel", JobAsk(by=by), is_repeatable=True)

    def requeue(self, ref: str, *, by: str = "") -> DoneView:
        """Start a job that has ended again."""
        return self._do_to_job(ref, "requeue", JobAsk(by=by), is_repeatable=False)

    def set_priority(self, ref: str, priority: int, *, by: str = "") -> DoneView:
        """Put a job elsewhere in the line."""
        return self._do_to_job(ref, "priority", PriorityAsk(priority=priority, by=by), is_repeatable=True)

    def cancel_jobs(self, jobs: Sequence[str], *, by: str = "") -> DoneView:
        """Cancel many, by their ids; what has ended already stands in the notes."""
        return self._do_to_jobs(jobs, "cancel", lambda some: JobsAsk(jobs=some, by=by), is_repeatable=True)

    def requeue_jobs(self, jobs: Sequence[str], *, by: str = "") -> DoneView:
        """Start many again that have ended, by their ids; none of them if one is live."""
        return self._do_to_jobs(jobs, "requeue", lambda some: JobsAsk(jobs=some, by=by), is_repeatable=False)

    def set_priority_of_jobs(self, jobs: Sequence[str], priority: int, *, by: str = "") -> DoneView:
        """Put many elsewhere in the line, by their ids."""
        return self._do_to_jobs(
            jobs, "priority", lambda some: JobsPriorityAsk(jobs=some, priority=priority, by=by), is_repeatable=True
        )

    def pin(self, ref: str, *, by: str = "") -> DoneView:
        """Keep a job's result whatever is pruned."""
        return self._do_to_job(ref, "pin", JobAsk(by=by), is_repeatable=True)

    def unpin(self, ref: str, *, by: str = "") -> DoneView:
        """Take that back."""
        return self._do_to_job(ref, "unpin", JobAsk(by=by), is_repeatable=True)

    def machines(self) -> tuple[MachineView, ...]:
        """Give every machine."""
        return self._get("/v1/machines", MachineList).machines

    def machine(self, name: str) -> MachineView:
        """Give one machine."""
        return self._get(f"/v1/machines/{part(name)}", MachineView)

    def drain(self, machine: str, asked: MachineAsk | None = None) -> DoneView:
        """Give a machine no more work; what runs there finishes."""
        return self._do_to_machine(machine, "drain", asked, is_repeatable=True)

    def cordon(self, machine: str, asked: MachineAsk | None = None) -> DoneView:
        """Give a machine, or some of its devices, no more work: it is mistrusted."""
        return self._do_to_machine(machine, "cordon", asked, is_repeatable=True)

    def pause(self, machine: str, asked: MachineAsk | None = None) -> DoneView:
        """Give a machine back to its owner: what runs there checkpoints and goes back to the queue."""
        return self._do_to_machine(machine, "pause", asked, is_repeatable=True)

    def open(self, machine: str, asked: MachineAsk | None = None) -> DoneView:
        """Let a machine, or some of its devices, have work again."""
        return self._do_to_machine(machine, "open", asked, is_repeatable=True)

    def forget(self, machine: str, asked: MachineAsk | None = None) -> DoneView:
        """Remove a machine; without a certificate, one that holds nothing and whose worker is gone, or if forced."""
        return self._do_to_machine(machine, "forget", asked, is_repeatable=False)

    def schedule(self) -> ScheduleView:
        """Return the state of the scheduler."""
        return self._get("/v1/schedule", ScheduleView)

    def status(self) -> FleetStatus:
        """Give the whole fleet in one look."""
        return self._get("/v1/status", FleetStatus)

    def leaderboard(self, metric: str = "", *, limit: int | None = None) -> Leaderboard:
        """Give completed jobs by a metric, best first; without one, by the metric that most of them have."""
        return self._get("/v1/leaderboard", Leaderboard, {"metric": metric, "limit": limit})

    def reload(self, *, dry_run: bool = False) -> DoneView:
        """Have the coordinator read its cluster file and manifest again."""
        query: Query = {"dry_run": 1 if dry_run else None}
        return self._speaker.ask(Question(path="/v1/reload", method="POST", query=query, is_repeatable=True), DoneView)

    def prune(self, asked: PruneAsk) -> PruneView:
        """Say which results and logs would go, or let them go."""
        question = Question(path="/v1/prune", method="POST", body=asked, is_repeatable=True, waits_s=_PRUNE_S)
        return self._speaker.ask(question, PruneView)

    def _get(self, path: str, kind: type[M], query: Query | None = None) -> M:
        return self._speaker.ask(Question(path=path, query=query or {}), kind)

    def _do_to_job(self, ref: str, verb: str, asked: JobAsk | PriorityAsk, *, is_repeatable: bool) -> DoneView:
        where = f"/v1/jobs/{part(ref)}/{verb}"
        return self._speaker.ask(Question(path=where, method="POST", body=asked, is_repeatable=is_repeatable), DoneView)

    def _do_to_jobs(
        self, jobs: Sequence[str], verb: str, ask: Callable[[tuple[str, ...]], BaseModel], *, is_repeatable: bool
    ) -> DoneView:
        """Ask in as few requests as may name so many."""
        done = DoneView()
        for start in range(0, len(jobs), MOST_NAMED_JOBS):
            asked = ask(tuple(jobs[start : start + MOST_NAMED_JOBS]))
            question = Question(path=f"/v1/jobs/{verb}", method="POST", body=asked, is_repeatable=is_repeatable)
            part_done = self._speaker.ask(question, DoneView)
            done = DoneView(changed=done.changed + part_done.changed, notes=done.notes + part_done.notes)
        return done

    def _do_to_machine(self, name: str, verb: str, asked: MachineAsk | None, *, is_repeatable: bool) -> DoneView:
        where, asked = f"/v1/machines/{part(name)}/{verb}", asked or MachineAsk()
        return self._speaker.ask(Question(path=where, method="POST", body=asked, is_repeatable=is_repeatable), DoneView)
