"""Mirrors of a time that a restore undid go before their numbers are given out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.coordinator.storage.attempt_files import AttemptFiles, forget_lost_past
from stoker.core.digests import digest_bytes

JOB, OTHER = digest_bytes(b"a job"), digest_bytes(b"another job")
LOG = "logs/train.log"


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    files = AttemptFiles(str(tmp_path / "attempts"))
    for job, attempt in ((JOB, 1), (JOB, 2), (OTHER, 1)):
        files.append(job, attempt, LOG, 0, b"of the lost time\n")
    return files


def test_what_the_queue_does_not_know_goes_once_after_a_restore(files: AttemptFiles, tmp_path: Path):
    known: dict[str, int] = {JOB: 1}
    forget_lost_past(files, str(tmp_path), 1, lambda job: 9)
    gone = forget_lost_past(files, str(tmp_path), 7, lambda job: known.get(job, 0))
    assert set(gone) == {(JOB, 2), (OTHER, 1)}
    assert files.attempts(JOB) == (1,)
    assert files.append(JOB, 2, LOG, 0, b"of another world\n") == 17
    # The same generation again: whoever restarts removes nothing.
    assert forget_lost_past(files, str(tmp_path), 7, lambda job: 0) == ()
    assert files.attempts(JOB) == (1, 2)


def test_a_folder_that_was_never_marked_is_taken_as_it_is(files: AttemptFiles, tmp_path: Path):
    assert forget_lost_past(files, str(tmp_path), 1, lambda job: 0) == ()
    assert files.attempts(JOB) == (1, 2)


def test_killed_on_the_way_it_is_done_by_the_next_start(files: AttemptFiles, tmp_path: Path):
    forget_lost_past(files, str(tmp_path), 1, lambda job: 9)

    def dies(job: str) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forget_lost_past(files, str(tmp_path), 2, dies)
    assert len(forget_lost_past(files, str(tmp_path), 2, lambda job: 0)) == 3
