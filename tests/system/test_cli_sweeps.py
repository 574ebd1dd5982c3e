"""Sweeps as a user sees them: one line for many trials, what is printed, what lies there, and how they go on."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import Refused
from tests.system.shell import PATIENCE_S, Done, Shell, finish, wait_until

# Says in the ledger that it ran; fails for the numbers in `bad`; waits at n=2 while there is a `gate`.
WORK = """#!/bin/sh
echo "$1" >> ledger
if [ "$1" = 2 ] && [ -e gate ]; then touch waiting; exec sleep 60; fi
if grep -qx "$1" bad 2>/dev/null; then echo "no way with $1" >&2; exit 3; fi
echo "step=1 loss=0.$1"
echo "made $1" > "$STOKER_OUT/made"
"""
PROGRAM = ("--", "./work.sh", "{n}")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    program = shell.folder / "work.sh"
    program.write_text(WORK)
    program.chmod(0o755)
    return shell


def ran(shell: Shell) -> list[str]:
    """Return which programs ran since the last time this was asked."""
    ledger = shell.folder / "ledger"
    lines = ledger.read_text().split() if ledger.exists() else []
    ledger.write_text("")
    return lines


def trials_in(done: Done) -> dict[str, Any]:
    return {event["label"]: event for event in done.objects() if event.get("kind") == "trial_end"}


def test_a_sweep_of_a_program_is_one_line_in_and_a_line_per_trial_out(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(
        "import os, sys\n"
        "rate = float(sys.argv[2])\n"
        "for step in range(3):\n"
        "    print(f'step={step} loss={rate / (step + 1)}')\n"
        "open(os.environ['STOKER_OUT'] + '/model', 'w').write(str(rate))\n"
    )
    done = shell.stoker("run", "lr=1e-2,1e-3", f"python={sys.executable}", "--", "python", "train.py", "--lr", "{lr}")
    assert done.code == 0, done.err
    head, first, second, end, following = done.out.splitlines()
    assert " RAM, limit " in head
    assert head.endswith(". 2 trials, one at a time")
    assert first.split()[:2] == ["✓", "lr=0.01"]
    assert "loss 0.003333" in first
    assert "peak " in first
    assert first.endswith("→ stoker-out/train/lr=0.01")
    assert second.endswith("→ stoker-out/train/lr=0.001")
    assert end == "2 ok. Best lr=0.001 (loss 0.0003333)."
    assert following == "next: stoker compare train"
    assert (shell.folder / "stoker-out/last/lr=0.001/model").read_text() == "0.001"


def test_the_cap_of_declared_memory_is_where_it_begins(shell: Shell) -> None:
    assert " RAM, limit from 2.1 GiB (" in shell.stoker("run", "memory=100M", "--", "true").out


def test_what_fails_is_named_and_run_again_alone(shell: Shell) -> None:
    (shell.folder / "bad").write_text("2\n")
    done = shell.stoker("run", "n=1,2,3", *PROGRAM)
    assert done.code == 1
    assert "exit 3: no way with 2  hint: stoker logs work/2" in done.out
    assert "2 ok, 1 failed. Best n=1 (loss 0.1)." in done.out
    assert "next: stoker run --failed work · stoker compare work" in done.out
    assert "stoker: n=2: exit 3: no way with 2" in done.err
    assert shell.stoker("logs", "last/2").out == "no way with 2\n"
    ran(shell)
    (shell.folder / "bad").unlink()
    forecast = shell.stoker("run", "--failed", "last", "--dry-run", "--json").objects()
    assert [(one["label"], one["verdict"]) for one in forecast] == [
        ("n=1", "kept"),
        ("n=2", "would run"),
        ("n=3", "kept"),
    ]
    again = shell.stoker("run", "--failed", "last")
    assert again.code == 0, again.err
    assert "3 ok (2 kept). Best n=1 (loss 0.1)." in again.out
    assert "note: 2 of 3 trials are kept as they are" in again.err
    assert ran(shell) == ["2"]
    assert sorted(os.listdir(shell.folder / "stoker-out/work")) == ["n=1", "n=2", "n=3"]
    elsewhere = shell.stoker("run", "--failed", "last", "--name", "other")
    assert elsewhere.out == "nothing in work failed; nothing to run\n"
    nothing = shell.stoker("run", "--failed", "last")
    assert (nothing.code, nothing.out) == (0, "nothing in work failed; nothing to run\n")


def test_a_job_of_another_folder_is_not_run_again_here(shell: Shell) -> None:
    (shell.folder / "bad").write_text("2\n")
    shell.stoker("run", "n=1,2", *PROGRAM)
    ran(shell)
    (shell.folder / "bad").unlink()
    elsewhere = copy.copy(shell)
    elsewhere.folder = shell.folder / "other"
    elsewhere.folder.mkdir()
    for name in ("last", "work"):
        refused = elsewhere.stoker("run", "--failed", name)
        assert refused.code == Refused.exit_code
        assert f"job work was started in another folder, {shell.folder}" in refused.err
        assert f"hint: cd {shell.folder} && stoker run --failed {name}" in refused.err
    assert (ran(shell), os.listdir(elsewhere.folder)) == ([], [])
    # The newest job of this folder is meant, although a newer one ran elsewhere.
    assert elsewhere.stoker("run", "--name", "newer", "--", "true").code == 0
    assert shell.stoker("run", "--failed", "last").code == 0
    assert ran(shell) == ["2"]


def test_a_dry_run_agrees_with_the_run_that_follows(shell: Shell) -> None:
    shell.stoker("run", "n=1,2", *PROGRAM)
    ran(shell)
    words = ("run", "n=0,1,2,3")
    forecast = shell.stoker(*words, "--dry-run", "--json", *PROGRAM).objects()
    assert ran(shell) == []
    table = shell.stoker(*words, "--dry-run", *PROGRAM)
    assert [line.split()[:3] for line in table.out.splitlines()[1:5]] == [
        ["1", "n=0", "would"],
        ["2", "n=1", "kept"],
        ["3", "n=2", "kept"],
        ["4", "n=3", "would"],
    ]
    assert "4 trials; 2 of 4 stages are cached, 2 would run" in table.out
    done = shell.stoker(*words, "--json", *PROGRAM)
    would_run = {one["label"] for one in forecast if one["verdict"] == "would run"}
    assert {label for label, end in trials_in(done).items() if not end["is_kept"]} == would_run
    assert ran(shell) == ["0", "3"]


def test_a_recipe_is_swept_as_a_program_is(shell: Shell) -> None:
    ledger = shell.folder / "numbers"
    done = shell.stoker("run", "toy/sum", "value=1,2", f"ledger={ledger}")
    assert done.code == 0, done.err
    assert (shell.folder / "stoker-out/sum/value=2/page.txt").read_text() == "[4, 2]\n"
    forecast = shell.stoker("run", "toy/sum", "value=1,2,3", "--dry-run")
    assert "known" in forecast.out.splitlines()[1]
    assert "would run: 3 of 3 stages" in forecast.out
    wider = shell.stoker("run", "toy/sum", "value=1,2,3", f"ledger={ledger}")
    assert "3 ok (2 kept)." in wider.out
    assert len(ledger.read_text().splitlines()) == 3


def test_a_stream_has_the_end_of_every_trial_and_counts_them_at_its_end(shell: Shell) -> None:
    (shell.folder / "bad").write_text("3\n")
    done = shell.stoker("run", "n=1,3", "--json", *PROGRAM)
    assert done.code == 1
    ends = trials_in(done)
    assert [(label, end["state"], end["trial"]) for label, end in ends.items()] == [
        ("n=1", "completed", 1),
        ("n=3", "failed", 2),
    ]
    assert ends["n=1"]["metrics"] == {"loss": 0.1}
    last = done.objects()[-1]
    assert last["trials"] == {"completed": 1, "kept": 0, "failed": 1, "cancelled": 0, "not_run": 0}
    assert last["error"]["message"] == "n=3: exit 3: no way with 3"


def test_quiet_prints_where_results_lie_and_nothing_else(shell: Shell) -> None:
    done = shell.stoker("-q", "run", "n=2,1", *PROGRAM)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [str(shell.folder / "stoker-out" / "work" / f"n={n}") for n in (2, 1)]


def test_a_sweep_is_given_up_when_everything_fails_alike_unless_told_otherwise(shell: Shell) -> None:
    (shell.folder / "bad").write_text("".join(f"{n}\n" for n in range(20)))
    done = shell.stoker("run", "n=range:0:20:1", *PROGRAM)
    assert done.code == 1
    assert "failed in the same way: exit 3: no way with 0" in done.err
    assert "--keep-going runs them all whatever happens" in done.err
    assert " not run." in done.out
    assert len(ran(shell)) < 10
    done = shell.stoker("run", "n=range:0:6:1", "--keep-going", *PROGRAM)
    assert "0 ok, 6 failed." in done.out
    assert len(ran(shell)) == 6


def test_a_sweep_that_is_interrupted_stops_cleanly_and_the_same_line_goes_on(shell: Shell) -> None:
    (shell.folder / "gate").touch()
    process = shell.start("run", "n=1,2,3,4", *PROGRAM)
    wait_until((shell.folder / "waiting").exists)
    refused = shell.stoker("run", "--failed", "last")
    assert (refused.code, "job work is still running" in refused.err) == (1, True)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "1 ok, 1 cancelled, 2 not run." in done.out
    assert "hint: the same command continues where this one stopped" in done.err
    (job,) = shell.stoker("jobs", "--json").objects()
    assert job["state"] == "cancelled"
    assert shell.staged() == []
    assert [one["state"] for one in shell.stoker("jobs", "show", "last", "--json").objects()[0]["trials"]] == [
        "completed",
        "cancelled",
        "not run",
        "not run",
    ]
    ran(shell)
    (shell.folder / "gate").unlink()
    again = shell.stoker("run", "n=1,2,3,4", *PROGRAM)
    assert again.code == 0, again.err
    assert ran(shell) == ["2", "3", "4"]


def test_of_a_job_that_was_killed_what_was_not_reached_is_run_again(shell: Shell) -> None:
    (shell.folder / "gate").touch()
    process = shell.start("run", "n=1,2,3", *PROGRAM)
    wait_until((shell.folder / "waiting").exists)
    process.kill()
    finish(process)
    (job,) = shell.stoker("jobs", "--json").objects()
    assert (job["state"], job["why"]) == ("failed", "its process is gone")
    (shell.folder / "gate").unlink()
    ran(shell)
    again = shell.stoker("run", "--failed", "last")
    assert again.code == 0, again.err
    assert "3 ok (1 kept)." in again.out
    assert ran(shell) == ["2", "3"]


def test_very_many_trials_are_asked_about_or_refused(shell: Shell) -> None:
    refused = shell.stoker("run", "n=range:0:1001:1", *PROGRAM)
    assert refused.code == 22
    assert "stoker: sweep has 1,001 trials; more than 1,000 need --yes" in refused.err
    listed = shell.stoker("run", "n=range:0:1001:1", "--dry-run", "--json", *PROGRAM)
    assert len(listed.objects()) == 1001
    assert ran(shell) == []


@pytest.mark.timing
def test_a_billion_trials_are_refused_at_once_with_their_number_and_without_memory(shell: Shell) -> None:
    words = "-m stoker run n=range:0:1000:1 m=range:0:1000:1 k=range:0:1000:1 --yes -- ./work.sh {n}"
    started_s = time.monotonic()
    # A tenth of what as many integers would take.
    ended = subprocess.run(
        ["bash", "-c", f"ulimit -v 800000; exec {sys.executable} -P {words}"],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 22, ended.stderr
    assert "sweep has 1,000,000,000 trials; a job has at most 100,000" in ended.stderr
    assert time.monotonic() - started_s < 10


def test_a_terminal_is_asked_and_no_is_an_answer(shell: Shell) -> None:
    done = shell.at_a_terminal(
        "run", "n=range:0:1001:1", *PROGRAM, when=lambda seen: b"n\n" if b"[y/N]" in seen else None
    )
    assert done.code == 22
    assert "1,001 trials. Run them?" in done.out
    assert ran(shell) == []


def test_programs_that_run_at_once_may_not_write_to_one_place(shell: Shell) -> None:
    done = shell.stoker("run", "n=1,2", "outputs=[runs/]", "--jobs", "2", *PROGRAM)
    assert done.code == 2
    assert "--jobs 2: parallel programs would all write to runs/" in done.err
    assert "$STOKER_OUT" in done.err
    assert ran(shell) == []


def test_a_program_that_nothing_keeps_within_bounds_is_warned_of_even_if_quiet(shell: Shell) -> None:
    done = shell.stoker("-q", "run", "n=1,2", "--contain", "bare", *PROGRAM)
    assert done.code == 0, done.err
    assert done.err.startswith("warning: ")


def test_a_trial_is_got_shown_and_explained_by_its_number_or_its_label(shell: Shell) -> None:
    (shell.folder / "bad").write_text("3\n")
    shell.stoker("run", "n=1,2,3", "seed=7", *PROGRAM)
    got = shell.stoker("get", "last", "all")
    assert got.code == 1
    assert "1 of 3 trials of work has no result and was not copied: work/3 (n=3) is failed" in got.err
    assert "hint: stoker logs work/3" in got.err
    assert (shell.folder / "all/n=2/made").read_text() == "made 2\n"
    assert not (shell.folder / "all/n=3").exists()
    assert shell.stoker("get", "last/2", "one").code == 0
    assert (shell.folder / "one/made").read_text() == "made 2\n"
    assert shell.stoker("get", "last/n=1").code == 0
    assert (shell.folder / "work/n=1/made").read_text() == "made 1\n"
    missing = shell.stoker("get", "last/9")
    assert (missing.code, "has no trial '9'" in missing.err, "it has 3" in missing.err) == (1, True, True)
    assert shell.stoker("get", "last/3").err.startswith("stoker: job work has no result")
    assert "==> 2.run (n=2) <==" in shell.stoker("logs", "last").out
    assert shell.stoker("logs", "last/n=2").out == "step=1 loss=0.2\n"
    one = shell.stoker("explain", "last/2").out
    assert one.startswith("work/2.run · stage command/run\nthen  ran in ")
    assert "now   hit: result is known" in one
    table = shell.stoker("explain", "last").out.splitlines()
    assert [line.split()[:3] for line in table[3:6]] == [
        ["1.run", "n=1", "ran"],
        ["2.run", "n=2", "ran"],
        ["3.run", "n=3", "failed"],
    ]
    assert [" hit " in line for line in table[3:6]] == [True, True, False]
    shown = shell.stoker("jobs", "show", "last").out
    assert "work: failed (n=3: exit 3: no way with 3)" in shown
    assert [line.split()[:3] for line in shown.splitlines()[-3:]] == [
        ["1", "n=1", "completed"],
        ["2", "n=2", "completed"],
        ["3", "n=3", "failed"],
    ]


def test_the_layers_behind_a_value_of_a_sweep_are_those_of_its_trials(shell: Shell) -> None:
    shell.stoker("run", "n=1,2", "seed=7", *PROGRAM)
    every = shell.stoker("explain", "last", "n").out
    assert "argument 1 (n=1,2), trial 1 (n=1)" in every
    assert "→" not in every
    assert "→  2      argument 1 (n=1,2), trial 2 (n=2)" in shell.stoker("explain", "last/2", "n").out
    assert "→  7      argument 2 (seed=7)" in shell.stoker("explain", "last", "seed").out
    wrong = shell.stoker("explain", "last", "sede")
    assert (wrong.code, "did you mean 'seed'?" in wrong.err) == (1, True)


def test_a_kept_trial_whose_bytes_are_gone_runs_again(shell: Shell) -> None:
    program = ("--", "sh", "-c", 'echo {n} >> ledger; yes {n} | head -c 9000 > "$STOKER_OUT/big"')
    shell.stoker("run", "n=1,2", *program)
    ran(shell)
    for blob in shell.home.glob("store/blobs/*/*"):
        blob.chmod(0o644)
        if blob.read_bytes().startswith(b"1"):
            blob.write_bytes(b"x" * 9000)
    done = shell.stoker("run", "n=1,2,3", *program)
    assert done.code == 0, done.err
    assert ran(shell) == ["1", "3"]
    assert "quarantined, runs again" in done.out
    assert (shell.folder / "stoker-out/sh/n=1/big").read_bytes().startswith(b"1")


def test_a_sweep_whose_journal_lost_its_beginning_still_gives_its_results(shell: Shell) -> None:
    shell.stoker("run", "n=1,2,3", *PROGRAM)
    (journal,) = shell.home.glob("runs/*/status.jsonl")
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[-3:]))
    assert shell.stoker("get", "last", "all").code == 0
    assert sorted(os.listdir(shell.folder / "all")) == [".stoker.json", "n=1", "n=2", "n=3"]
    (job,) = shell.stoker("jobs", "show", "last", "--json").objects()
    assert [trial["state"] for trial in job["trials"]] == ["completed"] * 3


def test_points_that_mean_the_same_are_run_once_and_that_is_said(shell: Shell) -> None:
    done = shell.stoker("run", "n=1,1,2", *PROGRAM)
    assert "note: 1 point means the same as an earlier one and is left out: n=1" in done.err
    assert ran(shell) == ["1", "2"]


def test_a_result_that_a_later_run_replaced_is_not_given_for_an_older_one(shell: Shell) -> None:
    shell.stoker("run", "n=1", "--name", "old", *PROGRAM)
    (shell.folder / "work.sh").write_text(WORK.replace("made $1", "other $1"))
    shell.stoker("run", "n=1", "--name", "new", *PROGRAM)
    done = shell.stoker("get", "old", "there")
    assert (done.code, "was replaced by a later run of it" in done.err) == (1, True)
    assert shell.stoker("get", "new", "here").code == 0
    assert Path(shell.folder, "here/made").read_text() == "other 1\n"


EDITING = """import os, sys
open(os.environ["STOKER_OUT"] + "/made", "w").write("ORIGINAL")
if sys.argv[1] == "1":
    # As if somebody saved another version while the sweep runs.
    text = open(__file__).read()
    open(__file__, "w").write(text.replace('"ORIGINAL"', '"EDITED"'))
"""


@pytest.mark.parametrize("inputs", [(), ("inputs=d.txt",)])
def test_a_result_is_known_by_the_code_that_made_it_though_it_was_edited_meanwhile(
    shell: Shell, inputs: tuple[str, ...]
) -> None:
    program = shell.folder / "tr.py"
    program.write_text(EDITING)
    (shell.folder / "d.txt").write_text("data")
    words = (*inputs, f"python={sys.executable}", "--", "python", "tr.py", "{x}")
    assert shell.stoker("run", "x=1,2,3", *words).code == 0
    warning = "warning: tr.py was edited while this sweep ran; 2 of 3 trials ran edited code: 2, 3;"
    assert warning in shell.stoker("jobs", "show", "last").err
    assert warning in shell.stoker("compare", "last", "--no-plots").err
    made = {n: (shell.folder / "stoker-out" / "tr" / f"x={n}" / "made").read_text() for n in "123"}
    assert made == {"1": "ORIGINAL", "2": "EDITED", "3": "EDITED"}
    # Put back, without the edit: the first is the only one that this code made.
    program.write_text(EDITING)
    done = shell.stoker("run", "--json", "x=1,2,3,4", *words)
    assert done.code == 0, done.err
    assert [label for label, end in trials_in(done).items() if end["is_kept"]] == ["x=1"]


def test_cancelling_one_trial_stops_that_trial_alone(shell: Shell) -> None:
    (shell.folder / "gate").touch()
    process = shell.start("run", "n=1,2,3,4", *PROGRAM)
    wait_until((shell.folder / "waiting").exists)
    waiting = shell.stoker("cancel", "work/n=4")
    assert (waiting.code, "cancelled work/4  n=4" in waiting.out) == (0, True), waiting.err
    running = shell.stoker("cancel", "work/2", "--json")
    assert running.code == 0, running.err
    assert running.objects()[0].items() >= {"name": "work/2", "label": "n=2", "state": "cancelled"}.items()
    done = finish(process)
    assert done.code == 1
    assert "2 ok, 2 cancelled." in done.out
    assert "2 of 4 trials were cancelled: n=4, n=2" in done.err
    assert ran(shell) == ["1", "2", "3"]
    (shown,) = shell.stoker("jobs", "show", "work", "--json").objects()
    assert [one["state"] for one in shown["trials"]] == ["completed", "cancelled", "completed", "cancelled"]
    assert shell.stoker("cancel", "work/7").code != 0
    refused = shell.stoker("cancel", "work/1")
    assert (refused.code, "job work is not running: cancelled" in refused.err) == (30, True), refused.err


def test_a_trial_of_a_running_sweep_is_cancelled_though_a_newer_single_run_of_its_name_has_ended(shell: Shell) -> None:
    (shell.folder / "gate").touch()
    process = shell.start("run", "n=1,2,3", *PROGRAM)
    wait_until((shell.folder / "waiting").exists)
    single = shell.stoker("run", "n=5", *PROGRAM)
    assert single.code == 0, single.err
    cancelled = shell.stoker("cancel", "work/2", "--json")
    assert cancelled.code == 0, cancelled.err
    assert cancelled.objects()[0].items() >= {"name": "work/2", "label": "n=2", "state": "cancelled"}.items()
    done = finish(process)
    assert (done.code, "2 ok, 1 cancelled." in done.out) == (1, True), done.err
    out = shell.folder / "stoker-out"
    assert sorted(path.name for path in (out / "work").iterdir()) == ["n=1", "n=3"]
    assert (out / "work~" / ".stoker.json").exists()
    assert f"go to {out / 'work~'}" in single.out + single.err
