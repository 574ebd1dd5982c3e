"""What screens are measured on: a coordinator with jobs and machines whose jobs change at a steady pace."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import harness
from fleet import Coordinator
from peers import Installed

_LONGEST_S = 300.0


@dataclass(slots=True)
class Pace:
    """What happened while jobs changed; filled in at the end of the block."""

    events: int = 0
    seconds: float = 0.0
    changed: dict[str, dict[str, float]] = field(default_factory=dict)
    """When new priorities were recorded: by job and priority, in seconds since 1970."""


def fill(
    peer: Installed, coordinator: Coordinator, *, jobs: int, cycles: int, workers: int, first: int = 0
) -> dict[str, Any]:
    """Submit jobs, and let workers run some of them; return what `fleet_load.py` says."""
    words = ["--jobs", str(jobs), "--cycles", str(cycles), "--workers", str(workers), "--first", str(first)]
    done = subprocess.run(
        [*_side(peer, coordinator, "fleet_load.py"), *words, "--server", str(coordinator.pid)],
        env=harness.environment_with(coordinator.environment),
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"fleet_load.py failed:\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


@contextmanager
def changing(
    peer: Installed, coordinator: Coordinator, *, workers: int, events_per_s: float, watched: Sequence[str] = ()
) -> Iterator[Pace]:
    """Let workers run jobs, and an operator give the watched jobs new priorities, by another process."""
    words = ["--workers", str(workers), "--events", str(events_per_s), "--watched", ",".join(watched)]
    command = [*_side(peer, coordinator, "screens_events.py"), *words]
    settings = harness.environment_with(coordinator.environment)
    pace = Pace()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            if program.stdout.readline().strip() != "running":
                raise RuntimeError("screens_events.py did not bring up its workers")
            yield pace
        finally:
            program.stdin.close()
            said = program.stdout.read()
    if program.returncode:
        raise RuntimeError("screens_events.py failed")
    found = json.loads(said.strip().splitlines()[-1])
    pace.events, pace.seconds, pace.changed = found["events"], found["seconds"], found["changed"]


def _side(peer: Installed, coordinator: Coordinator, name: str) -> list[str]:
    return [str(peer.python), str(harness.SIDES / name), coordinator.url, "--token", str(coordinator.token)]
