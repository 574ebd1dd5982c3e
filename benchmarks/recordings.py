"""Answers from figures that were recorded where there is a GPU, since no continuous integration has one.

A recording is a JSON file of `recorded/`: when it was made, on which card, with which versions and by which commands,
and beside them what was measured. A file that lacks one of those is told and not judged: figures that nobody can
measure again are no answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness import Benchmark, Figure, Row

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
GIB = 1024**3
FACTS = ("measured_at", "gpu", "versions", "commands")

Measure = Callable[[Path, str], None]
"""Measures here with an interpreter and writes it down into a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was measured, and where it comes from."""

    measured_at: str
    gpu: str
    """Name, driver and MiB, as nvidia-smi lists them."""
    versions: dict[str, str]
    commands: list[str]
    told: dict[str, Any]
    """The whole file."""

    @property
    def card(self) -> str:
        return self.gpu.partition(",")[0]


def start(name: str, about: str, recorded: str, measure: Measure) -> tuple[Benchmark, Recording]:
    """Reads the options of a benchmark that judges a recording, measures if that is asked for, and reads the file."""
    parser = harness.options(about)
    parser.add_argument("--from", type=Path, default=HERE / "recorded" / recorded, dest="source", metavar="FILE")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure here and write it down")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    asked = parser.parse_args()
    if asked.measure is not None:
        measure(asked.measure, asked.python)
    recording = read(asked.measure or asked.source)
    # What is foretold of the figures is foretold by this checkout.
    sys.path.insert(0, str(SOURCES))
    bench = harness.begin(name, about.splitlines()[0], asked)
    bench.measured_on = {"gpu": recording.gpu, "python": recording.versions["python"]}
    bench.measured_at = recording.measured_at
    bench.versions = recording.versions
    return bench, recording


def read(file: Path) -> Recording:
    """Reads a recording, or ends with what it lacks."""
    if not file.exists():
        sys.exit(f"{file} is not there: measure where there is a GPU, with --measure FILE")
    told: dict[str, Any] = json.loads(file.read_text())
    if missing := [name for name in FACTS if not told.get(name)]:
        sys.exit(f"{file} does not say {', '.join(missing)}: it can't be judged")
    return Recording(**{name: told[name] for name in FACTS}, told=told)


def by_sides(*scripts: str) -> Measure:
    """Measures with scripts of `sides/`, each of which adds its part to the file, or leaves it out if it fails."""

    def measure(file: Path, python: str) -> None:
        settings = {**os.environ, "PYTHONPATH": str(SOURCES)}
        for script in scripts:
            subprocess.run([python, str(harness.SIDES / script), str(file)], env=settings, check=False)

    return measure


def row(
    question: str,
    against: str,
    ours: float | None,
    theirs: float | None,
    at_most: float | None,
    *,
    unit: str = "",
) -> Row:
    """One comparison of two figures that were taken once; if one was not taken, the row says so."""
    figures = [None if value is None else Figure(best=value, median=value, runs=1) for value in (ours, theirs)]
    return Row(
        question=question,
        against=against,
        unit=unit,
        ours=figures[0],
        theirs=figures[1],
        at_most=at_most,
        why_missing="its part was not measured" if None in figures else "",
    )


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
