"""A program's code goes with its job: as it lies here, changes included, into a folder of its own elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.jsontext import loads
from tests.system.shell import Shell, finish, wait_until

WHO = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PATH": os.defpath,
}
TRAIN = """
import os, sys
sys.path.insert(0, os.path.join("..", "lib"))
import model
print("version", model.VERSION, "beside", sorted(os.listdir(".")), "in", os.path.basename(os.getcwd()))
os.makedirs("runs", exist_ok=True)
with open("runs/result.txt", "w") as file:
    file.write(str(model.VERSION))
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], env=WHO, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[tuple[Shell, Path]]:
    """A shell in a folder of a project, in whose home a coordinator serves; and the home of a worker of another one."""
    top = tmp_path_factory.mktemp("packed")
    shell = Shell(top, index=index)
    (shell.folder / "lib").mkdir()
    (shell.folder / "jobs").mkdir()
    (shell.folder / "lib" / "model.py").write_text("VERSION = 1")
    (shell.folder / "jobs" / "train.py").write_text(TRAIN)
    git(shell.folder, "init", "-q")
    git(shell.folder, "add", "-A")
    git(shell.folder, "commit", "-q", "-m", "all")
    other = Shell(tmp_path_factory.mktemp("other"), index=index)
    serve = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    started = [serve]
    try:
        assert serve.stdout is not None
        url = loads(serve.stdout.readline())["url"]
        wait_until((shell.home / "state" / "serve.json").exists)
        started.append(other.start("work", "--join", url, "--name", "other"))
        shell.folder = shell.folder / "jobs"
        yield shell, other.home
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            finish(process)


def test_what_lies_here_runs_elsewhere_and_a_second_time_only_what_changed_is_sent(served: tuple[Shell, Path]) -> None:
    shell, other = served
    (shell.folder.parent / "lib" / "model.py").write_text("VERSION = 2")
    (shell.folder / "untracked.txt").write_text("not asked for")
    words = ("submit", "outputs=runs/", "--watch", "--", "python", "train.py")
    done = shell.stoker(*words)
    assert done.code == 0, done.err
    assert "code 2 files (1 uncommitted, included)" in done.out
    assert "sent code: 2 files" in done.err
    # The same folder of the project, in a workspace that holds nothing else.
    assert "version 2 beside ['train.py'] in jobs" in shell.stoker("logs", "train").out
    got = shell.stoker("get", "train", "got")
    assert got.code == 0, got.err
    assert (shell.folder / "got" / "runs" / "result.txt").read_text() == "2"
    assert not (shell.folder / "runs").exists()
    wait_until(lambda: not [name for name in os.listdir(other / "workspaces") if not name.startswith(".")])

    again = shell.stoker(*words)
    assert "sent code" not in again.err
    (shell.folder.parent / "lib" / "model.py").write_text("VERSION = 3")
    seen = shell.stoker("submit", "outputs=runs/", "--rerun", "--dry-run", "--", "python", "train.py")
    assert "code 2 files (1 uncommitted, included), 1 to send (11 B)" in seen.out
    changed = shell.stoker("submit", "outputs=runs/", "--rerun", "--watch", "--", "python", "train.py")
    assert "sent code: 1 file, 11 B" in changed.err
    assert "version 3" in shell.stoker("logs", "train").out


def test_named_files_go_along_and_in_place_sends_nothing(served: tuple[Shell, Path]) -> None:
    shell, _ = served
    (shell.folder / "extra.txt").write_text("asked for")
    named = shell.stoker("submit", "--include", "extra.txt", "--name", "named", "--watch", "--", "cat", "extra.txt")
    assert named.code == 0, named.err
    assert "asked for" in shell.stoker("logs", "named").out
    here = shell.stoker("submit", "--in-place", "--name", "here", "--watch", "--", "sh", "-c", "pwd > where.txt")
    assert here.code == 0, here.err
    assert "code" not in here.out
    assert (shell.folder / "where.txt").read_text().strip() == str(shell.folder)


def test_code_that_cannot_go_along_is_refused_before_anything_is_submitted(served: tuple[Shell, Path]) -> None:
    shell, _ = served
    done = shell.stoker("submit", "--include", "nothing/*", "--", "true")
    assert done.code == 2
    assert "nothing/* matches nothing" in done.err
    (shell.folder / "m.toml").write_text('[[jobs]]\nname = "x"\ncommand = "true"\ninclude = ["nothing/*"]\n')
    done = shell.stoker("submit", "m.toml")
    assert done.code == 24
    assert "m.toml:4:11: jobs[0].include: include: nothing/* matches nothing" in done.err
    (shell.folder.parent.parent / "x.py").write_text("")
    done = shell.stoker("submit", "--", "python", "../../x.py")
    assert done.code == 2
    assert "../../x.py is outside of the folder that is sent: " in done.err
    (shell.folder / "m.toml").write_text('[[jobs]]\nname = "x"\ncommand = "python t.py --from=../../x.py"\n')
    done = shell.stoker("submit", "m.toml")
    assert (done.code, "../../x.py is outside of the folder that is sent: " in done.err) == (24, True)
    inside = shell.stoker("submit", "--dry-run", "--", "python", "../lib/model.py")
    assert inside.code == 0, inside.err


def test_a_pinned_worker_starts_files_of_its_tree_and_nothing_else(
    served: tuple[Shell, Path], tmp_path: Path, index: Path
) -> None:
    shell, _ = served
    (shell.folder / "evil").write_text("#!/bin/sh\necho evil\n")
    (shell.folder / "evil").chmod(0o755)
    shown = shell.stoker("submit", "--json", "--dry-run", "--", "python", "train.py")
    tree = shown.objects()[0]["code"]
    pinned = Shell(tmp_path, index=index)
    url = loads((shell.home / "state" / "serve.json").read_bytes())["url"]
    working = pinned.start("work", "--join", url, "--name", "pinned", "--accept-code", tree)
    try:
        wait_until(lambda: "pinned" in shell.stoker("machines").out)
        tried = {
            "good": ("--", "python", "train.py"),
            "inline": ("--", "python", "-c", "print('evil')"),
            "shell": ("--", "sh", "-c", "echo evil"),
            "loader": ("env.PYTHONSTARTUP=evil", "--", "python", "train.py"),
            "untracked": ("--", "python", "evil"),
        }
        for name, words in tried.items():
            done = shell.stoker("submit", "--host", "pinned", "--name", name, "-y", *words)
            assert done.code == 0, done.err
        wait_until(lambda: "completed" in shell.stoker("jobs", "show", "good").out)
        whys = {
            "inline": "starts Python without a script",
            "shell": "starts a program outside of its tree",
            "loader": "sets variables",
            "untracked": "starts evil, which is not in its tree",
        }
        wait_until(lambda: all(why in shell.stoker("explain", name).out for name, why in whys.items()))
        for name in whys:
            assert "evil\n" not in shell.stoker("logs", name).out
    finally:
        for name in tried:
            shell.stoker("cancel", name)
        working.send_signal(signal.SIGTERM)
        finish(working)


def test_pins_that_name_no_code_are_refused_at_the_start(shell: Shell) -> None:
    done = shell.stoker("serve", "--listen", "127.0.0.1:0", "--accept-code", "nowhere:main")
    assert done.code == 2
    assert "can't be read" in done.err
    done = shell.stoker("work", "--join", "http://127.0.0.1:9", "--accept-code", "main")
    assert done.code == 2
    assert "not the digest of a tree" in done.err
