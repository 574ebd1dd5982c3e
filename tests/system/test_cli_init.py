"""`stoker init`: from somebody's script to a manifest that is valid and a sweep that runs."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from tests.system.shell import Shell

TRAIN = """
    import argparse
    import os

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out-dir", default="out")
    parser.add_argument("--model", choices=["small", "large"], required=True)
    args = parser.parse_args()
    os.makedirs(args.out_dir, exist_ok=True)
    for step in range(3):
        print(f"step {step}: train loss {args.lr:.4f}, val loss {args.lr * (1 + args.seed):.4f}")
    with open(os.path.join(args.out_dir, "weights.txt"), "w") as file:
        print(args.lr, args.model, file=file)
"""


@pytest.fixture
def work(shell: Shell) -> Shell:
    """A shell in a folder with a script, whose `python` starts quickly."""
    scripts = shell.folder / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts.parent / "pyvenv.cfg").touch()
    (scripts / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (scripts / "python").chmod(0o755)
    shell.env.pop("VIRTUAL_ENV", None)
    (shell.folder / "train.py").write_text(textwrap.dedent(TRAIN))
    return shell


def manifest(work: Shell) -> Path:
    return work.folder / "stoker.toml"


def test_the_manifest_is_valid_and_the_printed_command_runs_the_sweep(work: Shell) -> None:
    (work.folder / "requirements.txt").write_text("# none\n")
    done = work.stoker("init", "--yes")
    assert done.code == 0, done.err
    assert "train.py: argparse, 4 options: lr, seed, out_dir, model" in done.err
    assert (
        "python = ./.venv/bin/python (.venv of this folder); packages for other machines: requirements.txt" in done.err
    )
    checked = work.stoker("check", "stoker.toml")
    assert checked.code == 0, checked.err
    assert "manifest: 1 job" in checked.out
    text = manifest(work).read_text()
    assert 'command = "python train.py --lr {lr} --seed {seed} --out-dir {out} --model {model}"' in text
    assert "lr = [0.003, 0.01, 0.03]  # default: 0.01; learning rate" in text
    assert 'env = "requirements.txt"' in text
    run, compare, submit = [line.strip() for line in done.out.splitlines() if line.startswith("  stoker ")]
    assert run == (
        "stoker run model=small lr=0.003,0.01,0.03 seed=0,1 -- "
        "python train.py --lr {lr} --seed {seed} --out-dir {out} --model {model}"
    )
    ran = work.stoker(*shlex.split(run)[1:])
    assert ran.code == 0, ran.err
    assert "6 ok" in ran.out
    outputs = sorted((work.folder / "stoker-out" / "train").glob("*/weights.txt"))
    assert len(outputs) == 6
    ranked = work.stoker(*shlex.split(compare)[1:])
    assert ranked.code == 0, ranked.err
    assert "best: lr=0.003,seed=0  val_loss 0.003" in ranked.out
    preview = work.stoker(*shlex.split(submit)[1:])
    assert preview.code == 0, preview.err
    assert "6 jobs" in preview.out


def test_what_is_left_to_fill_in_and_names_that_are_taken_are_named(work: Shell) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
    (work.folder / "train.py").write_text(text)
    done = work.stoker("init", "--yes")
    assert "data_: Stoker has settings of these names" in done.err
    assert "replace FILL-IN first, in stoker.toml and below: data_" in done.out
    submitted = work.stoker("submit", "--dry-run", "stoker.toml")
    assert "note: train: replace FILL-IN by the value of data_" in submitted.err


def test_answers_at_a_terminal_decide_what_is_written(work: Shell) -> None:
    answers = b"sed\nlr=log:1e-3:1e-1:3 seed\n/etc\nruns\ntrain_loss\n"
    done = work.at_a_terminal("init", when=lambda seen: answers if b"sweep [" in seen else None)
    assert done.code == 0, done.out
    assert "'sed' is no option of the script (did you mean 'seed'?)" in done.out
    assert "/etc is neither an option of the script nor a folder below this one" in done.out
    text = manifest(work).read_text()
    assert 'lr = "log:1e-3:1e-1:3"' in text
    assert "seed = [0, 1]" in text
    assert 'outputs = ["runs"]' in text
    assert "stoker compare train --by train_loss" in text
    assert work.stoker("check", "stoker.toml").code == 0


def test_codes_in_an_answer_are_not_printed(work: Shell) -> None:
    answers = b"-\n-\nlo\x1b[31mss\n"
    done = work.at_a_terminal("init", when=lambda seen: answers if b"sweep [" in seen else None)
    assert done.code == 0, done.out
    assert r"stoker compare train --by 'lo\x1b[31mss'" in done.out
    assert "lo\x1b" not in done.out


def test_without_a_terminal_the_answers_are_taken_only_with_yes(work: Shell) -> None:
    done = work.stoker("init")
    assert done.code == 2
    assert "there is no terminal" in done.err
    assert "stoker init --yes" in done.err
    assert not manifest(work).exists()


def test_an_end_of_input_writes_nothing(work: Shell) -> None:
    done = work.at_a_terminal("init", when=lambda seen: b"\x04" if b"sweep [" in seen else None)
    assert done.code == 130
    assert not manifest(work).exists()


def test_an_existing_manifest_is_kept_unless_forced(work: Shell) -> None:
    manifest(work).write_text("# mine\n")
    refused = work.stoker("init", "--yes")
    assert refused.code == 16
    assert "stoker.toml already exists" in refused.err
    assert "--force" in refused.err
    assert manifest(work).read_text() == "# mine\n"
    assert work.stoker("init", "--yes", "--force").code == 0
    assert "[[jobs]]" in manifest(work).read_text()
    assert sorted(os.listdir(work.folder)) == [".venv", "stoker.toml", "train.py"]


def test_a_dry_run_prints_the_manifest_alone(work: Shell) -> None:
    done = work.stoker("init", "--dry-run")
    assert done.code == 0, done.err
    assert not manifest(work).exists()
    manifest(work).write_text(done.out)
    assert work.stoker("check", "stoker.toml").code == 0
    (found,) = work.stoker("init", "--dry-run", "--json").objects()
    assert found["text"] == done.out
    assert found["is_written"] is False
    assert found["style"] == "argparse"
    assert found["sweep"] == {"lr": "0.003,0.01,0.03", "seed": "0,1"}
    assert [option["name"] for option in found["options"]] == ["lr", "seed", "out_dir", "model"]
    assert (found["metric"], found["output"], found["required"]) == ("val_loss", "out_dir", {"model": "small"})


def test_a_script_without_options_gets_a_plain_job(work: Shell) -> None:
    (work.folder / "other script.py").write_text("print('loss', 0.5)\n")
    done = work.stoker("init", "other script.py", "--yes")
    assert done.code == 0, done.err
    assert "no options found" in done.err
    assert "stoker run -- python 'other script.py'" in done.out
    assert work.stoker("check", "stoker.toml").code == 0
    (line,) = [one.strip() for one in done.out.splitlines() if one.startswith("  stoker run")]
    ran = work.stoker(*shlex.split(line)[1:])
    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trian.py"], 16, "did you mean 'train.py'?"),
        (["broken.py"], 16, "broken.py can't be parsed as Python 3: line 1"),
        (["train.sh"], 2, "stoker run -- ./train.sh"),
        (["../elsewhere.py"], 2, "is not below the current folder"),
        (["folder.py"], 16, "folder.py"),
    ],
)
def test_a_script_that_is_none_is_refused(work: Shell, words: list[str], code: int, message: str) -> None:
    (work.folder / "broken.py").write_text("def f(:\n")
    (work.folder / "train.sh").write_text("echo\n")
    (work.folder.parent / "elsewhere.py").write_text("x = 1\n")
    (work.folder / "folder.py").mkdir()
    done = work.stoker("init", "--yes", *words)
    assert done.code == code, done.err
    assert message in done.err
    assert "Traceback" not in done.err
    assert not manifest(work).exists()


def test_hostile_names_and_texts_do_not_leave_their_places(work: Shell) -> None:
    (work.folder / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--lr', type=float, default=0.1, help='x\\n[[jobs]]\\nname = \"evil\"\\x1b[31m')\n"
        "p.add_argument('--data', required=True, choices=['a\"\\n\\x7f', 'b'])\n"
        "p.add_argument('--zip', default='\\n[[hosts]]')\n"
        "p.add_argument('--bad name; rm -rf ~', default=1)\n"
    )
    done = work.stoker("init", "--yes")
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err + manifest(work).read_text()
    assert len(done.out.partition("next:\n")[2].splitlines()) == 3
    checked = work.stoker("check", "stoker.toml", "--json").objects()
    assert [(one["jobs"], one["hosts"]) for one in checked] == [(1, 0)]
    assert "--data {data_}" in manifest(work).read_text()
    assert "rm -rf" not in done.out + manifest(work).read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad\udcff.py", "it is not Unicode text"),
        ("{lr}.py", "it has braces, which stand for parameters"),
        ("{resume}.py", "it has braces, which stand for parameters"),
        ("a\nb.py", "it has a control character"),
        ("a\x1b[31m.py", "it has a control character"),
        ("a\\b.py", "it has a backslash"),
        ("a\u202eb.py", "it has a character that turns the text around"),
    ],
)
def test_a_script_that_a_manifest_cannot_name_is_refused_whether_it_is_given_or_found(
    work: Shell, name: str, message: str
) -> None:
    (work.folder / "train.py").rename(work.folder / name)
    for words in ([name], []):
        done = work.stoker("init", "--yes", *words)
        assert (done.code, done.out) == (2, "")
        assert f"a manifest can't name this script: {message}" in done.err
        assert "\x1b" not in done.err
        assert not manifest(work).exists()


def test_a_command_of_the_script_with_braces_is_refused(work: Shell) -> None:
    (work.folder / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser().add_subparsers().add_parser('train {lr} {out}')\n"
        "p.add_argument('--lr', type=float, default=0.1)\n"
    )
    done = work.stoker("init", "--yes")
    assert done.code == 2
    assert "train.py: the command 'train {lr} {out}' has braces, which stand for parameters" in done.err
    assert not manifest(work).exists()


def test_a_script_whose_name_begins_as_an_option_runs(work: Shell) -> None:
    (work.folder / "-x.py").write_text("print('loss', 0.5)\n")
    done = work.stoker("init", "--yes", "--", "-x.py")
    assert done.code == 0, done.err
    assert "stoker.toml  job x\n" in done.out
    assert "  stoker run -- python ./-x.py\n" in done.out
    assert work.stoker("run", "--", "python", "./-x.py").code == 0


@pytest.mark.parametrize(
    ("files", "key", "message"),
    [
        ({}, "", "no list found"),
        ({"requirements.txt": "numpy\n"}, 'env = "requirements.txt"', "requirements.txt"),
        ({"pyproject.toml": "[project]\ndependencies = ['numpy']\n"}, 'env = "pyproject.toml"', "pyproject.toml"),
        ({"requirements.txt": "-r none.txt\n"}, "", "requirements.txt (file not found: none.txt"),
        ({"poetry.lock": ""}, "", "poetry export"),
        ({"environment.yml": ""}, "", "environment.yml (use an interpreter of each machine"),
    ],
)  # fmt: skip
def test_the_environment_of_the_project_is_named(work: Shell, files: dict[str, str], key: str, message: str) -> None:
    for name, text in files.items():
        (work.folder / name).write_text(text)
    done = work.stoker("init", "--yes")
    assert done.code == 0, done.err
    assert message in done.err
    lines = [line for line in manifest(work).read_text().splitlines() if line.startswith("env =")]
    assert lines == [key] * bool(key)
    assert work.stoker("check", "stoker.toml").code == 0
