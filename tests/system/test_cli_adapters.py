"""`stoker adapters` as a user sees it: what a file is told, what a run would do, and how adapters stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.shell import Shell

FILE = """base = "tiny"
[[adapter]]
data = "sums"
checkpoint = "c/legal"
rank = 4
[[adapter]]
data = "chats"
checkpoint = "c/code"
"""


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "adapters.toml").write_text(FILE)
    return shell


def write_best(folder: Path, **said: object) -> None:
    (folder / "best").mkdir(parents=True)
    (folder / "best/metadata.json").write_text(
        json.dumps({"epoch": 1, "rank": 4, "alpha": 8, "global_step": 9, **said})
    )


def test_a_dry_run_says_how_many_go_together_and_what_that_takes(shell: Shell) -> None:
    done = shell.stoker("adapters", "run", "adapters.toml", "epochs=1", "--dry-run")
    assert done.code == 0, done.err
    assert [line.split()[:4] for line in done.out.splitlines()[1:3]] == [
        ["1", "legal", "would", "run:"],
        ["2", "code", "would", "run:"],
    ]
    assert done.out.splitlines()[-1].startswith("2 adapters, one base, one process: predicted ")
    assert done.out.endswith(" free, both at once\n")
    *trials, company = shell.stoker("adapters", "run", "adapters.toml", "--dry-run", "--json").objects()
    assert [one["label"] for one in trials] == ["legal", "code"]
    assert company["company"]["members"] == company["company"]["at_once"] == 2
    alone = shell.stoker("sweep", "language/lora", "rank=2,4", "--dry-run", "--solo")
    assert "2 trials" in alone.out
    assert "one process" not in alone.out


def test_a_dry_run_says_how_many_are_in_a_pass_where_not_all_have_room(shell: Shell) -> None:
    words = ("run", "language/lora", "batch=32", "lr=1e-3,2e-3,3e-3,4e-3,5e-3,6e-3,7e-3,8e-3", "--dry-run")
    done = shell.stoker(*words, STOKER_GPU_FAKE="cuda:2GiB")
    assert done.code == 0, done.err
    assert re.search(
        r"8 adapters, one base, one process: predicted \S+ GiB, 1.7 GiB free, all 8 at once, 4 in a pass\n$", done.out
    )
    *_, company = shell.stoker(*words, "--json", STOKER_GPU_FAKE="cuda:2GiB").objects()
    told = company["company"]
    assert (told["at_once"], told["in_pass"]) == (8, 4)
    assert told["base_bytes"] < told["predicted_bytes"] <= told["free_bytes"]
    # Two such devices have room for all of them in whole passes.
    done = shell.stoker(*words, STOKER_GPU_FAKE="cuda:2x2GiB")
    assert "in a pass" not in done.out


WITH_LITTLE_MEMORY = """
import sys
import stoker.cli.dry_run as dry_run
from stoker.__main__ import main
from stoker.devices.admission import MachineMemory
little = MachineMemory(total_bytes=None, available_bytes=int(sys.argv.pop(1)))
dry_run.memory_here = lambda: little
sys.exit(main())
"""


def test_adapters_without_room_for_all_their_rows_train_at_once_in_smaller_passes(shell: Shell) -> None:
    words = ("run", "language/lora", "gpus=0", "steps=2", "batch=64", "lr=1e-3,2e-3,3e-3")
    *_, company = shell.stoker(*words, "--dry-run", "--json").objects()
    assert company["company"]["in_pass"] == 3
    free_bytes = company["company"]["predicted_bytes"] - 1
    command = [sys.executable, "-P", "-c", WITH_LITTLE_MEMORY, str(free_bytes), *words]
    done = subprocess.run(command, cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all 3 at once, 2 in a pass\n" in done.stdout
    assert "3 ok." in done.stdout
    for number in (1, 2, 3):
        log = shell.stoker("logs", f"lora/{number}").out
        assert "memory is reserved for 2 adapters in one pass" in log


def test_a_file_with_faults_is_told_all_of_them_by_check_and_run(shell: Shell) -> None:
    (shell.folder / "bad.toml").write_text(FILE.replace("rank = 4", "rnk = 4").replace('"chats"', '"no.jsonl"'))
    for words in (("check", "bad.toml"), ("adapters", "run", "bad.toml")):
        done = shell.stoker(*words)
        assert done.code == 25
        assert "bad.toml:5:1: adapter[0].rnk: an adapter has no key 'rnk' (did you mean 'rank'?)" in done.err
        assert "bad.toml:7:8: adapter[1].data: there is no file 'no.jsonl'" in done.err
    assert shell.stoker("check", "adapters.toml").out == "✓ adapters.toml  adapters file: 2 adapters\n"
    lonely = shell.stoker("adapters", "run", "adapters.toml", "other.toml")
    assert (lonely.code, "'other.toml' is not key=value" in lonely.err) == (2, True)
    assert "stoker adapters run adapters.toml" in shell.stoker("run", "adapters.toml").err


def test_a_board_lists_best_checkpoints_and_names_who_has_none(shell: Shell) -> None:
    nothing = shell.stoker("adapters", "board", "adapters.toml")
    assert (nothing.code, nothing.out) == (0, "no adapter has a checkpoint yet\n")
    assert shell.stoker("adapters", "board").code == 2
    write_best(shell.folder / "c/code", val_loss=1.25, train_loss=1.5)
    done = shell.stoker("adapters", "board", "adapters.toml")
    assert done.out.splitlines()[1].split() == ["1", "code", "1.25", "1.5", "1", "4", "8", "9"]
    assert "without a checkpoint: legal\n" in done.err
    (shell.folder / "more.toml").write_text(FILE.replace("c/", "d/"))
    both = shell.stoker("adapters", "board", "adapters.toml", "more.toml")
    assert "without a checkpoint: adapters.toml: legal; more.toml: legal, code\n" in both.err
    write_best(shell.folder / "c/legal", val_loss=None, avg_loss=1.0)
    (shell.folder / "adapters.toml").write_text(f"holdout_percent = 10\n{FILE.replace('rank = 4', 'max_seq_len = 64')}")
    rows = shell.stoker("adapters", "board", "adapters.toml", "--json").objects()
    legal = {"data": "sums", "max_seq_len": 64, "train_on": "completion", "holdout_percent": 10.0}
    assert [row["measured_on"] for row in rows] == [legal, {**legal, "data": "chats", "max_seq_len": None}]
    assert [(row["place"], row["label"], row["val_loss"]) for row in rows] == [(1, "legal", None), (2, "code", 1.25)]
    (shell.folder / "adapters.toml").write_text(FILE.replace('"sums"', '["org/name", "x.csv"]'))
    (listed, _) = shell.stoker("adapters", "board", "adapters.toml", "--json").objects()
    assert listed["data"] == ["org/name", str(shell.folder / "x.csv")], "a list is compared as a list"
    (shell.folder / "c/code/best/metadata.json").write_text("{")
    assert "code skipped" in shell.stoker("adapters", "board", "adapters.toml").err


@pytest.mark.slow
def test_one_that_diverges_leaves_the_other_and_the_sweep_ends_with_its_code(shell: Shell) -> None:
    words = ("steps=6", "batch=2", "rank=2", "weight_decay=1", "lr=1e-3,1e6")
    done = shell.stoker("run", "language/lora", *words)
    assert done.code == 44
    assert "2 adapters, one base, one process: predicted " in done.out
    assert ", the other one unaffected  hint: stoker logs lora/2" in done.out
    assert "1 ok, 1 failed." in done.out
    assert "1 of 2 in " in done.out
    assert (shell.folder / "stoker-out/lora/best/adapter_config.json").exists()
    (shell.folder / "same.toml").write_text(FILE.replace("rank = 4", "rank = 4\nsteps = 2"))
    alone = shell.stoker("adapters", "run", "same.toml", "epochs=1", "--solo")
    assert alone.code == 0, alone.err
    assert "one process" not in alone.out
    assert "2 ok. No overall best: eval_loss on different data is not compared." in alone.out
    assert not (shell.folder / "stoker-out/same/best").exists()
    assert shell.stoker("adapters", "board", "same.toml", "--json").objects()[0]["place"] == 1
