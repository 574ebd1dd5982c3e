"""How soon does a job run on an idle Slurm, and how long do 100 short jobs take there, beside submitit and dask?

A real Slurm with two nodes of two cores each, in namespaces of its own (`tests/servers/slurm.py`). A coordinator and
`stoker launch watch` run inside; a pool has at most four workers of one core. First one job at a time: from
`Client.submit` to the first line of its program, beside Slurm's own start of an empty script, in turns; then the next
job on that worker, and how soon the idle worker is gone. Then 100 jobs of one second, from their submission on an empty
cluster to the last result: submitit runs them as one array, dask-jobqueue as functions in warm processes that record
nothing. At last, how often the watcher asks Slurm while a job trains and nothing moves.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import harness
from harness import Benchmark, Figure, Row, Run, Side
from peers import CHECKOUT, Installed

sys.path.insert(0, str(CHECKOUT))

from tests.servers.slurm import SlurmCluster, slurm, why_no_slurm

BEYOND_S = 3.0
NEXT_S = 0.15
IDLE_S = 5.0
"""As in `sides/slurm_stoker.py`."""
GONE_S = IDLE_S + 5.0
LOOKS = 2.0
SCRIPTS = {"submitit": "slurm_submitit.py", "dask-jobqueue": "slurm_dask.py"}


def main() -> int:
    bench = harness.start("launch_slurm", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    reason = why_no_slurm()
    bench.versions["slurm"] = f"slurm is not installed: {reason}"
    if reason or not isinstance(peer, Installed):
        why = bench.missing("stoker", "slurm")
        bench.rows.append(
            Row(question="submit → first line", against="3 s", ours=None, theirs=None, at_most=1.0, why_missing=why)
        )
        return bench.finish()
    with slurm() as cluster:
        bench.versions["slurm"] = cluster.run("sbatch", "--version").split()[-1]
        one_job(bench, cluster, peer)
        many_jobs(bench, cluster, peer)
        if not bench.quick:
            looks = _inside(bench, cluster, peer, "slurm_stoker.py", "looks")["looks"]
            _goal(bench, "`squeue` calls in a minute while a job trains and nothing moves", looks, LOOKS, unit="calls")
    return bench.finish()


def one_job(bench: Benchmark, cluster: SlurmCluster, peer: Installed) -> None:
    """One job on an idle Slurm, the next one on its worker, and the worker's end."""
    count = 1 if bench.quick else 10
    bench.say(f"one job on an idle Slurm, {count} times")
    times = _inside(bench, cluster, peer, "slurm_stoker.py", "one", "--count", str(count))
    torchx = bench.peer("torchx")
    theirs = None
    if isinstance(torchx, Installed):
        bench.say("torchx")
        theirs = _inside(bench, cluster, torchx, "slurm_torchx.py", "--count", str(count))["first"]
    first, slurm_s = statistics.median(times["first"]), statistics.median(times["slurm"])
    words = f"median of {count}"
    _goal(bench, f"submit → first line on an idle Slurm, beyond an empty script, {words}", first - slurm_s, BEYOND_S)
    rows = (("an empty script of Slurm", times["slurm"], ""), ("torchx", theirs, bench.missing("torchx")))
    for against, other, why_missing in rows:
        bench.rows.append(
            Row(
                question=f"submit → first line on an idle Slurm, {words}",
                against=against,
                ours=Figure.of([first]),
                theirs=Figure.of([statistics.median(other)]) if other else None,
                why_missing=why_missing,
            )
        )
    _goal(bench, f"the next job on that worker, {words}", statistics.median(times["next"]), NEXT_S)
    _goal(
        bench, f"end of the last job → Slurm is empty (idle {IDLE_S:g} s), worst of {count}", max(times["gone"]), GONE_S
    )


def many_jobs(bench: Benchmark, cluster: SlurmCluster, peer: Installed) -> None:
    """100 jobs of a second, on four slots."""
    count, seconds = (4, 0.1) if bench.quick else (100, 1.0)
    sbatch: list[float] = []

    def ours() -> Run:
        answer = _inside(bench, cluster, peer, "slurm_stoker.py", "many", *_size(count, seconds))
        sbatch.append(answer["sbatch"])
        return _run(answer, count)

    def side(name: str, installed: Installed) -> Side:
        words = _size(count, seconds)
        return Side(name=name, once=lambda: _run(_inside(bench, cluster, installed, SCRIPTS[name], *words), count))

    others = {name: found for name in SCRIPTS if isinstance(found := bench.peer(name), Installed)}
    sides = [side(name, found) for name, found in others.items()]
    if bench.quick and not sides:
        return
    bench.say(f"{count} jobs on four slots: stoker, {', '.join(others)}")
    runs = bench.in_turns([Side(name="stoker", once=ours), *sides], rounds=2)
    question = f"{count} jobs of {seconds:g} s on 4 slots, from submit on an empty Slurm"
    bench.compare(question, "submitit's array", runs, theirs="submitit", at_most=0.8)
    bench.compare(question, "dask-jobqueue, adaptive", runs, theirs="dask-jobqueue", at_most=1.3)
    _goal(bench, f"`sbatch` calls for these {count} jobs, most of {len(sbatch)} runs", max(sbatch), 1.0, unit="calls")


def _goal(bench: Benchmark, question: str, value: float, most: float, *, unit: str = "s") -> None:
    bench.rows.append(
        Row(
            question=question,
            against=f"{most * 1000:g} ms" if unit == "s" and most < 1 else f"{most:g} {unit}",
            unit=unit,
            ours=Figure.of([value]),
            theirs=Figure.of([most]),
            at_most=1.0,
        )
    )


def _inside(bench: Benchmark, cluster: SlurmCluster, peer: Installed, script: str, *words: str) -> Any:
    """Run a script of `sides/` inside the cluster, once it is empty; return what it prints."""
    cluster.clear()
    home = bench.home(script.removesuffix(".py"))
    enter = ["sh", "-c", 'cd "$0" && exec "$@"', str(home)]
    given = ["--home", str(home), *(["--environment", str(peer.folder)] if peer.name == "stoker" else [])]
    argv = [*enter, str(peer.python), str(harness.SIDES / script), *words, *given]
    inside = {name: cluster.environment[name] for name in ("SLURM_CONF", "PATH")}
    done = subprocess.run(
        cluster.inside(argv),
        env=harness.environment_with({**inside, "HOME": str(home)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{script} failed with exit {done.returncode}:\n{(done.stderr or done.stdout)[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _run(answer: dict[str, Any], count: int) -> Run:
    if answer["executed"] != count:
        raise RuntimeError(f"{answer['executed']} jobs of {count} were executed")
    return Run(seconds=answer["seconds"])


def _size(count: int, seconds: float) -> Sequence[str]:
    return ("--count", str(count), "--seconds", f"{seconds:g}")


if __name__ == "__main__":
    sys.exit(main())
