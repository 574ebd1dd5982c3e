"""Metrics in files that a program writes, as a user sees them."""

from __future__ import annotations

import sys
from pathlib import Path

from stoker.engine.metrics.curves import curves
from tests.system.shell import Shell

RECORDED = Path(__file__).parents[1] / "recordings" / "metrics"
EVENTS = RECORDED / "tensorboard/plain/events.out.tfevents.1794967776.host.1.0"
TRAIN = f"""
import os, sys, time
lr = float(sys.argv[1])
out = os.environ["STOKER_OUT"]
data = open({str(EVENTS)!r}, "rb").read()
with open(out + "/metrics.csv", "w") as table, open(out + "/events.out.tfevents.1.host.1.0", "wb") as events:
    print("epoch,step,val_acc", file=table, flush=True)
    for step in range(10):
        print(f"0,{{step}},{{lr * step}}", file=table, flush=True)
        events.write(data[step * len(data) // 10 : (step + 1) * len(data) // 10])
        events.flush()
        print(f"step {{step}}: val acc {{lr * step:.0f}}.0")
        time.sleep(0.3)
"""


def test_files_become_curves_while_they_are_written(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(TRAIN)
    done = shell.stoker("run", "lr=0.1,0.05", "--name", "it", "--", sys.executable, "train.py", "{lr}")
    assert done.code == 0, done.err
    compared = shell.stoker("compare", "it", "--no-plots")
    assert "ranked by val_acc, larger is better" in compared.out
    rows = shell.stoker("compare", "it", "--json", "--no-plots").objects()
    assert [row["metrics"]["val_acc"] for row in rows] == [0.9, 0.45]
    assert abs(rows[0]["metrics"]["val_loss"] - 2.5 / 46) < 1e-6
    first, second = sorted(shell.home.rglob("*.skm"), key=lambda path: curves([str(path)])["val_acc"][-1])
    for path, lr in ((first, 0.05), (second, 0.1)):
        found = curves([str(path)])
        assert found["val_acc"] == [(step, lr * step) for step in range(10)]
        assert [step for step, _ in found["val_loss"]] == list(range(0, 50, 5))


def test_sources_of_metrics_that_cannot_be_read_are_named_at_the_terminal(shell: Shell) -> None:
    program = ("--", "sh", "-c", "echo loss=1")
    for source, fault in (
        ("", "it is empty"),
        ("/dev/zero", "--metrics /dev/zero is neither a file nor a folder"),
        (r"(\w*)(\w*)(\w*)(\w*)y", r"'(\w*)(\w*)(\w*)(\w*)y' can't be used: several of its repetitions match the same"),
    ):
        done = shell.stoker("run", "--metrics", source, *program)
        assert done.code == 2
        assert fault in done.err
    done = shell.stoker("run", "--metrics", "./no(such/", *program)
    assert done.code == 0, done.err
    assert "note: no metrics were read from ./no(such/: no such file or folder" in done.err
