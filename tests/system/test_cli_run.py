"""`stoker run` as a user sees it: what is printed, what lies there afterwards, which code the shell gets."""

from __future__ import annotations

import json

from tests.system.shell import PATIENCE_S, Shell, finish, wait_until


def test_a_run_ends_with_scores_a_folder_and_what_to_try_next(shell: Shell) -> None:
    done = shell.stoker("run", "toy/sum", "value=3")
    assert done.code == 0, done.err
    assert "3 stages: 3 ran" in done.out
    assert "the sum is 9" in done.out
    assert "number  value" in done.out
    assert "results: stoker-out/sum" in done.out
    assert "  stoker run toy/sum value=4" in done.out
    assert (shell.folder / "stoker-out/sum/page.txt").read_text() == "[6, 3]\n"
    assert (shell.folder / "stoker-out/last/page.txt").exists()


def test_a_second_run_of_the_same_says_in_one_line_that_nothing_ran(shell: Shell) -> None:
    shell.stoker("run", "toy/sum", "value=3")
    done = shell.stoker("run", "toy/sum", "value=3")
    assert done.out.startswith("all 3 stages were cached: nothing ran (")
    assert "hit" not in done.out


def test_only_what_changed_is_run_and_each_stage_has_one_line(shell: Shell) -> None:
    shell.stoker("run", "toy/sum", "value=3")
    done = shell.stoker("run", "toy/sum", "value=3", "--rerun", "double")
    lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["=", "number"], ["✓", "double"], ["=", "page"]]
    assert lines[3].startswith("3 stages: 1 ran, 2 cached (")
    assert "\033" not in done.out


def test_a_failure_names_the_stage_what_it_said_and_where_its_log_is(shell: Shell) -> None:
    done = shell.stoker("run", "toy/fail", "value=1")
    assert done.code == 1
    assert "stoker: fail: ValueError: no way with 1 (stoker_toy.py:" in done.err
    assert "log:  stoker logs fail/fail" in done.err
    assert "Traceback" not in done.err
    assert "about to fail" in shell.stoker("logs", "fail/fail").out


def test_with_keep_going_the_branch_beside_a_failure_is_finished(shell: Shell) -> None:
    done = shell.stoker("run", "toy/fail", "value=1", "--keep-going")
    assert done.code == 1
    assert "after" in done.out
    assert "skipped: needs fail" in done.out
    assert (shell.folder / "stoker-out/fail/beside/value.json").exists()


def test_every_end_of_a_stage_has_its_own_exit_code(shell: Shell) -> None:
    diverged = shell.stoker("run", "toy/diverge", "value=1")
    refused = shell.stoker("run", "toy/refuse", "value=1")
    late = shell.stoker("run", "toy/slow", "value=1", "gate=never", "--timeout", "500ms")
    assert (diverged.code, refused.code, late.code) == (44, 41, 47)
    assert "loss is nan at step 2" in diverged.err
    assert "hint: take an even one" in refused.err
    assert "ran past its limit" in late.err


def test_a_stage_that_fails_at_first_is_tried_again_and_that_is_told(shell: Shell) -> None:
    done = shell.stoker("run", "toy/flaky", f"ledger={shell.folder}/ledger")
    assert done.code == 0, done.err
    assert "attempt 1 failed: OSError: not in the mood; retry in" in done.out


def test_a_dry_run_says_hit_or_miss_with_the_reason_and_runs_nothing(shell: Shell) -> None:
    ledger = shell.folder / "ledger"
    shell.stoker("run", "toy/sum", "value=3", f"ledger={ledger}")
    same = shell.stoker("run", "toy/sum", "value=3", "--dry-run")
    other = shell.stoker("run", "toy/sum", "value=4", f"ledger={ledger}", "--dry-run")
    assert "all 3 stages are cached; nothing was run" in same.out
    assert "changed: args.value: 3 → 4" in other.out
    assert "0 of 3 stages are cached, 1 would run, 2 may run" in other.out
    assert len(ledger.read_text().splitlines()) == 1
    assert len(shell.stoker("jobs", "--json").objects()) == 1


def test_names_folders_and_quiet_do_what_they_say(shell: Shell) -> None:
    done = shell.stoker("--quiet", "run", "toy/sum", "value=3", "--name", "mine", "--out", "elsewhere")
    assert done.code == 0
    folder = str(shell.folder / "elsewhere" / "mine")
    assert sorted(done.out.splitlines()) == sorted(["a stage prints", "and so does a library", folder])
    assert (shell.folder / "elsewhere/mine/page.txt").exists()
    shell.stoker("run", "toy/sum", "value=5", "--no-out", "--name", "none")
    assert not (shell.folder / "stoker-out").exists()
    assert [job["name"] for job in shell.stoker("jobs", "--json").objects()] == ["none", "mine"]


def test_a_plan_file_runs_like_a_recipe(shell: Shell) -> None:
    plan = {
        "stoker_plan": 1,
        "name": "mine",
        "nodes": {"number": {"stage": "toy/number", "args": {"value": 2}}, "twice": {"stage": "toy/double"}},
        "edges": [{"from": "number", "to": "twice"}],
        "final": "twice",
    }
    (shell.folder / "plan.json").write_text(json.dumps(plan))
    done = shell.stoker("run", "plan.json")
    assert done.code == 0, done.err
    assert json.loads((shell.folder / "stoker-out/mine/value.json").read_text()) == {"value": 4}


def test_a_fan_out_is_counted_by_its_instances(shell: Shell) -> None:
    done = shell.stoker("run", "toy/fan", "value=1")
    assert "double[2]" in done.out
    assert "6 stages: 6 ran" in done.out
    assert (shell.folder / "stoker-out/fan/page.txt").read_text() == "[2, 4, 6]\n"


def test_two_runs_of_one_thing_at_once_do_the_work_once(shell: Shell) -> None:
    gate, ledger = shell.folder / "gate", shell.folder / "ledger"
    words = ("run", "toy/slow", "value=1", f"gate={gate}", f"ledger={ledger}", "--no-out")
    both = [shell.start(*words, "--name", name) for name in ("one", "two")]
    wait_until(ledger.exists)
    wait_until(lambda: "stage_waiting" in "".join(path.read_text() for path in shell.home.glob("runs/*/status.jsonl")))
    gate.touch()
    ended = [finish(process) for process in both]
    assert [done.code for done in ended] == [0, 0], ended
    assert len(ledger.read_text().splitlines()) == 1
    assert any("waits: process" in done.out for done in ended)


def test_a_reader_that_goes_away_does_not_stop_a_run(shell: Shell) -> None:
    process = shell.start("run", "toy/slow", "value=3")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr is not None
    process.stderr.close()
    assert (shell.folder / "stoker-out/slow/value.json").exists()


def test_a_terminal_shows_what_runs_and_keeps_what_ended(shell: Shell) -> None:
    gate = shell.folder / "gate"

    def look(seen: bytes) -> None:
        if b"patience" in seen:
            gate.touch()

    done = shell.at_a_terminal("run", "toy/slow", "value=1", f"gate={gate}", when=look)
    text = done.out
    assert done.code == 0, text
    assert "⠋ wait" in text or "⠙ wait" in text or "⠹ wait" in text
    assert "✓ wait" in text
    assert "2 stages: 2 ran" in text
    assert "\033[31m" not in text
    assert "\033[32m" not in text
