"""How every benchmark measures, judges and reports, so that each file holds only its question.

Sides run in turns (A B A B …), each in a fresh process, so that a busy moment of the machine meets both. The best run
decides, the median stands beside it. Dirty pages are flushed before every run, so that nobody's durable write waits
for another's data. A side proves how much really ran; a "hit" that executed something stops the benchmark instead of
flattering anyone.

`--quick` is the smoke run that every benchmark has: tiny sizes, one round, Stoker from the interpreter that runs the
benchmark, the peers that are installed already. It shows that the benchmark still runs; it judges no goal.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import machine
import peers
import results

BUSY = 2.5
"""Load per core from which figures are said to be disturbed."""
SIDES = Path(__file__).resolve().parent / "sides"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run of a side."""

    seconds: float
    executed: int | None = None
    peak_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    """User and system time together."""


Runs = dict[str, list[Run]]
"""All measured runs, by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Something that can be measured again and again; `rounds` bounds how often, for a side that is slow."""

    name: str
    once: Callable[[], Run]
    rounds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What repeated runs gave."""

    best: float
    median: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(best=min(values), median=statistics.median(values), runs=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison: ours against something, and the largest ratio that meets the goal (None: only for context)."""

    question: str
    against: str
    unit: str = "s"
    ours: Figure | None
    theirs: Figure | None
    at_most: float | None = None
    why_missing: str = ""

    @property
    def ratio(self) -> float | None:
        if self.ours is None or self.theirs is None:
            return None
        return self.ours.best / self.theirs.best if self.theirs.best else float(self.ours.best > 0)

    @property
    def verdict(self) -> str:
        if self.at_most is None:
            return "-"
        if self.ratio is None:
            return "NOT MEASURED"
        return "PASS" if self.ratio <= self.at_most else "SHORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a script of `sides/` is asked: how many stages, in which shape, and in which of the ways that it knows."""

    count: int
    shape: str = "fan"
    way: str = ""

    def arguments(self, home: Path) -> list[str]:
        way = ["--way", self.way] if self.way else []
        return ["--count", str(self.count), "--shape", self.shape, "--home", str(home), *way]


@dataclass(slots=True, kw_only=True)
class Benchmark:
    """One question being answered: its options, its scratch folder and the rows found so far."""

    name: str
    asks: str
    bench: Path
    quick: bool
    as_json: bool
    without: frozenset[str] = frozenset()
    rows: list[Row] = field(default_factory=list)
    verdicts: list[list[str]] = field(default_factory=list)
    """A table of words beside the figures: its heads first, then one line per case."""
    notes: list[str] = field(default_factory=list)
    """What whoever reads the figures has to know about how they came about."""
    versions: dict[str, str] = field(default_factory=dict)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    measured_on: dict[str, str] = field(default_factory=dict)
    """Another machine, where figures were recorded."""
    measured_at: str = ""

    def peer(self, name: str, distribution: str | None = None) -> peers.Peer:
        """A peer's environment (or Stoker's, by that name); its version is reported with the figures."""
        found = self.environment(name)
        match found:
            case peers.Installed():
                self.versions[name] = found.version(distribution or name)
            case peers.NotInstalled(reason=reason):
                self.versions[name] = f"{name} is not installed: {reason}"
        return found

    def environment(self, name: str) -> peers.Peer:
        """The environment of a peer, of Stoker, or of Stoker beside other launchers of ranks; installed if need be."""
        if name in self.without:
            return peers.NotInstalled(name=name, reason="left out on purpose")
        if name in ("stoker", "launchers"):
            if self.quick:
                return peers.borrow_stoker(self.bench)
            return peers.ensure_stoker(self.bench) if name == "stoker" else peers.ensure_launchers(self.bench)
        return peers.find_peer(name, self.bench) if self.quick else peers.ensure_peer(name, self.bench)

    def in_turns(self, sides: Sequence[Side], *, rounds: int) -> Runs:
        """Measure every side once per round, in an order that is reversed each time; return all runs by side."""
        runs: Runs = {side.name: [] for side in sides}
        for turn in range(1 if self.quick else rounds):
            for side in sides if turn % 2 == 0 else reversed(sides):
                if side.rounds is None or turn < side.rounds:
                    if not self.quick:
                        os.sync()
                    runs[side.name].append(side.once())
        return runs

    def program(self, name: str) -> str | None:
        """Where a program of this machine lies, if it is there; its version is reported with the figures."""
        found = None if name in self.without else shutil.which(name)
        self.versions[name] = _version_of(found) if found else f"{name} is not installed"
        return found

    def missing(self, *names: str) -> str:
        """Which of these were asked for and are not installed, with the reasons; empty if none."""
        return "; ".join(said for name in names if "not installed" in (said := self.versions.get(name, "")))

    def home(self, name: str) -> Path:
        """An empty scratch folder for one side."""
        folder = self.bench / "scratch" / self.name / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def compare(
        self, question: str, against: str, runs: Runs, *, theirs: str, at_most: float | None, per: int = 1
    ) -> None:
        """Adds the row "Stoker against a peer" from what was measured in turns; who was not there is said."""
        ours_runs, their_runs = runs.get("stoker"), runs.get(theirs)
        self.rows.append(
            Row(
                question=question,
                against=against,
                ours=seconds_of(ours_runs, per=per) if ours_runs else None,
                theirs=seconds_of(their_runs, per=per) if their_runs else None,
                at_most=at_most,
                why_missing=self.missing("stoker", theirs),
            )
        )

    def say(self, text: str) -> None:
        """Progress, for a person who waits."""
        print(text, file=sys.stderr, flush=True)

    def finish(self) -> int:
        """Report, remove the scratch folder; return 0 if every goal that is judged was measured and met."""
        shutil.rmtree(self.bench / "scratch" / self.name, ignore_errors=True)
        answer = self._answer()
        print(json.dumps(answer) if self.as_json else results.as_text(answer))
        return 0 if all(row["verdict"] in ("PASS", "-") for row in answer["rows"]) else 1

    def _notes(self) -> list[str]:
        """Add who else was at work: times say little then."""
        cores, load = os.cpu_count() or 1, max(self.load_before, os.getloadavg()[0])
        if load <= BUSY * cores:
            return self.notes
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        said = f"Disturbed: a load of {load:.0f} on {cores} cores, others' work for the most part"
        return [*self.notes, said + (f"; measured at nice {nice}." if nice else ".")]

    def _answer(self) -> results.Answer:
        rows = [{**asdict(row), "ratio": row.ratio, "verdict": "-" if self.quick else row.verdict} for row in self.rows]
        return {
            "benchmark": self.name,
            "asks": self.asks,
            "quick": self.quick,
            "measured_at": self.measured_at or datetime.now(UTC).isoformat(timespec="minutes"),
            "load_before": self.load_before,
            "load_after": os.getloadavg()[0],
            "machine": self.measured_on or machine.facts(self.bench, quick=self.quick),
            "versions": self.versions,
            "rows": rows,
            **({"verdicts": self.verdicts} if self.verdicts else {}),
            **({"notes": notes} if (notes := self._notes()) else {}),
        }


def start(name: str, asks: str) -> Benchmark:
    """Reads the options that every benchmark has."""
    return begin(name, asks, options(asks).parse_args())


def options(about: str) -> argparse.ArgumentParser:
    """The options that every benchmark has, for one that has more."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smoke run: tiny sizes, one round, installs nothing, judges no goal; not a figure to keep",
    )
    parser.add_argument(
        "--bench", type=Path, default=peers.DEFAULT_BENCH, help="folder for environments and scratch data"
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave one side out")
    return parser


def begin(name: str, asks: str, asked: argparse.Namespace) -> Benchmark:
    """Begins to answer a question, as the options ask."""
    # told to end, it ends as after Ctrl-C: whatever was started or made for it goes, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return Benchmark(
        name=name,
        asks=asks,
        bench=asked.bench.resolve(),
        quick=asked.quick,
        as_json=asked.json,
        without=frozenset(asked.without),
    )


def seconds_of(runs: Sequence[Run], *, per: int = 1) -> Figure:
    """The time of some runs, divided by a number of stages where that is wanted."""
    return Figure.of([run.seconds / per for run in runs])


def cpu_of(runs: Sequence[Run]) -> Figure:
    """The CPU time of some runs."""
    return Figure.of([run.cpu_seconds or 0.0 for run in runs])


def peak_of(runs: Sequence[Run]) -> Figure:
    """The largest peak of memory of some runs: here the worst decides."""
    return Figure.of([max(float(run.peak_rss_bytes or 0) for run in runs)])


def run_side(
    peer: peers.Installed,
    script: str,
    arguments: Sequence[str],
    *,
    executed: int,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 900,
) -> Run:
    """Runs a script of `sides/` that times itself, and checks that it executed as many stages as were due."""
    command = [str(peer.python), str(SIDES / script), *arguments]
    settings = environment_with(environment)
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{script} failed with exit {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
    said = Run(**json.loads(done.stdout.strip().splitlines()[-1]))
    if said.executed != executed:
        raise RuntimeError(f"{script} executed {said.executed} stages where {executed} were due")
    return said


def run_command(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    output: int = subprocess.DEVNULL,
    timeout_s: float = 900,
) -> Run:
    """Runs a program from start to exit and times it from outside; its output is dropped, a failure is raised."""
    arguments = [str(part) for part in command]
    settings = environment_with(environment)
    quiet = subprocess.DEVNULL
    started = time.perf_counter()
    with subprocess.Popen(arguments, cwd=folder, env=settings, stdin=quiet, stdout=output, stderr=output) as program:
        # not `wait(timeout)`: that looks every 50 ms only, and every time would be a multiple of it
        limit = threading.Timer(timeout_s, program.kill)
        limit.start()
        _, status, used = os.wait4(program.pid, 0)
        seconds = time.perf_counter() - started
        program.returncode = os.waitstatus_to_exitcode(status)
        limit.cancel()
    if program.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed with exit {program.returncode}")
    return Run(seconds=seconds, peak_rss_bytes=used.ru_maxrss * 1024, cpu_seconds=used.ru_utime + used.ru_stime)


def _version_of(program: str) -> str:
    """The first word of what it says about itself that begins with a digit."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return next((word for word in said.split() if word[0].isdigit()), "of unknown version")


def environment_with(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without what would let one Python see another's packages."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "STOKER"))
    }
    return {**kept, **(extra or {})}
