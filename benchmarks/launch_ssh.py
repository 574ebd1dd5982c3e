"""How soon do the workers of 100 SSH hosts serve, beside a shell loop that starts the same ones?

Every host is a network namespace with a real sshd. `stoker launch watch` has a pool for each, with a minimum of one
worker, and three bad hosts beside them: one refuses, one does not answer, one has another key than before. They must
delay no other, and be named. The loop sends the same scripts by ssh to the good hosts, 16 at once. All workers share
this machine's cores, and their start is most of the work on both sides. A smoke run has 3 hosts, and a worker on one of
them; on the others a program that sleeps stands for it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import harness
from harness import Benchmark, Figure, Row, Run, Side
from peers import CHECKOUT, Installed

sys.path.insert(0, str(CHECKOUT))

from tests.servers.sshd import why_no_sshd

HOSTS, FEW_HOSTS = 100, 3
MOST_BYTES = 150e6
NAMED_S = 30.0
"""The time-out of a connection is 5 s, and the first turn of a watcher takes a few."""
ENTER = ("setpriv", "--pdeathsig=KILL", "unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


def main() -> int:
    parser = harness.options(__doc__ or "")
    parser.add_argument("--hosts", type=int, metavar="N", help=f"number of hosts (default: {HOSTS})")
    asked = parser.parse_args()
    bench = harness.begin("launch_ssh", str(__doc__).splitlines()[0], asked)
    peer = bench.peer("stoker")
    reason = why_no_sshd() or _why_no_namespaces()
    bench.versions["sshd"] = f"sshd is not installed: {reason}" if reason else _version()
    count = asked.hosts or (FEW_HOSTS if bench.quick else HOSTS)
    question = f"{count} workers on {count} hosts serve"
    against = "a shell loop, 16 at once"
    if reason or not isinstance(peer, Installed):
        why = bench.missing("stoker", "sshd")
        bench.rows.append(Row(question=question, against=against, ours=None, theirs=None, at_most=1.3, why_missing=why))
        return bench.finish()
    answers: list[dict[str, Any]] = []

    def watch() -> Run:
        answers.append(_inside(bench, peer, "watch", count))
        return Run(seconds=answers[-1]["seconds"], peak_rss_bytes=answers[-1]["peak"])

    sides = [Side(name="stoker", once=watch)]
    if not bench.quick:
        sides.append(Side(name="loop", once=lambda: Run(seconds=_inside(bench, peer, "loop", count)["seconds"])))
    runs = bench.in_turns(sides, rounds=2)
    bench.compare(question, against, runs, theirs="loop", at_most=1.3)
    _goal(bench, "peak memory of the watcher", harness.peak_of(runs["stoker"]).best, MOST_BYTES, "bytes")
    _goal(bench, "bad hosts that are not named", 3 - min(len(one["named"]) for one in answers), 0, "hosts")
    _goal(bench, "three bad hosts are named after", max(one["named_s"] for one in answers), NAMED_S, "s", judged=False)
    named = sorted(answers[-1]["named"].items())
    bench.notes += [f"Logged of {pool}: {why.replace(str(bench.bench), '.bench')}." for pool, why in named]
    return bench.finish()


def _goal(bench: Benchmark, question: str, value: float, most: float, unit: str, *, judged: bool = True) -> None:
    bench.rows.append(
        Row(
            question=question,
            against="the goal",
            unit=unit,
            ours=Figure.of([value]),
            theirs=Figure.of([most]),
            at_most=1.0 if judged and most else 0.0 if judged else None,
        )
    )


def _inside(bench: Benchmark, peer: Installed, way: str, count: int) -> Any:
    """Run one way of `sides/ssh_fleet.py` in namespaces of its own; return what it prints."""
    bench.say(f"{count} hosts, {way}")
    home = bench.home(way)
    words = [way, "--home", str(home), "--environment", str(peer.folder), "--count", str(count)]
    if bench.quick:
        words += ["--real", "1"]
    with tempfile.TemporaryDirectory(prefix="stoker-") as runtime:
        done = subprocess.run(
            [*ENTER, str(peer.python), str(harness.SIDES / "ssh_fleet.py"), *words, "--runtime", runtime],
            env=harness.environment_with({"HOME": str(home)}),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    if done.returncode:
        raise RuntimeError(f"ssh_fleet.py failed with exit {done.returncode}:\n{(done.stderr or done.stdout)[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _why_no_namespaces() -> str:
    if shutil.which("ip") is None:
        return "there is no ip here"
    tried = subprocess.run([*ENTER, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def _version() -> str:
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    return said.partition(",")[0].removeprefix("OpenSSH_")


if __name__ == "__main__":
    sys.exit(main())
