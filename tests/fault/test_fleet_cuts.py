"""Cut links and full disks between a coordinator and its workers: jobs are late, and done once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.queue.commands import Write
from stoker.core.errors import DatabaseTrouble, StokerError
from stoker.protocol.lease_messages import WriteResponse
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import SHA, WORDS, finish, started
from tests.fault.network import HERE, cut_link
from tests.fault.real_fleet import WAITER, RealFleet, is_in, is_terminal
from tests.system.shell import alive, wait_until
from tests.unit.host.real_mounts import small_disk

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def fleet(tmp_path: Path, recipes: Path) -> Iterator[RealFleet]:
    fleet = RealFleet(tmp_path, recipes, host=HERE)
    try:
        yield fleet
    finally:
        fleet.end()
    fleet.check()


def test_a_job_behind_a_cut_link_stops_with_its_lease_and_is_done_when_the_link_is_back(
    fleet: RealFleet, tmp_path: Path
):
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    fleet.shell.env["STOKER_OPERATOR_TOKEN"] = TOKEN
    manifest = fleet.manifest("job", WAITER)
    with cut_link() as link:
        try:
            fleet.serve("--manifest", manifest, "--token-file", token_file, before=link.here)
            worker = fleet.work("desk", before=link.there)
            fleet.wait_for("job", is_in("running"))
            wait_until(fleet.programs)
            (first,) = fleet.programs()
            link.cut()
            # Each side notices by its own clock.
            wait_until(lambda: not alive({first}))
            fleet.wait_for("job", is_in("pending"))
            assert "settled" not in worker.kinds()
            link.join()
            fleet.go()
            story = fleet.wait_for("job", is_terminal)
            endings = [attempt.ending for attempt in story.attempts]
            assert (story.job.state, endings[0], endings[-1]) == ("completed", "expired", "completed")
            assert endings.count("completed") == 1
            assert worker.process.poll() is None
        finally:
            fleet.end()


def test_a_queue_whose_disk_is_full_says_so_loses_nothing_and_goes_on_when_there_is_room(
    sqlite_template: Path, tmp_path: Path
):
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        shutil.copyfile(sqlite_template, disk / "queue.db")
        fleet = Driven(f"sqlite:///{disk / 'queue.db'}", objects={SHA: 10})
        with closing(fleet):
            grant = started(fleet)
            fill(disk / "filler")
            # What its log has room for already is still taken.
            refused = [error for number in range(100) if (error := refusal(fleet, number)) is not None]
            assert {type(error) for error in refused} == {DatabaseTrouble}
            with pytest.raises(DatabaseTrouble):
                fleet.ask(finish(grant))
            with pytest.raises(DatabaseTrouble):
                fleet.ask(Write(job=grant.job, said=WORDS["release"](grant)))
            (disk / "filler").unlink()
            assert fleet.ask(finish(grant)) == WriteResponse(job=grant.job, state="completed")
            assert fleet.queue.trouble() is None
            assert list(check_database(fleet.database, has_object=fleet.objects.get)) == []


@pytest.mark.slow
def test_a_job_that_fills_its_workers_disk_fails_visibly_and_the_worker_goes_on(tmp_path: Path, recipes: Path):
    fleet = RealFleet(tmp_path, recipes)
    with small_disk(tmp_path / "disk", "size=1500m") as disk:
        try:
            fleet.serve()
            worker = fleet.work("desk", home=disk / "home")
            fleet.submit("greedy", "dd if=/dev/zero of=$STOKER_OUT/big bs=1M count=2000", attempts=2)
            story = fleet.wait_for("greedy", is_terminal)
            assert (story.job.state, [one.ending for one in story.attempts]) == ("failed", ["failed", "failed"])
            # What it had written is gone with it, so that there is room again.
            fleet.submit("modest", "echo done > $STOKER_OUT/done")
            assert fleet.wait_for("modest", is_terminal).job.state == "completed"
            assert worker.process.poll() is None
        finally:
            fleet.end()
    fleet.check()


def fill(path: Path) -> None:
    """Write until nothing more goes in."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass


def refusal(fleet: Driven, number: int) -> StokerError | None:
    try:
        fleet.submit(order("more", number, args={"name": "more", "number": number, "threads": "x" * 20_000}))
    except StokerError as error:
        return error
    return None
