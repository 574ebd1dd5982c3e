"""Layered configuration as a user sees it: values with their origins, every fault at once, and what a job remembers."""

from __future__ import annotations

import json

import pytest

from tests.system.shell import Shell

BASE = """\
value: 3
ledger: ${env:HOME}/ledger
"""


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "base.yaml").write_text(BASE)
    return shell


def rows(shell: Shell, *words: str, **env: str) -> dict[str, tuple[object, str]]:
    done = shell.stoker("config", "show", *words, "--json", **env)
    assert done.code == 0, done.err
    return {row["key"]: (row.get("value"), row["from"]) for row in done.objects()}


def test_every_value_is_shown_with_the_place_it_came_from(shell: Shell) -> None:
    shown = rows(shell, "toy/slow", "value=4", "--config", "base.yaml", "stubborn=true", STOKER__gate="here")
    assert shown["value"] == (4, "argument 1 (value=4)")
    assert shown["stubborn"] == (True, "argument 2 (stubborn=true)")
    assert shown["gate"] == ("here", "STOKER__gate")
    assert shown["ledger"][1] == "base.yaml:2:9"
    table = shell.stoker("config", "show", "toy/slow", "--config", "base.yaml").out.splitlines()
    assert table[0].split() == ["key", "value", "from"]
    assert ["value", "3", "base.yaml:1:8"] in [line.split() for line in table]


def test_the_stack_behind_a_value_has_its_winner_last(shell: Shell) -> None:
    done = shell.stoker("config", "show", "toy/slow", "value=4", "--config", "base.yaml", "--why", "value")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["value"]
    assert lines[2:] == [["3", "base.yaml:1:8"], ["→", "4", "argument", "1", "(value=4)"]]
    unknown = shell.stoker("config", "show", "toy/slow", "value=4", "--why", "valeu")
    assert (unknown.code, "did you mean 'value'?" in unknown.err) == (1, True)


def test_a_configuration_written_as_a_file_means_the_same(shell: Shell) -> None:
    written = shell.stoker("config", "show", "toy/slow", "value=4", "gate=007", "--yaml")
    (shell.folder / "again.yaml").write_text(written.out)
    shown = rows(shell, "toy/slow", "--config", "again.yaml")
    assert (shown["value"][0], shown["gate"][0]) == (4, "007")


def test_a_sweep_is_shown_by_its_axes(shell: Shell) -> None:
    done = shell.stoker("config", "show", "lr=log:1e-4:1:5", "batch=32", "--", "python", "train.py", "{lr}")
    assert "sweep of 5 trials over" in done.out
    assert "0.0001, 0.001, 0.01, 0.1, 1.0 (5)" in done.out
    (axis,) = [
        row
        for row in shell.stoker("config", "show", "lr=1,2", "--json", "--", "python", "train.py", "{lr}").objects()
        if row["layer"] == "sweep"
    ]
    assert (axis["key"], axis["choices"], axis["count"]) == ("lr", ["1", "2"], 2)


def test_a_file_with_six_mistakes_reports_six_each_with_line_and_caret(shell: Shell) -> None:
    (shell.folder / "bad.yaml").write_text("value: many\nledegr: x\nstubborn: perhaps\ngate: ${nowhere}\n")
    done = shell.stoker("run", "toy/slow", "--config", "bad.yaml", "gaet=1", "value=-1")
    assert done.code == 21
    lines = done.err.splitlines()
    assert lines[0] == "stoker: 6 errors in the configuration"
    told = [line for line in lines[1:] if line.startswith("  ") and not line.startswith("      ")]
    assert len(told) == 6
    assert [line.split(":")[:2] for line in told if line.startswith("  bad.yaml")] == [
        ["  bad.yaml", str(number)] for number in (1, 2, 3, 4)
    ]
    assert sum(line.strip().startswith("^") for line in lines) == 6


def test_a_fault_of_the_command_line_beside_a_file_is_one_of_the_configuration(shell: Shell) -> None:
    done = shell.stoker("run", "toy/slow", "--config", "base.yaml", "vlaue=1")
    assert done.code == 21
    assert done.err.startswith("stoker: argument 1: vlaue: there is no such key (did you mean 'value'?")


def test_a_file_that_is_not_there_is_told_as_that(shell: Shell) -> None:
    done = shell.stoker("run", "toy/slow", "--config", "bsae.yaml")
    assert done.code == 16
    assert "bsae.yaml" in done.err


def test_a_job_remembers_where_its_values_came_from(shell: Shell) -> None:
    ended = shell.stoker("run", "toy/slow", "--config", "base.yaml", "+note=x", "value=1,2")
    assert ended.code == 0, ended.err
    done = shell.stoker("explain", "last", "ledger")
    assert done.out.splitlines()[0] == "ledger"
    assert "base.yaml:2:9" in done.out
    stack = json.loads(shell.stoker("explain", "last/2", "value", "--json").out)
    assert [(layer["value"], layer["from"]) for layer in stack["layers"]] == [
        (3, "base.yaml:1:8"),
        (2, "argument 2 (value=1,2), trial 2 (value=2)"),
    ]
    assert "argument 1 (+note=x)" in shell.stoker("explain", "last", "note").out


def test_a_note_is_kept_and_shown_and_no_part_of_what_is_wanted(shell: Shell) -> None:
    shell.stoker("run", "toy/text", "value=3")
    done = shell.stoker("run", "toy/text", "value=3", "+note=again")
    assert "nothing ran" in done.out
    assert rows(shell, "toy/text", "value=3", "+note=again")["note"] == ("again", "argument 2 (+note=again)")


def test_a_sweep_in_a_file_is_a_sweep(shell: Shell) -> None:
    (shell.folder / "grid.yaml").write_text("value: 1\nsweep:\n  zip:\n    value: [1, 2, 3]\n")
    done = shell.stoker("run", "toy/text", "--config", "grid.yaml", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert [one["label"] for one in done.objects()] == ["value=1", "value=2", "value=3"]
