"""What takes long is done beside the loop: it renews leases, starts others and hears a request to stop meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InputPath, PlanBuilder, StageContext, arg, stage
from stoker.core.clock import SystemClock
from stoker.core.errors import Cancelled
from stoker.engine import result_cache
from stoker.engine.execution import dispatch
from stoker.engine.execution.stage_attempts import Attempts
from stoker.engine.types import NodeEnding
from stoker.store import trees
from tests.unit.engine.lab import Lab, plan_of
from tests.unit.engine.stages import (
    FileArgs,
    Number,
    NumberArgs,
    PaceArgs,
    number,
    process_number,
    read,
    wait_for_file,
)
from tests.unit.host.real_processes import wait_until

CLOCK = SystemClock()
ENDLESS_BYTES = 1 << 42


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeArgs:
    code: InputPath = arg(read_first=True)


@stage("test/read-first", inline=True)
def read_first(job: StageContext, args: CodeArgs) -> Number:
    """Return what its code says."""
    return job.save(Number, int(Path(args.code).read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialArgs:
    data: InputPath = arg()
    value: int = arg(0)


@stage("test/trial", inline=True)
def trial(job: StageContext, args: TrialArgs) -> Number:
    """Return its value and leave its data alone."""
    return job.save(Number, args.value)


@stage("test/fickle", inline=True, fingerprint=lambda: os.urandom(8).hex())
def fickle(job: StageContext, args: NumberArgs) -> Number:
    """Depend on something that is never the same."""
    return job.save(Number, args.value)


@stage("test/held-up", inline=True)
def held_up(job: StageContext, args: PaceArgs) -> Number:
    """Wait for a file in the engine's own process, without a limit."""
    wait_for_file(args.gate, job)
    return job.save(Number, args.value)


@stage("test/deaf", inline=True)
def deaf(job: StageContext, args: PaceArgs) -> Number:
    """Wait for a file and hear nothing."""
    while not Path(args.gate).exists():
        CLOCK.sleep(0.005)
    return job.save(Number, args.value)


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """A file that takes longer to read than any test: nothing of it lies on a disk."""
    path = tmp_path / "endless"
    path.touch()
    os.truncate(path, ENDLESS_BYTES)
    return str(path)


@pytest.fixture
def everything_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_cache, "_MOST_AT_ONCE_BYTES", -1)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_FIRST_PAUSE_S", 0.0)


class LaterClock(SystemClock):
    """Files that have just been written were written a while ago."""

    def wall_s(self) -> float:
        return super().wall_s() + 60.0


def threads_called(beginning: str) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(beginning)]


def stopped_within_s(lab: Lab, plan: object, when: str) -> float:
    flight = lab.start(plan)  # type: ignore[arg-type]
    wait_until(lambda: bool(flight.events(when)))
    flight.executor.cancel(Cancelled("somebody pressed Ctrl-C"))
    began_s = CLOCK.monotonic_s()
    ran = flight.land()
    assert isinstance(ran.result.error, Cancelled)
    return CLOCK.monotonic_s() - began_s


def test_a_run_that_reads_a_large_input_ends_within_a_second_when_it_is_told_to(
    lab: Lab, endless: str, ledger: str
) -> None:
    def stopped_s(value: int) -> float:
        builder = PlanBuilder("both")
        large = builder.start(read, FileArgs(path=InputPath(endless)))
        small = builder.start(number, NumberArgs(value=value, ledger=ledger))
        return stopped_within_s(lab, builder.finish(small, keep=(large,)), "stage_end")

    # The best of a few: other programs may hold this machine up.
    assert any(stopped_s(value) < 1.0 for value in range(3))


def test_leases_are_renewed_and_others_run_while_a_large_input_is_read(
    lab: Lab, endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = 0
    renew = lab.leases.renew_due

    def count() -> None:
        nonlocal renewals
        renewals += 1
        renew()

    monkeypatch.setattr(lab.leases, "renew_due", count)
    builder = PlanBuilder("both")
    large = builder.start(read, FileArgs(path=InputPath(endless)), id="large")
    small = builder.start(process_number, NumberArgs(value=1), id="small")
    flight = lab.start(builder.finish(large, keep=(small,)))
    wait_until(lambda: bool(flight.events("stage_end")))
    before = renewals
    wait_until(lambda: renewals > before + 2)
    flight.executor.cancel(Cancelled("enough"))
    ran = flight.land()
    assert (ran["small"].ending, ran["large"].ending) == (NodeEnding.RAN, NodeEnding.CANCELLED)


def test_people_are_told_now_and_then_how_far_reading_is(
    lab: Lab, endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_cache, "_TELL_EVERY_S", 0.0)
    flight = lab.start(plan_of(read, FileArgs(path=InputPath(endless))))
    wait_until(lambda: bool(flight.events("stage_log")))
    flight.executor.cancel(Cancelled("enough"))
    said = flight.land().of_kind("stage_log", "read")
    assert said[0]["text"].startswith("reading what it is given: ")


def test_a_large_file_that_many_nodes_are_given_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes, read_bytes = 40 << 20, 0
    data = tmp_path / "data"
    data.touch()
    os.truncate(data, size_bytes)
    heed_now = trees.heed_now

    def count(piece_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += piece_bytes
        heed_now(piece_bytes)

    monkeypatch.setattr(trees, "heed_now", count)
    builder = PlanBuilder("sweep")
    nodes = [
        builder.start(trial, TrialArgs(data=InputPath(str(data)), value=value), id=f"t{value}") for value in range(30)
    ]
    with Lab(tmp_path / "lab", clock=LaterClock()) as lab:
        ran = lab.run(builder.finish(nodes[0], keep=tuple(nodes[1:])))
    assert ran.result.ran == 30
    assert read_bytes <= size_bytes + (2 * (16 << 20))


def test_one_file_is_read_at_a_time_and_what_needs_no_reading_does_not_wait(
    lab: Lab, endless: str, tmp_path: Path
) -> None:
    others = [tmp_path / f"data{number}" for number in range(3)]
    for other in others:
        other.touch()
        os.truncate(other, ENDLESS_BYTES)
    small = tmp_path / "small"
    small.write_text("one")
    builder = PlanBuilder("sweep")
    large = [
        builder.start(trial, TrialArgs(data=InputPath(str(path))), id=f"large{number}")
        for number, path in enumerate([Path(endless), *others])
    ]
    last = builder.start(trial, TrialArgs(data=InputPath(str(small))), id="small")
    flight = lab.start(builder.finish(last, keep=tuple(large)))
    wait_until(lambda: bool(flight.events("stage_end")))
    assert [one.name for one in threads_called("read ")] == ["read large0"]
    flight.executor.cancel(Cancelled("enough"))
    assert flight.land()["small"].ending is NodeEnding.RAN
    assert threads_called("read ") == []


def test_nothing_is_read_any_more_for_a_node_that_was_cancelled_by_itself(
    lab: Lab, endless: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    builder = PlanBuilder("both")
    first, second = (
        builder.start(trial, TrialArgs(data=InputPath(endless), value=value), id=f"large{value}") for value in range(2)
    )
    other = builder.start(held_up, PaceArgs(value=1, gate=str(gate)), id="other")
    flight = lab.start(builder.finish(other, keep=(first, second)))
    wait_until(lambda: bool(flight.events("stage_begin")))
    flight.executor.cancel_nodes(["large0"])
    wait_until(lambda: [one.name for one in threads_called("read ")] == ["read large1"])
    flight.executor.cancel_nodes(["large1"])
    wait_until(lambda: not threads_called("read "))
    gate.touch()
    ran = flight.land()
    assert [ran[name].ending for name in ("large0", "large1", "other")] == [
        NodeEnding.CANCELLED,
        NodeEnding.CANCELLED,
        NodeEnding.RAN,
    ]


@pytest.mark.usefixtures("everything_takes_long")
def test_the_code_of_a_stage_is_looked_at_by_the_loop_alone(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input"
    path.write_text("one")
    asked_by: set[str] = set()
    modules_of, digest_of = lab.cache._code.modules_of, lab.cache.digest_of

    def note(module: str) -> dict[str, str]:
        asked_by.add(threading.current_thread().name)
        return modules_of(module)

    def forget_first(path: str) -> str:
        if threading.current_thread() is threading.main_thread():
            # What is known of the code is dropped before a thread begins to read.
            lab.cache.begin_run()
        return digest_of(path)

    monkeypatch.setattr(lab.cache._code, "modules_of", note)
    monkeypatch.setattr(lab.cache, "digest_of", forget_first)
    assert lab.run(plan_of(trial, TrialArgs(data=InputPath(str(path))))).result.ran == 1
    assert asked_by == {threading.main_thread().name}


@pytest.mark.usefixtures("everything_takes_long")
def test_what_was_read_beside_the_loop_decides_as_if_the_loop_had_read_it(
    lab: Lab, tmp_path: Path, ledger: str
) -> None:
    path = tmp_path / "input"
    path.write_text("one")
    plan = plan_of(read, FileArgs(path=InputPath(str(path)), ledger=ledger))
    first, again = lab.run(plan), lab.run(plan)
    assert (first.result.ran, again.result.hits) == (1, 1)
    assert lab.again().run(plan).result.hits == 1
    path.write_text("two")
    changed = lab.run(plan)
    assert changed.result.ran == 1
    assert changed["read"].key != first["read"].key


@pytest.mark.usefixtures("everything_takes_long")
def test_an_input_that_is_gone_fails_its_node_though_another_thread_found_out(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("one")
    plan = plan_of(read, FileArgs(path=InputPath(str(path))))
    path.unlink()
    ran = lab.run(plan)
    assert "input" in ran["read"].message


@pytest.mark.usefixtures("everything_takes_long")
def test_code_that_changed_before_an_attempt_began_is_decided_about_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.write_text("1")
    start = lab.leases.take

    def edit_first(*args: object) -> object:
        # The last thing before an attempt starts.
        code.write_text("22")
        return start(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lab.leases, "take", edit_first)
    ran = lab.run(plan_of(read_first, CodeArgs(code=InputPath(str(code)))))
    assert lab.value(ran, "read-first") == 22
    assert lab.run(plan_of(read_first, CodeArgs(code=InputPath(str(code))))).result.hits == 1


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("is_found_by_the_attempt", [False, True])
def test_a_node_whose_code_never_stays_the_same_fails_in_the_end(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_found_by_the_attempt: bool
) -> None:
    code = tmp_path / "code"
    code.write_text("1")
    still_begins_with = lab.cache.still_begins_with

    def edit_first(*args: Any) -> bool:
        is_loop = threading.current_thread() is threading.main_thread()
        if is_loop is not is_found_by_the_attempt:
            code.write_text(f"{code.read_text()}1")
        return still_begins_with(*args)

    monkeypatch.setattr(lab.cache, "still_begins_with", edit_first)
    ran = lab.run(plan_of(read_first, CodeArgs(code=InputPath(str(code)))))
    assert ran["read-first"].ending is NodeEnding.FAILED
    assert ran["read-first"].message == "what it reads first keeps changing before it can start"
    assert "checking it again" in ran.of_kind("stage_log", "read-first")[0]["text"]


@pytest.mark.usefixtures("no_pauses")
def test_a_stage_whose_fingerprint_is_never_the_same_fails_in_the_end(lab: Lab) -> None:
    ran = lab.run(plan_of(fickle, NumberArgs(value=1)))
    assert ran["fickle"].ending is NodeEnding.FAILED
    assert "keeps changing before it can start" in ran["fickle"].message


def test_an_inline_stage_that_takes_long_does_not_hold_up_the_loop(lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    builder = PlanBuilder("both")
    long = builder.start(held_up, PaceArgs(value=1, gate=str(gate)), id="long")
    other = builder.start(process_number, NumberArgs(value=2), id="other")
    flight = lab.start(builder.finish(long, keep=(other,)))
    wait_until(lambda: [one["node"] for one in flight.events("stage_end")] == ["other"])
    gate.touch()
    assert flight.land().result.error is None


def test_a_run_ends_within_a_second_though_an_inline_stage_takes_long(lab: Lab, tmp_path: Path) -> None:
    plan = plan_of(held_up, PaceArgs(value=1, gate=str(tmp_path / "gate")))
    assert any(stopped_within_s(lab, plan, "stage_begin") < 1.0 for _ in range(3))


def test_an_inline_stage_that_hears_nothing_is_left_behind_and_keeps_nothing(lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    flight = lab.start(plan_of(deaf, PaceArgs(value=1, gate=str(gate))), grace_s=0.1)
    wait_until(lambda: bool(flight.events("stage_begin")))
    flight.executor.cancel(Cancelled("enough"))
    ran = flight.land()
    assert ran.result.warnings == ("deaf did not stop and was left running",)
    gate.touch()
    assert lab.run(plan_of(deaf, PaceArgs(value=1, gate=str(gate)))).result.ran == 1


def test_a_thread_of_inline_stages_ends_though_all_is_closed_just_before_it_is_idle(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClosedFirst(list[Any]):
        close: Callable[[], None]

        def append(self, orders: Any) -> None:
            self.close()
            super().append(orders)

    made: list[ClosedFirst] = []
    begin = Attempts.__init__

    def begin_so(attempts: Attempts, **parts: Any) -> None:
        begin(attempts, **parts)
        attempts._idle = ClosedFirst()
        attempts._idle.close = attempts.close
        made.append(attempts._idle)

    before = set(threads_called("inline stages"))
    monkeypatch.setattr(Attempts, "__init__", begin_so)
    assert lab.run(plan_of(number, NumberArgs(value=1))).result.ran == 1
    assert made
    wait_until(lambda: set(threads_called("inline stages")) <= before)
