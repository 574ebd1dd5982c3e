from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import Digest
from stoker.core.errors import Ambiguous, LocalFile, NotFound
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.core.jsontext import dumps, loads
from stoker.host.identity import ProcessIdentity, mine, of_pid, surroundings
from stoker.jobs.job_folder import Attempt, JobEnd, JobFolder, find_job, job_folders
from tests.fakes.jobs import made_attempt
from tests.unit.host.real_processes import fork, kill_and_reap
from tests.unit.host.waiting import at_once


def spec(attempt: str, **more: Any) -> Attempt:
    body: dict[str, Any] = {
        "attempt": attempt,
        "job_id": Digest("ab" * 32),
        "name": "gbt",
        "recipe": "tabular/gbt",
        "args": {"lr": 0.1, "odd": float("inf")},
        "folder": "/somewhere",
        "started_s": 5.5,
        "stoker": "1.0",
    }
    return made_attempt(**{**body, **more})


def end(**more: Any) -> JobEnd:
    body: dict[str, Any] = {
        "state": JobState.COMPLETED,
        "ended_s": 9.0,
        "hits": 1,
        "ran": 2,
        "failed": 0,
        "elapsed_s": 3.5,
        "exit_code": 0,
        "error": None,
        "keys": {"a": "0" * 64},
        "out": None,
    }
    return JobEnd(**{**body, **more})


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def begin(runs: str, attempt: str, **more: Any) -> JobFolder:
    return JobFolder.begin(runs, spec(attempt, **more), mine())


def test_what_was_wanted_is_read_back(runs: str) -> None:
    folder = begin(runs, "20261115-031502-7f3a", options={"rerun": ["a"]})
    assert JobFolder(folder.path).begun() == spec("20261115-031502-7f3a", options={"rerun": ["a"]})
    assert folder.attempt == "20261115-031502-7f3a"
    assert folder.owner() == mine()
    assert os.path.isdir(folder.log_folder)


def test_the_whole_job_is_read_back(runs: str) -> None:
    attempt = spec("20261115-031502-7f3a")
    whole = changed(
        attempt, spec=changed(attempt.spec, number=2, label="lr=0.1", point={"lr": 0.1}, after=("prep",), timeout_s=5.0)
    )
    folder = JobFolder.begin(runs, whole, mine())
    assert JobFolder(folder.path).begun() == whole


def test_a_job_of_an_earlier_version_has_the_five_fields_that_it_wrote(runs: str) -> None:
    folder = begin(runs, "20261115-031502-7f3a")
    path = Path(folder.path, "job.json")
    body = loads(path.read_bytes())
    assert {"v", "attempt", "job_id", "name", "recipe", "args", "folder", "started_s", "stoker", "options"} <= set(body)
    del body["spec"]
    path.write_text(dumps(body))
    assert folder.begun() == spec("20261115-031502-7f3a")


def test_how_it_ended_is_read_back(runs: str) -> None:
    folder = begin(runs, "20261115-031502-7f3a")
    assert folder.ended() is None
    folder.end(end())
    assert JobFolder(folder.path).ended() == end()
    assert folder.state() == (JobState.COMPLETED, "")


def test_a_job_whose_process_lives_is_running(runs: str) -> None:
    assert begin(runs, "20261115-031502-7f3a").state() == (JobState.RUNNING, "")


def test_a_job_whose_process_is_gone_has_failed(runs: str) -> None:
    folder = JobFolder.begin(runs, spec("20261115-031502-7f3a"), _dead())
    assert folder.state() == (JobState.FAILED, "its process is gone")


def _dead() -> ProcessIdentity:
    pid = fork(lambda: os.read(os.pipe()[0], 1))
    identity = of_pid(pid)
    kill_and_reap(pid)
    assert identity is not None
    return identity


def test_a_job_of_another_host_is_believed(runs: str) -> None:
    elsewhere = ProcessIdentity(pid=7, start_ticks=1, boot_id="b", host="elsewhere")
    assert JobFolder.begin(runs, spec("20261115-031502-7f3a"), elsewhere).state() == (JobState.RUNNING, "")


def test_an_attempt_has_a_folder_of_its_own(runs: str) -> None:
    begin(runs, "20261115-031502-7f3a")
    with pytest.raises(LocalFile):
        begin(runs, "20261115-031502-7f3a")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"attempt": 1}', '{"v": NaN}'])
def test_a_damaged_job_is_told(runs: str, text: str) -> None:
    folder = begin(runs, "20261115-031502-7f3a")
    Path(folder.path, "job.json").write_text(text)
    with pytest.raises(NotFound):
        folder.spec()
    for name in ("end.json", "owner.json"):
        Path(folder.path, name).write_text(text)
    assert folder.ended() is None
    assert folder.owner() is None
    assert folder.state()[0] is JobState.FAILED


def test_jobs_are_listed_newest_first(runs: str) -> None:
    for attempt in ("20261115-031502-0001", "20261116-000000-0002", "20251231-235959-0003"):
        begin(runs, attempt)
    os.mkdir(f"{runs}/not-a-job")
    listed = [folder.attempt for folder in job_folders(runs)]
    assert listed == ["20261116-000000-0002", "20261115-031502-0001", "20251231-235959-0003"]
    assert list(job_folders(f"{runs}-none")) == []


def test_a_job_is_found_by_what_people_call_it(runs: str) -> None:
    begin(runs, "20261115-031502-0001", job_id=Digest("cd" * 32))
    begin(runs, "20261116-031502-0002")
    begin(runs, "20261117-031502-0003", name="knn", job_id=Digest("ef" * 32))
    assert find_job(runs, "last").attempt == "20261117-031502-0003"
    assert find_job(runs, "gbt").attempt == "20261116-031502-0002"
    assert find_job(runs, "20261115").attempt == "20261115-031502-0001"
    assert find_job(runs, "0003").attempt == "20261117-031502-0003"
    assert find_job(runs, "cdcd").attempt == "20261115-031502-0001"


def test_a_job_is_found_among_those_of_one_folder(runs: str, tmp_path: Path) -> None:
    here, link = tmp_path / "here", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    begin(runs, "20261115-031502-0001", folder=str(here))
    begin(runs, "20261116-031502-0002", folder=str(here), options={"fleet": {"job": "ab" * 32}})
    begin(runs, "20261117-031502-0003")
    for name in ("last", "gbt", "0001"):
        for folder in (here, link):
            assert find_job(runs, name, started_in=str(folder)).attempt == "20261115-031502-0001"
    with pytest.raises(NotFound):
        find_job(runs, "0003", started_in=str(here))
    with pytest.raises(NotFound):
        find_job(runs, "last", started_in=str(tmp_path))


def test_a_name_that_could_be_several_is_refused(runs: str) -> None:
    begin(runs, "20261115-031502-0001")
    begin(runs, "20261115-041502-0002")
    with pytest.raises(Ambiguous, match="'20261115' begins the ids of 2 jobs"):
        find_job(runs, "20261115")


def test_a_name_that_is_none_is_answered_with_the_nearest(runs: str) -> None:
    with pytest.raises(NotFound, match="nothing has run here yet"):
        find_job(runs, "last")
    begin(runs, "20261115-031502-0001")
    with pytest.raises(NotFound) as raised:
        find_job(runs, "gtb")
    assert raised.value.hint == "did you mean 'gbt'?"


def test_a_damaged_job_is_no_obstacle_to_finding_others(runs: str) -> None:
    begin(runs, "20261115-031502-0001", name="good")
    broken = begin(runs, "20261116-031502-0002")
    Path(broken.path, "job.json").write_text("{")
    assert find_job(runs, "good").attempt == "20261115-031502-0001"


def test_a_job_says_where_it_ran_and_an_older_one_that_does_not_is_no_fault(tmp_path: Path) -> None:
    folder = JobFolder.begin(str(tmp_path), spec("20261115-031502-0001"), mine())
    assert folder.environment() == surroundings()
    job = Path(folder.path, "job.json")
    raw = loads(job.read_bytes())
    for odd in (None, 3, ["host"]):
        job.write_text(dumps({**raw, "environment": odd}))
        assert folder.environment() == {}
    job.unlink()
    assert folder.environment() == {}


def test_pipes_in_the_place_of_its_files_keep_nobody_waiting(runs: str) -> None:
    folder = begin(runs, "20261115-031502-7f3a")
    for name in ("job.json", "owner.json", "end.json", "config.json"):
        path = os.path.join(folder.path, name)
        if os.path.exists(path):
            os.unlink(path)
        os.mkfifo(path)
    with at_once():
        assert folder.paper("config.json") == b""
        assert (folder.ended(), folder.owner(), folder.environment()) == (None, None, {})
        assert folder.state() == (JobState.FAILED, "its process is gone")
        with pytest.raises(NotFound, match=r"no readable job\.json"):
            folder.spec()
        with pytest.raises(NotFound):
            find_job(runs, "gbt")
