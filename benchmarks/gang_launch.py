"""How soon have all ranks of a gang passed their first barrier, at what cost, and how soon is a failure told?

gloo on the CPU, 2 and 8 ranks; torchrun, accelerate launch and mp.spawn in turns with us, in one environment: the same
interpreter and the same torch for all. From the start of the command to the last rank's mark behind its barrier. Warm
is a resident owner, as a worker or a notebook is: from `Gang(…)` to the same barrier. A failure is rank 1's raise while
the others wait for it: until the launcher has ended, or the owner has its exception and everything is reaped.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import harness
from harness import Benchmark, Figure, Row, Run, Runs, Side
from peers import Installed

RANKS = (2, 8)
WARM, COLD, CPU, FAILED, FAILED_S = 1 / 20, 1 / 2.5, 1 / 5, 1 / 4, 0.14
BARRIER = harness.SIDES / "gang_barrier.py"
SPAWN = harness.SIDES / "gang_spawn.py"


def main() -> int:
    bench = harness.start("gang_launch", str(__doc__).splitlines()[0])
    peer = bench.environment("launchers")
    missing = peer.reason if not isinstance(peer, Installed) else ""
    for name in ("torch", "accelerate"):
        try:
            bench.versions[name] = peer.version(name) if isinstance(peer, Installed) else "?"
        except subprocess.CalledProcessError:
            missing = f"{name} is not installed"
    if missing or not isinstance(peer, Installed):
        bench.rows.append(
            Row(question="bring-up", against="torchrun", ours=None, theirs=None, at_most=WARM, why_missing=missing)
        )
        return bench.finish()
    with _resident(peer) as owner:
        if bench.quick:
            # Launchers import torch once more for each rank: seconds that show nothing.
            _bring_ups(bench, peer, owner, 1, launchers=("stoker",))
            return bench.finish()
        for count in RANKS:
            _bring_ups(bench, peer, owner, count)
        for count in RANKS:
            _failures(bench, peer, owner, count)
    return bench.finish()


def _bring_ups(bench: Benchmark, peer: Installed, owner: Owner, count: int, launchers: tuple[str, ...] = ()) -> None:
    launchers = launchers or tuple(LAUNCHERS)
    sides = [
        *(Side(name=name, once=_launch(bench, peer, name, count)) for name in launchers),
        Side(name="warm", once=lambda: owner.ask(f"{count} gloo")),
    ]
    runs = bench.in_turns(sides, rounds=5)
    for way, most, cpu in (("warm", WARM, CPU), ("stoker", COLD, CPU)):
        words = "resident owner" if way == "warm" else "`stoker gang run`"
        for other in PEERS:
            goal = most if other == "torchrun" else None
            bench.rows.append(_row(f"{count} ranks up, {words}", other, runs, way, other, goal))
        used = {name: harness.cpu_of(some) for name, some in runs.items()}
        bench.rows.append(
            Row(
                question=f"{count} ranks up, {words}: CPU time",
                against="torchrun",
                ours=used[way],
                theirs=used.get("torchrun"),
                at_most=cpu if count == max(RANKS) else None,
            )
        )


def _failures(bench: Benchmark, peer: Installed, owner: Owner, count: int) -> None:
    sides = [
        *(Side(name=name, once=_launch(bench, peer, name, count, "raise")) for name in ("torchrun", "stoker")),
        Side(name="warm", once=lambda: owner.ask(f"{count} gloo raise")),
    ]
    runs = bench.in_turns(sides, rounds=5)
    for way, words in (("warm", "resident owner"), ("stoker", "`stoker gang run`")):
        bench.rows.append(_row(f"rank 1 of {count} raises → told, {words}", "torchrun", runs, way, "torchrun", FAILED))
    goal = Figure(best=FAILED_S, median=FAILED_S, runs=1)
    took = harness.seconds_of(runs["warm"])
    bench.rows.append(
        Row(
            question=f"rank 1 of {count} raises → told and all reaped",
            against="140 ms",
            ours=Figure(best=took.median, median=took.median, runs=took.runs),
            theirs=goal,
            at_most=1.0,
        )
    )


def _row(question: str, against: str, runs: Runs, ours: str, theirs: str, most: float | None) -> Row:
    """Compare medians: on a busy machine the best of a launcher that takes seconds is luck."""
    mine, other = (
        Figure.of([harness.seconds_of(runs[name]).median]) if name in runs else None for name in (ours, theirs)
    )
    missing = "" if other else f"{against}: skipped by --quick"
    return Row(question=question, against=against, ours=mine, theirs=other, at_most=most, why_missing=missing)


PEERS = ("torchrun", "accelerate", "mp.spawn")


LAUNCHERS: dict[str, Callable[[Installed, int], list[str | Path]]] = {
    "torchrun": lambda peer, count: [peer.program("torchrun"), "--standalone", f"--nproc-per-node={count}"],
    "accelerate": lambda peer, count: [
        peer.program("accelerate"),
        "launch",
        # Its word for "several processes, by torch's own agent"; its CPU mode wants an MPI.
        "--multi_gpu",
        f"--num_processes={count}",
        "--num_machines=1",
        "--main_process_port=0",
        "--mixed_precision=no",
        "--dynamo_backend=no",
    ],
    "mp.spawn": lambda peer, _count: [peer.python],
    "stoker": lambda peer, count: [peer.program("stoker"), "gang", "run", "--ranks", str(count), "--", peer.python],
}


def _launch(bench: Benchmark, peer: Installed, name: str, count: int, how: str = "") -> Callable[[], Run]:
    def once() -> Run:
        marks = bench.home("marks")
        words = [str(marks), "gloo", how] if how else [str(marks)]
        script = [SPAWN, str(marks), str(count), str(_free_port())] if name == "mp.spawn" else [BARRIER, *words]
        started_s = time.time()
        try:
            run = harness.run_command([*LAUNCHERS[name](peer, count), *script])
        except RuntimeError:
            if not how:
                raise
            ended_s = time.time()
            return Run(seconds=ended_s - float((marks / "1").read_text()))
        if how:
            raise RuntimeError(f"{name} did not notice that a rank failed")
        last_s = max(float((marks / str(rank)).read_text()) for rank in range(count))
        return Run(seconds=last_s - started_s, cpu_seconds=run.cpu_seconds)

    return once


class Owner:
    """The resident side, asked line by line."""

    def __init__(self, asks: IO[str], answers: IO[str]) -> None:
        self._asks = asks
        self._answers = answers

    def ask(self, words: str) -> Run:
        print(words, file=self._asks, flush=True)
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the resident owner ended")
        return Run(**json.loads(line))


@contextmanager
def _resident(peer: Installed) -> Iterator[Owner]:
    command = [str(peer.python), str(harness.SIDES / "gang_warm.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=harness.environment_with()
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        owner = Owner(program.stdin, program.stdout)
        # The first one waits for the zygote's imports.
        owner.ask("2 gloo")
        yield owner
        program.stdin.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
