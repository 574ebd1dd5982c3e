"""A disk that fills up at the worst moment: the right error, nothing half-kept, and a second run is fine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.authoring import PlanBuilder, StageContext, stage
from stoker.core.errors import NoSpace
from stoker.store.local_store import RecordHit
from stoker.store.prune import all_records
from tests.unit.engine.lab import Lab, plan_of
from tests.unit.engine.misbehaving import HowArgs, misbehave
from tests.unit.engine.stages import Folder, NumberArgs, blob, blob_sum, number
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import is_running


@stage("test/hoard")
def hoard(job: StageContext, args: NumberArgs) -> Folder:
    """Write until there is no more room."""
    with open(job.out / "much", "wb") as file:
        while True:
            file.write(b"y" * 65536)


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "size=4m") as made:
        yield made


def fill(disk: Path) -> None:
    """Leave not one byte."""
    with open(disk / "ballast", "ab", buffering=0) as ballast:
        block = b"x" * 65536
        while block:
            try:
                ballast.write(block)
            except OSError:
                block = block[: len(block) // 2]


def filling_at(step: str, disk: Path) -> Callable[[str], None]:
    waiting = [step]

    def on_step(name: str) -> None:
        if name in waiting:
            waiting.clear()
            fill(disk)

    return on_step


@pytest.mark.parametrize("step", ["publish", "write"])
def test_a_disk_that_fills_up_during_a_commit_is_no_space_left(disk: Path, tmp_path: Path, step: str) -> None:
    plan = PlanBuilder("full").start(blob, NumberArgs(value=1)).then(blob_sum, NumberArgs(value=2)).finish()
    with Lab(tmp_path / "lab", store=disk / "store", on_step=filling_at(step, disk)) as lab:
        ran = lab.run(plan)
        assert isinstance(ran.result.error, NoSpace)
        assert ran.result.error.exit_code == 10
        assert ran.endings == {"blob": "failed", "blob-sum": "pruned"}
        assert lab.staged() == []
        assert not list(all_records(lab.store))
        (disk / "ballast").unlink()
        again = lab.run(plan)
        assert again.result.error is None
        assert again.endings == {"blob": "ran", "blob-sum": "ran"}
        for record, _ in all_records(lab.store):
            assert isinstance(lab.store.verify_record(record.key), RecordHit)


def test_what_was_kept_before_the_disk_filled_up_is_still_a_hit(disk: Path, tmp_path: Path) -> None:
    plan = PlanBuilder("full").start(blob, NumberArgs(value=1)).then(blob_sum, NumberArgs(value=2)).finish()
    with Lab(tmp_path / "lab", store=disk / "store") as lab:
        lab.run(PlanBuilder("full").start(blob, NumberArgs(value=1)).finish())
        fill(disk)
        ran = lab.run(plan)
        assert isinstance(ran.result.error, NoSpace)
        assert ran.endings == {"blob": "hit", "blob-sum": "failed"}


def test_a_stage_that_fills_the_disk_itself_is_no_space_left(disk: Path, tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", store=disk / "store") as lab:
        fill(disk)
        (disk / "ballast").unlink()
        ran = lab.run(plan_of(hoard, NumberArgs(value=1)))
        assert isinstance(ran.result.error, NoSpace)
        assert "No space left on device" in str(ran.result.error)
        assert lab.staged() == []
        assert lab.run(plan_of(number)).result.error is None


def test_a_journal_that_has_no_room_stops_the_run_and_leaves_nothing_running(
    disk: Path, tmp_path: Path, ledger: str
) -> None:
    builder = PlanBuilder("journal")
    builder.start(misbehave, HowArgs(how="hang", ledger=ledger))
    for value in range(40):
        builder.start(number, NumberArgs(value=value), id=f"{'n' * 90}{value:02d}")
    with Lab(disk / "lab", store=tmp_path / "store") as lab:
        executor, status = lab.prepare(builder.finish())
        fill(disk)
        with pytest.raises(NoSpace):
            executor.run()
        assert len(executor._in_flight) == 0
        assert lab.staged() == []
        (disk / "ballast").unlink()
        status.close()
    assert not os.path.exists(ledger) or _is_over(ledger)


def _is_over(ledger: str) -> bool:
    return not is_running(int(Path(ledger).read_text().split()[1]))
