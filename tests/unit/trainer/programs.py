"""Programs that use `stoker_trainer`, run as Stoker runs them: real processes with its variables set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.core.jsontext import loads
from stoker.engine.metrics.metrics_file import MetricFrame, MetricRow, read_frames

FOLDER = Path(__file__).parents[3] / "src" / "stoker" / "trainer"
HEAD = "import os, sys\nimport stoker_trainer as t\n"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a program left."""

    status: int
    out: str
    err: str
    said: list[dict[str, Any]]
    frames: list[MetricFrame]

    @property
    def rows(self) -> list[MetricRow]:
        return [row for frame in self.frames for row in frame.rows()]

    @property
    def values(self) -> list[tuple[int, str, float]]:
        return [(row.step, row.name, row.value) for row in self.rows]

    @property
    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.said]


class Place:
    """Where programs run, one after the other, like the attempts of one piece of work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.out = folder / "out"
        self.control = folder / "control.jsonl"
        self.metrics = folder / "metrics.skm"
        self.scratch.mkdir()
        self.out.mkdir()

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(FOLDER),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STOKER_CONTROL": str(self.control),
            "STOKER_METRICS": str(self.metrics),
            "STOKER_SCRATCH": str(self.scratch),
            "STOKER_OUT": str(self.out),
            "STOKER_RESUME_KEY": "a" * 64,
            **extra,
        }

    def run(self, text: str, *, python: str = sys.executable, **extra: str) -> Ran:
        """Run a program to its end."""
        done = subprocess.run(
            [python, "-c", HEAD + textwrap.dedent(text)],
            cwd=self.folder,
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = [loads(line) for line in self.control.read_bytes().splitlines()] if self.control.exists() else []
        frames = list(read_frames(str(self.metrics)))
        return Ran(status=done.returncode, out=done.stdout, err=done.stderr, said=said, frames=frames)

    def index(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads((self.scratch / "checkpoints.json").read_text())["checkpoints"]
        return listed
