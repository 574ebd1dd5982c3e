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


READS = """
import os
with open(os.path.join("data", "corpus", "rows.bin")) as file:
    print("read", file.read())
with open(os.path.join("data", "corpus", "labels.cache"), "w") as file:
    file.write("made beside the data")
with open(os.path.join("data", "corpus", "rows.bin"), "w") as file:
    file.write("changed")
print("has", sorted(os.listdir(os.path.join("data", "corpus"))))
"""


@pytest.fixture
def reader(served: tuple[Shell, Path]) -> Shell:
    """A shell in the folder of a program whose data git ignores."""
    shell, _ = served
    corpus = shell.folder / "data" / "corpus"
    if not corpus.exists():
        corpus.mkdir(parents=True)
        (corpus / "prepare.py").write_text("# tracked\n")
        (shell.folder / "reads.py").write_text(READS)
        (shell.folder.parent / ".gitignore").write_text("*.bin\n")
        git(shell.folder, "add", "-A")
        git(shell.folder, "commit", "-q", "-m", "a reader")
        (corpus / "rows.bin").write_text("rows")
    return shell


def test_submit_names_what_stays_behind_and_the_failure_names_it_again(reader: Shell) -> None:
    shell = reader
    named = "note: reads.py names data/corpus/rows.bin, which stays behind"
    words = "--include data/corpus/, or --data data/corpus=data/corpus"
    seen = shell.stoker("submit", "--dry-run", "--", "python", "reads.py")
    assert named in seen.err
    assert f"note: to send data/corpus/: {words}" in seen.err
    body = loads(shell.stoker("submit", "--dry-run", "--json", "--", "python", "reads.py").out.splitlines()[0])
    assert body["left_behind"]["named"] == [
        {"where": "reads.py", "text": "rows.bin", "path": "data/corpus/rows.bin"},
    ]
    done = shell.stoker("submit", "--name", "lacks", "--watch", "--", "python", "reads.py")
    assert done.code == 1
    hint = (
        "hint: data/corpus/rows.bin is in the folder that the job was submitted from, and was not sent: "
        f"submit with {words}"
    )
    assert named in done.err
    assert hint in done.err
    assert hint in shell.stoker("logs", "lacks").err
    assert hint in shell.stoker("explain", "lacks").out
    assert hint in shell.stoker("jobs", "show", "lacks").out
    shown = loads(shell.stoker("jobs", "show", "lacks", "--json").out)
    assert shown["hint"] == hint.removeprefix("hint: ")


def test_data_appears_at_a_path_and_is_not_changed_by_the_program(reader: Shell) -> None:
    shell = reader
    words = ("submit", "--data", "data/corpus=data/corpus", "--name", "has", "--watch", "--", "python", "reads.py")
    done = shell.stoker(*words)
    assert done.code == 0, done.err
    assert "stays behind" not in done.err
    lines = shell.stoker("logs", "has").out
    assert "read rows" in lines
    assert "has ['labels.cache', 'prepare.py', 'rows.bin']" in lines
    assert sorted(os.listdir(shell.folder / "data" / "corpus")) == ["prepare.py", "rows.bin"]
    assert (shell.folder / "data" / "corpus" / "rows.bin").read_text() == "rows"
    assert "data    data/corpus tree" in shell.stoker("jobs", "show", "has").out
    again = shell.stoker("submit", "x=2", *words[1:])
    assert again.code == 0, again.err
    assert "read rows" in shell.stoker("logs", "has").out


def test_data_at_a_path_comes_from_a_manifest_and_the_store_and_is_refused_elsewhere(reader: Shell) -> None:
    shell = reader
    put = shell.stoker("store", "put", "data/corpus/rows.bin", "--as", "rows")
    assert put.code == 0, put.err
    text = '[[jobs]]\nname = "put"\ncommand = "cat new/place/rows.bin"\ndata = { "new/place" = "stoker:rows" }\n'
    (shell.folder / "placed.toml").write_text(text)
    done = shell.stoker("submit", "placed.toml", "-y", "--watch")
    assert done.code == 0, done.err
    assert "rows" in shell.stoker("logs", "put").out
    for place, message in (
        ("../x", "data can't be placed at '../x'"),
        ("/etc/x", "data can't be placed at '/etc/x'"),
        ("./reads.py", "would replace jobs/reads.py"),
    ):
        refused = shell.stoker("submit", "--data", f"{place}=data/corpus/rows.bin", "--", "python", "reads.py")
        assert refused.code == 2, refused.err
        assert message in refused.err
    refused = shell.stoker("submit", "--in-place", "--data", "a/b=data", "--", "true")
    assert "--in-place makes no copy of the folder" in refused.err
    here = shell.stoker("run", "--data", "a/b=data", "--", "true")
    assert here.code == 2
    assert "the program runs in this folder, and nothing is there" in here.err
    (shell.folder / "a").mkdir()
    (shell.folder / "a" / "b").symlink_to(shell.folder / "data")
    here = shell.stoker("run", "--data", "a/b=data", "--", "true")
    assert here.code == 0, here.err
