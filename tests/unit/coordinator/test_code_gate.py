"""`serve --accept-code`: only commits of a repository, read again every few seconds, with a remedy to paste."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stoker.coordinator.http.http_messages import Refusal
from stoker.coordinator.http.job_routes import CodeGate
from stoker.core.clock import FakeClock
from stoker.core.errors import BadInput, CodeNotAccepted, StokerError
from stoker.protocol.job_messages import Submission
from tests.contract.queue_driving import order

WHO = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PATH": os.defpath,
}
TREE = "c" * 64


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], env=WHO, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str = "more") -> str:
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def submission(
    commit: str, *, tree: str = TREE, source: str = "/home/me/m.toml", recipe: str = "command"
) -> Submission:
    return Submission(jobs=(order("one", recipe=recipe, code_tree=tree, commit=commit),), source=source)


def refused(gate: CodeGate, asked: Submission) -> StokerError:
    with pytest.raises(StokerError) as error:
        gate.check(asked)
    return error.value


def test_known_commits_pass_and_recipes_are_not_asked(repository: Path) -> None:
    gate = CodeGate(str(repository), "main", environment=WHO, clock=FakeClock())
    gate.check(submission(git(repository, "rev-parse", "HEAD")))
    gate.check(submission("", tree="", recipe="tabular/gbt"))


def test_without_a_commit_it_is_400_and_with_another_412_with_a_remedy(repository: Path) -> None:
    gate = CodeGate(str(repository), "main", environment=WHO, clock=FakeClock())
    for lacking in (submission(""), submission("a" * 40, tree="")):
        error = refused(gate, lacking)
        assert isinstance(error, CodeNotAccepted)
        assert (Refusal(error).status, error.exit_code) == (400, 39)
    unknown = refused(gate, submission("a" * 40))
    assert isinstance(unknown, CodeNotAccepted)
    assert (Refusal(unknown).status, unknown.exit_code) == (412, 39)
    assert "is aaaaaaaaaaaa, not one of the last 100" in unknown.message
    assert unknown.hint == "git pull --rebase && git push origin main && stoker submit m.toml"
    head = git(repository, "rev-parse", "HEAD")
    dirty = refused(gate, submission(f"{head}+2", source="stoker submit -- python train.py"))
    assert Refusal(dirty).status == 412
    assert "with 2 uncommitted changes" in dirty.message
    assert dirty.hint.endswith("&& git push origin main && stoker submit -- python train.py")


def test_the_list_is_read_again_after_five_seconds_and_kept_when_git_fails(repository: Path, tmp_path: Path) -> None:
    clock = FakeClock()
    gate = CodeGate(str(repository), "", environment=WHO, clock=clock)
    first = git(repository, "rev-parse", "HEAD")
    second = commit(repository)
    refused(gate, submission(second))
    clock.advance(5.1)
    gate.check(submission(second))
    repository.rename(tmp_path / "moved")
    clock.advance(5.1)
    gate.check(submission(first))
    (tmp_path / "moved").rename(repository)
    third = commit(repository)
    clock.advance(5.1)
    gate.check(submission(third))


def test_only_the_last_hundred_count(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    text = "".join(
        f"commit refs/heads/main\ncommitter a <a@b> {number} +0000\ndata 1\nx\n"
        + ("from refs/heads/main^0\n" if number == 1 else "")
        for number in range(1, 101)
    )
    subprocess.run(["git", "-C", repository, "fast-import", "--quiet"], env=WHO, input=text, text=True, check=True)
    gate = CodeGate(str(repository), "main", environment=WHO, clock=FakeClock())
    gate.check(submission(git(repository, "rev-parse", "main~99")))
    assert git(repository, "rev-parse", "main~100") == first
    refused(gate, submission(first))


def test_a_repository_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        CodeGate(str(tmp_path), "", environment=WHO, clock=FakeClock())
