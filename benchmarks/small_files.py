"""How long does a repository of 1,000 small files take, every file checked?

Files of 1 to 16 KB, known to the hub by git's sha1, fetched whole into an empty cache: the same commands as a person
would type, with the number of files at once that each has by default. Stoker checks and syncs each, `hf download` does
neither.
"""

from __future__ import annotations

import random
import sys

import harness
from fetching import lab
from harness import Row
from nginx import Shelf
from peers import Installed

REPOSITORY = "bench/small"
COUNT, QUICK_COUNT = 1000, 5


def main() -> int:
    bench = harness.start("small_files", __doc__.splitlines()[0])
    count = QUICK_COUNT if bench.quick else COUNT

    def fill(shelf: Shelf) -> None:
        drawn = random.Random(4)
        for number in range(count):
            name = f"part-{number // 100:02}/{number:04}.json"
            shelf.add(REPOSITORY, name, drawn.randint(1000, 16_000), is_large=False)

    with lab(bench, fill) as at:
        if at is not None:
            least = count * 1000
            sides = [at.command("stoker", lambda _: at.fetch(REPOSITORY, "--no-progress"), brings=least)]
            if isinstance(peer := bench.peer("huggingface_hub"), Installed):
                hf = peer.program("hf")
                sides.append(at.command("hf", lambda _: [hf, "download", REPOSITORY], brings=least))
            runs = bench.in_turns(sides, rounds=7)
            for question, figure, at_most in (("", harness.seconds_of, 0.333), (": CPU time", harness.cpu_of, None)):
                bench.rows.append(
                    Row(
                        question=f"{count:,} files of one repository{question}",
                        against="hf download",
                        ours=figure(runs["stoker"]),
                        theirs=figure(runs["hf"]) if "hf" in runs else None,
                        at_most=at_most,
                        why_missing=bench.missing("huggingface_hub"),
                    )
                )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
