from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping

import pytest

from stoker.core.device import GIB
from stoker.devices.ledger.reservations import FakeMeter
from stoker.engine.device_gate import AttemptDevices
from stoker.engine.ledger_gate import DeviceWatch
from stoker.host.identity import of_pid

UNSEEN = 2**22 - 3
"""No process has this number: so does one of another container look from here."""


class Bench:
    """Two cards, a worker with a child of its own, and what the watch said."""

    def __init__(self) -> None:
        self.worker = subprocess.Popen(
            ["/bin/sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.worker.stdout is not None
        self.child = int(self.worker.stdout.readline())
        self.meter = FakeMeter({"a": 24 * GIB, "b": 24 * GIB})
        self.heard: list[dict[str, int]] = []
        self.troubles: list[str] = []
        self.watch = DeviceWatch(lambda: self.meter, self.hear, beat=lambda: None, trouble=self.troubles.append)

    def hear(self, _taken: AttemptDevices, measured: Mapping[str, int]) -> None:
        self.heard.append(dict(measured))

    def taken(
        self, *devices: str, free_bytes: Mapping[str, int] | None = None, is_started: bool = True
    ) -> AttemptDevices:
        taken = AttemptDevices(devices=devices, variables={}, started=lambda _: None)
        self.watch.begin(taken, free_bytes or {})
        owner = of_pid(self.worker.pid)
        assert owner is not None
        if is_started:
            self.watch.owned_by(taken, owner)
        return taken


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.watch.close()
    os.killpg(made.worker.pid, 9)
    made.worker.communicate()


def test_an_attempt_holds_what_all_its_processes_hold_and_nobody_elses(bench: Bench) -> None:
    taken = bench.taken("a", "b", free_bytes={"a": 24 * GIB, "b": 24 * GIB})
    bench.meter.use("a", bench.worker.pid, 1 * GIB)
    bench.meter.use("a", bench.child, 2 * GIB)
    bench.meter.use("a", os.getpid(), 16 * GIB)
    bench.meter.use("b", bench.child, 5 * GIB)
    bench.watch.look()
    assert bench.heard == [{"a": 3 * GIB, "b": 5 * GIB}]
    assert taken.peak_bytes == 5 * GIB


def test_the_most_counts_and_only_more_is_told(bench: Bench) -> None:
    taken = bench.taken("a")
    for size in (4, 2, 4, 6):
        bench.meter.use("a", bench.child, size * GIB)
        bench.watch.look()
    assert bench.heard == [{"a": 4 * GIB}, {"a": 6 * GIB}]
    assert taken.peak_bytes == 6 * GIB


def test_where_numbers_mean_nothing_a_device_of_its_own_tells_by_what_is_free(bench: Bench) -> None:
    taken = bench.taken("a", free_bytes={"a": 23 * GIB})
    bench.meter.use("a", UNSEEN, 8 * GIB)
    bench.watch.look()
    assert taken.peak_bytes == 7 * GIB


def test_of_a_shared_device_nothing_is_guessed(bench: Bench) -> None:
    taken = bench.taken("a")
    bench.meter.use("a", UNSEEN, 8 * GIB)
    bench.watch.look()
    assert (taken.peak_bytes, bench.heard) == (None, [])


def test_a_stranger_on_the_device_is_not_charged_to_the_attempt(bench: Bench) -> None:
    taken = bench.taken("a", free_bytes={"a": 24 * GIB})
    bench.meter.use("a", os.getpid(), 8 * GIB)
    bench.watch.look()
    assert taken.peak_bytes is None


def test_nothing_is_measured_before_there_is_a_process_or_after_the_end(bench: Bench) -> None:
    bench.meter.use("a", bench.child, GIB)
    bench.taken("a", is_started=False)
    bench.watch.look()
    bench.watch.end(bench.taken("a"))
    bench.watch.look()
    assert bench.heard == []


def test_it_looks_by_itself_and_beats_each_time(bench: Bench) -> None:
    beats, seen = threading.Event(), threading.Event()
    bench.watch = DeviceWatch(
        lambda: bench.meter,
        lambda _taken, _measured: seen.set(),
        beat=beats.set,
        trouble=bench.troubles.append,
        every_s=0.001,
    )
    bench.meter.use("a", bench.child, GIB)
    bench.taken("a")
    assert seen.wait(30)
    assert beats.is_set()
    assert bench.troubles == []


def test_what_goes_wrong_is_told_and_the_next_look_is_made_all_the_same(bench: Bench) -> None:
    seen = threading.Event()

    def stumble(_taken: AttemptDevices, _measured: Mapping[str, int]) -> None:
        if not bench.troubles:
            message = "no such book"
            raise KeyError(message)
        seen.set()

    bench.watch = DeviceWatch(
        lambda: bench.meter, stumble, beat=lambda: None, trouble=bench.troubles.append, every_s=0.001
    )
    taken = bench.taken("a")
    for gib in range(1, 24):
        bench.meter.use("a", bench.child, gib * GIB)
        if seen.wait(0.05):
            break
    assert seen.wait(30)
    assert bench.troubles == ["KeyError: 'no such book'"]
    bench.watch.end(taken)


def test_no_thread_runs_before_something_is_held() -> None:
    before = set(threading.enumerate())
    DeviceWatch(lambda: FakeMeter({}), lambda _taken, _measured: None, beat=lambda: None, trouble=print)
    assert set(threading.enumerate()) <= before
