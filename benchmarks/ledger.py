"""What does it cost to reserve room on a device, and is it ever promised twice?

One reservation and its release, nobody else there, beside the least that a JSON file under a lock and a table in SQLite
have to do for it. Then 32 processes race for one device, one of them killed and replaced ten times a second: a table in
shared memory witnesses what is held at one moment. Last, how soon who waits has its room after a release and after a
kill.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import harness
from harness import Benchmark, Figure, Row, Side
from peers import Installed

GOAL_S = 0.002
WAKE_GOAL_S = 0.1
CALL = "reserve and release"


def main() -> int:
    bench = harness.start("ledger", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    if isinstance(peer, Installed):
        calls(bench, peer)
        race(bench, peer)
        wakes(bench, peer)
    else:
        bench.rows.append(
            Row(question=CALL, against="2 ms", ours=None, theirs=None, at_most=1.0, why_missing=peer.reason)
        )
    return bench.finish()


def calls(bench: Benchmark, peer: Installed) -> None:
    count = 10 if bench.quick else 1000
    ways = {"stoker": "stoker", "a JSON file, locked and synced": "json", "a table in SQLite, unsynced": "sqlite"}
    sides = [
        Side(
            name=name,
            once=lambda way=way: harness.run_side(  # type: ignore[misc]
                peer,
                "ledger_calls.py",
                ["--count", str(count), "--home", str(bench.home(way)), "--way", way],
                executed=count,
            ),
        )
        for name, way in ways.items()
    ]
    runs = bench.in_turns(sides, rounds=7)
    goal = Figure(best=GOAL_S, median=GOAL_S, runs=1)
    ours = harness.seconds_of(runs["stoker"], per=count)
    bench.rows.append(Row(question=CALL, against="2 ms", ours=ours, theirs=goal, at_most=1.0))
    for name in list(ways)[1:]:
        bench.compare(CALL, name, runs, theirs=name, at_most=None, per=count)


def race(bench: Benchmark, peer: Installed) -> None:
    crowd, rounds = (4, 20) if bench.quick else (32, 10_000)
    bench.say(f"{crowd} processes, {rounds} rounds, killed on the way")
    said = _say(peer, ["race", str(bench.home("race")), str(crowd), str(rounds)])
    capacity = Figure(best=said["capacity"], median=said["capacity"], runs=1)
    most = Figure(best=said["most"], median=said["most"], runs=1)
    question = f"{said['rounds']:,} rounds by {crowd} processes, {said['killed']} killed: most held at one moment"
    bench.rows.append(
        Row(question=question, against="the device", unit="bytes", ours=most, theirs=capacity, at_most=1.0)
    )
    per_round = said["seconds"] / said["rounds"]
    alone = next(row.ours for row in bench.rows if row.question == CALL)
    once = Figure(best=per_round, median=per_round, runs=1)
    bench.rows.append(Row(question=f"a round among {crowd}, waiting in line", against="alone", ours=once, theirs=alone))


def wakes(bench: Benchmark, peer: Installed) -> None:
    said = _say(peer, ["wake", str(bench.home("wake")), "1" if bench.quick else "50"])
    goal = Figure(best=WAKE_GOAL_S, median=WAKE_GOAL_S, runs=1)
    for how, question in (
        ("release", "from a release to the next one's room"),
        ("kill", "from kill -9 to the next one's room"),
    ):
        bench.rows.append(Row(question=question, against="100 ms", ours=Figure.of(said[how]), theirs=goal, at_most=1.0))


def _say(peer: Installed, arguments: list[str]) -> dict[str, Any]:
    command = [str(peer.python), str(harness.SIDES / "ledger_race.py"), *arguments]
    done = subprocess.run(command, env=harness.environment_with(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ledger_race.py failed:\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


if __name__ == "__main__":
    sys.exit(main())
