"""Which code is accepted: trees by their whole digest, and of their jobs those that start a file of the tree."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.job import EnvironmentChoice, InputKind, JobInput
from stoker.protocol.job_checks import code_of, is_tree, start_of, why_not_accepted, why_not_in_tree

TREE, OTHER, COMMIT = "a" * 64, "b" * 64, "c" * 40
FILES = {
    "train.py": False,
    "run.sh": True,
    "data.sh": False,
    "sub/train.py": False,
    "pkg/__init__.py": False,
    "pkg/__main__.py": False,
    "pkg/task.py": False,
    "loose/task.py": False,
}


def job(*argv: str, inputs: tuple[JobInput, ...] = (), environment: Any = (), **args: Any) -> dict[str, Any]:
    return {
        "code_tree": TREE,
        "commit": COMMIT,
        "args": {"argv": list(argv or ("python", "train.py")), **args},
        "inputs": inputs,
        "environment": environment,
    }


def given(where: str) -> JobInput:
    return JobInput(where=where, kind=InputKind.FILE, tree=OTHER, name="x")


@pytest.mark.parametrize("accepts", [(), (TREE,), (OTHER, TREE)], ids=["any", "tree", "one of two"])
def test_a_tree_that_is_named_is_accepted(accepts: tuple[str, ...]) -> None:
    assert why_not_accepted(accepts, TREE, COMMIT) == ""


@pytest.mark.parametrize("accepts", [(COMMIT,), (TREE[:63],), (TREE[:7],), ("",)])
def test_a_commit_or_a_part_of_a_digest_names_no_code(accepts: tuple[str, ...]) -> None:
    assert why_not_accepted(accepts, TREE, COMMIT).endswith(f"and this is tree {TREE[:12]}")
    assert not any(map(is_tree, accepts))


def test_why_not_says_what_is_accepted_and_what_this_is() -> None:
    assert why_not_accepted((OTHER,), TREE, "") == f"accepts only {OTHER[:12]}, and this is tree {TREE[:12]}"
    assert why_not_accepted((OTHER,), "", "sets variables") == f"accepts only {OTHER[:12]}, and this sets variables"
    assert "and 2 more" in why_not_accepted(tuple(f"{number:064d}" for number in range(5)), TREE, COMMIT)


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "train.py", "-c", "anything"),
        ("python3", "./train.py"),
        ("python3.11", "-u", "-BO", "sub/train.py", "--lr", "{lr}"),
        ("./run.sh", "x"),
        ("python", "-m", "pkg"),
        ("python", "-u", "-m", "pkg.task", "{out}"),
        ("python", "-m", "train"),
    ],
)
def test_files_of_the_tree_may_be_started(argv: tuple[str, ...]) -> None:
    assert code_of(job(*argv)) == (TREE, COMMIT)
    assert why_not_in_tree(start_of(argv), "", FILES) == ""


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("",),
        ("sh", "-c", "id"),
        ("/bin/sh", "-c", "id"),
        ("bash", "run.sh"),
        ("env", "python", "train.py"),
        ("run.sh",),
        ("/usr/bin/python3", "train.py"),
        ("../run.sh",),
        ("sub/../run.sh",),
        ("{x}/run.sh",),
        ("./{x}",),
        (".\\run.sh/",),
        ("perl", "x.pl"),
        ("pythonX", "train.py"),
        ("python",),
        ("python", "-"),
        ("python", "-c", "import os"),
        ("python", "-cimport os"),
        ("python", "-uc", "import os"),
        ("python", "-i", "train.py"),
        ("python", "-W", "error::evil.x", "train.py"),
        ("python", "-X", "pycache_prefix=/tmp", "train.py"),
        ("python", "-I", "-m", "pkg"),
        ("python", "-P", "-m", "pkg"),
        ("python", "-m"),
        ("python", "-m", "{x}"),
        ("python", "-m", "../pkg"),
        ("python", "-mpkg"),
        ("python", "{x}"),
        ("python", "{{x}}"),
        ("python", "/tmp/evil.py"),
        ("python", "../evil.py"),
        ("python", "~/evil.py"),
        ("python", ""),
        ("python", "-u", "{x}", "train.py"),
    ],
)
def test_other_starts_are_no_code_of_a_tree(argv: tuple[str, ...]) -> None:
    tree, why = code_of({**job(), "args": {"argv": list(argv)}})
    assert tree == ""
    assert why.startswith("starts ")
    assert ":" not in why


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "evil.py"),
        ("python", "pkg"),
        ("python", "-m", "evil"),
        ("python", "-m", "sub"),
        ("python", "-m", "loose.task"),
        ("python", "-m", "pkg.evil"),
        ("./data.sh",),
        ("./evil.sh",),
    ],
)
def test_what_is_no_file_of_the_tree_is_not_started(argv: tuple[str, ...]) -> None:
    assert code_of(job(*argv))[0] == TREE
    assert "of its tree" in why_not_in_tree(start_of(argv), "", FILES) or "in its tree" in why_not_in_tree(
        start_of(argv), "", FILES
    )


def test_a_start_is_looked_for_in_the_folder_that_it_runs_in() -> None:
    assert why_not_in_tree(start_of(("python", "train.py")), "sub", FILES) == ""
    assert why_not_in_tree(start_of(("./run.sh",)), "sub", FILES)


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "/tmp/evil/python"},
        {"env": {"LD_PRELOAD": "x.so"}},
        {"env": {"PYTHONPATH": "x"}},
        {"env": {"ANYTHING": "x"}},
        {"data": {"PYTHONSTARTUP": "x"}},
        {"data": {"XDG_DATA_HOME": "x"}},
        {"inputs": (given("env:LD_LIBRARY_PATH"),)},
        {"inputs": (given("env:PYTHONPATH"),)},
        {"inputs": (given("arg:python"),)},
        {"inputs": (given("arg:argv.0"),)},
        {"inputs": (given("arg:workspace"),)},
        {"environment": (EnvironmentChoice(kind="python", path="/tmp/evil/python"),)},
    ],
)
def test_a_job_that_brings_other_code_is_no_code_of_its_tree(changes: dict[str, Any]) -> None:
    tree, why = code_of(job(**changes))
    assert tree == ""
    assert why


def test_a_job_may_name_data_inputs_and_an_environment_of_its_tree() -> None:
    made = job(
        inputs=(given("env:DATA"), given("env:VALID_DATA2"), given("arg:inputs.0")),
        environment=(EnvironmentChoice(kind="requirements", path="r.txt"), EnvironmentChoice(kind="python")),
        data={"TRAIN_DATA": "/x"},
        params={"lr": 1},
    )
    assert code_of(made) == (TREE, COMMIT)
    assert code_of({**made, "code_tree": ""}) == ("", "runs in a folder, whose code is unknown")


@pytest.mark.parametrize("word", ["main", "abc", "", "g" * 64, "a" * 65, COMMIT])
def test_words_that_name_no_tree(word: str) -> None:
    assert not is_tree(word)


def test_data_that_is_placed_beside_the_code_may_be_code() -> None:
    assert code_of(job(inputs=(given("at:data/corpus"),))) == ("", "places data beside its code")
