"""Benchmark something that can be run again: throughput, latency percentiles, memory, energy, in one result file.

The first runs warm caches and are thrown away. A result has every run, so that a gate can weigh its noise, and the
machine, so that nobody compares it with another one's unknowingly. A benchmark that is interrupted or fails has a
result with the runs until then.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, StokerError, Usage, exit_code_of
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads_strict
from stoker.core.text import counted, first_line
from stoker.crossval.gate_rule import quantile_of
from stoker.crossval.measures import CPU, WALL, Value, read_measures
from stoker.crossval.timed_run import TimedProgram, run_timed
from stoker.devices.meters import NvmlMeter
from stoker.host.durable import read_regular, translated, write_file
from stoker.jobs.program import ProgramFiles
from stoker.store.trees import hash_file

FORMAT = "stoker-bench-result"
VERSION = 1
_MOST_BYTES = 256 << 20
_PERCENTILES = (5, 50, 90, 95, 99)

ReadEnergy = Callable[[], Mapping[str, float]]
"""Returns the joules that each device has used since some moment, by its UUID; empty where no device tells."""


@frozen
class BenchRun:
    """One run."""

    at_s: float
    """When it started: seconds since 1970."""
    measures: Mapping[str, Value]
    peak_bytes: int | None = None
    energy_j: Mapping[str, float] | None = None
    """By device; None where no device tells."""

    def to_json(self) -> dict[str, object]:
        return {
            "at_s": self.at_s,
            "measures": {name: list(one) if isinstance(one, tuple) else one for name, one in self.measures.items()},
            "peak_bytes": self.peak_bytes,
            "energy_j": None if self.energy_j is None else dict(self.energy_j),
        }


class BenchSubject(Protocol):
    """Anything that can be run again and again."""

    @property
    def shown(self) -> str:
        """Return what it is, in one line."""

    def facts(self) -> Mapping[str, object]:
        """Return what identifies it: `kind`, and the command line or the digest of the model."""

    def measure(self) -> BenchRun:
        """Run it once."""

    def close(self) -> None:
        """Stop what was started for it."""


class ProgramSubject:
    """A program: its time from start to end, its memory, and the measures that it prints."""

    def __init__(
        self, program: TimedProgram, clock: Clock, *, names: Sequence[str] = (), energy: ReadEnergy = dict
    ) -> None:
        """`names` are measures to read beside those whose names mean something."""
        self._program = program
        self._clock = clock
        self._names = tuple(names)
        self._energy = energy

    @property
    def shown(self) -> str:
        return self._program.shown

    def facts(self) -> Mapping[str, object]:
        program = self._program
        files = program_files(program.argv, program.folder)
        return {"kind": "program", "argv": list(program.argv), "folder": program.folder, "files": files}

    def measure(self) -> BenchRun:
        at_s, before = self._clock.wall_s(), self._energy()
        run = run_timed(self._program, self._clock)
        return BenchRun(
            at_s=at_s,
            measures={WALL: run.seconds, CPU: run.cpu_s, **read_measures(run.output, self._names)},
            peak_bytes=run.peak_bytes,
            energy_j=energy_between(before, self._energy()),
        )

    def close(self) -> None:
        """Do nothing: every run has ended."""


def program_files(argv: Sequence[str], folder: str) -> dict[str, str]:
    """Return the SHA-256 of each file of a program by its name in the folder, but of none that the PATH finds."""
    return {name: hash_file(path)[0] for name, path in ProgramFiles(folder).of(argv).items()}


def energy_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float] | None:
    """Return the joules between two readings, by device; None where no device tells."""
    used = {uuid: after[uuid] - before[uuid] for uuid in before if uuid in after and after[uuid] >= before[uuid]}
    return used or None


@frozen
class MeasureSummary:
    """One measure over all runs."""

    name: str
    count: int
    median: float
    mean: float
    low: float
    high: float
    percentiles: Mapping[int, float]

    def to_json(self) -> dict[str, object]:
        return {
            "count": self.count,
            "median": self.median,
            "mean": self.mean,
            "min": self.low,
            "max": self.high,
            **{f"p{percent}": value for percent, value in self.percentiles.items()},
        }


@frozen
class BenchResult:
    """All runs of one benchmark."""

    subject: Mapping[str, object]
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    runs: tuple[BenchRun, ...]
    warmup: int = 0
    made_at: str = ""
    outcome: str = "completed"
    """Or `failed`, `interrupted`."""
    error: Mapping[str, object] | None = None
    about: Mapping[str, object] = fresh(factory=dict)

    def values(self) -> dict[str, list[float]]:
        """Return the values of each measure over all runs; those of a run's list are all of them."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            for name, value in run.measures.items():
                found.setdefault(name, []).extend(value if isinstance(value, tuple) else (value,))
        return found

    def summaries(self) -> list[MeasureSummary]:
        """Return each measure with its percentiles."""
        return [_summary(name, values) for name, values in self.values().items()]

    @property
    def peak_bytes(self) -> int | None:
        return max((run.peak_bytes for run in self.runs if run.peak_bytes is not None), default=None)

    @property
    def energy_j(self) -> float | None:
        """The mean over the runs of what all devices used in one."""
        used = [sum(run.energy_j.values()) for run in self.runs if run.energy_j is not None]
        return sum(used) / len(used) if used else None

    def to_json(self) -> dict[str, object]:
        """Return the result as the JSON object of its file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "made_at": self.made_at,
            "outcome": self.outcome,
            "error": None if self.error is None else dict(self.error),
            "subject": dict(self.subject),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "about": dict(self.about),
            "warmup": self.warmup,
            "summary": {one.name: one.to_json() for one in self.summaries()},
            "peak_bytes": self.peak_bytes,
            "energy_j": self.energy_j,
            "runs": [run.to_json() for run in self.runs],
        }


def _summary(name: str, values: Sequence[float]) -> MeasureSummary:
    return MeasureSummary(
        name=name,
        count=len(values),
        median=quantile_of(values, 0.5),
        mean=sum(values) / len(values),
        low=min(values),
        high=max(values),
        percentiles={percent: quantile_of(values, percent / 100) for percent in _PERCENTILES},
    )


class Bench:
    """One benchmark, run by run: `result` is there at any moment, also after an error or an interrupt."""

    def __init__(
        self, subject: BenchSubject, clock: Clock, *, machine: Mapping[str, object], versions: Mapping[str, str]
    ) -> None:
        self._subject = subject
        self._clock = clock
        self._machine = machine
        self._versions = versions
        self._made_at = clock.now().isoformat(timespec="seconds")
        self._warmup = 0
        self._requested = 0
        self._runs: list[BenchRun] = []

    def steps(self, runs: int, *, warmup: int = 1) -> Iterator[int]:
        """Run the subject so often; yields the number of measured runs after each. Raises what a run raises."""
        self._requested = runs
        for _ in range(warmup):
            self._subject.measure()
            self._warmup += 1
        for _ in range(runs):
            self._runs.append(self._subject.measure())
            yield len(self._runs)

    def result(self, error: BaseException | None = None) -> BenchResult:
        """Return what was measured until now, and why it ended early."""
        return BenchResult(
            subject=self._subject.facts(),
            machine=self._machine,
            versions=self._versions,
            runs=tuple(self._runs),
            warmup=self._warmup,
            made_at=self._made_at,
            outcome="completed" if error is None else outcome_of_error(error),
            error=None if error is None else error_facts(error),
            about={"requested_runs": self._requested},
        )


def require_completed(result: BenchResult, shown: str) -> None:
    """Raise `Usage` for a result from which nothing follows: of a benchmark that did not finish, or has no runs."""
    again = "run it again: stoker bench"
    if result.outcome != "completed":
        ended = f"{result.outcome} after {counted(len(result.runs), 'run')}"
        raise Usage(f"{shown}: the benchmark did not finish ({ended})", hint=again)
    if not result.runs:
        raise Usage(f"{shown}: a benchmark without runs", hint=again)


def outcome_of_error(error: BaseException) -> str:
    """Return how something ended that raised: `interrupted` by a signal, else `failed`."""
    return "interrupted" if exit_code_of(error) in (130, 143) else "failed"


def error_facts(error: BaseException) -> dict[str, object]:
    """Return an error as reports have it."""
    if isinstance(error, StokerError):
        return error.to_dict()
    text = first_line(error) or type(error).__name__
    return {"error": type(error).__name__, "exit_code": exit_code_of(error), "message": text}


class EnergyMeter:
    """Reads what NVIDIA's devices have used since their driver was loaded. Caller closes."""

    def __init__(self, uuids: Iterable[str], environment: Mapping[str, str]) -> None:
        self._uuids = list(uuids)
        self._meter = NvmlMeter(environment)

    def __call__(self) -> Mapping[str, float]:
        rows = self._meter.sample(self._uuids, ("energy_mj",)) if self._uuids else None
        found = {uuid: row.get("energy_mj") for uuid, row in (rows or {}).items()}
        return {uuid: value / 1000 for uuid, value in found.items() if isinstance(value, int | float)}

    def close(self) -> None:
        self._meter.close()


def machine_facts(name: str, devices: Sequence[Mapping[str, object]], cores: int) -> dict[str, object]:
    """Return what identifies the machine of a measurement."""
    return {
        "name": name,
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": cores,
        "devices": [dict(one) for one in devices],
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            line = next((line for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
    return line.partition(":")[2].strip() or platform.processor()


# The file of a result.


def write_result(result: BenchResult, path: str) -> None:
    """Write a result durably; folders are made."""
    with translated(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    write_file(path, (dumps(result.to_json(), indent=2) + "\n").encode("utf-8", "replace"))


def is_result(path: str) -> bool:
    """Return True if a file says of itself that it is a benchmark's result."""
    if not os.path.isfile(path):
        return False
    with translated(path), open(path, "rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(200)


def read_result(path: str) -> BenchResult:
    """Read a result. Raises `LocalFile` for a file that is none, or damaged, or of a later version."""
    try:
        body = loads_strict(read_regular(path, _MOST_BYTES), most_bytes=_MOST_BYTES)
        if body["format"] != FORMAT or body["version"] != VERSION:
            raise LocalFile(
                f"{path}: not a benchmark result of version {VERSION}", hint="write it again with stoker bench"
            )
        return BenchResult(
            subject=_map(body["subject"]),
            machine=_machine(body["machine"]),
            versions=_map(body["versions"]),
            runs=tuple(map(_run, body["runs"])),
            warmup=int(body["warmup"]),
            made_at=str(body["made_at"]),
            outcome=str(body["outcome"]),
            error=None if body["error"] is None else _map(body["error"]),
            about=_map(body["about"]),
        )
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise LocalFile(
            f"{path}: not a benchmark result: {first_line(error)}", hint="write it again with stoker bench"
        ) from error


def _run(raw: Any) -> BenchRun:
    measures = {
        str(name): tuple(map(float, one)) if isinstance(one, list) else float(one)
        for name, one in _map(raw["measures"]).items()
    }
    if any(isinstance(one, tuple) and not one for one in measures.values()):
        message = "a measure without values"
        raise ValueError(message)
    return BenchRun(
        at_s=float(raw["at_s"]),
        measures=measures,
        peak_bytes=None if raw["peak_bytes"] is None else int(raw["peak_bytes"]),
        energy_j=None if raw["energy_j"] is None else {str(k): float(v) for k, v in _map(raw["energy_j"]).items()},
    )


def _machine(raw: Any) -> dict[str, Any]:
    machine = _map(raw)
    devices = machine.get("devices", [])
    if not isinstance(devices, list) or not all(isinstance(one, dict) for one in devices):
        message = f"devices {devices!r:.40} are no list of objects"
        raise TypeError(message)
    return machine


def _map(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        message = f"{raw!r:.40} is not an object"
        raise TypeError(message)
    return raw
