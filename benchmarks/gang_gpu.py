"""How soon is one rank with NCCL behind its first barrier on a real GPU, which no continuous integration has?

python benchmarks/gang_gpu.py                       # tells what was recorded on an H200
python benchmarks/sides/gang_gpu.py > FILE          # measures, on a machine with a GPU, torchrun and we in turns
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import harness
from harness import Figure, Row

RECORDED = Path(__file__).resolve().parent / "recorded" / "gang_h200.json"


def main() -> int:
    bench = harness.start("gang_gpu", str(__doc__).splitlines()[0])
    told = json.loads(RECORDED.read_text())
    bench.measured_on.update({"gpu": told["gpu"], "python": told["versions"]["python"]})
    bench.measured_at = told["measured_at"]
    bench.versions.update(told["versions"])
    theirs = Figure.of(told["seconds"]["torchrun"])
    for way, words in (("stoker", "`stoker gang run`"), ("warm", "a resident owner")):
        ours = Figure.of(told["seconds"][way])
        question = f"one rank with NCCL up, {words}"
        bench.rows.append(Row(question=question, against="torchrun", ours=ours, theirs=theirs, at_most=1.0))
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
