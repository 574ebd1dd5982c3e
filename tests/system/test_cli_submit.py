"""`stoker submit` as a person types it: without a coordinator, with one, and with a worker that runs what it gets."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.jsontext import loads
from tests.system.shell import Done, Shell, finish, wait_until

MANIFEST = """
[[jobs]]
name = "sweep"
command = "sh go.sh {n}"
sweep = { n = [1, 2] }

[[jobs]]
name = "sums"
recipe = "toy/sum"
hyper.value = 3
"""


def write(shell: Shell, text: str = MANIFEST, *, name: str = "m.toml", script: str = "echo done") -> None:
    (shell.folder / name).write_text(text)
    (shell.folder / "go.sh").write_text(script)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[Shell]:
    """A shell in whose home a coordinator serves."""
    shell = Shell(tmp_path_factory.mktemp("served"), index=index)
    serve = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    try:
        assert serve.stdout is not None
        assert "url" in loads(serve.stdout.readline())
        wait_until((shell.home / "state" / "serve.json").exists)
        yield shell
    finally:
        _end(serve)


def _end(process: subprocess.Popen[str]) -> Done:
    process.send_signal(signal.SIGTERM)
    return finish(process)


def outcomes(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    return {f"{one['name']}/{one['number']}": one["outcome"] for one in done.objects() if "outcome" in one}


def test_a_dry_run_needs_no_coordinator_and_says_so(shell: Shell) -> None:
    write(shell)
    done = shell.stoker("submit", "m.toml", "--dry-run")
    assert done.code == 0, done.err
    assert "sweep/1" in done.out
    assert "3 jobs; no coordinator is known, nothing was submitted" in done.out


def test_without_a_coordinator_faults_come_first_and_good_jobs_are_not_lost_in_silence(shell: Shell) -> None:
    write(shell, MANIFEST + "hyper.none = 1")
    done = shell.stoker("submit", "m.toml")
    assert done.code == 24
    assert "m.toml:11:7: jobs[1].hyper.none: toy/sum has no argument 'none'" in done.err
    write(shell)
    done = shell.stoker("submit", "n=1,2", "--", "sh", "go.sh", "{n}")
    assert done.code == 34
    assert "stoker serve" in done.err


def test_check_holds_values_against_the_recipes(shell: Shell) -> None:
    write(shell, MANIFEST + "hyper.none = 1")
    done = shell.stoker("check", "m.toml")
    assert done.code == 24
    assert "toy/sum has no argument 'none'" in done.err


def test_submitting_says_what_changes_and_twice_changes_nothing(served: Shell) -> None:
    write(served)
    new = {"sweep/1": "new", "sweep/2": "new", "sums/0": "new"}
    assert outcomes(served.stoker("submit", "m.toml", "--json")) == new
    assert outcomes(served.stoker("submit", "m.toml", "--json")) == dict.fromkeys(new, "known")
    write(served, MANIFEST + "priority = 3")
    changed = {"sweep/1": "known", "sweep/2": "known", "sums/0": "changed"}
    assert outcomes(served.stoker("submit", "m.toml", "--json")) == changed
    write(served, MANIFEST.partition('\n\n[[jobs]]\nname = "sums"')[0])
    done = served.stoker("submit", "m.toml")
    assert "sums  not in m.toml any more" in done.out


def test_a_person_is_asked_and_may_say_no(served: Shell) -> None:
    words = ("submit", "--name", "asked", "--", "sh", "-c", "echo asked")
    done = served.at_a_terminal(*words, when=lambda seen: b"n\n" if b"[Y/n]" in seen else None)
    assert "Submit 1 job?" in done.out
    assert done.code != 0
    done = served.at_a_terminal(*words, when=lambda seen: b"\n" if b"[Y/n]" in seen else None)
    assert done.code == 0
    assert "1 new; submitted to http://127.0.0.1:" in done.out
    assert "stoker logs -f asked" in done.out


WATCHED = """
[[jobs]]
name = "w"
command = "sh go.sh"
priority = 9
"""
FAILING = """
[[jobs]]
name = "x"
command = "sh -c 'exit 3'"
priority = 9
"""


def test_watching_follows_jobs_to_their_ends_and_old_results_are_kept_loudly(served: Shell, tmp_path: Path) -> None:
    worker = Shell(tmp_path)
    url = loads((served.home / "state" / "serve.json").read_text())["url"]
    work = worker.start("work", "--join", url)
    try:
        write(served, WATCHED + FAILING, name="w.toml")
        done = served.stoker("submit", "w.toml", "--watch")
        assert done.code == 1, done.err
        assert "2 jobs: " in done.out
        assert "x  failed" in done.out
        write(served, WATCHED, name="w.toml", script="echo other")
        done = served.stoker("submit", "w.toml", "--watch")
        assert done.code == 0
        assert "KEPT, not run again: w" in done.err
        assert outcomes(served.stoker("submit", "w.toml", "--rerun", "--dry-run", "--json")) == {"w/0": "requeued"}
    finally:
        _end(work)
