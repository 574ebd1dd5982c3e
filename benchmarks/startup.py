"""How soon does `stoker` answer, measured in bare starts of Python?

Whole commands, from start to exit, by the interpreter of one environment; `hf` and `ray` stand beside it with the
same measure in theirs.
"""

from __future__ import annotations

import sys

import harness
from harness import Benchmark, Row, Side
from peers import Installed

COMMANDS = (
    ("stoker", ("stoker", "--help"), 2.0),
    ("stoker", ("stoker", "recipes"), 8.0),
    ("stoker", ("stoker", "run", "--no-out", "--", "true"), 8.0),
    ("stoker", ("stoker", "jobs"), None),
    ("huggingface_hub", ("hf", "--help"), None),
    ("ray", ("ray", "--help"), None),
)


def main() -> int:
    bench = harness.start("startup", __doc__.splitlines()[0])
    environments = {name: bench.peer(name) for name in ("stoker", "huggingface_hub", "ray")}
    sides = []
    for name, peer in environments.items():
        if isinstance(peer, Installed):
            sides.append(_side(bench, f"{name} bare", peer, [str(peer.python), "-c", "pass"]))
    for name, words, _ in COMMANDS:
        if isinstance(peer := environments[name], Installed):
            sides.append(_side(bench, " ".join(words), peer, [str(peer.program(words[0])), *words[1:]]))
    for side in sides if not bench.quick else ():
        side.once()  # the first run may still write bytecode or an index
    runs = bench.in_turns(sides, rounds=25)
    for name, words, at_most in COMMANDS:
        measured, bare = runs.get(" ".join(words)), runs.get(f"{name} bare")
        bench.rows.append(
            Row(
                question=" ".join(words),
                against="python -c pass",
                ours=harness.seconds_of(measured) if measured else None,
                theirs=harness.seconds_of(bare) if bare else None,
                at_most=at_most,
                why_missing=bench.missing(name),
            )
        )
    return bench.finish()


def _side(bench: Benchmark, name: str, peer: Installed, command: list[str]) -> Side:
    folder = bench.home(f"startup-{peer.name}")
    settings = {"STOKER_HOME": str(folder), "HF_HOME": str(folder), "DO_NOT_TRACK": "1"}
    return Side(name=name, once=lambda: harness.run_command(command, folder=folder, environment=settings))


if __name__ == "__main__":
    sys.exit(main())
