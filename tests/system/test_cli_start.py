"""How a command starts: what it may not import, its help, its aliases, its version."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import import_module

import pytest

from stoker.cli.commands import COMMANDS, Command, find_command
from stoker.cli.grammar import Grammar
from tests.system.shell import Shell

DUMP = """
import sys
from stoker.__main__ import main
code = main()
sys.stderr.write("\\n" + " ".join(sys.modules))
sys.exit(code)
"""
NEVER = {
    "rich",
    "multiprocessing",
    "subprocess",
    "asyncio",
    "pydantic",
    "sklearn",
    "numpy",
    "pandas",
    "torch",
    "argparse",
}


def modules_of(shell: Shell, *words: str) -> set[str]:
    """Return what a command imported."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", DUMP, *words], cwd=shell.folder, env=shell.env, capture_output=True, check=True
    )
    return set(done.stderr.decode().splitlines()[-1].split())


def test_the_help_imports_next_to_nothing(shell: Shell) -> None:
    loaded = modules_of(shell, "--help")
    assert not loaded & (NEVER | {"dataclasses", "enum", "re", "sqlite3", "typing", "inspect", "stoker.app"})


def test_the_list_of_recipes_imports_no_cookbook_and_no_store(shell: Shell) -> None:
    shell.stoker("recipes")
    loaded = modules_of(shell, "recipes")
    assert not loaded & (NEVER | {"stoker_toy", "stoker.cookbooks", "sqlite3", "stoker.engine.recipe", "stoker.store"})


FOR_OTHER_RUNS = {
    "ctypes",
    "random",
    "shutil",
    "socket",
    "stoker.devices.estimate",
    "stoker.host.interpreter",
    "stoker.engine.plan_file",
    "stoker.engine.preview",
    "stoker.jobs.trial_watch",
    "tempfile",
    "textwrap",
}
"""What programs, plan files, dry runs, sweeps, stages that run and trials that share a process need: 45 ms of 300."""


def test_a_run_of_nothing_but_hits_does_not_import_what_other_runs_need(shell: Shell) -> None:
    shell.stoker("run", "toy/sum", "value=3")
    assert not modules_of(shell, "run", "toy/sum", "value=3") & FOR_OTHER_RUNS


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--json",)])
def test_a_run_of_nothing_but_hits_imports_nothing_heavy(shell: Shell, words: tuple[str, ...]) -> None:
    shell.stoker("run", "toy/sum", "value=3")
    assert not modules_of(shell, "run", "toy/sum", "value=3", *words) & NEVER


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_command_explains_itself_with_examples_that_paste(shell: Shell, command: Command) -> None:
    grammar: Grammar = getattr(import_module(command.module), command.grammar)
    assert shell.stoker("help", *command.path).out == grammar.help()
    assert grammar.examples
    script = "\n".join(grammar.examples)
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    for example in grammar.examples:
        words = [word for word in shlex.split(example.partition(" | ")[0]) if word != "--json"]
        assert words[0] == "stoker"
        found, rest = find_command(words[1:])
        assert found is not None
        getattr(import_module(found.module), found.grammar).parse(rest)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["recipe", "list"], ["recipes"]),
        (["recipe", "show", "toy/sum"], ["recipes", "show", "toy/sum"]),
        (["job"], ["jobs"]),
        (["cache"], ["store"]),
        (["clean-cache"], ["store", "prune", "--everywhere"]),
        (["plan", "inspect", "toy/sum", "value=3"], ["run", "toy/sum", "value=3", "--dry-run"]),
        (["help", "recipe"], ["recipes", "--help"]),
    ],
)
def test_words_of_earlier_tools_mean_what_they_meant(shell: Shell, old: list[str], new: list[str]) -> None:
    first, second = shell.stoker(*old), shell.stoker(*new)
    assert (first.code, first.out) == (second.code, second.out)
    assert first.code == 0


def test_the_version_is_told_and_the_top_help_names_every_command(shell: Shell) -> None:
    from stoker import __version__

    assert shell.stoker("--version").out == f"stoker {__version__}\n"
    told = shell.stoker("help").out
    assert told == shell.stoker("--help").out
    assert all(f"  {command.words} " in told for command in COMMANDS if len(command.path) == 1)


def test_recipes_are_listed_by_category(shell: Shell) -> None:
    listed = shell.stoker("recipes", "--category", "train", "--json").objects()
    assert listed
    assert {entry["category"] for entry in listed} == {"train"}
    wrong = shell.stoker("recipes", "--category", "trian")
    assert wrong.code == 2
    assert "did you mean 'train'?" in wrong.err


def test_the_categories_of_the_command_are_those_of_recipes() -> None:
    from stoker.cli import recipes
    from stoker.engine.recipe import Category

    assert list(recipes._CATEGORIES) == [str(category) for category in Category]
