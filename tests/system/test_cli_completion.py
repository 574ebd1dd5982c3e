"""Completion: the words that Tab offers, in real shells, and the scripts' places."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli.commands import COMMANDS
from stoker.cli.completion import SCRIPTS, table
from stoker.cli.completion_words import TABLE, remember
from tests.system.prompt import Prompt
from tests.system.shell import Shell
from tests.system.test_cli_start import NEVER, modules_of

BREAKS = " \t\n\"'@><=;|&(:"
HOSTILE = {
    "two words": "tw",
    "$(touch pwned)": "$(",
    "`touch pwned`": "`",
    "it's": "it",
    'say "hi"': "say",
    "semi; touch pwned": "semi",
    "back\\slash": "back",
    "star*": "star",
    "bang!x": "bang",
    "naïve ☃": "na",
}
UNPRINTABLE = ("line\nbreak", "line\rreturn", "tab\tname", "esc\x1b[31mred", "bell\x07")


def add_job(shell: Shell, name: str, number: int = 0) -> None:
    folder = shell.home / "runs" / f"20261118-0{number:05}-aaaaaaaa"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"v": 1, "name": name, "recipe": "command"}), "utf-8")


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def words(shell: Shell, *typed: str) -> list[str]:
    """Return the words that are offered; the last one typed is not complete."""
    done = shell.stoker("__complete", "zsh", *typed)
    assert (done.code, done.err) == (0, "")
    return [line.partition("\t")[0] for line in done.out.splitlines()[1:]]


def part_of_shell(shell: Shell, *typed: str) -> str:
    return shell.stoker("__complete", "zsh", *typed).out.splitlines()[0]


def in_bash(shell: Shell, line: str) -> list[str]:
    return shell.stoker("__complete", "bash", line, BREAKS).out.splitlines()[1:]


# What is offered.


def test_commands_verbs_and_options_are_those_of_the_declarations(shell: Shell) -> None:
    firsts = [command.words for command in COMMANDS if len(command.path) == 1]
    assert words(shell, "") == [*firsts, "help"]
    assert words(shell, "jobs", "re") == ["requeue"]
    assert words(shell, "admin", "tokens", "ro") == ["rotate"]
    assert words(shell, "help", "store", "p") == ["put", "pin", "pins", "prune"]
    assert words(shell, "job", "sh") == ["show"], "an alias is its command"
    assert words(shell, "cancel", "--") == ["--no-wait", "--at", "--json", "--quiet", "--debug", "--help", "--version"]
    assert "--quiet" in words(shell, "--")
    assert words(shell, "no-such-command", "") == []


def test_an_option_is_offered_once_unless_it_may_be_repeated(shell: Shell) -> None:
    assert words(shell, "run", "--dry-run", "--dry") == []
    assert words(shell, "run", "--config", "a.yaml", "--conf") == ["--config"]


def test_recipes_keys_and_choices_come_from_the_index(shell: Shell) -> None:
    assert words(shell, "run", "toy/") == words(shell, "submit", "toy/") != []
    assert words(shell, "run", "tabular/g") == ["tabular/gbt"]
    assert words(shell, "run", "tabular/gbt", "l") == ["lr="]
    assert words(shell, "run", "gbt", "+l") == ["+lr="]
    assert words(shell, "run", "--keep-going", "tabular/gbt", "seed=1", "problem=") == [
        "problem=auto",
        "problem=classification",
        "problem=regression",
    ]
    assert words(shell, "run", "tabular/gbt", "rank_by=auto,bri") == ["rank_by=auto,brier"]
    assert words(shell, "run", "lr=1", "gp") == ["gpus=", "gpu_backend="], "a program's settings"
    assert words(shell, "config", "gbt", "tes") == ["test_percent="]
    assert words(shell, "adapters", "run", "a.toml", "ra") == ["rank="]
    assert words(shell, "recipes", "show", "tabular/k") == ["tabular/knn", "tabular/knn_semi"]


def test_values_of_options_are_choices_and_names(shell: Shell) -> None:
    add_job(shell, "resnet")
    remember(str(shell.home / "state"), "machines", ["desk", "attic"])
    remember(str(shell.home / "state"), "jobs", ["sweep/1", "sweep/2", "far"])
    assert words(shell, "admin", "tokens", "make", "me", "--role", "") == [
        "read",
        "submit",
        "launch",
        "operate",
        "admin",
    ]
    assert words(shell, "jobs", "--status=pending,ca") == ["--status=pending,cancelled"]
    assert words(shell, "logs", "") == ["last", "resnet", "sweep", "far"]
    assert words(shell, "run", "--failed", "re") == ["resnet"]
    assert words(shell, "compare", "resnet", "s") == ["sweep"]
    assert words(shell, "submit", "--host", "d") == ["desk"]
    assert words(shell, "machines", "drain", "") == ["desk", "attic"]
    assert words(shell, "completion", "") == ["bash", "zsh", "fish"]


def test_the_shell_completes_files_folders_and_programs(shell: Shell) -> None:
    assert part_of_shell(shell, "check", "") == "files"
    assert part_of_shell(shell, "run", "toy") == "files"
    assert part_of_shell(shell, "run", "--out", "") == "folders"
    assert part_of_shell(shell, "run", "--out=") == "folders"
    assert part_of_shell(shell, "run", "tabular/gbt", "data=") == "files"
    assert part_of_shell(shell, "run", "lr=1", "--", "pyth") == "program 3"
    assert part_of_shell(shell, "jobs", "--", "x") == ""
    assert part_of_shell(shell, "logs", "") == ""


def test_stored_trees_are_offered_beside_jobs(shell: Shell) -> None:
    (shell.folder / "data").write_text("x")
    assert shell.stoker("store", "put", "data", "--as", "my data").code == 0
    assert words(shell, "get", "my") == ["my data"]
    assert words(shell, "store", "refs", "my") == ["my data"]


def test_names_that_a_terminal_would_obey_are_not_offered(shell: Shell) -> None:
    for number, name in enumerate(UNPRINTABLE):
        add_job(shell, name, number)
    assert words(shell, "logs", "") == ["last"]
    assert in_bash(shell, "stoker logs ") == ["last "]


def test_the_words_of_bash_are_quoted_for_the_place_of_the_cursor(shell: Shell) -> None:
    add_job(shell, "$(x) y")
    assert in_bash(shell, "stoker logs \\$") == ["\\$\\(x\\)\\ y "]
    assert in_bash(shell, "stoker logs '") == ["last", "$(x) y"]
    assert in_bash(shell, 'stoker logs "\\$') == ["\\$(x) y"]
    assert in_bash(shell, "stoker run --failed=la") == ["last "], "bash replaces what follows ="
    assert in_bash(shell, "stoker jobs  --status  'fail") == ["failed"]
    assert in_bash(shell, "stoker logs 'la'") == []


# What it may not do.


def test_it_imports_little_and_leaves_an_empty_home_alone(shell: Shell) -> None:
    shutil.rmtree(shell.home)
    loaded = modules_of(shell, "__complete", "zsh", "run", "")
    assert not loaded & (NEVER | {"sqlite3", "socket", "stoker.app", "stoker.cli.run", "stoker.cookbooks"})
    assert not shell.home.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"recipes": 3}', "\x00"])
def test_damaged_files_mean_fewer_words_and_no_message(shell: Shell, damage: str) -> None:
    for path in (shell.home / "state" / "cookbooks.json", shell.home / "state" / "seen.json"):
        path.write_text(damage)
    add_job(shell, "whole", 1)
    (shell.home / "runs" / "20261118-000009-aaaaaaaa").mkdir()
    for typed in (["run", ""], ["logs", ""], ["machines", "drain", ""], ["run", "tabular/gbt", "l"]):
        done = shell.stoker("__complete", "fish", *typed)
        assert done.err == ""
    assert words(shell, "logs", "w") == ["whole"]


def test_bad_calls_print_nothing(shell: Shell) -> None:
    for typed in ([], ["bash"], ["bash", "stoker "], ["zsh"], ["zsh", "--", ""]):
        done = shell.stoker("__complete", *typed)
        assert done.err == ""


@pytest.mark.timing
def test_two_hundred_jobs_are_offered_in_a_tenth_of_a_second(shell: Shell) -> None:
    for number in range(1000):
        add_job(shell, f"job-{number}", number)
    taken_s = []
    for _ in range(5):
        # Of the processor: other tests may be running.
        began_s = children_s()
        subprocess.run(
            [sys.executable, "-m", "stoker", "__complete", "zsh", "logs", ""],
            env=shell.env,
            cwd=shell.folder,
            check=True,
            capture_output=True,
        )
        taken_s.append(children_s() - began_s)
    assert min(taken_s) < 0.1


def test_the_table_is_what_the_commands_declare() -> None:
    assert json.loads(Path(TABLE).read_text("utf-8")) == json.loads(json.dumps(table())), "run tools/reference.py"


def test_names_are_remembered_newest_first_and_not_without_a_home(tmp_path: Path) -> None:
    state = tmp_path / "state"
    remember(str(state), "jobs", ["a"])
    assert not state.exists()
    state.mkdir()
    remember(str(state), "jobs", ["a/1", "a/2"])
    remember(str(state), "machines", ["m"])
    remember(str(state), "jobs", (f"b{number}" for number in range(499)))
    seen = json.loads((state / "seen.json").read_text())
    assert seen["jobs"][-1] == "a"
    assert len(seen["jobs"]) == 500
    remember(str(state), "jobs", ["c"])
    remember(str(state), "machines", ["n"], is_all=True)
    seen = json.loads((state / "seen.json").read_text())
    assert seen["jobs"][0] == "c"
    assert "a" not in seen["jobs"]
    assert seen["machines"] == ["n"]


# Real shells.


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def prompt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[Prompt]:
    """A prompt of each shell, for all tests: each of them leaves an empty line."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    shell = Shell(tmp_path_factory.mktemp(request.param), index=index)
    for number, name in enumerate(["resnet", *HOSTILE, *UNPRINTABLE]):
        add_job(shell, name, number)
    (shell.folder / "train.py").touch()
    (shell.folder / "results").mkdir()
    path = f"{Path(sys.executable).parent}:{shell.env['PATH']}"
    opened = Prompt(request.param, shell.folder, {**shell.env, "PATH": path, "HOME": str(shell.home)})
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("stoker ru", "stoker run"),
        ("stoker jobs req", "stoker jobs requeue"),
        ("stoker run --dry", "stoker run --dry-run"),
        ("stoker run tabular/g", "stoker run tabular/gbt"),
        ("stoker run tabular/gbt l", "stoker run tabular/gbt lr="),
        ("stoker run tabular/gbt problem=cl", "stoker run tabular/gbt problem=classification"),
        ("stoker logs res", "stoker logs resnet"),
        ("stoker run --failed=res", "stoker run --failed=resnet"),
        ("stoker run --out res", "stoker run --out results/"),
        ("stoker run --out=res", "stoker run --out=results/"),
        ("stoker check tr", "stoker check train.py"),
        ("stoker run -- python tr", "stoker run -- python train.py"),
    ],
)
def test_tab_completes_at_a_real_prompt(prompt: Prompt, typed: str, line: str) -> None:
    assert prompt.complete(typed).rstrip(" ") == line


def test_hostile_names_reach_the_program_as_they_are_and_run_nothing(prompt: Prompt) -> None:
    for name, begin in HOSTILE.items():
        typed = "".join(char if char.isalnum() else f"\\{char}" for char in begin)
        line = prompt.complete(f"stoker logs {typed}").removeprefix("stoker logs ")
        shown = prompt.run(f"printf '[%s]' {line}")
        assert f"[{name}]" in shown, (name, line)
    assert not (prompt.folder / "pwned").exists()


@pytest.mark.parametrize("quote", ["'", '"'])
def test_hostile_names_stay_inside_of_an_open_quote(prompt: Prompt, quote: str) -> None:
    begin = {"'": "$(", '"': "\\$("}[quote]
    line = prompt.complete(f"stoker logs {quote}{begin}").removeprefix("stoker logs ")
    assert "[$(touch pwned)]" in prompt.run(f"printf '[%s]' {line}")
    assert not (prompt.folder / "pwned").exists()


def test_only_a_program_of_its_name_is_called(prompt: Prompt) -> None:
    (prompt.folder / "other").write_text("#!/bin/sh\ntouch pwned\n")
    (prompt.folder / "other").chmod(0o755)
    prompt.run(
        {
            "bash": "complete -o nospace -F _stoker other",
            "zsh": "compdef _stoker other",
            "fish": "complete -c other -f -a '(__stoker_complete)'",
        }[prompt.shell]
    )
    assert prompt.complete("./other ru").rstrip(" ") == "./other run"
    assert not (prompt.folder / "pwned").exists()


def test_a_failing_program_leaves_the_prompt_alone(prompt: Prompt) -> None:
    (prompt.folder / "stoker").write_text("#!/bin/sh\necho out; echo broken >&2; exit 3\n")
    (prompt.folder / "stoker").chmod(0o755)
    assert "broken" not in prompt.complete("./stoker run x")
    assert "broken" not in prompt.seen.rpartition("./stoker")[2]


# The command, and where scripts are installed.


def test_it_prints_the_script_and_names_the_shells_it_knows(shell: Shell) -> None:
    for name, script in SCRIPTS.items():
        assert shell.stoker("completion", name).out == script
        assert shell.stoker("completion", name, "--json").objects() == [{"shell": name, "script": script}]
    done = shell.stoker("completion", "zhs")
    assert (done.code, "did you mean 'zsh'?" in done.err) == (2, True)
    assert shell.stoker("completion").code == 2


def test_scripts_are_installed_only_where_a_place_exists(shell: Shell, tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    env = {"HOME": str(user), "XDG_DATA_HOME": str(user / "data"), "XDG_CONFIG_HOME": "", "FPATH": ""}
    bash = user / "data" / "bash-completion" / "completions" / "stoker"
    found = {one["shell"]: one for one in shell.stoker("completion", "--install", "--json", **env).objects()}
    has_bash = any(Path(folder, "bash-completion/bash_completion").exists() for folder in ("/usr/share",))
    assert (found["bash"]["result"] == "installed") == has_bash == bash.exists()
    assert not found["zsh"]["path"]
    assert not found["fish"]["path"]
    assert [path for path in user.rglob("*") if path.is_file()] == ([bash] if has_bash else [])

    (user / ".zfunc").mkdir()
    (user / ".zshrc").write_text("fpath+=~/.zfunc\n")
    (user / ".config" / "fish").mkdir(parents=True)
    done = shell.stoker("completion", "--install", **env)
    zsh, fish = user / ".zfunc" / "_stoker", user / ".config" / "fish" / "completions" / "stoker.fish"
    assert done.out == f"completion of zsh: installed: {zsh}\ncompletion of fish: installed: {fish}\n"
    assert zsh.read_text() == SCRIPTS["zsh"]
    assert (user / ".zshrc").read_text() == "fpath+=~/.zfunc\n"
    assert shell.stoker("completion", "--install", **env).out == ""

    fish.write_text("# another's\n")
    assert "not changed" in shell.stoker("completion", "--remove", **env).out
    assert fish.read_text() == "# another's\n"
    assert not zsh.exists()
    assert not bash.exists()


def test_a_pipe_or_a_device_in_the_place_of_a_shells_file_neither_blocks_nor_fills_memory(
    shell: Shell, tmp_path: Path
) -> None:
    user = tmp_path / "user"
    (user / ".zfunc").mkdir(parents=True)
    env = {"HOME": str(user), "XDG_CONFIG_HOME": "", "FPATH": ""}
    os.mkfifo(user / ".zshrc")
    (user / ".zshenv").symlink_to("/dev/zero")
    os.mkfifo(user / ".zfunc" / "_stoker")
    done = shell.stoker("completion", "zsh", "--install", **env)
    assert (done.code, done.out) == (0, "completion of zsh: not installed, because there is no folder for it\n")

    (user / ".zshrc").unlink()
    (user / "dotfile").write_text("fpath+=~/.zfunc\n")
    (user / ".zshrc").symlink_to("dotfile")
    assert "not changed" in shell.stoker("completion", "zsh", "--install", **env).out
    (user / ".zfunc" / "_stoker").unlink()
    assert "zsh: installed" in shell.stoker("completion", "zsh", "--install", **env).out


def test_folders_that_variables_name_count_only_if_they_are_absolute_and_fpath_only_below_the_home(
    shell: Shell, tmp_path: Path
) -> None:
    user, elsewhere = tmp_path / "user", tmp_path / "elsewhere"
    user.mkdir()
    elsewhere.mkdir()
    (shell.folder / "relative" / "fish").mkdir(parents=True)
    relative = dict.fromkeys(("BASH_COMPLETION_USER_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), "relative")
    env = {"HOME": str(user), "FPATH": f"{user}/../elsewhere", **relative}
    paths = [one["path"] for one in shell.stoker("completion", "--install", "--json", **env).objects()]
    assert [path for path in paths if path and not path.startswith(f"{user}/.local/")] == []
    assert list(elsewhere.iterdir()) == []
    assert [path for path in (shell.folder / "relative").rglob("*") if path.is_file()] == []
