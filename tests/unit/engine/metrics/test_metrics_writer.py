from __future__ import annotations

import math
import os
import threading
from pathlib import Path

from stoker.core.clock import FakeClock
from stoker.engine.metrics.metrics_file import (
    ROWS_PER_FRAME,
    MetricRow,
    MetricSource,
    MetricsWriter,
    MetricsWriteResult,
    read_frames,
    read_metrics,
)

NEVER_S = 3600.0


def a_writer(path: Path, **options: int) -> MetricsWriter:
    return MetricsWriter(str(path), clock=FakeClock(), flush_s=NEVER_S, **options)


def test_what_is_added_is_written(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "a.skm")
    writer.add(1, {"loss": 0.5, "acc": 0.25}, at_s=10.0)
    writer.add(2, {"loss": math.inf}, at_s=11.0, source=MetricSource.STDOUT)
    assert writer.close() == MetricsWriteResult(rows=3, lost=0)
    assert list(read_metrics([writer.path])) == [
        MetricRow(1, 10.0, "loss", 0.5),
        MetricRow(1, 10.0, "acc", 0.25),
        MetricRow(2, 11.0, "loss", math.inf, MetricSource.STDOUT),
    ]


def test_the_clock_says_when(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "a.skm")
    writer.add(1, {"loss": 0.5})
    writer.close()
    assert [row.at_s for row in read_metrics([writer.path])] == [FakeClock().wall_s()]


def test_a_run_without_metrics_makes_no_file_and_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    writer = a_writer(tmp_path / "a.skm")
    writer.add(1, {})
    assert set(threading.enumerate()) <= before
    assert writer.close() == MetricsWriteResult(rows=0, lost=0)
    assert not os.listdir(tmp_path)


def test_names_and_steps_that_do_not_fit_are_made_to(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "a.skm")
    writer.add(10**30, {"x" * 1000: 1.0, "": 2.0})
    writer.close()
    assert [(row.step, row.name) for row in read_metrics([writer.path])] == [
        (2**63 - 1, "x" * 200),
        (2**63 - 1, "unnamed"),
    ]


def test_many_values_become_several_frames(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "a.skm")
    for step in range(10_000):
        writer.add(step, {"a": 1.0}, source=MetricSource(step % 2))
    assert writer.close() == MetricsWriteResult(rows=10_000, lost=0)
    frames = list(read_frames(writer.path))
    assert all(len(frame.values) <= ROWS_PER_FRAME for frame in frames)
    assert sorted(row.step for frame in frames for row in frame.rows()) == list(range(10_000))


def test_what_does_not_fit_is_counted_and_said_in_the_next_frame(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    writer = a_writer(folder / "a.skm", buffer_rows=10)
    for step in range(25):
        writer.add(step, {"a": 1.0})
    writer.flush()
    folder.mkdir()
    writer.flush()
    writer.add(99, {"a": 1.0})
    end = writer.close()
    assert (end.rows, end.lost) == (11, 15)
    assert end.fault == "No such file or directory"
    frames = list(read_frames(writer.path))
    assert [frame.lost for frame in frames] == [15, 0]
    assert [row.step for frame in frames for row in frame.rows()] == [*range(10), 99]


def test_a_disk_that_stays_away_costs_the_values_and_nothing_else(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "none" / "a.skm")
    writer.add(1, {"a": 1.0, "b": 2.0})
    end = writer.close()
    assert (end.rows, end.lost) == (0, 2)
    assert end.fault


def test_what_comes_after_the_end_is_lost(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "a.skm")
    writer.add(1, {"a": 1.0})
    assert writer.close() == MetricsWriteResult(rows=1, lost=0)
    writer.add(2, {"a": 1.0})
    assert writer.close() == MetricsWriteResult(rows=1, lost=1)


def test_many_threads_may_add(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "a.skm")

    def add(number: int) -> None:
        for step in range(2000):
            writer.add(step, {f"t{number}": float(step)})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.close() == MetricsWriteResult(rows=8000, lost=0)
    for number in range(4):
        assert [row.step for row in read_metrics([writer.path]) if row.name == f"t{number}"] == list(range(2000))


def test_two_writers_may_share_a_file(tmp_path: Path) -> None:
    one, other = a_writer(tmp_path / "a.skm"), a_writer(tmp_path / "a.skm")
    one.add(1, {"a": 1.0})
    other.add(2, {"b": 2.0})
    one.close()
    other.close()
    assert sorted(row.name for row in read_metrics([one.path])) == ["a", "b"]


def test_a_pipe_or_a_link_in_the_files_place_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("pipe", "link"):
        writer = a_writer(tmp_path / name)
        writer.add(1, {"a": 1.0})
        end = writer.close()
        assert (end.rows, end.lost) == (0, 1)
    assert (tmp_path / "target").stat().st_size == 0
