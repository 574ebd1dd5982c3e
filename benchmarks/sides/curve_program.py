"""A program of a job that reports a long curve: `python curve_program.py COUNT`."""

from __future__ import annotations

import sys

import curve_values
import stoker_trainer

count = int(sys.argv[1])
for step, value in enumerate(curve_values.values(count)):
    stoker_trainer.step(step, loss=value)
stoker_trainer.done()
