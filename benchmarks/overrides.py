"""How long does it take to understand an override, and to expand and fingerprint 10,000 trials?

Overrides: the same words on both sides, in a warm parser, by the sort of word and all together. Trials: from words to
the values, the fingerprint and the label of each, against a fixed limit; and what ten times as many trials do to
memory, where only the digests of those seen are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import harness
from harness import Benchmark, Case, Figure, Row, Run, Side
from peers import Installed, NotInstalled, Peer

sys.path.insert(0, str(harness.SIDES))
from override_words import EVERY, WORDS

TENTH = 0.1
TRIALS = (1_000, 10_000, 100_000)
QUICK_TRIALS = (1_000, 2_000, 3_000)
LIMIT_S = 2.0
FLAT = 1.1


def main() -> int:
    bench = harness.start("overrides", __doc__.splitlines()[0])
    stoker, hydra = bench.peer("stoker"), bench.peer("hydra-core")
    compare_parsers(bench, stoker, hydra)
    expand(bench, stoker)
    return bench.finish()


def compare_parsers(bench: Benchmark, stoker: Peer, hydra: Peer) -> None:
    """One row for all words together, which has the goal, and one for each sort."""
    scripts = {"stoker": (stoker, "stoker_overrides.py"), "hydra-core": (hydra, "hydra_overrides.py")}
    for sort, words in {"every": EVERY, **WORDS}.items():
        bench.say(f"overrides: {sort}")
        count = len(words) * (1 if bench.quick else 200)
        sides = [
            Side(name=name, once=_once(peer, script, count, sort, bench.home(name)))
            for name, (peer, script) in scripts.items()
            if isinstance(peer, Installed)
        ]
        runs = bench.in_turns(sides, rounds=5)
        question = "one override" if sort == "every" else f"one override: {sort}"
        bench.compare(question, "Hydra's parser", runs, theirs="hydra-core", at_most=TENTH, per=count)


def expand(bench: Benchmark, stoker: Peer) -> None:
    """The time of many trials, and what ten times as many do to memory."""
    runs: dict[int, list[Run]] = {}
    few, usual, many = QUICK_TRIALS if bench.quick else TRIALS
    if not isinstance(stoker, NotInstalled):
        for count in (few, usual, many):
            bench.say(f"stoker: {count:,} trials")
            rounds = 1 if bench.quick or count > usual else 5
            once = _once(stoker, "stoker_trials.py", count, "", bench.home("stoker"))
            runs[count] = [once() for _ in range(rounds)]
    bench.rows.append(
        Row(
            question=f"{usual:,} trials expanded, fingerprinted and named",
            against=f"{LIMIT_S:.0f} s",
            ours=harness.seconds_of(runs[usual]) if runs else None,
            theirs=Figure.of([LIMIT_S]),
            at_most=1.0,
            why_missing=bench.missing("stoker"),
        )
    )
    for fewer, more, at_most in ((few, usual, FLAT), (usual, many, None)):
        bench.rows.append(
            Row(
                question=f"memory at {more:,} trials",
                against=f"at {fewer:,}",
                unit="bytes",
                ours=_memory(runs.get(more)),
                theirs=_memory(runs.get(fewer)),
                at_most=at_most,
                why_missing=bench.missing("stoker"),
            )
        )


def _once(peer: Installed, script: str, count: int, way: str, home: Path) -> Callable[[], Run]:
    arguments = Case(count=count, way=way).arguments(home)
    return lambda: harness.run_side(peer, script, arguments, executed=count)


def _memory(runs: list[Run] | None) -> Figure | None:
    return Figure.of([run.peak_rss_bytes or 0 for run in runs]) if runs else None


if __name__ == "__main__":
    sys.exit(main())
