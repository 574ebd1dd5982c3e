"""Looking at jobs and taking their results: jobs, logs, explain, get, status."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.system.shell import TOY, Shell


@pytest.fixture
def used(shell: Shell) -> Shell:
    """A shell in which something has run."""
    assert shell.stoker("run", "toy/sum", "value=3").code == 0
    return shell


def test_a_pipe_in_the_place_of_a_log_is_said_and_not_waited_for(used: Shell) -> None:
    (log,) = used.home.glob("runs/*/logs/double.log")
    log.unlink()
    os.mkfifo(log)
    done = used.stoker("logs", "sum")
    assert done.code == 16
    assert "the number is 3" in done.out
    assert "this is not a regular file" in done.err


def test_jobs_are_listed_found_by_name_prefix_and_last_and_forgotten(used: Shell) -> None:
    used.stoker("run", "toy/text", "value=3", "--no-out")
    listed = used.stoker("jobs").out.splitlines()
    assert [line.split()[0] for line in listed] == ["job", "text", "sum"]
    assert "note: older jobs are not shown" in used.stoker("jobs", "--limit", "1").err
    attempt = used.stoker("jobs", "--json").objects()[1]["attempt"]
    for name in ("sum", attempt, attempt.rpartition("-")[2][:4]):
        assert used.stoker("jobs", "show", name).out.startswith("sum: completed")
    assert used.stoker("jobs", "show", "last").out.startswith("text: completed")
    assert used.stoker("jobs", "rm", "text").code == 0
    assert used.stoker("jobs", "show", "last").out.startswith("sum: completed")
    assert used.stoker("run", "toy/text", "value=3", "--no-out").out.startswith("all 2 stages were cached")


def test_the_words_of_a_program_are_shown_as_it_gets_them(shell: Shell) -> None:
    assert shell.stoker("run", "--", "echo", "{resume?a:b}", '{"a":{"b":1}}', "{out}").code == 0
    assert 'argv=[echo,{resume?a:b},{"a":{"b":1}},{out}]' in shell.stoker("jobs", "show", "last").out


def test_a_bare_command_says_how_things_stand(used: Shell) -> None:
    done = used.stoker()
    assert done.code == 0
    assert done.out.startswith("no running jobs\n")
    assert "sum  completed" in done.out
    assert "store: " in done.out


def test_logs_show_what_stages_printed_and_why_one_printed_nothing(used: Shell) -> None:
    assert used.stoker("logs", "sum").out == "==> number <==\nthe number is 3\n\n==> double <==\ndoubling\n"
    assert used.stoker("logs", "sum/number").out == "the number is 3\n"
    assert used.stoker("logs", "sum/double").out == "doubling\n"
    assert used.stoker("logs", "sum/double", "--json").objects() == [{"node": "double", "line": "doubling"}]
    used.stoker("run", "toy/sum", "value=3")
    silent = used.stoker("logs", "sum/double").err
    assert "its result was known, so it did not run; where it did: stoker logs " in silent
    assert used.stoker("logs", silent.split()[-1]).out == "doubling\n"
    assert used.stoker("logs", "sum").err.endswith(
        f"made earlier: stoker logs {silent.split()[-1].partition('/')[0]}\n"
    )
    assert "did you mean 'double'?" in used.stoker("logs", "sum/duoble").err


def test_explain_tells_what_was_decided_and_what_would_be_now_field_by_field(used: Shell, tmp_path: Path) -> None:
    used.stoker("run", "toy/sum", "value=4")
    told = used.stoker("explain", "sum/number")
    assert "then  ran in" in told.out
    assert "        args.value: 3 → 4" in told.out
    assert "now   hit: result is known" in told.out
    assert "(the same)" in told.out
    cookbook = tmp_path / "changed"
    shutil.copytree(TOY, cookbook)
    code = cookbook / "stoker_toy.py"
    code.write_text(code.read_text().replace("2 * number.load()", "3 * number.load()"))
    used.use(cookbook)
    told = used.stoker("explain", "sum")
    assert "would run" in told.out
    now = used.stoker("explain", "sum/number", "--json").objects()[0]["now"]
    assert now["verdict"] == "miss"
    assert [change["field"].split()[0] for change in now["changes"]] == ["code"]


def test_explain_still_tells_what_was_when_the_recipe_is_gone(used: Shell, tmp_path: Path) -> None:
    used.use(tmp_path)
    told = used.stoker("explain", "sum")
    assert told.code == 0
    assert "no forecast for a run now: there is no recipe 'toy/sum'" in told.err
    assert "it has not run before" in told.out


def test_results_are_copied_out_and_nothing_is_overwritten_unasked(used: Shell) -> None:
    assert used.stoker("get", "last").code == 0
    assert sorted(path.name for path in (used.folder / "sum").iterdir()) == [
        ".stoker.json",
        "number",
        "page.txt",
        "summary.json",
    ]
    refused = used.stoker("get", "sum")
    assert refused.code == 1
    assert "is not empty" in refused.err
    (used.folder / "sum/page.txt").write_text("mine")
    assert used.stoker("get", "sum", "--force").code == 0
    assert (used.folder / "sum/page.txt~").read_text() == "mine"
    assert (used.folder / "sum/page.txt").read_text() == "[6, 3]\n"
    assert used.stoker("get", "sum", "one", "--stage", "double").code == 0
    assert json.loads((used.folder / "one/value.json").read_text()) == {"value": 6}
    assert "did you mean 'double'?" in used.stoker("get", "sum", "two", "--stage", "doubel").err


def test_the_instances_of_a_fan_out_are_copied_side_by_side(shell: Shell) -> None:
    shell.stoker("run", "toy/fan", "value=1", "--no-out")
    assert shell.stoker("get", "fan", "there", "--stage", "double").code == 0
    values = [json.loads((shell.folder / f"there/double[{i}]/value.json").read_text())["value"] for i in range(3)]
    assert values == [2, 4, 6]


def test_recipes_are_shown_with_a_line_that_pastes(shell: Shell) -> None:
    shown = shell.stoker("recipes", "show", "toy/copy").out
    assert "file      path  required          a file to read" in shown
    assert "  stoker run toy/copy file=PATH" in shown
    line = shell.stoker("recipes", "show", "toy/sum").out.split("run it:\n  ")[1].splitlines()[0]
    assert line == "stoker run toy/sum value=3"
    assert shell.stoker(*line.split()[1:]).code == 0
    assert shell.stoker("recipes", "swaps", "toy/sum").out.splitlines()[1].startswith("toy/fan")
    assert shell.stoker("recipes", "swaps", "toy/page").code == 27
