from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile
from stoker.host.interpreter import (
    FolderInterpreter,
    find_python,
    is_bare_python,
    missing_script,
    no_script,
    script_interpreter,
)


class Machine:
    """A user's machine: a project folder, and programs where they are put."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.own = root / "own"
        self.env: dict[str, str] = {"PATH": ""}
        self.project.mkdir()

    def program(self, path: str) -> str:
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text("#!/bin/sh\n")
        at.chmod(0o755)
        return str(at)

    def virtual(self, path: str, *names: str) -> str:
        for name in names or ("python", "python3"):
            self.program(f"{path}/bin/{name}")
        (self.root / path / "pyvenv.cfg").touch()
        return str(self.root / path)

    def path(self, *places: str) -> None:
        self.env["PATH"] = os.pathsep.join(str(self.root / place) for place in places)

    def find(self, wanted: str = "", word: str = "python") -> FolderInterpreter:
        return find_python(wanted, folder=str(self.project), environment=self.env, own_prefix=str(self.own), word=word)

    def finds(self, wanted: str = "", word: str = "python") -> str:
        path = self.find(wanted, word).path
        return os.path.relpath(path, self.root) if path else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("python", True), ("python3", True), ("python3.12", True), ("python2", False), ("pythonw", False),
        ("/usr/bin/python", False), ("python3.12t", False), ("", False),
    ],
)  # fmt: skip
def test_which_words_mean_python_whichever(word: str, answer: bool) -> None:
    assert is_bare_python(word) is answer


def test_the_one_that_was_named_wins_over_all(machine: Machine) -> None:
    machine.env["VIRTUAL_ENV"] = machine.virtual("active")
    machine.virtual("project/.venv")
    named = machine.program("opt/python3.9")
    found = machine.find(named)
    assert found.path == named
    assert found.env["VIRTUAL_ENV"] is None
    assert machine.finds("../opt/python3.9") == "opt/python3.9"


def test_the_folder_of_an_environment_may_be_named(machine: Machine) -> None:
    machine.virtual("envs/a")
    machine.path("usr")
    found = machine.find("../envs/a")
    assert os.path.normpath(found.path) == str(machine.root / "envs/a/bin/python")
    assert os.path.normpath(str(found.env["VIRTUAL_ENV"])) == str(machine.root / "envs/a")
    assert os.path.normpath(str(found.env["PATH"]).split(os.pathsep)[0]) == str(machine.root / "envs/a/bin")


def test_a_program_on_the_path_may_be_named(machine: Machine) -> None:
    machine.program("usr/python3.9")
    machine.path("usr")
    assert machine.finds("python3.9") == "usr/python3.9"


@pytest.mark.parametrize("wanted", ["nowhere", "../nowhere/python", "plain", "../envs/empty", "~nobody/x"])
def test_one_that_leads_nowhere_is_refused(machine: Machine, wanted: str) -> None:
    (machine.project / "plain").touch()
    (machine.root / "envs/empty").mkdir(parents=True)
    with pytest.raises(LocalFile, match="there is no Python at"):
        machine.find(wanted)


def test_an_active_environment_wins_over_the_folders_own(machine: Machine) -> None:
    machine.virtual("project/.venv")
    machine.env["VIRTUAL_ENV"] = machine.virtual("active")
    assert machine.finds() == "active/bin/python"
    del machine.env["VIRTUAL_ENV"]
    machine.program("conda/bin/python")
    machine.env |= {"CONDA_PREFIX": str(machine.root / "conda"), "CONDA_DEFAULT_ENV": "work"}
    found = machine.find()
    assert found.path == str(machine.root / "conda/bin/python")
    assert "VIRTUAL_ENV" not in found.env


def test_the_folders_own_wins_over_an_environment_that_is_active_without_a_wish(machine: Machine) -> None:
    machine.virtual("own")
    machine.virtual("project/.venv")
    machine.env["VIRTUAL_ENV"] = str(machine.own)
    assert machine.finds() == "project/.venv/bin/python"
    machine.program("conda/bin/python")
    machine.env = {"PATH": "", "CONDA_PREFIX": str(machine.root / "conda"), "CONDA_DEFAULT_ENV": "base"}
    assert machine.finds() == "project/.venv/bin/python"


def test_ours_serves_if_it_is_active_or_the_folders_own(machine: Machine) -> None:
    machine.virtual("own")
    machine.env["VIRTUAL_ENV"] = str(machine.own)
    assert machine.finds() == "own/bin/python"
    machine.env = {"PATH": ""}
    (machine.project / ".venv").symlink_to(machine.own)
    assert machine.finds() == "project/.venv/bin/python"


@pytest.mark.parametrize("mark", ["pipx_metadata.json", "uv-receipt.toml"])
def test_a_private_environment_of_ours_that_is_first_on_the_path_is_passed_over(machine: Machine, mark: str) -> None:
    machine.virtual("own")
    (machine.own / mark).touch()
    machine.program("own/bin/torchrun")
    machine.program("usr/python")
    (machine.root / "link").symlink_to(machine.own / "bin")
    machine.path("own/bin", "link", "usr")
    found = machine.find()
    assert found.path == str(machine.root / "usr/python")
    assert found.env["PATH"] == str(machine.root / "usr")
    (machine.root / "usr/python").unlink()
    assert machine.find().path == ""
    assert machine.find().why == "python not found on PATH"


def test_a_private_environment_of_ours_is_off_the_path_beside_another_one_too(machine: Machine) -> None:
    machine.virtual("own")
    (machine.own / "uv-receipt.toml").touch()
    machine.virtual("project/.venv")
    machine.path("own/bin", "usr")
    assert machine.find().env["PATH"] == os.pathsep.join(
        [str(machine.project / ".venv/bin"), str(machine.root / "usr")]
    )


def test_an_environment_that_somebody_put_on_the_path_is_theirs_though_we_live_in_it(machine: Machine) -> None:
    """As in a container whose image has one environment for everything, activated by `PATH` alone."""
    machine.virtual("own")
    machine.program("usr/python")
    machine.path("own/bin", "usr")
    assert machine.finds() == "own/bin/python"


def test_a_system_in_which_stoker_is_installed_is_no_private_environment(machine: Machine) -> None:
    machine.program("own/bin/python")
    machine.path("own/bin")
    assert machine.finds() == "own/bin/python"
    assert machine.find().env["PATH"] == str(machine.own / "bin")


def test_a_stale_environment_is_passed_over(machine: Machine) -> None:
    machine.program("usr/python3")
    machine.path("usr")
    machine.env["VIRTUAL_ENV"] = str(machine.root / "deleted")
    assert machine.finds() == "usr/python3"


def test_on_the_path_the_word_that_was_typed_counts(machine: Machine) -> None:
    for name in ("python", "python3", "python3.12"):
        machine.program(f"usr/{name}")
    machine.path("usr")
    assert machine.finds(word="python") == "usr/python"
    assert machine.finds(word="python3") == "usr/python3"
    assert machine.finds(word="python3.12") == "usr/python3.12"
    assert machine.finds(word="python3.13") == ""


def test_where_there_is_no_python_a_python3_serves(machine: Machine) -> None:
    machine.program("usr/python3")
    machine.path("usr")
    assert machine.finds(word="python") == "usr/python3"


def test_a_version_that_an_environment_does_not_have_is_looked_for_on_the_path(machine: Machine) -> None:
    machine.env["VIRTUAL_ENV"] = machine.virtual("active", "python")
    machine.program("usr/python3.12")
    machine.env["PATH"] = str(machine.root / "usr")
    assert machine.finds(word="python3") == "active/bin/python"
    assert machine.finds(word="python3.12") == "usr/python3.12"
    assert machine.finds("../active", word="python3.12") == "usr/python3.12"


def test_venv_is_the_folders_own_environment_too_if_it_is_one(machine: Machine) -> None:
    machine.program("usr/python3")
    machine.path("usr")
    machine.program("project/venv/bin/python")
    assert machine.finds() == "usr/python3"
    machine.virtual("project/venv")
    for word in ("python", "python3"):
        assert machine.finds(word=word) == f"project/venv/bin/{word}"
    assert machine.find().why == "venv of this folder"
    machine.virtual("project/.venv")
    assert machine.find().why == ".venv of this folder"


@pytest.mark.parametrize("word", ["python", "python3"])
def test_our_environment_at_the_end_of_the_path_is_used_only_if_nothing_else_is_there(
    machine: Machine, word: str
) -> None:
    """As on Debian, which has no `python`."""
    machine.virtual("own")
    machine.program("usr/python3")
    machine.path("usr", "own/bin")
    assert machine.finds(word=word) == "usr/python3"
    assert machine.find(word=word).why == "PATH"
    machine.path("nothing", "own/bin")
    assert machine.finds(word=word) == f"own/bin/{word}"
    assert machine.find(word=word).why == "PATH, Stoker's own environment"


def test_a_python3_before_a_python_is_used_only_instead_of_ours(machine: Machine) -> None:
    machine.virtual("own")
    machine.program("local/python3")
    machine.program("usr/python")
    machine.path("local", "usr", "own/bin")
    assert machine.finds() == "usr/python"


def test_where_it_was_found_is_said(machine: Machine) -> None:
    machine.virtual("own")
    machine.env["VIRTUAL_ENV"] = machine.virtual("active")
    assert machine.find().why == "VIRTUAL_ENV"
    assert machine.find("../active").why == "python="
    machine.env["VIRTUAL_ENV"] = str(machine.own)
    assert machine.find().why == "VIRTUAL_ENV, Stoker's own environment"
    machine.program("conda/bin/python")
    machine.env = {"PATH": "", "CONDA_PREFIX": str(machine.root / "conda"), "CONDA_DEFAULT_ENV": "work"}
    assert machine.find().why == "CONDA_PREFIX"
    machine.env["CONDA_DEFAULT_ENV"] = "base"
    assert machine.find().why == "CONDA_PREFIX, conda's base"
    assert machine.find("../active", word="python3.9").why == "python3.9 not found on PATH"


def test_an_interpreter_that_is_given_by_its_path_brings_its_own_environment(machine: Machine) -> None:
    machine.virtual("project/.venv")
    machine.virtual("project/other")
    for word in ("./other/bin/python", "other/bin/python3", f"{machine.project}/other/bin/python"):
        found = machine.find(word=word)
        assert os.path.dirname(found.path) == str(machine.project / "other/bin")
        assert found.why == ""
        assert found.env["VIRTUAL_ENV"] == str(machine.project / "other")
    machine.env["VIRTUAL_ENV"] = machine.virtual("active")
    assert machine.find(word=machine.program("usr/python3")).env["VIRTUAL_ENV"] is None
    assert machine.finds(word="./gone/bin/python") == "active/bin/python"
    assert machine.finds(word="torchrun") == "active/bin/python"


@pytest.mark.parametrize(
    ("first_line", "found"),
    [
        ("#!/usr/bin/env python3", "usr/python3"),
        ("#!/usr/bin/env -S python3 -u", "usr/python3"),
        ("#!ROOT/usr/python3 -u", "usr/python3"),
        ("#!/usr/bin/env python2", ""),
        ("#!/bin/sh", ""),
        ("#!", ""),
        ("", ""),
        ("/usr/bin/env python3", ""),
    ],
)
def test_the_first_line_of_a_script_names_its_interpreter(machine: Machine, first_line: str, found: str) -> None:
    machine.program("usr/python3")
    machine.path("usr")
    (machine.project / "train.py").write_text(first_line.replace("ROOT", str(machine.root)) + "\nprint(1)\n")
    path = script_interpreter("./train.py", folder=str(machine.project), environment=machine.env)
    assert (os.path.relpath(path, machine.root) if path else "") == found
    assert script_interpreter("./gone.py", folder=str(machine.project), environment=machine.env) == ""


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("python trian.py", "trian.py"),
        ("python3 -u -W ignore sub/x.py --lr 1", "sub/x.py"),
        ("/usr/bin/python3 trian.py", "trian.py"),
        ("python train.py trian.py", ""),
        ("python train.py/x.py", "train.py/x.py"),
        ("python -m trian.py", ""),
        ("python -c trian.py", ""),
        ("python trian", ""),
        ("python --version trian.py", ""),
        ("torchrun trian.py", ""),
        ("python", ""),
        ("", ""),
    ],
)
def test_a_script_is_missing_only_if_that_is_certain(machine: Machine, words: str, missing: str) -> None:
    (machine.project / "train.py").touch()
    assert missing_script(words.split(), str(machine.project)) == missing


def test_a_missing_script_is_reported_with_the_nearest_name(machine: Machine) -> None:
    (machine.project / "sub").mkdir()
    (machine.project / "sub" / "train.py").touch()
    assert no_script("sub/trian.py", str(machine.project)).hint == "did you mean 'train.py'?"
    assert no_script("trian.py", str(machine.project)).hint == "paths are relative to the folder of the command"
