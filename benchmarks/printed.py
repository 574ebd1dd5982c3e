"""What does it cost to read metrics from what a program prints, and is a program that prints very much slowed down?

The lines are those of well-known trainers, as `tests/recordings/printed_metrics.txt` has them, every one with a number;
beside them lines without any. The second question is asked of two programs that print as quickly as they can, one of
them lines with a number and the other lines that look as if they named columns: their own time from start to end as a
stage, with reading and with `--metrics off`, in turns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import harness
from harness import Case, Figure, Row, Run, Side
from peers import Installed

PER_LINE_S = {"numbers": 15e-6, "plain": 2e-6}
FLOODS = {
    "lines with numbers": 'f"iter {step}: loss {1 / (step + 1):.4f}, time 12.3ms, mfu 1.2%\\n"',
    "lines with two spaces": '"    indented text of a log with  two spaces and loss in it\\n"',
}
PROGRAM = """
import sys, time
begun = time.perf_counter()
for step in range({count}):
    sys.stdout.write({line})
sys.stdout.flush()
open(sys.argv[1], "w").write(repr(time.perf_counter() - begun))
"""


def main() -> int:
    bench = harness.start("printed", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    if not isinstance(stoker, Installed):
        return bench.finish()
    folder = bench.home("flood")
    count, lines = (200, 2_000) if bench.quick else (200_000, 1_000_000)
    programs = {flood: folder / f"flood{number}.py" for number, flood in enumerate(FLOODS)}
    for flood, program in programs.items():
        program.write_text(PROGRAM.format(count=lines, line=FLOODS[flood]))
    sides = [
        Side(
            name=way,
            once=lambda way=way: harness.run_side(  # type: ignore[misc]
                stoker, "stoker_printed.py", Case(count=count, way=way).arguments(folder), executed=count
            ),
        )
        for way in PER_LINE_S
    ]
    sides += [
        Side(name=f"{flood}, {name}", once=lambda program=program, options=options: _flood(stoker, program, options))  # type: ignore[misc]
        for flood, program in programs.items()
        for name, options in (("read", ()), ("off", ("--metrics", "off")))
    ]
    runs = bench.in_turns(sides, rounds=7)
    for way, limit_s in PER_LINE_S.items():
        bench.rows.append(
            Row(
                question=f"a line {'with numbers' if way == 'numbers' else 'without a number'}",
                against=f"{limit_s * 1e6:.0f} µs",
                ours=harness.seconds_of(runs[way], per=count),
                theirs=Figure.of([limit_s]),
                at_most=1.0,
            )
        )
    for flood in FLOODS:
        bench.rows.append(
            Row(
                question=f"a program that prints {lines:,} {flood} as quickly as it can",
                against="--metrics off",
                ours=harness.seconds_of(runs[f"{flood}, read"]),
                theirs=harness.seconds_of(runs[f"{flood}, off"]),
                at_most=1.05,
            )
        )
    return bench.finish()


def _flood(stoker: Installed, flood: Path, options: tuple[str, ...]) -> Run:
    """Run the program as a stage; its own time counts, not that of Stoker's start and end."""
    folder = flood.parent
    command = [stoker.python.parent / "stoker", "run", "--no-out", *options, "--"]
    told = folder / "seconds"
    program = [sys.executable, flood, told]
    environment = {
        "STOKER_HOME": str(folder / "home"),
        "STOKER_LEDGER": str(folder / "ledger"),
        "HOME": os.environ["HOME"],
    }
    harness.run_command([*command, *program], folder=folder, environment=environment)
    return Run(seconds=float(told.read_text()))


if __name__ == "__main__":
    sys.exit(main())
