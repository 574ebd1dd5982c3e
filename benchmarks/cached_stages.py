"""How long do 1,000 trivial stages take when all of them are cached?

In process: a fresh interpreter, imports done, from arguments to results. "values" also loads every result, "handles"
only finds it; joblib knows both. As a command: from start to exit of the program that a person would type, output
dropped. The fan is 1,000 independent stages with one number each; the chain, where a peer has one, 1,000 in a row.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import harness
from harness import Benchmark, Case, Run, Side
from peers import Installed

IN_PROCESS = (("fan", "values", 0.35), ("chain", "values", 0.35), ("fan", "handles", None))
"""Shape, way and goal. An ordinary call of joblib gives the value; its references are shown for context."""
AS_COMMAND = (("fan", ("doit", "redun", "snakemake")), ("chain", ("doit",)))
GOALS = {"doit": 0.7, "redun": 0.1, "snakemake": 0.1}
ROUNDS = {"redun": 3, "snakemake": 5}
"""The slow ones run less often."""


def main() -> int:
    bench = harness.start("cached_stages", __doc__.splitlines()[0])
    count = 2 if bench.quick else 1000
    for shape, way, at_most in IN_PROCESS[:2] if bench.quick else IN_PROCESS:
        in_process(bench, Case(count=count, shape=shape, way=way), at_most=at_most)
    for shape, names in AS_COMMAND[:1] if bench.quick else AS_COMMAND:
        as_command(bench, names, count, shape)
    return bench.finish()


def in_process(bench: Benchmark, case: Case, *, at_most: float | None) -> None:
    """Against joblib.Memory, with a fresh process per run on both sides."""
    scripts = {"joblib": "joblib_memory.py", "stoker": "stoker_plan.py"}
    sides = [
        _filled_script(bench, peer, script, case)
        for name, script in scripts.items()
        if isinstance(peer := bench.peer(name), Installed)
    ]
    runs = bench.in_turns(sides, rounds=9)
    question = f"in process, {case.shape}, {case.way}"
    bench.compare(question, "joblib.Memory", runs, theirs="joblib", at_most=at_most)


def as_command(bench: Benchmark, names: Sequence[str], count: int, shape: str) -> None:
    """Against tools that write their results to disk and look there again."""
    sides = [
        _filled_command(bench, peer, count, shape)
        for name in (*names, "stoker")
        if isinstance(peer := bench.peer(name), Installed)
    ]
    runs = bench.in_turns(sides, rounds=9)
    for name in names:
        bench.compare(f"as a command, {shape}", name, runs, theirs=name, at_most=GOALS[name])


def _filled_script(bench: Benchmark, peer: Installed, script: str, case: Case) -> Side:
    arguments = case.arguments(bench.home(f"{peer.name}-{case.shape}-{case.way}"))
    bench.say(f"{peer.name}: filling the cache with {case.count} stages ({case.shape})")
    harness.run_side(peer, script, arguments, executed=case.count)
    return Side(name=peer.name, once=lambda: harness.run_side(peer, script, arguments, executed=0))


def _filled_command(bench: Benchmark, peer: Installed, count: int, shape: str) -> Side:
    """A side that is a command: run once to fill its cache, then once more so that nothing is new to it."""
    folder = bench.home(f"{peer.name}-command-{shape}")
    command = _command(peer, folder, count, shape)
    settings = {"STOKER_HOME": str(folder / "home")}

    def once() -> Run:
        return harness.run_command(command, folder=folder, environment=settings)

    bench.say(f"{peer.name}: filling the cache with {count} stages ({shape})")
    for _ in range(1 if bench.quick else 2):
        once()
    return Side(name=peer.name, once=once, rounds=ROUNDS.get(peer.name))


def _command(peer: Installed, folder: Path, count: int, shape: str) -> list[str]:
    sides, program = harness.SIDES, str(peer.program(peer.name))
    match peer.name:
        case "doit":
            dodo = str(sides / "doit" / "dodo.py")
            return [program, "-f", dodo, "--dir", str(folder), f"count={count}", f"shape={shape}", f"home={folder}"]
        case "redun":
            return [program, "run", str(sides / "redun_flow.py"), "work", "--count", str(count)]
        case "snakemake":
            rules = str(sides / "snakemake" / "Snakefile")
            return [program, "-s", rules, "--cores", "1", "--config", f"count={count}"]
        case _:
            return [program, "run", f"bench/{shape}", f"count={count}"]


if __name__ == "__main__":
    sys.exit(main())
