"""`--json`: lines of JSON on standard output and nothing else, whatever runs and however it ends."""

from __future__ import annotations

import json

import pytest

from tests.system.shell import Shell


def test_a_run_streams_its_journal_and_nothing_else(shell: Shell) -> None:
    done = shell.stoker("run", "toy/sum", "value=3", "--json")
    events = done.objects()
    journal = next(shell.home.glob("runs/*/status.jsonl"))
    assert done.out == journal.read_text()
    assert [event["kind"] for event in events if event["kind"] != "stage_step"] == [
        "run_begin",
        "stage_begin",
        "stage_log",
        "stage_end",
        *["stage_begin", "stage_end"] * 2,
        "run_end",
    ]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(event["v"] == 1 and event["source"] == journal.parent.name for event in events)
    assert "a stage prints" in done.err
    assert "and so does a library" in done.err


def test_the_last_line_of_a_failed_run_holds_its_error(shell: Shell) -> None:
    done = shell.stoker("run", "toy/fail", "value=1", "--json")
    events = done.objects()
    assert done.code == 1
    assert all("kind" in event for event in events)
    assert events[-1]["kind"] == "run_end"
    error = events[-1]["error"]
    assert (error["error"], error["exit_code"]) == ("stage_failed", 1)
    assert error["message"].startswith("fail: ValueError: no way with 1")
    assert "stoker: fail: ValueError" in done.err


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["run", "toy/summ", "--json"], 27, "unknown_recipe"),
        (["--json", "run", "toy/sum", "valu=1"], 28, "args_faults"),
        (["run", "--json"], 2, "usage"),
        (["--json", "nonsense"], 2, "usage"),
        (["jobs", "show", "x", "--json"], 1, "not_found"),
    ],
)
def test_an_error_is_one_object_on_standard_output_and_a_line_for_people(
    shell: Shell, words: list[str], code: int, name: str
) -> None:
    done = shell.stoker(*words)
    (error,) = done.objects()
    assert (done.code, error["error"], error["exit_code"]) == (code, name, code)
    assert error["hint"]
    assert done.err.startswith("stoker: ")


def test_every_command_speaks_json_with_the_flag_before_or_behind_it(shell: Shell) -> None:
    shell.stoker("run", "toy/text", "value=3")
    is_before = False
    for words, count in (
        (["recipes"], 30),
        (["recipes", "show", "toy/sum"], 1),
        (["recipes", "swaps", "toy/sum"], 1),
        (["jobs"], 1),
        (["jobs", "show", "last"], 1),
        (["explain", "last"], 2),
        (["explain", "last/big"], 1),
        (["logs", "last"], 1),
        (["status"], 1),
        (["run", "toy/text", "value=3", "--dry-run"], 2),
        (["store"], 3),
        (["store", "verify"], 1),
        (["store", "pin", "text"], 1),
        (["store", "pins"], 1),
        (["store", "prune", "--max-size", "1"], 1),
        (["get", "last", "there"], 1),
        (["jobs", "rm", "last"], 1),
    ):
        is_before = not is_before
        done = shell.stoker("--json", *words) if is_before else shell.stoker(*words, "--json")
        assert done.code == 0, (words, done.err)
        assert len(done.objects()) == count, words


def test_show_has_what_a_program_needs(shell: Shell) -> None:
    shell.stoker("run", "toy/sum", "value=3")
    (job,) = shell.stoker("jobs", "show", "last", "--json").objects()
    assert (job["name"], job["state"], job["exit_code"]) == ("sum", "completed", 0)
    assert job["args"] == {"value": 3, "ledger": ""}
    assert [stage["node"] for stage in job["stages"]] == ["number", "double", "page"]
    assert job["stages"][1]["metrics"] == {"loss": pytest.approx(1 / 3)}
    (recipe,) = shell.stoker("recipes", "show", "sum", "--json").objects()
    assert recipe["example"] == "stoker run toy/sum value=3"
    assert recipe["args"]["properties"]["value"]["maximum"] == 1000


def test_numbers_that_are_none_are_tagged(shell: Shell) -> None:
    done = shell.stoker("run", "toy/diverge", "value=1", "--json")
    steps = [json.dumps(event["metrics"]) for event in done.objects() if event.get("kind") == "stage_step"]
    assert '{"loss": {"$float": "nan"}}' in steps
