"""Does a coordinator over HTTP grant what the simulation says, job by job, device by device, second by second?

A script of 5,000 jobs of five users on 60 unlike machines, on a virtual clock (`tests/servers/scripted_fleet.py`). The
driver plays all workers; it sends one request at a time, in the order of that clock. Coordinator and database are real.
The digest of all decisions (job, machine, devices, time) is listed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import harness
from harness import Benchmark, Figure, Row
from peers import CHECKOUT

sys.path.insert(0, str(CHECKOUT))

from tests.servers.coordinator import coordinator
from tests.servers.postgres import postgres, why_not
from tests.servers.scripted_fleet import ScriptClock, digest_of, make_script, play, simulated


def main() -> int:
    bench = harness.start("same_decisions", __doc__.splitlines()[0])
    bench.verdicts = [["where", "claims", "digest of the coordinator's decisions", "of the simulation's"]]
    compare(bench, "SQLite", f"sqlite:///{bench.home('sqlite')}/queue.db", bench.home("on-sqlite"))
    if why := "skipped by --quick" if bench.quick else why_not():
        bench.rows.append(_row("PostgreSQL", None, why))
        return bench.finish()
    with postgres() as server:
        compare(bench, "PostgreSQL", server.create(), bench.home("on-postgresql"))
    return bench.finish()


def compare(bench: Benchmark, where: str, url: str, folder: Path) -> None:
    """Play the script there, and simulate it on the machines as the coordinator knows them."""
    size = {"machines": 6, "jobs": 60, "shapes": 6} if bench.quick else {"machines": 60, "jobs": 5_000, "shapes": 40}
    script = make_script("everything", users=2 if bench.quick else 5, **size)
    bench.say(f"{len(script.batch):,} jobs on {len(script.nodes)} machines, {where}")
    clock = ScriptClock()
    with coordinator(url, folder, clock=clock) as fleet:
        played = play(fleet, clock, script)
    expected = simulated(played.offers, script)
    pairs = zip(played.decisions, expected, strict=False)
    differ = sum(one != other for one, other in pairs) + abs(len(played.decisions) - len(expected))
    bench.rows.append(_row(f"{len(expected):,} on {where}", differ))
    digests = [str(digest_of(decisions)) for decisions in (played.decisions, expected)]
    bench.verdicts.append([where, f"{played.requests:,}", *digests])


def _row(what: str, differ: int | None, why: str = "") -> Row:
    none = Figure.of([0])
    ours = None if differ is None else Figure.of([differ])
    return Row(
        question=f"decisions that differ, of {what}",
        against="none",
        unit="",
        ours=ours,
        theirs=none,
        at_most=0.0,
        why_missing=why,
    )


if __name__ == "__main__":
    sys.exit(main())
