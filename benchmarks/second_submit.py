"""What do unchanged code, environment and data add before a trainer starts, once they were sent before?

A project of a thousand files, an environment of its own and 64 MiB of data, submitted as a manifest by the command that
a person types, again and again with another seed; and in turns the same program in its own folder, with none of the
three. From the start of the command to the program's first line; what is asked is the difference.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import fleet
import harness
from fleet import Coordinator
from fleet_latency import STAMP, _at, _read, _wait_for_idle, _wait_for_machines, working
from harness import Benchmark, Figure, Row
from peers import Installed

FILES = 1000
DATA_BYTES, QUICK_BYTES = 64 << 20, 1 << 20
ROUNDS = 12
MOST_S = 0.1


def main() -> int:
    bench = harness.start("second_submit", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    took = _measured(bench, peer) if isinstance(peer, Installed) else {}
    missing = bench.missing("stoker")
    bare, full = (Figure.of(took[way]) if took else None for way in ("bare", "full"))
    added = Figure.of([_at(took["full"], 0.5) - _at(took["bare"], 0.5)]) if took else None
    goal = Figure(best=MOST_S, median=MOST_S, runs=1)
    for question, against, ours, theirs, most in (
        ("what they add before the trainer starts, by medians", "100 ms", added, goal, 1.0),
        ("submit → running with unchanged code, environment and data", "with none of them", full, bare, None),
    ):
        row = Row(question=question, against=against, ours=ours, theirs=theirs, at_most=most, why_missing=missing)
        bench.rows.append(row)
    return bench.finish()


def _measured(bench: Benchmark, peer: Installed) -> dict[str, list[float]]:
    """Seconds of every round, of either way; the first of each is what makes the things ready and does not count."""
    home = bench.home("fleet")
    project = _project(bench.home("project"), bench)
    took: dict[str, list[float]] = {"bare": [], "full": []}
    with fleet.serving(peer, home) as coordinator, working(peer, coordinator, "waits"):
        _wait_for_machines(coordinator, 1, quick=bench.quick)
        for number in range(1 if bench.quick else 1 + ROUNDS):
            for way, seconds in took.items():
                seconds.append(_submitted(bench, peer, coordinator, project, way, number))
    return took if bench.quick else {way: seconds[1:] for way, seconds in took.items()}


def _submitted(
    bench: Benchmark, peer: Installed, coordinator: Coordinator, project: Path, way: str, number: int
) -> float:
    mark = coordinator.home / f"{way}{number}"
    manifest = project / "manifest.toml"
    brought = 'env = "requirements.txt"\ndata = { DATA = "data.bin" }' if way == "full" else 'code = "in-place"'
    # The very interpreter that the environment is made from: a shim on PATH would make one of the two look slow.
    python = "python3" if way == "full" else os.path.realpath(sys.executable)
    command = f'["{python}", "stamp.py", "{mark}"]'
    manifest.write_text(f'[[jobs]]\nname = "{way}{number}"\ncommand = {command}\n{brought}\n')
    started_s = time.time()
    subprocess.run(
        [str(peer.program("stoker")), "submit", str(manifest), "--yes", "--quiet"],
        check=True,
        stdout=subprocess.DEVNULL,
        env=harness.environment_with(coordinator.environment),
    )
    took = _read(mark) - started_s
    _wait_for_idle(coordinator, quick=bench.quick)
    return took


def _project(folder: Path, bench: Benchmark) -> Path:
    for number in range(5 if bench.quick else FILES):
        part = folder / f"part{number % 20}"
        part.mkdir(exist_ok=True)
        (part / f"module{number}.py").write_text(f"VALUE = {number}\n" * 40)
    (folder / "stamp.py").write_text(STAMP)
    # An environment of nothing but an interpreter is found again the way one of forty packages is.
    (folder / "requirements.txt").write_text("")
    (folder / "data.bin").write_bytes(os.urandom(QUICK_BYTES if bench.quick else DATA_BYTES))
    (folder / ".gitignore").write_text("data.bin\nmanifest.toml\n")
    as_us = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*as_us, "commit", "-q", "-m", "bench"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
