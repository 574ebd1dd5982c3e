from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.command.cookbook import run
from stoker.core.errors import BadInput, LocalFile, ProgramNotFound
from stoker.core.frozen import changed
from stoker.engine.program import Program, gang_words
from stoker.engine.runners.program.launch import Launch, ProgramContext, find_launch, render_launch
from stoker.engine.runners.stage_runner import RunFolders, Work

WORK = Work(
    node="3.run",
    stage=run,
    args={},
    inputs={},
    out="/out",
    folders=RunFolders(run_id="r", logs="/logs", metrics="/metrics", scratch="/scratch"),
    attempt=2,
    resume_key="key",
)


class Place:
    """A folder to run in, with a few programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": f"{folder}/bin", "HOME": "/home/me", "WANDB_MODE": "offline"}
        for name in ("bin/tool", "bin/python3", "train.sh", ".venv/bin/python"):
            self.program(name)
        (folder / ".venv/pyvenv.cfg").touch()
        (folder / "plain").write_text("no program")

    def program(self, name: str, text: str = "#!/bin/sh\n") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def around(self, *, has_gpus: bool = False) -> ProgramContext:
        return ProgramContext(
            environment=self.environment, own_prefix="/nowhere", trainer_folder="/trainer", has_gpus=has_gpus
        )

    def find(self, *argv: str, **more: Any) -> Launch:
        return find_launch(Program(argv=argv, folder=str(self.folder), **more), self.around())

    def render(
        self,
        *argv: str,
        resume: str | None = None,
        has_gpus: bool = False,
        variables: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Launch:
        program = Program(argv=argv, folder=str(self.folder), **more)
        around, work = self.around(has_gpus=has_gpus), changed(WORK, variables=variables or {})
        return render_launch(program, work, around, mark="mark", scratch="/scratch/k", resume=resume)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_bare_python_is_the_folders_and_whatever_it_starts_finds_the_same(place: Place) -> None:
    launch = place.find("python", "train.py", "{x}")
    assert launch.argv == (f"{place.folder}/.venv/bin/python", "train.py", "{x}")
    assert launch.env["PATH"] == f"{place.folder}/.venv/bin:{place.folder}/bin"
    assert launch.env["VIRTUAL_ENV"] == f"{place.folder}/.venv"


def test_other_programs_are_found_as_a_shell_would(place: Place) -> None:
    assert place.find("tool").argv == (f"{place.folder}/bin/tool",)
    assert place.find("./train.sh", "a").argv == ("./train.sh", "a")
    assert place.find(f"{place.folder}/train.sh").argv == (f"{place.folder}/train.sh",)


def test_a_program_that_an_environment_has_is_found_there_first(place: Place) -> None:
    place.program(".venv/bin/tool")
    assert place.find("tool").argv == (f"{place.folder}/.venv/bin/tool",)


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("toool", "there is no program toool", "did you mean 'tool'?"),
        ("nothing-like-it", "there is no program nothing-like-it", "check PATH"),
        ("train.sh", "there is no program train.sh", "for the file here, write ./train.sh or python train.sh"),
        ("./none", "there is no program ./none", "paths are relative to the folder of the command"),
        ("./plain", "./plain is not executable", "chmod +x ./plain, or name its interpreter"),
        ("./bin", "./bin is not executable", "it is a folder"),
        ("", "the program's name is empty", "quote what belongs together"),
        ("python3.2", "there is no program python3.2", "python= takes an interpreter or a .venv folder"),
        ("./orphan", "no such file or folder: /no/interpreter", "the first line of"),
    ],
)
def test_what_is_no_program_is_refused_with_a_way_out(place: Place, word: str, message: str, hint: str) -> None:
    place.program("orphan", "#!/no/interpreter\n")
    with pytest.raises(ProgramNotFound) as refused:
        place.find(word)
    assert refused.value.message == message
    assert refused.value.hint.startswith(hint)
    assert refused.value.exit_code == 16


def test_a_folder_that_is_gone_is_said(place: Place) -> None:
    with pytest.raises(LocalFile, match="there is no folder"):
        find_launch(Program(argv=("true",), folder=f"{place.folder}/gone"), place.around())


def test_the_environment_is_the_users_with_what_is_meant_for_the_program(place: Place) -> None:
    place.environment |= {"PYTHONHOME": "/ours", "STOKER_RESUME": "/of/somebody", "STOKER_OUT": "/outer"}
    env = place.render("tool", params={"lr": 0.1, "inf": float("inf")}).env
    assert env["HOME"] == "/home/me"
    assert env["WANDB_MODE"] == "offline"
    assert "PYTHONHOME" not in env
    assert "STOKER_RESUME" not in env
    assert {name: value for name, value in env.items() if name.startswith("STOKER")} == {
        "STOKER_OUT": "/out",
        "STOKER_SCRATCH": "/scratch/k",
        "STOKER_METRICS": "/metrics/3.run.program.skm",
        "STOKER_CONTROL": "/metrics/.3.run.2.control.jsonl",
        "STOKER_RESUME_KEY": "key",
        "STOKER_PARAMS": '{"lr":0.1,"inf":{"$float":"inf"}}',
        "STOKER_ATTEMPT": "2",
        "STOKER_MARK": "mark",
    }
    assert place.render("tool", resume="/ckpt").env["STOKER_RESUME"] == "/ckpt"


def test_the_trainer_is_on_the_path_whatever_path_is_set(place: Place) -> None:
    assert place.find("tool").env["PYTHONPATH"] == "/trainer"
    place.environment["PYTHONPATH"] = "/mine"
    assert place.find("tool").env["PYTHONPATH"] == "/trainer:/mine"
    assert place.find("tool", env={"PYTHONPATH": "/set"}).env["PYTHONPATH"] == "/trainer:/set"


def test_output_is_live_unless_somebody_wants_it_otherwise(place: Place) -> None:
    assert place.find("tool").env["PYTHONUNBUFFERED"] == "1"
    assert place.find("tool", env={"PYTHONUNBUFFERED": ""}).env["PYTHONUNBUFFERED"] == ""


def test_variables_of_the_program_win_over_the_users_but_not_over_ours(place: Place) -> None:
    env = place.render(
        "tool", env={"HOME": "/else", "NEW": "1", "STOKER_OUT": "/fake", "PATH": f"{place.folder}/bin"}
    ).env
    assert (env["HOME"], env["NEW"], env["STOKER_OUT"]) == ("/else", "1", "/out")
    place.program("other/mine")
    assert place.find("mine", env={"PATH": "other"}).argv == ("other/mine",)


def test_a_program_gets_the_variables_of_its_job_and_none_of_the_job_around_it(place: Place) -> None:
    place.environment |= {"STOKER_JOB": "outer", "STOKER_SEED": "7"}
    work = changed(WORK, folders=changed(WORK.folders, variables_of=lambda node: {"STOKER_JOB": f"of {node}"}))
    program = Program(argv=("tool",), folder=str(place.folder))
    launch = render_launch(program, work, place.around(), mark="mark", scratch="/scratch/k", resume=None)
    assert launch.env["STOKER_JOB"] == "of 3.run"
    assert "STOKER_SEED" not in launch.env
    assert "STOKER_JOB" not in place.render("tool").env
    assert place.render("tool", env={"STOKER_SEED": "1"}).env["STOKER_SEED"] == "1"


def test_devices_are_handed_out_only_where_there_are_any(place: Place) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in place.render("tool").env
    assert place.render("tool", has_gpus=True).env["CUDA_VISIBLE_DEVICES"] == ""
    given = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "STOKER_VRAM_BYTES": "7"}
    for has_gpus in (False, True):
        env = place.render("tool", has_gpus=has_gpus, variables=given).env
        assert {name: env[name] for name in given} == given


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"env": {"A": "x\0y"}}, "the variable A contains a zero byte"),
        ({"env": {"A=B": "x"}}, "invalid variable name 'A=B'"),
        ({"env": {"": "x"}}, "invalid variable name ''"),
        ({"env": {"A": "x" * 200_000}}, "the variable A is too long: 195.3 KiB, and 128.0 KiB are the most"),
        ({"params": {"big": "x" * 200_000}}, "the variable STOKER_PARAMS is too long"),
    ],
)
def test_what_no_operating_system_takes_is_refused_by_name(place: Place, more: Any, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        place.find("tool", **more)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize("word", ["a\0b", "x" * 200_000])
def test_a_word_that_no_operating_system_takes_is_refused_by_its_place(place: Place, word: str) -> None:
    with pytest.raises(BadInput, match="word 2 of the program"):
        place.find("tool", word)


def test_the_longest_word_and_variable_that_are_let_through_really_start(place: Place) -> None:
    name_bytes = len("STOKER_PARAMS=")
    params = {"x": "y" * (128 * 1024 - 1 - name_bytes - len('{"x":""}'))}
    launch = place.find("./train.sh", "z" * (128 * 1024 - 1), params=params)
    pid = os.posix_spawn(str(place.folder / "train.sh"), launch.argv, {**launch.env, "PATH": "/usr/bin:/bin"})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert json.loads(launch.env["STOKER_PARAMS"]) == params


def test_what_makes_ranks_of_a_program_is_our_own_and_the_program_is_found_all_the_same(place: Place) -> None:
    launch = place.find(*gang_words(4), "python", "train.py", "--", "x")
    plain = place.find("python", "train.py", "--", "x")
    ours = (sys.executable, "-P", "-m", "stoker", "gang", "run", "--ranks", "4", "--")
    assert launch.argv == (*ours, *plain.argv)
    assert launch.env == plain.env
    with pytest.raises(ProgramNotFound, match="there is no program toool"):
        place.find(*gang_words(4), "toool")


@pytest.mark.parametrize(
    ("word", "python", "why"),
    [
        ("python", "ROOT/.venv/bin/python", ".venv of this folder"),
        ("python3", "ROOT/.venv/bin/python", ".venv of this folder"),
        ("python3.12", "ROOT/bin/python3.12", "PATH"),
        ("./other/bin/python", "./other/bin/python", ""),
        ("ROOT/bin/python3", "ROOT/bin/python3", ""),
        ("./train.py", "ROOT/bin/python3.12", "first line of train.py"),
        ("./train.sh", "", ""),
        ("tool", "", ""),
        ("torchrun", "", ""),
        ("uv", "", ""),
    ],
)
def test_a_launch_names_the_interpreter_that_really_runs_or_none(
    place: Place, word: str, python: str, why: str
) -> None:
    for name in ("bin/python3.12", "bin/torchrun", "bin/uv", "other/bin/python"):
        place.program(name)
    place.program("train.py", "#!/usr/bin/env python3.12\n")
    launch = place.find(word.replace("ROOT", str(place.folder)), "run", "python", "x.py")
    assert (launch.python, launch.python_found_by if launch.python else "") == (
        python.replace("ROOT", str(place.folder)),
        why,
    )
    if launch.python and not word.endswith(".py"):
        assert launch.argv[0] == launch.python
    assert place.find(*gang_words(2), *launch.argv).python == launch.python
