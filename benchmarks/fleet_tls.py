"""What does TLS cost of a claim cycle, with 20 workers on loopback?

The same load as in `fleet_cycles` (claim, start, finish, each answered once it is durable, SQLite), once over plain
loopback and once over TLS with a client certificate for each worker: verified when it connects, looked up with every
request. CPU time is what counts, since others are at work on the machine: the coordinator's and the workers' own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import fleet
import harness
from fleet_cycles import Told, _run, _said
from harness import Benchmark, Figure, Row, Run, Side
from peers import Installed

WORKERS = 20
MOST = 4 / 3
"""A quarter less of the rate is a third more of the time."""
WAYS = {"plain": "127.0.0.1:0", "TLS": "0.0.0.0:0"}


def main() -> int:
    bench = harness.start("fleet_tls", __doc__.splitlines()[0])
    ours = bench.peer("stoker")
    told = {way: Told() for way in WAYS}
    runs: harness.Runs = {}
    if isinstance(ours, Installed):
        jobs = 10 if bench.quick else 3000
        ways = ("TLS",) if bench.quick else WAYS
        sides = [Side(name=way, once=_cycles(bench, ours, way, jobs, told[way])) for way in ways]
        runs = bench.in_turns(sides, rounds=3)
    times = {way: Figure.of([run.seconds / run.executed for run in some]) for way, some in runs.items()}
    _add(bench, "a cycle over TLS", times.get("TLS"), times.get("plain"), most=MOST)
    for words, names in (("coordinator", ("server_cpu_s",)), ("workers", ("cpu_seconds",))):
        tls, plain = (told[way].figure(*names, per="executed") for way in ("TLS", "plain"))
        _add(
            bench,
            f"CPU time of the {words} for a cycle over TLS",
            tls,
            plain,
            most=MOST if words != "workers" else None,
        )
    return bench.finish()


def _add(bench: Benchmark, question: str, ours: Figure | None, theirs: Figure | None, *, most: float | None) -> None:
    missing = bench.missing("stoker")
    bench.rows.append(
        Row(question=question, against="plain HTTP", ours=ours, theirs=theirs, at_most=most, why_missing=missing)
    )


def _cycles(bench: Benchmark, peer: Installed, way: str, jobs: int, told: Told) -> Callable[[], Run]:
    workers = 2 if bench.quick else WORKERS

    def once() -> Run:
        home = bench.home(way)
        with fleet.serving(peer, home, listen=WAYS[way]) as coordinator:
            side = str(harness.SIDES / "fleet_load.py")
            asked = [coordinator.url, "--token", str(coordinator.token), "--jobs", str(jobs), "--workers", str(workers)]
            secure = ["--ca", str(coordinator.ca), "--keys", str(home)] if way == "TLS" else []
            said = _said([str(peer.python), side, *asked, "--server", str(coordinator.pid), *secure])
        return _run(said, told)

    return once


if __name__ == "__main__":
    sys.exit(main())
