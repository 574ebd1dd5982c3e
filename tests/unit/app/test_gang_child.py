"""A stage that wants several ranks: all of them do it together, rank 0 writes, and the first that fails decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import Cancelled
from stoker.core.retry import FailureCause
from tests.unit.app.gang_stages import SharedArgs, shared_sum
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.host.real_processes import is_running, wait_until


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One warm process, with torch, for all of them."""
    preload = ("torch", "stoker.app.gang_child", "tests.unit.app.gang_stages")
    with Lab(tmp_path_factory.mktemp("gang") / "lab", preload=preload) as lab:
        yield lab


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def test_all_ranks_do_the_work_and_rank_0_reports_it(lab: Lab, ledger: str) -> None:
    ran = lab.run(plan_of(shared_sum, SharedArgs(ledger=ledger)))
    assert ran.endings == {"shared": "ran"}, lab.log("shared")
    assert lab.value(ran, "shared") == 3
    assert [event["metrics"] for event in ran.of_kind("stage_step", "shared")] == [{"sum": 3.0}]
    log = lab.log("shared")
    assert "rank 0 of 2\n" in log
    assert "[rank 1] rank 1 of 2\n" in log
    pids = list(map(int, lines_of(ledger)))
    assert len(set(pids)) == 2
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("how", "cause", "says"),
    [
        ("raise", FailureCause.USER, "rank 1: ValueError: it is broken (gang_stages.py:"),
        ("killed", FailureCause.LOST, "rank 1 (device 1) failed in RUN"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_other_ends_with_it(
    lab: Lab, ledger: str, how: str, cause: FailureCause, says: str
) -> None:
    ran = lab.run(plan_of(shared_sum, SharedArgs(how=how, ledger=ledger)))
    assert ran["shared"].cause is cause
    assert says in ran["shared"].message
    pids = list(map(int, lines_of(ledger)))
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_a_run_that_is_cancelled_leaves_no_rank(lab: Lab, ledger: str) -> None:
    flight = lab.start(plan_of(shared_sum, SharedArgs(how="wait", ledger=ledger)))
    wait_until(lambda: Path(ledger).exists() and len(lines_of(ledger)) == 2)
    flight.executor.cancel(Cancelled("never mind"))
    ran = flight.land()
    assert ran.endings == {"shared": "cancelled"}
    assert not any(map(is_running, map(int, lines_of(ledger))))
