"""A rank that is killed in the middle of a training: all end, and the stage is tried again from its checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cookbooks.language.bundled import data_lines
from stoker.engine.plan import Plan
from tests.unit.cookbooks.language.walked_language import compiled
from tests.unit.engine.lab import Lab
from tests.unit.host.real_processes import is_running, wait_until

pytestmark = pytest.mark.slow

UPDATES = 30


def plan_in(folder: Path) -> Plan:
    (folder / "sums.jsonl").write_text("\n".join(data_lines("sums")))
    return compiled(
        "full",
        data=str(folder / "sums.jsonl"),
        ranks=2,
        batch=4,
        steps=UPDATES,
        max_seq_len=64,
        checkpoint_every=5,
        eval_every=10,
        gpus=0,
    )


def generations(pids: list[int]) -> Iterator[list[int]]:
    """Return the children of some processes, their children, and so on."""
    while pids:
        yield pids
        listed = [Path(f"/proc/{pid}/task").glob("*/children") for pid in pids]
        pids = [int(child) for files in listed for file in files for child in file.read_text().split()]


def test_a_rank_that_is_killed_ends_its_gang_and_the_training_resumes(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", preload=("torch", "stoker.app.gang_child")) as lab:
        flight = lab.start(plan_in(tmp_path))
        wait_until(lambda: any("checkpoints.json" in files for _, _, files in os.walk(tmp_path / "lab")), timeout_s=50)
        *_, ranks = generations([os.getpid()])
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, ranks)), timeout_s=20)
        ran = flight.land()
        assert ran.endings["train_full"] == "ran", lab.log("train_full")
        log = lab.log("train_full")
        assert "resumed after update " in log
        assert str(UPDATES) in log
