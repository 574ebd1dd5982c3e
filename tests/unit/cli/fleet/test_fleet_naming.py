"""Which job a NAME means where there are jobs of this machine and jobs of the fleet."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.api import fleet_job
from stoker.api.job_lookup import split_ref
from stoker.core.digests import digest_value
from stoker.core.errors import BadAnswer, NoCoordinator, StokerError
from stoker.core.job import JobState
from stoker.host.identity import ProcessIdentity, mine, of_pid
from stoker.jobs.job_folder import JobEnd, JobFolder
from stoker.protocol.discovery import ServeFile, withdraw
from stoker.protocol.view_messages import JobView
from tests.fakes.jobs import made_attempt
from tests.servers.coordinator import Fleet
from tests.servers.hand import Hand
from tests.unit.cli.fleet.conftest import Stoker


def _ran_here(home: Path, name: str, *, started_s: float, owner: ProcessIdentity | None = None, **options: Any) -> str:
    """Leave what a run leaves behind, and return its id. With an owner it has not ended."""
    attempt = f"20260101-000000-{name}{int(started_s)}"
    spec = made_attempt(
        attempt=attempt,
        job_id=digest_value("job", {"name": name}),
        name=name,
        recipe="command",
        args={},
        folder="/",
        started_s=started_s,
        stoker="0",
        options=options,
    )
    folder = JobFolder.begin(str(home / "runs"), spec, owner or mine())
    if owner is not None:
        return attempt
    folder.end(
        JobEnd(
            state=JobState.COMPLETED,
            ended_s=started_s + 1,
            hits=0,
            ran=1,
            failed=0,
            elapsed_s=1.0,
            exit_code=0,
            error=None,
            keys={},
            out=None,
        )
    )
    return attempt


@pytest.mark.parametrize(
    ("target", "ref"),
    [
        ("gbt", ("gbt", "")),
        ("gbt/train", ("gbt", "train")),
        ("resnet/3", ("resnet/3", "")),
        ("resnet/3/train", ("resnet/3", "train")),
        ("last/2", ("last/2", "")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_number_behind_a_name_is_a_point_and_a_word_a_stage(target, ref):
    assert split_ref(target) == ref


def test_without_a_coordinator_names_mean_jobs_of_this_machine(home, stoker: Stoker):
    _ran_here(home, "gbt", started_s=10.0)
    (told,) = stoker("jobs", "show", "gbt", "--json").objects()
    assert (told["where"], told["state"]) == ("here", "completed")


def test_of_two_jobs_of_one_name_the_newer_is_meant_and_the_other_named(fleet: Fleet, home, stoker: Stoker, submit):
    submit("gbt")
    old = _ran_here(home, "gbt", started_s=10.0)
    done = stoker("jobs", "show", "gbt", "--json", at=fleet)
    assert done.objects()[0]["where"] == "fleet"
    assert old in done.err
    assert stoker("jobs", "show", old, "--json", at=fleet).objects()[0]["where"] == "here"
    _ran_here(home, "gbt", started_s=9e9)
    done = stoker("jobs", "show", "gbt", "--json", at=fleet)
    assert done.objects()[0]["where"] == "here"
    (job,) = fleet.client().jobs().jobs
    assert job.id[:12] in done.err
    by_id = stoker("jobs", "show", job.id[:12], "--json", at=fleet)
    assert (by_id.objects()[0]["where"], by_id.err) == ("fleet", "")


def test_an_older_sweep_of_the_fleet_is_named_by_the_ids_of_all_its_points(fleet: Fleet, home, stoker: Stoker, submit):
    first, second = submit("zap/1", "zap/2")
    _ran_here(home, "zap", started_s=9e9)
    done = stoker("jobs", "show", "zap", "--json", at=fleet)
    assert done.objects()[0]["where"] == "here"
    assert f"an older sweep of the fleet has that name, too; its points by their ids: {first[:12]} (lr=1)" in done.err
    assert f"{second[:12]} (lr=2)" in done.err
    one = stoker("jobs", "show", "zap/1", at=fleet).err
    assert f"an older job of the fleet has that name, too: {first[:12]}\n" in one


def test_a_note_of_many_points_names_a_command_that_lists_them_all(fleet: Fleet, home, stoker: Stoker, submit):
    ids = submit(*(f"zap/{number}" for number in range(1, 31)))
    _ran_here(home, "zap", started_s=9e9)
    note = stoker("jobs", "show", "zap", at=fleet).err
    assert "and 25 more; `stoker jobs --all --json` lists all\n" in note
    listed = stoker("jobs", "--all", "--json", at=fleet).objects()
    assert {one["id"] for one in listed if one["where"] == "fleet"} == set(ids)


@pytest.mark.parametrize("error", [NoCoordinator("it is gone"), BadAnswer("it is odd")], ids=["gone", "odd"])
def test_a_job_of_this_machine_is_shown_though_the_points_of_an_older_sweep_cannot_be_listed(
    fleet: Fleet, home, stoker: Stoker, submit, monkeypatch: pytest.MonkeyPatch, error: StokerError
):
    def fails(*_: object) -> list[JobView]:
        raise error

    submit("zap/1", "zap/2")
    _ran_here(home, "zap", started_s=9e9)
    monkeypatch.setattr(fleet_job, "points_of", fails)
    done = stoker("jobs", "show", "zap", "--json", at=fleet)
    assert (done.code, done.objects()[0]["where"]) == (0, "here")
    assert "an older sweep of the fleet has that name, too; `stoker jobs --all --json` lists" in done.err


def test_last_is_the_newest_wherever_it_ran(fleet: Fleet, home, stoker: Stoker, submit):
    submit("resnet/1", "resnet/2")
    _ran_here(home, "gbt", started_s=10.0)
    shown = stoker("jobs", "show", "last", "--json", at=fleet)
    assert ([one["name"] for one in shown.objects()], shown.err) == (["resnet/1", "resnet/2"], "")
    assert stoker("jobs", "show", "last/1", "--json", at=fleet).objects()[0]["job"]["name"] == "resnet/1"
    _ran_here(home, "gbt", started_s=9e9)
    assert stoker("jobs", "show", "last", "--json", at=fleet).objects()[0]["name"] == "gbt"


def test_last_is_a_job_of_this_machine_though_an_attempt_for_the_fleet_began_later(
    fleet: Fleet, home, stoker: Stoker, submit
):
    (job,) = submit("gbt")
    _ran_here(home, "mine", started_s=8e9)
    _ran_here(home, "gbt", started_s=9e9, fleet={"job": job, "attempt": 1})
    assert stoker("jobs", "show", "last", "--json", at=fleet).objects()[0]["name"] == "mine"
    assert stoker("jobs", "show", "gbt", "--json", at=fleet).objects()[0]["where"] == "fleet"


@pytest.mark.parametrize(
    "words",
    [("logs", "zap"), ("explain", "zap"), ("compare", "zap"), ("get", "zap"), ("cancel", "zap/1")],
    ids=" ".join,
)
def test_a_name_that_is_not_here_is_not_called_unknown_while_the_coordinator_is_down(
    home: Path, stoker: Stoker, words: tuple[str, str]
):
    _ran_here(home, "zip", started_s=10.0)
    assert (stoker(*words).code, stoker("logs", "zip").code) == (1, 0)
    (home / "state").mkdir(exist_ok=True)
    ServeFile(url="http://127.0.0.1:1", owner=mine()).write(str(home / "state"))
    withdraw(str(home / "state"))
    done = stoker(*words)
    assert done.code == 34
    assert "there is no job 'zap' on this machine; jobs of the fleet can't be seen: the coordinator of" in done.err
    assert "did you mean 'zip'" in done.err
    assert stoker("logs", "zip").code == 0
    away = stoker(*words, at="http://127.0.0.1:1")
    assert (away.code, "no process of this user listens" in away.err) == (34, True)


def test_a_side_of_a_gate_is_a_program_if_no_job_of_that_name_can_be_seen(home: Path, stoker: Stoker):
    (home / "state").mkdir(parents=True)
    ServeFile(url="http://127.0.0.1:1", owner=mine()).write(str(home / "state"))
    withdraw(str(home / "state"))
    gate = ("gate", "--limit", "latency=off", "--warmup", "0", "--baseline", "true", "--candidate")
    done = stoker(*gate, "true")
    assert (done.code, "no metric has a limit" in done.err) == (2, True)
    assert stoker(*gate, "zap").code == 34
    assert stoker("launch").code == 2


def test_an_attempt_that_ran_here_is_not_listed_beside_its_job(fleet: Fleet, home, stoker: Stoker, submit):
    (job,) = submit("gbt")
    Hand(fleet.client()).start()
    _ran_here(home, "gbt", started_s=9e9, fleet={"job": job, "attempt": 1})
    _ran_here(home, "mine", started_s=10.0)
    listed = stoker("jobs", "--json", at=fleet).objects()
    assert [(one["name"], one["where"]) for one in listed] == [("gbt", "fleet"), ("mine", "here")]
    assert stoker("jobs", "show", "gbt", "--json", at=fleet).objects()[0]["where"] == "fleet"
    assert {one["name"] for one in stoker("jobs", "--json").objects()} == {"gbt", "mine"}


def test_jobs_of_both_stand_in_one_list_by_their_age(fleet: Fleet, home, stoker: Stoker, submit):
    _ran_here(home, "oldest", started_s=10.0)
    submit("middle")
    _ran_here(home, "newest", started_s=9e9)
    listed = stoker("jobs", at=fleet).out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["newest", "middle", "oldest"]
    here = stoker("jobs", "--machine", "here", "--json", at=fleet).objects()
    assert {one["name"] for one in here} == {"newest", "oldest"}


def test_a_job_of_this_machine_has_no_line_on_the_fleet(fleet: Fleet, home, stoker: Stoker):
    _ran_here(home, "gbt", started_s=10.0)
    done = stoker("jobs", "requeue", "gbt", at=fleet)
    assert done.code == 1
    assert "is a job of this machine" in done.err
    assert "--attempt is only for fleet jobs" in stoker("logs", "gbt", "--attempt", 1, at=fleet).err


def test_waiting_for_a_job_of_this_machine_works_the_same(home, stoker: Stoker):
    _ran_here(home, "gbt", started_s=10.0)
    done = stoker("jobs", "wait", "gbt")
    assert (done.code, done.out.startswith("gbt completed")) == (0, True)


def test_a_point_of_a_fleets_sweep_needs_its_coordinator(home: Path, stoker: Stoker):
    _ran_here(home, "mine", started_s=10.0, fleet={"attempt": 1})
    (home / "state").mkdir(exist_ok=True)
    ServeFile(url="http://127.0.0.1:1", owner=mine()).write(str(home / "state"))
    withdraw(str(home / "state"))
    gone = "the coordinator of this home (http://127.0.0.1:1) is not running"
    for words in (("logs", "mine/1"), ("explain", "mine/1")):
        done = stoker(*words)
        assert (done.code, f"mine/1 is a job of the fleet, and {gone}" in done.err) == (34, True)
    assert gone in stoker("status").err
    away = stoker("logs", "mine/1", at="http://127.0.0.1:1")
    assert (away.code, "mine/1 is a job of the fleet" in away.err) == (34, True)


@pytest.mark.parametrize("command", ["cancel", "logs", "explain", "jobs show"])
def test_a_number_that_a_sweep_of_the_fleet_does_not_have_is_answered_with_how_many_it_has(
    command: str, fleet: Fleet, home: Path, stoker: Stoker, submit
):
    first, *_ = submit("zap/1", "zap/2", "zap/3")
    for is_worker in (False, True):
        if is_worker:
            _ran_here(home, "zap", started_s=9e9, fleet={"job": first, "attempt": 1})
        done = stoker(*command.split(), "zap/9", at=fleet)
        assert (done.code, done.err.splitlines()) == (
            1,
            ["stoker: the sweep zap has 3 trials and no 9", "hint: list them: stoker jobs show zap"],
        )


def test_a_job_of_this_machine_is_meant_by_a_number_that_a_sweep_of_the_fleet_does_not_have(
    fleet: Fleet, home: Path, stoker: Stoker, submit
):
    submit("zap/1", "zap/2")
    _ran_here(home, "zap", started_s=9e9)
    assert "job zap has no trial '9'" in stoker("cancel", "zap/9", at=fleet).err
    assert "there is no job 'zip/9'" in stoker("cancel", "zip/9", at=fleet).err


def test_cancel_stops_a_job_that_runs_here_when_the_newer_one_of_the_fleet_has_ended(
    fleet: Fleet, home: Path, stoker: Stoker, submit
):
    with subprocess.Popen(["sleep", "60"]) as process:
        _ran_here(home, "gbt", started_s=10.0, owner=of_pid(process.pid))
        submit("gbt")
        assert stoker("cancel", "gbt", at=fleet).out.startswith("cancelled gbt (")
        assert process.poll() is None
        done = stoker("cancel", "gbt", at=fleet)
        assert (done.code, "cancelled gbt: stopped in its grace period" in done.out) == (0, True), done.err
