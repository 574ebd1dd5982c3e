from __future__ import annotations

import os

import pytest

from stoker.core.errors import CorruptBytes, NotFound
from stoker.engine.journal import read_status
from stoker.jobs.execution import JobResult
from stoker.jobs.job_history import RunHistory, tell
from stoker.jobs.results import keys_of_job, keys_of_stage, parts_of_job
from tests.unit.jobs.conftest import Office


def story_of(done: JobResult) -> RunHistory:
    return tell(read_status(done.folder.status_path))


def folders(office: Office, done: JobResult, stage: str = "") -> dict[str, str]:
    parts = parts_of_job(office.lab.store, done.folder, story_of(done), stage=stage)
    return {part.sidecar["node"]: part.folder for part in parts}


def test_a_job_gives_its_result_and_what_its_plan_keeps(office: Office) -> None:
    done = office.run("test/blobs")
    assert folders(office, done) == {"blob-sum": "", "blob": "blob"}
    (part, kept) = parts_of_job(office.lab.store, done.folder, story_of(done))
    assert (part.sidecar["kind"], part.sidecar["version"], part.sidecar["stage"]) == ("test-number", 1, "test/blob-sum")
    assert kept.record.digest == kept.sidecar["digest"]


def test_one_stage_may_be_asked_for(office: Office) -> None:
    done = office.run("test/sum", values="[1,2]")
    assert folders(office, done, "number-2") == {"number-2": ""}


def test_a_fan_out_gives_all_its_items(office: Office) -> None:
    done = office.run("test/fan")
    wanted = {f"double[{index}]": f"double[{index}]" for index in range(3)}
    assert folders(office, done, "double") == wanted
    assert folders(office, done) == wanted


def test_a_stage_that_has_no_result_is_answered_with_the_nearest(office: Office) -> None:
    done = office.run("test/sum")
    with pytest.raises(NotFound) as raised:
        keys_of_stage(done.folder, story_of(done), "nubmer")
    assert raised.value.hint == "did you mean 'number'?"


def test_a_job_that_was_killed_gives_what_its_journal_knows(office: Office) -> None:
    done = office.run("test/sum")
    keys = keys_of_job(done.folder, story_of(done))
    os.unlink(f"{done.folder.path}/end.json")
    assert keys_of_job(done.folder, story_of(done)) == keys


def test_what_was_pruned_or_damaged_says_so(office: Office) -> None:
    done = office.run("test/blobs")
    keys = keys_of_job(done.folder, story_of(done))
    (path,) = office.lab.blob_paths(keys["blob"])
    path.chmod(0o644)
    path.write_bytes(b"junk")
    with pytest.raises(CorruptBytes, match=r"what blob made is damaged: value\.json"):
        folders(office, done, "blob")
    office.lab.prune(keys["blob"])
    with pytest.raises(NotFound, match="what blob made was pruned"):
        folders(office, done, "blob")
    office.lab.record_path(keys["blob"]).unlink()
    with pytest.raises(NotFound, match="what blob made is gone"):
        folders(office, done, "blob")
