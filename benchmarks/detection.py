"""How much CPU time does it take to find out what a machine without an accelerator has?

Whole commands from start to exit, an interpreter's own start included: the snapshot by itself, and `stoker doctor`,
which looks at disks, containment, clock and ports as well. On a machine that has an accelerator the question is another
one, and nothing is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys

import harness
from harness import Figure, Row, Side
from peers import Installed

GOAL_S = 0.3
SNAPSHOT = "a full snapshot: CPU time"
DOCTOR = "stoker doctor, all of it: CPU time"


def main() -> int:
    bench = harness.start("detection", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    why_not = bench.missing("stoker") or (_devices_of(peer) if isinstance(peer, Installed) else "")
    runs: harness.Runs = {}
    if isinstance(peer, Installed) and not why_not:
        folder = bench.home("detection")
        settings = {"STOKER_HOME": str(folder / "home")}
        commands = {
            SNAPSHOT: [peer.python, "-m", "stoker.devices.detection"],
            DOCTOR: [peer.program("stoker"), "doctor"],
            "bare": [peer.python, "-c", "pass"],
        }
        sides = [
            Side(
                name=name,
                once=lambda command=command: harness.run_command(command, folder=folder, environment=settings),  # type: ignore[misc]
            )
            for name, command in commands.items()
        ]
        for side in sides:
            side.once()  # the first run may still write bytecode or an index
        runs = bench.in_turns(sides, rounds=25)
    for question in (SNAPSHOT, DOCTOR):
        ours = harness.cpu_of(runs[question]) if runs else None
        bare = harness.cpu_of(runs["bare"]) if runs else None
        goal = Figure(best=GOAL_S, median=GOAL_S, runs=1)
        bench.rows.append(
            Row(question=question, against="0.3 s", ours=ours, theirs=goal, at_most=1.0, why_missing=why_not)
        )
        bench.rows.append(Row(question=question, against="python -c pass", ours=ours, theirs=bare, why_missing=why_not))
    return bench.finish()


def _devices_of(peer: Installed) -> str:
    """Why the figure would be of something else, if this machine has an accelerator."""
    said = subprocess.run(
        [peer.python, "-m", "stoker.devices.detection"],
        env=harness.environment_with(),
        capture_output=True,
        text=True,
        check=True,
    )
    names = ", ".join(device["name"] for device in json.loads(said.stdout)["devices"])
    return f"this machine has an accelerator ({names})" if names else ""


if __name__ == "__main__":
    sys.exit(main())
