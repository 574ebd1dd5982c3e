"""Does the cost of a stage stay the same from 1,000 to 100,000 stages, within 1 GiB?

One plan of independent stages, executed into an empty store and then run again with everything cached. joblib.Memory
does the same calls beside it, for context: it holds no plan, so its memory is not compared.
"""

from __future__ import annotations

import subprocess
import sys

import harness
from harness import Benchmark, Case, Figure, Row, Run
from peers import Installed

SIZES = {1_000: 5, 10_000: 2, 100_000: 1}
QUICK_SIZES = {10: 1, 50: 1}
JOBLIB_UP_TO = 10_000
LINEAR = 1.2
MEMORY_BYTES = 2**30
LIMIT_S = 600.0
CACHED_ROUNDS = 3

Found = dict[tuple[str, int], list[Run]]


def main() -> int:
    bench = harness.start("scale", __doc__.splitlines()[0])
    scripts = {"stoker": "stoker_plan.py", "joblib": "joblib_memory.py"}
    present = {peer: scripts[name] for name in scripts if isinstance(peer := bench.peer(name), Installed)}
    found: dict[str, Found] = {name: {} for name in scripts}
    for count, rounds in (QUICK_SIZES if bench.quick else SIZES).items():
        for _ in range(rounds):
            for peer, script in present.items():
                # joblib is there for context, and at the largest size takes as long as all sizes before
                if peer.name == "joblib" and count > JOBLIB_UP_TO:
                    continue
                found[peer.name] |= _added(found[peer.name], measure(bench, peer, script, count))
    for phase in ("executed", "cached"):
        report(bench, phase, found["stoker"], found["joblib"])
    return bench.finish()


def measure(bench: Benchmark, peer: Installed, script: str, count: int) -> Found:
    """One plan, executed and then cached a few times; a run over the limit leaves nothing."""
    bench.say(f"{peer.name}: {count:,} stages")
    arguments = Case(count=count, way="handles").arguments(bench.home(peer.name))
    try:
        executed = harness.run_side(peer, script, arguments, executed=count, timeout_s=LIMIT_S)
        cached = [
            harness.run_side(peer, script, arguments, executed=0, timeout_s=LIMIT_S)
            for _ in range(1 if bench.quick else CACHED_ROUNDS)
        ]
    except subprocess.TimeoutExpired:
        bench.say(f"{peer.name}: {count:,} stages took longer than {LIMIT_S:.0f} s")
        return {}
    return {("executed", count): [executed], ("cached", count): cached}


def report(bench: Benchmark, phase: str, ours: Found, theirs: Found) -> None:
    """The time per stage against that of the smallest plan, the peak of memory, and joblib beside it."""
    sizes = QUICK_SIZES if bench.quick else SIZES
    smallest, largest = min(sizes), max(sizes)
    missing = bench.missing("stoker")
    for count in sizes:
        if count != smallest:
            bench.rows.append(
                Row(
                    question=f"{phase}, {count:,}: per stage",
                    against=f"{smallest:,}",
                    ours=_per_stage(ours, phase, count),
                    theirs=_per_stage(ours, phase, smallest),
                    at_most=LINEAR,
                    why_missing=missing,
                )
            )
        if count <= JOBLIB_UP_TO:
            bench.rows.append(
                Row(
                    question=f"{phase}, {count:,}: per stage",
                    against="joblib.Memory",
                    ours=_per_stage(ours, phase, count),
                    theirs=_per_stage(theirs, phase, count),
                )
            )
    peaks = [float(run.peak_rss_bytes) for run in ours.get((phase, largest), []) if run.peak_rss_bytes is not None]
    bench.rows.append(
        Row(
            question=f"{phase}, {largest:,}: peak memory",
            against="1 GiB",
            unit="bytes",
            ours=Figure.of(peaks) if peaks else None,
            theirs=Figure.of([float(MEMORY_BYTES)]),
            at_most=1.0,
            why_missing=missing,
        )
    )


def _added(before: Found, new: Found) -> Found:
    return {place: [*before.get(place, []), *runs] for place, runs in new.items()}


def _per_stage(found: Found, phase: str, count: int) -> Figure | None:
    runs = found.get((phase, count))
    return harness.seconds_of(runs, per=count) if runs else None


if __name__ == "__main__":
    sys.exit(main())
