"""Whatever a user gets wrong: one line that says what and where, a hint, the right code, and nothing lost."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.shell import Shell
from tests.unit.host.real_mounts import small_disk


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        (["run", "toy/summ"], 27, "there is no recipe 'toy/summ'", "did you mean 'toy/sum'?"),
        (
            ["run", "toy/sum", "value=3", "valeu=3"],
            28,
            "argument 2: valeu: there is no such key (did you mean 'value'?",
            "recipes show toy/sum",
        ),
        (["run", "toy/sum", "value=many"], 28, "argument 1: value: 'many' is not a whole", "recipes show toy/sum"),
        (["run", "toy/sum", "value=,"], 28, "argument 1: expected a value before ','", "recipes show toy/sum"),
        (["run", "toy/sum", "value=3,many"], 28, "value: 'many' is not a whole number", "recipes show toy/sum"),
        (["run", "toy/sum", "value=5000"], 28, "must be at most 1000, got 5000", "recipes show toy/sum"),
        (["run", "toy/sum"], 28, "value: is required", "recipes show toy/sum"),
        (["run", "toy/copy", "file=/not/there"], 16, "/not/there: no such file or folder", ""),
        (["run", "missing.json"], 16, "missing.json", ""),
        (["run", "jobs.toml"], 27, "jobs.toml is not a recipe or a plan", "stoker submit jobs.toml"),
        (["machines", "memory", "--wait", "6"], 2, "--wait: '6' has no unit; write 6GiB", ""),
        (["run", "toy/sum", "value=3", "--name", "a/b"], 2, "'a/b' can't be a job's name", "letters, digits"),
        (["run", "toy/sum", "value=3", "lonely"], 2, "'lonely' is not key=value", "no spaces around the ="),
        (["run", "toy/sum", "value=3", "lone", "ly"], 2, "'lone', 'ly' are not key=value", "no spaces around the ="),
        (["run", "toy/sum", "value=3", "--rerun", "duoble"], 2, "has no stage 'duoble'", "did you mean 'double'?"),
        (["run", "toy/sum", "value=3", "--jobs", "0"], 2, "--jobs: '0' is not a whole number of at least 1", ""),
        (["run", "toy/sum", "--timeout", "soon"], 2, "'soon' is not a duration", ""),
        (["run"], 2, "nothing to run", "stoker help run"),
        (["run", "value=3"], 2, "'value=3' is a setting, without a recipe or a program", "-- PROGRAM"),
        (["run", "toy/sum", "value=3", "--", "true"], 2, "'toy/sum' is not key=value", "only settings before --"),
        (["run", "value=3", "--"], 2, "no program after --", "train.py"),
        (["config", "show", "value=3"], 2, "'value=3' is a setting, without a recipe or a program", ""),
        (["rnu", "toy/sum"], 2, "unknown command 'rnu'", "did you mean 'run'?"),
        (["submit", "toy/sum", "value=3"], 34, "no coordinator is known here", "stoker serve"),
        (["run", "toy/sum", "--dry"], 2, "stoker run: unknown option '--dry'", "did you mean '--dry-run'?"),
        (["jobs", "shwo", "last"], 2, "stoker jobs: unknown command 'shwo'", "did you mean 'show'?"),
        (["recipes", "toy/sum"], 2, "unknown command 'toy/sum'", "stoker recipes show toy/sum"),
        (["jobs", "show", "nobody"], 1, "there is no job 'nobody'", "`stoker jobs` lists them"),
        (["logs", "last"], 1, "nothing has run here yet", "stoker run RECIPE"),
        (["cancel", "last"], 1, "nothing has run here yet", ""),
        (["store", "prune", "--max-size", "huge"], 2, "'huge' is not a size", ""),
        (["store", "pin", "x", "--remove"], 1, "no pin 'x'", ""),
        (["store", "adopt", "last"], 2, "NAME/STAGE needs a stage", ""),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_code(
    shell: Shell, words: list[str], code: int, said: str, hint: str
) -> None:
    done = shell.stoker(*words)
    lines = [line for line in done.err.splitlines() if not line.startswith("waiting for a coordinator: ")]
    assert done.code == code, done.err
    assert lines[0].startswith("stoker: ")
    assert said in lines[0]
    assert "Traceback" not in done.err
    if hint:
        assert lines[-1].startswith("hint: ")
        assert hint in lines[-1]


def test_every_fault_of_a_command_is_on_a_line_of_its_own(shell: Shell) -> None:
    done = shell.stoker("run", "toy/slow", "value=-1", "stubborn=maybe", "gait=x")
    assert done.code == 28
    lines = done.err.splitlines()
    assert lines[0] == "stoker: 3 errors in the arguments of toy/slow"
    # Each with the word it is about, and carets under what is wrong in it.
    assert [line.split(":")[:2] for line in lines[1:10:3]] == [
        ["  argument 1", " value"],
        ["  argument 2", " stubborn"],
        ["  argument 3", " gait"],
    ]
    assert lines[2:4] == ["      value=-1", "            ^^"]


def test_words_that_can_not_be_read_are_told_with_those_that_can_and_are_wrong(shell: Shell) -> None:
    done = shell.stoker("run", "toy/slow", "value=(", "gait=x")
    assert done.code == 28
    assert done.err.splitlines()[0] == "stoker: 2 errors in the arguments of toy/slow"
    assert "value: is required" not in done.err


def test_what_is_given_twice_counts_as_given_last_and_that_is_said(shell: Shell) -> None:
    done = shell.stoker("run", "toy/sum", "value=3", "value=4", "--dry-run")
    assert done.code == 0, done.err
    assert "note: value is given twice: value=4 counts" in done.err


def plan_of(nodes: dict[str, Any], edges: list[dict[str, Any]]) -> str:
    return json.dumps({"stoker_plan": 1, "name": "wrong", "nodes": nodes, "edges": edges}, indent=1)


def test_a_plan_that_mixes_kinds_and_misspells_is_refused_with_every_fault_and_its_line(shell: Shell) -> None:
    nodes = {
        "number": {"stage": "toy/number", "args": {"value": 1}},
        "text": {"stage": "toy/big"},
        "twice": {"stage": "toy/double"},
        "odd": {"stage": "toy/duoble"},
    }
    edges = [{"from": "number", "to": "text"}, {"from": "text", "to": "twice", "port": "number"}]
    (shell.folder / "plan.json").write_text(plan_of(nodes, edges))
    done = shell.stoker("run", "plan.json")
    assert done.code == 40
    assert "2 errors in plan.json" in done.err
    assert "takes toy/number@1, but text gives toy/words@1" in done.err
    assert "there is no stage 'toy/duoble' (did you mean 'toy/double'?)" in done.err
    assert "plan.json:18: odd" in done.err
    assert shell.stoker("jobs", "--json").out == ""


def test_a_plan_that_needs_itself_is_refused(shell: Shell) -> None:
    nodes = {"one": {"stage": "toy/double"}, "two": {"stage": "toy/double"}}
    edges = [{"from": "one", "to": "two"}, {"from": "two", "to": "one"}]
    (shell.folder / "plan.json").write_text(plan_of(nodes, edges))
    done = shell.stoker("run", "plan.json")
    assert done.code == 40
    assert "a cycle" in done.err


def test_a_damaged_result_is_set_aside_told_and_made_again(shell: Shell) -> None:
    shell.stoker("run", "toy/text", "value=3")
    blobs = list(shell.home.glob("store/blobs/*/*"))
    assert len(blobs) == 1
    whole = blobs[0].read_bytes()
    blobs[0].chmod(0o644)
    blobs[0].write_bytes(b"x" + whole[1:])
    done = shell.stoker("run", "toy/text", "value=3")
    assert done.code == 0, done.err
    assert "quarantined, runs again" in done.out
    assert blobs[0].read_bytes() == whole
    assert list((shell.home / "store/quarantine").iterdir())


def test_a_full_disk_is_told_as_that_and_the_job_continues_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=600k") as disk:
        shell = Shell(tmp_path)
        shell.home = disk / "home"
        shell.env["STOKER_HOME"] = str(shell.home)
        shell.stoker("recipes")
        filler = disk / "filler"
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, b"x" * 4096)
        os.close(descriptor)
        done = shell.stoker("run", "toy/text", "value=3", "--no-out")
        assert done.code == 10, done.err
        assert "no space left" in done.err
        assert "hint: free some space" in done.err
        filler.unlink()
        assert shell.stoker("run", "toy/text", "value=3", "--no-out").code == 0


def test_a_read_only_store_is_told_as_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "ro,size=1m") as disk:
        shell = Shell(tmp_path)
        shell.env["STOKER_HOME"] = str(disk / "home")
        done = shell.stoker("run", "toy/sum", "value=3")
        assert done.code == 16, done.err
        assert "read-only file system" in done.err
        assert shell.stoker("recipes").code == 0


def test_a_cookbook_that_can_not_be_loaded_is_told_and_stops_nobody_else(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "bad-1.dist-info").mkdir(parents=True)
    (broken / "bad-1.dist-info/entry_points.txt").write_text("[stoker.cookbooks]\nbad = bad_cookbook:COOKBOOK\n")
    (broken / "bad_cookbook.py").write_text("import not_installed_anywhere\n")
    shell = Shell(tmp_path, cookbook=broken)
    for _ in range(2):
        done = shell.stoker("recipes")
        assert done.code == 0
        assert done.err.count("note: cookbook bad can't be loaded: ModuleNotFoundError") == 1
    (broken / "bad_cookbook.py").write_text("from stoker.authoring import Cookbook\nCOOKBOOK = Cookbook(name='bad')\n")
    assert shell.stoker("recipes").err == ""


BROKEN = """
import sys
from stoker.app import App
from stoker.__main__ import run_command_line

def build():
    parts = App.here()
    parts.clock = None
    return parts

sys.exit(run_command_line(sys.argv[1:], build=build))
"""


def test_a_bug_is_called_one_and_its_traceback_is_kept(shell: Shell) -> None:
    def broken(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", BROKEN, *words]
        return subprocess.run(command, cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=False)

    done = broken("status")
    assert done.returncode == 70
    assert "stoker: internal error: AttributeError" in done.stderr
    crash = next((shell.home / "state").glob("crash-*.txt"))
    assert f"hint: report it with {crash}" in done.stderr
    assert "Traceback" in crash.read_text()
    assert "Traceback" not in done.stderr
    assert "Traceback" in broken("status", "--debug").stderr


def test_a_folder_that_is_gone_is_told_as_that(shell: Shell) -> None:
    script = f"cd {shell.folder} && rmdir {shell.folder} && exec {sys.executable} -P -m stoker jobs"
    done = subprocess.run(["bash", "-c", script], env=shell.env, capture_output=True, text=True, check=False)
    assert done.returncode == 16
    assert "the current folder no longer exists" in done.stderr


def test_another_programs_word_for_an_argument_gets_its_name_and_changes_nothing(shell: Shell) -> None:
    done = shell.stoker("run", "tabular/mlp", "learning_rate=0.1", "batch_size=8")
    assert done.code == 28
    assert "learning_rate: there is no such key (did you mean 'lr'?" in done.err
    assert "batch_size: there is no such key (did you mean 'batch'?" in done.err
    assert not (shell.home / "runs").exists()
