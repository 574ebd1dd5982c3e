"""Children that wait for an assignment: forks of one warm process, and no flood of those where they can't live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stoker.host.identity import mine
from stoker.worker.attempt_process import AttemptProcess, AttemptSpawner
from stoker.worker.worker_state import Journal


def nursery(folder: Path, code: str) -> AttemptSpawner:
    said = folder / "said"
    said.mkdir()
    argv = (sys.executable, "-S", "-c", code)
    return AttemptSpawner(argv, folder=str(folder), said_folder=str(said), environment=lambda: dict(os.environ))


SERVER = """
import sys
sys.path[:] = {path!r}
from stoker.host.fork_server import serve_if_asked

def run():
    print("heard", sys.stdin.read(), {tag!r})
    return 0

serve_if_asked(run)
sys.exit(run())
"""


def test_children_are_forked_from_one_warm_process(tmp_path: Path):
    children = nursery(tmp_path, SERVER.format(path=sys.path, tag="a"))
    children.keep_warm()
    server = children._server
    children.keep_warm()
    assert children._server is server
    for _ in range(2):
        child, said_path = children.take()
        assert child.stdin is not None
        with child.stdin as pipe:
            pipe.write(b"this")
        assert str(child.wait(20)) == "exit status 0"
        assert Path(said_path).read_text() == "heard this a\n"
        children.dismiss(child, said_path)
    assert children._server is server
    children.close()
    assert os.listdir(tmp_path / "said") == []


def test_another_environment_gets_another_warm_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    children = nursery(tmp_path, SERVER.format(path=sys.path, tag="a"))
    children.keep_warm()
    server = children._server
    monkeypatch.setenv("STOKER_TEST_TAG", "b")
    children.keep_warm()
    assert children._server is not server
    children.close()


def test_a_warm_process_that_dies_by_itself_is_not_started_again_and_again(tmp_path: Path):
    children = nursery(tmp_path, "raise SystemExit('no such machine')")
    children.keep_warm()
    server = children._server
    assert server is not None
    server._process.wait()
    for _ in range(5):
        children.keep_warm()
        assert children._server is None
    # A child started without it tells why none lives.
    child, said_path = children.take()
    child.wait()
    assert "no such machine" in Path(said_path).read_text()
    children.dismiss(child, said_path)
    children.close()
    assert os.listdir(tmp_path / "said") == []


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "never begun"])
def test_what_an_attempts_process_said_goes_with_its_attempt(tmp_path: Path, is_told: bool):
    attempt, said = tmp_path / "20261115-031502-7f3a", tmp_path / "1-1.log"
    if is_told:
        attempt.mkdir()
    said.write_text("a warning\n")
    ward = AttemptProcess(mine(), said_path=str(said))
    assert ward.last_words() == "a warning"
    ward.forget(str(attempt))
    assert not said.exists()
    assert not is_told or (attempt / "said.log").read_text() == "a warning\n"


def test_an_attempts_process_that_said_nothing_leaves_nothing(tmp_path: Path):
    said = tmp_path / "1-1.log"
    said.touch()
    AttemptProcess(mine(), said_path=str(said)).forget(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_what_a_killed_keeper_was_hearing_is_gone_with_the_next_one(tmp_path: Path):
    (tmp_path / "said").mkdir()
    (tmp_path / "said" / "1-1.log").write_text("old words\n")
    Journal(str(tmp_path)).open()
    assert os.listdir(tmp_path / "said") == []
