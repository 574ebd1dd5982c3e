"""Timed runs of programs, benchmarks and their result files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import LocalFile, ProgramNotFound, StageTimeout, StokerError, WorkFailed
from stoker.core.jsontext import dumps, loads
from stoker.crossval.bench import (
    Bench,
    BenchResult,
    ProgramSubject,
    energy_between,
    is_result,
    read_result,
    write_result,
)
from stoker.crossval.timed_run import TimedProgram, TimedRun, run_timed
from stoker.host.identity import read_row

CLOCK = SystemClock()


def program(line: str, folder: Path, timeout_s: float | None = None) -> TimedProgram:
    return TimedProgram(
        argv=("sh", "-c", line), folder=str(folder), environment={"PATH": os.environ["PATH"]}, timeout_s=timeout_s
    )


def timed(line: str, folder: Path, timeout_s: float | None = None) -> TimedRun:
    return run_timed(program(line, folder, timeout_s), CLOCK)


def test_a_run_has_its_time_its_memory_and_what_it_printed(tmp_path: Path) -> None:
    run = timed("echo $PWD; echo not read >&2; sleep 0.02", tmp_path)
    assert run.output == f"{tmp_path}\n"
    assert 0.02 <= run.seconds < 5.0
    assert run.peak_bytes > 100_000
    assert run.cpu_s < run.seconds


def test_a_program_that_closes_or_floods_its_output_is_still_timed_to_its_end(tmp_path: Path) -> None:
    assert timed("exec >&- 2>&-; sleep 0.05", tmp_path).seconds >= 0.05
    assert timed("head -c 3000000 /dev/zero; echo; echo end", tmp_path).output.endswith("\nend\n")


def test_a_run_does_not_wait_for_what_it_leaves_running_and_stops_it(tmp_path: Path) -> None:
    run = timed("sleep 30 & echo $!", tmp_path)
    assert run.seconds < 10.0
    row = read_row(int(run.output))
    assert row is None or row.is_gone


@pytest.mark.parametrize(
    ("line", "limit_s", "kind", "message"),
    [
        ("echo why >&2; exit 3", None, WorkFailed, "exit status 3: why"),
        ("kill -SEGV $$", None, WorkFailed, "signal 11"),
        ("sleep 30", 0.05, StageTimeout, "still running after 0.05 s"),
    ],
)
def test_a_run_that_fails_hangs_or_crashes_is_an_error(
    line: str, limit_s: float | None, kind: type[StokerError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        timed(line, tmp_path, limit_s)


def bench_of(line: str, folder: Path) -> Bench:
    return Bench(
        ProgramSubject(program(line, folder), CLOCK), CLOCK, machine={"name": "desk"}, versions={"stoker": "1"}
    )


def test_a_benchmark_has_every_run_but_those_that_warm_up(tmp_path: Path) -> None:
    line = 'echo x >> runs; echo "{\\"latency_ms\\": [$(wc -l < runs), 9]}"'
    bench = bench_of(line, tmp_path)
    assert list(bench.steps(3, warmup=2)) == [1, 2, 3]
    path = str(tmp_path / "out" / "result.json")
    write_result(bench.result(), path)
    read = read_result(path)
    assert [run.measures["latency_ms"] for run in read.runs] == [(3.0, 9.0), (4.0, 9.0), (5.0, 9.0)]
    assert (read.warmup, read.outcome, read.machine["name"], read.energy_j) == (2, "completed", "desk", None)
    summary = {one.name: one for one in read.summaries()}
    assert (summary["latency_ms"].count, summary["latency_ms"].median, summary["latency_ms"].high) == (6, 7.0, 9.0)
    assert summary["seconds"].count == 3
    assert is_result(path)
    assert read.peak_bytes is not None
    assert read.subject["argv"] == ["sh", "-c", line]


def test_a_benchmark_that_fails_has_the_runs_until_then(tmp_path: Path) -> None:
    bench = bench_of("echo x >> runs; test $(wc -l < runs) -lt 3", tmp_path)
    with pytest.raises(WorkFailed) as caught:
        list(bench.steps(5, warmup=0))
    result = bench.result(caught.value)
    assert (len(result.runs), result.outcome) == (2, "failed")
    assert result.error is not None
    assert result.error["error"] == "work_failed"
    assert bench.result(KeyboardInterrupt()).outcome == "interrupted"


def test_a_program_that_is_none_is_named(tmp_path: Path) -> None:
    missing = TimedProgram(argv=("no-such-program",), folder=str(tmp_path), environment={"PATH": "/bin"})
    with pytest.raises((ProgramNotFound, LocalFile), match="no-such-program"):
        run_timed(missing, CLOCK)


def test_energy_is_the_difference_of_two_readings_of_the_same_devices() -> None:
    assert energy_between({"a": 10.0, "b": 5.0}, {"a": 12.5, "c": 1.0}) == {"a": 2.5}
    assert energy_between({}, {}) is None
    assert energy_between({"a": 10.0}, {"a": 1.0}) is None, "its driver was loaded anew in between"


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"runs": [{"measures": {"x": []}, "at_s": 0, "peak_bytes": None, "energy_j": None}]},
        {"runs": [{"measures": {"x": "fast"}}]},
        {"runs": 3},
        {"machine": []},
        {"machine": {"devices": [[]]}},
        {"machine": {"devices": [1]}},
        {"machine": {"devices": {}}},
        {"runs": [{"measures": {}, "at_s": 10**400, "peak_bytes": None, "energy_j": None}]},
        {"runs": [{"measures": {"x": 10**400}, "at_s": 0, "peak_bytes": None, "energy_j": None}]},
        {"runs": [{"measures": {"x": [10**400]}, "at_s": 0, "peak_bytes": None, "energy_j": None}]},
        {"runs": [{"measures": {}, "at_s": 0, "peak_bytes": math.inf, "energy_j": None}]},
    ],
)
def test_a_file_that_is_no_result_is_refused(change: dict, tmp_path: Path) -> None:
    body = BenchResult(subject={}, machine={}, versions={}, runs=()).to_json()
    path = tmp_path / "result.json"
    path.write_text(dumps({**body, **change}))
    with pytest.raises(LocalFile, match="not a benchmark result"):
        read_result(str(path))
    path.write_text("[1]")
    with pytest.raises(LocalFile, match="not a benchmark result"):
        read_result(str(path))
    assert not is_result(str(path))
    assert loads(dumps(body))["summary"] == {}
