"""A program of a job that reports a long curve: `python curve_program.py COUNT`.

It pauses now and then: a loop that does nothing else reports faster than values are written, and then some are dropped.
"""

from __future__ import annotations

import sys
import time

import curve_values
import stoker_trainer

A_TIME, PAUSE_S = 4_000, 0.05

count = int(sys.argv[1])
for step, value in enumerate(curve_values.values(count)):
    stoker_trainer.step(step, loss=value)
    if step % A_TIME == A_TIME - 1:
        time.sleep(PAUSE_S)
stoker_trainer.done()
