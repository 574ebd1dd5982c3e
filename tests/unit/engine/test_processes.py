"""Stages in processes of their own: what they may do to us, which is nothing, and that none of them outlives a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.authoring import PlanBuilder, Stage, StageContext, stage
from stoker.core.device import Capacity, Needs
from stoker.core.errors import Cancelled, OutOfMemory, ProcessLost, StageDiverged, StageTimeout
from stoker.core.retry import FailureCause
from stoker.devices.admission import MachineMemory
from stoker.engine.plan import Plan
from tests.unit.engine.lab import Lab, containment, lines_of, plan_of
from tests.unit.engine.misbehaving import ALWAYS, TRANSIENT, HowArgs, misbehave, small_vandal, vandal
from tests.unit.engine.stages import (
    Number,
    NumberArgs,
    PaceArgs,
    Words,
    blob,
    double,
    number,
    process_number,
    process_slow,
    process_sum,
)
from tests.unit.host.real_processes import is_running, wait_until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One warm process for all tests that leave it as it was."""
    with Lab(tmp_path_factory.mktemp("shared") / "lab", preload=("tests.unit.engine.misbehaving",)) as lab:
        yield lab


def going(how: str, **args: object) -> Plan:
    return plan_of(misbehave, HowArgs(how=how, **args))  # type: ignore[arg-type]


def test_a_stage_runs_in_a_process_of_its_own(shared: Lab, ledger: str) -> None:
    builder = PlanBuilder("p")
    tips = [builder.start(process_number, NumberArgs(value=value, ledger=ledger)) for value in (1, 2)]
    ran = shared.run(
        builder.add(process_sum, NumberArgs(value=10, ledger=ledger), feeds=[(None, tip) for tip in tips]).finish()
    )
    assert shared.value(ran, "process-sum") == 13
    pids = set(map(int, lines_of(ledger)))
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert not any(is_running(pid) for pid in pids)
    assert [event["metrics"] for event in ran.of_kind("stage_step", "process-number")] == [{"value": 1.0}]
    assert ran.of_kind("stage_end", "process-sum")[0]["peak_rss_bytes"] > 0
    assert shared.staged() == []


@pytest.mark.parametrize(
    ("how", "cause", "says"),
    [
        ("raise", FailureCause.USER, "ValueError: it is broken (misbehaving.py:"),
        ("refuse", FailureCause.INPUT, "the table has no rows"),
        ("exit", FailureCause.USER, "SystemExit: 3"),
        ("os_exit", FailureCause.LOST, "its process ended without an answer: exit status 7"),
        ("segfault", FailureCause.LOST, "its process ended without an answer: signal 11 (SIGSEGV)"),
        ("killed", FailureCause.LOST, "its process ended without an answer: signal 9 (SIGKILL)"),
        ("memory", FailureCause.OOM_HOST, "MemoryError"),
        ("wrong_file", FailureCause.VALIDATION, "expected the single file value.json, found other.txt, value.json"),
        ("wrong_thing", FailureCause.VALIDATION, "it returned 42"),
        (
            "link_out",
            FailureCause.VALIDATION,
            "its result can't be stored: value.json: symlink leads out of the folder",
        ),
        ("diverge", FailureCause.DIVERGED, "loss is nan at step 2"),
        ("full_disk", FailureCause.IO, "No space left"),
    ],
)
def test_whatever_it_does_is_a_failure_with_a_cause(shared: Lab, how: str, cause: FailureCause, says: str) -> None:
    ran = shared.run(going(how))
    assert ran["misbehave"].cause is cause
    assert says in ran["misbehave"].message
    assert shared.staged() == []
    good = shared.run(going("good", value=hash(how) % 1000), rerun=frozenset({"misbehave"}))
    assert good.result.error is None


def test_a_silent_death_is_a_lost_process_and_may_be_tried_again(shared: Lab) -> None:
    ran = shared.run(plan_of(misbehave, HowArgs(how="os_exit"), retry=TRANSIENT))
    assert isinstance(ran.result.error, ProcessLost)
    assert len(ran.of_kind("stage_retrying")) == 2


def test_a_kill_for_memory_is_hinted_at(shared: Lab) -> None:
    error = shared.run(going("killed")).result.error
    assert error is not None
    assert "memory" in error.hint


@pytest.mark.timing
@pytest.mark.parametrize("goes_on", [False, True])
def test_one_whose_child_was_killed_for_memory_has_failed_whatever_it_does_next(tmp_path: Path, goes_on: bool) -> None:
    if containment().mechanism not in ("cgroup1", "cgroup2", "systemd"):
        pytest.skip("nobody is killed by the kernel")
    with Lab(tmp_path / "lab") as lab:
        lab.memory = MachineMemory(total_bytes=200 * 2**20, available_bytes=200 * 2**20)
        ran = lab.run(going("eat_in_a_child", value=int(goes_on)))
        assert isinstance(ran.result.error, OutOfMemory)
        who = "it" if goes_on else "a process of it"
        assert ran["misbehave"].message == f"out of memory: {who} was killed at its cap of 180.0 MiB"
        assert lab.staged() == []


def test_its_traceback_is_in_its_log(shared: Lab) -> None:
    shared.run(going("raise"))
    assert "ValueError: it is broken" in shared.log("misbehave")
    assert "Traceback" in shared.log("misbehave")


def test_whatever_it_prints_goes_to_its_log(shared: Lab) -> None:
    ran = shared.run(going("talk", value=1))
    assert ran.result.error is None
    log = shared.log("misbehave")
    assert log.count("x" * 1000) == 2000
    assert log.count("y" * 100) == 2000
    assert "the end" in log


def test_steps_come_through_however_many(shared: Lab) -> None:
    ran = shared.run(going("many_steps", value=2))
    steps = ran.of_kind("stage_step")
    dropped = sum(event["n"] for event in ran.of_kind("step_gap"))
    assert len(steps) + dropped == 20_000
    assert steps[-1]["step"] == 19_999
    assert ran.of_kind("stage_end")


@pytest.mark.parametrize("how", ["grandchild", "daemon"])
def test_what_it_starts_does_not_outlive_it(shared: Lab, ledger: str, how: str) -> None:
    ran = shared.run(going(how, value=3, ledger=ledger))
    assert ran.result.error is None
    grandchild = int(lines_of(ledger)[0].split()[1])
    wait_until(lambda: not is_running(grandchild))


def test_a_stage_that_writes_beside_its_folder_gets_nothing_kept(shared: Lab) -> None:
    ran = shared.run(going("elsewhere", value=4))
    assert ran.result.error is None
    product = ran["misbehave"].products[0]
    assert [entry.path for entry in product.record.tree.entries] == ["value.json"]
    Path(shared.store.places.staging, "beside.txt").unlink(missing_ok=True)


@pytest.mark.parametrize(("producer", "breaker"), [(blob, vandal), (number, small_vandal)])
def test_a_stage_that_changes_its_input_fails_and_the_input_is_made_again(
    lab: Lab, producer: Stage, breaker: Stage
) -> None:
    plan = PlanBuilder("v").start(producer, NumberArgs(value=5)).then(breaker).finish()
    name = breaker.name.removeprefix("test/")
    ran = lab.run(plan)
    assert ran[name].cause is FailureCause.VALIDATION
    assert ran[name].message == "it changed its input (value.json)"
    with lab.again() as later:
        again = later.run(PlanBuilder("v").start(producer, NumberArgs(value=5)).finish())
        assert again.digests == {producer.name.removeprefix("test/"): ran.digests[producer.name.removeprefix("test/")]}
        product = again[producer.name.removeprefix("test/")].products[0]
        assert later.store.read_bytes(product.record, "value.json").startswith(b"[5" if producer is blob else b"5")


# --- time-outs -----------------------------------------------------------------------------------


def test_a_stage_past_its_limit_is_asked_and_cleans_up(shared: Lab, ledger: str) -> None:
    ran = shared.run(plan_of(misbehave, HowArgs(how="hang", ledger=ledger), timeout_s=1.0), grace_s=10.0)
    assert isinstance(ran.result.error, StageTimeout)
    assert lines_of(ledger)[1] == "cleaned up"
    assert not is_running(int(lines_of(ledger)[0].split()[1]))


def test_a_stage_that_ignores_being_asked_is_killed(shared: Lab, ledger: str) -> None:
    ran = shared.run(plan_of(misbehave, HowArgs(how="stubborn", ledger=ledger), timeout_s=1.0), grace_s=0.2)
    assert isinstance(ran.result.error, StageTimeout)
    assert not is_running(int(lines_of(ledger)[0].split()[1]))
    assert ran.result.warnings == ()
    assert shared.staged() == []


@pytest.mark.timing
def test_a_stage_that_catches_everything_still_hears_of_it(shared: Lab, ledger: str) -> None:
    ran = shared.run(plan_of(misbehave, HowArgs(how="catch_all", ledger=ledger), timeout_s=0.3), grace_s=20.0)
    assert isinstance(ran.result.error, StageTimeout)
    assert ran.result.elapsed_s < 15


# --- cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hang", "stubborn", "catch_all"])
def test_a_run_is_cancelled_during_a_stage(shared: Lab, ledger: str, how: str) -> None:
    plan = PlanBuilder("c").start(misbehave, HowArgs(how=how, ledger=ledger)).then(double).finish()
    flight = shared.start(plan, grace_s=0.2)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    flight.executor.cancel(Cancelled("Ctrl-C"))
    ran = flight.land()
    assert ran.endings == {"misbehave": "cancelled", "double": "cancelled"}
    assert str(ran.result.error) == "Ctrl-C"
    assert not is_running(int(lines_of(ledger)[0].split()[1]))
    assert shared.staged() == []


def test_what_a_process_finishes_after_a_cancel_is_thrown_away(shared: Lab, ledger: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    plan = going("finish_late", ledger=ledger, gate=str(gate), value=77)
    key = shared.cache.action(plan.nodes[0], {}).key()
    flight = shared.start(plan, grace_s=20.0)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    flight.executor.cancel(Cancelled("Ctrl-C"))
    wait_until(lambda: flight.was_asked_to_stop("misbehave"))
    gate.touch()
    assert flight.land().endings == {"misbehave": "cancelled"}
    assert not shared.record_path(key).exists()


def test_a_stage_that_somebody_else_ends_has_failed(shared: Lab, ledger: str) -> None:
    flight = shared.start(going("hang", ledger=ledger))
    wait_until(lambda: len(lines_of(ledger)) == 1)
    os.kill(int(lines_of(ledger)[0].split()[1]), signal.SIGTERM)
    ran = flight.land()
    assert ran.endings == {"misbehave": "failed"}
    assert ran["misbehave"].cause is FailureCause.CANCELLED


def test_the_first_failure_waits_until_the_others_have_cleaned_up(shared: Lab, ledger: str) -> None:
    builder = PlanBuilder("fail")
    builder.start(misbehave, HowArgs(how="hang", ledger=ledger), id="hangs")
    gate = f"{ledger}-gate"
    builder.start(process_slow, PaceArgs(value=1, gate=gate), id="slow").then(_breaks, id="breaks")
    flight = shared.start(builder.finish(), grace_s=20.0)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    Path(gate).touch()
    ran = flight.land()
    assert ran.endings == {"hangs": "cancelled", "slow": "ran", "breaks": "failed"}
    assert lines_of(ledger)[1] == "cleaned up"
    assert str(ran.result.error).startswith("breaks: ")


@stage("test/breaks")
def _breaks(job: StageContext, number: Number) -> Number:
    message = f"{number.load()} is too small"
    raise ValueError(message)


def test_divergence_in_a_process_prunes_its_branch_only(shared: Lab) -> None:
    builder = PlanBuilder("diverge")
    builder.start(misbehave, HowArgs(how="diverge"), id="bad").then(double, id="below")
    builder.start(process_number, NumberArgs(value=55), id="good").then(double, NumberArgs(value=1), id="after")
    ran = shared.run(builder.finish())
    assert ran.endings == {"bad": "diverged", "below": "pruned", "good": "ran", "after": "ran"}
    assert isinstance(ran.result.error, StageDiverged)


# --- devices, and the warm process ---------------------------------------------------------------


@stage("test/devices", needs=Needs(gpu=2))
def devices(job: StageContext) -> Words:
    return job.save(Words, f"{os.environ['CUDA_VISIBLE_DEVICES']} {','.join(job.devices)}")


@stage("test/no-devices")
def no_devices(job: StageContext) -> Words:
    return job.save(Words, f"<{os.environ['CUDA_VISIBLE_DEVICES']}>")


def test_a_process_sees_the_devices_it_was_given_and_no_others(tmp_path: Path) -> None:
    builder = PlanBuilder("gpu")
    builder.start(devices)
    builder.start(no_devices)
    with Lab(tmp_path / "lab", capacity=Capacity(cpu=2), devices=("GPU-1", "GPU-2", "GPU-3")) as lab:
        ran = lab.run(builder.finish())
        (seen,) = ran["devices"].products
        assert lab.store.read_bytes(seen.record, "value.txt") == b"GPU-1,GPU-2 GPU-1,GPU-2"
        (nothing,) = ran["no-devices"].products
        assert lab.store.read_bytes(nothing.record, "value.txt") == b"<>"


def test_a_killed_warm_process_fails_what_ran_in_it_and_nothing_is_left(tmp_path: Path, ledger: str) -> None:
    with Lab(tmp_path / "lab", preload=("tests.unit.engine.misbehaving",)) as lab:
        flight = lab.start(going("hang", ledger=ledger))
        wait_until(lambda: len(lines_of(ledger)) == 1)
        zygote = lab.processes._zygote
        assert zygote is not None
        os.kill(zygote.pid, signal.SIGKILL)
        ran = flight.land()
        assert ran["misbehave"].cause is FailureCause.LOST
        assert not is_running(int(lines_of(ledger)[0].split()[1]))
        assert lab.staged() == []


def test_a_stage_whose_module_cant_be_imported_there_says_so(shared: Lab) -> None:
    @stage("test/local")
    def local(job: StageContext) -> Number:
        return job.save(Number, 1)

    ran = shared.run(plan_of(local), keep_going=True)
    assert ran["local"].cause is FailureCause.USER
    assert "local" in ran["local"].message


@pytest.mark.timing
def test_a_run_may_be_cancelled_while_the_warm_process_still_imports(tmp_path: Path, ledger: str) -> None:
    with Lab(tmp_path / "lab", preload=("tests.unit.engine.slow_import",)) as lab:
        flight = lab.start(going("good", ledger=ledger), grace_s=0.1)
        wait_until(lambda: lab.processes._zygote is not None)
        flight.executor.cancel(Cancelled("Ctrl-C"))
        ran = flight.land()
        assert ran.endings == {"misbehave": "cancelled"}
        assert ran.result.elapsed_s < 10
        assert lines_of(ledger) == []


def test_attempts_are_counted_in_the_process_too(shared: Lab, ledger: str) -> None:
    ran = shared.run(plan_of(_third_time, NumberArgs(value=1, ledger=ledger), retry=ALWAYS))
    assert ran.result.error is None
    assert shared.value(ran, "third-time") == 3


@stage("test/third-time")
def _third_time(job: StageContext, args: NumberArgs) -> Number:
    if job.attempt < 3:
        os._exit(1)
    return job.save(Number, job.attempt)
