"""A home and a database made by an earlier version open in this one."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.shell import Shell, finish

HOMES = Path(__file__).parents[1] / "recordings" / "homes"


@pytest.fixture(params=sorted(HOMES.glob("*.tar.gz")), ids=lambda path: path.name.removesuffix(".tar.gz"))
def kept(request: pytest.FixtureRequest, shell: Shell) -> Shell:
    """Return a shell whose home was made by an earlier version."""
    shutil.rmtree(shell.home, ignore_errors=True)
    shell.home.mkdir()
    subprocess.run(["tar", "-xzf", request.param, "-C", shell.home], check=True)
    return shell


@pytest.fixture
def coordinator(kept: Shell) -> Iterator[subprocess.Popen[str]]:
    process = kept.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    assert json.loads(line)["url"]
    yield process
    process.terminate()
    finish(process)


def states(shell: Shell) -> set[tuple[str, str, str]]:
    """Return name, state and where of each job."""
    done = shell.stoker("jobs", "--all", "--json")
    assert done.code == 0, done.err
    return {(job["name"], job["state"], job["where"]) for job in done.objects()}


def test_local_jobs_of_an_earlier_version_are_listed_with_their_logs_and_results(kept: Shell):
    assert states(kept) >= {("line", "completed", "here"), ("typed", "completed", "here"), ("broken", "failed", "here")}
    assert "loss=0.7290" in kept.stoker("logs", "line/1").out
    assert "0.729" in kept.stoker("compare", "line", "--no-plots").out
    assert kept.stoker("explain", "typed").code == 0
    assert kept.stoker("get", "typed", "out").code == 0
    assert (kept.folder / "out" / "model-card.md").is_file()


def test_the_store_of_an_earlier_version_verifies_and_its_files_come_out(kept: Shell):
    done = kept.stoker("store", "verify", "--json")
    assert done.code == 0, done.out + done.err
    assert kept.stoker("get", "table", "out").code == 0
    assert (kept.folder / "out" / "data.csv").read_text().startswith("a,b,label\n")


def test_a_coordinator_opens_the_database_of_an_earlier_version(kept: Shell, coordinator: subprocess.Popen[str]):
    assert states(kept) >= {
        ("fleet/1", "completed", "fleet"),
        ("fleet/2", "completed", "fleet"),
        ("fails", "failed", "fleet"),
        ("waits", "pending", "fleet"),
    }
    assert kept.stoker("get", "fleet", "out").code == 0
    assert json.loads((kept.folder / "out" / "lr=0.1" / "model.json").read_text())["lr"] == 0.1
    assert "loss=0.3430" in kept.stoker("logs", "fleet/2").out


def test_its_worker_comes_back_under_its_name_and_resumes_a_failed_job(kept: Shell, coordinator: subprocess.Popen[str]):
    worker = kept.start("work", "--name", "tower")
    try:
        assert kept.stoker("jobs", "requeue", "resumable").code == 0
        assert kept.stoker("jobs", "wait", "resumable").code == 0
        done = kept.stoker("submit", "--name", "later", "--watch", "--", "echo", "done")
        assert done.code == 0, done.err
    finally:
        worker.terminate()
        finish(worker)
    assert "resumed with 17000 bytes" in kept.stoker("logs", "resumable").out
    assert ("later", "completed", "fleet") in states(kept)


def test_the_database_of_an_earlier_version_passes_the_check(kept: Shell):
    for word in ("migrate", "check"):
        done = kept.stoker("admin", "db", word)
        assert done.code == 0, done.out + done.err
    with sqlite3.connect(kept.home / "fleet" / "queue.db") as database:
        assert database.execute("select count(*) from jobs").fetchone() == (5,)
