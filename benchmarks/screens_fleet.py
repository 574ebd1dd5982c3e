"""What do open screens cost a coordinator with 10,000 jobs and 500 machines, and how soon do they see an event?

A coordinator on SQLite with simulated workers (`sides/fleet_load.py`). The overview and pages of jobs are requested
over HTTP. Then an operator changes a job's priority 100 times a second: the delay is from the response, when the event
is durable, to the frame of `GET /v1/stream` that has the row, with 20 streams open. Last, claims run in pairs with 0
and 20 open streams, in turns: medians of the pairs are compared. One process reads the streams and parses nothing.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import fleet
import harness
import screens_scene
from fleet import Coordinator
from harness import Benchmark, Figure, Row
from peers import Installed

JOBS, MACHINES, STREAMS, PAIRS = 10_000, 500, 20, 7
CHANGES, PER_S = 1500, 100.0
CYCLES, WORKERS = 1000, 50
DELAY_S, OVERVIEW_S, PAGE_S = 0.3, 0.2, 0.02
MOST_SLOWER = 1 / 0.95
"""Of the time of a cycle, when its rate may fall by 5 %."""
_LATE_S = 5.0
PAGES = {
    "the newest": "",
    "the next": "&after={next}",
    "running and pending": "&state=running,pending",
    "by start": "&sort=started",
    "by end": "&sort=ended",
    "a part of a name": "&q=lr%3D0.5",
    "a submitter": "&submitter=me%40here",
}


def main() -> int:
    bench = harness.start("screens_fleet", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    if not isinstance(peer, Installed):
        missing = peer.reason
        bench.rows.append(Row(question="an overview", against="200 ms", ours=None, theirs=None, why_missing=missing))
        return bench.finish()
    jobs, machines = (60, 5) if bench.quick else (JOBS, MACHINES)
    with fleet.serving(peer, bench.home("screens")) as coordinator:
        screens_scene.fill(peer, coordinator, jobs=jobs, cycles=machines, workers=machines)
        answers(bench, coordinator)
        delays(bench, peer, coordinator)
        claims(bench, peer, coordinator)
    return bench.finish()


def answers(bench: Benchmark, coordinator: Coordinator) -> None:
    """Time of the overview and of pages, one after the other."""
    count = 3 if bench.quick else 30
    _add(bench, "an overview, median", _timed(coordinator, "/v1/overview", count), OVERVIEW_S, "200 ms")
    following = coordinator.get("/v1/jobs?limit=100")["next"]
    for words, query in PAGES.items():
        took = _timed(coordinator, f"/v1/jobs?limit=100{query.format(next=following)}", count)
        _add(bench, f"a page of 100 jobs: {words}, median", took, PAGE_S, "20 ms")


def delays(bench: Benchmark, peer: Installed, coordinator: Coordinator) -> None:
    """Delay from a durable event to the frame that shows it."""
    count = 20 if bench.quick else CHANGES
    job = coordinator.get("/v1/jobs?state=pending&limit=1")["jobs"][0]["id"]
    changed_s: dict[int, float] = {}
    seen_s: dict[int, float] = {}
    with _streams(peer, coordinator, 2 if bench.quick else STREAMS), _rows(coordinator, job, seen_s):
        token = coordinator.token.read_text().strip()
        line = HTTPConnection(coordinator.url.removeprefix("http://"), timeout=60)
        headers = {"X-Operator-Token": token, "Content-Type": "application/json"}
        began_s = time.perf_counter()
        for number in range(1, count + 1):
            line.request("POST", "/v1/jobs/priority", json.dumps({"jobs": [job], "priority": number}), headers)
            answer = line.getresponse()
            answer.read()
            changed_s[number] = time.perf_counter()
            if answer.status != 200:
                raise RuntimeError(f"a change of priority was refused with {answer.status}")
            time.sleep(max(0.0, began_s + number / PER_S - time.perf_counter()))
        until_s = time.perf_counter() + _LATE_S
        while max(seen_s, default=0) < count and time.perf_counter() < until_s:
            time.sleep(0.01)
    # A frame has the newest row only: an event is on screen with the first frame that has it or a later one.
    frames = sorted(seen_s.items())
    took, at = [], 0
    for number, durable_s in changed_s.items():
        while at < len(frames) and frames[at][0] < number:
            at += 1
        took.append((frames[at][1] if at < len(frames) else durable_s + _LATE_S) - durable_s)
    took.sort()
    for words, value in (("p50", took[len(took) // 2]), ("p99", took[len(took) * 99 // 100])):
        _add(bench, f"event → frame at {PER_S:.0f} events/s, {words} of {count:,}", max(0.0, value), DELAY_S, "300 ms")


def claims(bench: Benchmark, peer: Installed, coordinator: Coordinator) -> None:
    """Claim cycles with and without open streams, in pairs."""
    cycles, workers = (5, 2) if bench.quick else (CYCLES, WORKERS)
    number = 2 if bench.quick else STREAMS
    each: dict[int, list[float]] = {0: [], number: []}
    cpu: dict[int, list[float]] = {0: [], number: []}
    for pair in range(1 if bench.quick else PAIRS):
        for streams in sorted(each, reverse=pair % 2 == 1):
            bench.say(f"claims with {streams} streams, pair {pair + 1}")
            with _streams(peer, coordinator, streams):
                said = screens_scene.fill(
                    peer, coordinator, jobs=cycles, cycles=cycles, workers=workers, first=JOBS * (2 + pair)
                )
            each[streams].append(said["seconds"] / said["executed"])
            cpu[streams].append(said["server_cpu_s"] / said["executed"])
    for words, taken in (("a cycle: claim, start, finish", each), ("CPU time of the coordinator, a cycle", cpu)):
        ours, theirs = (_one(statistics.median(taken[streams])) for streams in (number, 0))
        most = MOST_SLOWER if taken is each and not bench.quick else None
        question = f"{words}, {number} open streams"
        bench.rows.append(Row(question=question, against="no stream", ours=ours, theirs=theirs, at_most=most))


@contextmanager
def _streams(peer: Installed, coordinator: Coordinator, count: int) -> Iterator[None]:
    """Keep so many streams open, read by another process."""
    if not count:
        yield
        return
    side = str(harness.SIDES / "screens_listen.py")
    command = [str(peer.python), side, coordinator.url, str(coordinator.token), str(count)]
    settings = harness.environment_with()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        if program.stdout.readline().strip() != "open":
            raise RuntimeError("screens_listen.py opened no streams")
        yield
        program.stdin.close()


@contextmanager
def _rows(coordinator: Coordinator, job: str, seen_s: dict[int, float]) -> Iterator[None]:
    """Note in a thread when a frame shows a priority of a job."""
    headers = {"X-Operator-Token": coordinator.token.read_text().strip()}
    request = urllib.request.Request(coordinator.url + "/v1/stream", headers=headers)  # noqa: S310 - our own server
    reply = urllib.request.urlopen(request, timeout=60)  # noqa: S310
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set() and (line := reply.readline()):
            if line.startswith(b"data: ") and job.encode() in line:
                now_s = time.perf_counter()
                for row in json.loads(line[6:])["jobs"]:
                    if row["id"] == job:
                        seen_s.setdefault(row["priority"], now_s)

    reply.readline()
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # The next beat ends it.
        is_over.set()


def _timed(coordinator: Coordinator, path: str, count: int) -> float:
    took = []
    line = HTTPConnection(coordinator.url.removeprefix("http://"), timeout=60)
    headers = {"X-Operator-Token": coordinator.token.read_text().strip()}
    for _ in range(count):
        began_s = time.perf_counter()
        line.request("GET", path, headers=headers)
        answer = line.getresponse()
        answer.read()
        took.append(time.perf_counter() - began_s)
        if answer.status != 200:
            raise RuntimeError(f"{path} was refused with {answer.status}")
    return statistics.median(took)


def _add(bench: Benchmark, question: str, value: float, goal: float, words: str) -> None:
    most = None if bench.quick else 1.0
    bench.rows.append(Row(question=question, against=words, ours=_one(value), theirs=_one(goal), at_most=most))


def _one(value: float) -> Figure:
    return Figure(best=value, median=value, runs=1)


if __name__ == "__main__":
    sys.exit(main())
