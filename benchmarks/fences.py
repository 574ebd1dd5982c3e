"""If one fence of the fleet is taken away, does a test notice?

Each is removed from a copy of the source by itself, and the quick tests that are named beside it in
`tools/mutate_fences.py` are run there until one turns red.
"""

from __future__ import annotations

import sys
from pathlib import Path

import harness
from harness import Figure, Row

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from mutate_fences import FENCES, judge_all

JOBS = 2


def main() -> int:
    bench = harness.start("fences", __doc__.splitlines()[0])
    # in a smoke run one fence, whose tests need no database
    quick = [fence for fence in FENCES if fence.tests[0].startswith("tests/unit/worker")][:1]
    judged = list(judge_all(quick, 1) if bench.quick else judge_all(FENCES, JOBS))
    bench.verdicts = [["fence", "the test that turned red"]]
    bench.verdicts += [[one.fence.name, f"`{one.red}`" if one.red else "**none**"] for one in judged]
    bench.rows.append(
        Row(
            question=f"fences that can go unnoticed, of {len(judged)}",
            against="none",
            unit="",
            ours=Figure.of([sum(not one.red for one in judged)]),
            theirs=Figure.of([0]),
            at_most=0.0,
        )
    )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
