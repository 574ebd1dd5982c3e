"""stoker_trainer, as a program that Stoker started uses it.

`--way three` logs three numbers with each step, `--way one` a single one. What is measured is the loop, in which the
thread that writes takes its turns; what is left to write afterwards is not. Then the file is read back.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import scalars
import speak

import stoker
from stoker.engine.metrics.metrics_file import read_frames


def main() -> None:
    asked = speak.read_arguments(ways=("three", "one"))
    file = asked.home / "metrics.skm"
    file.unlink(missing_ok=True)
    os.environ["STOKER_CONTROL"], os.environ["STOKER_METRICS"] = str(asked.home / "control.jsonl"), str(file)
    sys.path.append(str(Path(stoker.__file__).parent / "trainer"))
    trainer = importlib.import_module("stoker_trainer")
    values = [scalars.at(step) for step in range(asked.count)]
    started = time.perf_counter()
    if asked.way == "one":
        for step, given in enumerate(values):
            trainer.step(step, of=asked.count, loss=given["loss"])
    else:
        for step, given in enumerate(values):
            trainer.step(step, of=asked.count, **given)
    seconds = time.perf_counter() - started
    trainer.done()
    rows = sum(len(frame.values) for frame in read_frames(str(file)))
    speak.tell(asked, seconds=seconds, total=None, executed=rows)


main()
