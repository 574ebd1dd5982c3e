"""`--watch` ends when nothing that is left could run on the machines that are known; and only what changed is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.cli import screens
from stoker.cli.screens import PlainScreen
from stoker.cli.watch import watch
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.job import JobState
from stoker.protocol.job_messages import JobSubmissionResult, SubmissionOutcome
from stoker.protocol.transport import FleetEvent
from stoker.protocol.view_messages import JobDetails, JobExplanation, JobPage, JobView

NAMES = ("lora", "line/1", "later")
GIVEN: dict[str, Any] = {"recipe": "command", "priority": 0, "epoch": 1, "attempt": 0}
NEEDS = "needs a cuda device, no machine has one"


def id_of(name: str) -> str:
    return f"{NAMES.index(name):064x}"


def pending(name: str) -> JobView:
    return JobView(id=id_of(name), name=name, state="pending", submitted_s=0.0, changed_s=0.0, **GIVEN)


class Coordinator:
    """Stands where the client stands; what it says of jobs is what a test says."""

    def __init__(self, clock: FakeClock, told: dict[str, dict[str, Any]], beats: int = 1) -> None:
        self._clock = clock
        self._told = told
        self._beats = beats

    def more_patient(self) -> Any:
        return self

    def events(self, *, beat_s: float) -> Iterator[FleetEvent | None]:
        for _ in range(self._beats):
            yield None
            self._clock.advance(beat_s)

    def jobs(self, *, name: str, after: str) -> JobPage:
        return JobPage(jobs=tuple(pending(one) for one in self._told if one.partition("/")[0] == name))

    def job(self, ref: str) -> JobDetails:
        return JobDetails.model_validate({"job": pending(NAMES[int(ref, 16)])})

    def explain(self, ref: str) -> JobExplanation:
        name = NAMES[int(ref, 16)]
        return JobExplanation(job=pending(name), verdict="", **self._told[name])


class Said:
    """A call whose output is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.out: Any = self
        self.parts: Any = self
        self.clock = FakeClock()
        self.is_watched = self.is_json = self.is_terminal = self.is_unicode = False
        self.is_quiet = True
        self.line = self.note = self.complain = self.lines.append
        self.speaks = lambda: None
        self.object = self.paint = lambda *_: None


def watched(told: dict[str, dict[str, Any]], beats: int = 1) -> tuple[int, list[str]]:
    call: Any = Said()
    client: Any = Coordinator(call.clock, told, beats)
    orders = [
        JobSubmissionResult(
            id=id_of(name), name=name.partition("/")[0], number=0, outcome=SubmissionOutcome.NEW, state=JobState.PENDING
        )
        for name in told
    ]
    code = watch(call, client, orders)
    return code, call.lines


NEVER = {"never": NEEDS, "machines": ({"node": "desk"},)}


def test_what_no_machine_here_could_take_is_not_waited_for() -> None:
    code, lines = watched({"lora": NEVER})
    assert code == 1
    assert lines == ["1 job waits for a machine that the fleet does not have: stoker explain lora"]


def test_who_comes_after_it_is_not_waited_for_either() -> None:
    later = {"after": {"lora": "pending"}, "machines": ({"node": "desk"},)}
    assert watched({"later": later, "lora": NEVER})[1] == [
        "2 jobs wait for a machine that the fleet does not have: stoker explain lora"
    ]


def test_who_comes_after_one_that_failed_is_not_waited_for() -> None:
    assert watched({"later": {"after": {"line/1": "failed", "line/2": "completed"}}}) == (
        1,
        ["1 job waits for a job that did not complete: stoker explain later"],
    )


@pytest.mark.parametrize(
    "other",
    [{"machines": ({"node": "desk"},)}, {"after": {"somebody": "running"}}],
    ids=["has a machine", "comes after another"],
)
def test_as_long_as_one_may_run_all_are_watched(other: dict[str, Any]) -> None:
    beats = 3
    call: Any = Said()
    seen: list[str] = []

    class Watched(Coordinator):
        def explain(self, ref: str) -> JobExplanation:
            seen.append(ref)
            return super().explain(ref)

    client: Any = Watched(call.clock, {"lora": NEVER, "line/1": other}, beats)
    orders = [
        JobSubmissionResult(
            id=id_of(name), name=name.partition("/")[0], number=0, outcome=SubmissionOutcome.NEW, state=JobState.PENDING
        )
        for name in ("lora", "line/1")
    ]
    watch(call, client, orders)
    assert len(seen) == 2 * beats, "it was asked again with every beat, to the end of the stream"


def test_a_fleet_without_a_machine_is_watched_until_one_joins_and_a_note_says_so_once() -> None:
    call: Any = Said()
    joined_s = call.clock.monotonic_s() + 100.0

    class Empty(Coordinator):
        def explain(self, ref: str) -> JobExplanation:
            self._told["lora"] = NEVER if call.clock.monotonic_s() >= joined_s else {"never": "there are no machines"}
            return super().explain(ref)

    client: Any = Empty(call.clock, {"lora": {}}, beats=1000)
    order = JobSubmissionResult(
        id=id_of("lora"), name="lora", number=0, outcome=SubmissionOutcome.NEW, state=JobState.PENDING
    )
    assert watch(call, client, [order]) == 1
    assert joined_s <= call.clock.monotonic_s() < joined_s + 10.0
    assert call.lines == [
        "note: the fleet has no machine yet; start a worker: stoker work",
        "1 job waits for a machine that the fleet does not have: stoker explain lora",
    ]


def test_only_what_changed_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HEARTBEAT_S", 0.001)
    out: Any = Said()
    beats = iter([["a 1 %", "b waits"], ["a 1 %", "b waits"], ["a 2 %", "b waits"]])
    done = threading.Event()

    def running(_now_s: float, _at_least_s: float) -> list[str]:
        lines = next(beats, None)
        if lines is None:
            done.set()
        return lines or []

    screen = PlainScreen(out, SystemClock())
    screen.begin(running)
    assert done.wait(30)
    screen.close()
    assert out.lines == ["  a 1 %", "  b waits", "  a 2 %"]
