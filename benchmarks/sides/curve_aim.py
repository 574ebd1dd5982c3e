"""Write a long curve for Aim, and print the run: `python curve_aim.py FOLDER COUNT`."""

from __future__ import annotations

import sys

import curve_values
from aim import Repo, Run

folder = sys.argv[1]
Repo.from_path(folder, init=True)
run = Run(
    repo=folder, experiment="curve", system_tracking_interval=None, capture_terminal_logs=False, log_system_params=False
)
for step, value in enumerate(curve_values.values(int(sys.argv[2]))):
    run.track(value, name=curve_values.NAME, step=step)
run.close()
print(run.hash)
