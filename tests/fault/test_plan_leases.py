"""One execution per key across processes, whatever happens to the process that has the lease."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from stoker.core.clock import SystemClock
from stoker.engine.key_leases import LEASE_S
from stoker.host.identity import read_row
from tests.lengths import examples
from tests.others import suspend
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.stages import PaceArgs, note, process_slow, slow
from tests.unit.host.real_processes import code_of, fork, is_running, kill_and_reap, wait_until


class Tomorrow(SystemClock):
    """A clock by which every lease of today has expired."""

    def wall_s(self) -> float:
        return super().wall_s() + 2 * LEASE_S


def running(folder: Path, ledger: str, *, gate: str = "", out: str = "") -> Callable[[], None]:
    """What one of the processes does: run the plan, write down which result it has."""

    def run() -> None:
        with Lab(folder) as lab:
            ran = lab.run(plan_of(slow, PaceArgs(value=7, gate=gate, ledger=ledger)))
            assert ran.result.error is None
            note(out, f"{ran.endings['slow']} {ran.digests['slow'][0]}")

    return run


def test_many_processes_racing_for_one_key_execute_it_once(tmp_path: Path) -> None:
    ledger, gate, out = (str(tmp_path / name) for name in ("ledger", "gate", "out"))
    count = examples(20, 50)
    waiting, hold = os.pipe()
    with Lab(tmp_path / "lab") as lab:
        # The code is read and remembered: those who race come to the lease at the same moment.
        lab.run(plan_of(slow, PaceArgs(value=1, ledger=str(tmp_path / "before"))))

    def race() -> None:
        # The pipe ends when the last of them has come this far.
        os.close(hold)
        os.read(waiting, 1)
        running(tmp_path / "lab", ledger, gate=gate, out=out)()

    pids = [fork(race) for _ in range(count)]
    os.close(hold)
    os.close(waiting)
    wait_until(lambda: len(lines_of(ledger)) >= 1)
    Path(gate).touch()
    assert [code_of(pid) for pid in pids] == [0] * count
    assert lines_of(ledger) == ["slow 7"]
    results = lines_of(out)
    assert len(results) == count
    assert len({line.split()[1] for line in results}) == 1
    assert sorted(line.split()[0] for line in results) == ["hit"] * (count - 1) + ["ran"]


def test_a_killed_owner_is_followed_at_once(tmp_path: Path) -> None:
    ledger, gate = str(tmp_path / "ledger"), str(tmp_path / "gate")
    owner = fork(running(tmp_path / "lab", ledger, gate=gate))
    wait_until(lambda: len(lines_of(ledger)) == 1)
    kill_and_reap(owner)
    with Lab(tmp_path / "lab") as lab:
        ran = lab.run(plan_of(slow, PaceArgs(value=7, ledger=ledger)))
    assert ran.endings == {"slow": "ran"}
    assert not ran.of_kind("stage_waiting")
    assert len(lines_of(ledger)) == 2


def test_an_owner_that_is_killed_while_another_waits_is_followed(tmp_path: Path) -> None:
    ledger, gate, out = (str(tmp_path / name) for name in ("ledger", "gate", "out"))
    owner = fork(running(tmp_path / "lab", ledger, gate=gate))
    wait_until(lambda: len(lines_of(ledger)) == 1)
    waiter = fork(running(tmp_path / "lab", ledger, out=out))
    journals = tmp_path / "lab"
    wait_until(lambda: any("stage_waiting" in path.read_text() for path in journals.glob("status-*.jsonl")))
    kill_and_reap(owner)
    assert code_of(waiter) == 0
    assert lines_of(out)[0].startswith("ran")


def test_an_owner_that_was_only_stopped_is_no_failure_and_publishes_nothing_twice(tmp_path: Path) -> None:
    ledger, gate, out = (str(tmp_path / name) for name in ("ledger", "gate", "out"))
    owner = fork(running(tmp_path / "lab", ledger, gate=gate, out=out))
    wait_until(lambda: len(lines_of(ledger)) == 1)
    suspend(owner)
    try:
        with Lab(tmp_path / "lab", clock=Tomorrow()) as lab:
            plan = plan_of(slow, PaceArgs(value=7, ledger=ledger))
            ran = lab.run(plan)
            assert ran.endings == {"slow": "ran"}
            record = lab.record_path(ran["slow"].key)
            before = record.read_bytes()
    finally:
        os.kill(owner, signal.SIGCONT)
    Path(gate).touch()
    assert code_of(owner) == 0
    assert lines_of(out) == [f"ran {ran.digests['slow'][0]}"]
    assert record.read_bytes() == before
    assert len(lines_of(ledger)) == 2
    assert [name for name in os.listdir(tmp_path / "lab" / "store" / "leases") if not name.startswith(".")] == []


def test_killing_a_run_leaves_none_of_its_processes(tmp_path: Path) -> None:
    ledger, gate = str(tmp_path / "ledger"), str(tmp_path / "gate")

    def run() -> None:
        with Lab(tmp_path / "lab") as lab:
            lab.run(plan_of(process_slow, PaceArgs(value=7, gate=gate, ledger=ledger)))

    owner = fork(run)
    wait_until(lambda: len(lines_of(ledger)) == 1)
    stage = int(lines_of(ledger)[0])
    row = read_row(stage)
    assert row is not None
    zygote = row.parent_pid
    kill_and_reap(owner)
    wait_until(lambda: not is_running(stage) and not is_running(zygote))
    with Lab(tmp_path / "lab") as lab:
        Path(gate).touch()
        ran = lab.run(plan_of(process_slow, PaceArgs(value=7, gate=gate, ledger=ledger)))
    assert ran.endings == {"process-slow": "ran"}
