"""What `stoker submit` shows: what changes, what a job asks for, how jobs end; and who stops watching stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from stoker.api.submission import send_submission
from stoker.cli.commands import Flags
from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.submission_lines import (
    SubmitSummary,
    add_data,
    change_lines,
    counts_text,
    data_text,
    needs_text,
    order_lines,
)
from stoker.cli.submit import GRAMMAR as SUBMIT
from stoker.cli.watch import JobWatcher, ended_text, watch
from stoker.core.clock import FakeClock
from stoker.core.device import GIB
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.core.errors import Usage
from stoker.core.job import JobSpec, JobState
from stoker.core.machine import DevicePreference, Requirements
from stoker.jobs.pack.code_tree import PreparedSubmission, Shipment
from stoker.protocol.job_messages import JobSubmissionResult, SubmissionOutcome, SubmissionResponse
from stoker.protocol.transport import FleetEvent
from stoker.protocol.tree_messages import TreeView
from stoker.protocol.view_messages import JobDetails, JobPage, JobView

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient

ID = "ab" * 32


def order(number: int = 0, **more: Any) -> JobSpec:
    return JobSpec(id=f"{number:064x}", name="a", number=number, recipe="r", **more)


def answer(*outcomes: SubmissionOutcome, **more: Any) -> SubmissionResponse:
    jobs = [
        JobSubmissionResult(
            id=f"{at:064x}", name="a", number=at, outcome=outcome, state="pending", changes=("priority",)
        )
        for at, outcome in enumerate(outcomes, 1)
    ]
    return SubmissionResponse(jobs=tuple(jobs), counts={}, **more)


def view(state: JobState = JobState.RUNNING, **more: Any) -> JobView:
    given = {"priority": 0, "epoch": 1, "attempt": 1, "submitted_s": 0.0, "changed_s": 0.0, **more}
    return JobView(id=ID, name="a", recipe="r", state=str(state), **given)


@pytest.mark.parametrize(
    ("held", "machines", "text"),
    [
        ({"is_here": False}, ("desk", "lab1"), "to send, desk and lab1 copy it once"),
        ({"held_by": ("desk",)}, ("desk", "lab1"), "on desk, lab1 copies it once"),
        ({"held_by": ("desk", "lab1", "gone")}, ("desk", "lab1"), "on desk and lab1"),
        ({}, (), "on the coordinator"),
        ({}, tuple("abcdefghij"), "a, b, c, d, e, f, g, h and 2 more copy it once"),
    ],
    ids=["nowhere", "on-one", "everywhere", "nobody-known", "many"],
)
def test_of_data_it_is_told_who_has_it_and_who_copies_it(held: dict[str, Any], machines: tuple[str, ...], text: str):
    assert data_text(TreeView(tree=ID, files=1, size_bytes=1, **held), machines) == text


def test_of_several_data_each_is_called_by_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree((TreeEntry(path="a", size_bytes=9, sha256=Digest(ID)),))

    def line(*names: str) -> str:
        shipments = tuple(
            Shipment(what=name, tree=tree, digest=str(at), root="/", is_data=True) for at, name in enumerate(names)
        )
        call = CommandContext(
            Flags(), CliOutput(is_json=False, is_quiet=False), build=lambda: pytest.fail("nothing is built")
        )
        summary = SubmitSummary(call)
        client = SimpleNamespace(url="http://127.0.0.1:1")
        add_data(call, summary, PreparedSubmission(jobs=(), shipments=shipments), cast("FleetClient", client))
        summary.show()
        return capsys.readouterr().out.replace("; ", " · ")

    assert line("data") == "data 9 B: read in place\n"
    assert line("base", "data") == "base 9 B: read in place · data 9 B: read in place\n"


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [([4 << 20], ["sent", "submitted"]), ([1, 4 << 20], ["checked", "sent", "sent", "submitted"])],
)
def test_only_a_large_amount_waits_for_the_jobs_to_be_checked(sizes: list[int], steps: list[str]) -> None:
    trees = [Tree((TreeEntry("a", size, Digest("0" * 64)),)) for size in sizes]
    shipments = tuple(Shipment(what="code", tree=tree, digest=tree.digest(), root="/p") for tree in trees)
    done: list[str] = []
    client: Any = SimpleNamespace(
        url="http://fleet",
        want_tree=lambda tree, **_: TreeView(tree=tree, files=1, size_bytes=1, is_here=False),
        submit=lambda said: done.append("checked" if said.dry_run else "submitted"),
    )
    parts: Any = SimpleNamespace(entropy=lambda: 7, settings=SimpleNamespace(environment={"USER": "ada"}))
    prepared = PreparedSubmission(jobs=(), shipments=shipments)
    send_submission(client, prepared, parts, upload=lambda _: done.append("sent"))
    assert done == steps


def test_every_outcome_has_its_sign_and_its_words() -> None:
    told = answer(*SubmissionOutcome, vanished=("b",))
    lines = change_lines([order(at) for at in range(1, 6)], told, source="/x/m.toml", columns=0)
    assert [line[:5] for line in lines] == ["+ a/1", "= a/2", "~ a/3", "+ a/4", "! a/5", "- b  "]
    assert lines[1].endswith("known: pending")
    assert lines[2].endswith("changed: priority (pending)")
    assert lines[5] == "- b  not in m.toml any more; remove it: stoker cancel b"
    assert counts_text(told) == "5 jobs: 1 new, 1 known, 1 changed, 1 requeued, 1 kept"


def test_a_job_that_is_known_by_another_name_says_so() -> None:
    (job,) = answer(SubmissionOutcome.CHANGED).jobs
    told = SubmissionResponse(jobs=(job.model_copy(update={"known_as": "one", "changes": ("name",)}),), counts={})
    (line,) = change_lines([order(1)], told, source="", columns=0)
    assert line.endswith("already in the queue as one; changed: name (pending)")
    (job,) = answer(SubmissionOutcome.KNOWN).jobs
    told = SubmissionResponse(jobs=(job.model_copy(update={"known_as": "one", "changes": ()}),), counts={})
    (line,) = change_lines([order(1)], told, source="", columns=0)
    assert line.endswith("already in the queue as one: pending")
    for outcome, text in ((SubmissionOutcome.REQUEUED, "runs again: "), (SubmissionOutcome.KEPT, "kept: completed")):
        (job,) = answer(outcome).jobs
        told = SubmissionResponse(jobs=(job.model_copy(update={"known_as": "one"}),), counts={})
        (line,) = change_lines([order(1)], told, source="", columns=0)
        assert f"already in the queue as one; {text}" in line


def test_of_very_many_jobs_the_first_are_listed_and_the_rest_counted() -> None:
    jobs = [order(at) for at in range(1, 1001)]
    lines = change_lines(jobs, answer(*[SubmissionOutcome.NEW] * 1000), source="", columns=0)
    assert len(lines) == 21
    assert lines[-1] == "+ … and 980 more new"
    assert order_lines(jobs, columns=0)[-1] == "… and 980 more"


@pytest.mark.parametrize(
    ("wants", "text"),
    [
        (Requirements(ram_bytes=0), "no requirements"),
        (
            Requirements(wish=DevicePreference.REQUIRE, vram_bytes=6 * GIB, cores=2),
            "a GPU with 6.0 GiB, 4.0 GiB RAM, 2 cores",
        ),
        (Requirements(wish=DevicePreference.PREFER, device_count=2, ram_bytes=0), "2 GPUs if available"),
    ],
    ids=["nothing", "a card", "two if any"],
)
def test_what_a_job_asks_for_is_said(wants: Requirements, text: str) -> None:
    assert needs_text(order(requirements=wants)) == text


def test_an_end_says_how_long_where_and_why() -> None:
    good = view(JobState.COMPLETED, label="lr=1", started_s=1.0, ended_s=3.0, machine="desk", metrics={"loss": 0.41234})
    assert ended_text(good, JobState.COMPLETED) == "a  lr=1  2.0s  loss 0.4123  on desk"
    assert ended_text(view(JobState.FAILED, why="user: exit 3"), JobState.FAILED) == "a  failed  user: exit 3"


class Lines:
    """Stands where the coordinator's client stands: answers what a test says."""

    def __init__(self, *events: FleetEvent | BaseException | None, views: list[JobView]) -> None:
        self._events = events
        self._views = views

    def more_patient(self) -> Any:
        return self

    def events(self, *, beat_s: float) -> Iterator[FleetEvent | None]:
        for one in self._events:
            if isinstance(one, BaseException):
                raise one
            yield one

    def jobs(self, *, name: str, after: str) -> JobPage:
        return JobPage(jobs=tuple(self._views))

    def job(self, ref: str) -> JobDetails:
        return JobDetails.model_validate({"job": self._views[-1]})


class Said:
    """A call whose output is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.objects: list[dict[str, Any]] = []
        self.out: Any = self
        self.parts: Any = self
        self.clock = FakeClock()
        self.is_watched = self.is_quiet = self.is_json = self.is_terminal = self.is_unicode = False
        self.line = self.note = self.complain = self.lines.append
        self.speaks = lambda: None
        self.object = self.objects.append

    def paint(self, text: str, _colour: str) -> str:
        return text


def moved(state: JobState) -> FleetEvent:
    return FleetEvent(id=1, kind="job_finished", data={"job": ID, "name": "a", "to": str(state)})


JOB = JobSubmissionResult(id=ID, name="a", number=0, outcome=SubmissionOutcome.NEW, state="pending")


def test_watching_ends_with_the_last_job_and_its_code_says_how() -> None:
    call: Any = Said()
    client: Any = Lines(None, moved(JobState.COMPLETED), views=[view(JobState.RUNNING)])
    assert watch(call, client, [JOB]) == 0
    assert call.lines == ["+ a"]
    failed: Any = Lines(moved(JobState.FAILED), views=[view(JobState.FAILED, why="user: exit 3")])
    assert watch(call, failed, [JOB]) == 1
    assert "x a  failed  user: exit 3" in call.lines


def test_what_ended_before_anybody_listened_is_seen_by_looking() -> None:
    call: Any = Said()
    client: Any = Lines(None, views=[view(JobState.COMPLETED)])
    assert watch(call, client, [JOB]) == 0
    assert client.events(beat_s=1.0)


def test_jobs_that_had_ended_are_not_waited_for() -> None:
    ended = JobSubmissionResult(id=ID, name="a", number=0, outcome=SubmissionOutcome.KNOWN, state="completed")
    call: Any = Said()
    client: Any = Lines(AssertionError("nobody needs to listen"), views=[])
    assert watch(call, client, [ended]) == 0


def test_who_stops_watching_stops_nothing_else() -> None:
    call: Any = Said()
    client: Any = Lines(None, KeyboardInterrupt(), views=[view(JobState.RUNNING)])
    with pytest.raises(KeyboardInterrupt):
        watch(call, client, [JOB])
    assert "1 job continues" in call.lines[-1]


def test_what_runs_and_what_waits_is_told_meanwhile() -> None:
    call: Any = Said()
    running = view(JobState.RUNNING, step=5, of=10, machine="desk", metrics={"loss": 0.5})
    client: Any = Lines(None, views=[running])
    watching = JobWatcher(call, client, [JOB, JobSubmissionResult(**{**JOB.model_dump(), "id": "cd" * 32})])
    watching.follow()
    watching.close()
    assert watching.running(0.0, 0.0) == ["a  50 %  loss 0.5  on desk", "1 waiting"]


@pytest.mark.parametrize("text", ["0s", "-2h", "inf", "nan", "soon", "367d", f"{'9' * 400}h"], ids=str)
def test_a_duration_that_no_job_takes_is_refused_where_it_is_typed(text: str) -> None:
    with pytest.raises(Usage, match="--expected: "):
        SUBMIT.parse(["--expected", text, "--", "true"])


def test_a_stated_duration_is_read_in_seconds() -> None:
    assert SUBMIT.parse(["--expected", "1h30m", "--", "true"])["expected"] == 5400.0
